"""Summarizes results.jsonl: tables, and what of the predictions holds.

  python studies/teacher/summary.py

Differences from `baseline` are paired by language, with the half width of their
95 % interval (Student's t). docs/conf.py puts `numbers` into a page.
"""

import json
from collections.abc import Iterable, Sequence
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
  """Means and differences, paired by language."""

  def __init__(self, values: Values):
    self.values = values
    self.dials = sorted({dial for dial, *_ in values}, reverse=True)

  def list_arms(self, dial: int) -> list[str]:
    """Returns the arms, in the order in which they ended."""
    return list(dict.fromkeys(arm for d, arm, *_ in self.values if d == dial))

  def get(
    self,
    dial: int,
    *arms: str,
    measure: str = "kl_word",
    moment: float = 1.0,
  ) -> np.ndarray:
    """Returns the values of arms, f64 `[arms, languages that all have]`."""
    found = [self.values[dial, arm, moment, measure] for arm in arms]
    languages = sorted(set.intersection(*map(set, found)))
    return np.array([[x[language] for language in languages] for x in found])

  def make_table(self, dial: int, measure: str) -> str:
    """Returns a Markdown table with a row for each arm."""
    lines = [
      f"| `{measure}` | " + " | ".join(MOMENTS.values()) + " |",
      "| --- " * (1 + len(MOMENTS)) + "|",
    ]
    for arm in self.list_arms(dial):
      cells = []
      for moment in MOMENTS:
        base, values = self.get(
          dial, "baseline", arm, measure=measure, moment=moment
        )
        is_base = arm == "baseline"
        cells.append(f"{values.mean():.4f}" if is_base else show(values - base))
      lines.append(f"| `{arm}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)

  def factors(self, dial: int) -> dict[int, float]:
    """Returns by how much the truth divides `kl_word`, by language."""
    base, truth = (
      self.values[dial, arm, 1.0, "kl_word"]
      for arm in ("baseline", "truth_100")
    )
    return {x: base[x] / truth[x] for x in base.keys() & truth.keys()}

  def compare_dials(self) -> np.ndarray:
    """Returns by how much more at the dial 100 than at 10, `[languages]`."""
    factors, factors_10 = self.factors(100), self.factors(10)
    languages = sorted(factors.keys() & factors_10.keys())
    return np.array([factors[x] / factors_10[x] for x in languages])

  def judge(self) -> list[tuple[str, str, str]]:
    """Returns number, verdict and figures of each prediction.

    Each claims that one or several values are above 0.
    """
    return [
      (number, judge(values), ", ".join(map(show, values)))
      for number, values in self.list_claims().items()
    ]

  def list_claims(self) -> dict[str, Sequence[np.ndarray]]:
    """Returns the values that are above 0 if a prediction holds."""
    arms = self.list_arms(100)
    word = {arm: self.get(100, "baseline", arm) for arm in arms}
    gain = {arm: base - values for arm, (base, values) in word.items()}
    early, early_truth = self.get(100, "baseline", "truth_100", moment=0.1)
    base, truth = word["truth_100"]
    hc, truth_hc = self.get(100, "hc", "truth_hc")
    longer, much = self.get(100, "longer", "much")
    ceiling, *in_class = (
      np.subtract(*self.get(100, "baseline", arm, measure="kl_class"))
      for arm in ("truth_100", "balanced", "model")
    )
    more = np.log(self.compare_dials())
    claims: dict[str, Sequence[np.ndarray]] = {
      "1": (base / 2 - truth, 0.75 * early - early_truth),
      "2": (gain["truth_100"] / 3 - gain["truth_30"],),
      "3": (truth_hc - hc,),
      "4": (-gain["truth_t2"],),
      "5": (gain["much"], longer - much, gain["much"] - gain["truth_100"] / 2),
      "6": (-gain["half"],),
      "7": (np.log(1.5) - more, np.log(1.5) + more),
      "8": tuple(ceiling / 4 - x for x in in_class),
    }
    if "truth_10" in arms:
      shades = {
        arm: np.subtract(*self.get(100, "baseline", arm, "truth_10")[:2])
        for arm in ("truth_100", "truth_10", "truth_60")
      }
      ceiling = shades["truth_100"]
      claims["15"] = (
        shades["truth_10"] - 0.15 * ceiling,
        shades["truth_60"] - 0.7 * ceiling,
      )
      claims["16"] = (
        -gain["truth_t05"],
        ceiling / 2 - gain["truth_t08"],
        ceiling / 2 - gain["truth_t125"],
      )
    return claims


def judge(differences: Iterable[np.ndarray]) -> str:
  """Returns whether differences are above 0 by their intervals."""
  verdicts = set()
  for difference in differences:
    mean, half_width = estimate_mean([*difference])
    verdict = "refuted" if mean + half_width < 0 else "open"
    verdicts.add("holds" if mean - half_width > 0 else verdict)
  return next(x for x in ("refuted", "open", "holds") if x in verdicts)


def show(values: np.ndarray, *, digits: int = 4) -> str:
  """Formats a mean with the half width of its interval, if it has one."""
  mean, half_width = estimate_mean([*values])
  interval = f" ± {half_width:.{digits}f}" if len(values) > 1 else ""
  return f"{mean:+.{digits}f}{interval}"


def numbers() -> dict[str, str]:
  """Returns the numbers of the documentation."""
  summary = Summary(read_results())
  arms = ("much", "balanced", "model", "truth_10", "truth_60")
  shares = {}
  for truth in ("30", "100"):
    for arm in set(arms) & set(summary.list_arms(100)):
      base, values, best = summary.get(100, "baseline", arm, f"truth_{truth}")
      share = (base - values).mean() / (base - best).mean()
      shares[f"share_{arm}_of_{truth}"] = f"{100 * share:.0f}"
  by_word = {
    f"word_{x}": f"{summary.get(100, x).mean():.4f}"
    for x in ("baseline", "longer", "half", "half_teacher", "much_teacher")
  }
  texts = {}
  for dial in summary.dials:
    by_language = summary.factors(dial)
    low, high = min(by_language.values()), max(by_language.values())
    texts[f"factor_{dial}"] = f"{low:.0f} to {high:.0f}"
    texts[f"languages_{dial}"] = str(len(by_language))
  verdicts = [f"{n} {verdict}" for n, verdict, _ in summary.judge()]
  return {
    **by_word,
    **shares,
    **texts,
    "dials": f"{np.exp(np.log(summary.compare_dials()).mean()):.1f}",
    "word": summary.make_table(100, "kl_word"),
    "class": summary.make_table(100, "kl_class"),
    "judged": "; ".join(verdicts),
  }


def main() -> None:
  summary = Summary(read_results())
  for dial in summary.dials:
    print(f"\n{dial} % of the words have synonyms\n")
    tables = (summary.make_table(dial, x) for x in MEASURES)
    print("\n\n".join(tables))
  print()
  for number, verdict, figures in summary.judge():
    print(f"{number}: {verdict} ({figures}, above 0)")


if __name__ == "__main__":
  main()
