"""Simulates how often intervals of differences cover the true difference.

  python benchmarks/coverage.py --repeats=4000

First those of two fine-tuned models (`compare_scores`), in percent of the
comparisons of equal models that have p < 0.05; `twice` is p by a bootstrap that
draws examples and runs, and so counts the noise of single answers twice. Then
those of studies.

Simulates studies of two arms whose difference is known, for several numbers of
seeds and fine-tunings and for several shares of their variance: of pre-training
seeds (`seed`), of fine-tunings (`tune`), and of examples that an arm answers
better than the other with every seed (`example`); noise of single answers
comes on top. `normal` draws the scores of examples from a normal distribution,
`right` answers that are right or wrong (0 or 100). Prints for each the coverage
of the interval, beside that of the percentiles of a plain bootstrap over seeds,
fine-tunings and examples, and its median half width.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
from absl import app, flags

from truenegs_jax.stats.intervals import (
  Difference,
  compare_runs,
  compare_scores,
)
from truenegs_jax.study.scores import Score, group_runs
from truenegs_jax.tasks.scoring import mean_scores

REPEATS = flags.DEFINE_integer(
  "repeats", 1_000, "simulated studies of each row"
)
RESAMPLES = flags.DEFINE_integer(
  "resamples", 100, "of the plain bootstrap; 0 for none"
)
SEEDS = (2, 3, 5, 10)
FINETUNINGS = (1, 3)
# Shares of the variance of the difference: seeds, fine-tunings, examples.
SHARES = (
  (1.0, 0.0, 0.0),
  (0.5, 0.5, 0.0),
  (0.8, 0.0, 0.2),
  (0.3, 0.2, 0.5),
  (0.1, 0.1, 0.8),
  (0.0, 0.0, 1.0),
)


TOTAL = 4.0  # variance to be shared, in squared percent


@dataclasses.dataclass(frozen=True)
class World:
  """Distribution of the scores of two arms whose true difference is 0.

  Attributes:
    kind: "normal" or "right", see above.
    seeds, finetunings, size: numbers of seeds, fine-tunings and examples.
    shares: as in SHARES; single answers add to the variance.
  """

  kind: str
  seeds: int
  finetunings: int
  shares: Sequence[float]
  size: int = 300
  noise: float = 400.0  # variance of an answer's score, if normal

  def draw(self, rng: np.random.Generator) -> np.ndarray:
    """Draws the scores of examples, f64 [2, S, F, N]."""
    shape = 2, self.seeds, self.finetunings, self.size
    seed, tune, example = (
      math.sqrt(TOTAL * share * count / 2)
      for share, count in zip(
        self.shares,
        (self.seeds, self.seeds * self.finetunings, self.size),
        strict=True,
      )
    )
    mean = 50 + seed * rng.normal(size=(2, self.seeds, 1, 1))
    mean = mean + tune * rng.normal(size=(*shape[:3], 1))
    mean = mean + example * rng.normal(size=(2, 1, 1, self.size))
    if self.kind == "normal":
      return mean + math.sqrt(self.noise) * rng.normal(size=shape)
    return 100.0 * (100 * rng.random(shape) < mean)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """Shares of the simulated studies, and a median.

  Attributes:
    coverage, plain: of the interval, and of the plain bootstrap's.
    half_width: median, in percent.
  """

  coverage: float
  plain: float
  half_width: float


def simulate(
  world: World, repeats: int, *, resamples: int = 0, seed: int = 0
) -> Outcome:
  """Simulates studies; without `resamples`, `plain` is NaN."""
  rng = np.random.default_rng(seed)
  errors, halves, plain = [], [], []
  for _ in range(repeats):
    score_2xSxFxN = world.draw(rng)
    difference = _compare(score_2xSxFxN)
    errors.append(difference.value)  # from 0
    halves.append(difference.half_width)
    if resamples:
      drawn_R = plain_bootstrap(rng, score_2xSxFxN, resamples)
      low, high = np.percentile(drawn_R, (2.5, 97.5))
      plain.append(low <= 0 <= high)
  error_N, half_N = np.array(errors), np.array(halves)
  return Outcome(
    coverage=float(np.mean(abs(error_N) <= half_N)),
    plain=float(np.mean(plain)) if plain else math.nan,
    half_width=float(np.median(half_N)),
  )


def _compare(score_2xSxFxN: np.ndarray) -> Difference:
  arms = "ours", "baseline"
  scores = [
    Score(arm, seed, "task", run, "em", float(score_N.mean()), score_N)
    for arm, score_SxFxN in zip(arms, score_2xSxFxN, strict=True)
    for seed, score_FxN in enumerate(score_SxFxN)
    for run, score_N in enumerate(score_FxN)
  ]
  runs = (group_runs(scores, arm, [("task", "em")]) for arm in arms)
  return compare_runs(*runs)


def plain_bootstrap(
  rng: np.random.Generator, score_2xSxFxN: np.ndarray, resamples: int
) -> np.ndarray:
  """Draws seeds, fine-tunings of each, and examples; differences, f64 [R]."""
  _, seeds, runs, size = score_2xSxFxN.shape

  def draw_counts(shape: tuple[int, ...], of_each: int) -> np.ndarray:
    even = np.full(of_each, 1 / of_each)
    return rng.multinomial(of_each, even, size=shape) / of_each

  example_RxN = draw_counts((resamples,), size)
  score_Rx2xSxF = np.tensordot(example_RxN, score_2xSxFxN, (1, 3))
  score_Rx2xS = (draw_counts((resamples, 2, seeds), runs) * score_Rx2xSxF).sum(
    3
  )
  difference_RxS = score_Rx2xS[:, 0] - score_Rx2xS[:, 1]
  return (draw_counts((resamples,), seeds) * difference_RxS).sum(1)


# Numbers of runs of the two models.
PAIRS = ((3, 3), (10, 10), (3, 10))
# Standard deviations of the score of a run, of an example and of an answer.
REGIMES = {
  "answers": (0.0, 0.0, 30.0),
  "runs": (2.0, 0.0, 10.0),
  "examples": (0.0, 25.0, 10.0),
  "runs, examples": (1.4, 20.0, 10.0),
  "all": (1.0, 20.0, 30.0),
}


def false_positives(
  kind: str,
  runs: tuple[int, int],
  deviations: Sequence[float],
  repeats: int,
  size: int = 150,
) -> tuple[float, float]:
  """Compares equal models; returns the shares with p < 0.05, and by `twice`."""
  rng = np.random.default_rng(0)
  run, example, answer = deviations
  positive_Rx2 = []
  for _ in range(repeats):
    mean_SxN = run * rng.normal(size=(sum(runs), 1)) + np.repeat(
      50 + example * rng.normal(size=(2, size)), runs, 0
    )
    if kind == "right":
      score_SxN = 100.0 * (100 * rng.random(mean_SxN.shape) < mean_SxN)
    else:
      score_SxN = mean_SxN + answer * rng.normal(size=mean_SxN.shape)
    positive_Rx2.append(_compare_models(score_SxN, runs, rng))
  now, twice = np.mean(positive_Rx2, 0).tolist()
  return now, twice


def _compare_models(
  score_SxN: np.ndarray,
  runs: tuple[int, int],
  rng: np.random.Generator,
  resamples: int = 400,
) -> tuple[bool, bool]:
  """Returns whether a difference is found, and whether it is by `twice`."""
  scores, drawn = mean_scores(score_SxN), []

  def draw(rows: np.ndarray) -> np.ndarray:
    drawn.append(scores.draw(rows))
    return drawn[-1]

  x = compare_scores("em", draw, scores.size, runs=runs, resamples=resamples)
  assert x.p_runs is not None
  means = [
    np.take_along_axis(y, rng.integers(n, size=(n - 1, resamples)), 0).mean(0)
    for y, n in zip(np.split(drawn[0], [runs[0]]), runs, strict=True)
  ]
  low, high = np.percentile(means[0] - means[1], (2.5, 97.5))
  return x.p_runs < 0.05, not low <= 0 <= high


def main(argv: Sequence[str]) -> None:
  """Prints a line for each regime and each world."""
  del argv
  print("kind   runs    noise of        |  twice    now")
  for kind, runs, (name, deviations) in itertools.product(
    ("normal", "right"), PAIRS, REGIMES.items()
  ):
    now, twice = false_positives(kind, runs, deviations, REPEATS.value)
    print(
      f"{kind:6} {runs[0]:2}, {runs[1]:2}  {name:15} | {twice:6.1%} {now:6.1%}",
      flush=True,
    )
  print("kind    seeds tunings  seed tune example | covers  plain  half")
  for kind, seeds, runs, shares in itertools.product(
    ("normal", "right"), SEEDS, FINETUNINGS, SHARES
  ):
    world = World(kind, seeds, runs, shares)
    x = simulate(world, REPEATS.value, resamples=RESAMPLES.value)
    print(
      f"{kind:7} {seeds:5} {runs:7}  {shares[0]:4} {shares[1]:4} {shares[2]:7}"
      f" | {x.coverage:6.1%} {x.plain:6.1%} {x.half_width:5.2f}",
      flush=True,
    )


if __name__ == "__main__":
  app.run(main)
