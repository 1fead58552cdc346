"""Merges, prints and writes the metrics of a run.

Terms are pairs (sum, count), which are added before they are divided. A record
is a flat dict of metrics, with `step` and `split` ("train" or "held_out").
"""

import contextlib
import dataclasses
import functools
import importlib.util
import itertools
import pathlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.live import Live
from rich.text import Text

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError, one_of, printable
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.runtime.uploads import GrowingFolder
from truenegs_jax.workdir import files
from truenegs_jax.workdir.files import Record

Terms = Mapping[str, tuple[np.ndarray, np.ndarray]]

HISTOGRAM = "detect_histogram"


def merge_terms(batches: Iterable[Terms]) -> dict[str, tuple]:
  """Adds the pairs of several batches by name."""
  merged: dict[str, tuple] = {}
  for terms in batches:
    for name, (a, b) in terms.items():
      # float32 cannot count by ones above 2^24, a few hundred large batches.
      a = np.asarray(a, np.float64)
      b = np.asarray(b, np.float64)
      sum_a, sum_b = merged.get(name, (0.0, 0.0))
      merged[name] = (sum_a + a, sum_b + b)
  return merged


def compute_ratios(terms: Terms) -> dict[str, float]:
  """Returns sum / count by name (0 for empty terms); the histogram as `auc`."""
  values = {
    name: float(a) / float(b) if float(b) else 0.0
    for name, (a, b) in terms.items()
    if name != HISTOGRAM
  }
  if HISTOGRAM in terms:
    values["auc"] = auc(*terms[HISTOGRAM])
  return values


def auc(positive_C: np.ndarray, negative_C: np.ndarray) -> float:
  """Computes the area under the ROC curve; 0.5 without positives or negatives.

  This is the probability that a random positive scores above a random negative;
  ties count half. The arguments are numbers in C bins of ascending scores.
  """
  positive_C = np.asarray(positive_C, np.float64)
  negative_C = np.asarray(negative_C, np.float64)
  pairs = positive_C.sum() * negative_C.sum()
  if not pairs:
    return 0.5
  below_C = np.cumsum(negative_C) - negative_C
  return float((positive_C * (below_C + negative_C / 2)).sum() / pairs)


def entropy(counts: npt.ArrayLike) -> float:
  """Computes the entropy in nats of the distribution given by counts."""
  p = np.asarray(counts, np.float64)
  p = p[p > 0] / p.sum()
  return float(-(p * np.log(p)).sum())


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
NOTICEABLE_WAIT = 0.2  # share of the time in which devices wait for the host


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
      self._columns = [x for x in COLUMNS if x in {*record, *TRAIN_ONLY}]
      for name in LESS_IMPORTANT:
        if name in self._columns and len(self._title()) > LINE_LENGTH:
          self._columns.remove(name)
      self._console.print(self._title())
    line = self._format(f"{'' if is_train else 'held-out '}{step:,}", record)
    is_due = step >= self._next_step or secs >= self._next_secs
    total = record.get("total_steps", self._total)
    if is_train and not is_due and step < total:
      self._live.update(Text(line))
      return
    self._console.print(line, soft_wrap=True)
    if is_train:
      self._live.update(Text(""))
      distance = min(3 * (step - self._first_step), total / 20)
      self._next_step = step + distance
      self._next_secs = secs + MAX_LINE_SECS

  def close(self) -> None:
    """Removes the line that is replaced."""
    self._live.stop()

  def _title(self) -> str:
    titles = [COLUMNS[name][0] for name in self._columns]
    title = f"step of {self._total:,}" if self._total else "step"
    return self._join(title, titles)

  def _format(self, step: str, record: Record) -> str:
    """Returns the line of a record."""
    cells = []
    for name in self._columns:
      title, to_text = COLUMNS[name]
      cell = to_text(record[name]) if name in record else ""
      cells.append(cell.rjust(len(title)))
    line = self._join(step, cells)
    wait = record.get("host_wait", 0.0)
    if wait >= NOTICEABLE_WAIT:
      line += f"\n{self._join('', [f'waits for the host: {wait:.0%}'])}"
    return line

  def _join(self, step: str, cells: Sequence[str]) -> str:
    return "  ".join([step.rjust(self._step_width), *cells]).rstrip()


PROJECT = "truenegs_jax"  # unless the logger's own variable names another
MAX_NAME = 100  # characters; W&B allows 128
# W&B's process uploads in the background. At the end of a run without network
# it would wait forever; what is missing then can be uploaded with `wandb sync`.
MAX_UPLOAD_SECS = 60

Values = Mapping[str, float]  # by "<split>/<name>"
# Two functions: one logs values of a step, the other completes them.
OpenLogger = tuple[Callable[[int, Values], object], Callable[[], object]]
Writer = Callable[[Record], None]


@dataclasses.dataclass(frozen=True)
class LoggedRun:
  """A run as loggers show it."""

  workdir: pathlib.Path  # as the user gave it
  first_step: int  # of the checkpoint that it continues
  config: Mapping[str, Any]  # in JSON's types
  # Raises DiskError once another run writes to a workdir in a bucket.
  check: Callable[[], object] = lambda: None

  @functools.cached_property
  def id(self) -> str:
    """A random id, saved in the workdir for a run that continues this one."""
    path = self.workdir / files.LOGGED_ID
    if self.first_step and path.is_file():
      return path.read_text().strip()
    token = secrets.token_hex(4)
    with atomic_file(path) as file:
      file.write(f"{token}\n".encode())
    return token


def open_tensorboard(run: LoggedRun, folder: pathlib.Path) -> OpenLogger:
  """Opens an event file."""
  import tensorboardX  # optional, as all packages of loggers

  # purge_step drops what a killed run wrote after its last checkpoint.
  # Its own writer to buckets ends with the first request that fails, and then
  # the run would wait for it forever.
  writer = tensorboardX.SummaryWriter(
    str(folder), purge_step=run.first_step + 1
  )

  def log(step: int, values: Values) -> None:
    for name, value in values.items():
      writer.add_scalar(name, value, step)

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
    id=run.id,
    name=run.workdir.as_posix()[-MAX_NAME:],
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


_FLUSHES = itertools.count()  # numbers the barriers of a run
# Function and package of each logger, by the name of its folder.
LOGGERS = {
  files.TENSORBOARD: (open_tensorboard, "tensorboardX"),
  files.WANDB: (open_wandb, "wandb"),
}


def check_writers(names: Sequence[str]) -> None:
  """Raises InputError if a logger is unknown or its package not installed."""
  for name in names:
    one_of("log.writers", name, LOGGERS)
    package = LOGGERS[name][1]
    if importlib.util.find_spec(package) is None:
      raise InputError(
        f"log.writers has {name!r}, but {package} is not installed. Run"
        f" pip install {package} or remove {name!r}."
      )


class Logger:
  """Gives the numbers of records to a logger; one that fails is turned off."""

  def __init__(self, name: str, run: LoggedRun):
    self._name = name
    self._is_on = True
    self._stack = contextlib.ExitStack()
    with self._turn_off_on_errors():
      self._folder = GrowingFolder(run.workdir / name)
      self._stack.callback(self._folder.close)
      self._log, close = LOGGERS[name][0](run, self._folder.local)
      self._stack.callback(close)

  def write(self, record: Record) -> None:
    """Logs the metrics of a record that are numbers."""
    if not self._is_on:
      return
    values = {
      f"{record['split']}/{key}": value
      for key, value in record.items()
      if key not in files.COMMON and isinstance(value, int | float)
    }
    with self._turn_off_on_errors():
      self._log(record["step"], values)
      self._folder.update()

  def close(self) -> None:
    """Completes what was logged."""
    with self._turn_off_on_errors():
      self._stack.close()

  @contextlib.contextmanager
  def _turn_off_on_errors(self) -> Iterator[None]:
    try:
      yield
    except Exception as e:  # a logger must not end a run, whatever it raises
      if self._is_on:
        reason = f"{type(e).__name__}: {printable(e)}".splitlines()[0][:300]
        print(
          f"warning: The logger {self._name!r} failed ({reason.rstrip('.')})."
          f" The run goes on without it, and {files.METRICS} has all records."
        )
      self._is_on = False


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
    file: files.JsonlWriter | None = None
    writers = list[Writer]()
    if distributed.is_first_process():
      file = files.JsonlWriter(
        run.workdir, first_step=run.first_step, check=run.check
      )
      stack.callback(file.close)
      loggers = [Logger(name, run) for name in names]
      for logger in loggers:
        stack.callback(logger.close)
      writers = [file.write, *(x.write for x in loggers), line.write]

    def write(record: Record) -> None:
      for writer in writers:
        writer(record)

    def flush() -> None:
      if is_bucket(run.workdir):
        with distributed.raise_everywhere(f"records {next(_FLUSHES)}"):
          if file:
            file.upload()

    yield write, flush
