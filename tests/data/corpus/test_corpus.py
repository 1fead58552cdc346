"""Tests corpora: specs, mixtures, progress and identity."""

import json
import os
import shutil

import numpy as np
import pytest

from truenegs_jax.data.corpus import readers
from truenegs_jax.data.corpus.corpus import ReadCounts
from truenegs_jax.data.corpus.sources_spec import named_sources, open_corpus
from truenegs_jax.runtime.errors import DataError, InputError, TrueNegsError


class EmptyWordNet:
  """A WordNet reader without synsets."""

  def all_synsets(self, pos):
    return []


def write_documents(folder, name: str, sizes) -> list[str]:
  """Writes documents of these sizes in bytes; not ASCII for multiples of 3."""
  texts = []
  for i, size in enumerate(sizes):
    start = f"{name[0]}{i} "
    wide = (size - len(start)) // 3 if size % 3 == 0 else 0
    narrow = size - len(start) - 3 * wide
    texts.append(start + "x" * narrow + "語" * wide)
  (folder / name).write_text("\n\n".join(texts), encoding="utf-8")
  return texts


def read_twice(spec: str, **options):
  """Checks that two passes are equal and returns one with its counts."""
  corpus = open_corpus(spec, **options)
  read_counts = ReadCounts()
  documents = list(corpus.read(read_counts))
  assert list(corpus.read(ReadCounts())) == documents
  assert read_counts.fraction_read == 1.0
  sizes = [
    sum(len(d.text.encode()) for d in documents if d.part == part)
    for part in range(len(corpus.parts))
  ]
  assert [cursor.num_bytes for cursor in read_counts.cursors] == sizes
  assert read_counts.num_documents == len(documents)
  return documents, read_counts


# The spec.


def test_paths_may_look_like_options_in_quotes(tmp_path):
  folder = tmp_path / "my texts [v=1] weight=9"
  folder.mkdir()
  for name in ("a b=c.txt", "split=train, x.txt", "d [2].txt"):
    texts = write_documents(folder, name, [20])
    for options in ("", " weight=2", " document=block  weight=1e-3"):
      assert list(open_corpus(f"'{folder}/{name}'{options}")) == texts


@pytest.mark.parametrize(
  "spec, message",
  [
    (" ,", "' ,' names no text"),
    ("weight=3", "no name or path before the options"),
    ("hf:", "'hf:': no name or path"),
    ("{a} weight=0", "weight=0 must be above 0"),
    ("{a} weight=nan", "weight=nan must be above 0"),
    ("{a} weight=", "weight= must be a number"),
    ("{a} wieght=3", "no option wieght=. Did you mean weight="),
    ("{a} document=line", "document='line' is unknown.* file or join"),
    ("{a} document=join chars=0", "chars=0 must be above 0"),
    ("{a} document=join chars=1000001", "chars=.* at most 1,000,000"),
    ("{a} min_chars=abc", "min_chars=abc must be a whole number"),
    ("{a} chars=9", "chars= needs document=join"),
    ("wordnet document=join", r"no option document=.* options are weight\."),
    ("hf:x streaming=yes", "streaming=yes must be true or false"),
    ("{a} split=train", "no option split="),
    ("{a} weight=1, {b}", "1 of 2 parts have weight=.* '.*b.txt' as well"),
    ("{a} format=xml", "format='xml' is unknown.* csv, jsonl"),
    ("{a}, {a}*", "a.txt' is in .* only once"),
  ],
)
def test_mistakes_in_a_spec_are_refused(tmp_path, spec, message):
  for name in "ab":
    write_documents(tmp_path, f"{name}.txt", [10])
  spec = spec.format(a=tmp_path / "a.txt", b=tmp_path / "b.txt")
  with pytest.raises(InputError, match=message):
    open_corpus(spec, reader=EmptyWordNet())


@pytest.mark.parametrize(
  "spec, message",
  [
    ("wordnet", "'wordnet' cannot be read here"),
    ("none-*.txt", "no file.* no glob.* hf:NAME"),
    ("a\0b", "no file.* no glob.* hf:NAME"),
    ("empty", "holds no text file"),
    ("hf:no:name", "neither a folder nor a name on the Hugging Face hub"),
  ],
)
def test_missing_parts_are_refused_when_opened(
  tmp_path, monkeypatch, spec, message
):
  monkeypatch.chdir(tmp_path)
  write_documents(tmp_path, "a.txt", [10])
  (tmp_path / "empty").mkdir()
  with pytest.raises((DataError, InputError), match=message):
    open_corpus(f"a.txt, {spec}")


def test_named_sources_of_a_spec(tmp_path):
  assert not named_sources(f"{tmp_path}/wordnet, hf:a/b, texts/*.txt weight=1")
  assert named_sources("x.txt, wordnet weight=2") == {"wordnet"}


# Reading.


def test_parts_follow_one_another_or_alternate(tmp_path):
  texts = [write_documents(tmp_path, f"{name}.txt", [10] * 3) for name in "abc"]
  names = [f"{tmp_path}/{name}.txt" for name in "bac"]
  documents, read_counts = read_twice(", ".join(names))
  assert [d.text for d in documents] == texts[1] + texts[0] + texts[2]
  assert [(d.part, d.number, d.repeat) for d in documents] == [
    (part, number, 0) for part in range(3) for number in range(3)
  ]
  counts = [(x.num_bytes, x.num_documents) for x in read_counts.cursors]
  assert counts == [(30, 3)] * 3
  spec = ", ".join(f"{name} weight=7" for name in names)
  documents, _ = read_twice(spec)
  assert "".join(d.text[:2] for d in documents) == "b0a0c0b1a1c1b2a2c2"
  corpus = open_corpus(spec)
  assert str(corpus) == ", ".join(names) and corpus.is_local()


@pytest.mark.parametrize("stopping", ["all", "first"])
@pytest.mark.parametrize("weights", [(1, 1, 1), (3, 1, 0.5), (1, 20, 4)])
def test_shares_of_the_text_follow_weights(tmp_path, weights, stopping):
  rng = np.random.default_rng(0)
  texts = [
    write_documents(tmp_path, f"{name}.txt", rng.integers(10, 400, count))
    for name, count in zip("abc", (300, 40, 120), strict=True)
  ]
  spec = ", ".join(
    f"{tmp_path}/{name}.txt weight={weight}"
    for name, weight in zip("abc", weights, strict=True)
  )
  documents, read_counts = read_twice(spec, stopping=stopping)
  sizes, shares = np.zeros(3), np.array(weights) / sum(weights)
  for document in documents:
    sizes[document.part] += len(document.text.encode())
    # No part is ever ahead of its share by more than a document.
    assert np.all(sizes - shares * sizes.sum() < 400)
  # After its end a part is read again, in the same order.
  for part in range(3):
    chosen = [d for d in documents if d.part == part]
    count = len(texts[part])
    assert [(d.text, d.number, d.repeat) for d in chosen] == [
      (texts[part][i % count], i % count, i // count)
      for i in range(len(chosen))
    ]
  # The last document is the end of the part that ends the mixture.
  last = documents[-1]
  assert last.number + 1 == len(texts[last.part]) and last.repeat == 0
  num_passes = [
    sum(d.part == part for d in documents) / len(texts[part])
    for part in range(3)
  ]
  if stopping == "all":
    assert min(num_passes) == 1.0 == num_passes[last.part]
  else:
    assert max(num_passes) == 1.0 == num_passes[last.part]
    assert sorted(num_passes)[1] < 1.0


@pytest.mark.parametrize("weights", [("", ""), (" weight=1", " weight=99")])
@pytest.mark.parametrize("errors", ["strict", "replace"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_empty_parts_are_refused_early(tmp_path, weights, errors, order):
  write_documents(tmp_path, "a.txt", [10] * 5)
  (tmp_path / "b.txt").write_text("\n \n")
  names = [
    f"{tmp_path}/{name}.txt{w}" for name, w in zip("ab", weights, strict=True)
  ]
  corpus = open_corpus(", ".join(names[i] for i in order), errors=errors)
  documents = corpus.read(ReadCounts())
  with pytest.raises(DataError, match="b.txt' has no text"):
    for _ in range(2):
      next(documents)


# Progress and counts.


@pytest.mark.parametrize("parts", ["{0}/a.txt, {0}/b.txt", "{0}"])
def test_reading_counts_bytes_documents_and_progress(tmp_path, parts):
  write_documents(tmp_path, "a.txt", [20_000] * 150)
  write_documents(tmp_path, "b.txt", [1_000] * 1_000)
  corpus = open_corpus(parts.format(tmp_path))
  read_counts, total = ReadCounts(), 4_000_000
  for _ in corpus.read(read_counts):
    assert abs(read_counts.fraction_read - read_counts.num_bytes / total) < 0.01
  assert read_counts.fraction_read == 1.0
  sizes = [3_000_000, 1_000_000] if len(corpus.parts) == 2 else [total]
  assert [cursor.num_bytes for cursor in read_counts.cursors] == sizes
  assert read_counts.num_documents == 1_150


def test_repeats_of_a_part_do_not_count_repairs_again(tmp_path):
  (tmp_path / "a.txt").write_bytes(b"a\xff\n\nb\0")
  write_documents(tmp_path, "b.txt", [10] * 50)
  spec = f"{tmp_path}/a.txt weight=1, {tmp_path}/b.txt weight=1"
  with pytest.raises(DataError, match="--config.data.errors=replace"):
    list(open_corpus(spec))
  documents, read_counts = read_twice(spec, errors="replace")
  assert max(d.repeat for d in documents) > 2
  assert read_counts.repairs == {readers.NOT_UTF8: 1, readers.NUL: 1}


def test_records_are_counted_only_in_whole_passes(tmp_path):
  write_documents(tmp_path, "a.txt", [10] * 3)
  corpus = open_corpus(f"{tmp_path}/a.txt records=3", expect="")
  read_counts = ReadCounts()
  documents = corpus.read(read_counts)
  next(documents)
  start = [*read_counts.cursors]
  rest = ReadCounts()
  assert list(corpus.read(rest, start=start)) == list(documents)
  assert read_counts.num_records == [3] and rest.num_records == [None]


# Identity.


def identity_of(folder, spec: str, **options) -> str:
  return json.dumps(open_corpus(spec.format(folder), **options).identity())


def test_identities_differ_if_documents_do(tmp_path):
  folder = tmp_path / "corpus"
  (folder / "sub").mkdir(parents=True)
  write_documents(folder, "a.txt", [10, 20])
  write_documents(folder / "sub", "b.txt", [30])
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
  identities = [identity_of(folder, spec) for spec in specs]
  identities.append(identity_of(folder, specs[-1], stopping="first"))
  identities.append(identity_of(folder, specs[-1], errors="replace"))
  assert len(set(identities)) == len(identities)
  # Only parts with these options have them in their identity.
  part = {"source", "files", "document", "column"}
  assert set(json.loads(identities[0])[0]) == part
  # The same documents, written or placed differently.
  assert identity_of(folder, "{0} column=text") == identities[0]
  assert identity_of(folder, specs[6], stopping="first") == identities[6]
  mixture = "{0}/a.txt weight=2, {0}/sub weight=4"
  assert identity_of(folder, mixture) == identities[9]
  moved = tmp_path / "elsewhere"
  folder.rename(moved)
  copied = tmp_path / "copied"
  shutil.copytree(moved, copied)
  for root in (moved, copied):
    again = [identity_of(root, spec) for spec in specs]
    assert again == identities[: len(specs)]


@pytest.mark.parametrize(
  "change", ["content", "time", "new", "gone", "renamed"]
)
def test_identities_change_with_the_files(tmp_path, change):
  write_documents(tmp_path, "a.txt", [10])
  write_documents(tmp_path, "b.txt", [10])
  corpus = open_corpus(str(tmp_path))
  before = corpus.identity()
  assert corpus.identity() == before
  path = tmp_path / "b.txt"
  if change == "content":
    path.write_text("other")
  elif change == "time":
    os.utime(path, ns=(1, 1))
  elif change == "new":
    write_documents(tmp_path, "c.txt", [10])
  elif change == "gone":
    path.unlink()
  else:
    path.rename(tmp_path / "0.txt")
  assert corpus.identity() != before
  assert open_corpus(str(tmp_path)).identity() == corpus.identity()
  with pytest.raises(DataError, match="changed while"):
    corpus.check_unchanged(before)


def test_random_specs_open_or_raise_our_errors(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write_documents(tmp_path, "a.txt", [10])
  (tmp_path / "b=c d").mkdir()
  write_documents(tmp_path / "b=c d", "e.txt", [10])
  parts = [*"*~.?, =1-x\n[]é\0\udcff\t", "a.txt", "b=c d", "**", "[a]*", ".."]
  parts += ["weight=", "weight=2", "nan", "wordnet", "text", "document="]
  parts += ["block", "column=", " document=record", "split=train", "a" * 300]
  rng = np.random.default_rng(0)
  num_opened = 0
  for _ in range(int(os.environ.get("TRUENEGS_FUZZ", "300"))):
    spec = "".join(rng.choice(parts, rng.integers(1, 6)))
    spec = spec.replace("~", "~x").replace("..", "")  # stay in this folder
    try:
      corpus = open_corpus(spec, reader=EmptyWordNet())
      num_opened += bool(list(corpus)) and bool(str(corpus))
    except TrueNegsError as error:
      assert str(error)
  assert num_opened > 5
