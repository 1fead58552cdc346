"""Reads any workdir for its page, also one that is unfinished or damaged."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from truenegs_jax.report import (
  finetuning,
  measurements,
  page,
  pretraining,
)
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import InputError, TrueNegsError, printable
from truenegs_jax.workdir import files
from truenegs_jax.workdir.lock import read_state

MAIN_FILES = f"{files.CONFIG}, {files.ABOUT} or {files.RESULTS}"
PRETRAIN = "pretrain"  # the task of a config that names none
READERS = {
  "finetune": finetuning.read,
  "corrections": measurements.read_corrections,
  "robustness": measurements.read_robustness,
  "study": measurements.read_study,
}


def read_workdirs(workdirs: Sequence[pathlib.Path]) -> list[page.Run]:
  """Reads workdirs to compare, and puts their names before their curves'.

  Folders of equal names are numbered.

  Raises:
    InputError: a folder is no workdir.
  """
  runs = [read_workdir(workdir) for workdir in workdirs]
  if len(runs) < 2:
    return runs
  is_unique = len({run.name for run in runs}) == len(runs)
  for i, run in enumerate(runs, start=1):
    run.name = run.name if is_unique else f"{i}. {run.name}"
    run.curves = [
      dataclasses.replace(
        curve,
        label=", ".join(filter(None, (run.name, curve.label))),
        group=", ".join(filter(None, (run.name, curve.group))),
      )
      for curve in run.curves
    ]
  return runs


def read_workdir(workdir: pathlib.Path, *, ends: bool = False) -> page.Run:
  """Returns what the page shows of a workdir.

  What cannot be read becomes a note of the page. `ends`: as of `read_state`.

  Raises:
    InputError: the folder is no workdir.
  """
  if not workdir.is_dir():
    raise InputError(
      f"--workdir='{workdir}' is not a folder. Pass the --workdir of a run."
    )
  if not any((workdir / name).exists() for name in (files.CONFIG, files.LOCK)):
    raise InputError(
      f"--workdir='{workdir}' has no {files.CONFIG}, so it is not the workdir"
      " of a run. Pass the folder that the run printed."
    )
  run = page.Run(workdir.resolve().name, str(workdir))
  run.state = read_state(workdir, ends=ends)
  run.config = pretraining.read_saved(run, workdir / files.CONFIG)
  if not run.config:
    run.sentence = run.sentence or "The run has no config that can be read."
    return run
  run.task = str(run.config.get("task", PRETRAIN))
  read = READERS.get(run.task, pretraining.read)
  results = pretraining.read_saved(run, workdir / files.RESULTS)
  run.facts["command"] = str(results.get("command", ""))
  run.sentence = "No results yet: they are written at the end."
  with _noting(run, "This page", MAIN_FILES):
    for section in read(run, workdir, results):
      with _noting(run, f"The part '{section.title}'", section.file):
        blocks = [*section.blocks]
        run.sections.append(dataclasses.replace(section, blocks=blocks))
  return run


@contextlib.contextmanager
def _noting(run: page.Run, part: str, file: str) -> Iterator[None]:
  """Turns an error in the values of a file into a note of the page."""
  try:
    yield
  except TrueNegsError as e:
    run.notes.append((page.ERROR, printable(e)))
  except json_text.READ_ERRORS as e:
    reason = json_text.describe(e)
    text = f"{part} is incomplete, because {file} is damaged: {reason}."
    run.notes.append((page.ERROR, text))
