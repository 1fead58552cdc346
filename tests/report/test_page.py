"""The page carries any text safely, and runs no script."""

import json
import math
import re

import pytest

from support.html_tables import Parser, read_rows
from support.report_workdirs import (
  HOSTILE,
  HOSTILE_IMAGE,
  write_finetuning,
  write_pretraining,
)
from truenegs_jax.report import page
from truenegs_jax.report.pretraining import compare
from truenegs_jax.report.write import read_workdirs


def render(tmp_path, name):
  folder = write_pretraining(tmp_path / name)
  return Parser(page.render(read_workdirs([folder])))


@pytest.mark.parametrize(
  "name",
  ["run", "{{ data }}{% block %}", "<b>&amp;", "<script>alert(1)<", "a--><b>"],
)
def test_texts_are_texts_whatever_they_contain(tmp_path, name):
  parser = render(tmp_path, name)
  assert parser.title == name
  assert not {"img", "script", "block"} & {tag for tag, _ in parser.tags}
  [cases] = [x for x in parser.tables if "prediction" in x[0]]
  assert cases[1][1:3] == [HOSTILE, HOSTILE_IMAGE]


def test_texts_of_tables_and_paragraphs_are_escaped():
  rows = [{"<i>": "<b>", "n": 1}, {"<i>": "\"'&", "n": None}]
  drawn = page.table("<u>", rows)
  assert Parser(drawn).tables == [[["<i>", "n"], ["<b>", "1"], ["\"'&", "–"]]]
  assert not {"i", "b", "u"} & {tag for tag, _ in Parser(drawn).tags}
  section = page.Section("<s>", "f", ["<p>", drawn])
  run = page.Run("r", "p", sections=[section])
  text = page.render([run])
  assert "<p>&lt;p&gt;</p>" in text and drawn in text and "<s>" not in text


def test_losses_are_shown_beside_guesses(tmp_path):
  folder = write_pretraining(tmp_path / "run")
  record = {"step": 61, "time": 1e9, "split": "held_out", "replaced": 0.5}
  with (folder / "metrics.jsonl").open("a") as file:
    file.write(json.dumps(record) + "\n")
  [run] = read_workdirs([folder])
  entropies = {"unigram entropy": 6.9, "uniform entropy": 8.3}
  losses = ("mlm", "mlm_uncorrected", "mlm_hidden")
  assert run.curves[0].guesses == {
    **dict.fromkeys(losses, entropies),
    "auc": {"chance": 0.5},
    "detect": {"entropy of the labels": pytest.approx(math.log(2))},
  }


def test_many_curves_share_a_legend_of_their_groups(tmp_path):
  for arm in ("a", "<b>"):
    for seed in range(5):
      folder = tmp_path / f"runs/{arm}/seed-{seed}/pretrain"
      folder.mkdir(parents=True)
      record = {"step": 1, "time": 0, "split": "train", "auc": 0.5}
      (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
  (tmp_path / "config.json").write_text('{"task": "study"}')
  text = page.render(read_workdirs([tmp_path]))
  assert 'class="legend"' not in text and text.count("<title>a, seed 0") == 1
  keys = re.findall(r'class="(\S+)" d="M0 4h28"/></svg>\n(.*)</span>', text)
  assert keys == [("series-0", "&lt;b&gt;"), ("series-1", "a")]


@pytest.mark.parametrize(
  "value, text",
  [
    *((None, "–"), (float("nan"), "–"), (0.0, "0"), (61_440, "61,440")),
    *((4.31249, "4.312"), (-0.000123456, "-0.0001235"), (1e-6, "1e-06")),
    *((12_345.6, "12,346"), (99.9999, "100"), (0.5, "0.5")),
  ],
)
def test_numbers_have_four_digits(value, text):
  assert page.format_number(value) == text


def test_no_script_runs_and_nothing_is_loaded(tmp_path):
  parser = render(tmp_path, "run")
  [policy] = [x["content"] for _, x in parser.tags if "http-equiv" in x]
  assert policy.startswith("default-src 'none';") and "script" not in policy
  assert not parser.scripts
  links = [a for _, a in parser.tags if "src" in a or "href" in a]
  assert links[0] == {"rel": "icon", "href": "data:,"}
  ids = {a.get("id") for _, a in parser.tags}
  assert {x["href"].removeprefix("#") for x in links[1:]} <= ids
  assert len(links) == 6


def test_pages_of_two_runs_name_what_differs(tmp_path):
  first = write_pretraining(tmp_path / "a" / "run", lr=1e-3)
  second = write_pretraining(tmp_path / "b" / "run", lr=2e-3)
  runs = read_workdirs([first / ".." / "run", second, first])
  *_, configs = read_rows(*compare(runs))
  assert configs == [["optim.lr", "0.001", "0.002"]]
  assert [run.name for run in runs] == [str(first), str(second)]
  assert len({curve.group for run in runs for curve in run.curves}) == 2


def test_seeds_of_a_fine_tuning_share_a_colour_and_have_a_median(tmp_path):
  [run] = read_workdirs([write_finetuning(tmp_path / "rte")])
  assert {curve.group for curve in run.curves} == {"rte"}
  assert len(run.curves) == 3
  [scores] = (read_rows(*x.blocks)[0] for x in run.sections)
  assert scores == [["rte", "accuracy", "62", "60.0, 62.0, 70.0"]]
  assert run.notes == [(page.WARNING, f"rte, seed 1: {HOSTILE_IMAGE}")]
