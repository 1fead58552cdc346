"""Reads any workdir for its page, also one that is unfinished or damaged."""

import dataclasses
import pathlib
from collections.abc import Sequence

from truenegs_jax.report import (
  curves,
  finetuning,
  measurements,
  page,
  pretraining,
)
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import InputError, TrueNegsError, printable
from truenegs_jax.workdir import files
from truenegs_jax.workdir.lock import FINISHED, read_state

READERS = {
  "finetune": finetuning.read,
  "corrections": measurements.read_corrections,
  "robustness": measurements.read_robustness,
  "study": measurements.read_study,
}


def read_workdirs(workdirs: Sequence[pathlib.Path]) -> list[page.Run]:
  """Reads workdirs to compare; numbers them, and names their curves.

  Raises:
    InputError: a folder is no workdir.
  """
  runs = [read_workdir(workdir) for workdir in workdirs]
  if len(runs) < 2:
    return runs
  for i, run in enumerate(runs, start=1):
    run.name = f"{i}. {run.name}"
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

  What cannot be read becomes a note of the page. `ends` tells that the run,
  which still holds its lock, is writing its own report.

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
  run.state = FINISHED if ends else read_state(workdir)
  try:
    run.config = pretraining.read_object(workdir / files.CONFIG)
    if not run.config:
      run.sentence = "The run has not begun: its config is not written yet."
      return run
    run.task = run.config.get("task", "pretrain")
    if run.task in READERS:
      sections = READERS[run.task](run, workdir)
    else:
      records = curves.read_records(workdir)
      sections = pretraining.read(run, workdir, records)
    run.sections.extend(sections)
  except (TrueNegsError, *json_text.READ_ERRORS) as e:
    is_ours = isinstance(e, TrueNegsError)
    reason = printable(e) if is_ours else json_text.describe(e)
    text = (
      f"A part of this page is missing, because a file is damaged: {reason}"
    )
    run.notes.insert(0, (page.ERROR, text))
  return run
