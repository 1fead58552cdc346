"""Summarizes the study of corrections: predictions, tables, numbers of pages.

  python studies/corrections/summarize.py   # writes RESULT.md

All numbers come from results/*.csv and optima.json. docs/conf.py puts those of
`numbers` into the pages, and docs/images/corrections.py draws a figure of them.
"""

import collections
import csv
import functools
import json
import math
import pathlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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
# Studies that were made in the time that remained: title and measure.
FURTHER = {
  "repeated": ("2,000 lines, repeated", "kl_class"),
  "b2": ("`optim.b2=0.999`", "kl_class"),
  "electra": ("ELECTRA, `discriminator_label` 1, 0.5 and 0", "auc_class"),
}
DIALS = (100, 10)
HEAD_STEPS, TEXT_STEPS = 3000, 300
STEP_HEADS = [f"at step {x:,}" for x in CHECKPOINTS.values()]
Runs = dict[tuple[str, int, str], np.ndarray]  # arm, step, measure -> by seed


class Difference(NamedTuple):
  """A mean over seeds, or of differences that are paired by seed."""

  mean: float
  half: float  # half its 95 % interval (Student's t)
  is_evidence: bool = False  # whether the interval of EVIDENCE excludes 0

  def text(self, digits: int = 4) -> str:
    """Returns "+.0123 ± .0045", with spaces that do not break."""
    half = _plain(self.half, digits)
    return (
      f"{_signed(self.mean, digits)}\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{half}"
    )

  def verdict(self, low: float, high: float) -> str:
    """Compares the interval with a predicted range."""
    bottom, top = self.mean - self.half, self.mean + self.half
    if low < bottom and top < high:
      return "holds"
    return "refuted" if top < low or bottom > high else "open"


def _signed(value: float, digits: int) -> str:
  return ("−" if value < 0 else "+") + _plain(abs(value), digits)


def _plain(value: float, digits: int) -> str:
  return f"{value:.{digits}f}".removeprefix("0") if digits else f"{value:.0f}"


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
    difference = compare(runs, arm, CHECKPOINTS[when], "kl_class")
    yield Prediction(
      number,
      f"`{arm}`: {text}",
      difference.text(),
      difference.verdict(low, high),
    )
  end = CHECKPOINTS["end"]
  harms = [
    x["hc", end, "kl_class"] - x[BASELINE, end, "kl_class"]
    for x in (runs, other)
  ]
  gap = stats.ttest_ind(*harms, equal_var=False)
  low, high = gap.confidence_interval()
  harm = Difference(float(harms[0].mean() - harms[1].mean()), (high - low) / 2)
  yield Prediction(
    "6",
    "`hc`: more harm at the dial 100 than at 10",
    harm.text(),
    harm.verdict(0, math.inf),
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
  pages = numbers()
  lines = [
    "# Result of the study of corrections",
    "`summarize.py` wrote this page from `results/` and `optima.json`. [The"
    " protocol](README.md) came first; [Does it"
    " help?](../../docs/explanation/does_it_help.md) says what it means. ± is"
    " half a 95 % interval of a mean over seeds, paired by seed.",
    "## Which predictions held",
    pages["verdict"],
    pages["predictions"],
  ]
  for dial in DIALS:
    shown = pages[f"d{dial}"]
    lines += [
      f"## {dial} % of the words have synonyms, {shown['seeds']} seeds",
      "`baseline`, and differences from it; bold where the interval of 99.5 %"
      " excludes 0. The last columns are `kl_class` at the end, and at the"
      " optimum of each loss, which is computed and not trained.",
      shown["way"],
      "Other measures at the end:",
      shown["others"],
      f"`hc` corrected {shown['corrected']} % of the slots"
      f" ({shown['corrected_range']} by language), averaged over the run.",
    ]
  for name, (title, _) in FURTHER.items():
    lines += [f"## {title}", pages[name]["way"]]
  lines += [
    "## Real text",
    f"MiniLM with its trained head (held-out loss {pages['text']['head']}"
    " nats, a quarter of the tokens masked), then"
    f" {pages['text']['seeds']} seeds of {TEXT_STEPS} steps:",
    pages["text"]["measures"],
  ]
  return "\n\n".join(lines) + "\n"


def numbers() -> dict[str, Any]:
  """Returns the numbers and tables of the pages: `d100.end.hc.kl_class`."""
  judged = [*predictions()]
  counts = collections.Counter(x.verdict for x in judged)
  rows = [[x.number, x.text, x.measured, f"**{x.verdict}**"] for x in judged]
  heads = ["", "difference in `kl_class` from `baseline`", "measured", ""]
  return {
    "verdict": f"Of {len(judged)} parts of the six predictions,"
    f" {counts['holds']} hold; refuted: {counts['refuted']}, open:"
    f" {counts['open']}.",
    "predictions": _table(heads, rows),
    **{f"d{dial}": _dial_numbers(dial) for dial in DIALS},
    **{name: _further_numbers(name) for name in FURTHER},
    "text": _text_numbers(),
  }


def _dial_numbers(dial: int) -> dict[str, Any]:
  runs = read(f"dial-{dial}")
  end = CHECKPOINTS["end"]
  seeds = len(runs[BASELINE, end, "kl_class"])
  others = {k: v for k, v in MEASURES.items() if k != "kl_class"}
  optima = {arm: optimum(arm, dial, seeds) for arm in ARMS}
  way, table = [], []
  for arm in (BASELINE, *ARMS):
    cells = [
      _cell(compare(runs, arm, step, "kl_class"), arm)
      for step in CHECKPOINTS.values()
    ]
    reached = _plain(runs[arm, end, "kl_class"].mean(), 4)
    best = _plain(optima.get(arm, 0.0), 4)
    way.append([f"`{arm}`", *cells, reached, best])
    cells = [
      _cell(compare(runs, arm, end, name, x), arm, 4 if x == 1 else 1)
      for name, (_, x) in others.items()
    ]
    table.append([f"`{arm}`", *cells])
  share_S = 100 * runs["hc", end, CORRECTED]
  exact_S = 100 * runs[BASELINE, end, "exact_false_negatives"]
  harm_S = runs["hc", end, "kl_class"] - runs[BASELINE, end, "kl_class"]
  return {
    "seeds": seeds,
    **{k: _by_arm(runs, v, MEASURES) for k, v in CHECKPOINTS.items()},
    "optimum": {arm: _plain(x, 4) for arm, x in optima.items()},
    "reached": _means(runs, end, "kl_class"),
    "words": _means(runs, end, "kl_word"),
    "percent": {k: _percent(runs, v) for k, v in CHECKPOINTS.items()},
    "exact_false_negatives": f"{exact_S.mean():.0f}",
    "false_negatives_by_language": ", ".join(f"{x:.1f}" for x in exact_S),
    "harm_by_language": ", ".join(_signed(x, 4) for x in harm_S),
    "corrected": f"{share_S.mean():.1f}",
    "corrected_range": f"{share_S.min():.1f} to {share_S.max():.1f}",
    "way": _table(["`kl_class`", *STEP_HEADS, "reached", "optimum"], way),
    "others": _table(["", *(x for x, _ in others.values())], table),
  }


def _means(runs: Runs, step: int, measure: str) -> dict[str, str]:
  """Returns the means over seeds of all arms."""
  return {
    arm: _plain(runs[arm, step, measure].mean(), 4) for arm in (BASELINE, *ARMS)
  }


def _percent(runs: Runs, step: int) -> dict[str, str]:
  """Returns by how much `kl_class` changes, as a mean of ratios of seeds."""
  before_S = runs[BASELINE, step, "kl_class"]
  ratios = {arm: runs[arm, step, "kl_class"] / before_S for arm in ARMS}
  return {
    arm: _signed(100 * float(ratio_S.mean() - 1), 0)
    for arm, ratio_S in ratios.items()
  }


def _further_numbers(name: str) -> dict[str, Any]:
  runs, measure = read(name), FURTHER[name][1]
  if not runs:
    return {"way": "Not run: there was no time."}
  rows = [
    [
      f"`{arm}`",
      *(
        _cell(compare(runs, arm, step, measure), arm)
        for step in CHECKPOINTS.values()
      ),
    ]
    for arm in dict.fromkeys(arm for arm, _, _ in runs)
  ]
  return {
    **{k: _by_arm(runs, v, [measure]) for k, v in CHECKPOINTS.items()},
    "way": _table([f"`{measure}`", *STEP_HEADS], rows),
  }


def _text_numbers() -> dict[str, Any]:
  runs = read("text")
  arms = [BASELINE, "hc", "balanced"]
  rows = [
    [
      head,
      *(_cell(compare(runs, x, TEXT_STEPS, name), x, digits) for x in arms),
    ]
    for name, (head, digits) in TEXT_MEASURES.items()
  ]
  [head_loss] = runs["head", HEAD_STEPS, "mlm"]
  return {
    "head": f"{head_loss:.2f}",
    "seeds": len(runs[BASELINE, TEXT_STEPS, "mlm"]),
    **_by_arm(runs, TEXT_STEPS, TEXT_MEASURES),
    "measures": _table(["", *(f"`{arm}`" for arm in arms)], rows),
  }


def _by_arm(
  runs: Runs, step: int, measures: Collection[str]
) -> dict[str, dict[str, str]]:
  """Returns the texts of all arms and measures at a step."""
  texts: dict[str, dict[str, str]] = {}
  for arm, at, measure in runs:
    if at == step and measure in measures:
      x = compare(runs, arm, step, measure)
      texts.setdefault(arm, {})[measure] = _cell(x, arm, bold=False)
  return texts


def _cell(
  x: Difference, arm: str, digits: int = 4, *, bold: bool = True
) -> str:
  if arm == BASELINE:
    return _plain(x.mean, digits)
  mark = "**" if x.is_evidence and bold else ""
  return f"{mark}{x.text(digits)}{mark}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  lines = [heads, ["---"] * len(heads), *rows]
  return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
  OUT.write_text(render())
