"""Collects, prints and saves the tables, scores and curves of a study.

Scores are the same whether parts were stopped and resumed or not; seconds and
paths are not among them.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from truenegs_jax.finetune import results
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.config_files import load_config
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.study import curves, flops, layout, plan, records, tables
from truenegs_jax.study.drive import Statuses
from truenegs_jax.study.parts import Part, State, read_failure
from truenegs_jax.study.records import Score
from truenegs_jax.workdir import files, metrics_file

READERS: Mapping[str, Callable[..., list[Score]]] = {
  plan.CORRECTIONS: records.read_corrections,
  plan.ROBUSTNESS: records.read_robustness,
  plan.MEASURES: records.read_measures,
}
# Tasks of the scores by name of the part; of other parts their name.
SCORE_TASKS = {
  **{name: task for name, (_, task) in plan.TASKS.items()},
  plan.PRETRAIN: records.HELD_OUT,
  plan.MEASURES: records.MEASURES,
}


def report(
  options: plan.StudyOptions,
  parts: Sequence[Part],
  statuses: Statuses,
  workdir: pathlib.Path,
  console: Console,
) -> None:
  """Prints the tables; saves them and all scores in results.json."""
  done = [part for part in parts if statuses[part.key].state == State.DONE]
  scores, network = collect_scores(done, workdir)
  study = records.Plan(
    arms=[arm.name for arm in options.arms],
    seeds=range(options.seeds),
    tasks=[SCORE_TASKS[name] for name in options.tasks],
    finetune_seeds=range(options.finetune_seeds),
    failures=read_failures(parts, statuses, workdir),
    **network,
  )
  layouts = tables.make_tables(scores, study)
  for x in layouts:
    console.print(layout.to_terminal(x))
  notes = {note for x in layouts for note in x.notes}
  for text in study.describe_failures():
    if text not in notes:  # of a table that has no scores
      console.print(f"warning: {text}", soft_wrap=True)
  value = {
    "command": rerun_command(),
    # Without the scores of examples: the parts' folders have the answers.
    "scores": [
      dataclasses.asdict(dataclasses.replace(x, correct_N=None)) for x in scores
    ],
    "tables": [*map(dataclasses.asdict, layouts)],
    "failures": [[*key, x] for key, x in study.failures.items()],
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
  drawn = curves.draw_curves(read_curves(parts, workdir), options.seeds, path)
  say = functools.partial(console.print, soft_wrap=True)
  write_own_report(workdir, say)
  names = [*[*saved][1:], files.REPORT, *map(str, drawn)]
  listed = ", ".join([str(workdir / files.RESULTS), *names])
  say(f"saved: {listed}")


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
  scores, network = list[Score](), {}
  for part in parts:
    folder = root / part.key
    if part.name == plan.PRETRAIN:
      logged = metrics_file.read_records(folder)
      scores += records.read_pretraining(part.arm, part.seed, logged)
    elif part.name in plan.TASKS:
      for n in range(len(part.outputs)):  # one for each seed
        if run := results.load(folder, SCORE_TASKS[part.name], n):
          network = {key: run.provenance[key] for key in ("family", "width")}
          scores += records.read_finetuning(part.arm, part.seed, run)
    else:
      fix = f"Remove '{folder}' and run the same command again."
      path = folder / files.RESULTS
      with json_text.read_file(path, CheckpointError, fix) as saved:
        scores += READERS[part.name](part.arm, part.seed, saved)
  return scores, network


def read_failures(
  parts: Sequence[Part], statuses: Statuses, root: pathlib.Path
) -> dict[tuple[str, int, str], str]:
  """Returns why scores are lacking, by arm, seed and task or other part.

  Parts that need one that failed lack theirs for the same reason.
  """
  failures, reasons = {}, dict[str, str]()
  for part in parts:  # each comes after the one that it needs
    if statuses[part.key].state in (State.FAILED, State.DIVERGED):
      reasons[part.key] = f"{part.name}: {read_failure(root / part.key)}"
    elif part.needs_key in reasons:
      reasons[part.key] = reasons[part.needs_key]
    if reason := reasons.get(part.key):
      task = SCORE_TASKS.get(part.name, part.name)
      failures[part.arm, part.seed, task] = reason
  return failures


def read_curves(
  parts: Sequence[Part], root: pathlib.Path
) -> list[curves.Curve]:
  """Reads the records of all pre-trainings, also of those that still run."""
  read, step_flops = [], dict[str, float]()
  for part in parts:
    folder = root / part.key
    if part.name == plan.PRETRAIN and (folder / metrics_file.METRICS).exists():
      if part.arm not in step_flops:
        run = flops.resolve_run(load_config(str(folder / files.CONFIG)))
        step_flops[part.arm] = flops.count_pretraining(run) / run.steps
      logged = metrics_file.read_records(folder)
      curve = curves.Curve(part.arm, part.seed, logged, step_flops[part.arm])
      read.append(curve)
  return read


def save_text(path: pathlib.Path, text: str) -> None:
  """Writes a file that processes of other jobs may write, too."""
  with atomic_file(path, several_writers=True) as file:
    file.write(text.encode())
