"""Numbers, positions and shown tokens of slots, and their distributions.

Counts are tested by z, their distance from the expectation in standard
deviations. Seeds are fixed; |z| exceeds 4.5 once in 150,000.
"""

import dataclasses
import fractions
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.objectives import masking
from truenegs_jax.runtime import rng
from truenegs_jax.train import sharding

ROWS, LENGTH = 4_096, 128  # half a million positions
MAX_Z = 4.5  # of |z|
# Slots in use, and a checksum of the masked rows, by the length of a row.
CHECKSUMS = {24: (137, 401_996_287), 128: (643, 1_527_676_965)}
STYLES = {  # how often a chosen token is kept, and how often a random one
  "electra_85_15": (0.15, 0.0),
  "80_10_10": (0.1, 0.1),
  "100_0_0": (0.0, 0.0),
}


def z_score(count, total, probability):
  """Returns z of a count among independent draws."""
  deviation = np.sqrt(total * probability * (1 - probability))
  return (count - total * probability) / deviation


def chi_square_z(counts, *, shrink=1.0):
  """Returns z of chi-square, for counts of equal expectation."""
  expected = counts.sum() / counts.size
  chi_square = ((counts - expected) ** 2 / expected).sum() / shrink
  freedom = counts.size - 1
  return (chi_square - freedom) / np.sqrt(2 * freedom)


def make_keys(rows, step=0):
  return rng.row_keys(jax.random.key(0), step, jnp.arange(rows))


hide = jax.jit(masking.hide_slots, static_argnums=3)


def hide_on_host(tokens, documents, options=tiny.MASKING, step=0, aux=None):
  """Returns slots and masked rows as numpy arrays."""
  keys_B = make_keys(len(tokens), step)
  return jax.device_get(
    hide(jnp.asarray(tokens), jnp.asarray(documents), keys_B, options, aux)
  )


def full_rows(token=9, length=LENGTH, rows=ROWS):
  tokens = np.full((rows, length), token, np.int32)
  return tokens, np.ones_like(tokens)


def count_slots(slots, length=LENGTH):
  """Counts the slots in use at each position, `[rows, length]`."""
  num_slots = np.zeros((len(slots.weight_BxK), length), np.int64)
  row, k = np.nonzero(slots.weight_BxK)
  np.add.at(num_slots, (row, slots.positions_BxK[row, k]), 1)
  return num_slots


@pytest.mark.parametrize("length", CHECKSUMS)
def test_default_draws_do_not_change_between_releases(length):
  # The figures of the documentation depend on these draws.
  batch = tiny.make_batch(0, rows=64, length=length)
  slots, masked = hide_on_host(batch["tokens"], batch["documents"], step=5)
  digest = zlib.crc32(masked.astype("<i4").tobytes())
  assert (slots.weight_BxK.sum(), digest) == CHECKSUMS[length]


def test_the_number_of_slots_is_the_released_one():
  for length, slots in ((128, 19), (512, 79), (64, 9), (4, 1)):
    assert masking.num_slots(length, 0.15) == slots
  assert masking.num_slots(512, 0.25) == 130


def test_the_slots_in_use_are_a_rounded_share_of_the_real_tokens():
  tokens, _ = full_rows(rows=LENGTH)
  documents = (np.arange(LENGTH) < np.arange(1, LENGTH + 1)[:, None]) * 1
  slots, _ = hide_on_host(tokens, documents)
  share = fractions.Fraction(15, 100)  # Python rounds its half to even
  lengths = range(1, LENGTH + 1)
  expected = [min(max(round(share * n), 1), 19, n) for n in lengths]
  np.testing.assert_array_equal(slots.weight_BxK.sum(axis=1), expected)


def test_slots_are_distinct_and_never_special_or_padding():
  batch = tiny.make_batch(0, rows=256)
  batch["tokens"][:, 2] = tiny.MASK
  slots, masked = hide_on_host(batch["tokens"], batch["documents"])
  for b in range(256):
    used = slots.weight_BxK[b] > 0
    positions = slots.positions_BxK[b][used]
    assert len(set(positions.tolist())) == used.sum() >= 1
    chosen = batch["tokens"][b, positions]
    assert not np.isin(chosen, (tiny.CLS, tiny.SEP, tiny.MASK)).any()
    assert (batch["documents"][b, positions] == 1).all()
    np.testing.assert_array_equal(slots.gold_BxK[b][used], chosen)
    # Unused slots are at the end, at position 0, and change nothing.
    assert (np.diff(used.astype(int)) <= 0).all()
    assert (slots.positions_BxK[b][~used] == 0).all()
    others = np.setdiff1d(np.arange(tiny.L), positions)
    np.testing.assert_array_equal(masked[b, others], batch["tokens"][b, others])


def test_rows_with_few_or_no_candidates():
  """[UNK] is a candidate."""
  options = dataclasses.replace(tiny.MASKING, mask_prob=0.9)
  tokens = np.full((3, 6), tiny.SEP, np.int32)
  tokens[0] = tiny.CLS, tiny.UNK, tiny.SEP, 8, tiny.SEP, tiny.PAD
  documents = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0], [0] * 6])
  slots, masked = hide_on_host(tokens, documents, options)
  np.testing.assert_array_equal(slots.weight_BxK.sum(axis=1), [2, 0, 0])
  assert set(slots.positions_BxK[0][:2].tolist()) == {1, 3}
  np.testing.assert_array_equal(slots.positions_BxK[1:], 0)
  np.testing.assert_array_equal(masked[1:], tokens[1:])


@pytest.mark.parametrize("style", masking.STYLES)
def test_tokens_are_hidden_as_often_as_the_style_says(style):
  tokens, documents = full_rows()
  options = dataclasses.replace(tiny.MASKING, style=style)
  slots, masked = hide_on_host(tokens, documents, options, step=1)
  num_slots = count_slots(slots)
  kept, random = STYLES[style]
  by_chance = random / tiny.V  # a random token may be any
  shown = masked[num_slots == 1]
  for count, probability in (
    ((shown == tiny.MASK).sum(), 1 - kept - random + by_chance),
    ((shown == 9).sum(), kept + by_chance),
    (np.isin(shown, (tiny.MASK, 9), invert=True).sum(), random - 2 * by_chance),
  ):
    if probability in (0, 1):
      assert count == shown.size * probability
    else:
      assert abs(z_score(count, shown.size, probability)) < MAX_Z
  np.testing.assert_array_equal(masked[num_slots == 0], 9)
  assert num_slots.sum() == (num_slots == 1).sum() == ROWS * 19


def test_random_tokens_are_uniform_over_the_vocabulary():
  options = dataclasses.replace(tiny.MASKING, style="80_10_10")
  tokens, documents = full_rows(tiny.V)  # an id beyond the vocabulary
  _, masked = hide_on_host(tokens, documents, options)
  counts = np.bincount(masked.ravel(), minlength=tiny.V + 1)[: tiny.V]
  others = np.delete(counts, tiny.MASK)  # special tokens too, as in BERT
  assert others.min() > 0 and abs(chi_square_z(others)) < MAX_Z
  # Ids beyond 2^16 are drawn too.
  many = dataclasses.replace(options, vocab_size=200_000)
  _, masked = hide_on_host(tokens, documents, many)
  drawn = masked[(masked != tiny.MASK) & (masked != tiny.V)]
  assert drawn.min() >= 0 and 199_000 < drawn.max() < 200_000
  assert abs(chi_square_z(np.bincount(drawn // 20_000))) < MAX_Z


def test_draws_without_replacement_are_uniform_and_independent():
  drawn, drawn_next = (
    count_slots(hide_on_host(*full_rows(), step=step)[0]) for step in (0, 1)
  )
  share = 19 / LENGTH
  assert (drawn.sum(axis=1) == 19).all()
  # Drawing without replacement shrinks the variance.
  counts = (drawn + drawn_next).sum(axis=0)
  assert abs(chi_square_z(counts, shrink=1 - share)) < MAX_Z
  neighbours = share * 18 / (LENGTH - 1)  # almost independent
  for a, b, chance in (
    # Overlaps of a row are hypergeometric, a little narrower than binomial.
    (drawn[1:], drawn[:-1], share**2),
    (drawn, drawn_next, share**2),
    (drawn[:, 1:], drawn[:, :-1], neighbours),
  ):
    assert abs(z_score((a & b).sum(), a.size, chance)) < MAX_Z


WORD = dataclasses.replace(tiny.MASKING, unit="word")
FIRST, NEXT = 20, 50  # ids of first pieces, and of others from NEXT on
EDGES = {"edges_V": np.where(np.arange(tiny.V) < NEXT, 2, 3).astype("u1")}


def make_words(rows):
  """Draws rows of words of 1 to 4 pieces, cut into two documents of a batch.

  Returns the tokens, the documents and numbers of the words of each row; those
  of [SEP] and [CLS] and of padding are -1.
  """
  draw = np.random.default_rng(0)
  documents = np.ones((rows, LENGTH), np.int32)
  is_piece = np.zeros(documents.shape, bool)
  for row in range(rows):
    sizes = draw.choice([1, 1, 1, 2, 3, 4], LENGTH)
    starts = np.cumsum(sizes)
    is_piece[row] = ~np.isin(np.arange(LENGTH), [0, *starts])
    documents[row, draw.integers(40, 90) :] = 2
    documents[row, draw.integers(100, LENGTH) :] = 0
  tokens = np.where(is_piece, NEXT, FIRST) + draw.integers(
    0, 20, is_piece.shape
  )
  begins = ~is_piece | (np.diff(documents, axis=1, prepend=1) != 0)
  # Half of the rows have [SEP] and [CLS] in the midst of words.
  tokens[::2, 30] = tiny.SEP
  tokens[::2, 31] = tiny.CLS
  begins[::2, 30:33] = True
  words = np.cumsum(begins, axis=1)
  words[(documents == 0) | np.isin(tokens, (tiny.SEP, tiny.CLS))] = -1
  return tokens.astype(np.int32), documents, words


def test_words_are_hidden_whole_or_not_at_all():
  tokens, documents, words = make_words(256)
  slots, _ = hide_on_host(tokens, documents, WORD, aux=EDGES)
  hidden = count_slots(slots)
  assert hidden.max() == 1 and not hidden[words < 0].any()
  ids = (words + 200 * np.arange(256)[:, None])[words >= 0]
  sizes = np.bincount(ids)
  taken = np.bincount(ids, hidden[words >= 0])
  assert np.isin(taken / np.maximum(sizes, 1), (0, 1)).all()
  # All words are as likely, but for the skipped ones.
  shares = [(taken[sizes == n] > 0).mean() for n in (1, 2, 3, 4)]
  assert min(shares) > 0.8 * max(shares)
  by_token, _ = hide_on_host(tokens, documents)
  share = hidden.sum() / by_token.weight_BxK.sum()
  assert share == pytest.approx(1, abs=0.002)
  # The end of a document ends a word: its parts are hidden apart.
  cut = (np.diff(documents, axis=1) == 1) & (tokens[:, 1:] >= NEXT)
  assert (hidden[:, 1:] != hidden[:, :-1])[cut].any()


def test_words_beyond_the_slots_are_skipped_and_a_row_hides_a_token():
  tokens, documents = full_rows(FIRST, length=16, rows=64)
  tokens[:, 2:5] = NEXT  # the word 1 to 4 does not fit into two slots
  slots, _ = hide_on_host(tokens, documents, WORD, aux=EDGES)
  hidden = count_slots(slots, 16)
  assert (hidden.sum(axis=1) == 2).all() and not hidden[:, 1:5].any()
  tokens[:, 1:] = NEXT  # one word
  slots, _ = hide_on_host(tokens, documents, WORD, aux=EDGES)
  hidden = count_slots(slots, 16)
  assert (hidden.sum(axis=1) == 2).all() and hidden.any(axis=0).all()


def test_without_pieces_words_are_tokens():
  batch = tiny.make_batch(0, rows=64)
  rows = batch["tokens"], batch["documents"]
  aux = {"edges_V": np.full(tiny.V, 2, np.uint8)}
  jax.tree.map(
    np.testing.assert_array_equal,
    hide_on_host(*rows, WORD, aux=aux),
    hide_on_host(*rows),
  )


@pytest.mark.parametrize("unit", ["token", "word"])
def test_slots_do_not_depend_on_devices_or_other_rows(unit):
  options = dataclasses.replace(tiny.MASKING, style="80_10_10", unit=unit)
  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  batch = tiny.make_batch(0, rows=64, length=128)

  def draw(tokens, documents, row_B):
    keys_B = rng.row_keys(jax.random.key(0), 3, row_B)
    return masking.hide_slots(tokens, documents, keys_B, options, EDGES)

  arrays = [batch[name] for name in ("tokens", "documents", "row")]
  split = jax.device_put(arrays, sharding.batch_sharding(mesh))
  result = jax.device_get(jax.jit(draw)(*split))
  order = np.array([3, 0, 60, 5])
  expected = jax.jit(draw)(*(x[order] for x in arrays))
  result = jax.tree.map(lambda x: x[order], result)
  jax.tree.map(np.testing.assert_array_equal, result, expected)
