"""Prints the records of a run as lines of a table on the console."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from truenegs_jax.workdir.metrics_file import Record


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
