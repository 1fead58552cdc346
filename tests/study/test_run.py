"""Scores of a study are those that its parts saved."""

import dataclasses
import functools
import io
import json

import numpy as np
import pytest
from rich.console import Console

from support.json_readers import RESULT
from support.small_predictions import random_predictions, random_table
from support.texts import write_lines
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.tables import Study
from truenegs_jax.corrections import rates
from truenegs_jax.corrections.rates import CheckpointRates
from truenegs_jax.finetune import results
from truenegs_jax.finetune.results import Result
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study import run, tables
from truenegs_jax.study.compare import Score
from truenegs_jax.workdir import files

FLAGS = "--config.study.tasks=mrpc", "--config.study.finetune_seeds=2"
CONFIG = parse_config(["--config=study:runlocal", *FLAGS])
STUDY = Study.read(CONFIG.study.to_dict() | {"corrections": {}})
GOLDS = ["0", "1", "1", "0"]
make_score = functools.partial(Score, "hc", 1)


def save_result(folder, seed):
  answers = [str(int(x) ^ (i == seed)) for i, x in enumerate(GOLDS)]
  values = RESULT | {
    **{"task": "mrpc", "seed": seed},
    "scores": {"dev": {"accuracy": 75.0, "f1": 80.0}},
    "answers": {
      "dev": {"keys": list("abcd"), "golds": GOLDS, "answers": answers}
    },
    "provenance": {"labels": ["0", "1"], "family": "bert", "width": 768},
  }
  results.run_folder(folder, "mrpc", seed).mkdir(parents=True)
  results.save(folder, Result(**values))


def save_study(root):
  """Writes the results of arm "baseline", and a failure of "hc"."""
  parts = parts_lib.make_parts(STUDY, root)
  for part in parts:
    folder = root / part.key
    folder.mkdir(parents=True)
    if part.arm == "hc" and part.name == "pretrain":
      value = {"code": 6, "line": "The loss is not finite."}
      files.save_json(folder / files.FAILED, value)
    elif part.arm == "baseline" and part.name == "mrpc":
      save_result(folder, 0)
      save_result(folder, 1)
    elif part.arm == "baseline":
      files.save_json(folder / files.RESULTS, {})
      held_out = {"step": 1, "time": 1.0, "split": "held_out"}
      lines = [held_out | {"mlm": 3 + part.seed}, held_out | {"split": "train"}]
      write_lines(folder / "metrics.jsonl", lines)
  return parts, parts_lib.read_states(parts, root)


def test_a_study_reports_scores_and_failures(tmp_path):
  parts, states = save_study(tmp_path)
  console = Console(file=io.StringIO(), width=200)
  (tmp_path / files.CONFIG).write_text(CONFIG.to_json())
  run.report(STUDY, parts, states, {}, tmp_path, console)
  saved = json.loads((tmp_path / "results.json").read_text())
  scores = {
    (x["arm"], x["seed"], x["task"], x["finetune_seed"]): x["value"]
    for x in saved["scores"]
  }
  assert scores == {
    **{("baseline", n, "mrpc", i): 75 for n in (0, 1) for i in (0, 1)},
    **{("baseline", n, tables.HELD_OUT, None): 3 + n for n in (0, 1)},
  }
  assert len(saved["failures"]) == 2
  for seed, text in enumerate(saved["failures"]):
    assert f"hc/seed-{seed}/pretrain' failed with exit code 6: The loss" in text
    assert text in console.file.getvalue().replace("\n", "")
  first, second = saved["tables"]
  assert "GLUE" in first["title"] and second["title"] == tables.HELD_OUT
  assert (tmp_path / "report.html").exists()


def test_a_dry_run_lists_what_is_missing_and_writes_nothing(tmp_path):
  c = CONFIG.copy_and_resolve_references()
  c.dry_run = True
  root = tmp_path / "study"
  console = Console(file=io.StringIO(), width=400)
  assert run.run(c, root, console) == 0
  assert not root.exists()
  key = "runs/hc/seed-1/mrpc"
  assert f"{key}: --config=finetune_glue:mrpc" in console.file.getvalue()
  (root / "checkpoints").mkdir(parents=True)  # a pre-training
  with pytest.raises(InputError, match="results would be replaced"):
    run.run(c, root, console)


def test_results_of_robustness_have_scores_of_examples():
  right, wrong = "blue sea", "hill"
  golds = [[right]] * 4
  answers = {
    "s original": {"golds": golds, "answers": [right] * 4},
    "s transformed": {"golds": golds, "answers": [right, wrong] * 2},
  }
  means = {"s original": 100, "s transformed": 50, "s drop": 50}
  model = {"seed": 5, "answers": answers}
  model["scores"] = {name: {"em": mean} for name, mean in means.items()}
  saved = {"runs": {"a": model, "b": model | {"seed": 6}}}
  scores = run.read_robustness(
    make_score, saved | {"sets": {"s": {"title": "S"}}}
  )
  by_key = {(x.metric, x.finetune_seed): x for x in scores}
  assert len(by_key) == len(scores) == 2 * 3
  score_N = by_key["em drop", 6].correct_N
  np.testing.assert_array_equal(score_N, [0, 100, 0, 100])
  for x in scores:
    assert x.correct_N.mean() == x.value and x.task == "S"
  for record in saved["runs"].values():
    for values in record["scores"], record["answers"]:
      values |= {name.replace("s ", "r "): x for name, x in values.items()}
  equal = {"s": {"title": "S"}, "r": {"title": "S"}}
  scores = run.read_robustness(make_score, saved | {"sets": equal})
  assert {x.task for x in scores} == {"s", "r"}  # not averaged


def test_results_of_fine_tuning_have_scores_of_examples():
  values = RESULT | {
    "task": "rte",
    "scores": {"dev": {"accuracy": 75.0, "f1": 80.0}},
    "answers": {"dev": {"golds": GOLDS, "answers": ["0", "1", "1", "1"]}},
    "failure": "collapsed",
    "provenance": {"labels": ["0", "1"]},
  }
  [score] = run.read_finetuning(make_score, Result(**values))
  assert score.key == ("rte", "accuracy") and score.failure == "collapsed"
  np.testing.assert_array_equal(score.correct_N, [100, 100, 100, 0])


def test_results_of_corrections_become_rows_of_table_2():
  p, table = random_predictions(0, 400), random_table(0)
  r = rates.count_corrections(p, table)
  steps = [(10, 10 / 1.62), (21, 21 / 1.62), (162, 100.0)]
  checkpoints = [CheckpointRates(*x, r) for x in steps]
  saved = [dataclasses.asdict(x) for x in checkpoints]
  scores = run.read_corrections(make_score, {"checkpoints": saved})
  values = {x.metric: x.value for x in scores}
  assert len(values) == len(scores) == 4
  assert values["sequence_rate at 6.25 %"] == 100 * r.sequence_rate.rate
  assert values["mismatch_rate at 100 %"] == 100 * r.mismatch_rate.rate
