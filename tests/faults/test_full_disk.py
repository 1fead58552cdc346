"""A full disk ends no training, and what is not saved is no success."""

import contextlib
import logging
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from support import saved_steps
from support.faults import full_disk
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import DiskError
from truenegs_jax.train import loggers
from truenegs_jax.workdir import checkpoints as checkpoints_lib
from truenegs_jax.workdir import metrics_file

RECORD = {"step": 1, "split": "train", "mlm": 1.0}


def tree(step):
  values = np.random.default_rng(step).random((3, 20_000), np.float32)
  return {"params": {str(i): jnp.asarray(x) for i, x in enumerate(values)}}


def opened(folder, **options):
  return contextlib.closing(checkpoints_lib.Checkpoints(folder, **options))


@pytest.fixture(autouse=True)
def quiet_libraries(monkeypatch):
  """Hides what libraries log and print of a failed save, as commands do."""
  monkeypatch.setattr(sys, "unraisablehook", errors.print_unraisable)
  monkeypatch.setattr(logging.getLogger("absl"), "disabled", True)
  monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)


def test_a_failed_save_is_raised_once_and_the_next_one_works(tmp_path, capfd):
  with opened(tmp_path / "a", keep=9) as checkpoints:
    checkpoints.save(1, tree(1), {}, wait=True)
    with full_disk(8192):
      with pytest.raises(DiskError, match=r"File too large.*\(steps: \[1\]\)"):
        checkpoints.save(2, tree(2), {}, wait=True)
      assert checkpoints.steps() == [1]
    checkpoints.save(4, tree(4), {}, wait=True)
    assert checkpoints.steps() == [1, 4]
    restored = checkpoints.restore_state(1, tree(0))
    saved_steps.assert_equal(restored, tree(1))
  assert not capfd.readouterr().err


def test_a_save_of_the_last_step_that_has_begun_is_waited_for(tmp_path):
  with opened(tmp_path / "a", keep=9) as checkpoints:
    with full_disk(8192):
      checkpoints.save(1, tree(1), {})
      with pytest.raises(DiskError, match="No step was saved before"):
        checkpoints.save(1, tree(1), {}, wait=True)
    checkpoints.save(1, tree(1), {})
    checkpoints.save(1, tree(1), {}, wait=True)
    saved_steps.assert_equal(checkpoints.restore_state(1, tree(0)), tree(1))


@pytest.mark.parametrize("num_bytes", [0, 60])
def test_records_are_kept_until_the_disk_has_room(tmp_path, capsys, num_bytes):
  writer = metrics_file.JsonlWriter(tmp_path, first_step=0)
  with full_disk(num_bytes):
    for _ in range(3):
      writer.write(RECORD)
    with pytest.raises(DiskError):
      writer.close()
  assert capsys.readouterr().out.count("warning") == 1
  writer = metrics_file.JsonlWriter(tmp_path, first_step=0)
  with full_disk(num_bytes):
    writer.write(RECORD)
  writer.write(RECORD | {"step": 2})
  writer.close()
  steps = [record["step"] for record in metrics_file.read_records(tmp_path)]
  assert steps == [1, 2]


def test_tensorboard_without_room_is_turned_off_and_the_run_goes_on(
  tmp_path, capsys
):
  pytest.importorskip("tensorboardX")
  line = loggers.ProgressLine(Console(quiet=True), 400, first_step=0)
  run = loggers.LoggedRun(tmp_path, 0, {})
  printed = ""
  with loggers.open_writers(["tensorboard"], run, line) as (write, _):
    with full_disk():
      for step in range(1, 400):
        write(RECORD | {"step": step})
        if "tensorboard" not in printed:
          time.sleep(0.05)
          printed += capsys.readouterr().out
    write(RECORD | {"step": 400})
  warnings = printed + capsys.readouterr().out
  assert warnings.count("warning: ") == 2  # one of the logger, one of records
  assert "'tensorboard' failed (OSError: 27 File too large)" in warnings
  assert len(metrics_file.read_records(tmp_path)) == 400
