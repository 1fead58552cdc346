"""Lexicons and stop words of other languages are those of NLTK's packages."""

import shutil
import zipfile

import nltk
import numpy as np
import pytest

from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import run_table, wordnet
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import (
  NUMBERS,
  STOP_WORDS,
  Vocabulary,
  may_have_synonyms,
)

FRENCH = """# French Wordnet\tfra
00001740-n\tfra:lemma\tmaison
00001740-n\tfra:lemma\tdemeure
"""
FILES = {
  "omw-1.4/fra/wn-data-fra.tab": FRENCH.replace("French", "fra"),
  "omw-1.4/nor/wn-data-nob.tab": FRENCH.replace("French", "nob"),
  "omw-1.4/msa/wn-data-zsm.tab": FRENCH.replace("French", "zsm"),
  "stopwords/french": "\ufeffau\nété\nLes\n",
  "stopwords/norwegian": "på\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  """Returns the folder of packages on NLTK's path, which is empty."""
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
  (tmp_path / "corpora").mkdir()
  return tmp_path / "corpora"


@pytest.fixture(params=["folders", "zip"])
def installed(request, folder):
  """Installs FILES, also as NLTK's downloader leaves them."""
  for name, text in FILES.items():
    package = name.partition("/")[0]
    if request.param == "zip":
      with zipfile.ZipFile(folder / f"{package}.zip", "a") as archive:
        archive.writestr(name, text)
    else:
      (folder / name).parent.mkdir(parents=True, exist_ok=True)
      (folder / name).write_text(text, encoding="utf-8")


def load_stop_words(**options):
  return TableRequest(**options).load_stop_words()


@pytest.mark.parametrize(
  "language, name",
  [("fr", "fra"), ("no", "nob"), ("nb", "nob"), ("ms", "zsm")],
)
def test_the_wordnet_of_a_language_is_found(installed, language, name):
  text = FRENCH.replace("French", name)
  assert wordnet.read_omw(language) == text


def test_auto_is_the_lexicon_of_the_language(installed):
  tokens = ["maison", "demeure", "home"]
  request = TableRequest("auto", language="fr")
  request.check()
  assert request.identity == "omw language=fr"
  pairs = {("maison", "demeure"), ("demeure", "maison")}
  assert set(request.find_pairs(Vocabulary(tokens))) == pairs
  explicit = TableRequest("omw language=fr", language="")
  assert set(explicit.find_pairs(Vocabulary(tokens))) == pairs
  assert TableRequest("auto").identity == "wordnet"
  assert TableRequest("omw path=x.tab").identity == "omw path=x.tab"


@pytest.mark.parametrize(
  "text, language, message",
  [
    ("auto", "fr", "'fr'.*nltk.downloader omw.*pairs path=.*model.*baseline"),
    ("auto", "bo", "'bo'.*omw path=FILE"),
    ("wordnet", "fr", "x: WordNet is English.*'fr'.*pairs path=FILE"),
  ],
)
def test_languages_without_a_lexicon_are_told_their_choices(
  text, language, message
):
  with pytest.raises(InputError, match=message):
    TableRequest(text, key="x", language=language).check()


def test_stop_words_of_a_language(installed):
  assert load_stop_words(language="fr") == {"au", "été", "ete", "les"}
  assert load_stop_words(language="nb") == {"på", "pa"}
  assert load_stop_words() == load_stop_words(keep_stop_words=True)
  assert load_stop_words() == STOP_WORDS
  assert load_stop_words(language="") == frozenset()
  may_V = may_have_synonyms(
    ["été", "ete", "maison"], load_stop_words(language="fr")
  )
  assert may_V.tolist() == [False, False, True]


def test_numbers_and_stop_words_have_no_neighbours():
  assert TableRequest().no_neighbours == NUMBERS | STOP_WORDS
  assert TableRequest(keep_stop_words=True).no_neighbours == NUMBERS
  assert TableRequest(language="").no_neighbours == frozenset()


def test_stop_words_are_read_from_a_file(tmp_path):
  (tmp_path / "words.txt").write_text("\ufeffIn\n\n the \n", encoding="utf-8")
  assert load_stop_words(stop_words=f"{tmp_path}/words.txt") == {"in", "the"}
  (tmp_path / "words.txt").write_text("\n \n")
  with pytest.raises(InputError, match="contains no word.*keep_stop_words"):
    load_stop_words(stop_words=f"{tmp_path}/words.txt")
  (tmp_path / "words.txt").write_bytes(b"caf\xe9\n")
  with pytest.raises(DataError, match="words.txt:1: byte 0xe9 .*iconv"):
    load_stop_words(stop_words=f"{tmp_path}/words.txt")
  for path in ("nowhere", "a\0b"):
    with pytest.raises(InputError, match="negatives.stop_words=.*no file"):
      load_stop_words(stop_words=path)


@pytest.mark.parametrize(
  "language, message",
  [("fr", "Run `python -m nltk.downl"), ("pl", "'pl'. Set --config.neg")],
)
def test_missing_stop_words_are_explained(language, message):
  with pytest.raises(InputError, match=f"{message}.*keep_stop_words=True"):
    load_stop_words(language=language)
  assert load_stop_words(language=language, keep_stop_words=True) == frozenset()
  TableRequest("model", language=language, keep_stop_words=True).check()


def test_damaged_packages_are_explained(folder):
  (folder / "stopwords.zip").write_bytes(b"cut off")
  with pytest.raises(DataError, match="stopwords is damaged.*zip.*downloader"):
    load_stop_words(language="fr")
  # A resumed run has its table.
  request = TableRequest("pairs path=x", language="fr")
  table = SynonymTable.from_pairs([], ["le"], source="x")
  line, _ = run_table.describe_text(request, table, np.ones(1, int))
  assert line.startswith("0.0%")


def test_packages_that_others_can_write_to_are_read(installed, tmp_path):
  """NLTK would refuse them. All are read as text."""
  for path in (tmp_path / "corpora").iterdir():
    path.chmod(path.stat().st_mode | 0o020)
  assert "les" in load_stop_words(language="fr")


def test_the_first_good_copy_of_a_package_is_read(folder, tmp_path):
  (folder / "stopwords.zip").write_bytes(b"cut off")
  (folder / "stopwords").mkdir()  # without French
  other = tmp_path / "cache" / "nltk_data" / "corpora" / "stopwords"
  other.mkdir(parents=True)
  (other / "french").write_text("le\n")
  assert load_stop_words(language="fr") == {"le"}


def test_the_real_package_has_each_listed_language(real_data, folder):
  package = real_data / "wordnet" / "stopwords.zip"
  shutil.copy(package, folder)
  newer = {"be", "sq", "ta"}  # than this copy of the package
  for language in run_table.NLTK_FILES.keys() - newer:
    assert len(load_stop_words(language=language)) > 30
  assert {"les", "été", "ete"} <= load_stop_words(language="fr")
