"""Loggers get the records of a run, and end no run."""

import importlib.util
import io
import sys
import types

import pytest
from rich.console import Console

from truenegs_jax.finetune import seed_runs
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import metrics, writers
from truenegs_jax.workdir import files, metrics_file

# As the loop writes them. Saved names are "<split>/<name>".
RECORDS = [
  {"step": 1, "time": 7.0, "split": "train", "mlm": 2.5},
  {"step": 2, "time": 8.0, "split": "train", "mlm": float("nan"), "auc": 0.75},
  {"step": 2, "time": 9.0, "split": "held_out", "mlm": 2.25},
]


def write_records(names, workdir, *, first_step=0, records=RECORDS):
  """Writes records as a run in `workdir` does."""
  line = metrics.ProgressLine(Console(file=io.StringIO()), 9, first_step=0)
  run = writers.LoggedRun(workdir, first_step, {"seed": 3, "optim": {"lr": 1}})
  with writers.open_writers(names, run, line) as write:
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
  assert [b"2.5" in x for x in contents] == [True, False]
  for content in contents:
    assert b"held_out/mlm" in content and b"2.25" in content
    assert b"train/time" not in content and b"train/split" not in content
  # A fine-tuning knows its folder of an unfinished run.
  assert {path.name for path in workdir.iterdir()} <= seed_runs.UNFINISHED


class Trackio(types.ModuleType):
  """Resumes runs by name, with the signatures of trackio 0.43."""

  def __init__(self):
    super().__init__("trackio")
    self.runs = {}

  def init(self, project, name=None, *, config=None, resume="never"):
    key = (project, name) if resume == "allow" else object()
    self.current = self.runs.setdefault(key, [])

  def log(self, metrics, step=None):
    self.current.append((step, metrics))

  def finish(self):
    self.current = None


@pytest.fixture
def trackio(monkeypatch):
  """Replaces trackio, whose requirements are not those of the tests."""
  module = Trackio()
  monkeypatch.setitem(sys.modules, "trackio", module)
  monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
  return module


def test_trackio_continues_a_run_but_not_that_of_another_start(
  trackio, tmp_path
):
  write_records(["trackio"], tmp_path)
  write_records(["trackio"], tmp_path, first_step=1, records=RECORDS[1:])
  write_records(["trackio"], tmp_path, records=RECORDS[:1])
  first, second = trackio.runs.values()
  assert [step for step, _ in first] == [1, 2, 2, 2, 2]
  assert first[0] == (1, {"train/mlm": 2.5})
  assert first[2] == (2, {"held_out/mlm": 2.25})
  assert [step for step, _ in second] == [1]
  assert {project for project, _ in trackio.runs} == {"truenegs_jax"}


@pytest.mark.parametrize(
  "failing", [["init"], ["log"], ["finish"], ["log", "finish"]]
)
def test_a_logger_that_fails_is_warned_of_once(
  trackio, tmp_path, monkeypatch, capsys, failing
):
  calls = []

  def fail(*args, **options):
    calls.append(args)
    raise RuntimeError("no route to host\nand more")

  for name in failing:
    monkeypatch.setattr(trackio, name, fail)
  write_records(["trackio", "tensorboard"], tmp_path)
  output = capsys.readouterr().out
  assert output.count("warning: ") == output.count("\n") == 1
  assert len(calls) == len(failing)
  for part in ("'trackio'", "no route to host", "metrics.jsonl has all"):
    assert part in output
  assert len(metrics_file.read_records(tmp_path)) == len(RECORDS)
  (events,) = (tmp_path / "tensorboard").iterdir()
  assert b"held_out/mlm" in events.read_bytes()


def test_missing_or_unknown_logger_is_refused(monkeypatch):
  writers.check_writers([])
  with pytest.raises(InputError, match="Choose tensorboard, wandb or trackio"):
    writers.check_writers(["stone"])
  monkeypatch.setattr(importlib.util, "find_spec", {}.get)
  for name, package in (("tensorboard", "tensorboardX"), ("wandb", "wandb")):
    with pytest.raises(InputError, match=f"Run pip install {package}"):
      writers.check_writers([name])


def test_other_processes_write_nothing_and_keep_their_standard_error(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(distributed, "is_first_process", lambda: False)
  console, stderr = Console(force_terminal=True, quiet=True), sys.stderr
  line = metrics.ProgressLine(console, 9, first_step=0)
  run = writers.LoggedRun(tmp_path, 0, {})
  with writers.open_writers(["wandb"], run, line):
    is_kept = sys.stderr is stderr
  assert is_kept and not [*tmp_path.iterdir()]
