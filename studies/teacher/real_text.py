"""Summarizes text.jsonl and agreement.json: tables of real text.

  python studies/teacher/real_text.py

Differences from `plain` are paired by seed, with the half width of their 95 %
interval (Student's t). docs/conf.py puts `numbers` into a page.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from summary import show

FOLDER = Path(__file__).parent
WORDNET = ("hc", "balanced")
TEACHERS = ("teacher", "half", "other", "given", "more")
ARMS = ("plain", *WORDNET, *TEACHERS)
MEASURES = ("windows of 32", "of 128", "words with synonyms", "BLiMP")
KINDS = {
  "both": "WordNet lists the word, and the teacher allows it",
  "wordnet": "WordNet lists it, and the teacher does not allow it",
  "teacher": "The teacher's likeliest word, which WordNet does not list",
}


def read_values() -> dict[str, dict[int, np.ndarray]]:
  """Returns the MEASURES of each arm and seed."""
  values: dict[str, dict[int, np.ndarray]] = {}
  for line in (FOLDER / "text.jsonl").read_text("utf-8").splitlines():
    x = json.loads(line)
    match = re.search(r"(\w+)-(\d+)/", x["model"])
    assert match, x["model"]
    arm, seed = match.groups()
    losses = (x["windows"]["32"], x["windows"]["128"], x["synonyms"])
    measures = [mean for mean, _ in (*losses, x["blimp"])]
    values.setdefault(arm, {})[int(seed)] = np.array(measures)
  return values


def make_table(values: dict[str, dict[int, np.ndarray]]) -> str:
  """Returns a Markdown table: `plain`, and what differs from it."""
  lines = [
    f"| | seeds | {' | '.join(MEASURES)} |",
    "| --- " * (2 + len(MEASURES)) + "|",
  ]
  plain = values["plain"]
  for arm in (x for x in ARMS if x in values):
    seeds = sorted(values[arm].keys() & plain.keys())
    values_SxM = np.array([values[arm][x] for x in seeds])
    if arm == "plain":
      cells = [f"{x:.2f}" for x in values_SxM.mean(axis=0)]
    else:
      difference_SxM = values_SxM - np.array([plain[x] for x in seeds])
      cells = [show(x, digits=2) for x in difference_SxM.T]
    lines.append(f"| `{arm}` | {len(seeds)} | {' | '.join(cells)} |")
  return "\n".join(lines)


def make_agreement(figures: dict[str, Any]) -> str:
  """Returns a Markdown table of how far WordNet and a teacher agree."""
  lines = [
    "| odds at least | of WordNet's pairs | of words as frequent | of first"
    " senses | of words as frequent | WordNet's share of all such words |",
    "| --- | --- | --- | --- | --- | --- |",
  ]
  all_senses, first = figures["wordnet"], figures["wordnet senses=1"]
  for ratio in all_senses["precision"]:
    cells = [
      f"{100 * mean:.1f} ± {100 * error:.1f} %"
      for mean, error in (
        all_senses["precision"][ratio],
        all_senses["chance"][ratio],
        first["precision"][ratio],
        first["chance"][ratio],
        all_senses["recall"][ratio],
      )
    ]
    lines.append(f"| {ratio} | {' | '.join(cells)} |")
  return "\n".join(lines)


def show_examples(examples: list[dict[str, Any]]) -> str:
  """Returns Markdown tables of examples, by kind."""
  return "\n\n".join(
    "\n".join([f"**{title}**\n", *_list_rows(examples, kind)])
    for kind, title in KINDS.items()
  )


def _list_rows(examples: list[dict[str, Any]], kind: str) -> Iterator[str]:
  """Yields the rows of a table of examples."""
  yield "| text, with the hidden word | other word | its odds |"
  yield "| --- | --- | --- |"
  for x in examples:
    if x["kind"] == kind:
      left, right = (x[side].replace("|", "\\|") for side in ("left", "right"))
      text = f"{left} **{x['gold']}** {right}".strip()
      yield f"| {text} | {x['word']} | {x['odds']:g} |"


def numbers() -> dict[str, str]:
  """Returns the numbers of the documentation."""
  agreement = json.loads((FOLDER / "agreement.json").read_text("utf-8"))
  errors, listed = agreement["errors"], agreement["listed_errors"]
  percents = {
    name: f"{100 * agreement['figures']['wordnet'][name]['0.5'][0]:.1f}"
    for name in ("precision", "chance", "recall")
  }
  values = read_values()
  more = values["more"]
  lost = [more[seed][1] - values["teacher"][seed][1] for seed in more]
  return {
    **percents,
    "real_text": make_table(values),
    "more_less_teacher": f"{np.mean(lost):.2f}",
    "slots": f"{agreement['slots']:,}",
    "errors": f"{errors:,}",
    "listed_errors": f"{100 * listed / errors:.1f}",
    "agreement": make_agreement(agreement["figures"]),
    "examples": show_examples(agreement["examples"]),
  }


if __name__ == "__main__":
  for name, text in numbers().items():
    print(f"{name}:\n\n{text}\n")
