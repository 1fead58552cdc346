"""Terminal and page show the same texts, and numbers are never broken."""

import dataclasses
import io

from rich.console import Console

from support.html_tables import read_rows
from truenegs_jax.report import page
from truenegs_jax.report.tables import Table, print_table

NAMES = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
NUMBERS = {name: "+56.12\n±0.55\n2/3" for name in (*NAMES, "average of 8")}
ROWS = [
  {"": "paper, ELECTRA small HC"} | NUMBERS,
  {"": "hc"} | dict.fromkeys(NUMBERS, ""),
]
TABLE = Table("Of the paper", ROWS, ["A note that is long. " * 9])


def print_text(table):
  file = io.StringIO()
  print_table(table, Console(file=file, width=80))
  return file.getvalue()


def test_a_wide_table_has_whole_words_and_numbers_on_the_right():
  text = print_text(TABLE)
  for word in ("+56.12", "±0.55", "2/3"):
    assert text.split().count(word) == len(NUMBERS)
  assert "…" not in text and TABLE.notes[0] in text.splitlines()
  [head] = [line for line in text.splitlines() if "cola" in line]
  [first] = [line for line in text.splitlines() if "+56.12" in line]
  end = head.index("cola") + len("cola")
  assert end == first.index("+56.12") + len("+56.12")


def test_only_texts_are_broken_in_a_table_that_is_too_wide():
  names = [f"score {i} of transformed" for i in range(5)]
  numbers = dict.fromkeys(names, "80.67 ± 12.30")
  text = print_text(Table("", [{"model": "runs/" + "long" * 9} | numbers]))
  assert text.count("80.67 ± 12.30") == len(names)
  assert text.split().count("transformed") == len(names)


def test_the_page_has_the_rows_and_notes():
  html, note = page.show_tables([dataclasses.asdict(TABLE)])
  assert read_rows(html) == [[[*row.values()] for row in ROWS]]
  assert [note] == TABLE.notes and TABLE.title in html


def test_a_table_without_rows_is_its_title():
  assert print_text(Table("Nothing was found.", [])) == "Nothing was found.\n"
