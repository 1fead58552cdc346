"""Parts, their keys, their mixtures; what is wrong is said before reading."""

import json
import os
import shutil

import numpy as np
import pytest

from truenegs_jax.data.corpus import read_state
from truenegs_jax.data.corpus.corpus import Meter
from truenegs_jax.data.corpus.sources_spec import named_sources, open_corpus
from truenegs_jax.runtime.errors import DataError, InputError, TrueNegsError


class Reader:
  """A WordNet of nothing."""

  def all_synsets(self, pos):
    return []


def make(folder, name: str, sizes, seed: int = 0) -> list[str]:
  """Writes documents of these sizes in bytes; a multiple of 3 is not ASCII."""
  texts = []
  for i, size in enumerate(sizes):
    start = f"{name[0]}{i} "
    rest = size - len(start)
    fill = (
      "x" * (rest % 3) + "語" * (rest // 3) if size % 3 == 0 else "x" * rest
    )
    texts.append(start + fill)
  (folder / name).write_text("\n\n".join(texts), encoding="utf-8")
  return texts


def passes(spec: str, **how):
  corpus = open_corpus(spec, **how)
  meter = Meter()
  found = list(corpus.read(meter))
  assert list(corpus.read(Meter())) == found
  assert meter.fraction_read == 1.0
  texts = [document.text for document in found]
  sizes = [
    sum(len(d.text.encode()) for d in found if d.part == part)
    for part in range(len(corpus.parts))
  ]
  assert meter.part_bytes == sizes
  assert sum(meter.part_documents) == len(texts)
  return found, meter


# The spec.


def test_paths_may_hold_what_options_are_made_of(tmp_path):
  folder = tmp_path / "my texts [v=1] weight=9"
  folder.mkdir()
  for name in ("a b=c.txt", "split=train.txt", "d [2].txt"):
    texts = make(folder, name, [20])
    assert list(open_corpus(f" {folder}/{name} ")) == texts
    for keys in ("weight=2", "document=block  weight=1e-3"):
      assert list(open_corpus(f"{folder}/{name}  {keys}")) == texts
  folder = folder.rename(tmp_path / "my texts [v=1]")
  assert len(list(open_corpus(f"{folder}/*=c.txt, {folder}/d*.txt"))) == 2
  assert len(list(open_corpus(f"{folder} document=record"))) == 3


@pytest.mark.parametrize(
  "spec, message",
  [
    ("", "part 1 is empty"),
    ("{a},,{b}", "part 2 is empty"),
    ("wordnet,", "part 2 is empty"),
    ("weight=3", "'weight=3': it has keys and no name or path"),
    ("hf:", "'hf:': it has keys and no name"),
    ("{a} weight=0", "weight=0: give a number above 0"),
    ("{a} weight=nan", "weight=nan: give"),
    ("{a} weight=many", "weight=many: give"),
    ("{a} weight=", "weight= has no value"),
    ("{a} weight=1 weight=2", "weight= is given twice"),
    ("{a} document=line", "document=line: give one of block, record, file"),
    ("hf:x streaming=yes", "streaming=yes: give one of true, false"),
    ("{a} weight=1, {b}", "for 1 of 2 parts; give it for '.*b.txt', too"),
    ("{a}, {b} weight=1", "for 1 of 2 parts; give it for '.*a.txt', too"),
    ("{a} column=text", "column= is of no use here; its keys are: weight, doc"),
    ("{a} split=train", "split= is of no use here"),
    ("wordnet document=block", "document= is of no use here; .* are: weight"),
    ("{a} wieght=3", "'.*a.txt wieght=3': .*wieght= .* are weight, document"),
    ("{a} wieght=3 document=block", "wieght= is meant as a key, it is none"),
    ("{a} document=block wieght=3", "wieght= is meant as a key, it is none"),
    ("hf:owner/set split=test confg=en", "confg= is meant as a key"),
    ("{a}, {a}*", "a.txt is in .*: name it once"),
  ],
)
def test_mistakes_in_a_spec_are_named(tmp_path, spec, message):
  for name in "ab":
    make(tmp_path, f"{name}.txt", [10])
  spec = spec.format(a=tmp_path / "a.txt", b=tmp_path / "b.txt")
  with pytest.raises(InputError, match=message):
    open_corpus(spec, reader=Reader())


@pytest.mark.parametrize(
  "spec, message",
  [
    ("wordnet", "'wordnet' needs reader; pass"),
    ("wordnot", r"no file.*known: hf, wordnet"),
    ("none-*.txt", r"no file.*known: hf, wordnet"),
    ("n.txt", r"no file.*known: hf, wordnet"),
    ("a\0b", r"no file.*known: hf, wordnet"),
    ("empty", "holds no text file"),
  ],
)
def test_a_missing_part_is_named_at_once(tmp_path, monkeypatch, spec, message):
  monkeypatch.chdir(tmp_path)
  make(tmp_path, "a.txt", [10])
  (tmp_path / "empty").mkdir()
  with pytest.raises((DataError, InputError), match=message):
    open_corpus(f"a.txt, {spec}")


def test_needs_names_the_sources_that_need_something(tmp_path):
  assert (
    named_sources(f"{tmp_path}/wordnet, hf:a/b, texts/*.txt weight=1") == set()
  )
  assert named_sources("x.txt, wordnet weight=2") == {"wordnet"}
  with pytest.raises(InputError, match="part 1 is empty"):
    named_sources("")


def test_what_stops_the_first_record_is_found_when_a_corpus_is_opened(tmp_path):
  make(tmp_path, "a.txt", [10])
  (tmp_path / "b.jsonl").write_text('{"content": "b"}\n')
  (tmp_path / "c.csv").write_text("content\nc\n")
  for name in ("b.jsonl", "c.csv"):
    with pytest.raises(DataError, match="no column 'text'; there are: content"):
      open_corpus(f"{tmp_path}/a.txt, {tmp_path}/{name}")
  texts = list(open_corpus(f"{tmp_path} column=content"))
  assert texts == ["a0 " + "x" * 7, "b", "c"]


# What is read.


def test_parts_come_one_after_the_other_or_take_turns(tmp_path):
  texts = [make(tmp_path, f"{name}.txt", [10] * 3) for name in "abc"]
  names = [f"{tmp_path}/{name}.txt" for name in "bac"]
  found, meter = passes(", ".join(names))
  assert [d.text for d in found] == texts[1] + texts[0] + texts[2]
  assert [(d.part, d.number, d.repeat) for d in found] == [
    (part, number, 0) for part in range(3) for number in range(3)
  ]
  assert meter.part_bytes == [30] * 3 and meter.part_documents == [3] * 3
  spec = ", ".join(f"{name} weight=7" for name in names)
  found, _ = passes(spec)
  assert "".join(d.text[:2] for d in found) == "b0a0c0b1a1c1b2a2c2"
  corpus = open_corpus(spec)
  assert corpus.part_names() == names and corpus.names() == ", ".join(names)
  assert corpus.is_local()


@pytest.mark.parametrize("stopping", ["all", "first"])
@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 0.5), (1, 20, 4)])
def test_shares_of_the_text_follow_the_weights(tmp_path, weights, stopping):
  rng = np.random.default_rng(0)
  texts = [
    make(tmp_path, f"{name}.txt", rng.integers(10, 400, count))
    for name, count in zip("abc", (300, 40, 120), strict=True)
  ]
  spec = ", ".join(
    f"{tmp_path}/{name}.txt weight={weight}"
    for name, weight in zip("abc", weights, strict=True)
  )
  found, meter = passes(spec, stopping=stopping)
  sizes, shares = np.zeros(3), np.array(weights) / sum(weights)
  for document in found:
    sizes[document.part] += len(document.text.encode())
    # Never a document too far: the part that lagged most had its turn.
    assert np.all(sizes - shares * sizes.sum() < 400)
  # Each part is read in its order, from its start again after its end.
  for part in range(3):
    mine = [d for d in found if d.part == part]
    count = len(texts[part])
    assert [d.text for d in mine] == [
      texts[part][i % count] for i in range(len(mine))
    ]
    assert [(d.number, d.repeat) for d in mine] == [
      (i % count, i // count) for i in range(len(mine))
    ]
  # It ends with the document that ends the part it has waited for.
  last = found[-1]
  assert last.number + 1 == len(texts[last.part]) and last.repeat == 0
  num_passes = [
    sum(d.part == part for d in found) / len(texts[part]) for part in range(3)
  ]
  if stopping == "all":
    assert min(num_passes) == 1.0 == num_passes[last.part]
  else:
    assert max(num_passes) == 1.0 == num_passes[last.part]
    assert sorted(num_passes)[1] < 1.0


@pytest.mark.parametrize("weights", [("", ""), (" weight=1", " weight=99")])
@pytest.mark.parametrize("errors", ["strict", "replace"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_empty_part_is_never_a_smaller_mixture(
  tmp_path, weights, errors, order
):
  make(tmp_path, "a.txt", [10] * 5)
  (tmp_path / "b.txt").write_text("\n \n")
  names = [
    f"{tmp_path}/{name}.txt{w}" for name, w in zip("ab", weights, strict=True)
  ]
  corpus = open_corpus(", ".join(names[i] for i in order), errors=errors)
  documents = corpus.read(Meter())
  with pytest.raises(DataError, match="b.txt.*no document|no document.*b.txt"):
    for _ in range(2):  # at once, not after an hour
      next(documents)


def test_a_pass_can_be_left_and_begun_again(tmp_path):
  texts = make(tmp_path, "a.txt", [50_000] * 100)
  corpus = open_corpus(f"{tmp_path}/a.txt")
  meter = Meter()
  for _ in range(3):
    documents = corpus.read(meter)
    assert [next(documents).text for _ in range(7)] == texts[:7]
    assert meter.part_documents == [7] and 0 < meter.fraction_read < 0.5
    documents.close()
  both = list(zip(corpus.read(Meter()), corpus.read(Meter()), strict=True))
  assert [a.text for a, _ in both] == texts and all(a == b for a, b in both)
  assert not [n for n in os.listdir("/dev/fd") if is_under(tmp_path, n)]


def is_under(folder, descriptor) -> bool:
  path = f"/dev/fd/{descriptor}"
  return os.path.exists(path) and os.path.realpath(path).startswith(str(folder))


# What is told.


@pytest.mark.parametrize("parts", ["{0}/a.txt, {0}/b.txt", "{0}"])
def test_the_meter_counts_and_knows_how_far_it_is(tmp_path, parts):
  make(tmp_path, "a.txt", [20_000] * 150)
  make(tmp_path, "b.txt", [1_000] * 1_000)
  corpus = open_corpus(parts.format(tmp_path))
  meter, whole = Meter(), 4_000_000
  last = 0.0
  for _ in corpus.read(meter):
    # Blocks are read ahead of their documents.
    assert meter.fraction_read >= last
    assert -0.01 < meter.fraction_read - sum(meter.part_bytes) / whole < 0.14
    last = meter.fraction_read
  assert meter.fraction_read == 1.0
  sizes = [3_000_000, 1_000_000] if len(corpus.parts) == 2 else [whole]
  assert meter.part_bytes == sizes and sum(meter.part_documents) == 1_150


def test_what_is_odd_is_counted_once_however_often_it_is_read(tmp_path):
  (tmp_path / "a.txt").write_bytes(b"a\xff\n\nb\0")
  make(tmp_path, "b.txt", [10] * 50)
  spec = f"{tmp_path}/a.txt weight=1, {tmp_path}/b.txt weight=1"
  found, meter = passes(spec, errors="replace")
  assert max(d.repeat for d in found) > 2
  assert meter.oddities == {read_state.NOT_UTF8: 1, read_state.NUL: 1}


# The state.


def states_of(folder, spec: str, **how) -> str:
  return json.dumps(open_corpus(spec.format(folder), **how).identity())


def test_the_state_is_that_of_the_documents(tmp_path):
  folder = tmp_path / "corpus"
  (folder / "sub").mkdir(parents=True)
  make(folder, "a.txt", [10, 20])
  make(folder / "sub", "b.txt", [30])
  (folder / "c.jsonl").write_text('{"text": "c", "title": "d"}\n')
  specs = [
    "{0}",
    "{0} document=block",
    "{0} document=record",
    "{0} document=file",
    "{0} column=title",
    "{0}/*.txt",
    "{0}/sub/*.txt, {0}/a.txt",
    "{0}/a.txt, {0}/sub/*.txt",
    "{0}/a.txt weight=1, {0}/sub weight=1",
    "{0}/a.txt weight=1, {0}/sub weight=2",
  ]
  found = [states_of(folder, spec) for spec in specs]
  found.append(states_of(folder, specs[-1], stopping="first"))
  found.append(states_of(folder, specs[-1], errors="replace"))
  assert len(set(found)) == len(found)
  # Files of one name, size and time are told apart by how they begin.
  states = []
  for name, text in (("en", "swans"), ("de", "Schwa")):
    (tmp_path / name).mkdir()
    (tmp_path / name / "0.txt").write_text(text)
    os.utime(tmp_path / name / "0.txt", (0, 0))
    states.append(states_of(tmp_path / name, "{0}"))
  assert states[0] != states[1]
  # What is the same under another name.
  assert states_of(folder, "{0} column=text") == found[0]
  assert states_of(folder, specs[6], stopping="first") == found[6]
  mixture = "{0}/a.txt weight=2, {0}/sub weight=4"
  assert states_of(folder, mixture) == found[9]
  moved = tmp_path / "elsewhere"
  folder.rename(moved)
  copied = tmp_path / "copied"
  shutil.copytree(moved, copied)
  for place in (moved, copied):
    assert [states_of(place, spec) for spec in specs] == found[: len(specs)]


@pytest.mark.parametrize(
  "change", ["content", "time", "new", "gone", "renamed"]
)
def test_the_state_changes_with_the_files(tmp_path, change):
  make(tmp_path, "a.txt", [10])
  make(tmp_path, "b.txt", [10])
  corpus = open_corpus(str(tmp_path))
  before = corpus.identity()
  assert corpus.identity() == before
  path = tmp_path / "b.txt"
  if change == "content":
    path.write_text("other")
  elif change == "time":
    os.utime(path, ns=(1, 1))
  elif change == "new":
    make(tmp_path, "c.txt", [10])
  elif change == "gone":
    path.unlink()
  else:
    path.rename(tmp_path / "0.txt")
  assert corpus.identity() != before
  assert open_corpus(str(tmp_path)).identity() == corpus.identity()
  if change != "new":
    with pytest.raises(DataError, match="changed while|cannot be read"):
      list(corpus)


def test_whatever_a_spec_says_it_is_a_corpus_or_our_error(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  make(tmp_path, "a.txt", [10])
  (tmp_path / "b=c d").mkdir()
  make(tmp_path / "b=c d", "e.txt", [10])
  parts = [*"*~.?, =1-x\n[]é\0\udcff\t", "a.txt", "b=c d", "**", "[a]*", ".."]
  parts += [
    "weight=",
    "weight=2",
    "nan",
    "wordnet",
    "text",
    "document=",
    "block",
  ]
  parts += ["column=", " document=record", "split=train", "a" * 300]
  rng = np.random.default_rng(0)
  num_opened = 0
  for _ in range(int(os.environ.get("TRUENEGS_FUZZ", "300"))):
    spec = "".join(rng.choice(parts, rng.integers(1, 6)))
    spec = spec.replace("~", "~x").replace("..", "")  # of this folder alone
    try:
      corpus = open_corpus(spec, reader=Reader())
      num_opened += bool(list(corpus)) and bool(corpus.names())
    except TrueNegsError as error:
      assert str(error)
  assert num_opened > 5


def test_a_format_can_be_given(tmp_path):
  (tmp_path / "wiki_00").write_text('{"text": "a swan"}\n{"text": "b"}\n')
  assert list(open_corpus(f"{tmp_path}/wiki_* format=jsonl")) == ["a swan", "b"]
  with pytest.raises(InputError, match="format=xml: give one of csv, jsonl"):
    open_corpus(f"{tmp_path}/wiki_* format=xml")
