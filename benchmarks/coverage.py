"""Simulates how often equal models are found to differ.

  python benchmarks/coverage.py --repeats=1000

Compares two fine-tuned models whose true difference is 0, for several numbers
of runs and several origins of noise, and prints a row of a Markdown table for
each: in how many percent of the comparisons p is below 0.05, which should be 5.
"by two levels" is p by a bootstrap that draws examples and runs, and so counts
the noise of single answers twice; "ours" is that of `compare_scores`. Scores of
examples are normal, or right or wrong (0 or 100).
"""

import itertools
from collections.abc import Sequence

import numpy as np
from absl import app, flags

from truenegs_jax.stats.intervals import compare_scores
from truenegs_jax.tasks.scoring import mean_scores

REPEATS = flags.DEFINE_integer("repeats", 1_000, "Comparisons of each row.")

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
  """Compares equal models; returns the shares of p < 0.05: ours, by levels."""
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
  """Returns whether we find a difference, and whether the two levels do."""
  scores = mean_scores(score_SxN)
  drawn = []

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
  """Prints the table."""
  del argv
  print("| scores | runs | noise of | by two levels, % | ours, % |")
  print("| --- | --- | --- | --- | --- |")
  for kind, runs, (name, deviations) in itertools.product(
    ("normal", "right"), PAIRS, REGIMES.items()
  ):
    now, twice = false_positives(kind, runs, deviations, REPEATS.value)
    print(
      f"| {kind} | {runs[0]} and {runs[1]} | {name} | {100 * twice:.1f} |"
      f" {100 * now:.1f} |",
      flush=True,
    )


if __name__ == "__main__":
  app.run(main)
