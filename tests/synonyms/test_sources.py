"""Tests expressions on fake sources, and common properties of real sources."""

import itertools

import pytest

from support.mini_wordnet import write_wordnet
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary

TOKENS = ("[PAD]", "##s", "a", "b", "c", "d")
PAIRS = {"ab": ("a", "b"), "bc": ("b", "c"), "cd": ("c", "d"), "ba": ("b", "a")}
NAMES = sorted(sources.SOURCES)


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
  expression = sources.parse_expression(text, **options)
  return set(sources.find_pairs(expression, Vocabulary(tokens)))


@pytest.mark.parametrize(
  "text, names",
  [
    ("files path=ab-bc", "ab bc"),
    ("files path=ab-bc&files path=bc-cd", "bc"),
    ("files path=ab & files path=ba", ""),  # pairs are directed
    (
      "files path=ab | files path=bc-cd & files path=cd & files path=cd-ab",
      "ab cd",
    ),
    ("files path=bc-cd & files path=cd | files path=ab", "ab cd"),
  ],
)
def test_union_intersection_and_their_precedence(calls, text, names):
  assert find_pairs(text) == {PAIRS[name] for name in names.split()}


def test_options_are_converted_to_the_types_of_their_defaults(calls):
  find_pairs("flags word=3 cut=2 both=true")
  assert calls == [{"word": "3", "cut": 2.0, "both": True}]
  assert isinstance(calls[0]["cut"], float)
  find_pairs("files  path=ab   top=3 |flags both=false cut=-1e-3")
  assert calls[1] == {"path": "ab", "top": 3}
  assert calls[2]["both"] is False and calls[2]["cut"] == -1e-3


@pytest.mark.parametrize(
  "text, message",
  [
    ("   ", "source='' is unknown"),
    ("flags | ", "source='' is unknown"),
    ("(flags | wordnet) & flags", r"source='\(flags' is unknown"),
    ("thesaurus", "'thesaurus'.* files, flags.* model"),
    ("flags reader=x", "flags: there is no option reader="),
    ("flags both", "'flags both'"),
    ("flags both=1", "both=1 must be true or false"),
    ("files path=ab top=2.5", "top=2.5 must be a whole number"),
    ("files path=ab top=1 top=2", "top= twice"),
    ("files path='ab", "quote without its partner"),
    ("model | flags", "cannot be combined"),
    ("model threshold=1.5", "from -1 to 1"),
  ],
)
def test_invalid_expressions_are_refused_with_their_key(calls, text, message):
  with pytest.raises(InputError, match=f"^my_key[=:].*{message}"):
    sources.parse_expression(text, key="my_key")


def test_the_source_model_yields_no_pairs():
  expression = sources.parse_expression("model  threshold=0.4 top=3")
  model = sources.ModelTable(top=3, threshold=0.4, every=1000)
  assert expression.model == model
  assert (expression.union, expression.sources) == ((), ())
  assert expression.identity == "model threshold=0.4 top=3"
  assert list(sources.find_pairs(expression, Vocabulary(TOKENS))) == []


def test_identity_omits_spaces_folders_and_defaults(calls):
  identity = "files path=ab top=3 & flags both=true | wordnet"
  spaced = "files top=3  path=/x/ab&flags cut=0.50 both=true|wordnet"
  in_home = "files path=~/y/ab top=3 & flags both=true | wordnet"
  for text in (spaced, in_home, identity):
    assert sources.parse_expression(text).identity == identity
  other = sources.parse_expression("files path=ab top=4")
  assert other.identity != identity[:19]
  folder = sources.parse_expression("wordnet folder=/x/my/")
  assert folder.identity == "wordnet folder=my"
  assert folder.sources[0].paths == {"folder": "/x/my/"}


def test_quotes_protect_a_path(calls):
  assert find_pairs("files path='a|b & c/ab' | flags") > {PAIRS["ab"]}
  assert calls[0]["path"] == "a|b & c/ab"
  expression = sources.parse_expression("files path='x/a&b' top=10")
  assert expression.identity == "files path='a&b'"


def test_paths_expand_the_home_folder_and_default_to_wordnet_dir(
  monkeypatch, tmp_path, calls
):
  monkeypatch.setenv("HOME", str(tmp_path))
  find_pairs("files path=~/ab")
  assert calls[-1]["path"] == f"{tmp_path}/ab"
  assert find_pairs("wordnet", wordnet_dir="/w") == {("a", "c")}
  find_pairs("wordnet folder=/own | flags", wordnet_dir="/w")
  assert [c["folder"] for c in calls if "folder" in c] == ["/w", "/own"]
  expression = sources.parse_expression("wordnet", wordnet_dir="/w")
  assert expression.identity == "wordnet"
  assert expression.sources[0].paths == {"folder": "/w"}


@pytest.mark.parametrize("include_self", [False, True])
def test_a_saved_table_is_a_source(tmp_path, calls, include_self):
  built = SynonymTable.from_pairs(
    [("a", "b"), ("c", "a")],
    TOKENS,
    source="x",
    keep_stop_words=True,
    include_self=include_self,
  )
  built.save(tmp_path / "t.npz")
  text = f"table path={tmp_path}/t.npz | files path=cd"
  assert find_pairs(text) == {("a", "b"), ("c", "a"), ("c", "d")}
  with pytest.raises(DataError, match="vocabulary"):
    find_pairs(text, TOKENS[:-1])


# Every source declares all of SYNONYMS (words, pieces, special tokens, phrases)
# to be synonyms of each other.

VOCABULARY = ["[PAD]", "you", "House", "home", "firm", "[house]", "house"]
VOCABULARY += ["##house", "Home"]
SYNONYMS = ["home", "house", "firm", "House", "[house]", "##house"]
SYNONYMS += ["business_firm", "hut", "Home"]


def make_options(name, folder):
  """Returns options of a source, with files written into `folder`."""
  path = folder / "example"
  if name == "wordnet":
    return {"folder": str(write_wordnet(folder / "wordnet"))}
  if name == "pairs":
    pairs = itertools.permutations(SYNONYMS, 2)
    path.write_text("".join(f"[NN] ||| {a} ||| {b}\n" for a, b in pairs))
  elif name == "omw":
    lines = [f"00000001-n\tlemma\t{w}\n" for w in SYNONYMS]
    path.write_text("# example\n" + "".join(lines))
  elif name == "vectors":
    path.write_text("".join(f"{w} 1 {i}\n" for i, w in enumerate(SYNONYMS)))
  elif name == "table":
    pairs = itertools.permutations(SYNONYMS, 2)
    pairs = [(a, b) for a, b in pairs if a.lower() != b.lower()]
    SynonymTable.from_pairs(pairs, VOCABULARY, source="x").save(path)
  else:
    pytest.fail(f"Write an example for the source {name}.")
  return {"path": str(path)}


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_ordered_unique_and_of_different_words(name, tmp_path):
  options = make_options(name, tmp_path)
  vocabulary = Vocabulary(VOCABULARY)
  pairs = list(sources.SOURCES[name](vocabulary, **options))
  assert pairs == list(sources.SOURCES[name](vocabulary, **options))
  assert len(set(pairs)) == len(pairs)
  assert {("home", "firm"), ("home", "house")} & set(pairs)
  for word, synonym in pairs:
    assert {word, synonym} <= {"House", "home", "firm", "house", "Home"}
    assert word.lower() != synonym.lower()
  ids = [VOCABULARY.index(word) for word, _ in pairs]
  assert ids == sorted(ids)


@pytest.mark.parametrize(
  "name, changes, message",
  [
    ("wordnet", {"pos": "x"}, "pos='x'.*nouns.*verbs"),
    ("wordnet", {"folder": "~nobody/w"}, "no WordNet in '~nobody/w'"),
    ("vectors", {"top": 0}, "top=0 .*top to 1 or more"),
    ("vectors", {"threshold": float("nan")}, "threshold=nan "),
    ("vectors", {"path": "a\0b"}, "no file 'a.x00b'"),
    ("pairs", {"path": "nowhere"}, "no file 'nowhere'"),
    ("omw", {"path": "/"}, "no file '/'"),
    ("table", {"path": ""}, "no file ''"),
  ],
)
def test_invalid_options_are_refused_at_the_call(
  tmp_path, name, changes, message
):
  options = make_options(name, tmp_path)
  sources.SOURCES[name](Vocabulary(()), **options)
  with pytest.raises(InputError, match=message):
    sources.SOURCES[name](Vocabulary(()), **options | changes)


@pytest.mark.parametrize(
  "name, content",
  [(name, "") for name in ("vectors", "pairs", "omw", "table")]
  + [("vectors", "some words"), ("pairs", "word"), ("pairs", "a\tb\tc")]
  + [("omw", "house home"), ("table", "PK cut off")],
)
def test_files_of_another_format_are_refused_at_the_call(
  tmp_path, content, name
):
  path = tmp_path / "file.txt"
  path.write_text(content)
  with pytest.raises(DataError, match="file.txt"):
    sources.SOURCES[name](Vocabulary(()), path=str(path))
