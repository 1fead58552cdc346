"""A task of invented words: texts with a good word or a bad word."""

import pathlib
import random

from support import runs
from support.texts import write_lines
from truenegs_jax.data.tokenizer import SPECIALS

WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]
GOOD, BAD = WORDS[:10], WORDS[10:20]


def write_vocabulary(folder: pathlib.Path) -> pathlib.Path:
  """Writes the vocabulary of the words; returns its file."""
  path = folder / "vocab.txt"
  path.write_text("\n".join([*SPECIALS, *WORDS]) + "\n")
  return path


def write_files(folder: pathlib.Path) -> pathlib.Path:
  """Writes 400 rows to train on, as CSV, and 80 as JSON lines."""
  rng = random.Random(0)
  rows = []
  for _ in range(480):
    words = rng.choices(WORDS[20:], k=rng.randrange(1, 12))
    good = rng.random() < 0.5
    words.insert(
      rng.randrange(len(words) + 1), rng.choice(GOOD if good else BAD)
    )
    rows.append((" ".join(words), "good" if good else "bad"))
  lines = [f'"{text}",{label}\n' for text, label in rows[:400]]
  (folder / "train.csv").write_text("text,label\n" + "".join(lines))
  records = [{"text": text, "label": label} for text, label in rows[400:]]
  write_lines(folder / "dev.jsonl", records)
  return folder


def config_values(vocab: pathlib.Path, folder: pathlib.Path) -> dict:
  """Returns values of finetune_own for a tiny network drawn at random."""
  return {
    **runs.ONE_LAYER,
    "data.vocab": str(vocab),
    "length": 16,  # one length to compile for
    "log.every_steps": 5,
    "finetune.train": f"{folder}/train.csv",
    "finetune.dev": f"{folder}/dev.jsonl",
    "finetune.text": "text",
    "optim.lr": 3e-3,
  }
