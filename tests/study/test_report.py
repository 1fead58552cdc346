"""Scores of a study are those that its parts saved."""

import functools
import io
import json

import numpy as np
import pytest
from rich.console import Console

from support.html_tables import read_rows
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.tables import Study
from truenegs_jax.finetune import results
from truenegs_jax.report.write import read_workdir
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study import run, tables
from truenegs_jax.study.parts import State
from truenegs_jax.workdir import files

CONFIG = parse_config(
  [
    "--config=study:runlocal",
    "--config.study.tasks=mrpc",
    "--config.study.finetune_seeds=2",
  ]
)
STUDY = Study.read(CONFIG.study.to_dict() | {"corrections": {}})
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
    secs=secs,
    answers={"dev": dev},
    provenance={"labels": ["0", "1"], "family": "bert", "width": 768},
  )
  path = results.run_folder(folder, "mrpc", seed)
  path.mkdir(parents=True)
  results.save(folder, result)


def save_study(root, secs):
  """Writes the results of arm "baseline", and a failure of "hc"."""
  parts = parts_lib.make_parts(STUDY, root)
  for part in parts:
    folder = root / part.key
    folder.mkdir(parents=True)
    if part.arm == "hc":
      if part.name == "pretrain":
        value = {"code": 6, "line": "The loss is not finite."}
        files.save_json(folder / files.FAILED, value)
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
  return parts, parts_lib.read_states(parts, root)


def collect(root, secs):
  parts, states = save_study(root, secs)
  done = [x for x in parts if states[x.key] == State.DONE]
  return run.collect_scores(done, root)


def test_scores_do_not_depend_on_times(tmp_path):
  collected, network = collect(tmp_path / "a", 1.0)
  others, _ = collect(tmp_path / "b", 9.0)
  assert collected == others
  assert network == {"family": "bert", "width": 768}
  runs = [(x.arm, x.seed, x.task, x.finetune_seed) for x in collected]
  assert sorted(runs, key=str) == sorted(
    [
      *(("baseline", n, "mrpc", i) for n in (0, 1) for i in (0, 1)),
      *(("baseline", n, tables.HELD_OUT, None) for n in (0, 1)),
    ],
    key=str,
  )
  for x, y in zip(collected, others, strict=True):
    if x.task == "mrpc":
      np.testing.assert_array_equal(x.correct_N, y.correct_N)
      assert np.mean(x.correct_N) == x.value
    else:
      assert x.value == 3 + x.seed


@pytest.mark.parametrize("is_changed", [False, True])
def test_scores_of_robustness_are_those_of_the_arm(is_changed):
  """Also if no example was changed."""
  record = {"task": "squad", "seed": 0, "scores": {"s drop": {"f1": 0}}}
  sets = {"s": {"title": "S", "variants": [[0]]}} if is_changed else {}
  saved = {"runs": {"folder": record} if is_changed else {}, "sets": sets}
  make = functools.partial(tables.Score, "hc", 1)
  expected = [make("S", 0, "f1 drop", 0)] if is_changed else []
  assert run.read_robustness(make, saved) == expected


def test_a_failed_pretraining_is_told(tmp_path):
  parts, states = save_study(tmp_path, 1.0)
  console = Console(file=io.StringIO(), width=200)
  (tmp_path / files.CONFIG).write_text(CONFIG.to_json())
  run.report(STUDY, parts, states, {}, tmp_path, console)
  saved = json.loads((tmp_path / "results.json").read_text())
  assert len(saved["failures"]) == 2
  for seed, text in enumerate(saved["failures"]):
    assert f"hc/seed-{seed}/pretrain' failed with exit code 6: The loss" in text
    assert text in console.file.getvalue().replace("\n", "")
  first, second = saved["tables"]
  assert "GLUE" in first["title"] and second["title"] == tables.HELD_OUT
  assert len(saved["scores"]) == 6
  [section] = read_workdir(tmp_path).sections
  assert len(read_rows(*section.blocks)) == 2
  assert (tmp_path / "tables.csv").exists()
  assert (tmp_path / "report.html").exists()
