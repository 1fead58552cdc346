"""A launcher's loop over the parts of a study does what the study does."""

import json
import pathlib

import pytest

from truenegs_jax.config.flags import parse_config
from truenegs_jax.runtime.errors import BusyError, CheckpointError
from truenegs_jax.runtime.files import lock_file
from truenegs_jax.study import drive, next_part, plan
from truenegs_jax.workdir import files

STUDY = ["--config=study"]


def find_next(root, **changes):
  values = {"arms": "a=baseline; b=hc", "seeds": 1, "tasks": "mrpc"}
  values |= {"finetune_seeds": 1, **changes}
  words = [f"--config.study.{name}={x}" for name, x in values.items()]
  config = json.loads(parse_config(["--config=study", *words]).to_json())
  return next_part.find_next_flags(config, root, STUDY)


def end_part(words, code=0):
  """Writes what a part leaves, with the flags that were printed."""
  folder = pathlib.Path(words[-1].removeprefix("--workdir="))
  assert (folder / drive.RECORD).exists()
  outputs = [files.RESULTS, "mrpc/seed-0/result.json"]
  path = folder / outputs["mrpc" in words[0]]
  if code:
    path = folder / drive.FAILED
  path.parent.mkdir(parents=True, exist_ok=True)
  files.save_json(path, {"code": code, "line": "It is broken."})


def save_results(root):
  """Writes what `study` saves at its end."""
  config = json.loads((root / files.CONFIG).read_text())
  study, _, states = next_part.open_study(
    next_part.Study.read(config["study"]), root
  )
  value = {"config": config, "parts": states}
  files.save_json(root / files.RESULTS, value)
  return study.parts


def test_the_parts_come_in_the_order_of_the_study_and_then_its_report(
  tmp_path,
):
  printed = []
  while (words := find_next(tmp_path)) != STUDY:
    assert words == find_next(tmp_path)  # until it has ended
    printed.append((*plan.MAIN, *words))
    end_part(words)
  parts = save_results(tmp_path)
  assert printed == [part.command for part in parts]
  assert find_next(tmp_path) == []
  words = find_next(tmp_path, seeds=2)
  assert "--config.seed=1" in words  # a larger study goes on


def test_parts_that_run_are_left_to_their_process(tmp_path):
  first = find_next(tmp_path)
  folder = tmp_path / "runs/a/seed-0/pretrain"
  with lock_file(folder / files.LOCK):  # of a run, as of a launcher
    second = find_next(tmp_path)
    assert second[-1].endswith("runs/b/seed-0/pretrain")
    end_part(second)
    end_part(find_next(tmp_path))
    with pytest.raises(BusyError, match="a/seed-0/pretrain"):
      find_next(tmp_path)
  assert find_next(tmp_path) == first


def test_a_part_that_failed_is_repeated_and_one_that_diverged_is_not(tmp_path):
  first = find_next(tmp_path)
  end_part(first, code=5)
  assert find_next(tmp_path) == first
  end_part(first, code=6)
  assert find_next(tmp_path)[-1].endswith("runs/b/seed-0/pretrain")


def test_changed_values_are_refused(tmp_path):
  find_next(tmp_path)
  with pytest.raises(CheckpointError, match="masking.prob"):
    find_next(tmp_path, overrides="masking.prob=0.3")
