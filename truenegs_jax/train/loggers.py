"""Writes the records of a run to metrics.jsonl, the console and loggers.

A logger (TensorBoard, Weights & Biases, trackio) can neither end a run nor make
it wait.
"""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError, one_of, printable
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir import files, metrics_file
from truenegs_jax.workdir.metrics_file import GrowingFolder, Record

PROJECT = "truenegs_jax"  # unless the logger's own variable names another
MAX_NAME = 100  # characters; W&B allows 128
MAX_WAITING = 10_000  # records that a logger has not taken yet
MAX_CLOSE_SECS = 90.0  # that the end of a run waits for each logger
# W&B's process uploads in the background. At the end of a run without network
# it would wait forever; what is missing then can be uploaded with `wandb sync`.
MAX_UPLOAD_SECS = 60

Values = Mapping[str, float]  # by "<split>/<name>"
# Two functions: one logs values of a step, the other completes them.
OpenLogger = tuple[Callable[[int, Values], object], Callable[[], object]]
Writer = Callable[[Record], None]


def format_duration(secs: float) -> str:
  """Returns hours, minutes and seconds: "0:02:10", "51:00:00"."""
  minutes, rest = divmod(round(secs), 60)
  return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


# Title, padded to the width of the column, and format of each metric shown.
COLUMNS = {
  "total": ("  loss", "{:.3f}".format),
  "mlm": ("  mlm", "{:.3f}".format),
  "detect": ("detect", "{:.4f}".format),
  "soft": (" soft", "{:.3f}".format),
  "sentence": ("sentence", "{:.3f}".format),
  "corrected_of_slots": ("corrected", "{:.2%}".format),
  "auc": ("  auc", "{:.3f}".format),
  "mfu": ("  mfu", "{:.1%}".format),
  "rows_per_s": ("rows/s", "{:.0f}".format),
  "eta_s": ("   left", format_duration),
}
TRAIN_ONLY = ("rows_per_s", "eta_s")
LESS_IMPORTANT = ("total", "auc", "mfu")  # left out of a line that is too long
LINE_LENGTH = 80
MAX_LINE_SECS = 3_600.0


class ProgressLine:
  """Prints about 25 records of a run as a table, and all evaluations.

  The step of a line is four times that of the line before, later a twentieth of
  the run after it; an hour is the longest wait. A terminal shows every record,
  in a last line that is replaced. `describe` describes evaluations otherwise.
  `total_steps` is 0 if the records have it.
  """

  def __init__(
    self,
    console: Console,
    total_steps: int,
    *,
    first_step: int,
    describe: Callable[[Record], str] | None = None,
  ):
    self._console = console
    self._total = total_steps
    self._describe = describe
    self._first_step = first_step
    self._next_step = 0
    self._next_secs = 0.0
    self._step_width = len(f"held-out {total_steps or 1_000:,}")
    self._columns: list[str] = []
    self._live = Live(Text("first steps ..."), console=console, transient=True)
    # It takes stderr, whose errors a quiet console would drop.
    if console.is_terminal and not console.quiet:
      self._live.start()
    else:
      console.print("first steps ...")

  def write(self, record: Record) -> None:
    """Prints a record if it is due or held-out, else shows it for a while."""
    step = record["step"]
    secs = record.get("time", 0.0)
    is_train = record["split"] == "train"
    if self._describe and not is_train:
      self._console.print(self._describe(record), soft_wrap=True)
      return
    if not self._columns:
      self._print_title(record)
    if not is_train:
      line = self._format(f"held-out {step:,}", record)
      self._console.print(line, soft_wrap=True)
      return
    line = self._format(f"{step:,}", record)
    total = record.get("total_steps", self._total)
    is_due = step >= self._next_step or secs >= self._next_secs
    if not is_due and step < total:
      self._live.update(Text(line))
      return
    self._console.print(line, soft_wrap=True)
    self._live.update(Text(""))
    distance = min(3 * (step - self._first_step), total / 20)
    self._next_step = step + distance
    self._next_secs = secs + MAX_LINE_SECS

  def close(self) -> None:
    """Removes the line that is replaced."""
    self._live.stop()

  def _print_title(self, record: Record) -> None:
    """Chooses the columns of a first record, and prints their titles."""
    self._columns = [x for x in COLUMNS if x in {*record, *TRAIN_ONLY}]
    title = f"step of {self._total:,}" if self._total else "step"
    for name in ("", *LESS_IMPORTANT):
      if name in self._columns:
        self._columns.remove(name)
      titles = [COLUMNS[x][0] for x in self._columns]
      line = self._join(title, titles)
      if len(line) <= LINE_LENGTH:
        break
    self._console.print(line)

  def _format(self, step: str, record: Record) -> str:
    """Returns the line of a record."""
    cells = []
    for name in self._columns:
      title, to_text = COLUMNS[name]
      cell = to_text(record[name]) if name in record else ""
      cells.append(cell.rjust(len(title)))
    return self._join(step, cells)

  def _join(self, step: str, cells: Sequence[str]) -> str:
    return "  ".join([step.rjust(self._step_width), *cells]).rstrip()


@dataclasses.dataclass(frozen=True)
class LoggedRun:
  """A run as loggers show it."""

  workdir: pathlib.Path  # as the user gave it
  first_step: int  # of the checkpoint that it continues
  config: Mapping[str, Any]  # in JSON's types
  # Raises DiskError once another run writes to a workdir in a bucket.
  check: Callable[[], object] = lambda: None

  @property
  def name(self) -> str:
    """The end of the workdir's path."""
    return self.workdir.as_posix()[-MAX_NAME:]

  def read_id(self) -> str:
    """Returns the id of the run that this one continues, or of a new run."""
    return (self.workdir / files.LOGGED_ID).read_text().strip()

  def write_id(self) -> None:
    """Saves a random id in the workdir, unless this run continues another."""
    path = self.workdir / files.LOGGED_ID
    if not self.first_step or not path.is_file():
      with atomic_file(path) as file:
        file.write(f"{secrets.token_hex(4)}\n".encode())


def open_tensorboard(run: LoggedRun, folder: pathlib.Path) -> OpenLogger:
  """Opens an event file, to which values are written at once.

  SummaryWriter would write them in a thread. Once that has ended, because the
  disk was full, SummaryWriter waits for it without limit.
  """
  # Optional, as all packages of loggers.
  from tensorboardX.proto.event_pb2 import Event, SessionLog
  from tensorboardX.proto.summary_pb2 import Summary
  from tensorboardX.record_writer import RecordWriter

  folder.mkdir(parents=True, exist_ok=True)
  name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
  writer = RecordWriter(str(folder / name))

  def write(**fields: Any) -> None:
    event = Event(wall_time=time.time(), **fields)
    writer.write(event.SerializeToString())
    writer.flush()

  def log(step: int, values: Values) -> None:
    items = values.items()
    pairs = [Summary.Value(tag=tag, simple_value=x) for tag, x in items]
    write(step=step, summary=Summary(value=pairs))

  write(file_version="brain.Event:2")
  # TensorBoard then drops what a killed run wrote after its last checkpoint.
  start = SessionLog(status=SessionLog.START)
  write(step=run.first_step + 1, session_log=start)
  return log, writer.close


def open_wandb(run: LoggedRun, folder: pathlib.Path) -> OpenLogger:
  """Opens a run of Weights & Biases, offline if nobody is logged in."""
  import wandb

  settings = wandb.setup().settings
  # Without a key, `init` would ask for one, or refuse to start.
  lacks_key = settings.mode == "online" and not wandb.login(
    prompt=False, verify=False
  )
  opened = wandb.init(
    project=settings.project or PROJECT,
    id=run.read_id(),
    name=run.name,
    config=dict(run.config),
    dir=folder.parent,
    mode="offline" if lacks_key else None,
    resume="allow",
    settings=wandb.Settings(
      console="off",
      finish_timeout=MAX_UPLOAD_SECS,
      max_end_of_run_history_metrics=0,
      max_end_of_run_summary_metrics=0,
    ),
  )
  # W&B's own step must rise, but a resumed run repeats some of its steps.
  opened.define_metric("*", step_metric="step")

  def log(step: int, values: Values) -> None:
    opened.log({"step": step, **values})

  return log, opened.finish


def open_trackio(run: LoggedRun, folder: pathlib.Path) -> OpenLogger:
  """Opens a run of trackio, which knows a run to resume by its name."""
  import trackio

  del folder  # its own is $TRACKIO_DIR
  opened = trackio.init(
    project=os.environ.get("TRACKIO_PROJECT", PROJECT),
    name=f"{run.name} {run.read_id()}",
    config=dict(run.config),
    resume="allow",
  )

  def log(step: int, values: Values) -> None:
    opened.log({**values}, step=step)

  return log, opened.finish


# Package and function of each logger, by the name of its folder.
LOGGERS = {
  files.TENSORBOARD: ("tensorboardX", open_tensorboard),
  files.WANDB: ("wandb", open_wandb),
  "trackio": ("trackio", open_trackio),
}


def check_writers(names: Sequence[str]) -> None:
  """Raises InputError if a logger is unknown or its package not installed."""
  for name in names:
    one_of("log.writers", name, LOGGERS)
    package, _ = LOGGERS[name]
    if importlib.util.find_spec(package) is None:
      raise InputError(
        f"log.writers has {name!r}, but {package} is not installed. Run"
        f" pip install {package} or remove {name!r}."
      )


class Logger:
  """Gives the numbers of records to a logger, in a thread of its own.

  Only the thread waits for a disk or a network. A logger that fails, or does
  not keep up, is turned off with a warning.
  """

  def __init__(self, name: str, run: LoggedRun):
    self._name = name
    self._is_on = True
    self._waiting = queue.SimpleQueue[Record | None]()
    self._thread = threading.Thread(target=self._log, args=(run,), daemon=True)
    self._thread.start()

  def write(self, record: Record) -> None:
    """Logs the metrics of a record that are numbers."""
    if self._waiting.qsize() >= MAX_WAITING:
      self._turn_off(f"{MAX_WAITING:,} records wait for it")
    if self._is_on:
      self._waiting.put(record)

  def close(self) -> None:
    """Completes what was logged; waits at most MAX_CLOSE_SECS."""
    self._waiting.put(None)
    if self._is_on:
      self._thread.join(MAX_CLOSE_SECS)
      if self._thread.is_alive():
        self._turn_off(f"it did not end in {MAX_CLOSE_SECS:g} s")

  def _log(self, run: LoggedRun) -> None:
    try:
      folder = GrowingFolder(run.workdir / self._name)
      log, close = LOGGERS[self._name][1](run, folder.local)
      for record in iter(self._waiting.get, None):
        log(record["step"], select_numbers(record))
        folder.update()
      close()
      folder.close()
    except Exception as e:  # a logger must not end a run, whatever it raises
      self._turn_off(f"{type(e).__name__}: {printable(e)}")

  def _turn_off(self, reason: str) -> None:
    """Warns once that the run goes on without the logger."""
    if self._is_on:
      line = reason.splitlines()[0][:300].rstrip(".")
      print(
        f"warning: The logger {self._name!r} failed ({line}). The run goes on"
        f" without it, and {files.METRICS} has all records."
      )
    self._is_on = False


def select_numbers(record: Record) -> dict[str, float]:
  """Returns the metrics of a record that are numbers, by "<split>/<name>"."""
  return {
    f"{record['split']}/{name}": value
    for name, value in record.items()
    if name not in metrics_file.COMMON and isinstance(value, int | float)
  }


@contextlib.contextmanager
def open_writers(
  names: Sequence[str], run: LoggedRun, line: ProgressLine
) -> Iterator[tuple[Writer, Callable[[], None]]]:
  """Yields two functions: for a record, and for the time before a save.

  The first writes a record to all writers and `line`. The second, to be called
  in all processes, waits until a kill loses no record, or raises DiskError.
  Only the first process writes.
  """
  with contextlib.ExitStack() as stack:
    stack.callback(line.close)
    file: metrics_file.JsonlWriter | None = None
    writers = list[Writer]()
    if distributed.is_first_process():
      file = metrics_file.JsonlWriter(
        run.workdir, first_step=run.first_step, check=run.check
      )
      stack.callback(file.close)
      if names:
        run.write_id()
      loggers = [Logger(name, run) for name in names]
      for logger in loggers:
        stack.callback(logger.close)
      writers = [file.write, *(x.write for x in loggers), line.write]

    def write(record: Record) -> None:
      for writer in writers:
        writer(record)

    def flush() -> None:
      if is_bucket(run.workdir):
        with distributed.raise_everywhere("records"):
          if file:
            file.upload()

    yield write, flush
