"""Summarizes the study of corrections: predictions, tables, numbers of pages.

  python studies/corrections/summarize.py   # writes RESULT.md

All numbers come from results/*.csv and optima.json. docs/conf.py puts those of
`numbers` into the pages, and docs/images/corrections.py draws a figure of them.
"""

import csv
import functools
import json
import math
import pathlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

FOLDER = pathlib.Path(__file__).parent
RESULTS = FOLDER / "results"
OUT = FOLDER / "RESULT.md"
CHECKPOINTS = {"tenth": 150, "third": 501, "end": 1500}
BASELINE = "baseline"
CORRECTED = "corrected_of_slots"
RESAMPLES = 10_000
EVIDENCE = 0.995  # level of an interval that counts as evidence
# Arms in the order of the tables, and the loss of each in optima.json.
ARMS = {
  "hc": "hc",
  "hc_until": "plain",
  "drop": "drop_prob",
  "uniform": "uniform",
  "model": "model",
  "balanced": "balanced",
  "set": "set",
  "uniform_p50": "uniform",
  "model_p50": "model",
  "balanced_p50": "balanced",
}
# Measures of languages: name, heading and factor.
MEASURES = {
  "kl_class": ("`kl_class`, nats", 1),
  "kl_within": ("`kl_word - kl_class`, nats", 1),
  "ece_class": ("`ece_class`, %", 100),
  "accuracy_class": ("accuracy of the class, %", 100),
  "false_negatives": ("false negatives, %", 100),
  "probe_new_words": ("`probe_new_words`, %", 100),
}
# Measures of real text: heading and number of digits.
TEXT_MEASURES = {
  "mlm": ("`mlm`, nats", 4),
  "gold_loss": ("loss of words with synonyms, nats", 4),
  "set_loss": ("`set_loss`, nats", 4),
  "swap_kl": ("`swap_kl`, nats", 5),
  "swap_agreement": ("same likeliest word, share", 4),
  "synonym_rank": ("`synonym_rank`", 5),
  "precision": ("precision by PPDB, share", 3),
}
Runs = dict[tuple[str, int, str], np.ndarray]  # arm, step, measure -> by seed


class Difference(NamedTuple):
  """A mean over seeds, or of differences that are paired by seed."""

  mean: float
  half: float  # half its 95 % interval (Student's t)
  is_evidence: bool = False  # whether the interval of EVIDENCE excludes 0

  def text(self, digits: int = 4) -> str:
    """Returns "+0.0123 ± 0.0045"."""
    return f"{_signed(self.mean, digits)} ± {self.half:.{digits}f}"

  def verdict(self, low: float, high: float) -> str:
    """Compares the interval with a predicted range."""
    bottom, top = self.mean - self.half, self.mean + self.half
    if low < bottom and top < high:
      return "holds"
    return "refuted" if top < low or bottom > high else "open"


def _signed(value: float, digits: int) -> str:
  return f"{value:+.{digits}f}".replace("-", "−")


@functools.cache
def read(name: str) -> Runs:
  """Reads the measures of a study; none if it was not made."""
  path = RESULTS / f"{name}.csv"
  if not path.exists():
    return {}
  by_key: dict[tuple[str, int, str], dict[int, float]] = {}
  with path.open() as file:
    for x in csv.DictReader(file):
      key = x["arm"], int(x["step"]), x["measure"]
      by_key.setdefault(key, {})[int(x["seed"])] = float(x["value"])
  runs = {
    key: np.array([by_seed[seed] for seed in sorted(by_seed)])
    for key, by_seed in by_key.items()
  }
  for arm, step, measure in [*runs]:
    if measure == "kl_word":
      within = runs[arm, step, measure] - runs[arm, step, "kl_class"]
      runs[arm, step, "kl_within"] = within
  return runs


def compare(
  runs: Runs, arm: str, step: int, measure: str, factor: float = 1
) -> Difference:
  """Returns an arm's difference from the baseline, or the baseline's mean."""
  values_S = runs[arm, step, measure] * factor
  if arm != BASELINE:
    values_S = values_S - runs[BASELINE, step, measure] * factor
  return estimate(values_S)


def estimate(values_S: np.ndarray) -> Difference:
  """Returns the mean of seeds with its interval."""
  mean, error = float(values_S.mean()), float(stats.sem(values_S))
  half, wide = (
    float(stats.t.ppf((1 + level) / 2, len(values_S) - 1)) * error
    for level in (0.95, EVIDENCE)
  )
  return Difference(mean, half, abs(mean) > wide)


def optimum(arm: str, dial: int, seeds: int) -> float:
  """Returns the mean `kl_class` of the optimum of an arm's loss."""
  saved = json.loads((FOLDER / "optima.json").read_text())["languages"]
  lexicon = "wrong" if arm.endswith("_p50") else "perfect"
  values = saved[f"{dial} {lexicon}"][ARMS[arm]]["kl_class"][:seeds]
  return math.inf if None in values else float(np.mean(values))


class Prediction(NamedTuple):
  """A prediction, what was measured, and whether it holds."""

  number: str
  text: str
  measured: str
  verdict: str


def predictions() -> Iterator[Prediction]:
  """Yields the predictions of the protocol, in its order."""
  runs, other = read("dial-100"), read("dial-10")
  ranged = [
    ("1", "model", "end", (-0.01, 0.01), "less than .01"),
    ("1", "balanced", "end", (-0.01, 0.01), "less than .01"),
    ("2", "model", "tenth", (-math.inf, 0), "better at a tenth"),
    ("2", "balanced", "tenth", (-math.inf, 0), "better at a tenth"),
    ("3", "uniform_p50", "end", (0.05, 0.2), "about +.1"),
    ("4", "hc_until", "end", (-0.01, 0.01), "less than .01"),
    ("5", "drop", "end", (-math.inf, 0.005), "less than +.005"),
  ]
  for number, arm, when, (low, high), text in ranged:
    found = compare(runs, arm, CHECKPOINTS[when], "kl_class")
    yield Prediction(
      number, f"`{arm}`: {text}", found.text(), found.verdict(low, high)
    )
  end = CHECKPOINTS["end"]
  harms = [
    x["hc", end, "kl_class"] - x[BASELINE, end, "kl_class"]
    for x in (runs, other)
  ]
  gap = stats.ttest_ind(*harms, equal_var=False)
  low, high = gap.confidence_interval()
  found = Difference(float(harms[0].mean() - harms[1].mean()), (high - low) / 2)
  yield Prediction(
    "6",
    "`hc`: more harm at the dial 100 than at 10",
    found.text(),
    found.verdict(0, math.inf),
  )
  share = np.concatenate([x["hc", end, CORRECTED] for x in (runs, other)])
  rho, low, high = correlate(share, np.concatenate(harms))
  verdict = Difference((low + high) / 2, (high - low) / 2).verdict(0, math.inf)
  yield Prediction(
    "6",
    "`hc`: more harm where more is corrected",
    f"rank correlation {rho:.2f}, {_signed(low, 2)} to {_signed(high, 2)}",
    verdict,
  )


def correlate(x_N: np.ndarray, y_N: np.ndarray) -> tuple[float, float, float]:
  """Returns Spearman's correlation and its 95 % interval by bootstrap."""
  rng = np.random.default_rng(0)
  drawn_RxN = rng.integers(len(x_N), size=(RESAMPLES, len(x_N)))
  ranks = (stats.rankdata(z[drawn_RxN], axis=1) for z in (x_N, y_N))
  x_RxN, y_RxN = (r - r.mean(axis=1, keepdims=True) for r in ranks)
  with np.errstate(invalid="ignore"):
    norm_R = np.sqrt((x_RxN**2).sum(1) * (y_RxN**2).sum(1))
    rho_R = (x_RxN * y_RxN).sum(1) / norm_R
  low, high = np.nanquantile(rho_R, [0.025, 0.975])
  return float(stats.spearmanr(x_N, y_N)[0]), float(low), float(high)


def render() -> str:
  """Renders RESULT.md."""
  return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
  yield "# Result of the study of corrections"
  yield ""
  yield (
    "`summarize.py` wrote this page from `results/` and `optima.json`. [The"
    " protocol](README.md) came first; [Does it"
    " help?](../../docs/explanation/does_it_help.md) says what it means. ± is"
    " half a 95 % interval of a mean over seeds, paired by seed."
  )
  found = [*predictions()]
  yield ""
  yield "## Which predictions held"
  yield ""
  counts = {x: sum(y.verdict == x for y in found) for x in VERDICTS}
  yield (
    f"Of {len(found)} parts of the six predictions,"
    f" {counts['holds']} hold, {counts['refuted']} are refuted and"
    f" {counts['open']} are open."
  )
  yield ""
  yield from _table(
    ["", "difference in `kl_class` from `baseline`", "measured", ""],
    [[x.number, x.text, x.measured, f"**{x.verdict}**"] for x in found],
  )
  for dial in (100, 10):
    yield from _dial_lines(dial)
  yield from _further_lines()
  yield from _text_lines()


VERDICTS = ("holds", "refuted", "open")


def _dial_lines(dial: int) -> Iterator[str]:
  """Renders the tables of a dial."""
  runs = read(f"dial-{dial}")
  seeds = len(runs[BASELINE, 1500, "kl_class"])
  arms = [arm for arm in ARMS if (arm, 1500, "kl_class") in runs]
  yield ""
  yield f"## {dial} % of the words have synonyms, {seeds} seeds"
  yield ""
  yield (
    "`baseline`, and differences from it; bold where the interval of 99.5 %"
    " excludes 0. `kl_class` at the optimum of each loss is computed, not"
    " trained."
  )
  yield ""
  rows = []
  for arm in (BASELINE, *arms):
    cells = [
      _cell(compare(runs, arm, step, "kl_class"), arm)
      for step in CHECKPOINTS.values()
    ]
    best = 0.0 if arm == BASELINE else optimum(arm, dial, seeds)
    rows.append([f"`{arm}`", *cells, f"{best:.4f}".replace("inf", "∞")])
  heads = ["`kl_class`", *(f"at step {x:,}" for x in CHECKPOINTS.values())]
  yield from _table([*heads, "optimum"], rows)
  yield ""
  yield "Other measures at the end:"
  yield ""
  others = {k: v for k, v in MEASURES.items() if k != "kl_class"}
  yield from _table(
    ["", *(head for head, _ in others.values())],
    [
      [
        f"`{arm}`",
        *(
          _cell(compare(runs, arm, 1500, name, x), arm, 4 if x == 1 else 1)
          for name, (_, x) in others.items()
        ),
      ]
      for arm in (BASELINE, *arms)
    ],
  )
  yield ""
  low, *_, high = sorted(100 * runs["hc", 1500, CORRECTED])
  mean = 100 * runs["hc", 1500, CORRECTED].mean()
  yield (
    f"`hc` corrected {mean:.1f} % of the slots ({low:.1f} to {high:.1f} by"
    " language), averaged over the run."
  )


def _cell(x: Difference, arm: str, digits: int = 4) -> str:
  if arm == BASELINE:
    return f"{x.mean:.{digits}f}"
  return f"**{x.text(digits)}**" if x.is_evidence else x.text(digits)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
  lines = [heads, ["---"] * len(heads), *rows]
  return [f"| {' | '.join(line)} |" for line in lines]


# Studies that were made in the time that remained: title and measure.
FURTHER = {
  "repeated": ("2,000 lines, repeated", "kl_class"),
  "b2": ("`optim.b2=0.999`", "kl_class"),
  "electra": ("ELECTRA, `discriminator_label` 1, 0.5 and 0", "auc_class"),
}


def _further_lines() -> Iterator[str]:
  for name, (title, measure) in FURTHER.items():
    runs = read(name)
    yield ""
    yield f"## {title}"
    yield ""
    if not runs:
      yield "Not made: there was no time."
      continue
    arms = list(dict.fromkeys(arm for arm, _, _ in runs))
    seeds = len(runs[BASELINE, 1500, measure])
    rows = [
      [
        f"`{arm}`",
        *(
          _cell(compare(runs, arm, step, measure), arm)
          for step in CHECKPOINTS.values()
        ),
      ]
      for arm in arms
    ]
    yield f"`{measure}`, {seeds} seeds, the dial at 100:"
    yield ""
    heads = ["", *(f"at step {x:,}" for x in CHECKPOINTS.values())]
    yield from _table(heads, rows)


def _text_lines() -> Iterator[str]:
  runs, step = read("text"), 300
  yield ""
  yield "## Real text"
  yield ""
  if not runs:
    yield "Not made: there was no time."
    return
  seeds = len(runs[BASELINE, step, "mlm"])
  yield f"MiniLM with its trained head, {seeds} seeds of {step} steps:"
  yield ""
  arms = list(dict.fromkeys(arm for arm, _, _ in runs))
  yield from _table(
    ["", *(f"`{arm}`" for arm in arms)],
    [
      [head, *(_cell(compare(runs, x, step, name), x, digits) for x in arms)]
      for name, (head, digits) in TEXT_MEASURES.items()
      if (BASELINE, step, name) in runs
    ],
  )


def numbers() -> dict[str, object]:
  """Returns the numbers of the pages: `d100.end.hc.kl_class`, for example."""
  pages: dict[str, object] = {}
  for name, prefix in (("dial-100", "d100"), ("dial-10", "d10")):
    pages[prefix] = {
      when: _by_arm(read(name), step, MEASURES)
      for when, step in CHECKPOINTS.items()
    }
  for name in FURTHER:
    pages[name] = {
      when: _by_arm(read(name), step, ("kl_class", "auc_class"))
      for when, step in CHECKPOINTS.items()
    }
  pages["text"] = _by_arm(read("text"), 300, TEXT_MEASURES)
  return pages


def _by_arm(
  runs: Runs, step: int, measures: Sequence[str]
) -> dict[str, dict[str, str]]:
  """Returns the texts of all arms and measures at a step."""
  texts: dict[str, dict[str, str]] = {}
  for arm, found, measure in runs:
    if found == step and measure in measures:
      x = compare(runs, arm, step, measure)
      text = f"{x.mean:.4f}" if arm == BASELINE else x.text()
      texts.setdefault(arm, {})[measure] = text
  return texts


if __name__ == "__main__":
  OUT.write_text(render())
