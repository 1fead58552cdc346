"""Runs the task "study": pre-trains, fine-tunes and measures several recipes.

config -> parts -> each part as a process of `truenegs_jax.main` -> scores

A part writes to WORKDIR/runs/ARM/seed-S/PART, whose files say what is done.
"""

import collections
import functools
import json
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.data.rows.build_rows import folder_lock
from truenegs_jax.finetune import leaderboard
from truenegs_jax.runtime import distributed, errors
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import disk_errors
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
    say(
      f"Not in this study any more, and left as they are: {len(left)} folders,"
      f" such as '{left[0]}'"
    )
  if c.dry_run:
    print_plan(options, parts, own, statuses, console)
    return 0
  save_config(c, workdir)
  if options.synonyms is not None:
    write_languages(options.synonyms, options.seeds, workdir)
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
  """Prints the compute of each arm, the finished parts and the time left."""
  title = "FLOP of a pre-training, of its fine-tunings, and of all seeds"
  columns = ("steps", "pre-training", "fine-tunings", "all seeds", "H100 hours")
  table = leaderboard.make_table(title, ["arm"], columns)
  total = 0.0
  for arm in options.arms:
    pretraining, *others = (
      check_parts.parse_part(part)
      for part in parts
      if (part.arm, part.seed) == (arm.name, 0) and part.config
    )
    run = flops.resolve_run(pretraining)
    tuned = sum(
      flops.count_finetuning(c, run) for c in others if c.task == "finetune"
    )
    trained = flops.count_pretraining(run)
    total += (of_arm := (trained + tuned) * options.seeds)
    numbers = (f"{x:.3g}" for x in (trained, tuned, of_arm))
    table.add_row(arm.name, f"{run.steps:,}", *numbers, _format_hours(of_arm))
  console.print(table)
  counts = collections.Counter(part.name for part in parts)
  done = collections.Counter(
    part.name for part in parts if statuses[part.key].state == State.DONE
  )
  lines = {
    "dry run": "reads no text; writes and runs nothing",
    "total": f"{total:.3g} FLOP, calculated as {_format_hours(total)} hours on"
    f" one H100 at {100 * flops.UTILIZATION:g} % of its peak in bfloat16,"
    " without corrections, robustness and evaluations",
    "seeds": f"{options.seeds} pre-trainings of each arm,"
    f" {options.finetune_seeds} runs of each task",
    "done": ", ".join(f"{x} {done[x]}/{count}" for x, count in counts.items()),
    "all jobs": drive.describe_progress(parts, statuses),
  }
  if len(own) < len(parts):
    lines["this job"] = drive.describe_progress(own, statuses)
  if part := drive.next_part(own, statuses, ()):
    lines["next"] = part.key
  console.print(run_plan.report_table(lines))


def _format_hours(flop: float) -> str:
  return f"{flop / flops.H100_FLOPS / 3600:,.1f}"


def write_languages(synonyms: float, seeds: int, workdir: pathlib.Path) -> None:
  """Writes the artificial languages that are missing, with synonyms in percent.

  Raises:
    DiskError: one cannot be written.
  """
  for seed in range(seeds):
    folder = plan.language_folder(synonyms, seed, workdir)
    with folder_lock(folder):  # from other jobs
      if not folder.exists():
        language = draw_language(seed, synonym_share=synonyms / 100)
        write_language(folder, language, seed=seed)


def save_config(c: ConfigDict, workdir: pathlib.Path) -> None:
  """Saves the config, without values of one machine."""
  config = json.loads(c.to_json())
  config["dry_run"], config["study"]["shard"] = False, "0/1"
  with disk_errors(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  text = json.dumps(config, indent=2)
  report.save_text(workdir / files.CONFIG, f"{text}\n")
