"""Runs the task "study": pre-trains, fine-tunes and measures several recipes.

config -> parts -> each part as a process of `truenegs_jax.main` -> scores

A part writes to WORKDIR/runs/ARM/seed-S/PART, whose files say what is done.
"""

import functools
import json
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.data.rows.build_rows import folder_lock
from truenegs_jax.runtime import distributed, errors
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.runtime.flags import parse_job, rerun_command
from truenegs_jax.study import check_parts, drive, flops, plan, report
from truenegs_jax.study.artificial.files import write_language
from truenegs_jax.study.artificial.language import draw_language
from truenegs_jax.study.drive import Statuses
from truenegs_jax.study.parts import Part, State
from truenegs_jax.train import check_values
from truenegs_jax.train import plan as run_plan
from truenegs_jax.workdir import files


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Runs the missing parts of a study, prints its scores, saves results.json.

  Returns the exit code, see `drive.run_parts`.

  Raises:
    TrueNegsError: its class has the exit code.
  """
  say = functools.partial(console.print, soft_wrap=True)
  options, job = read_options(c)
  if distributed.process_count() > 1:
    raise InputError(
      "A study runs in one process on each machine. Start it without the flags"
      " of several processes, with --config.study.shard=0/2, 1/2 and so on."
    )
  if files.has_pretraining(workdir):
    raise InputError(
      f"--workdir='{workdir}' is the workdir of a run. Choose another, such as"
      " --workdir=runs/study."
    )
  parts = plan.make_parts(options, workdir)
  statuses = drive.read_statuses(parts, workdir)
  check_parts.check_unchanged(parts, workdir)
  unfinished = [x for x in parts if statuses[x.key].state != State.DONE]
  needs_files = not c.dry_run and options.synonyms is None
  check_parts.check_parts(unfinished, say, needs_files=needs_files)
  own = plan.select_shard(parts, job)
  if left := check_parts.find_unplanned(parts, workdir):
    say(f"Not in this study any more, and left as they are: {', '.join(left)}")
  if c.dry_run:
    print_plan(options, parts, own, statuses, console)
    return 0
  save_config(c, workdir)
  if options.synonyms is not None:
    write_languages(options, workdir)
    check_parts.check_parts(unfinished, say, needs_files=True)
  code = drive.run_parts(own, workdir, console)
  statuses = drive.read_statuses(parts, workdir)
  say(drive.describe_progress(parts, statuses))
  if code in (errors.SAVED_RESTART, errors.SAVED_INTERRUPT):
    say(f"To continue, run the same command again: {rerun_command()}")
  else:
    report.report(options, parts, statuses, workdir, console)
  return code


def read_options(c: ConfigDict) -> tuple[plan.StudyOptions, tuple[int, int]]:
  """Returns the options of a study, and which job of how many this is.

  Raises:
    InputError: a value is out of range or not of its form.
  """
  check_values.check_values(flatten(c.to_dict()), rules("study"))
  job = parse_job("--config.study.shard", c.study.shard)
  return plan.StudyOptions.from_config(c), job


def print_plan(
  options: plan.StudyOptions,
  parts: Sequence[Part],
  own: Sequence[Part],
  statuses: Statuses,
  console: Console,
) -> None:
  """Prints each arm's FLOP and finished parts, the order and the time left."""
  names = list(dict.fromkeys(part.name for part in parts))
  table = Table(*("arm", "FLOP per seed", "steps", *names))
  for arm in options.arms:
    members = [part for part in parts if part.arm == arm.name]
    cells = []
    for name in names:
      states = [statuses[x.key].state for x in members if x.name == name]
      cells.append(f"{states.count(State.DONE)}/{len(states)}")
    c = check_parts.parse_part(members[0])
    table.add_row(
      arm.name, f"{flops.count_flops(c):.3g}", f"{c.steps:,}", *cells
    )
  console.print(table)
  lines = {
    "dry run": "reads no text; writes and runs nothing",
    "seeds": f"{options.seeds} pre-trainings of each arm,"
    f" {options.finetune_seeds} runs of each task",
    "all jobs": drive.describe_progress(parts, statuses),
  }
  if len(own) < len(parts):
    lines["this job"] = drive.describe_progress(own, statuses)
  if part := drive.next_part(own, statuses, ()):
    lines["next"] = part.key
  console.print(run_plan.report_table(lines))


def write_languages(options: plan.StudyOptions, workdir: pathlib.Path) -> None:
  """Writes the artificial languages of all seeds that are missing.

  Raises:
    DiskError: one cannot be written.
  """
  for seed in range(options.seeds):
    folder = plan.language_folder(options, seed, workdir)
    with folder_lock(folder):  # from other jobs
      if not folder.exists():
        share = (options.synonyms or 0.0) / 100
        language = draw_language(seed, synonym_share=share)
        write_language(folder, language, seed=seed)


def save_config(c: ConfigDict, workdir: pathlib.Path) -> None:
  """Saves the config, without values of one machine."""
  config = json.loads(c.to_json())
  config["dry_run"], config["study"]["shard"] = False, "0/1"
  with disk_errors(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  # Processes of other jobs may write it, too.
  with atomic_file(workdir / files.CONFIG, several_writers=True) as file:
    file.write((json.dumps(config, indent=2) + "\n").encode())
