"""Prints and saves the tables, scores and curves of a study."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from rich.console import Console

from truenegs_jax.runtime.config_files import load_config
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.study import collect, curves, flops, layout, plan, tables
from truenegs_jax.study.drive import Statuses
from truenegs_jax.study.parts import Part
from truenegs_jax.study.records import Plan
from truenegs_jax.workdir import files, metrics_file


def report(
  options: plan.StudyOptions,
  parts: Sequence[Part],
  statuses: Statuses,
  workdir: pathlib.Path,
  console: Console,
) -> None:
  """Prints the tables; saves them and all scores in results.json."""
  collected = collect.collect_scores(parts, statuses, workdir)
  study = Plan(
    arms=[arm.name for arm in options.arms],
    seeds=range(options.seeds),
    tasks=[plan.TASKS[name][1] for name in options.tasks],
    finetune_seeds=range(options.finetune_seeds),
    failures=collect.read_failures(parts, statuses, workdir),
  )
  layouts = tables.make_tables(
    collected.scores, study, family=collected.family, width=collected.width
  )
  for x in layouts:
    console.print(layout.to_terminal(x))
  # Without the scores of examples: the parts' folders have the answers.
  scores = [
    dataclasses.asdict(dataclasses.replace(x, correct_N=None))
    for x in collected.scores
  ]
  value = {
    "command": rerun_command(),
    "scores": scores,
    "tables": [layout.to_json(x) for x in layouts],
    "failures": [[*key, x] for key, x in study.failures.items()],
  }
  text = json.dumps(metrics_file.finite_or_null(value), indent=2)
  _save(workdir / files.RESULTS, f"{text}\n")
  _save(workdir / "tables.csv", layout.to_csv(layouts))
  _save(workdir / "tables.tex", "\n".join(map(layout.to_latex, layouts)))
  path = workdir / files.PLOTS / "losses.png"
  drawn = curves.draw_curves(read_curves(parts, workdir), options.seeds, path)
  saved = workdir / files.RESULTS, "tables.csv", "tables.tex", *drawn
  console.print(f"saved: {', '.join(map(str, saved))}", soft_wrap=True)


def read_curves(
  parts: Sequence[Part], root: pathlib.Path
) -> list[curves.Curve]:
  """Reads the records of all pre-trainings, also of those that still run."""
  read = []
  for part in parts:
    folder = root / part.key
    if part.name == plan.PRETRAIN and (folder / metrics_file.METRICS).exists():
      c = load_config(str(folder / files.CONFIG))
      records = metrics_file.read_records(folder)
      step_flops = flops.count_flops(c) / c.steps
      read.append(curves.Curve(part.arm, part.seed, records, step_flops))
  return read


def _save(path: pathlib.Path, text: str) -> None:
  """Writes a file that processes of other jobs may write, too."""
  with atomic_file(path, several_writers=True) as file:
    file.write(text.encode())
