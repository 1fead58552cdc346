"""Runs the task "study": pre-trains, fine-tunes and measures several recipes.

config -> parts -> each part as a process of `truenegs_jax.main` -> scores
-> tables and curves

A part writes to WORKDIR/runs/ARM/seed-S/PART, whose files say what is done.
Scores are the same whether parts were stopped and resumed or not; seconds and
paths are not among them.
"""

import collections
import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.configs.common_keys import rules
from truenegs_jax.finetune import config_checks, leaderboard, results, task_data
from truenegs_jax.report.plots import panels
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, errors, json_text
from truenegs_jax.runtime.config_files import flatten
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.runtime.flags import parse_config, parse_job, rerun_command
from truenegs_jax.study import drive, layout, plan, scores, tables
from truenegs_jax.study.drive import Part, State, Statuses
from truenegs_jax.study.scores import LOSSES, Score, read_loss
from truenegs_jax.train import build_run, check_values
from truenegs_jax.train import plan as run_plan
from truenegs_jax.train.speed import peak_flops
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.init import config_sizes
from truenegs_jax.workdir import files, metrics_file
from truenegs_jax.workdir.from_config import placeholder_tokenizer

UTILIZATION = 0.4  # of an H100's peak in bfloat16
H100_FLOPS = UTILIZATION * (peak_flops("NVIDIA H100", "bfloat16") or 0.0)
# Task of the results by name of the part.
RESULT_TASKS = {name: task for name, (_, task) in plan.TASKS.items()}
FIX = "Remove it and run the same command again."
FAINT = 0.3
Line = Mapping[float, float]  # loss by step or FLOP


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Runs the missing parts of a study, prints its scores, saves results.json.

  Returns:
    75 or 130 if it was stopped, else the exit code of the first part that
    failed, or 0.

  Raises:
    TrueNegsError: its class has the exit code.
  """
  say = functools.partial(console.print, soft_wrap=True)
  check_values.check_values(flatten(c.to_dict()), rules("study"))
  job = parse_job("--config.study.shard", c.study.shard)
  options = plan.StudyOptions.from_config(c)
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
  plan.check_unchanged(parts, workdir)
  own = plan.select_shard(parts, job)
  if c.dry_run:
    print_plan(options, parts, own, statuses, console)
    return 0
  save_config(json.loads(c.to_json()), workdir)
  code = drive.run_parts(own, workdir, console)
  statuses = drive.read_statuses(parts, workdir)
  say(drive.describe_progress(parts, statuses))
  if code in (errors.SAVED_RESTART, errors.SAVED_INTERRUPT):
    say(f"To continue, run the same command again: {rerun_command()}")
  else:
    report(options, parts, statuses, workdir, console)
  return code


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
    first = [x for x in parts if (x.arm, x.seed) == (arm.name, 0)]
    steps, trained, tuned = count_flops(first)
    total += (arm_total := (trained + tuned) * options.seeds)
    numbers = (f"{x:.3g}" for x in (trained, tuned, arm_total))
    table.add_row(arm.name, f"{steps:,}", *numbers, _format_hours(arm_total))
  console.print(table)
  counts = collections.Counter(part.name for part in parts)
  done = collections.Counter(
    part.name for part in parts if statuses[part.key].state == State.DONE
  )
  lines = {
    "dry run": "reads no text; writes and runs nothing",
    "total": f"{total:.3g} FLOP, calculated as {_format_hours(total)} hours on"
    f" one H100 at {100 * UTILIZATION:g} % of its peak in bfloat16,"
    " without corrections, robustness and evaluations",
    "seeds": f"{options.seeds} pre-trainings of each arm,"
    f" {options.finetune_seeds} runs of each task",
    "done": ", ".join(f"{x} {done[x]}/{count}" for x, count in counts.items()),
    "all jobs": drive.describe_progress(parts, statuses),
  }
  if len(own) < len(parts):
    lines["this job"] = drive.describe_progress(own, statuses)
  if part := drive.next_part(own, statuses):
    lines["next"] = part.key
  console.print(run_plan.report_table(lines))


def _format_hours(flop: float) -> str:
  return f"{flop / H100_FLOPS / 3600:,.1f}"


def count_flops(parts: Sequence[Part]) -> tuple[int, float, float]:
  """Counts steps, and the FLOP of a pre-training and of its fine-tunings.

  Rows of fine-tunings count with their greatest length, those of SQuAD once;
  evaluations, heads and tasks whose size is not published do not count.

  Args:
    parts: those of one pre-training, which is the first.
  """
  c, *others = (
    parse_config([x for x in part.command if x.startswith("--config")])
    for part in parts
  )
  c = config_sizes.resolve(c, Weights(c.init), saved=None)
  run = build_run.build_run(c, placeholder_tokenizer(c)[0])
  trained = run_plan.row_flops(run) * run.batch_size * run.steps
  kept, tuned = next(iter(run.model.roles.values())), 0.0
  for c in others:
    if c.task == "finetune":
      options = config_checks.FinetuneOptions.from_config(c)
      token = run_plan.encoder_flops(kept, options.length)
      tasks = map(task_data.find_published_task, options.tasks)
      rows = sum(
        task_data.count_rows(options, task) * (options.epochs or task.epochs)
        for task in tasks
        if task
      )
      row = run_plan.TRAINING_PASSES * token * options.length
      tuned += row * rows * c.finetune.seeds
  return run.steps, trained, tuned


def save_config(config: dict[str, Any], workdir: pathlib.Path) -> None:
  """Saves a config, without values of one machine."""
  config["dry_run"], config["study"]["shard"] = False, "0/1"
  with disk_errors(workdir):
    workdir.mkdir(parents=True, exist_ok=True)
  text = json.dumps(config, indent=2)
  save_text(workdir / files.CONFIG, f"{text}\n")


@dataclasses.dataclass(frozen=True)
class Curve:
  """The training of one arm with one seed.

  Attributes:
    records: of metrics.jsonl.
    flops: floating-point operations of one step.
  """

  arm: str
  seed: int
  records: Sequence[Mapping[str, Any]]
  flops: float


def report(
  options: plan.StudyOptions,
  parts: Sequence[Part],
  statuses: Statuses,
  workdir: pathlib.Path,
  console: Console,
) -> None:
  """Prints the tables; saves them and all scores in results.json."""
  say = functools.partial(console.print, soft_wrap=True)
  done = [part for part in parts if statuses[part.key].state == State.DONE]
  collected, network = collect_scores(done, workdir)
  study = scores.Study(
    scores=collected,
    arms=[arm.name for arm in options.arms],
    seeds=range(options.seeds),
    tasks=[RESULT_TASKS[name] for name in options.tasks],
    finetune_seeds=range(options.finetune_seeds),
    **network,
  )
  layouts = tables.make_tables(study)
  for x in layouts:
    console.print(layout.to_terminal(x))
  failures = [
    drive.describe_failure(part, workdir)
    for part in parts
    if statuses[part.key].state in (State.FAILED, State.DIVERGED)
  ]
  for text in failures:
    say(text)
  value = {
    "command": rerun_command(),
    # Without the scores of examples: the parts' folders have the answers.
    "scores": [
      dataclasses.asdict(dataclasses.replace(x, correct_N=None))
      for x in collected
    ],
    "tables": [*map(dataclasses.asdict, layouts)],
    "failures": failures,
  }
  text = json.dumps(metrics_file.finite_or_null(value), indent=2)
  saved = {
    files.RESULTS: f"{text}\n",
    "tables.csv": layout.to_csv(layouts),
    "tables.tex": "\n".join(map(layout.to_latex, layouts)),
  }
  for name, text in saved.items():
    save_text(workdir / name, text)
  path = workdir / files.PLOTS / "losses.png"
  drawn = draw_curves(read_curves(parts, workdir), options.seeds, path)
  write_own_report(workdir, say)
  names = [*[*saved][1:], files.REPORT, *map(str, drawn)]
  say(f"saved: {', '.join([str(workdir / files.RESULTS), *names])}")


def collect_scores(
  parts: Sequence[Part], root: pathlib.Path
) -> tuple[list[Score], dict[str, Any]]:
  """Reads the scores of finished parts, in their order.

  Returns:
    The scores, and `family` and `width` of the network that was fine-tuned, if
    any was.

  Raises:
    CheckpointError: a result is damaged.
  """
  collected, network = list[Score](), {}
  for part in parts:
    folder, run = root / part.key, (part.arm, part.seed)
    if part.name == plan.PRETRAIN:
      logged = metrics_file.read_records(folder)
      collected += scores.read_pretraining(*run, logged)
    elif part.name in plan.TASKS:
      for n in range(len(part.outputs)):  # one for each seed
        if result := results.load(folder, RESULT_TASKS[part.name], n):
          network = {key: result.provenance[key] for key in ("family", "width")}
          collected += scores.read_finetuning(*run, result)
    else:
      path = folder / files.RESULTS
      with json_text.read_file(path, CheckpointError, FIX) as saved:
        if part.name == plan.CORRECTIONS:
          collected += scores.read_corrections(*run, saved)
        else:
          collected += scores.read_robustness(*run, saved)
  return collected, network


def save_text(path: pathlib.Path, text: str) -> None:
  """Writes a file that processes of other jobs may write, too."""
  with atomic_file(path, several_writers=True) as file:
    file.write(text.encode())


def read_curves(parts: Sequence[Part], root: pathlib.Path) -> list[Curve]:
  """Reads the records of all pre-trainings, also of those that still run."""
  curves = []
  for part in parts:
    folder = root / part.key
    if part.name == plan.PRETRAIN and (folder / files.ABOUT).exists():
      with json_text.read_file(folder / files.ABOUT, CheckpointError, FIX) as x:
        flops = x["row_flops"] * part.config["batch_size"]
      logged = metrics_file.read_records(folder)
      curves.append(Curve(part.arm, part.seed, logged, flops))
  return curves


def draw_curves(
  curves: Sequence[Curve], num_seeds: int, path: pathlib.Path
) -> list[pathlib.Path]:
  """Draws the held-out losses of all arms as PNG.

  Returns the path, or nothing if there are no losses.

  Each loss has a panel by step, one by FLOP, and one with the differences from
  the baseline, the first arm, with the same seed. The line of an arm is the
  mean over its seeds at the steps that all have; each seed is a faint line.
  The legend counts the seeds of an arm that lacks some. Losses of training take
  the place of held-out ones if no run has two of these.

  Args:
    num_seeds: number of seeds that each arm is to have.

  Raises:
    DiskError: the file cannot be written.
  """
  counts = [[y["split"] for y in x.records].count("held_out") for x in curves]
  split = "held_out" if max(counts, default=0) > 1 else "train"
  shown = {
    title: points
    for title in LOSSES
    if any(points := [_read_points(x.records, split, title) for x in curves])
  }
  if not shown:
    return []
  with panels(path, 3 * len(shown)) as axes:
    for i, (title, points) in enumerate(shown.items()):
      flops = [
        {x.flops * step: loss for step, loss in line.items()}
        for x, line in zip(curves, points, strict=True)
      ]
      minus = _subtract_baseline(curves, points)
      by_step, by_flop, difference = axes[3 * i : 3 * i + 3]
      minus_title = f"{title}, minus {curves[0].arm}"
      for axis, lines, text, unit in (
        (by_step, points, title, "step"),
        (by_flop, flops, title, "FLOP"),
        (difference, minus, minus_title, "step"),
      ):
        _draw_arms(axis, curves, lines, num_seeds)
        axis.set_title(text, fontsize=10)
        axis.set_xlabel(unit)
    axes[0].legend(fontsize=8)
  return [path]


def _read_points(
  records: Sequence[Mapping[str, Any]], split: str, title: str
) -> Line:
  """Returns the loss by step, where it is finite."""
  losses = {
    x["step"]: read_loss(x, title) for x in records if x["split"] == split
  }
  return {step: loss for step, loss in losses.items() if loss is not None}


def _subtract_baseline(
  curves: Sequence[Curve], lines: Sequence[Line]
) -> list[Line]:
  """Returns the differences at the steps that the baseline's seed has."""
  by_run = {(x.arm, x.seed): y for x, y in zip(curves, lines, strict=True)}
  baselines = [by_run.get((curves[0].arm, x.seed), {}) for x in curves]
  return [
    {step: line[step] - base[step] for step in line if step in base}
    for line, base in zip(lines, baselines, strict=True)
  ]


def _draw_arms(
  axis: Any, curves: Sequence[Curve], lines: Sequence[Line], num_seeds: int
) -> None:
  """Draws each line faintly, and the means of the arms."""
  for i, arm in enumerate(dict.fromkeys(x.arm for x in curves)):
    pairs = zip(curves, lines, strict=True)
    members = [line for x, line in pairs if x.arm == arm and line]
    for line in members:
      axis.plot([*line], [*line.values()], color=f"C{i}", alpha=FAINT, lw=1)
    common = sorted(set.intersection(*map(set, members))) if members else []
    means = [np.mean([line[x] for line in members]) for x in common]
    count = len(members)
    lack = f" ({count} of {num_seeds} seeds)" if count < num_seeds else ""
    axis.plot(common, means, color=f"C{i}", label=f"{arm}{lack}")
