"""Shows how far runs are, and writes a page or figures for a paper of them.

  truenegs report runs/a runs/b --output=report.html

The terminal shows a table with a row for each folder: of a run, a fine-tuning,
a study, or rows in preparation. Then the runs are overlaid in the charts of one
page, a file that needs no network. --output=curves.png or curves.pdf draws the
curves for a paper instead; --field=mlm,auc chooses them. Nothing but that file
is written, and nothing of a run is executed.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import pathlib
from collections.abc import Sequence

from absl import flags
from rich.console import Console
from rich.table import Table
from rich.text import Text

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.data.rows import rows_folder
from truenegs_jax.report import page, plots, write
from truenegs_jax.runtime.errors import (
  DataError,
  DiskError,
  InputError,
  one_of,
  printable,
  program,
)
from truenegs_jax.runtime.files import is_locked, read_json
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.workdir import files

SUFFIXES = (".html", *plots.SUFFIXES)
COLUMNS = ("step", "loss", "rate", "left", "where")


def main(argv: list[str]) -> None:
  """Shows runs and writes the file; exit codes are those of runtime.errors."""
  with flags_lib.exit_on_errors():
    if not argv[1:]:
      raise InputError(f"Name runs to show: {program()} report runs/a runs/b.")
    folders = [open_path("report", x) for x in argv[1:]]
    path = open_path("--output", flags.FLAGS.output)
    one_of("the suffix of --output", path.suffix, SUFFIXES)
    rows = {x.resolve(): describe_rows(x) for x in folders}
    runs = write.read_workdirs([x for x in folders if not rows[x.resolve()]])
    for run in runs:
      run.progress["where"] = find_newest(open_path("report", run.path))
    shown = [x for x in rows.values() if x] + runs
    Console(highlight=False).print(make_table(shown))
    if runs:
      _write(runs, path)


def make_table(runs: Sequence[page.Run]) -> Table:
  """Returns how far runs are, a row for each."""
  columns = [x for x in COLUMNS if any(run.progress.get(x) for run in runs)]
  table = Table("run", "state", *columns, box=None, pad_edge=False)
  for run in runs:
    values = [run.progress.get(x, "") for x in columns]
    cells = [printable(x) for x in (run.name, run.state, *values)]
    table.add_row(*map(Text, cells))
  return table


def describe_rows(folder: pathlib.Path) -> page.Run | None:
  """Describes rows, also in preparation; None for another folder."""
  if write.is_workdir(folder):
    return None
  run = page.Run(folder.resolve().name, str(folder), state=files.FINISHED)
  manifest = folder / rows_folder.MANIFEST
  if manifest.exists():
    with read_json(manifest, DataError, rows_folder.REBUILD) as saved:
      splits = saved["splits"].items()
      rows = [f"{x['rows']:,} {name}" for name, x in splits]
    run.progress = {"step": f"{', '.join(rows)} rows"}
    return run
  from truenegs_jax.data.rows import shards  # imports much

  count, size = shards.measure_unfinished(folder)
  is_running = is_locked(folder.with_name(f".{folder.name}.lock"))
  run.state = files.RUNNING if is_running else files.STOPPED
  run.progress = {"step": f"{count:,} shards, {size / 1e6:,.1f} MB"}
  return run if count or is_running else None


def find_newest(workdir: pathlib.Path) -> str:
  """Returns the newest checkpoint of a run, or its page, or ""."""
  if steps := files.list_steps(workdir / files.CHECKPOINTS):
    return f"{files.CHECKPOINTS}/{steps[-1]}"
  return files.REPORT if (workdir / files.REPORT).exists() else ""


def _write(runs: Sequence[page.Run], path: pathlib.Path) -> None:
  """Writes the page or the figure of runs."""
  drawn = [curve for run in runs for curve in run.curves]
  try:
    if path.suffix == ".html":
      write.write_report(runs, path)
    elif not plots.draw_curves(drawn, path, flags.FLAGS.field):
      raise InputError(
        f"--output={str(path)!r} draws curves, but these workdirs have none"
        " yet. Pass --output=report.html."
      )
  except DiskError as error:
    reason = getattr(error.__cause__, "strerror", None) or error
    raise DiskError(
      f"'{path}' could not be written: {reason}. The table above needs no file;"
      " for one, pass --output=FILE.html in a folder that you may write to."
    ) from error
  print(f"saved: {path}")


def run_command() -> None:
  """Defines the flags and runs `main`."""
  flags.DEFINE_string(
    "output", "report.html", "File to write: .html, .png or .pdf."
  )
  flags.DEFINE_list("field", [], "Fields of metrics.jsonl to draw; none: all.")
  flags_lib.run(main)


if __name__ == "__main__":
  run_command()
