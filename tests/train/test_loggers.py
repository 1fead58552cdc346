"""A log has few lines; loggers get all numbers, and end or delay no run."""

import importlib.util
import io
import re
import struct
import sys
import threading
import types

import pytest
from rich.console import Console

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import loggers
from truenegs_jax.workdir import files, metrics_file

# As the loop writes them. Saved names are "<split>/<name>".
RECORDS = [
  {"step": 1, "time": 7.0, "split": "train", "mlm": 3.14159265},
  {"step": 2, "time": 8.0, "split": "train", "mlm": float("inf"), "auc": 0.75},
  {"step": 2, "time": 9.0, "split": "held_out", "mlm": 2.718281828},
]
VALUES = [
  (1, {"train/mlm": 3.14159265}),
  (2, {"train/mlm": float("inf"), "train/auc": 0.75}),
  (2, {"held_out/mlm": 2.718281828}),
]
# All columns of ELECTRA with soft regularization on a GPU.
METRICS = {"total": 14.25, "mlm": 7.5, "detect": 0.65, "soft": 0.9}
METRICS |= {"sentence": 0.5, "corrected_of_slots": 0.0123, "auc": 0.75}


def print_run(steps, every, *, terminal=False, evaluate=0, secs=0.0):
  """Returns what ProgressLine prints at 80 columns in a run of `steps`."""
  out = io.StringIO()
  console = Console(file=out, force_terminal=terminal, width=80)
  line = loggers.ProgressLine(console, steps, first_step=0)
  for step in range(every, steps + 1, every):
    record = {"step": step, "split": "train", "time": secs * step, **METRICS}
    line.write(record | {"mfu": 0.4, "rows_per_s": 7.0, "eta_s": steps - step})
    if evaluate and not step % evaluate:
      line.write({"step": step, "time": 0.0, "split": "held_out", "mlm": 4.0})
  line.close()
  return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue())


@pytest.mark.parametrize(
  "steps, every", [(12, 1), (1_500, 10), (1_000_000, 1_000)]
)
def test_the_log_of_a_run_is_short_and_has_its_end(steps, every):
  start, header, *lines = print_run(steps, every).splitlines()
  assert start == "first steps ..."
  assert min(steps, 20) / 2 <= len(lines) <= 30
  assert max(map(len, [header, *lines])) <= 80
  assert f"step of {steps:,}" in header and lines[0].split()[0] == f"{every:,}"
  assert lines[-1].split()[0] == f"{steps:,}"
  ends = {match.end() for match in re.finditer(r"\S+", lines[0])}
  for column in ("mlm", "detect", "soft", "sentence", "corrected", "rows/s"):
    assert header.index(column) + len(column) in ends


def test_lines_are_an_hour_apart_at_most():
  assert len(print_run(1_000, 1, secs=600.0).splitlines()) > 1_000 / 6


@pytest.mark.parametrize("terminal", [False, True])
def test_evaluations_stay_on_the_screen(terminal):
  text = print_run(1_000, 10, terminal=terminal, evaluate=500)
  for step in ("500", "1,000"):
    assert re.search(rf"held-out +{step} +4.000\r?\n", text)


def write_records(names, workdir, *, first_step=0, records=RECORDS):
  """Writes records as a run in `workdir` does."""
  console = Console(file=io.StringIO())
  line = loggers.ProgressLine(console, 9, first_step=0)
  run = loggers.LoggedRun(workdir, first_step, {"optim": {"lr": 1}})
  with loggers.open_writers(names, run, line) as (write, _):
    for record in records:
      write(record)


def read_events(folder):
  """Returns the events in the files of TensorBoard."""
  from tensorboardX.proto.event_pb2 import Event

  events = []
  for path in sorted(folder.iterdir()):
    data = path.read_bytes()
    while data:
      end = 12 + struct.unpack_from("Q", data)[0]  # after length and checksum
      events.append(Event.FromString(data[12:end]))
      data = data[end + 4 :]
  return events


def test_tensorboard_gets_the_numbers_of_a_record(tmp_path):
  pytest.importorskip("tensorboardX")
  write_records(["tensorboard"], tmp_path, first_step=6)
  _, start, *events = read_events(tmp_path / "tensorboard")
  # From step 7 on, TensorBoard drops what an earlier start wrote.
  assert (start.step, start.session_log.status) == (7, start.session_log.START)
  for event, (step, values) in zip(events, VALUES, strict=True):
    logged = {x.tag: x.simple_value for x in event.summary.value}
    assert event.step == step and logged == pytest.approx(values)
  # A kill loses no event.
  run = loggers.LoggedRun(tmp_path, 0, {})
  log, close = loggers.open_tensorboard(run, tmp_path / "a")
  log(1, {"train/mlm": 3.0})
  assert len(read_events(tmp_path / "a")) == 3
  close()


@pytest.mark.slow
def test_wandb_continues_the_same_run_offline(monkeypatch, tmp_path, capsys):
  wandb = pytest.importorskip("wandb")
  for name in ("WANDB_API_KEY", "WANDB_PROJECT", "WANDB_MODE"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))  # nobody is logged in
  monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # no network
  for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
    monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / name))
  wandb.teardown()
  workdir = tmp_path / "run"
  workdir.mkdir()
  folder = workdir / files.WANDB
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


class Trackio(types.ModuleType):
  """A stand-in with the functions of trackio 0.43, which resumes by name."""

  def __init__(self):
    super().__init__("trackio")
    self.runs = {}

  def init(self, project, name=None, *, config=None, resume="never"):
    assert (project, resume) == ("truenegs_jax", "allow") and config
    logged = self.runs.setdefault(name, [])
    return types.SimpleNamespace(
      log=lambda metrics, step: logged.append((step, metrics)),
      finish=lambda: logged.append("finished"),
    )


def test_trackio_continues_a_run_but_not_that_of_another_start(
  tmp_path, monkeypatch
):
  trackio = Trackio()
  monkeypatch.setitem(sys.modules, "trackio", trackio)
  monkeypatch.delenv("TRACKIO_PROJECT", raising=False)
  write_records(["trackio"], tmp_path)
  write_records(["trackio"], tmp_path, first_step=1, records=RECORDS[1:])
  write_records(["trackio"], tmp_path, records=RECORDS[:1])
  first, second = trackio.runs.values()
  assert first == [*VALUES, "finished", *VALUES[1:], "finished"]
  assert second == [*VALUES[:1], "finished"]
  assert all(name.startswith(str(tmp_path)[-100:]) for name in trackio.runs)


@pytest.mark.parametrize(
  ("place", "fault", "max_waiting", "reason"),
  [
    *[(x, "fails", 9, f"no route to {x}") for x in ("open", "log", "close")],
    *[(x, "hangs", 9, "did not end in 0.2 s") for x in ("open", "close")],
    *[(x, "hangs", 2, "2 records wait for it") for x in ("open", "log")],
  ],
)
def test_a_logger_that_fails_or_hangs_is_turned_off_with_one_warning(
  tmp_path, monkeypatch, capsys, place, fault, max_waiting, reason
):
  monkeypatch.setattr(loggers, "MAX_WAITING", max_waiting)
  monkeypatch.setattr(loggers, "MAX_CLOSE_SECS", 0.2)
  end = threading.Event()

  def call(name):
    if place == name and fault == "hangs":
      end.wait(10)
    elif place == name:
      raise RuntimeError(f"no route to {name}\nand more")

  def open_logger(run, folder):
    call("open")
    return lambda *_: call("log"), lambda: call("close")

  monkeypatch.setitem(loggers.LOGGERS, "wandb", ("wandb", open_logger))
  write_records(["wandb"], tmp_path, records=RECORDS * 2)
  end.set()
  output = capsys.readouterr().out
  assert output.count("warning: ") == output.count("\n") == 1
  assert "'wandb'" in output and reason in output
  assert len(metrics_file.read_records(tmp_path)) == 2 * len(RECORDS)


def test_a_missing_or_unknown_logger_is_refused(monkeypatch):
  loggers.check_writers([])
  with pytest.raises(InputError, match="Choose tensorboard, wandb or trackio"):
    loggers.check_writers(["stone"])
  monkeypatch.setattr(importlib.util, "find_spec", {}.get)
  for name, (package, _) in loggers.LOGGERS.items():
    with pytest.raises(InputError, match=f"Run pip install {package}"):
      loggers.check_writers([name])


def test_other_processes_write_nothing_and_keep_their_standard_error(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(distributed, "is_first_process", lambda: False)
  console, stderr = Console(force_terminal=True, quiet=True), sys.stderr
  line = loggers.ProgressLine(console, 9, first_step=0)
  run = loggers.LoggedRun(tmp_path, 0, {})
  with loggers.open_writers(["wandb"], run, line):
    is_kept = sys.stderr is stderr
  assert is_kept and not [*tmp_path.iterdir()]
