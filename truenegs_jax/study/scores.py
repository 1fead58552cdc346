"""Scores of the runs of a study, and the runs that it plans."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from truenegs_jax.stats.intervals import Runs
from truenegs_jax.study.drive import Part

CORRECTIONS, HELD_OUT = "corrections", "held-out loss"  # tasks of scores
RATES = ("sequence_rate", "mismatch_rate")  # of table 2: Iter and Pred
# Of a robustness set.
SIDES = ORIGINAL, TRANSFORMED, DROP = "original", "transformed", "drop"

Key = tuple[str, str]  # task and metric
# The paper's scores before and after the change, by set, model and metric.
Paper = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


@dataclasses.dataclass(frozen=True)
class Score:
  """A score of one run."""

  arm: str
  seed: int  # of the pre-training
  # Of fine-tuning, title of a robustness set, CORRECTIONS, HELD_OUT, or another
  # name, whose metrics get a table of their own.
  task: str
  finetune_seed: int | None  # None for what is measured without fine-tuning
  metric: str  # in the task's results; of a robustness set "em original", ...
  value: float  # in percent, except for losses and other metrics
  # Scores of the examples with the mean `value`, in the same order for all arms
  # and seeds; None if there are none.
  correct_N: np.ndarray | None = dataclasses.field(default=None, compare=False)
  failure: str = ""  # why the run failed, if it has a score nevertheless

  @property
  def key(self) -> Key:
    """The task and the metric."""
    return self.task, self.metric


def group_runs(scores: Iterable[Score], arm: str, keys: Sequence[Key]) -> Runs:
  """Returns an arm's scores of these keys, for the seeds that have all keys."""
  by_seed: dict[int, dict[Key, list[Score]]] = {}
  for x in scores:
    if x.arm == arm and x.key in keys:
      by_seed.setdefault(x.seed, {}).setdefault(x.key, []).append(x)
  return {n: x for n, x in sorted(by_seed.items()) if len(x) == len(set(keys))}


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The runs that a study plans, and the scores of those that are done."""

  scores: Sequence[Score]  # of all runs that are done
  arms: Sequence[str]  # the first is the baseline
  seeds: Sequence[int]  # of pre-training
  tasks: Sequence[str]  # of fine-tuning, as in scores
  finetune_seeds: Sequence[int]  # of each task of fine-tuning
  family: str = "electra"  # of the network that is fine-tuned
  width: int = 256
  paper: Paper = dataclasses.field(default_factory=dict)
  parts: Sequence[Part] = ()  # in the order in which they run


def correction_metric(rate: str, percent: float) -> str:
  """Names a rate of RATES at a percentage of the run's steps."""
  return f"{rate} at {percent:g} %"
