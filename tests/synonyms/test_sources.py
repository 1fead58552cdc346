"""Tests expressions on fake sources, and common properties of real sources."""

import inspect
import itertools
import json
import os
import subprocess
import sys
from typing import Any

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

  def files(vocabulary, *, path: str, top: int = 10):
    """Returns the pairs in the name of the file, such as ab-bc."""
    calls.append({"path": path, "top": top})
    return [PAIRS[name] for name in path.rpartition("/")[2].split("-")]

  def flags(
    vocabulary,
    *,
    word: str = "x",
    cut: float = 0.5,
    both: bool = False,
    reader: Any = None,
  ):
    calls.append({"word": word, "cut": cut, "both": both, "reader": reader})
    return [("a", "d")]

  def wordnet(vocabulary, *, folder: str = ""):
    calls.append({"folder": folder})
    return [("a", "c")]

  for fn in (files, flags, wordnet):
    monkeypatch.setitem(sources.SOURCES, fn.__name__, fn)
  return calls


def find_pairs(text, tokens=TOKENS, **options):
  expression = sources.parse_expression(text)
  return set(sources.find_pairs(expression, Vocabulary(tokens), **options))


@pytest.mark.parametrize(
  "text, names",
  [
    ("files path=ab-bc", "ab bc"),
    ("files path=ab | files path=cd", "ab cd"),
    ("files path=ab-bc&files path=bc-cd", "bc"),
    ("files path=ab & files path=ba", ""),  # pairs are directed
    (
      "files path=ab | files path=bc-cd & files path=cd & files path=cd-ab",
      "ab cd",
    ),
    ("files path=bc-cd & files path=cd | files path=ab", "ab cd"),
    ("files path=bc-cd & files path=bc-cd & files path=cd", "cd"),
  ],
)
def test_union_intersection_and_their_precedence(calls, text, names):
  assert find_pairs(text) == {PAIRS[name] for name in names.split()}


def test_options_are_converted_as_they_are_annotated(calls):
  find_pairs("flags word=3 cut=2 both=true")
  assert calls == [{"word": "3", "cut": 2.0, "both": True, "reader": None}]
  assert isinstance(calls[0]["cut"], float)
  find_pairs("files  path=ab   top=3 |flags both=false cut=-1e-3")
  assert calls[1] == {"path": "ab", "top": 3}
  assert calls[2]["both"] is False and calls[2]["cut"] == -1e-3


@pytest.mark.parametrize(
  "text, message",
  [
    ("   ", "empty part"),
    ("flags |", "'flags |' has an empty part"),
    ("& flags", "empty part"),
    ("flags || flags", "empty part"),
    ("(flags | wordnet) & flags", r"brackets.*'a & c \| b & c'"),
    ("thesaurus", "'thesaurus'.* files, flags, model,.*table.*wordnet"),
    ("flags size=3", "'size=3' is not an option of flags.* word=, cut=,"),
    ("flags reader=x", "not an option"),
    ("flags tokens=x", "not an option"),
    ("flags both", "'both' is wrong. Use true or false"),
    ("flags word=", "'word=' is wrong. Use a word"),
    ("flags both=True", "Use true or false"),
    ("flags cut=high", "'cut=high' is wrong. Use a number"),
    ("flags cut=nan", "Use a number"),
    ("files path=ab top=2.5", "'top=2.5' is wrong. Use a whole number"),
    ("files path=ab top=1 top=2", "top= twice"),
    ("files top=1", "files needs path="),
    ("files path=ab|cd.txt", "'cd.txt'.*write [?] for a space, [|] or &"),
    ('files path="a|b"', "'path=\"a' has a quote.*without quotes"),
    (
      "files path=my file.txt",
      "'file.txt' is not an option.*write [?] for a space",
    ),
    ("model | flags", "cannot be combined"),
    ("model & model", "cannot be combined"),
    ("model size=3", "not an option of model.* top=, threshold=, every="),
    ("model top=0", "1 or more"),
    ("model every=0", "1 or more"),
    ("model threshold=1.5", "from -1 to 1"),
  ],
)
def test_invalid_expressions_are_refused_with_their_key(calls, text, message):
  with pytest.raises(InputError, match=f"^negatives.sources=.*{message}"):
    sources.parse_expression(text)
  with pytest.raises(InputError, match=f"^my_key=.*{message}"):
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


def test_a_question_mark_in_a_path_matches_a_space_or_operator(tmp_path, calls):
  for name in ("my ab", "x|ab", "y&ab", "zzab", "q?ab", "[a] b"):
    (tmp_path / name).touch()
  for name, expected in (
    ("my?ab", "my ab"),
    ("x?ab", "x|ab"),
    ("y?ab", "y&ab"),
    ("q?ab", "q?ab"),
    ("z?ab", "z?ab"),  # matches no other character
    ("[a]?b", "[a] b"),  # other characters are no patterns
    ("*?b", "*?b"),
  ):
    assert sources.resolve_path(f"{tmp_path}/{name}") == tmp_path / expected
  (tmp_path / "my|ab").touch()
  with pytest.raises(InputError, match="'.*my ab' or '.*my|ab'. Rename one"):
    sources.resolve_path(f"{tmp_path}/my?ab")
  (tmp_path / "a b").mkdir()
  (tmp_path / "a b" / "ab").touch()
  assert find_pairs(f"files path={tmp_path}/a?b/ab") == {PAIRS["ab"]}
  assert calls[-1]["path"] == f"{tmp_path}/a b/ab"


def test_paths_expand_the_home_folder_and_default_to_wordnet_dir(
  monkeypatch, tmp_path, calls
):
  monkeypatch.setenv("HOME", str(tmp_path))
  find_pairs("files path=~/ab")
  assert calls[-1]["path"] == f"{tmp_path}/ab"
  assert find_pairs("wordnet", wordnet_dir="/w") == {("a", "c")}
  find_pairs("wordnet folder=/own | flags", wordnet_dir="/w")
  assert [c["folder"] for c in calls if "folder" in c] == ["/w", "/own"]


def test_every_source_is_checked_without_a_vocabulary(tmp_path, monkeypatch):
  calls = []

  def strict(vocabulary, *, path: str, top: int = 10):
    calls.append((vocabulary.tokens, path, top))
    if top < 1:
      raise InputError("top")

  monkeypatch.setitem(sources.SOURCES, "strict", strict)
  (tmp_path / "a b").touch()
  text = f"strict path={tmp_path}/a?b & strict path=x top=2"
  parse = sources.parse_expression
  sources.check_sources(parse(text))
  assert calls == [((), f"{tmp_path}/a b", 10), ((), "x", 2)]
  with pytest.raises(InputError, match="top"):
    sources.check_sources(parse("strict path=x & strict path=x top=0"))
  sources.check_sources(parse("model"))


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


@pytest.mark.slow
def test_order_does_not_depend_on_hashes(tmp_path):
  examples = {}
  for name in NAMES:
    (tmp_path / name).mkdir()
    examples[name] = make_options(name, tmp_path / name)
  code = (
    "import json, sys; from truenegs_jax.synonyms import sources, vocabulary;"
    " tokens, examples = json.load(sys.stdin);"
    " v = vocabulary.Vocabulary(tokens); print([list("
    "sources.SOURCES[name](v, **o)) for name, o in examples.items()])"
  )
  printed = [
    subprocess.run(
      [sys.executable, "-c", code],
      input=json.dumps([VOCABULARY, examples]),
      env={**os.environ, "PYTHONHASHSEED": seed},
      capture_output=True,
      text=True,
      check=True,
    ).stdout
    for seed in ("1", "2")
  ]
  assert printed[0] == printed[1] and "home" in printed[0]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_can_be_set_in_an_expression(name):
  first, *options = inspect.signature(sources.SOURCES[name]).parameters.values()
  assert first.name == "vocabulary"
  assert {option.kind for option in options} == {first.KEYWORD_ONLY}
  required = [o.name for o in options if o.default is o.empty]
  text = " ".join([name, *(f"{key}=x" for key in required)])
  expression = sources.parse_expression(text, language="")
  assert expression.sources[0].options == dict.fromkeys(required, "x")
  for key in required:
    with pytest.raises(InputError, match=f"{name} needs {key}="):
      sources.parse_expression(name)


@pytest.mark.parametrize("name", ["vectors", "pairs", "omw", "table"])
def test_missing_files_are_named(name, tmp_path):
  for path in ("", "nowhere", "~nobody/v", str(tmp_path), "a\0b"):
    with pytest.raises(InputError, match="source of synonyms") as caught:
      sources.SOURCES[name](Vocabulary(()), path=path)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("tokens", [(), VOCABULARY])
@pytest.mark.parametrize(
  "name, changes, message",
  [
    ("wordnet", {"pos": "x"}, "pos='x'.*nouns.*verbs"),
    ("wordnet", {"folder": "~nobody/w"}, "no WordNet in '~nobody/w'"),
    ("omw", {"pos": "x"}, "pos='x'.*nouns.*verbs"),
    ("vectors", {"top": 0}, "top=0 .*top to 1 or more"),
    ("vectors", {"threshold": 1.1}, "threshold=1.1 .*from -1 to 1"),
    ("vectors", {"threshold": -1.1}, "threshold=-1.1 "),
    ("vectors", {"threshold": float("nan")}, "threshold=nan "),
    ("vectors", {"among": "words"}, "among=words .*vocabulary or file"),
  ],
)
def test_invalid_options_are_refused_at_the_call(
  tmp_path, tokens, name, changes, message
):
  options = make_options(name, tmp_path)
  sources.SOURCES[name](Vocabulary(tokens), **options)
  with pytest.raises(InputError, match=message):
    sources.SOURCES[name](Vocabulary(tokens), **options | changes)


@pytest.mark.parametrize("tokens", [(), VOCABULARY])
@pytest.mark.parametrize(
  "name, content",
  [(name, "") for name in ("vectors", "pairs", "omw", "table")]
  + [("vectors", "some words"), ("pairs", "word"), ("pairs", "a\tb\tc")]
  + [("omw", "house home"), ("table", "PK cut off")],
)
def test_files_of_another_format_are_refused_at_the_call(
  tmp_path, tokens, content, name
):
  path = tmp_path / "file.txt"
  path.write_text(content)
  with pytest.raises(DataError, match="file.txt"):
    sources.SOURCES[name](Vocabulary(tokens), path=str(path))
