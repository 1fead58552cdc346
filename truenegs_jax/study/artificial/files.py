"""Writes an artificial language as files that training reads.

text.txt              lines to train on, each a document (data.sources)
held_out.txt          other lines, to measure models on
vocab.txt             special tokens, then the words (data.vocab)
lexicon-P-R.tsv       pairs of precision P % and recall R %
                      (negatives.sources="pairs path=FILE")
language.npz          the probabilities
"""

import itertools
import pathlib
from collections.abc import Iterable

import numpy as np

from truenegs_jax.data.tokens.tokenizer import SPECIALS
from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.study.artificial.language import (
  Language,
  draw_lexicon,
  sample_lines,
)

TEXT, HELD_OUT, VOCABULARY = "text.txt", "held_out.txt", "vocab.txt"
LANGUAGE = "language.npz"
LEXICON = "lexicon-{:.0f}-{:.0f}.tsv"
ROWS, LENGTH = 100_000, 14  # lines to train on, and words of a line
PERFECT = LEXICON.format(100, 100)
NUM_HELD_OUT = 2_048  # lines
# Precision and recall of the lexicons of a language with synonyms, in percent.
LEXICONS = tuple(itertools.product((100, 80, 50, 25), (100, 50, 25)))
FIELDS = ("start_C", "next_CxC", "class_V", "share_V")


def vocabulary(language: Language) -> tuple[str, ...]:
  """Returns the tokens: the id of word `v` is `len(SPECIALS) + v`."""
  return (*SPECIALS, *language.names)


def write_language(
  folder: pathlib.Path,
  language: Language,
  *,
  seed: int,
  rows: int = ROWS,
  length: int = LENGTH,
  lexicons: Iterable[tuple[float, float]] = LEXICONS,
) -> None:
  """Writes a language with `rows` lines of `length` words to train on.

  Args:
    folder: must not exist yet; it appears once it is complete.
    seed: of the lines and lexicons.
    lexicons: precision and recall of each, in percent; a language without
      synonyms gets none.

  Raises:
    InputError: the folder exists, or a lexicon is impossible.
    DiskError: the folder cannot be written.
  """
  if folder.exists():
    raise InputError(
      f"'{folder}' exists. Remove it, or choose another folder with --folder."
    )
  contents = {VOCABULARY: "".join(f"{x}\n" for x in vocabulary(language))}
  names_V = np.array(language.names)
  for precision, recall in lexicons if language.synonym_share else ():
    pairs_Nx2 = draw_lexicon(
      language, precision=precision / 100, recall=recall / 100, seed=seed
    )
    lines = map("\t".join, names_V[pairs_Nx2])
    contents[LEXICON.format(precision, recall)] = "\n".join(lines) + "\n"
  for name, count, stream in ((TEXT, rows, 0), (HELD_OUT, NUM_HELD_OUT, 1)):
    words_RxL = sample_lines(
      language, rows=count, length=length, seed=[seed, stream]
    )
    lines = map(" ".join, names_V[words_RxL].tolist())
    contents[name] = "\n\n".join(lines) + "\n"
  with files.atomic_folder(folder) as new, files.disk_errors(folder):
    for name, content in contents.items():
      (new / name).write_text(content)
    np.savez(new / LANGUAGE, **{x: getattr(language, x) for x in FIELDS})
    for path in (*new.iterdir(), new):
      files.sync(path)


def read_language(folder: pathlib.Path) -> tuple[Language, np.ndarray]:
  """Returns a language and its held-out lines, int64 `[R, L]`.

  Raises:
    InputError: a file is missing.
  """
  for name in (LANGUAGE, HELD_OUT):
    if not (folder / name).is_file():
      raise InputError(
        f"'{folder}' is no artificial language: it has no {name}. Run `python"
        " -m truenegs_jax.study.artificial --folder=FOLDER` to write one."
      )
  with np.load(folder / LANGUAGE) as arrays:
    language = Language(**{name: arrays[name] for name in FIELDS})
  number = {name: i for i, name in enumerate(language.names)}
  lines = (folder / HELD_OUT).read_text().split("\n\n")
  return language, np.array([[number[x] for x in s.split()] for s in lines])
