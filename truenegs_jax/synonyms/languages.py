"""Finds the wordnet and the stop words of a language in NLTK's packages."""

import fnmatch
import os
import pathlib
import unicodedata
import zipfile

from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DataError, InputError, TrueNegsError
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.synonyms.vocabulary import STOP_WORDS

LEXICONS = (
  "Use 'omw path=FILE', 'pairs path=FILE' (a thesaurus, such as that of"
  " Debian's mythes-de or mythes-fr), 'vectors path=FILE' or 'model' as sources"
  " of synonyms, or the recipe baseline, which needs none."
)
MAX_FILE_BYTES = 2**27  # unpacked; the largest wordnet has 18 MB
# Languages whose wordnet is that of one of their standards or dialects.
OMW_CODES = {"ar": "arb", "ms": "zsm", "no": "nob", "sq": "als", "zh": "cmn"}
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


def list_folders() -> list[pathlib.Path]:
  """Returns the folders that may have packages: NLTK's, then the cache's."""
  import nltk  # imported late: a saved table needs no NLTK

  folders = [*map(pathlib.Path, nltk.data.path), cache.folder() / "nltk_data"]
  return [folder / "corpora" for folder in folders]


def find_file(package: str, pattern: str) -> pathlib.Path | None:
  """Finds a file of a package; None if no folder has it.

  NLTK's downloader does not unpack every package. A file that is only in
  `<package>.zip` is written to the cache.

  Raises:
    DataError: the zip file is damaged.
    DiskError: the cache cannot be written.
  """
  for folder in list_folders():
    files = sorted((folder / package).glob(pattern))
    archive = folder / f"{package}.zip"
    if not files and archive.is_file():
      try:
        with zipfile.ZipFile(archive) as content:
          names = fnmatch.filter(content.namelist(), f"{package}/{pattern}")
          files = [_extract(content, name) for name in names[:1]]
      except TrueNegsError:
        raise
      except Exception as error:  # zipfile and zlib raise unrelated types
        raise DataError(
          f"'{archive}' is damaged ({error}). Download it again with"
          f" `python -m nltk.downloader {package}`."
        ) from error
    if files:
      return files[0]
  return None


def find_omw(language: str) -> pathlib.Path:
  """Finds the wordnet of a language in Open Multilingual WordNet.

  Raises:
    InputError: there is none, or no language is set.
    DataError, DiskError: see `find_file`.
  """
  from nltk.langnames import iso639long

  code = OMW_CODES.get(language) or iso639long.get(language)
  file = find_file("omw-1.4", f"*/wn-data-{code}.tab") if code else None
  if not language:
    raise InputError(
      f"source of synonyms: language='' has no default source. {LEXICONS}"
    )
  if file is None:
    raise InputError(
      f"source of synonyms: language {language!r} has no file in Open"
      " Multilingual WordNet on NLTK's path or in the cache. If it is not"
      f" installed, run `python -m nltk.downloader omw-1.4`. {LEXICONS}"
    )
  return file


def load_stop_words(
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
  file = os.path.expanduser(path or _find_stop_words(language))
  try:
    text = pathlib.Path(file).read_text(encoding="utf-8-sig")
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


def _find_stop_words(language: str) -> pathlib.Path:
  """Finds NLTK's stop words of a language."""
  name = NLTK_FILES.get(language, "")
  if name and (file := find_file("stopwords", name)):
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


def _extract(archive: zipfile.ZipFile, name: str) -> pathlib.Path:
  if ".." in name.split("/"):
    raise ValueError(f"{name!r} leads out of the folder")
  if (size := archive.getinfo(name).file_size) > MAX_FILE_BYTES:
    raise ValueError(f"{name!r} has {size:,} bytes")
  path = cache.folder() / "nltk_data" / "corpora" / name
  content = archive.read(name)
  if not path.is_file() or path.read_bytes() != content:
    with disk_errors(path):
      path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, several_writers=True) as file:
      file.write(content)
  return path
