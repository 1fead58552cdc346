"""Draws artificial languages: a Markov chain over classes of synonyms.

  language = draw_language(0, synonym_share=0.5)
  words_RxL = sample_lines(language, rows=100, length=14, seed=1)

A line is a chain of classes, and each class shows one of its words, drawn by
probabilities that are the same in every context. Two words of a class can
therefore replace each other everywhere: they are true synonyms. Words are
numbers from 0; their names are in `Language.names`.

  write_language(folder, language, seed=0, rows=ROWS)

text.txt              lines to train on, each a document (data.sources)
held_out.txt          other lines, to measure models on
vocab.txt             special tokens, then the words (data.vocab)
lexicon-P-R.tsv       pairs of precision P % and recall R %
                      (negatives.sources="pairs path=FILE")
language.npz          the probabilities
"""

import dataclasses
import functools
import itertools
import pathlib

import numpy as np

from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import atomic_folder, disk_errors, sync

TEXT, HELD_OUT, VOCABULARY = "text.txt", "held_out.txt", "vocab.txt"
LANGUAGE = "language.npz"
LEXICON = "lexicon-{:.0f}-{:.0f}.tsv"
ROWS, LENGTH = 100_000, 14  # lines to train on, and words of a line
NUM_HELD_OUT = 2_048  # lines
# Precision and recall of the lexicons of a language with synonyms, in percent.
LEXICONS = tuple(itertools.product((100, 80, 50, 25), (100, 50, 25)))
FIELDS = ("start_C", "next_CxC", "class_V", "share_V")
NUM_CLASSES = 16
FEWEST_WORDS, MOST_WORDS = 2, 5  # of a class with synonyms
CONCENTRATION = 0.2  # Dirichlet's: some 3 of 16 classes are likely to be next
NOISE = 0.05  # share of a uniform distribution in each transition
SYLLABLES = ["".join(x) for x in itertools.product("bdfgjklmnprstvwz", "aiou")]


@dataclasses.dataclass(frozen=True, eq=False)
class Language:
  """Probabilities of an artificial language of C classes and V words.

  Attributes:
    start_C: of the first class of a line.
    next_CxC: of the class after each class.
    class_V: int64, the class of each word, ascending.
    share_V: of each word where its class is given; 1 in total in each class.
  """

  start_C: np.ndarray
  next_CxC: np.ndarray
  class_V: np.ndarray
  share_V: np.ndarray

  @functools.cached_property
  def names(self) -> tuple[str, ...]:
    """The words as they are written: two syllables, none an English stop word.

    An "e" would be in `here` and `more`.
    """
    pairs = itertools.product(SYLLABLES, repeat=2)
    return tuple(map("".join, itertools.islice(pairs, len(self.class_V))))

  @functools.cached_property
  def is_synonym_VxV(self) -> np.ndarray:
    """bool: two different words of one class."""
    same_VxV = self.class_V[:, None] == self.class_V
    return same_VxV & ~np.eye(len(same_VxV), dtype=bool)

  @property
  def synonym_share(self) -> float:
    """The share of the words that have a synonym."""
    return float(self.is_synonym_VxV.any(axis=1).mean())


def draw_language(seed: int, *, synonym_share: float) -> Language:
  """Draws a language in which about `synonym_share` of the words have synonyms.

  The share is as near as classes allow, and exact at 0 and 1. The chain of the
  classes depends on the seed only, and with a larger share more classes have
  synonyms: those of a smaller share and others.
  """
  rng = np.random.default_rng(seed)
  start_C = rng.dirichlet(np.ones(NUM_CLASSES))
  concentration_C = np.full(NUM_CLASSES, CONCENTRATION)
  next_CxC = (1 - NOISE) * rng.dirichlet(concentration_C, NUM_CLASSES)
  next_CxC += NOISE / NUM_CLASSES
  size_C = rng.integers(FEWEST_WORDS, MOST_WORDS, NUM_CLASSES, endpoint=True)
  order_C = rng.permutation(NUM_CLASSES)
  weight_CxS = rng.uniform(1, 3, (NUM_CLASSES, MOST_WORDS))
  words_N = np.cumsum(np.append(0, size_C[order_C]))  # in the first n classes
  single_N = NUM_CLASSES - np.arange(NUM_CLASSES + 1)
  share_N = words_N / (words_N + single_N)
  size_C[order_C[np.abs(share_N - synonym_share).argmin() :]] = 1
  class_V = np.repeat(np.arange(NUM_CLASSES), size_C)
  weight_V = weight_CxS[np.arange(MOST_WORDS) < size_C[:, None]]
  share_V = weight_V / np.bincount(class_V, weight_V)[class_V]
  return Language(start_C, next_CxC, class_V, share_V)


def number_languages(
  first: int, count: int, *, synonym_share: float
) -> list[int]:
  """Returns the seeds of languages from `first` on that have synonyms.

  With a small share, the nearest that some languages can have is 0: these are
  skipped, unless the share is 0.
  """
  drawn = (
    (seed, draw_language(seed, synonym_share=synonym_share))
    for seed in itertools.count(first)
  )
  suited = (seed for seed, x in drawn if x.synonym_share or not synonym_share)
  return [*itertools.islice(suited, count)]


def sample_lines(
  language: Language, *, rows: int, length: int, seed: int | list[int]
) -> np.ndarray:
  """Draws independent lines of `length` words, int64 `[rows, length]`."""
  rng = np.random.default_rng(seed)
  classes = np.arange(len(language.start_C))
  own_CxV = language.class_V == classes[:, None]
  words_CxV = np.where(own_CxV, language.share_V, 0.0).cumsum(axis=1)
  next_CxC = language.next_CxC.cumsum(axis=1)
  classes_RxL = np.empty((rows, length), np.int64)
  up_to_RxC = np.tile(language.start_C.cumsum(), (rows, 1))
  for i in range(length):
    classes_RxL[:, i] = _draw(up_to_RxC, rng.random(rows))
    up_to_RxC = next_CxC[classes_RxL[:, i]]
  columns = zip(classes_RxL.T, rng.random((rows, length)).T, strict=True)
  return np.stack([_draw(words_CxV[c_R], u_R) for c_R, u_R in columns], axis=1)


def _draw(up_to_RxQ: np.ndarray, u_R: np.ndarray) -> np.ndarray:
  """Returns the values at `u_R`, in [0, 1), of cumulative distributions."""
  total_Rx1 = up_to_RxQ[:, -1:]  # 1 up to rounding
  return (up_to_RxQ > u_R[:, None] * total_Rx1).argmax(axis=1)


def draw_lexicon(
  language: Language, *, precision: float, recall: float, seed: int
) -> np.ndarray:
  """Draws a symmetric lexicon: pairs (word, synonym), int64 `[N, 2]`, sorted.

  Precision is the share of its pairs that are synonyms, recall the share of the
  synonyms that it has; both are met up to rounding to a number of pairs. Wrong
  pairs are uniform over words of different classes. With one seed, a lexicon of
  higher recall has the true pairs of one of lower recall.

  Raises:
    InputError: a share out of range, a language without synonyms, or with too
      few words for so many wrong pairs.
  """
  are_shares = 0 < precision <= 1 and 0 < recall <= 1
  rng = np.random.default_rng(seed)
  true_Nx2, false_Nx2 = (
    rng.permutation(np.argwhere(np.triu(relation_VxV, 1)))
    for relation_VxV in (language.is_synonym_VxV, ~language.is_synonym_VxV)
  )
  num_true = round(recall * len(true_Nx2)) if are_shares else 0
  num_false = round(num_true * (1 / precision - 1)) if are_shares else 0
  if not num_true or num_false > len(false_Nx2):
    raise InputError(
      f"A lexicon of precision {precision:.0%} and recall {recall:.0%} is"
      f" impossible: the language has {len(true_Nx2):,} pairs of synonyms and"
      f" {len(false_Nx2):,} of other words. Use higher values, at most"
      " 100 %, or another share of words with synonyms."
    )
  pairs_Nx2 = np.concatenate([true_Nx2[:num_true], false_Nx2[:num_false]])
  both_Nx2 = np.concatenate([pairs_Nx2, pairs_Nx2[:, ::-1]])
  return both_Nx2[np.lexsort(both_Nx2.T[::-1])]


def vocabulary(language: Language) -> tuple[str, ...]:
  """Returns the tokens: the id of word `v` is `len(SPECIALS) + v`."""
  return (*SPECIALS, *language.names)


def write_language(
  folder: pathlib.Path,
  language: Language,
  *,
  seed: int,
  rows: int,
) -> None:
  """Writes a language with `rows` lines to train on, and LEXICONS.

  A lexicon whose precision and recall are impossible is left out.

  Args:
    folder: must not exist yet; it appears once it is complete.
    seed: of the lines and lexicons.

  Raises:
    InputError: the folder exists.
    DiskError: the folder cannot be written.
  """
  if folder.exists():
    raise InputError(f"'{folder}' exists. Remove it, or choose another folder.")
  contents = {VOCABULARY: "".join(f"{x}\n" for x in vocabulary(language))}
  names_V = np.array(language.names)
  for precision, recall in LEXICONS:
    try:
      pairs_Nx2 = draw_lexicon(
        language, precision=precision / 100, recall=recall / 100, seed=seed
      )
    except InputError:
      continue  # too few words
    lines = map("\t".join, names_V[pairs_Nx2])
    contents[LEXICON.format(precision, recall)] = "\n".join(lines) + "\n"
  for name, count, stream in ((TEXT, rows, 0), (HELD_OUT, NUM_HELD_OUT, 1)):
    words_RxL = sample_lines(
      language, rows=count, length=LENGTH, seed=[seed, stream]
    )
    lines = map(" ".join, names_V[words_RxL].tolist())
    contents[name] = "\n\n".join(lines) + "\n"
  with atomic_folder(folder) as new, disk_errors(folder):
    for name, content in contents.items():
      (new / name).write_text(content)
    np.savez(new / LANGUAGE, **{x: getattr(language, x) for x in FIELDS})
    for path in (*new.iterdir(), new):
      sync(path)


def read_language(folder: pathlib.Path) -> tuple[Language, np.ndarray]:
  """Returns a language and its held-out lines, int64 `[R, L]`.

  Raises:
    InputError: a file is missing.
  """
  for name in (LANGUAGE, HELD_OUT):
    if not (folder / name).is_file():
      raise InputError(
        f"'{folder}' is no artificial language: it has no {name}."
      )
  with np.load(folder / LANGUAGE) as arrays:
    language = Language(**{name: arrays[name] for name in FIELDS})
  number = {name: i for i, name in enumerate(language.names)}
  lines = (folder / HELD_OUT).read_text().split("\n\n")
  return language, np.array([[number[x] for x in s.split()] for s in lines])
