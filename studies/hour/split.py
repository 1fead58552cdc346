"""Splits a text: its first 98 % of documents to train on, the rest to report.

  python studies/hour/split.py TEXT FOLDER

A document is a paragraph of lines. Writes FOLDER/train.txt and FOLDER/test.txt.
"""

import sys
from pathlib import Path

TRAINED = 0.98


def main(text: str, folder: str) -> None:
  documents = [
    x for x in Path(text).read_text("utf-8").split("\n\n") if x.strip()
  ]
  stop = round(TRAINED * len(documents))
  parts = {"train": documents[:stop], "test": documents[stop:]}
  Path(folder).mkdir(parents=True, exist_ok=True)
  for name, part in parts.items():
    path = Path(folder, f"{name}.txt")
    path.write_text("\n\n".join(part) + "\n", "utf-8")
    print(f"'{path}': {len(part):,} documents")


if __name__ == "__main__":
  main(*sys.argv[1:])
