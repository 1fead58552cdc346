"""Tests that the programs in studies/ run and have the committed results."""

import csv
import importlib
import json
import pathlib
import subprocess
import sys

import pytest

STUDIES = pathlib.Path(__file__).parents[2] / "studies"


def load(path, monkeypatch):
  """Imports a program."""
  monkeypatch.syspath_prepend((STUDIES / path).parent)
  return importlib.import_module(pathlib.Path(path).stem)


@pytest.mark.slow
def test_models_are_measured_on_the_languages_of_their_seeds(tmp_path):
  program = STUDIES / "artificial"
  config = tmp_path / "study.py"
  config.write_text(f"""
import runpy
def get_config():
  c = runpy.run_path({str(program / "study.py")!r})["get_config"]("all")
  c.study.arms = {{"a": c.study.arms["hc_p50"]}}
  c.study.overrides = {{"steps": 4, "optim.warmup_steps": 1, "eval.rows": 8}}
  c.study.overrides["model.layers"] = 1
  return c
""")
  command = [
    *(sys.executable, str(program / "run.py"), f"--workdir={tmp_path}"),
    *("--seeds=1", "--rows=300", f"--study={config}"),
  ]
  subprocess.run(command, check=True)
  with (tmp_path / "measures.csv").open() as file:
    rows = [x for x in csv.DictReader(file) if x["arm"] == "a"]
  values = {(x["step"], x["measure"]): float(x["value"]) for x in rows}
  assert 0 < values["4", "kl_word"] < 5
  assert values["1", "kl_class"] != values["4", "kl_class"]


def test_the_result_of_corrections_is_that_of_the_committed_files(monkeypatch):
  summarize = load("corrections/summarize", monkeypatch)
  assert summarize.OUT.read_text() == summarize.render()


def test_the_example_of_the_figure_is_reproduced(monkeypatch):
  fixed_points = load("fixed_points", monkeypatch)
  numbers = json.loads((STUDIES / "fixed_points.json").read_text())
  for lexicon, points in numbers["example"].items():
    for name, point in points.items():
      solved = fixed_points.solve_example(name, lexicon)
      assert solved == pytest.approx(point, abs=2e-4)


@pytest.mark.parametrize(
  ("losses", "sentences"),
  [
    ([5, 4, 4.5, 6, None], ["best 2, highest stable 3"]),
    ([5, 4, 4.5], ["best 2, highest stable 3"]),
    ([5, 4, None], ["best 2, highest stable 2"]),
    ([4, 5, 6], ["best 1, highest stable 2", "add rates beyond it"]),
    ([6, 5, 4], ["best 3, highest stable 3", "add rates beyond it"]),
    ([5.7, 5.6, 5.7], ["best 2, highest stable 3", "Raise --steps"]),
    ([6, 6, None], ["No run has learned"]),
  ],
)
def test_a_range_test_names_the_best_rate(monkeypatch, losses, sentences):
  """None is a run that diverged; 5.8 the loss of unigrams."""
  judge = load("learning_rate", monkeypatch).judge
  rows = []
  for rate, loss in enumerate(losses, start=1):
    row = {"rate": rate, "state": "diverged"}
    if loss:
      row |= {"state": "done", "mlm_hidden": loss, "unigram": 5.8}
      row |= {"learned": loss < 5.8, "learned_context": loss < 5.5}
    rows.append(row)
  lines = judge(rows).splitlines()
  for line, sentence in zip(lines, sentences, strict=True):
    assert sentence in line
