"""Reads workdirs, also unfinished or damaged ones, and writes their page."""

import collections
import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence

from truenegs_jax.report import page, tasks
from truenegs_jax.report.pretraining import compare
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import InputError, TrueNegsError, printable
from truenegs_jax.runtime.files import READ_ERRORS, atomic_file, describe_error
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.workdir import files

MAIN_FILES = f"{files.CONFIG}, {files.ABOUT} or {files.RESULTS}"
PRETRAIN = "pretrain"  # the task of a config that names none


def write_own_report(
  workdir: pathlib.Path, say: Callable[[str], object]
) -> None:
  """Writes report.html of a run that ends.

  The run is finished and saved, so a failure is only a warning.
  """
  path = workdir / files.REPORT
  try:
    write_report([read_workdir(workdir, ends=True)], path)
  except Exception as e:
    say(
      f"warning: '{path}' was not written: {type(e).__name__}:"
      f" {printable(e).rstrip('.')}. The results are saved. To try again, run"
      f" {errors.program()} report {workdir} --output={path}"
    )


def write_report(runs: Sequence[page.Run], path: pathlib.Path) -> None:
  """Writes one page of all runs."""
  text = page.render(runs, compare(runs))
  with atomic_file(path, several_writers=True) as file:  # jobs of a study
    # Bytes of a folder's name that are no UTF-8 are shown as escapes.
    file.write(text.encode(errors="backslashreplace"))


def read_workdirs(workdirs: Sequence[pathlib.Path]) -> list[page.Run]:
  """Reads workdirs to compare, and puts their names before their curves'.

  The name of a run is that of its folder, or the path of one of several folders
  of equal names. InputError if a folder is no workdir.
  """
  folders = {workdir.resolve(): workdir for workdir in workdirs}  # each once
  runs = [read_workdir(workdir) for workdir in folders.values()]
  counts = collections.Counter(run.name for run in runs)
  for run in runs:
    if counts[run.name] > 1:
      run.name = run.path
    if len(runs) > 1:
      is_single = len(run.curves) == 1
      for curve in run.curves:
        curve.label = run.name if is_single else f"{run.name}, {curve.label}"
        curve.group = run.name if is_single else f"{run.name}, {curve.group}"
  return runs


def read_workdir(workdir: pathlib.Path, *, ends: bool = False) -> page.Run:
  """Returns what the page shows of a workdir; InputError if it is none.

  What cannot be read becomes a note of the page. `ends` tells that the run
  itself asks, which does not run much longer.
  """
  if not any((workdir / x).exists() for x in (files.CONFIG, files.LOCK)):
    is_folder = is_bucket(workdir) or workdir.is_dir()
    reason = f"has no {files.CONFIG}" if is_folder else "is not a folder"
    raise InputError(
      f"'{workdir}' {reason}. Pass the folder of a run, which the run printed."
    )
  run = page.Run(workdir.resolve().name, str(workdir))
  run.facts["folder"] = run.path
  with _noting(run, "Its state", files.LOCK):
    run.state = files.read_state(workdir, ends=ends)
  run.config = tasks.read_saved(run, workdir / files.CONFIG)
  if not run.config:
    run.sentence = "The run has no config that can be read."
    return run
  run.task = str(run.config.get("task", PRETRAIN))
  read = tasks.READERS.get(run.task, tasks.read_pretraining)
  results = tasks.read_saved(run, workdir / files.RESULTS)
  run.facts["command"] = str(results.get("command", ""))
  run.sentence = "No results yet: they are written at the end."
  with _noting(run, "This page", MAIN_FILES):
    for section in read(run, workdir, results):
      with _noting(run, f"The part '{section.title}'", section.file):
        run.sections.append(section._replace(blocks=[*section.blocks]))
  return run


@contextlib.contextmanager
def _noting(run: page.Run, part: str, file: str) -> Iterator[None]:
  """Turns an error in the values of a file into a note of the page."""
  try:
    yield
  except TrueNegsError as e:
    run.notes.append((page.ERROR, printable(e)))
  except READ_ERRORS as e:
    reason = describe_error(e)
    text = f"{part} is incomplete, because {file} is damaged: {reason}."
    run.notes.append((page.ERROR, text))
