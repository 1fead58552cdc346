"""Summarizes studies/teacher/results.jsonl, and judges the predictions.

  python studies/teacher/summary.py [RESULTS]

Differences from `baseline` are paired by language, with the half width of their
95 % interval (Student's t).
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from truenegs_jax.stats.intervals import estimate_mean

RESULTS = Path(__file__).with_name("results.jsonl")
MOMENTS = {0.1: "a tenth", 0.334: "a third", 1.0: "the end"}
MEASURES = ("kl_word", "kl_class", "probe_new_words")
# Of a network: dial, arm, moment and measure; each has a value by language.
Key = tuple[int, str, float, str]
Values = dict[Key, dict[int, float]]


def read_results(path: Path) -> Values:
  """Returns the values of complete languages."""
  values: Values = {}
  for line in path.read_text("utf-8").splitlines():
    x = json.loads(line)
    for measure in MEASURES:
      key = x["dial"], x["arm"], x["share"], measure
      values.setdefault(key, {})[x["language"]] = x[measure]
  return values


class Summary:
  """Means and paired differences."""

  def __init__(self, values: Values):
    self.values = values
    self.dials = sorted({dial for dial, *_ in values}, reverse=True)

  def languages(self, dial: int) -> list[int]:
    """Returns the languages in which all arms have ended."""
    keys = [x for x in self.values if x[0] == dial]
    return sorted(set.intersection(*(set(self.values[x]) for x in keys)))

  def get(
    self, dial: int, arm: str, measure: str, moment: float = 1.0
  ) -> np.ndarray:
    """Returns the values of an arm, f64 `[languages]`."""
    by_language = self.values[dial, arm, moment, measure]
    return np.array([by_language[x] for x in self.languages(dial)])

  def arms(self, dial: int) -> Iterable[str]:
    """Returns the arms in the order in which they were trained."""
    return dict.fromkeys(arm for d, arm, *_ in self.values if d == dial)

  def print_table(self, dial: int, measure: str) -> None:
    """Prints a row for each arm."""
    count = len(self.languages(dial))
    print(f"\n`{measure}`, {dial} % of the words, {count} languages:\n")
    print("| arm |", " | ".join(MOMENTS.values()), "|")
    print("| --- " * (1 + len(MOMENTS)) + "|")
    for arm in self.arms(dial):
      cells = []
      for moment in MOMENTS:
        values = self.get(dial, arm, measure, moment)
        if arm == "baseline":
          cells.append(f"{values.mean():.4f}")
        else:
          base = self.get(dial, "baseline", measure, moment)
          cells.append(format_interval(values - base))
      print(f"| `{arm}` |", " | ".join(cells), "|")

  def judge(self) -> None:
    """Prints what of the protocol's predictions holds."""

    def word(arm: str, moment: float = 1.0, dial: int = 100) -> np.ndarray:
      return self.get(dial, arm, "kl_word", moment)

    gain = {arm: word("baseline") - word(arm) for arm in self.arms(100)}
    base = self.get(100, "baseline", "kl_class")
    in_class = {
      arm: base - self.get(100, arm, "kl_class")
      for arm in ("balanced", "model", "truth_100")
    }
    small = word("baseline", 0.1)
    claims: dict[str, Sequence[np.ndarray]] = {
      "1": (
        word("baseline") / 2 - word("truth_100"),
        0.75 * small - word("truth_100", 0.1),
      ),
      "2": (gain["truth_100"] / 3 - gain["truth_30"],),
      "3": (word("truth_hc") - word("hc"),),
      "4": (-gain["truth_t2"],),
      "5": (
        gain["much"],
        word("longer") - word("much"),
        gain["much"] - gain["truth_100"] / 2,
      ),
      "6": (-gain["half"],),
      "8": tuple(
        in_class["truth_100"] / 4 - in_class[x] for x in ("balanced", "model")
      ),
    }
    print()
    for name, differences in claims.items():
      verdicts = {judge(x) for x in differences}
      verdict = "holds"
      for worse in ("open", "refuted"):
        verdict = worse if worse in verdicts else verdict
      texts = ", ".join(map(format_interval, differences))
      print(f"{name}: {verdict} ({texts} above 0)")
    if 10 in self.dials:
      at_100, at_10 = (
        np.log(word("baseline", dial=x) / word("truth_100", dial=x))
        for x in (100, 10)
      )
      factors = np.exp([at_100.mean(), at_10.mean()])
      print(f"7: divided by {factors[0]:.2f} and {factors[1]:.2f}")


def judge(difference: np.ndarray) -> str:
  """Returns whether a difference is above 0 by its interval."""
  mean, half_width = estimate_mean([*difference])
  if mean - half_width > 0:
    return "holds"
  return "refuted" if mean + half_width < 0 else "open"


def format_interval(values: np.ndarray) -> str:
  """Formats a mean with the half width of its interval."""
  mean, half_width = estimate_mean([*values])
  return f"{mean:+.4f} ± {half_width:.4f}"


def main(path: str = str(RESULTS)) -> None:
  summary = Summary(read_results(Path(path)))
  for dial in summary.dials:
    for measure in MEASURES:
      summary.print_table(dial, measure)
  summary.judge()


if __name__ == "__main__":
  main(*sys.argv[1:])
