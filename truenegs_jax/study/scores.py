"""Scores of the runs of a study, and the runs that it plans."""

import dataclasses
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.corrections.rates import find_table_2
from truenegs_jax.finetune import results
from truenegs_jax.finetune.config_checks import SQUAD
from truenegs_jax.finetune.leaderboard import example_scores
from truenegs_jax.robustness.eval_set import ORIGINAL, TRANSFORMED
from truenegs_jax.robustness.scores import DROP, SIDES
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.study.drive import FIX, Part
from truenegs_jax.study.plan import CORRECTIONS, PRETRAIN, TASKS
from truenegs_jax.tasks import scoring
from truenegs_jax.workdir import files, metrics_file

HELD_OUT = "held-out loss"
RATES = ("sequence_rate", "mismatch_rate")  # of table 2: Iter and Pred

# Title -> fields of records, of which the first that a record has counts. All
# arms have a loss that corrections do not change.
LOSSES = {
  "MLM loss of all slots": ("mlm_uncorrected", "mlm"),
  "Detection loss": ("detect",),
}

Key = tuple[str, str]  # task and metric
Runs = Mapping[int, Mapping[Key, "Sequence[Score]"]]  # of an arm, by seed


@dataclasses.dataclass(frozen=True)
class Score:
  """A score of one run.

  Attributes:
    arm, seed: the pre-training.
    task: task of fine-tuning, title of a robustness set, CORRECTIONS, HELD_OUT,
      or another name, whose metrics get a table of their own.
    finetune_seed: None for what is measured without fine-tuning.
    metric: that of the task's results; of a robustness set "em original",
      "em transformed", "em drop" and so on.
    value: in percent, except for losses and other metrics.
    correct_N: scores of the examples with the mean `value`, in the same order
      for all arms and seeds; None if there are none.
    failure: why the run failed, if it has a score nevertheless; else "".
  """

  arm: str
  seed: int
  task: str
  finetune_seed: int | None
  metric: str
  value: float
  correct_N: np.ndarray | None = dataclasses.field(default=None, compare=False)
  failure: str = ""

  @property
  def key(self) -> Key:
    """The task and the metric."""
    return self.task, self.metric


def group_runs(
  scores: Iterable[Score], arm: str, keys: Collection[Key]
) -> Runs:
  """Returns an arm's scores of these keys, for the seeds that have all keys."""
  by_seed: dict[int, dict[Key, list[Score]]] = {}
  for x in scores:
    if x.arm == arm and x.key in keys:
      by_seed.setdefault(x.seed, {}).setdefault(x.key, []).append(x)
  return {n: x for n, x in sorted(by_seed.items()) if len(x) == len(set(keys))}


@dataclasses.dataclass(frozen=True)
class Study:
  """The scores of a study, and the runs that it plans.

  Attributes:
    scores: of all runs that are done.
    arms: their names; the first is the baseline.
    seeds: of pre-training.
    tasks: of fine-tuning, as in scores.
    finetune_seeds: of each task of fine-tuning.
    family, width: of the network that is fine-tuned.
  """

  scores: Sequence[Score]
  arms: Sequence[str]
  seeds: Sequence[int]
  tasks: Sequence[str]
  finetune_seeds: Sequence[int]
  family: str = "electra"
  width: int = 256


def correction_metric(rate: str, percent: float) -> str:
  """Names a rate of corrections at a percentage of the run's steps.

  `rate` is in RATES, a field of `corrections.rates.Rates`.
  """
  return f"{rate} at {percent:g} %"


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
    if part.name == PRETRAIN:
      logged = metrics_file.read_records(folder)
      collected += read_pretraining(*run, logged)
    elif part.name in TASKS:
      for n in range(len(part.outputs)):  # one for each seed
        if result := results.load(folder, TASKS[part.name][1], n):
          network = {key: result.provenance[key] for key in ("family", "width")}
          collected += read_finetuning(*run, result)
    else:
      read = read_corrections if part.name == CORRECTIONS else read_robustness
      path = folder / files.RESULTS
      with json_text.read_file(path, CheckpointError, FIX) as saved:
        collected += read(*run, saved)
  return collected, network


def read_pretraining(
  arm: str, seed: int, logged: Sequence[Mapping[str, Any]]
) -> list[Score]:
  """Returns the last held-out losses in metrics.jsonl, in nats."""
  held_out = [x for x in logged if x["split"] == "held_out"]
  if not held_out:
    return []
  scores = []
  for title, fields in LOSSES.items():
    losses = (held_out[-1].get(field) for field in fields)
    loss = next((x for x in losses if x is not None), None)
    if loss is not None:
      scores.append(Score(arm, seed, HELD_OUT, None, title, loss))
  return scores


def read_finetuning(arm: str, seed: int, run: results.Result) -> list[Score]:
  """Returns the main score of a fine-tuning on the dev set; of SQuAD both."""
  scores = run.scores["dev"]
  return [
    Score(
      arm=arm,
      seed=seed,
      task=run.task,
      finetune_seed=run.seed,
      metric=metric,
      value=scores[metric],
      correct_N=example_scores(run, metric),
      failure=run.failure,
    )
    for metric in list(scores)[: None if run.task == SQUAD else 1]
  ]


def read_corrections(
  arm: str, seed: int, saved: Mapping[str, Any]
) -> list[Score]:
  """Returns the rates of table 2 by the first source of synonyms.

  `saved` is the results.json of the task "corrections".
  """
  checkpoints = next(iter(saved["checkpoints"].values()))
  steps = [(x["step"], x["percent"]) for x in checkpoints]
  return [
    Score(
      arm=arm,
      seed=seed,
      task=CORRECTIONS,
      finetune_seed=None,
      metric=correction_metric(rate, percent),
      value=100 * checkpoints[index]["rates"][rate]["rate"],
    )
    for percent, index in find_table_2(steps).items()
    for rate in RATES
  ]


def read_robustness(
  arm: str, seed: int, saved: Mapping[str, Any]
) -> list[Score]:
  """Returns the scores of each set, side and fine-tuning of one model.

  `saved` is the results.json of the task "robustness". Examples have scores
  only if they are questions without variants.
  """
  [records] = saved["models"].values()
  scores = []
  for name, x in saved["sets"].items():
    for record in records.values():
      is_paired = record["task"] == SQUAD and not x["variants"]
      for side in SIDES:
        for metric, value in record["scores"].get(f"{name} {side}", {}).items():
          score_N = None
          if is_paired:
            score_N = _question_scores(record["answers"], name, side, metric)
          key = x["title"], record["seed"], f"{metric} {side}"
          scores.append(Score(arm, seed, *key, value, score_N))
  return scores


def _question_scores(
  answers: Mapping[str, Any], name: str, side: str, metric: str
) -> np.ndarray:
  """Returns the scores of a set's questions; of DROP their differences, [N]."""
  if side == DROP:
    before_N, after_N = (
      _question_scores(answers, name, x, metric)
      for x in (ORIGINAL, TRANSFORMED)
    )
    return before_N - after_N
  split = answers[f"{name} {side}"]
  return scoring.question_scores(split["golds"], split["answers"])[metric]
