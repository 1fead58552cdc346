"""Tests lists of sources, tables and stop words of runs, and coverage."""

import dataclasses
import io
import re
import zipfile

import nltk
import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.config.sections import Data, Negatives
from truenegs_jax.data.tokenizer import SPECIALS, Tokenizer
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import run_table, sources, wordnet
from truenegs_jax.synonyms.run_table import ModelTable, TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import NUMBERS, STOP_WORDS, Vocabulary

TOKENS = ("[PAD]", "[UNK]", "##s", "primary", "main", "chief", "stay")
TOKENIZER = Tokenizer(TOKENS, True, True, pad=0, unk=1, cls=0, sep=0, mask=0)
PAIRS = {("primary", "main"), ("main", "primary"), ("stay", "chief")}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
  """Returns the folder of packages on NLTK's path, which is empty."""
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
  (tmp_path / "corpora").mkdir()
  return tmp_path / "corpora"


# Lists of sources.


@pytest.fixture
def calls(monkeypatch):
  """Adds sources and returns a list of the options of their calls."""
  calls = []

  def files(_, *, path: str = "", top: int = 10):
    """Returns the pair in the name of the file, such as main-chief."""
    calls.append({"path": path, "top": top})
    return [tuple(path.rpartition("/")[2].split("-"))]

  def flags(_, *, both=False):
    calls.append({"both": both})
    return [("stay", "main")]

  for fn in (files, flags):
    monkeypatch.setitem(sources.SOURCES, fn.__name__, fn)
  return calls


def test_sources_are_joined_and_their_options_converted(calls, monkeypatch):
  monkeypatch.setenv("HOME", "/home/me")
  text = "files  path='~/y, z=/a-b' top=3 ,files path=b-c, flags both=true"
  pairs = set(TableRequest(text).find_pairs(Vocabulary(TOKENS)))
  assert pairs == {("a", "b"), ("b", "c"), ("stay", "main")}
  assert calls == [
    {"path": "/home/me/y, z=/a-b", "top": 3},
    {"path": "b-c", "top": 10},
    {"both": True},
  ]
  model = TableRequest("model  threshold=0.4 top=3").model
  assert model == ModelTable(top=3, threshold=0.4, every=1000)


@pytest.mark.parametrize(
  "text, language, message",
  [
    ("thesaurus", "en", "key: .*'thesaurus'.* files, flags.* model"),
    ("flags reader=x", "en", "key: flags: there is no option reader="),
    ("model, flags", "en", "key=.*cannot be combined"),
    ("wordnet", "fr", "key: WordNet is English.*'fr'.*pairs path=FILE"),
    ("model every=0", "en", "every=0' is out of range"),
    ("teacher path=a, flags", "en", "teacher .*cannot be combined"),
    ("teacher", "en", "key='teacher' needs a path"),
    ("teacher path=a ratio=0", "en", "above 0"),
    ("teacher path=a top=0", "en", "top=0' is out of range"),
    ("auto", "fr", "'fr'.*nltk.downloader omw.*pairs path=.*baseline"),
  ],
)
def test_invalid_sources_are_refused(calls, text, language, message):
  with pytest.raises(InputError, match=message):
    TableRequest(text, key="key", language=language).check()


@pytest.mark.parametrize(
  "text, identity",
  [
    ("files top=3  path=~/x/ab,flags", "files path=ab top=3, flags"),
    ("files path='x/a, b' top=10", "files path='a, b'"),
    ("auto", "wordnet"),
  ],
)
def test_identity_omits_spaces_folders_and_defaults(calls, text, identity):
  assert TableRequest(text).identity == identity


# Languages.

FRENCH = """# French Wordnet\tfra
00001740-n\tfra:lemma\tmaison
00001740-n\tfra:lemma\tdemeure
"""
FILES = {
  "omw-1.4/fra/wn-data-fra.tab": FRENCH,
  "omw-1.4/nor/wn-data-nob.tab": FRENCH,
  "omw-1.4/msa/wn-data-zsm.tab": FRENCH,
  "stopwords/french": "\ufeffau\nété\nLes\n",
  "stopwords/norwegian": "på\n",
}


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
  for path in folder.iterdir():  # NLTK would refuse what others can write to
    path.chmod(path.stat().st_mode | 0o020)


def test_lexicons_and_stop_words_are_of_the_language(installed):
  for language in ("fr", "no", "nb", "ms"):
    assert wordnet.read_omw(language) == FRENCH
  request = TableRequest("auto", language="fr")
  request.check()
  assert request.identity == "omw language=fr"
  pairs = set(request.find_pairs(Vocabulary(["maison", "demeure", "home"])))
  assert pairs == {("maison", "demeure"), ("demeure", "maison")}
  for language, words in (
    ("fr", {"au", "été", "ete", "les"}),
    ("nb", {"på", "pa"}),
    ("en", STOP_WORDS),
    ("", set()),
  ):
    assert TableRequest(language=language).load_stop_words() == words


def test_stop_words_are_read_from_a_file_or_none(tmp_path):
  path = tmp_path / "words.txt"
  path.write_text("\ufeffIn\n\n the \n", encoding="utf-8")
  request = TableRequest(stop_words=str(path), language="fr")
  assert request.load_stop_words() == {"in", "the"}
  path.write_bytes(b"caf\xe9\n")
  with pytest.raises(DataError, match="words.txt:1: byte 0xe9 .*iconv"):
    request.load_stop_words()
  with pytest.raises(InputError, match="negatives.stop_words=.*no file"):
    TableRequest(stop_words="nowhere").load_stop_words()
  with pytest.raises(InputError, match="downloader stopwords.*or to none"):
    TableRequest(language="pl").load_stop_words()
  TableRequest("model", language="pl", stop_words="none").check()
  TableRequest("teacher path=x", language="pl").check()  # has no use for them
  assert TableRequest().no_neighbours == NUMBERS | STOP_WORDS


def test_the_first_good_copy_of_a_package_is_read(folder, tmp_path):
  (folder / "stopwords.zip").write_bytes(b"cut off")
  (folder / "stopwords").mkdir()  # without French
  request = TableRequest("pairs path=x", language="fr")
  with pytest.raises(DataError, match="stopwords is damaged.*zip.*downloader"):
    request.load_stop_words()
  # A resumed run has its table.
  table = SynonymTable.from_pairs([], ["le"], source="x")
  line, _ = run_table.describe_text(request, table, np.ones(1, int))
  assert line.startswith("0.0%")
  other = tmp_path / "cache" / "nltk_data" / "corpora" / "stopwords"
  other.mkdir(parents=True)
  (other / "french").write_text("le\n")
  assert request.load_stop_words() == {"le"}


# Tables of runs.


def save_pairs(path, pairs=PAIRS):
  SynonymTable.from_pairs(pairs, TOKENS, source="example").save(path)


def load_or_build(request, saved=None, file=None):
  console = Console(file=file or io.StringIO())
  return run_table.load_or_build(
    request, TOKENIZER, saved=saved, console=console
  )


@pytest.fixture
def request_of(tmp_path):
  """A request for a table of PAIRS without the stop word "primary"."""
  save_pairs(tmp_path / "t.safetensors")
  (tmp_path / "words.txt").write_text("primary\n")
  sources = f"table path={tmp_path}/t.safetensors"
  return TableRequest(sources, stop_words=f"{tmp_path}/words.txt")


def test_options_change_the_table_of_a_request(request_of):
  for by in ("balanced", "uniform"):
    request = run_table.make_request(Negatives(smoothing_by=by), Data())
    assert request.symmetric == (by == "balanced")
  kept = PAIRS - {("primary", "main")}
  for changes, expected in (
    ({}, kept),
    ({"symmetric": True}, kept | {("chief", "stay")}),
    ({"stop_words": "none"}, PAIRS),
  ):
    table = load_or_build(dataclasses.replace(request_of, **changes))
    assert table.num_pairs == len(expected)
    for word, synonym in expected:
      assert synonym in table.synonyms(word)


def test_a_resumed_run_keeps_its_table_if_its_options_are_the_same(
  request_of, tmp_path
):
  first = load_or_build(request_of)
  saved = tmp_path / "synonyms.safetensors"
  first.save(saved)
  save_pairs(tmp_path / "t.safetensors", [("stay", "main")])
  assert load_or_build(request_of).fingerprint != first.fingerprint
  (tmp_path / "t.safetensors").unlink()  # so that nothing can be built
  assert load_or_build(request_of, saved).fingerprint == first.fingerprint
  for change in ({"symmetric": True}, {"sources": "table path=other"}):
    with pytest.raises(InputError, match="no file '"):
      load_or_build(dataclasses.replace(request_of, **change), saved)
  saved.write_bytes(saved.read_bytes()[:-9])
  printed = io.StringIO()
  with pytest.raises(InputError, match="no file '"):
    load_or_build(request_of, saved, file=printed)
  assert "warning: not used: " in printed.getvalue()
  first.save(saved)
  # A file may be in another folder, and the list of stop words may be missing.
  (tmp_path / "words.txt").unlink()
  sources = "table path=elsewhere/t.safetensors"
  moved = dataclasses.replace(request_of, sources=sources)
  assert load_or_build(moved, saved).fingerprint == first.fingerprint


# Coverage of a text.

TEXT_TOKENS = (*SPECIALS, "the", "house", "homes", "took", "fish", "cat", "7")
TEXT_TOKENS += (".", "in", "##s")


@pytest.mark.parametrize(
  "counts, stop_words, line, warning",
  [
    ({"house": 3, "homes": 2, "fish": 1, "cat": 4}, "", "50.0%.*cat, fish", ""),
    ({}, "", "100.0%.*without: none", ""),
    ({"house": 2, "cat": 7}, "", "22.2%", "^a.key='pairs .*22.2%.*for cat[.]"),
    ({"house": 2, "cat": 7}, "lost", "22.2%.*cat", "cat"),
  ],
)
def test_symbols_pieces_and_stop_words_are_no_words_of_a_text(
  counts, stop_words, line, warning
):
  table = SynonymTable.from_pairs(
    [("house", "cat"), ("homes", "cat")], TEXT_TOKENS, source="x"
  )
  counts = dict.fromkeys((*SPECIALS, "the", "7", ".", "in", "##s"), 50) | counts
  counts_V = np.array([counts.get(token, 0) for token in TEXT_TOKENS])
  request = TableRequest("pairs path=x.tsv", key="a.key", stop_words=stop_words)
  described = run_table.describe_text(request, table, counts_V)
  for text, pattern in zip(described, (line, warning), strict=True):
    assert bool(text) == bool(pattern)
    assert re.search(pattern, text)
  # Senses are left out on purpose.
  senses = dataclasses.replace(request, sources="wordnet senses=1")
  assert not run_table.describe_text(senses, table, counts_V)[1]


def test_pieces_without_a_space_before_are_no_words_of_a_text():
  tokens = ("<s>", "Ġhouse", "Ġcat", "house", "s")
  table = SynonymTable.from_pairs([("house", "cat")], tokens, source="x")
  counts_V = np.array([9, 1, 1, 9, 9])
  line, _ = run_table.describe_text(TableRequest(), table, counts_V)
  assert line.startswith("50.0%") and line.endswith("without: cat")
