"""Expressions of sources, on made-up ones; properties of every real source."""

import inspect
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from support.mini_wordnet import write_wordnet
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources, table

TOKENS = ("[PAD]", "##s", "a", "b", "c", "d")
READ = {"ab": ("a", "b"), "bc": ("b", "c"), "cd": ("c", "d"), "ba": ("b", "a")}
NAMES = sorted(sources.SOURCES)


@pytest.fixture
def calls(monkeypatch):
  """Adds sources, one as "wordnet"; yields what they were called with."""
  called = []

  def files(tokens, *, path: str, top: int = 10):
    """The pairs that the file's name lists, such as ab-bc."""
    called.append({"path": path, "top": top})
    return [READ[name] for name in path.rpartition("/")[2].split("-")]

  def flags(
    tokens,
    *,
    word: str = "x",
    cut: float = 0.5,
    both: bool = False,
    reader: Any = None,
  ):
    called.append({"word": word, "cut": cut, "both": both, "reader": reader})
    return [("a", "d")]

  def wordnet(tokens, *, folder: str = ""):
    called.append({"folder": folder})
    return [("a", "c")]

  for fn in (files, flags, wordnet):
    monkeypatch.setitem(sources.SOURCES, fn.__name__, fn)
  return called


def pairs(text, tokens=TOKENS, **options):
  return set(
    sources.find_pairs(sources.parse_expression(text), tokens, **options)
  )


# Expressions.


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
  assert pairs(text) == {READ[name] for name in names.split()}


def test_options_are_converted_as_they_are_annotated(calls):
  pairs("flags word=3 cut=2 both=true")
  assert calls == [{"word": "3", "cut": 2.0, "both": True, "reader": None}]
  assert isinstance(calls[0]["cut"], float)
  pairs("files  path=ab   top=3 |flags both=false cut=-1e-3")
  assert calls[1] == {"path": "ab", "top": 3}
  assert calls[2]["both"] is False and calls[2]["cut"] == -1e-3


@pytest.mark.parametrize(
  "text, words",
  [
    ("   ", "empty part"),
    ("flags |", "'flags |' has an empty part"),
    ("& flags", "empty part"),
    ("flags || flags", "empty part"),
    ("(flags | wordnet) & flags", r"no brackets.*'a & c \| b & c'"),
    ("thesaurus", "'thesaurus'; known: .*files, flags, model,.*table.*wordnet"),
    ("flags size=3", "'size=3' is no option of flags; known: word=, cut=,"),
    ("flags reader=x", "no option"),
    ("flags tokens=x", "no option"),
    ("flags both", "'both': give true or false"),
    ("flags word=", "'word=': give a word"),
    ("flags both=True", "give true or false"),
    ("flags cut=high", "'cut=high': give a number"),
    ("flags cut=nan", "give a number"),
    ("files path=ab top=2.5", "'top=2.5': give a whole number"),
    ("files path=ab top=1 top=2", "top= is given twice"),
    ("files top=1", "files needs path="),
    ("files path=ab|cd.txt", r"no source 'cd.txt'.*[|] or & is written [?]"),
    ('files path="a|b"', "'path=\"a': leave out the quotes .*written [?]"),
    ("files path=my file.txt", "'file.txt' is no option.*space.*written [?]"),
    ("model | flags", "stands alone"),
    ("model & model", "stands alone"),
    ("model size=3", "no option of model; known: top=, threshold=, every="),
    ("model top=0", "at least 1"),
    ("model every=0", "at least 1"),
    ("model threshold=1.5", "from -1 to 1"),
  ],
)
def test_mistakes_are_refused_under_the_key_that_has_them(calls, text, words):
  with pytest.raises(InputError, match=f"^negatives.sources: .*{words}"):
    sources.parse_expression(text)
  with pytest.raises(InputError, match=f"^mine: .*{words}"):
    sources.parse_expression(text, key="mine")


def test_the_models_own_table_has_no_pairs_of_its_own():
  spec = sources.parse_expression("model  threshold=0.4 top=3")
  assert spec.model == sources.ModelTable(top=3, threshold=0.4, every=1000)
  assert (spec.union, spec.sources) == ((), ())
  assert spec.identity == "model threshold=0.4 top=3"
  assert list(sources.find_pairs(spec, TOKENS)) == []


def test_identity_is_one_way_of_writing_without_folders_and_defaults(calls):
  identity = "files path=ab top=3 & flags both=true | wordnet"
  for text in (
    "files top=3  path=/x/ab&flags cut=0.50 both=true|wordnet",
    "files path=~/y/ab top=3 & flags both=true | wordnet",
    identity,
  ):
    assert sources.parse_expression(text).identity == identity
  assert (
    sources.parse_expression("files path=ab top=4").identity != identity[:19]
  )
  folder = sources.parse_expression("wordnet folder=/x/my/")
  assert folder.identity == "wordnet folder=my"
  assert folder.sources[0].paths == {"folder": "/x/my/"}


def test_a_question_mark_in_a_path_is_a_space_or_an_operator(tmp_path, calls):
  for name in ("my ab", "x|ab", "y&ab", "zzab", "q?ab", "[a] b"):
    (tmp_path / name).touch()
  for name, expected in (
    ("my?ab", "my ab"),
    ("x?ab", "x|ab"),
    ("y?ab", "y&ab"),
    ("q?ab", "q?ab"),
    ("z?ab", "z?ab"),  # stands for no other letter
    ("[a]?b", "[a] b"),  # no other sign is a pattern
    ("*?b", "*?b"),
  ):
    assert sources.resolve_path(f"{tmp_path}/{name}") == tmp_path / expected
  (tmp_path / "my|ab").touch()
  with pytest.raises(InputError, match="'.*my ab' or '.*my|ab'; rename one"):
    sources.resolve_path(f"{tmp_path}/my?ab")
  (tmp_path / "a b").mkdir()
  (tmp_path / "a b" / "ab").touch()
  assert pairs(f"files path={tmp_path}/a?b/ab") == {READ["ab"]}
  assert calls[-1]["path"] == f"{tmp_path}/a b/ab"


def test_home_folder_and_wordnet_of_the_config(monkeypatch, tmp_path, calls):
  monkeypatch.setenv("HOME", str(tmp_path))
  pairs("files path=~/ab")
  assert calls[-1]["path"] == f"{tmp_path}/ab"
  assert pairs("wordnet", wordnet_dir="/w") == {("a", "c")}
  pairs("wordnet folder=/own | flags", wordnet_dir="/w")
  assert [c["folder"] for c in calls if "folder" in c] == ["/w", "/own"]


def test_every_source_is_checked_without_a_vocabulary(tmp_path, monkeypatch):
  called = []

  def strict(tokens, *, path: str, top: int = 10):
    called.append((tokens, path, top))
    if top < 1:
      raise InputError("top")

  monkeypatch.setitem(sources.SOURCES, "strict", strict)
  (tmp_path / "a b").touch()
  text = f"strict path={tmp_path}/a?b & strict path=x top=2"
  sources.check_sources(sources.parse_expression(text))
  assert called == [((), f"{tmp_path}/a b", 10), ((), "x", 2)]
  with pytest.raises(InputError, match="top"):
    sources.check_sources(
      sources.parse_expression("strict path=x & strict path=x top=0")
    )
  sources.check_sources(sources.parse_expression("model"))


@pytest.mark.parametrize("include_self", [False, True])
def test_a_saved_table_is_a_source(tmp_path, calls, include_self):
  built = table.build_table(
    [("a", "b"), ("c", "a")],
    TOKENS,
    source="x",
    keep_stop_words=True,
    include_self=include_self,
  )
  table.save_table(built, tmp_path / "t.npz")
  text = f"table path={tmp_path}/t.npz | files path=cd"
  assert pairs(text) == {("a", "b"), ("c", "a"), ("c", "d")}
  with pytest.raises(DataError, match="vocabulary"):
    pairs(text, TOKENS[:-1])


# Every real source. All of ALIKE, words, pieces, specials and phrases, may
# stand for one another by each of them.

ASKED = "[PAD] you House home firm [house] house ##house Home".split()
ALIKE = "home house firm House [house] ##house business_firm hut Home".split()


def example(name, folder):
  """Options with which the source says that all of ALIKE are alike."""
  path = folder / "example"
  if name == "wordnet":
    return {"folder": str(write_wordnet(folder / "wordnet"))}
  if name == "pairs":
    path.write_text("".join(f"{w} {' '.join(ALIKE)}\n" for w in ALIKE))
  elif name == "omw":
    lines = [f"00000001-n\tlemma\t{w}\n" for w in ALIKE]
    path.write_text("# example\n" + "".join(lines))
  elif name == "vectors":
    path.write_text("".join(f"{w} 1 {i}\n" for i, w in enumerate(ALIKE)))
  elif name == "table":
    alike = [(a, b) for a in ALIKE for b in ALIKE if a.lower() != b.lower()]
    table.save_table(table.build_table(alike, ASKED, source="example"), path)
  else:
    pytest.fail(f"write an example for the source {name}")
  return {"path": str(path)}


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_different_words_once_and_in_order(name, tmp_path):
  options = example(name, tmp_path)
  listed, again = (
    list(sources.SOURCES[name](ASKED, **options)) for _ in range(2)
  )
  assert listed == again and len(set(listed)) == len(listed)
  assert {("home", "firm"), ("home", "house")} & set(listed)
  for word, synonym in listed:
    assert {word, synonym} <= {"House", "home", "firm", "house", "Home"}
    assert word.lower() != synonym.lower()
  words = [ASKED.index(word) for word, _ in listed]
  assert words == sorted(words)


@pytest.mark.slow
def test_order_does_not_depend_on_hashes(tmp_path):
  examples = {}
  for name in NAMES:
    (tmp_path / name).mkdir()
    examples[name] = example(name, tmp_path / name)
  code = (
    "import json, sys; from truenegs_jax.synonyms import sources;"
    " tokens, examples = json.load(sys.stdin); print([list("
    "sources.SOURCES[name](tokens, **o)) for name, o in examples.items()])"
  )
  printed = [
    subprocess.run(
      [sys.executable, "-c", code],
      input=json.dumps([ASKED, examples]),
      env={**os.environ, "PYTHONHASHSEED": seed},
      capture_output=True,
      text=True,
      check=True,
    ).stdout
    for seed in ("1", "2")
  ]
  assert printed[0] == printed[1] and "home" in printed[0]


@pytest.mark.parametrize("name", NAMES)
def test_options_can_be_given_in_an_expression(name):
  first, *options = inspect.signature(sources.SOURCES[name]).parameters.values()
  assert first.name == "tokens"
  assert {option.kind for option in options} == {first.KEYWORD_ONLY}
  needed = [o.name for o in options if o.default is o.empty]
  spec = sources.parse_expression(
    " ".join([name, *(f"{key}=x" for key in needed)])
  )
  assert spec.sources[0].options == dict.fromkeys(needed, "x")
  for key in needed:
    with pytest.raises(InputError, match=f"{name} needs {key}="):
      sources.parse_expression(name)


@pytest.mark.parametrize("name", ["vectors", "pairs", "omw", "table"])
def test_files_that_are_not_there_are_named(name, tmp_path):
  for path in ("", "nowhere", "~nobody/v", str(tmp_path), "a\0b"):
    with pytest.raises(InputError, match="source of synonyms") as caught:
      sources.SOURCES[name]((), path=path)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("tokens", [(), ASKED])
@pytest.mark.parametrize(
  "name, changes, words",
  [
    ("wordnet", {"pos": "x"}, "pos='x'.*nouns.*verbs"),
    ("wordnet", {"folder": "~nobody/w"}, "no WordNet in '~nobody/w'"),
    ("omw", {"pos": "x"}, "pos='x'.*nouns.*verbs"),
    ("vectors", {"top": 0}, "top=0 .*at least 1"),
    ("vectors", {"threshold": 1.1}, "threshold=1.1 .*from -1 to 1"),
    ("vectors", {"threshold": -1.1}, "threshold=-1.1 "),
    ("vectors", {"threshold": float("nan")}, "threshold=nan "),
    ("vectors", {"among": "words"}, "among=words: .*vocabulary or file"),
  ],
)
def test_options_are_refused_before_a_pair_is_asked_for(
  tmp_path, tokens, name, changes, words
):
  options = example(name, tmp_path)
  sources.SOURCES[name](tokens, **options)
  with pytest.raises(InputError, match=words):
    sources.SOURCES[name](tokens, **options | changes)


@pytest.mark.parametrize("tokens", [(), ASKED])
@pytest.mark.parametrize(
  "name, content",
  [(name, "") for name in ("vectors", "pairs", "omw", "table")]
  + [("vectors", "some words"), ("pairs", "word"), ("pairs", "a\tb\tc")]
  + [("omw", "house home"), ("table", "PK cut off")],
)
def test_files_that_begin_as_something_else_are_refused_before(
  tmp_path, tokens, content, name
):
  path = tmp_path / "file.txt"
  path.write_text(content)
  with pytest.raises(DataError, match="file.txt"):
    sources.SOURCES[name](tokens, path=str(path))
