"""Summarizes results.jsonl: tables, and what of the predictions holds.

  python studies/teacher/summary.py

Differences from `baseline` are paired by language, with the half width of their
95 % interval (Student's t). docs/conf.py puts `numbers` into a page.
"""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from truenegs_jax.stats.intervals import estimate_mean

RESULTS = Path(__file__).with_name("results.jsonl")
MOMENTS = {0.1: "a tenth", 0.334: "a third", 1.0: "the end"}
MEASURES = ("kl_word", "kl_class", "probe_new_words")
# Dial, arm, moment and measure -> value by language.
Values = dict[tuple[int, str, float, str], dict[int, float]]


def read_results() -> Values:
  """Returns all values."""
  values: Values = {}
  for line in RESULTS.read_text("utf-8").splitlines():
    x = json.loads(line)
    for measure in MEASURES:
      key = x["dial"], x["arm"], x["share"], measure
      values.setdefault(key, {})[x["language"]] = x[measure]
  return values


class Summary:
  """Means and paired differences, over the languages of which all is known."""

  def __init__(self, values: Values):
    self.values = values
    self.dials = sorted({dial for dial, *_ in values}, reverse=True)

  def languages(self, dial: int) -> list[int]:
    """Returns the languages in which all arms have ended."""
    keys = [x for x in self.values if x[0] == dial]
    return sorted(set.intersection(*(set(self.values[x]) for x in keys)))

  def get(
    self, dial: int, arm: str, measure: str = "kl_word", moment: float = 1.0
  ) -> np.ndarray:
    """Returns the values of an arm, f64 `[languages]`."""
    by_language = self.values[dial, arm, moment, measure]
    return np.array([by_language[x] for x in self.languages(dial)])

  def make_table(self, dial: int, measure: str) -> str:
    """Returns a Markdown table with a row for each arm."""
    lines = [
      f"| `{measure}` | " + " | ".join(MOMENTS.values()) + " |",
      "| --- " * (1 + len(MOMENTS)) + "|",
    ]
    for arm in dict.fromkeys(arm for d, arm, *_ in self.values if d == dial):
      cells = []
      for moment in MOMENTS:
        values = self.get(dial, arm, measure, moment)
        base = self.get(dial, "baseline", measure, moment)
        is_base = arm == "baseline"
        cells.append(f"{values.mean():.4f}" if is_base else show(values - base))
      lines.append(f"| `{arm}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)

  def judge(self) -> list[tuple[str, str, str]]:
    """Returns number, verdict and figures of each prediction.

    What it says is that one or several differences are above 0.
    """
    word = {arm: self.get(100, arm) for d, arm, *_ in self.values if d == 100}
    gain = {arm: word["baseline"] - x for arm, x in word.items()}
    early = {
      arm: self.get(100, arm, moment=0.1) for arm in ("baseline", "truth_100")
    }
    base_class = self.get(100, "baseline", "kl_class")
    in_class = {
      arm: base_class - self.get(100, arm, "kl_class")
      for arm in ("balanced", "model", "truth_100")
    }
    claims: dict[str, Iterable[np.ndarray]] = {
      "1": (
        word["baseline"] / 2 - word["truth_100"],
        0.75 * early["baseline"] - early["truth_100"],
      ),
      "2": (gain["truth_100"] / 3 - gain["truth_30"],),
      "3": (word["truth_hc"] - word["hc"],),
      "4": (-gain["truth_t2"],),
      "5": (
        gain["much"],
        word["longer"] - word["much"],
        gain["much"] - gain["truth_100"] / 2,
      ),
      "6": (-gain["half"],),
      "8": (
        in_class["truth_100"] / 4 - in_class["balanced"],
        in_class["truth_100"] / 4 - in_class["model"],
      ),
    }
    return [
      (number, judge(differences), ", ".join(map(show, differences)))
      for number, differences in claims.items()
    ]


def judge(differences: Iterable[np.ndarray]) -> str:
  """Returns whether differences are above 0 by their intervals."""
  verdicts = set()
  for difference in differences:
    mean, half_width = estimate_mean([*difference])
    verdict = "refuted" if mean + half_width < 0 else "open"
    verdicts.add("holds" if mean - half_width > 0 else verdict)
  return next(x for x in ("refuted", "open", "holds") if x in verdicts)


def show(values: np.ndarray) -> str:
  """Formats a mean with the half width of its interval, if it has one."""
  mean, half_width = estimate_mean([*values])
  interval = f" ± {half_width:.4f}" if len(values) > 1 else ""
  return f"{mean:+.4f}{interval}"


def numbers() -> dict[str, str]:
  """Returns the numbers of the documentation."""
  summary = Summary(read_results())
  factor = summary.get(100, "baseline") / summary.get(100, "truth_100")
  arms = ("much", "balanced", "model", "truth_30", "truth_100")
  gain = {
    x: (summary.get(100, "baseline") - summary.get(100, x)).mean() for x in arms
  }
  shares = {
    f"share_{x}_of_{truth}": f"{100 * gain[x] / gain[f'truth_{truth}']:.0f}"
    for x in arms[:3]
    for truth in ("30", "100")
  }
  by_word = {
    f"word_{x}": f"{summary.get(100, x).mean():.4f}"
    for x in ("baseline", "longer", "half", "half_teacher", "much_teacher")
  }
  return (
    by_word
    | shares
    | {
      "languages": str(len(summary.languages(100))),
      "word": summary.make_table(100, "kl_word"),
      "class": summary.make_table(100, "kl_class"),
      "factor": f"{factor.min():.0f} to {factor.max():.0f}",
      "judged": "; ".join(
        f"{n} {verdict}" for n, verdict, _ in summary.judge()
      ),
    }
  )


def main() -> None:
  summary = Summary(read_results())
  for dial in summary.dials:
    count = len(summary.languages(dial))
    print(f"\n{dial} % of the words have synonyms, {count} languages\n")
    if count:
      tables = (summary.make_table(dial, x) for x in MEASURES)
      print("\n\n".join(tables))
  print()
  for number, verdict, figures in summary.judge():
    print(f"{number}: {verdict} ({figures}, above 0)")


if __name__ == "__main__":
  main()
