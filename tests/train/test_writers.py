"""Loggers get the records of a run, and end no run."""

import importlib.util
import io
import sys

import pytest
from rich.console import Console

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import metrics
from truenegs_jax.workdir import files

# As the loop writes them. Saved names are "<split>/<name>".
RECORDS = [
  {"step": 1, "time": 7.0, "split": "train", "mlm": 3.14159265},
  {"step": 2, "time": 8.0, "split": "train", "mlm": float("nan"), "auc": 0.75},
  {"step": 2, "time": 9.0, "split": "held_out", "mlm": 2.718281828},
]


def write_records(names, workdir, *, first_step=0, records=RECORDS):
  """Writes records as a run in `workdir` does."""
  line = metrics.ProgressLine(Console(file=io.StringIO()), 9, first_step=0)
  run = metrics.LoggedRun(workdir, first_step, {"seed": 3, "optim": {"lr": 1}})
  with metrics.open_writers(names, run, line) as (write, _):
    for record in records:
      write(record)


def test_tensorboard_gets_the_numbers_of_a_record(tmp_path):
  pytest.importorskip("tensorboardX")
  write_records(["tensorboard"], tmp_path)
  (events,) = (tmp_path / "tensorboard").iterdir()
  content = events.read_bytes()
  assert b"train/mlm" in content and b"held_out/mlm" in content
  for name in (b"split", b"time", b"version"):
    assert b"train/" + name not in content


@pytest.fixture
def wandb(monkeypatch, tmp_path):
  """Returns W&B of a user who is not logged in."""
  module = pytest.importorskip("wandb")
  for name in ("WANDB_API_KEY", "WANDB_PROJECT"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
  monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # no network
  for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
    monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / name))
  module.teardown()
  yield module
  module.teardown()


def test_a_run_has_an_id_that_only_its_resume_keeps(tmp_path):
  first, resumed, restarted = (
    metrics.LoggedRun(tmp_path, step, {}).id for step in (0, 1, 0)
  )
  assert first == resumed != restarted


@pytest.mark.slow
def test_wandb_continues_the_same_run_offline(
  wandb, monkeypatch, tmp_path, capsys
):
  workdir = tmp_path / "run"
  workdir.mkdir()
  folder = workdir / files.WANDB
  monkeypatch.delenv("WANDB_MODE", raising=False)
  write_records(["wandb", "tensorboard"], workdir)
  wandb.teardown()  # as the end of the process does
  [first] = folder.glob("offline-run-*")
  # The name has the second, which may be that of the next start.
  first = first.rename(folder / f"first-{first.name}")
  monkeypatch.setenv("WANDB_MODE", "offline")
  # Step 2 came after the checkpoint.
  write_records(["wandb"], workdir, first_step=1, records=RECORDS[1:])
  wandb.teardown()  # its process has then written all
  [second] = folder.glob("offline-run-*")
  assert "warning" not in capsys.readouterr().out
  token = (workdir / files.LOGGED_ID).read_text().strip()
  logs = [path / f"run-{token}.wandb" for path in (first, second)]
  contents = [path.read_bytes() for path in logs]
  assert [b"3.14159265" in x for x in contents] == [True, False]
  for content in contents:
    assert b"held_out/mlm" in content and b"2.718281828" in content
    assert b"train/time" not in content and b"train/split" not in content


@pytest.mark.parametrize(
  "failing", [["open"], ["log"], ["close"], ["log", "close"]]
)
def test_a_logger_that_fails_is_warned_of_once(
  tmp_path, monkeypatch, capsys, failing
):
  calls = []

  def call(name):
    if name in failing:
      calls.append(name)
      raise RuntimeError("no route to host\nand more")

  def open_logger(run, folder):
    call("open")
    return lambda *_: call("log"), lambda: call("close")

  monkeypatch.setitem(metrics.LOGGERS, "wandb", (open_logger, "wandb"))
  write_records(["wandb", "tensorboard"], tmp_path)
  output = capsys.readouterr().out
  assert output.count("warning: ") == output.count("\n") == 1
  assert len(calls) == len(failing)
  for part in ("'wandb'", "no route to host", "metrics.jsonl has all"):
    assert part in output
  assert len(files.read_records(tmp_path)) == len(RECORDS)
  (events,) = (tmp_path / "tensorboard").iterdir()
  assert b"held_out/mlm" in events.read_bytes()


def test_missing_or_unknown_logger_is_refused(monkeypatch):
  metrics.check_writers([])
  with pytest.raises(InputError, match="Choose tensorboard or wandb"):
    metrics.check_writers(["stone"])
  monkeypatch.setattr(importlib.util, "find_spec", {}.get)
  for name, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
    with pytest.raises(InputError, match=f"Run pip install {package}"):
      metrics.check_writers([name])


def test_other_processes_write_nothing_and_keep_their_standard_error(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(distributed, "is_first_process", lambda: False)
  console, stderr = Console(force_terminal=True, quiet=True), sys.stderr
  line = metrics.ProgressLine(console, 9, first_step=0)
  run = metrics.LoggedRun(tmp_path, 0, {})
  with metrics.open_writers(["wandb"], run, line):
    is_kept = sys.stderr is stderr
  assert is_kept and not [*tmp_path.iterdir()]
