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
from truenegs_jax.study import (
  check_parts,
  drive,
  parts,
  plan,
  records,
  report,
)
from truenegs_jax.study.parts import State
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
      if part.name == "pretrain":
        value = {"code": 6, "lines": ["The loss is not finite."]}
        files.save_json(folder / parts.FAILED, value)
    elif part.name == "mrpc":
      for seed in range(2):
        save_result(folder, seed, secs)
    else:
      files.save_json(folder / files.RESULTS, {})
      lines = [
        {"step": step, "split": split, "mlm": 3 + part.seed, "time": secs}
        for step, split in ((1, "held_out"), (2, "train"))
      ]
      text = "".join(f"{json.dumps(x)}\n" for x in lines)
      (folder / "metrics.jsonl").write_text(text)
      c = check_parts.parse_part(part)
      (folder / files.CONFIG).write_text(c.to_json())
  return study, drive.read_statuses(study, root)


def collect(root, secs):
  study, statuses = save_study(root, secs)
  done = [x for x in study if statuses[x.key].state == State.DONE]
  return report.collect_scores(done, root)


def test_scores_do_not_depend_on_times(tmp_path):
  scores, network = collect(tmp_path / "a", 1.0)
  others, _ = collect(tmp_path / "b", 9.0)
  assert scores == others
  assert network == {"family": "bert", "width": 768}
  runs = [(x.arm, x.seed, x.task, x.finetune_seed) for x in scores]
  assert sorted(runs, key=str) == sorted(
    [
      *(("baseline", n, "mrpc", i) for n in (0, 1) for i in (0, 1)),
      *(("baseline", n, records.HELD_OUT, None) for n in (0, 1)),
    ],
    key=str,
  )
  for x, y in zip(scores, others, strict=True):
    if x.task == "mrpc":
      np.testing.assert_array_equal(x.correct_N, y.correct_N)
      assert np.mean(x.correct_N) == x.value
    else:
      assert x.value == 3 + x.seed


@pytest.mark.parametrize("has_scores", [True, False])
def test_a_failed_pretraining_is_told_everywhere(tmp_path, has_scores):
  study, statuses = save_study(tmp_path, 1.0)
  if not has_scores:
    study = [x for x in study if x.arm == "hc"]
  console = Console(file=io.StringIO(), width=200)
  options = dataclasses.replace(
    OPTIONS, tasks=OPTIONS.tasks if has_scores else ()
  )
  report.report(options, study, statuses, tmp_path, console)
  saved = json.loads((tmp_path / "results.json").read_text())
  reason = "pretrain: exit code 6: The loss is not finite."
  assert saved["failures"] == [
    ["hc", seed, task, reason]
    for seed in range(2)
    for task in (records.HELD_OUT, "mrpc")
  ]
  for seed in range(2):
    note = f"hc, seed {seed}, {reason}"
    assert all(note in x["notes"] for x in saved["tables"])
    assert note in console.file.getvalue()
  names = [x["name"] for x in saved["tables"]]
  assert names == (["table3", records.HELD_OUT] if has_scores else [])
  assert len(saved["scores"]) == 6 * has_scores
  expected = {"tables.csv", "tables.tex", *["plots"] * has_scores}
  assert expected <= {x.name for x in tmp_path.iterdir()}


def test_a_damaged_result_is_named(tmp_path):
  [part, *_] = plan.make_parts(OPTIONS, tmp_path)
  part = dataclasses.replace(part, name="corrections")
  (tmp_path / part.key).mkdir(parents=True)
  (tmp_path / part.key / files.RESULTS).write_text('{"checkpoints": []}')
  with pytest.raises(CheckpointError, match="Remove '.*corrections' and run"):
    report.collect_scores([part], tmp_path)
