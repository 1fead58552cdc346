"""Rows of the `electra` layout: nothing lost, nothing mixed, right shares."""

import random

import numpy as np
import pytest

from truenegs_jax.data import layouts
from truenegs_jax.errors import InputError

CLS, SEP = 1, 2


def make_documents(seed: int, count: int = 40, longest: int = 60):
  """Documents of lines whose ids (from 10 on) say document and place."""
  rng = np.random.default_rng(seed)
  documents, next_id = [], 10
  for number in range(count):
    lines = []
    for size in rng.integers(1, longest, rng.integers(1, 30)):
      lines.append(list(range(next_id, next_id + size)))
      next_id += int(size)
    documents.append((number, lines))
  return documents


def build(documents, *, length=32, overflow="carry", seed=0, name="electra"):
  shape = layouts.Shape(length, CLS, SEP, overflow)
  return list(layouts.LAYOUTS[name](documents, shape, seed=seed))


def content(row):
  return [token for token in row.tokens if token >= 10]


@pytest.mark.parametrize("name", sorted(layouts.LAYOUTS))
@pytest.mark.parametrize("overflow", layouts.OVERFLOWS)
@pytest.mark.parametrize("length", [8, 9, 32, 128])
def test_rows_have_the_layout(name, overflow, length):
  rows = build(make_documents(0), length=length, overflow=overflow, name=name)
  for row in rows:
    tokens = np.array(row.tokens)
    assert len(tokens) == len(row.types) == len(row.documents) <= length
    assert tokens[0] == CLS and tokens[-1] == SEP
    assert (tokens == CLS).sum() == 1 and (tokens == SEP).sum() in (1, 2)
    # Type 1 begins after the first [SEP], and no segment is empty.
    ends = np.flatnonzero(tokens == SEP)
    expected = (np.arange(len(tokens)) > ends[0]).astype(int)
    assert row.types == expected.tolist()
    assert np.diff([0, *ends]).min() >= 2
    assert set(row.documents) == {1}


@pytest.mark.parametrize("length", [8, 32, 128])
@pytest.mark.parametrize("longest", [5, 60, 500])
def test_carried_rows_put_together_are_the_text(length, longest):
  for document in make_documents(1, longest=longest):
    rows = build([document], length=length)
    assert sum(map(content, rows), []) == sum(document[1], [])


def test_no_row_mixes_documents():
  documents = make_documents(2)
  owner = {t: n for n, lines in documents for line in lines for t in line}
  for row in build(documents):
    assert len({owner[token] for token in content(row)}) == 1


def test_rows_of_a_document_depend_on_seed_and_number_alone():
  documents = make_documents(3)
  alone = [row for document in documents for row in build([document])]
  assert build(documents) == alone
  assert build(documents[::-1]) != build(documents)
  assert build(documents, seed=1) != build(documents)
  renumbered = [(number + 1, lines) for number, lines in documents]
  assert build(renumbered) != build(documents)


def test_shares_of_single_and_short_rows():
  # Lines of one token: lengths and segments then show every draw.
  rows = build([(n, [[10]] * 1200) for n in range(100)], length=64)
  full = [row for row in rows if len(row.tokens) >= 60]
  single = np.mean([1 not in row.types for row in full])
  assert len(full) > 1500 and abs(single - 0.10) < 0.025
  # The last row of a document is short for want of text.
  short = (len(rows) - 100 - len(full)) / (len(rows) - 100)
  # Of the uniform targets in 5..64 the first 55 or so show.
  assert abs(short - 0.05 * 55 / 60) < 0.02
  a = [row.types.index(1) for row in full if 1 in row.types]
  assert abs(np.mean(a) - 32) < 1.5


class Draws:
  """Stands in for the released code's `random`: our draws, its calls."""

  def __init__(self, seed, length):
    self._rng, self._length = np.random.default_rng(seed), length

  def random(self):
    return self._rng.random()

  def randint(self, low, high):
    return low + int(self._rng.random() * (high - low + 1))


def released_rows(documents, length, seed):
  """google-research/electra's ExampleBuilder, one builder per document."""
  rows = []
  for number, lines in documents:
    draws = Draws([seed, number], length)

    def next_target(draws=draws):
      # The released code draws the next target when a row is closed.
      return draws.randint(5, length) if draws.random() < 0.05 else length

    def close(sentences, target, draws=draws):
      budget = 100_000 if draws.random() < 0.1 else (target - 3) // 2
      first, second = [], []
      for sentence in sentences:
        if (
          len(first) == 0
          or len(first) + len(sentence) < budget
          or (len(second) == 0 and len(first) < budget and draws.random() < 0.5)
        ):
          first = first + sentence
        else:
          second = second + sentence
      first = first[: length - 2]
      second = second[: max(0, length - len(first) - 3)]
      tokens = [CLS, *first, SEP] + ([*second, SEP] if second else [])
      rows.append(tokens)

    target, sentences = next_target(), []
    for line in lines:
      sentences.append(line)
      if sum(map(len, sentences)) >= target:
        close(sentences, target)
        target, sentences = next_target(), []
    if sentences:
      close(sentences, target)
  return rows


@pytest.mark.parametrize("longest", [6, 25, 200])
def test_discarding_rows_are_those_of_the_released_code(longest):
  documents = make_documents(random.Random(4).randrange(99), longest=longest)
  rows = build(documents, length=48, overflow="discard", seed=7)
  assert [row.tokens for row in rows] == released_rows(documents, 48, 7)


@pytest.mark.parametrize(
  "change, message",
  [
    ({"name": "elektra"}, "'elektra' is unknown; known: .*electra"),
    ({"overflow": "drop"}, "'drop': choose one of carry, discard"),
    ({"length": 7}, "length=7: a row has 8 to"),
    ({"length": 10**6}, "length=1000000"),
  ],
)
def test_values_no_layout_takes_are_refused(change, message):
  values = {"name": "electra", "length": 128, "overflow": "carry", **change}
  with pytest.raises(InputError, match=message):
    layouts.check_layout(values.pop("name"), **values)
