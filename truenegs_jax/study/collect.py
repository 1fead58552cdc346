"""Reads the scores of the finished parts of a study.

Scores are the same whether parts were stopped and resumed or not; seconds and
paths are not among them.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence

from truenegs_jax.finetune import results
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.study import plan, records
from truenegs_jax.study.drive import Statuses
from truenegs_jax.study.parts import Part, State, read_failure
from truenegs_jax.study.records import Score
from truenegs_jax.workdir import files, metrics_file

READERS: Mapping[str, Callable[..., list[Score]]] = {
  plan.CORRECTIONS: records.read_corrections,
  plan.ROBUSTNESS: records.read_robustness,
  plan.MEASURES: records.read_measures,
}


@dataclasses.dataclass(frozen=True)
class Collected:
  """The scores of a study, and the network that the tasks were trained with.

  `family` and `width` are those of `leaderboard.find_published`; ELECTRA-small
  without fine-tunings, for which they do not matter.
  """

  scores: Sequence[Score]
  family: str = "electra"
  width: int = 256


def collect_scores(
  parts: Sequence[Part], statuses: Statuses, root: pathlib.Path
) -> Collected:
  """Reads the scores of all finished parts, in their order.

  Raises:
    CheckpointError: a result is damaged.
  """
  scores, network = list[Score](), {}
  for part in parts:
    if statuses[part.key].state != State.DONE:
      continue
    if part.name == plan.PRETRAIN:
      logged = metrics_file.read_records(root / part.key)
      scores += records.read_pretraining(part.arm, part.seed, logged)
    for run in load_finetuning(part, root):
      network = {key: run.provenance[key] for key in ("family", "width")}
      scores += records.read_finetuning(part.arm, part.seed, run)
    if read := READERS.get(part.name):
      folder = root / part.key
      fix = f"Remove '{folder}' and run the same command again."
      path = folder / files.RESULTS
      with json_text.read_file(path, CheckpointError, fix) as saved:
        scores += read(part.arm, part.seed, saved)
  return Collected(scores, **network)


def load_finetuning(part: Part, root: pathlib.Path) -> list[results.Result]:
  """Loads the planned runs of a finished fine-tuning; [] of another part."""
  if part.name not in plan.TASKS:
    return []
  task = plan.TASKS[part.name][1]
  seeds = range(len(part.outputs))  # one output for each
  runs = (results.load(root / part.key, task, seed) for seed in seeds)
  return list(filter(None, runs))


def read_failures(
  parts: Sequence[Part], statuses: Statuses, root: pathlib.Path
) -> dict[tuple[str, int, str], str]:
  """Returns why parts failed, by arm, seed and task or other name."""
  failures = {}
  for part in parts:
    if statuses[part.key].state in (State.FAILED, State.DIVERGED):
      _, task = plan.TASKS.get(part.name, ("", part.name))
      failures[part.arm, part.seed, task] = read_failure(root / part.key)
  return failures
