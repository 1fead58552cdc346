"""Shows how far runs are, and writes a page of them.

  truenegs report runs/a runs/b --output=report.html

The terminal shows a table with a row for each folder: of a run, a fine-tuning
or a study. Then the runs are overlaid in the charts of one page, a file that
needs no network. Nothing but that file is written, and nothing of a run is
executed.
"""

from collections.abc import Sequence

from absl import flags
from rich.table import Table

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.report import page, write
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError, program
from truenegs_jax.runtime.paths import open_path

COLUMNS = ("step", "loss", "rate", "left")


def main(argv: list[str]) -> None:
  """Shows runs and writes the page."""
  if not argv[1:]:
    raise InputError(f"Name runs to show: {program()} report runs/a runs/b.")
  path = open_path("--output", flags.FLAGS.output)
  runs = write.read_workdirs([open_path("report", x) for x in argv[1:]])
  progress.make_console().print(make_table(runs))
  write.write_report(runs, path)
  print(f"saved: {path}")


def make_table(runs: Sequence[page.Run]) -> Table:
  """Returns how far runs are, a row for each."""
  columns = [x for x in COLUMNS if any(run.progress.get(x) for run in runs)]
  table = Table("run", "state", *columns, box=None, pad_edge=False)
  for run in runs:
    values = [run.progress.get(x, "") for x in columns]
    table.add_row(run.name, run.state, *values)
  return table


def run_command() -> None:
  """Defines the flags and runs `main`."""
  flags.DEFINE_string("output", "report.html", "File to write, the page.")
  flags_lib.run(main)
