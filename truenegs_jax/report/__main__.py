"""Writes a page, or figures for a paper, of one or several workdirs.

  truenegs report runs/a runs/b --output=report.html

Runs are overlaid in the same charts. The page is one file that needs no
network. --output=curves.png or curves.pdf draws the curves for a paper instead;
--field=mlm,auc chooses them.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

from absl import flags

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.report import plots, write
from truenegs_jax.runtime.errors import InputError, one_of, program
from truenegs_jax.runtime.paths import open_path

SUFFIXES = (".html", *plots.SUFFIXES)


def main(argv: list[str]) -> None:
  """Writes the file; exit codes are those of `runtime.errors`."""
  with flags_lib.exit_on_errors():
    if not argv[1:]:
      raise InputError(f"Name runs to show: {program()} report runs/a runs/b.")
    workdirs = [open_path("report", x) for x in argv[1:]]
    path = open_path("--output", flags.FLAGS.output)
    one_of("the suffix of --output", path.suffix, SUFFIXES)
    runs = write.read_workdirs(workdirs)
    drawn = [x for run in runs for x in run.curves]
    if path.suffix == ".html":
      write.write_report(runs, path)
    elif not plots.draw_curves(drawn, path, flags.FLAGS.field):
      raise InputError(
        f"--output={flags.FLAGS.output!r} draws curves, but these workdirs have"
        " none yet. Pass --output=report.html."
      )
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
