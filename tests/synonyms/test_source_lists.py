"""Tests lists of sources of synonyms, on fake sources."""

import pytest

from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.run_table import ModelTable, TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary

TOKENS = ("[PAD]", "##s", "a", "b", "c", "d")
PAIRS = {"ab": ("a", "b"), "bc": ("b", "c"), "cd": ("c", "d"), "ba": ("b", "a")}


@pytest.fixture
def calls(monkeypatch):
  """Adds fake sources and returns a list of the options of their calls."""
  calls = []

  def files(vocabulary, *, path: str = "", top: int = 10):
    """Returns the pairs in the name of the file, such as ab-bc."""
    calls.append({"path": path, "top": top})
    return [PAIRS[name] for name in path.rpartition("/")[2].split("-")]

  def flags(vocabulary, *, word="x", cut=0.5, both=False):
    calls.append({"word": word, "cut": cut, "both": both})
    return [("a", "d")]

  def wordnet(vocabulary, *, folder: str = ""):
    calls.append({"folder": folder})
    return [("a", "c")]

  for fn in (files, flags, wordnet):
    monkeypatch.setitem(sources.SOURCES, fn.__name__, fn)
  return calls


def find_pairs(text, tokens=TOKENS, **options):
  request = TableRequest(text, **options)
  return set(request.find_pairs(Vocabulary(tokens)))


def test_sources_are_joined(calls):
  assert find_pairs("files path=ab-bc") == {PAIRS["ab"], PAIRS["bc"]}
  both = {PAIRS["ab"], PAIRS["cd"], ("a", "d")}
  assert find_pairs("files path=ab,files path=cd-ab , flags") == both


def test_options_are_converted_to_the_types_of_their_defaults(calls):
  find_pairs("flags word=3 cut=2 both=true")
  assert calls == [{"word": "3", "cut": 2.0, "both": True}]
  assert isinstance(calls[0]["cut"], float)
  find_pairs("files  path=ab   top=3 ,flags both=false cut=-1e-3")
  assert calls[1] == {"path": "ab", "top": 3}
  assert calls[2]["both"] is False and calls[2]["cut"] == -1e-3


@pytest.mark.parametrize(
  "text, message",
  [
    ("   ", "names no source of synonyms"),
    ("flags | wordnet", "source='flags . wordnet' is unknown"),
    ("thesaurus", "'thesaurus'.* files, flags.* model"),
    ("flags reader=x", "flags: there is no option reader="),
    ("flags both", "'flags both'"),
    ("flags both=1", "both=1 must be true or false"),
    ("files path=ab top=2.5", "top=2.5 must be a whole number"),
    ("files path=ab top=1 top=2", "top= twice"),
    ("files path='ab", "quote without its partner"),
    ("model, flags", "cannot be combined"),
    ("model threshold=1.5", "from -1 to 1"),
  ],
)
def test_invalid_sources_are_refused_with_their_key(calls, text, message):
  with pytest.raises(InputError, match=f"^my_key[=:].*{message}"):
    request = TableRequest(text, key="my_key")
    request.check()


def test_the_source_model_has_options():
  request = TableRequest("model  threshold=0.4 top=3")
  model = ModelTable(top=3, threshold=0.4, every=1000)
  assert request.model == model
  assert request.identity == "model threshold=0.4 top=3"


def test_identity_omits_spaces_folders_and_defaults(calls):
  identity = "files path=ab top=3, flags both=true, wordnet"
  spaced = "files top=3  path=/x/ab,flags cut=0.50 both=true,wordnet"
  in_home = "files path=~/y/ab top=3, flags both=true, wordnet"
  for text in (spaced, in_home, identity):
    assert TableRequest(text).identity == identity
  other = TableRequest("files path=ab top=4")
  assert other.identity != identity[:19]
  folder = TableRequest("wordnet folder=/x/my/")
  assert folder.identity == "wordnet folder=my"
  assert folder.parsed[0].options["folder"] == "/x/my/"


def test_quotes_protect_a_path(calls):
  assert find_pairs("files path='a, b=c/ab', flags") > {PAIRS["ab"]}
  assert calls[0]["path"] == "a, b=c/ab"
  request = TableRequest("files path='x/a, b' top=10")
  assert request.identity == "files path='a, b'"


def test_paths_expand_the_home_folder_and_default_to_wordnet_dir(
  monkeypatch, tmp_path, calls
):
  monkeypatch.setenv("HOME", str(tmp_path))
  find_pairs("files path=~/ab")
  assert calls[-1]["path"] == f"{tmp_path}/ab"
  assert find_pairs("wordnet", wordnet_dir="/w") == {("a", "c")}
  find_pairs("wordnet folder=/own, flags", wordnet_dir="/w")
  assert [c["folder"] for c in calls if "folder" in c] == ["/w", "/own"]
  request = TableRequest("wordnet", wordnet_dir="/w")
  assert request.identity == "wordnet"
  assert request.parsed[0].options["folder"] == "/w"


@pytest.mark.parametrize("include_self", [False, True])
def test_a_saved_table_is_a_source(tmp_path, calls, include_self):
  built = SynonymTable.from_pairs(
    [("a", "b"), ("c", "a")],
    TOKENS,
    source="x",
    keep_stop_words=True,
    include_self=include_self,
  )
  built.save(tmp_path / "t.safetensors")
  text = f"table path={tmp_path}/t.safetensors, files path=cd"
  assert find_pairs(text) == {("a", "b"), ("c", "a"), ("c", "d")}
  with pytest.raises(DataError, match="different vocabularies"):
    find_pairs(text, TOKENS[:-1])
