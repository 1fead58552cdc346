"""A log has few lines; loggers get all numbers, and end or delay no run."""

import io
import struct
import sys
import threading
import types

import pytest
from rich.console import Console

from truenegs_jax.runtime import distributed
from truenegs_jax.train import loggers
from truenegs_jax.workdir import metrics_file

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


@pytest.mark.parametrize(
  "steps, every", [(12, 1), (1_500, 10), (1_000_000, 1_000)]
)
def test_the_log_of_a_run_is_short_and_has_its_end(steps, every):
  out = io.StringIO()
  line = loggers.ProgressLine(Console(file=out, width=80), steps, first_step=0)
  for step in range(every, steps + 1, every):
    record = {"step": step, "split": "train", "time": 0.0, **METRICS}
    line.write(record | {"mfu": 0.4, "rows_per_s": 7.0, "eta_s": steps - step})
  line.close()
  _, header, *lines = out.getvalue().splitlines()
  assert min(steps, 20) / 2 <= len(lines) <= 30
  assert max(map(len, [header, *lines])) <= 80
  assert f"step of {steps:,}" in header and lines[0].split()[0] == f"{every:,}"
  assert lines[-1].split()[0] == f"{steps:,}"


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
