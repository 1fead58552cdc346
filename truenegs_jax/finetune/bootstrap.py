"""Compares two models on the same examples by a paired bootstrap.

compared, remarks = compare_results(ours, theirs)  # of two workdirs
compare("accuracy", gold_N, ours_SxN, theirs_SxN).low
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from truenegs_jax.finetune.config_checks import SQUAD
from truenegs_jax.finetune.results import Result
from truenegs_jax.runtime.errors import one_of
from truenegs_jax.tasks import scoring

# Indices of examples in R resamples, int [R, N] -> scores of S runs, [S, R].
Scorer = Callable[[np.ndarray], np.ndarray]

DRAWN_AT_ONCE = 2**19  # examples; a few arrays of 4 MB


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Difference of two models' scores; all values in percent.

  Attributes:
    ours, theirs: means over each model's runs.
    difference: ours - theirs.
    low, high: 95 % interval for other examples, with the same runs.
    low_runs, high_runs: 95 % interval for other examples and other runs; None
      if a model has only one run.
    p, p_runs: two-sided p-values of no difference, one for each interval.
  """

  metric: str
  ours: float
  theirs: float
  difference: float
  low: float
  high: float
  low_runs: float | None
  high_runs: float | None
  resamples: int
  p: float
  p_runs: float | None


def compare_results(
  ours: Mapping[str, Sequence[Result]], theirs: Mapping[str, Sequence[Result]]
) -> tuple[dict[str, list[Comparison]], list[str]]:
  """Compares the runs of two workdirs on the dev set of each task.

  Returns:
    The comparisons of each task, one per metric; and remarks: tasks that cannot
    be compared, and the notes of `theirs`.
  """
  compared, remarks = {}, []
  for name, runs in ours.items():
    others = theirs.get(name, [])
    golds = [x.answers["dev"]["golds"] for x in (*runs, *others)]
    if others and all(gold == golds[0] for gold in golds):
      compared[name] = _compare_task(runs, others)
      notes = dict.fromkeys(note for run in others for note in run.notes)
      remarks += [f"* {name}, other runs: {note}" for note in notes]
    elif theirs:
      reason = "have other examples" if others else "do not have this task"
      remarks.append(f"{name} is not compared: the other runs {reason}")
  return compared, remarks


def _compare_task(
  ours: Sequence[Result], theirs: Sequence[Result]
) -> list[Comparison]:
  metrics = list(ours[0].scores["dev"])
  if ours[0].task == SQUAD:
    our_scores, their_scores = (
      [_question_scores(run.answers["dev"]) for run in runs]
      for runs in (ours, theirs)
    )
    return [
      compare(m, None, [x[m] for x in our_scores], [x[m] for x in their_scores])
      for m in metrics
    ]
  gold_N, *run_SxN = _to_numbers([*ours, *theirs])
  pair = run_SxN[: len(ours)], run_SxN[len(ours) :]
  return [compare(m, gold_N, *pair) for m in metrics]


def _to_numbers(runs: Sequence[Result]) -> list[np.ndarray]:
  """Returns gold values, then each run's answers, with ids of classes."""
  labels = dict.fromkeys(x for run in runs for x in run.provenance["labels"])
  ids = {label: i for i, label in enumerate(labels)}
  devs = [run.answers["dev"] for run in runs]
  columns = [devs[0]["golds"], *(dev["answers"] for dev in devs)]
  return [np.array([ids.get(x, x) for x in column]) for column in columns]


def example_scores(run: Result, metric: str) -> np.ndarray:
  """Returns values of the dev set's examples whose mean is the run's score.

  They are the scores of questions, 0 or 100 for accuracy, and for other metrics
  the jackknife's pseudo-values, whose variance is that of the metric (Tukey
  1958), shifted to the mean: f64 [N], percent, in the order of the file.
  """
  if run.task == SQUAD:
    return _question_scores(run.answers["dev"])[metric]
  gold_N, answer_N = scoring.as_pairs(*_to_numbers([run]))
  if metric == "accuracy":
    return 100.0 * (gold_N == answer_N)
  score, size = scoring.METRICS[metric], len(gold_N)
  rest_N = np.array(
    [score(np.delete(gold_N, i), np.delete(answer_N, i)) for i in range(size)]
  )
  return score(gold_N, answer_N) + (size - 1) * (rest_N.mean() - rest_N)


def _question_scores(dev: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
  predictions, golds = (
    dict(zip(dev["keys"], dev[name], strict=True))
    for name in ("answers", "golds")
  )
  return scoring.question_scores(predictions, golds)


def compare(
  metric: str,
  gold_N: ArrayLike | None,
  ours_SxN: ArrayLike,
  theirs_SxN: ArrayLike,
  *,
  resamples: int = 10_000,
  seed: int = 0,
) -> Comparison:
  """Computes the paired bootstrap of a metric.

  A resample draws N of the N examples with replacement, the same for all runs
  of both models, and averages the metric over runs. The interval contains the
  differences from the 2.5th to the 97.5th percentile (Efron & Tibshirani 1993,
  chapter 13). For the interval over runs, each resample also draws runs of each
  model: S - 1 of its S, with replacement, because S draws would make the
  variance too small by (S - 1) / S (Rao & Wu 1988, JASA 83). With fewer than
  about five runs that interval is rough, and rather too narrow.

  p = 2 (1 + min(n_low, n_high)) / (resamples + 1), at most 1, where n_low
  resamples have a difference <= 0 and n_high one >= 0.

  Args:
    metric: a name in `scoring.METRICS`; any if `gold_N` is None.
    gold_N: class ids or scores; None if the metric is the mean of scores per
      example, as `scoring.question_scores` returns them.
    ours_SxN, theirs_SxN: predictions of each run, or its scores per example in
      percent, finite; S may differ.
    seed: seed of the draws, which are the same for all metrics and models.

  Raises:
    InputError: unknown metric, or not one value per example.
  """
  ours, theirs = list(np.asarray(ours_SxN)), list(np.asarray(theirs_SxN))
  score = make_scorer(metric, gold_N, [*ours, *theirs])
  return compare_scores(
    metric,
    score,
    len(ours[0]),
    runs=(len(ours), len(theirs)),
    resamples=resamples,
    seed=seed,
  )


def compare_scores(
  metric: str,
  score: Scorer,
  size: int,
  *,
  runs: tuple[int, int],
  resamples: int = 10_000,
  seed: int = 0,
) -> Comparison:
  """Does `compare` for any score of `size` examples.

  Args:
    metric: name of the score.
    score: scores of the runs of both models, ours first.
    runs: number of runs of each model.
  """
  example_rng, our_rng, their_rng = np.random.default_rng(seed).spawn(3)
  at_once = max(1, DRAWN_AT_ONCE // size)
  counts = [min(at_once, resamples - i) for i in range(0, resamples, at_once)]
  score_SxR = np.concatenate(
    [score(example_rng.integers(size, size=(n, size))) for n in counts], 1
  )
  ours_SxR, theirs_SxR = np.split(score_SxR, [runs[0]])
  low, high, p = _interval_and_p(ours_SxR, theirs_SxR)
  low_runs = high_runs = p_runs = None
  if min(runs) > 1:
    low_runs, high_runs, p_runs = _interval_and_p(
      _draw_runs(our_rng, ours_SxR), _draw_runs(their_rng, theirs_SxR)
    )
  observed_S = score(np.arange(size)[None])[:, 0]
  our_mean = float(observed_S[: runs[0]].mean())
  their_mean = float(observed_S[runs[0] :].mean())
  return Comparison(
    metric=metric,
    ours=our_mean,
    theirs=their_mean,
    difference=our_mean - their_mean,
    low=low,
    high=high,
    low_runs=low_runs,
    high_runs=high_runs,
    resamples=resamples,
    p=p,
    p_runs=p_runs,
  )


def _draw_runs(rng: np.random.Generator, score_SxR: np.ndarray) -> np.ndarray:
  """Draws S - 1 of the S runs for each resample, as in `compare`."""
  runs, resamples = score_SxR.shape
  drawn = rng.integers(runs, size=(max(runs - 1, 1), resamples))
  return np.take_along_axis(score_SxR, drawn, 0)


def _interval_and_p(
  ours_SxR: np.ndarray, theirs_SxR: np.ndarray
) -> tuple[float, float, float]:
  """Returns low, high and p, as defined in `compare`."""
  # Rounded, since the order of runs changes the mean by about 1e-14.
  difference_R = np.round(ours_SxR.mean(0) - theirs_SxR.mean(0), 9)
  low, high = np.percentile(difference_R, (2.5, 97.5))
  tail = min(np.sum(difference_R <= 0), np.sum(difference_R >= 0))
  p = min(1.0, 2 * (1 + int(tail)) / (len(difference_R) + 1))
  return float(low), float(high), p


def make_scorer(
  metric: str, gold_N: ArrayLike | None, runs_SxN: Sequence[ArrayLike]
) -> Scorer:
  """Returns a function from drawn examples to the metric of each run.

  Arguments and errors are those of `compare`, for the runs of any models.
  """
  paired_N = np.asarray(runs_SxN[0] if gold_N is None else gold_N)
  run_SxN = np.stack([scoring.as_pairs(paired_N, x)[1] for x in runs_SxN])
  return (
    _means(run_SxN) if gold_N is None else _scorer(metric, paired_N, run_SxN)
  )


def _scorer(metric: str, gold_N: np.ndarray, run_SxN: np.ndarray) -> Scorer:
  one_of("metric", metric, scoring.METRICS)
  if metric == "accuracy":
    return _means(100.0 * (run_SxN == gold_N[None]))
  if metric in ("pearson", "spearman"):
    order = scoring.ranks if metric == "spearman" else np.asarray

    def score(drawn_RxN: np.ndarray) -> np.ndarray:
      gold_RxN = order(gold_N[drawn_RxN])
      return np.stack(
        [scoring.correlation(gold_RxN, order(x[drawn_RxN])) for x in run_SxN]
      )

    return score
  from_counts = scoring.matthews_from_counts
  if metric == "f1":
    from_counts = scoring.f1_from_counts
  classes = max(2, 1 + int(max(gold_N.max(), run_SxN.max())))
  cell_SxN = gold_N * classes + run_SxN  # of the confusion matrix
  is_cell_SxMxN = cell_SxN[:, None] == np.arange(classes**2)[:, None]

  def score_counts(drawn_RxN: np.ndarray) -> np.ndarray:
    times_RxN = _times(drawn_RxN)
    counts_SxMxR = (_sums(x.astype(float), times_RxN) for x in is_cell_SxMxN)
    return np.stack(
      [from_counts(x.T.reshape(-1, classes, classes)) for x in counts_SxMxR]
    )

  return score_counts


def _means(value_SxN: np.ndarray) -> Scorer:
  def score(drawn_RxN: np.ndarray) -> np.ndarray:
    return _sums(value_SxN, _times(drawn_RxN)) / drawn_RxN.shape[1]

  return score


def _times(drawn_RxN: np.ndarray) -> np.ndarray:
  """Counts how often each example was drawn, f64 [R, N]."""
  num_resamples, size = drawn_RxN.shape
  cells = drawn_RxN + size * np.arange(num_resamples)[:, None]
  counts = np.bincount(cells.ravel(), minlength=num_resamples * size)
  return counts.reshape(num_resamples, size).astype(float)


def _sums(value_MxN: np.ndarray, times_RxN: np.ndarray) -> np.ndarray:
  """Returns weighted sums, f64 [M, R]; equal rows give equal bits."""
  # Not `@`, because BLAS's threads are slow when the cores are busy.
  return np.stack([np.einsum("rn,n->r", times_RxN, x_N) for x_N in value_MxN])
