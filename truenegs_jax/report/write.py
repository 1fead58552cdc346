"""Writes the report of one or several workdirs."""

import pathlib
from collections.abc import Callable, Sequence

from truenegs_jax.report import page, plots
from truenegs_jax.report.read_workdir import (
  PRETRAIN,
  read_workdir,
  read_workdirs,
)
from truenegs_jax.runtime.errors import printable
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.workdir import files

CURVES = "curves"  # the figure in the folder of plots, without its suffix


def write_report(workdirs: Sequence[pathlib.Path], path: pathlib.Path) -> None:
  """Writes one page of all workdirs.

  Raises:
    InputError: a folder is no workdir.
    DiskError: the file cannot be written.
  """
  _write(read_workdirs(workdirs), path)


def write_own_report(
  workdir: pathlib.Path, say: Callable[[str], object]
) -> None:
  """Writes report.html, and the figure of a pre-training, of a run that ends.

  The run is finished and saved, so a failure is only a warning.
  """
  try:
    run = read_workdir(workdir, ends=True)
    _write([run], workdir / files.REPORT)
    if run.task == PRETRAIN:
      plots.draw_curves(run.curves, workdir / files.PLOTS / CURVES)
  except Exception as e:
    say(
      f"warning: '{workdir / files.REPORT}' was not written:"
      f" {type(e).__name__}: {printable(e)}. The results are saved. Run"
      f" python -m truenegs_jax.report --workdir={workdir} to try again."
    )


def _write(runs: Sequence[page.Run], path: pathlib.Path) -> None:
  with atomic_file(path, several_writers=True) as file:  # jobs of a study
    file.write(page.render(runs).encode())
