"""Finds files of NLTK's data packages."""

import fnmatch
import pathlib
import zipfile

from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.runtime.files import atomic_file, disk_errors

LEXICONS = (
  "Use 'omw path=FILE', 'pairs path=FILE' (a thesaurus, such as that of"
  " Debian's mythes-fr), 'vectors path=FILE' or 'model' as sources of synonyms,"
  " or the recipe baseline, which needs none."
)
# Languages whose wordnet is that of one of their standards or dialects.
OMW_CODES = {"ar": "arb", "ms": "zsm", "no": "nob", "sq": "als", "zh": "cmn"}


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
      except zipfile.BadZipFile as error:
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
  if file is None:
    raise InputError(
      f"source of synonyms: data.language={language!r} has no file in Open"
      " Multilingual WordNet on NLTK's path or in the cache. If it is not"
      f" installed, run `python -m nltk.downloader omw-1.4`. {LEXICONS}"
    )
  return file


def _extract(archive: zipfile.ZipFile, name: str) -> pathlib.Path:
  path = cache.folder() / "nltk_data" / "corpora" / name
  content = archive.read(name)
  if not path.is_file() or path.read_bytes() != content:
    with disk_errors(path):
      path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, several_writers=True) as file:
      file.write(content)
  return path
