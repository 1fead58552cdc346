"""Whole words and stop words: decides which tokens may have synonyms.

The English stop words are listed here instead of being read from NLTK's data:
later releases of that list are longer, and a table must not change with the
version of a data package. Lists of other languages are NLTK's.
"""

import os
import pathlib
import unicodedata
from collections.abc import Collection, Sequence

import numpy as np

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import short_sha256
from truenegs_jax.synonyms import nltk_data

# The 179 English words of `stopwords` in nltk_data as released from 2018 to
# 2023 (after the stop list of the Snowball project, M. Porter); 150 of them are
# tokens of the uncased BERT vocabulary.
ENGLISH = """
i me my myself we our ours ourselves you you're you've you'll you'd your
yours yourself yourselves he him his himself she she's her hers herself it
it's its itself they them their theirs themselves what which who whom this
that that'll these those am is are was were be been being have has had
having do does did doing a an the and but if or because as until while of at
by for with about against between into through during before after above
below to from up down in out on off over under again further then once here
there when where why how all any both each few more most other some such no
nor not only own same so than too very s t can will just don don't should
should've now d ll m o re ve y ain aren aren't couldn couldn't didn didn't
doesn doesn't hadn hadn't hasn hasn't haven haven't isn isn't ma mightn
mightn't mustn mustn't needn needn't shan shan't shouldn shouldn't wasn
wasn't weren weren't won won't wouldn wouldn't
"""
STOP_WORDS = frozenset(ENGLISH.split())
# Language -> file of NLTK's package `stopwords`.
NLTK_FILES = {
  "ar": "arabic",
  "az": "azerbaijani",
  "be": "belarusian",
  "bn": "bengali",
  "ca": "catalan",
  "da": "danish",
  "de": "german",
  "el": "greek",
  "es": "spanish",
  "eu": "basque",
  "fi": "finnish",
  "fr": "french",
  "he": "hebrew",
  "hu": "hungarian",
  "id": "indonesian",
  "it": "italian",
  "kk": "kazakh",
  "nb": "norwegian",
  "ne": "nepali",
  "nl": "dutch",
  "no": "norwegian",
  "pt": "portuguese",
  "ro": "romanian",
  "ru": "russian",
  "sl": "slovene",
  "sq": "albanian",
  "sv": "swedish",
  "ta": "tamil",
  "tg": "tajik",
  "tr": "turkish",
  "zh": "chinese",
}

# By vectors, one number is nearest to another.
ENGLISH_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen
fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty
sixty seventy eighty ninety hundred thousand million billion trillion dozen
"""
NUMBERS = frozenset(ENGLISH_NUMBERS.split())


def is_word(token: str) -> bool:
  """Returns False for `##pieces` and `[SPECIAL]` tokens, True for others."""
  special = len(token) > 2 and token[0] == "[" and token[-1] == "]"
  return bool(token) and not special and not token.startswith("##")


def load(
  path: str, *, language: str = "en", optional: bool = False
) -> frozenset[str]:
  """Returns stop words in lower case, each also without its accents.

  A vocabulary of lower-cased text has mostly no accents: `ete` for `été`.

  Args:
    path: UTF-8 text with one word per line; "" for the words of the language.
    language: code of ISO 639-1; "" for no words.
    optional: return no words if the language has none.

  Raises:
    InputError: the file or the words of the language are missing, or the file
      cannot be read or contains no word.
  """
  if not path and language == "en":
    return STOP_WORDS
  if not path and (optional or not language):
    return frozenset()
  file = pathlib.Path(os.path.expanduser(path)) if path else _find(language)
  try:
    text = file.read_text(encoding="utf-8-sig")
  except (OSError, ValueError) as e:  # ValueError: not UTF-8, or "\0" in a path
    raise InputError(
      f"negatives.stop_words={path!r} cannot be read ({e}). Pass a UTF-8 file"
      " with one word per line."
    ) from e
  words = frozenset(line.strip().lower() for line in text.splitlines()) - {""}
  if not words:
    raise InputError(
      f"negatives.stop_words={path!r} contains no word. To use no stop words,"
      " set negatives.keep_stop_words=True."
    )
  return words | frozenset(map(_strip_accents, words))


def _find(language: str) -> pathlib.Path:
  """Finds NLTK's stop words of a language."""
  name = NLTK_FILES.get(language, "")
  if name and (file := nltk_data.find_file("stopwords", name)):
    return file
  fix = "Run `python -m nltk.downloader stopwords`. Or set" if name else "Set"
  raise InputError(
    f"There are no stop words for data.language={language!r}. {fix}"
    " --config.negatives.stop_words=FILE, with one word per line, or"
    " --config.negatives.keep_stop_words=True to use none."
  )


def _strip_accents(word: str) -> str:
  decomposed = unicodedata.normalize("NFD", word)
  return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def fingerprint(words: Collection[str]) -> str:
  """Returns 16 hex digits over stop words, as a table's options record them."""
  return short_sha256("\n".join(sorted(set(words))))


def may_have_synonyms(
  tokens: Sequence[str],
  *,
  keep_stop_words: bool = False,
  stop_words: Collection[str] = STOP_WORDS,
) -> np.ndarray:
  """Returns bool_V: True for whole words that are not stop words.

  `stop_words`, in lower case, exclude nothing with `keep_stop_words`.
  """
  excluded = () if keep_stop_words else stop_words
  return np.array(
    [is_word(token) and token.lower() not in excluded for token in tokens], bool
  )
