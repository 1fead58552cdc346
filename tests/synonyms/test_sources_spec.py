"""The language of negatives.sources, on sources that are made up here."""

from typing import Any

import pytest

from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources, sources_spec, table

TOKENS = ("[PAD]", "##s", "a", "b", "c", "d")
READ = {"ab": ("a", "b"), "bc": ("b", "c"), "cd": ("c", "d"), "ba": ("b", "a")}


@pytest.fixture(autouse=True)
def calls(monkeypatch):
  """Three sources; what the last of them was called with."""
  called = []

  def files(tokens, *, path: str, top: int = 10):
    """The pairs that the file's name holds, such as ab-bc."""
    assert tokens == TOKENS
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


def pairs(text, **kwargs):
  return set(sources_spec.pairs_of(sources_spec.parse(text), TOKENS, **kwargs))


def named(*names):
  return {READ[name] for name in names}


def test_union_intersection_and_their_precedence():
  assert pairs("files path=ab-bc") == named("ab", "bc")
  assert pairs("files path=ab | files path=cd") == named("ab", "cd")
  assert pairs("files path=ab-bc&files path=bc-cd") == named("bc")
  text = "files path=ab | files path=bc-cd & files path=cd & files path=cd-ab"
  assert pairs(text) == named("ab", "cd")
  text = "files path=bc-cd & files path=cd | files path=ab"
  assert pairs(text) == named("ab", "cd")


def test_pairs_are_directed_when_both_must_have_them():
  assert pairs("files path=ab & files path=ba") == set()


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
    ("", "empty part"),
    ("   ", "empty part"),
    ("flags |", "'flags |' has an empty part"),
    ("& flags", "empty part"),
    ("flags || flags", "empty part"),
    ("(flags | wordnet) & flags", r"no brackets.*'a & c \| b & c'"),
    ("flags & ( wordnet )", "no brackets"),
    (
      "thesaurus",
      "'thesaurus'; known: .*files, flags, model, .*table.*wordnet",
    ),
    ("flags word=x | Wordnet", "'Wordnet'; known"),
    (
      "flags size=3",
      "'size=3' is no option of flags; known: word=, cut=, both=",
    ),
    ("flags reader=x", "no option of flags; known: word=, cut=, both= "),
    ("flags tokens=x", "no option"),
    ("flags both", "'both': give true or false"),
    ("flags word=", "'word=': give a word"),
    ("flags both=True", "'both=True': give true or false"),
    ("flags cut=high", "'cut=high': give a number"),
    ("flags cut=nan", "give a number"),
    ("files path=ab top=2.5", "'top=2.5': give a whole number"),
    ("files path=ab top=1 top=2", "top= is given twice"),
    ("files top=1", "files needs path="),
    ("files path=ab|cd.txt", r"no source 'cd.txt'.*[|] or & is written [?]"),
    ('files path="a|b"', "'path=\"a': leave out the quotes .*written [?]"),
    ("files path='my file.txt'", "leave out the quotes"),
    ("files path=my file.txt", "'file.txt' is no option.*space.*written [?]"),
    ("model | flags", "stands alone"),
    ("flags & model", "stands alone"),
    ("model & model", "stands alone"),
    ("model size=3", "no option of model; known: top=, threshold=, every="),
    ("model top=0", "top and every must be at least 1"),
    ("model every=0", "at least 1"),
    ("model threshold=1.5", "from -1 to 1"),
  ],
)
def test_what_cannot_be_is_refused_with_the_way_out(text, words):
  with pytest.raises(InputError, match=f"^negatives.sources: .*{words}"):
    sources_spec.parse(text)


def test_the_models_own_table_has_no_pairs_of_its_own():
  asked = sources_spec.parse("model  threshold=0.4 top=3")
  assert asked.model == sources_spec.ModelTable(
    top=3, threshold=0.4, every=1000
  )
  assert (asked.union, asked.paths, asked.sources) == ((), (), ())
  assert asked.identity == "model threshold=0.4 top=3"
  assert list(sources_spec.pairs_of(asked, TOKENS)) == []
  assert sources_spec.parse("flags").model is None


def test_identity_is_one_way_of_writing_without_folders_and_defaults():
  one = sources_spec.parse(
    "files top=3  path=/x/ab&flags cut=0.50 both=true|wordnet"
  )
  two = sources_spec.parse(
    "files path=~/y/ab top=3 & flags both=true | wordnet"
  )
  assert one.identity == "files path=ab top=3 & flags both=true | wordnet"
  assert two.identity == one.identity
  assert one.identity != sources_spec.parse("files path=ab top=4").identity
  assert sources_spec.parse(one.identity).identity == one.identity
  assert (
    sources_spec.parse("wordnet folder=/x/my/").identity == "wordnet folder=my"
  )


def test_paths_are_those_named_as_written():
  asked = sources_spec.parse(
    "files path=~/ab & wordnet folder=/w | files path=cd"
  )
  assert asked.paths == ("~/ab", "/w", "cd")
  assert [s.name for s in asked.sources] == ["files", "wordnet", "files"]


def test_a_question_mark_in_a_path_is_a_space_or_an_operator(tmp_path, calls):
  for name in ("my ab", "x|ab", "y&ab", "zzab", "q?ab"):
    (tmp_path / name).touch()
  for name, found in (
    ("my?ab", "my ab"),
    ("x?ab", "x|ab"),
    ("y?ab", "y&ab"),
    ("q?ab", "q?ab"),
    ("zz?ab", "zz?ab"),  # there is none
    ("z?ab", "z?ab"),  # stands for no other letter
  ):
    assert sources_spec.locate(f"{tmp_path}/{name}") == tmp_path / found
  (tmp_path / "my|ab").touch()
  with pytest.raises(InputError, match="'.*my ab' or '.*my|ab'; rename one"):
    sources_spec.locate(f"{tmp_path}/my?ab")
  (tmp_path / "a b").mkdir()
  (tmp_path / "a b" / "ab").touch()
  assert pairs(f"files path={tmp_path}/a?b/ab") == named("ab")
  assert calls[-1]["path"] == f"{tmp_path}/a b/ab"


def test_other_signs_of_globs_stand_for_themselves(tmp_path):
  (tmp_path / "a b").touch()
  assert sources_spec.locate(f"{tmp_path}/*?b") == tmp_path / "*?b"
  (tmp_path / "[a] b").touch()
  assert sources_spec.locate(f"{tmp_path}/[a]?b") == tmp_path / "[a] b"


def test_a_home_folder_is_found(monkeypatch, tmp_path, calls):
  monkeypatch.setenv("HOME", str(tmp_path))
  pairs("files path=~/ab")
  assert calls[-1]["path"] == f"{tmp_path}/ab"


def test_the_configs_wordnet_is_the_one_where_no_folder_is_given(calls):
  assert pairs("wordnet", wordnet_dir="/w") == {("a", "c")}
  pairs("wordnet folder=/own | flags", wordnet_dir="/w")
  assert [c["folder"] for c in calls if "folder" in c] == ["/w", "/own"]


def test_every_source_is_checked_without_a_vocabulary(tmp_path, monkeypatch):
  called = []

  def strict(tokens, *, path: str, top: int = 10):
    called.append((tokens, path, top))
    if top < 1:
      raise InputError("top")

  def wordnet(tokens, *, folder: str = ""):
    called.append((tokens, folder))

  for fn in (strict, wordnet):
    monkeypatch.setitem(sources.SOURCES, fn.__name__, fn)
  (tmp_path / "a b").touch()
  text = f"wordnet & strict path={tmp_path}/a?b | wordnet folder=/own"
  sources_spec.check(sources_spec.parse(text), wordnet_dir="/w")
  assert called == [((), "/w"), ((), f"{tmp_path}/a b", 10), ((), "/own")]
  with pytest.raises(InputError, match="top"):
    sources_spec.check(
      sources_spec.parse("wordnet | wordnet & strict path=x top=0")
    )
  sources_spec.check(sources_spec.parse("model"))


@pytest.mark.parametrize("include_self", [False, True])
def test_a_saved_table_is_a_source(tmp_path, include_self):
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
    list(sources_spec.pairs_of(sources_spec.parse(text), TOKENS[:-1]))
  sources_spec.check(sources_spec.parse(f"table path={tmp_path}/t.npz"))
  (tmp_path / "t.npz").write_bytes(b"PK cut off")
  with pytest.raises(DataError, match="t.npz is not a whole synonym table"):
    sources_spec.check(sources_spec.parse(f"table path={tmp_path}/t.npz"))


def test_every_source_takes_options_that_a_word_can_give():
  for name in ("vectors", "pairs", "omw", "table"):
    with pytest.raises(InputError, match=f"{name} needs path="):
      sources_spec.parse(name)
    assert sources_spec.parse(f"{name} path=x").sources[0].options == {
      "path": "x"
    }
