"""Layouts keep the text, its order and the bounds of documents."""

import numpy as np
import pytest

from support.small_rows import check_structure
from truenegs_jax.data import layouts

CLS, SEP, PAD, FIRST = 1, 2, 3, 10  # the text has ids from FIRST on
NAMES = sorted(layouts.LAYOUTS)
LENGTHS = [8, 9, 11, 32, 512]


def make_documents(seed, count=40, longest=60, lines=30):
  """Returns the numbers and line lengths of documents of all sizes."""
  rng = np.random.default_rng(seed)
  return [
    (number, rng.integers(1, longest, rng.integers(1, lines)).tolist())
    for number in range(count)
  ]


def make_text(documents):
  """Returns ids that are the positions in the text."""
  size = sum(sum(lengths) for _, lengths in documents)
  return np.arange(FIRST, FIRST + size, dtype=np.int32)


def build(documents, *, length=32, name="electra", dtype=np.uint32):
  """Returns tokens, types and documents of the rows of a text."""
  spec = layouts.RowSpec(length, CLS, SEP, PAD, dtype)
  text_T = make_text(documents)
  return layouts.lay_out(documents, text_T, spec, layout=name)


def split_documents(arrays):
  """Returns tokens and types of each document in each row, as lists."""
  documents = []
  for tokens_L, types_L, documents_L in zip(*arrays, strict=True):
    for number in range(1, documents_L.max(initial=0) + 1):
      mask_L = documents_L == number
      documents.append((tokens_L[mask_L].tolist(), types_L[mask_L].tolist()))
  return documents


def document_spans(documents):
  """Returns the first id of each document and the id after the last."""
  ends = FIRST + np.cumsum([sum(lengths) for _, lengths in documents])
  return list(zip([FIRST, *ends[:-1]], ends, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("longest", [2, 60, 900])
def test_rows_have_the_layout_and_the_text(name, length, longest):
  documents = make_documents(1, count=12, longest=longest)
  options = {"length": length, "name": name}
  options["dtype"] = np.uint16 if longest == 2 else np.uint32
  arrays = build(documents, **options)
  fields = dict(zip(("tokens", "types", "documents"), arrays, strict=True))
  check_structure(fields, cls=CLS, sep=SEP, pad=PAD)
  starts = [start for start, _ in document_spans(documents)]
  origins = []
  for tokens, types in split_documents(arrays):
    tokens = np.array(tokens)
    ends = np.flatnonzero(tokens == SEP)
    assert len(ends) <= 2
    # Type 1 begins after the first [SEP], and no segment is empty.
    assert types == (np.arange(len(tokens)) > ends[0]).astype(int).tolist()
    assert np.diff([0, *ends]).min() >= 2
    ids = tokens[tokens >= FIRST]
    [origin] = {*np.searchsorted(starts, ids, side="right").tolist()}
    origins.append(origin)
  # All documents occur, in their order, and no row mixes them.
  assert origins == sorted(origins) and {*origins} == {*range(1, 13)}
  assert fields["documents"].max() == 1 or name == "packed"
  assert not fields["types"].any() or name == "electra"
  text_T = arrays[0][arrays[0] >= FIRST]
  np.testing.assert_array_equal(text_T, make_text(documents))
  # Lines and documents without tokens are ignored.
  sparse = [(99, [])]
  for number, lengths in documents:
    line = len(lengths) // 2
    lengths = [0, *lengths[:line], 0, 0, *lengths[line:], 0]
    sparse += [(number, lengths), (99, [0, 0])]
  for a, b in zip(arrays, build(sparse, **options), strict=True):
    np.testing.assert_array_equal(a, b)
  dtypes = [options["dtype"], np.uint8, np.uint8]
  assert [x.dtype for x in arrays] == dtypes
  for empty in ([], [(0, [])], [(0, [0])]):
    assert [x.dtype for x in build(empty, **options)] == dtypes
    assert {x.shape for x in build(empty, **options)} == {(0, length)}


class StubRandom:
  """Replaces `random` of the released code by the draws of the layout."""

  def __init__(self, seed):
    self._rng = np.random.default_rng(seed)

  def random(self):
    return self._rng.random()

  def randint(self, low, high):
    return low + int(self._rng.random() * (high - low + 1))


def reference_rows(documents, length):
  """Runs ExampleBuilder of google-research/electra, one per document.

  But the tokens it drops begin the next row, and segment A gets no line after
  segment B has begun.
  """
  rows, ids = [], iter(make_text(documents).tolist())
  for number, lengths in documents:
    draws = StubRandom([layouts.SEED, number])

    def next_target(draws=draws):
      # The released code draws the next target when a row is closed.
      return draws.randint(5, length) if draws.random() < 0.05 else length

    def close(sentences, target, draws=draws):
      budget = 100_000 if draws.random() < 0.1 else (target - 3) // 2
      first, second = [], []
      for sentence in sentences:
        if (
          len(first) == 0
          or (len(first) + len(sentence) < budget and not second)
          or (len(second) == 0 and len(first) < budget and draws.random() < 0.5)
        ):
          first = first + sentence
        else:
          second = second + sentence
      first, first_rest = first[: length - 2], first[length - 2 :]
      free = max(0, length - len(first) - 3)
      second, second_rest = second[:free], second[free:]
      tokens = [CLS, *first, SEP] + ([*second, SEP] if second else [])
      types = [0] * (len(first) + 2) + [1] * (len(tokens) - len(first) - 2)
      rows.append((tokens, types))
      return [rest for rest in (first_rest, second_rest) if rest]

    target, sentences = next_target(), []
    for size in lengths:
      sentences.append([next(ids) for _ in range(size)])
      while sum(map(len, sentences)) >= target:
        sentences = close(sentences, target)
        target = next_target()
    while sentences:
      sentences = close(sentences, target)
      target = next_target()
  return rows


@pytest.mark.parametrize("longest", [2, 6, 25, 200])
@pytest.mark.parametrize("length", [8, 48])
def test_electra_rows_equal_those_of_released_code(longest, length):
  documents = make_documents(longest, longest=longest)
  documents += [(99, [1]), (98, [length - 2]), (97, [length - 1]), (96, [900])]
  arrays = build(documents, length=length)
  expected = reference_rows(documents, length)
  assert split_documents(arrays) == expected


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("longest", [2, 13, 900])
def test_packed_rows_are_full_and_have_no_short_segments(length, longest):
  documents = make_documents(5, count=200, longest=longest, lines=3)
  arrays = build(documents, length=length, name="packed")
  least = min(layouts.MIN_SEGMENT, (length - 1) // 2)
  padding_R = (arrays[2] == 0).sum(axis=1)
  assert padding_R[:-1].max(initial=0) <= 2 * least
  spans = document_spans(documents)
  sizes = {int(stop - start) for start, stop in spans}
  starts = {int(start) for start, _ in spans}
  stops = {int(stop) - 1 for _, stop in spans}
  for tokens, _ in split_documents(arrays):
    is_uncut = tokens[1] in starts and tokens[-2] in stops
    assert (is_uncut and len(tokens) - 2 in sizes) or len(tokens) - 2 >= least


def test_a_packed_row_has_at_most_255_documents():
  documents = [(n, [1]) for n in range(600)]
  arrays = build(documents, length=1024, name="packed")
  assert arrays[2].max(axis=1).tolist() == [255, 255, 90]
