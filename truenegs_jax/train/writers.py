"""Writes the records of a run: to metrics.jsonl and to the user's loggers.

A logger is a function that opens a run and returns two functions: one logs
values by name, the other ends the run. metrics.jsonl has all records; a logger
that raises is dropped with a warning, and training goes on.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError, one_of, printable
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.train.metrics import ProgressLine
from truenegs_jax.workdir import files, metrics_file
from truenegs_jax.workdir.metrics_file import JsonlWriter, Record

PROJECT = "truenegs_jax"  # unless the logger's own variable names another
MAX_NAME = 100  # characters; W&B allows 128
# W&B's process uploads in the background. At the end of a run without network
# it would wait forever; what is missing then can be uploaded with `wandb sync`.
MAX_UPLOAD_SECS = 60

Values = Mapping[str, float]  # by "<split>/<name>"
Logger = tuple[Callable[[int, Values], object], Callable[[], object]]


@dataclasses.dataclass(frozen=True)
class LoggedRun:
  """A run as loggers show it.

  Attributes:
    workdir: its folder, as the user gave it.
    first_step: number of steps of the checkpoint that it continues.
    config: in JSON's types.
  """

  workdir: pathlib.Path
  first_step: int
  config: Mapping[str, Any]

  @property
  def name(self) -> str:
    """The workdir, or the end of a long one."""
    return self.workdir.as_posix()[-MAX_NAME:]

  @functools.cached_property
  def id(self) -> str:
    """A random id, saved in the workdir for a run that continues this one."""
    path = self.workdir / files.LOGGED_ID
    if self.first_step and path.exists():
      return path.read_text().strip()
    token = secrets.token_hex(4)
    with atomic_file(path) as file:
      file.write(f"{token}\n".encode())
    return token


def open_tensorboard(run: LoggedRun) -> Logger:
  """Opens an event file in <workdir>/tensorboard."""
  import tensorboardX  # optional, like the packages below; see `check_writers`

  # purge_step drops what a killed run wrote after its last checkpoint.
  writer = tensorboardX.SummaryWriter(
    str(run.workdir / files.TENSORBOARD), purge_step=run.first_step + 1
  )

  def log(step: int, values: Values) -> None:
    for name, value in values.items():
      writer.add_scalar(name, value, step)

  return log, writer.close


def open_wandb(run: LoggedRun) -> Logger:
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
    name=run.name,
    config=dict(run.config),
    dir=run.workdir,
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


def open_trackio(run: LoggedRun) -> Logger:
  """Opens a run of trackio, which finds a run to resume by its name."""
  import trackio

  trackio.init(
    project=os.environ.get("TRACKIO_PROJECT", PROJECT),
    name=f"{run.name} {run.id}",
    config=dict(run.config),
    resume="allow",
  )

  def log(step: int, values: Values) -> None:
    trackio.log({**values}, step=step)

  return log, trackio.finish


# Function and package of each logger.
LOGGERS: dict[str, tuple[Callable[[LoggedRun], Logger], str]] = {
  "tensorboard": (open_tensorboard, "tensorboardX"),
  "wandb": (open_wandb, "wandb"),
  "trackio": (open_trackio, "trackio"),
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


class LoggerWriter:
  """Writes records with one of LOGGERS, until it raises."""

  def __init__(self, name: str, run: LoggedRun):
    self._name, self._failed = name, False
    opened: Logger | None = self._call(LOGGERS[name][0], run)
    self._log, self._close = opened or (_ignore, _ignore)

  def write(self, record: Record) -> None:
    """Logs the numbers of a record, but its step and time."""
    if not self._failed:
      self._call(self._log, record["step"], select_values(record))

  def close(self) -> None:
    """Ends the run, if it was opened."""
    self._call(self._close)

  def _call(self, function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of the logger; its first error is a warning."""
    try:
      return function(*args)
    except Exception as e:  # a logger must not end a run, whatever it raises
      if not self._failed:
        reason = f"{type(e).__name__}: {printable(e)}".splitlines()[0][:300]
        print(
          f"warning: The logger {self._name!r} failed ({reason.rstrip('.')})."
          " The run goes on without it, and"
          f" {metrics_file.METRICS} has all records. To try the logger again,"
          " stop the run and run the same command again."
        )
      self._failed = True


def _ignore(*args: object) -> None:
  """Does nothing."""


def select_values(record: Record) -> dict[str, float]:
  """Returns the numbers of a record by `<split>/<name>`."""
  return {
    f"{record['split']}/{name}": value
    for name, value in record.items()
    if name not in metrics_file.COMMON and isinstance(value, int | float)
  }


@contextlib.contextmanager
def open_writers(
  names: Sequence[str], run: LoggedRun, line: ProgressLine
) -> Iterator[Callable[[Record], None]]:
  """Yields a function that writes a record with all writers and `line`.

  The writers are metrics.jsonl and `names`, of LOGGERS. Only the first process
  writes.
  """
  writers: list[Any] = []

  def write(record: Record) -> None:
    for writer in writers:
      writer.write(record)

  with contextlib.ExitStack() as stack:
    stack.callback(line.close)
    if distributed.is_first_process():
      writers.append(JsonlWriter(run.workdir, first_step=run.first_step))
      stack.callback(writers[-1].close)
      for name in names:
        writers.append(LoggerWriter(name, run))
        stack.callback(writers[-1].close)
      writers.append(line)
    yield write
