"""Computes where losses lead a masked language model that can learn anything.

  python studies/fixed_points.py
  python studies/fixed_points.py --first=10 --dials 100 10 \\
    --out=studies/corrections/optima.json

Let P be the exact distribution of the hidden word g in a context, z the logits
of a model and p = softmax(z). An optimum of a loss L is a fixed point of its
training: sum_g P(g) dL(z, g)/dz = 0. The gradient of each loss here is p minus
a target that may depend on p (p itself where a slot is dropped), so p is
replaced by the mean target under P until nothing changes.

Contexts are those of the artificial languages of `studies/artificial`, where P
is known: the held-out lines, with masks as in that study. fixed_points.json has
the measures of each seed (null: infinite), and an invented context for
docs/images/fixed_points.py.

Hard correction starts from P, the optimum of the plain loss. Another start can
make another word of the same class the likeliest one. `set` is measured with
perfect lexicons only: with others it takes more than 5,000 steps, in which
whole classes lose their probability.

Shapes: M contexts, V words, C classes, N pairs of synonyms.
"""

import argparse
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterator

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).with_name("artificial")))
import language as lib  # noqa: E402
import measures  # noqa: E402

Array = np.ndarray

OUT = pathlib.Path(__file__).with_suffix(".json")
SHARE = 0.3  # `negatives.smoothing`; of random slots for `negatives.drop_prob`
SLOTS, HIDDEN = 4, 0.85  # of a line; share of the slots that show [MASK]
TOLERANCE, MAX_STEPS = 1e-12, 1000
DEAD = 1e-9  # a lower probability converges to 0
PRECISION = {"perfect": 1.0, "wrong": 0.5}  # of lexicons with all synonyms
# Growth of `kl_word - kl_class` by hard correction in that study, by dial.
TRAINED = {100.0: 0.3705, 50.0: 0.0594}
# "the [MASK] reason is the cost": words, P, and the pairs of two lexicons.
WORDS = ("main", "primary", "chief", "only", "best")
EXACT = (0.34, 0.20, 0.11, 0.25, 0.10)
PAIRS = {"perfect": [(0, 1), (0, 2), (1, 2)]}
PAIRS["wrong"] = [*PAIRS["perfect"], (0, 3)]  # main and only


def plain(p_MxV: Array, exact_MxV: Array, table_VxV: Array) -> Array:
  """Returns P, the target of cross-entropy averaged over gold words."""
  return exact_MxV


def drop_prob(p_MxV: Array, exact_MxV: Array, table_VxV: Array) -> Array:
  """Drops slots at random."""
  return (1 - SHARE) * exact_MxV + SHARE * p_MxV


def hard_correction(p_MxV: Array, exact_MxV: Array, table_VxV: Array) -> Array:
  """Drops a slot if the likeliest word is a synonym of the gold word."""
  is_dropped_MxV = table_VxV[:, p_MxV.argmax(axis=1)].T
  dropped_Mx1 = (exact_MxV * is_dropped_MxV).sum(axis=1, keepdims=True)
  return np.where(is_dropped_MxV, 0.0, exact_MxV) + dropped_Mx1 * p_MxV


def uniform(p_MxV: Array, exact_MxV: Array, table_VxV: Array) -> Array:
  """Moves a share of the target to the synonyms, as much to each."""
  count_Vx1 = table_VxV.sum(axis=1, keepdims=True)
  moved_VxV = table_VxV / np.maximum(count_Vx1, 1) - np.eye(len(count_Vx1))
  return exact_MxV + SHARE * exact_MxV @ np.where(count_Vx1, moved_VxV, 0.0)


def set_likelihood(p_MxV: Array, exact_MxV: Array, table_VxV: Array) -> Array:
  """Divides the target among gold word and synonyms as the model does."""
  set_VxV = table_VxV + np.eye(len(table_VxV))
  return p_MxV * (exact_MxV / (p_MxV @ set_VxV.T) @ set_VxV)


def model(p_MxV: Array, exact_MxV: Array, table_VxV: Array) -> Array:
  """Divides a share of the target as the model does."""
  shared_MxV = set_likelihood(p_MxV, exact_MxV, table_VxV)
  return (1 - SHARE) * exact_MxV + SHARE * shared_MxV


def balanced(p_MxV: Array, exact_MxV: Array, table_VxV: Array) -> Array:
  """Moves a share within each pair, to a word as the model prefers it."""
  closure_VxV = table_VxV | table_VxV.T
  a_N, b_N = np.nonzero(np.triu(closure_VxV))
  degree_V, unit_VxV = closure_VxV.sum(axis=1), np.eye(len(closure_VxV))
  rate_N = SHARE / np.maximum(degree_V[a_N], degree_V[b_N])
  pa_MxN, pb_MxN = p_MxV[:, a_N], p_MxV[:, b_N]
  moved_MxN = exact_MxV[:, a_N] * pb_MxN - exact_MxV[:, b_N] * pa_MxN
  moved_MxN *= rate_N / (pa_MxN + pb_MxN)
  return exact_MxV + moved_MxN @ (unit_VxV[b_N] - unit_VxV[a_N])


# The mean target of each loss, and whether it starts from P or uniformly.
LOSSES: dict[str, tuple[Callable[[Array, Array, Array], Array], bool]] = {
  "plain": (plain, False),
  "drop_prob": (drop_prob, False),
  "hc": (hard_correction, True),
  "uniform": (uniform, False),
  "model": (model, False),
  "balanced": (balanced, False),
  "set": (set_likelihood, False),
  "set_from_exact": (set_likelihood, True),
}


def find_fixed_point(name: str, exact_MxV: Array, table_VxV: Array) -> Array:
  """Iterates the mean target of a loss of LOSSES; returns `[M, V]`."""
  mean_target, from_exact = LOSSES[name]
  start = exact_MxV if from_exact else 1 / exact_MxV.shape[1]
  p_MxV = np.full_like(exact_MxV, start)
  for _ in range(MAX_STEPS):
    before_MxV, p_MxV = p_MxV, mean_target(p_MxV, exact_MxV, table_VxV)
    if np.abs(p_MxV - before_MxV).max() < TOLERANCE:
      return p_MxV
  raise RuntimeError(f"{MAX_STEPS} steps are not enough for '{name}'.")


def follow_hard_correction(
  exact_MxV: Array, table_VxV: Array
) -> Iterator[Array]:
  """Yields p while gradient descent in the logits leads it away from P."""
  z_MxV = np.log(exact_MxV)
  while True:
    p_MxV = np.exp(z_MxV)
    p_MxV /= p_MxV.sum(axis=1, keepdims=True)
    yield p_MxV
    z_MxV += 0.5 * (hard_correction(p_MxV, exact_MxV, table_VxV) - p_MxV)


def draw_problem(
  seed: int, dial: float, precision: float
) -> tuple[Array, Array, Array]:
  """Draws a language, its held-out lines with masks, and its lexicon.

  As in the study, a line has 4 slots, of which 85 % show [MASK] and count; the
  others show the word.

  Returns:
    P `[M, V]`, the table of synonyms `[V, V]`, and the class of each word.
  """
  language = lib.draw_language(seed, synonym_share=dial / 100)
  words_RxL = lib.sample_lines(
    language, rows=lib.NUM_HELD_OUT, length=lib.LENGTH, seed=[seed, 1]
  )
  rng = np.random.default_rng(seed)
  is_slot_RxL = rng.random(words_RxL.shape).argsort(axis=1) < SLOTS
  hidden_RxL = is_slot_RxL & (rng.random(words_RxL.shape) < HIDDEN)
  class_RxLxC = measures.class_posterior(language, words_RxL, ~hidden_RxL)
  log_MxV = measures.word_log_probs(language, class_RxLxC[hidden_RxL])
  pairs_Nx2 = lib.draw_lexicon(
    language, precision=precision, recall=1.0, seed=seed
  )
  table_VxV = np.zeros_like(language.is_synonym_VxV)
  table_VxV[tuple(pairs_Nx2.T)] = True
  return np.exp(log_MxV), table_VxV, language.class_V


def compare(exact_MxQ: Array, p_MxQ: Array) -> tuple[float, float]:
  """Returns mean KL(P || p), and the mean total variation."""
  with np.errstate(divide="ignore"):
    log_p_MxQ = np.log(np.where(p_MxQ < DEAD, 0.0, p_MxQ))
  kl_M = (exact_MxQ * (np.log(exact_MxQ) - log_p_MxQ)).sum(axis=1)
  moved_M = np.abs(exact_MxQ - p_MxQ).sum(axis=1) / 2
  return float(kl_M.mean()), float(moved_M.mean())


def sum_by_class(p_MxV: Array, class_V: Array) -> Array:
  """Returns the probabilities `[M, C]` of the classes."""
  return p_MxV @ np.eye(class_V[-1] + 1)[class_V]


def measure_seed(seed: int, dial: float, precision: float) -> dict[str, dict]:
  """Returns the measures of each loss on the language of a seed."""
  exact_MxV, table_VxV, class_V = draw_problem(seed, dial, precision)
  exact_MxC = sum_by_class(exact_MxV, class_V)
  measured: dict[str, dict] = {}
  for name in LOSSES:
    if name.startswith("set") and precision < 1:
      continue
    p_MxV = find_fixed_point(name, exact_MxV, table_VxV)
    kl_class, moved_class = compare(exact_MxC, sum_by_class(p_MxV, class_V))
    kl_word, moved_word = compare(exact_MxV, p_MxV)
    values = {
      "kl_class": kl_class,
      "kl_word": kl_word,
      "moved_class": moved_class,
      "moved_word": moved_word,
    }
    if name == "hc":
      is_dropped_MxV = table_VxV[:, p_MxV.argmax(axis=1)].T
      values["corrected"] = (exact_MxV * is_dropped_MxV).sum(axis=1).mean()
    measured[name] = {
      key: abs(round(float(x), 6)) if np.isfinite(x) else None
      for key, x in values.items()
    }
  return measured


def follow_to_trained(dial: float, seeds: int) -> float:
  """Returns `kl_class` where `kl_word - kl_class` is that of trained models.

  Hard correction starts from P. All contexts have taken the same number of
  steps; one in 20 is followed, and seeds are averaged as in the study.
  """
  problems = [draw_problem(seed, dial, 1.0) for seed in range(seeds)]
  paths = [follow_hard_correction(p[::20], table) for p, table, _ in problems]
  for ps in zip(*paths, strict=True):
    kl = [0.0, 0.0]
    for p_MxV, (exact_MxV, _, class_V) in zip(ps, problems, strict=True):
      pair = exact_MxV[::20], p_MxV
      by_class = [sum_by_class(x, class_V) for x in pair]
      kl[0] += compare(*by_class)[0] / seeds
      kl[1] += compare(*pair)[0] / seeds
    if kl[1] - kl[0] >= TRAINED[dial]:
      return round(kl[0], 6)
  raise AssertionError("paths are endless")


def solve_example(name: str, lexicon: str) -> list[float]:
  """Returns the fixed point of a loss in the invented context."""
  table_VxV = np.zeros((len(WORDS), len(WORDS)), bool)
  for a, b in PAIRS[lexicon]:
    table_VxV[[a, b], [b, a]] = True
  p_1xV = find_fixed_point(name, np.array([EXACT]), table_VxV)
  return p_1xV[0].round(4).tolist()


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--dials", type=float, nargs="+", default=[100, 50])
  parser.add_argument("--seeds", type=int, default=10)
  parser.add_argument("--first", type=int, default=0, help="first language")
  parser.add_argument("--out", type=pathlib.Path, default=OUT)
  flags = parser.parse_args()
  languages: dict[str, dict] = {}
  for dial, lexicon in itertools.product(flags.dials, PRECISION):
    numbers = lib.number_languages(
      flags.first, flags.seeds, synonym_share=dial / 100
    )
    seeds = [measure_seed(x, dial, PRECISION[lexicon]) for x in numbers]
    print(f"\n{dial:g} % synonyms, {lexicon} lexicon: mean (lowest to highest)")
    rows = languages[f"{dial:g} {lexicon}"] = {}
    for name, values in seeds[0].items():
      rows[name] = {key: [x[name][key] for x in seeds] for key in values}
      print(f"{name:15}", *itertools.starmap(format_cell, rows[name].items()))
  trained = {
    f"{dial:g}": follow_to_trained(dial, flags.seeds)
    for dial in flags.dials
    if dial in TRAINED and not flags.first
  }
  print("\nkl_class of hc on its way, as far as trained models:", trained)
  result = {
    "words": WORDS,
    "exact": EXACT,
    "example": {
      lexicon: {name: solve_example(name, lexicon) for name in LOSSES}
      for lexicon in PAIRS
    },
    "languages": languages,
    "hc_on_its_way": trained,
  }
  lists = re.compile(r"\[[^][{}]*\]")  # on one line each
  text = lists.sub(
    lambda found: " ".join(found[0].split()), json.dumps(result, indent=1)
  )
  flags.out.write_text(text + "\n")


def format_cell(key: str, values: list[float | None]) -> str:
  """Formats the mean of the seeds, and lowest and highest."""
  numbers = [np.inf if x is None else x for x in values]
  low, high = min(numbers), max(numbers)
  spread = f" ({low:.4f} to {high:.4f})" if low < high else ""
  return f" {key} {np.mean(numbers):.4f}{spread}"


if __name__ == "__main__":
  main()
