"""Scores of a study are those that its parts saved."""

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.finetune import results
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.flags import parse_config
from truenegs_jax.study import collect, drive, parts, plan, report
from truenegs_jax.workdir import files

OPTIONS = plan.StudyOptions.from_config(
  parse_config(
    [
      "--config=study:runlocal",
      "--config.study.tasks=mrpc",
      "--config.study.finetune_seeds=2",
      "--config.study.corrections=",
    ]
  )
)
GOLDS = ["0", "1", "1", "0"]


def save_result(folder, seed, secs):
  answers = [str(int(x) ^ (i == seed)) for i, x in enumerate(GOLDS)]
  dev = {"keys": list("abcd"), "golds": GOLDS, "answers": answers}
  result = results.Result(
    task="mrpc",
    seed=seed,
    failure="",
    scores={"dev": {"accuracy": 75.0, "f1": 80.0}},
    step=1,
    steps=1,
    evaluations={},
    losses=[1.0],
    secs=secs,
    rows_per_s=1 / secs,
    answers={"dev": dev},
    provenance={"labels": ["0", "1"], "family": "bert", "width": 768},
    notes=[],
  )
  path = results.run_folder(folder, "mrpc", seed)
  path.mkdir(parents=True)
  results.save(folder, result)


def save_study(root, secs):
  """Writes the results of arm "baseline", and a failure of "hc"."""
  study = plan.make_parts(OPTIONS, root)
  for part in study:
    folder = root / part.key
    folder.mkdir(parents=True)
    if part.arm == "hc":
      value = {"code": 6, "lines": ["The loss is not finite."]}
      files.save_json(folder / parts.FAILED, value)
    elif part.name == "mrpc":
      for seed in range(2):
        save_result(folder, seed, secs)
    else:
      files.save_json(folder / files.RESULTS, {})
  return study, drive.read_statuses(study, root)


def test_scores_and_failures_do_not_depend_on_times(tmp_path):
  both = [
    collect.collect_scores(*save_study(root, secs), root)
    for root, secs in ((tmp_path / "a", 1.0), (tmp_path / "b", 9.0))
  ]
  assert both[0] == both[1]
  assert (both[0].family, both[0].width) == ("bert", 768)
  scores = both[0].scores
  runs = [(x.arm, x.seed, x.task, x.finetune_seed) for x in scores]
  assert runs == [("baseline", n, "mrpc", i) for n in (0, 1) for i in (0, 1)]
  for x, y in zip(scores, both[1].scores, strict=True):
    np.testing.assert_array_equal(x.correct_N, y.correct_N)
    assert np.mean(x.correct_N) == x.value


def test_results_have_scores_tables_and_failures(tmp_path):
  study, statuses = save_study(tmp_path, 1.0)
  console = Console(file=io.StringIO(), width=200)
  report.report(OPTIONS, study, statuses, tmp_path, console)
  saved = json.loads((tmp_path / "results.json").read_text())
  assert len(saved["scores"]) == 4
  assert len(saved["failures"]) == 4
  assert saved["failures"][0] == [
    *("hc", 0, "pretrain", "exit code 6: The loss is not finite.")
  ]
  assert {"tables.csv", "tables.tex"} <= {x.name for x in tmp_path.iterdir()}


def test_a_damaged_result_is_named(tmp_path):
  study, statuses = save_study(tmp_path, 1.0)
  part = dataclasses.replace(study[0], name="corrections")
  statuses = {part.key: statuses[study[0].key]}
  (tmp_path / part.key).mkdir()
  (tmp_path / part.key / files.RESULTS).write_text('{"checkpoints": []}')
  with pytest.raises(CheckpointError, match="Remove '.*corrections' and run"):
    collect.collect_scores([part], statuses, tmp_path)
