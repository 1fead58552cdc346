"""Draws rows of SST-2 to train on, to choose settings and to report.

  python studies/small_models/sst2.py FOLDER_OF_SST-2

Writes train.csv (3,000 rows of the training set), tune.csv (2,000 others) and
dev.csv (the dev set) into the current folder.
"""

import csv
import pathlib
import random
import sys


def read_rows(path: pathlib.Path) -> list[list[str]]:
  """Reads sentences and labels of a file of GLUE, without its header."""
  lines = path.read_text(encoding="utf-8").splitlines()[1:]
  return [[text.strip() for text in line.split("\t")] for line in lines]


def main(folder: str) -> None:
  """Writes the three files."""
  rows = read_rows(pathlib.Path(folder) / "train.tsv")
  random.Random(0).shuffle(rows)
  parts = {
    "train": rows[:3000],
    "tune": rows[3000:5000],
    "dev": read_rows(pathlib.Path(folder) / "dev.tsv"),
  }
  for name, part in parts.items():
    with open(f"{name}.csv", "w", encoding="utf-8", newline="") as file:
      csv.writer(file).writerows([("sentence", "label"), *part])


if __name__ == "__main__":
  main(sys.argv[1])
