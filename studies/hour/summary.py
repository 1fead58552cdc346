"""Summarizes studies/hour/results.jsonl: a row for each side and duration.

  python studies/hour/summary.py [RESULTS]

A line of the file is one that measure.py or detect.py printed, or the scores of
finetune_glue of the same model (`cola`, `sst2`). Its model is a folder
SIDE-MINUTES-SEED, and below it at-MINUTES of a model on the way. Values are
means over seeds, with the least and the greatest of several.
"""

import collections
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).with_name("results.jsonl")
NAME = r"(\w+)-(\d+)-(\d+)(?:/at-([\d.]+))?(?:/|$)"
COLUMNS = ("32", "128", "blimp", "auc", "detected_blimp", "cola", "sst2")


class Measured(NamedTuple):
  """Measures of a model."""

  side: str
  planned: int  # minutes of the run
  seed: int
  minutes: float  # after which the model was saved
  values: Mapping[str, float]  # by COLUMNS


def read_results(path: Path) -> Iterator[Measured]:
  """Yields the measures of each line."""
  for line in path.read_text("utf-8").splitlines():
    record = json.loads(line)
    match = re.search(NAME, record["model"])
    assert match, record["model"]
    side, planned, seed, at = match.groups()
    minutes = float(at or planned)
    yield Measured(side, int(planned), int(seed), minutes, flatten(record))


def flatten(record: Mapping[str, Any]) -> dict[str, float]:
  """Returns the values of a line by COLUMNS."""
  values = {k: loss for k, (loss, _) in record.get("windows", {}).items()}
  if "auc" in record:  # of a discriminator
    values["auc"] = record["auc"]["128"][0]
  if "blimp" in record:
    column = "detected_blimp" if "auc" in record else "blimp"
    values[column] = record["blimp"][0]
  return values | {k: record[k] for k in ("cola", "sst2") if k in record}


def main(path: str = str(RESULTS)) -> None:
  groups = collections.defaultdict(lambda: collections.defaultdict(list))
  for x in read_results(Path(path)):
    if x.minutes == x.planned:
      for column, value in x.values.items():
        groups[x.side, x.planned][column].append(value)
  measured = [
    x for x in COLUMNS if any(x in group for group in groups.values())
  ]
  print("| side, minutes |", " | ".join(measured), "|")
  print("| --- " * (len(measured) + 1) + "|")
  for (side, planned), columns in sorted(groups.items()):
    cells = [describe(columns[x]) for x in measured]
    print(f"| {side}, {planned} |", " | ".join(cells), "|")


def describe(values: Sequence[float]) -> str:
  """Returns the mean of values, with the least and the greatest."""
  if not values:
    return ""
  mean = sum(values) / len(values)
  if len(values) == 1:
    return f"{mean:.2f}"
  return f"{mean:.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
  main(*sys.argv[1:])
