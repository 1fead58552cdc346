"""Slots: as many as released, uniform, bound to their row, hidden by style.

Counts are judged by z, their distance from what they should be in standard
deviations: with fixed seeds, and over 4.5 once in 150,000.
"""

import dataclasses
import fractions
import itertools
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from support import tiny
from truenegs_jax.objectives import masking
from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import sharding

ROWS, LENGTH = 4_096, 128  # half a million positions
MOST = 4.5  # of |z|
# Slots in use, and a checksum of the masked rows, by the length of a row.
DRAWS = {24: (137, 401_996_287), 128: (643, 1_527_676_965)}
STYLES = {  # how often a chosen token is kept, and how often a random one
  "electra_85_15": (0.15, 0.0),
  "80_10_10": (0.1, 0.1),
  "80_20_0": (0.2, 0.0),
}
REPEATED = dataclasses.replace(tiny.MASKING, with_replacement=True)
RECIPES = [
  dataclasses.replace(tiny.MASKING, style=style, with_replacement=repeated)
  for style, repeated in (
    ("electra_85_15", False),
    ("80_10_10", False),
    ("80_10_10", True),
    ("80_20_0", True),
  )
]


def name_of(options):
  return f"{options.style}{'_repeated' * options.with_replacement}"


def z_score(count, total, probability):
  """Of a count among independent draws."""
  deviation = np.sqrt(total * probability * (1 - probability))
  return (count - total * probability) / deviation


def chi_square_z(counts, *, shrink=1.0):
  """Of counts that should all be equal, but for chance."""
  expected = counts.sum() / counts.size
  chi_square = ((counts - expected) ** 2 / expected).sum() / shrink
  freedom = counts.size - 1
  return (chi_square - freedom) / np.sqrt(2 * freedom)


def keys_of(rows, step=0):
  return rng.row_keys(jax.random.key(0), step, jnp.arange(rows))


hide = jax.jit(masking.hide_slots, static_argnums=3)


def choose(tokens, documents, options=tiny.MASKING, step=0):
  """Slots and masked rows, on the host."""
  keys_B = keys_of(len(tokens), step)
  return jax.device_get(
    hide(jnp.asarray(tokens), jnp.asarray(documents), keys_B, options)
  )


def full_rows(token=9, length=LENGTH, rows=ROWS):
  tokens = np.full((rows, length), token, np.int32)
  return tokens, np.ones_like(tokens)


def places_of(slots, length=LENGTH):
  """How many slots in use each position has, `[rows, length]`."""
  places = np.zeros((len(slots.weight_BxK), length), np.int64)
  row, k = np.nonzero(slots.weight_BxK)
  np.add.at(places, (row, slots.positions_BxK[row, k]), 1)
  return places


@pytest.mark.parametrize("length", DRAWS)
def test_the_default_draws_are_those_of_the_first_release(length):
  # README's figures rest on them: what they hash to may not change.
  batch = tiny.make_batch(0, rows=64, length=length)
  slots, masked = choose(batch["tokens"], batch["documents"], step=5)
  digest = zlib.crc32(masked.astype("<i4").tobytes())
  assert (slots.weight_BxK.sum(), digest) == DRAWS[length]


def test_a_row_has_the_released_number_of_slots():
  for length, prob, slots in (
    (128, 0.15, 19),
    (512, 0.15, 79),
    (512, 0.25, 130),
    (64, 0.15, 9),
    (4, 0.15, 1),
  ):
    assert masking.num_slots(length, prob) == slots


@pytest.mark.parametrize("options", [tiny.MASKING, REPEATED], ids=name_of)
def test_slots_in_use_are_the_rounded_share_of_the_real_tokens(options):
  tokens, _ = full_rows(rows=LENGTH)
  documents = (np.arange(LENGTH) < np.arange(1, LENGTH + 1)[:, None]) * 1
  slots, _ = choose(tokens, documents, options)
  share = fractions.Fraction(15, 100)  # Python rounds its half to even
  want = [min(max(round(share * n), 1), 19, n) for n in range(1, LENGTH + 1)]
  np.testing.assert_array_equal(slots.weight_BxK.sum(axis=1), want)


def test_slots_are_distinct_words_and_never_special_or_padding():
  batch = tiny.make_batch(0, rows=256)
  batch["tokens"][:, 2] = tiny.MASK
  slots, masked = choose(batch["tokens"], batch["documents"])
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


@pytest.mark.parametrize("with_replacement", [False, True])
def test_rows_with_few_or_no_candidates(with_replacement):
  """Unknown words are candidates; a slot may come back if slots repeat."""
  options = dataclasses.replace(
    tiny.MASKING, mask_prob=0.9, with_replacement=with_replacement
  )
  tokens = np.full((3, 6), tiny.SEP, np.int32)
  tokens[0] = tiny.CLS, tiny.UNK, tiny.SEP, 8, tiny.SEP, tiny.PAD
  documents = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0], [0] * 6])
  slots, masked = choose(tokens, documents, options)
  used = slots.weight_BxK.sum(axis=1)
  np.testing.assert_array_equal(used, [4 if with_replacement else 2, 0, 0])
  positions = set(slots.positions_BxK[0][: int(used[0])].tolist())
  assert positions <= {1, 3} and (with_replacement or len(positions) == 2)
  np.testing.assert_array_equal(slots.positions_BxK[1:], 0)
  np.testing.assert_array_equal(masked[1:], tokens[1:])


@pytest.mark.parametrize("options", RECIPES, ids=name_of)
def test_chosen_tokens_are_shown_as_the_style_says(options):
  tokens, documents = full_rows()
  slots, masked = choose(tokens, documents, options, step=1)
  places = places_of(slots)
  kept, random = STYLES[options.style]
  by_chance = random / tiny.V  # a random token may be any
  shown = masked[places == 1]
  for count, probability in (
    ((shown == tiny.MASK).sum(), 1 - kept - random + by_chance),
    ((shown == 9).sum(), kept + by_chance),
    (np.isin(shown, (tiny.MASK, 9), invert=True).sum(), random - 2 * by_chance),
  ):
    if probability in (0, 1):
      assert count == shown.size * probability
    else:
      assert abs(z_score(count, shown.size, probability)) < MOST
  np.testing.assert_array_equal(masked[places == 0], 9)
  if options.with_replacement:  # one of several slots is enough to hide
    shown = masked[places == 2]
    hidden = 1 - (kept + random) ** 2
    z = z_score((shown == tiny.MASK).sum(), shown.size, hidden)
    assert abs(z) < MOST
  else:
    assert places.sum() == (places == 1).sum() == ROWS * 19


@pytest.mark.parametrize("options", RECIPES[:2], ids=name_of)
def test_what_a_slot_shows_is_its_own_affair(options):
  """It depends on no place, slot, row or step."""
  kept, random = STYLES[options.style]
  shown = []
  for step in (0, 1):
    slots, masked = choose(*full_rows(), options, step=step)
    shown.append(np.take_along_axis(masked, slots.positions_BxK, 1))
  hidden = shown[1] == tiny.MASK
  chance = 1 - kept - random + random / tiny.V
  late, odd = slots.positions_BxK >= LENGTH // 2, slots.positions_BxK % 2 == 1
  first_half = np.broadcast_to(np.arange(19) < 9, hidden.shape)
  for part in (late, ~late, odd, ~odd, first_half, ~first_half):
    assert abs(z_score(hidden[part].sum(), part.sum(), chance)) < MOST
  both = chance**2 + (1 - chance) ** 2
  for a, b in (
    (hidden[:, 1:], hidden[:, :-1]),
    (hidden[1:], hidden[:-1]),
    (hidden, shown[0] == tiny.MASK),
  ):
    assert abs(z_score((a == b).sum(), a.size, both)) < MOST


def test_random_tokens_come_from_all_of_the_vocabulary_alike():
  options = dataclasses.replace(tiny.MASKING, style="80_10_10")
  tokens, documents = full_rows(tiny.V)  # one that is not in it
  _, masked = choose(tokens, documents, options)
  counts = np.bincount(masked.ravel(), minlength=tiny.V + 1)[: tiny.V]
  others = np.delete(counts, tiny.MASK)  # specials too, as BERT's
  assert others.min() > 0 and abs(chi_square_z(others)) < MOST
  # Ids beyond 2^16 are drawn too.
  many = dataclasses.replace(options, vocab_size=200_000)
  _, masked = choose(tokens, documents, many)
  drawn = masked[(masked != tiny.MASK) & (masked != tiny.V)]
  assert drawn.min() >= 0 and 199_000 < drawn.max() < 200_000
  assert abs(chi_square_z(np.bincount(drawn // 20_000))) < MOST


def test_draws_without_replacement_are_uniform_and_rows_and_steps_apart():
  places = [places_of(choose(*full_rows(), step=step)[0]) for step in (0, 1)]
  share = 19 / LENGTH
  assert (places[0].sum(axis=1) == 19).all()
  # Drawing without replacement shrinks the variance.
  counts = sum(places).sum(axis=0)
  assert abs(chi_square_z(counts, shrink=1 - share)) < MOST
  for a, b in ((places[0][1:], places[0][:-1]), (places[0], places[1])):
    # Overlaps of a row are hypergeometric, a little narrower than binomial.
    assert abs(z_score((a & b).sum(), a.size, share**2)) < MOST
  # Neighbours hardly hinder one another.
  beside = (places[0][:, 1:] & places[0][:, :-1]).sum()
  z = z_score(beside, places[0][:, 1:].size, share * 18 / (LENGTH - 1))
  assert abs(z) < MOST


def test_draws_with_replacement_are_independent_and_uniform():
  """17.7 places of 19 slots, as in the released code."""
  tokens, documents = full_rows()
  tokens[:, 0], tokens[:, LENGTH // 2] = tiny.CLS, tiny.SEP
  chosen = [choose(tokens, documents, REPEATED, step=i)[0] for i in (0, 1)]
  places, n, k = places_of(chosen[1]), LENGTH - 2, 19
  mean = n * (1 - (1 - 1 / n) ** k)
  variance = n * (n - 1) * (1 - 2 / n) ** k + n * (1 - 1 / n) ** k
  variance -= n**2 * (1 - 1 / n) ** (2 * k)
  assert mean == pytest.approx(17.7, abs=0.05)
  got = (places > 0).sum(axis=1).mean()
  assert abs(got - mean) / np.sqrt(variance / ROWS) < MOST
  # Every candidate as often as any other, the first and the last too.
  special = [0, LENGTH // 2]
  assert not places[:, special].any()
  counts = np.delete(places, special, axis=1).sum(axis=0)
  assert abs(chi_square_z(counts)) < MOST
  first, drawn = (slots.positions_BxK for slots in chosen)
  for a, b in (
    (drawn[:, 1:], drawn[:, :-1]),
    (drawn[1:], drawn[:-1]),
    (drawn, first),
  ):
    assert abs(z_score((a == b).sum(), a.size, 1 / n)) < MOST


def test_slots_are_filled_where_they_are_in_use_and_the_first_decides():
  slots = masking.Slots(
    positions_BxK=jnp.array([[2, 1, 2, 2, 1, 0], [0, 3, 0, 3, 0, 0]]),
    gold_BxK=jnp.array([[7, 6, 7, 7, 6, 5], [5, 8, 5, 8, 5, 5]]),
    weight_BxK=jnp.array([[1.0, 1, 1, 1, 1, 0], [1.0, 1, 1, 1, 0, 0]]),
    distinct=False,
  )
  values = jnp.array([[90, 91, 92, 93, 94, 95], [80, 81, 82, 83, 84, 85]])
  agreed = np.asarray(masking.share_first_value(slots, values))
  assert agreed[0, :5].tolist() == [90, 91, 90, 90, 91]
  assert agreed[1, :4].tolist() == [80, 81, 80, 81]
  tokens = jnp.array([[5, 6, 7, 8], [5, 6, 7, 8]])
  got = masking.fill_slots(tokens, slots, values)
  np.testing.assert_array_equal(got, [[5, 91, 90, 8], [80, 6, 7, 81]])
  alone = dataclasses.replace(
    jax.tree.map(lambda x: x[:, :2], slots), distinct=True
  )
  unused = dataclasses.replace(
    alone, weight_BxK=jnp.array([[1.0, 0.0], [0.0, 1.0]])
  )
  got = masking.fill_slots(tokens, unused, values[:, :2])
  np.testing.assert_array_equal(got, [[5, 6, 90, 8], [5, 6, 7, 81]])


def test_a_place_is_hidden_if_one_of_its_slots_says_so():
  batch = tiny.make_batch(0, rows=512)
  batch["tokens"][:, 0] = 7  # where unused slots stand, a used one may too
  many = dataclasses.replace(REPEATED, mask_prob=0.6, style="80_10_10")
  slots, masked = choose(batch["tokens"], batch["documents"], many)
  uniform = np.asarray(
    rng.uniform(
      keys_of(512), slots.positions_BxK.shape[1:], site=masking.KEEP_SITE
    )
  )
  want, cases = batch["tokens"].copy(), set()
  for b in range(512):
    used = np.flatnonzero(slots.weight_BxK[b])
    place = lambda k, b=b: slots.positions_BxK[b, k]
    for position, group in itertools.groupby(sorted(used, key=place), place):
      u = uniform[b, list(group)]
      if (u >= np.float32(0.2)).any():
        want[b, position] = tiny.MASK
      elif u[0] >= np.float32(0.1):  # the first: a random token
        want[b, position] = masked[b, position]
      cases.add((len(u) > 1, bool((u >= 0.2).any()), bool((u >= 0.2).all())))
  np.testing.assert_array_equal(masked, want)
  assert {(True, True, False), (True, False, False)} <= cases


def test_an_unknown_style_is_refused_with_the_known_ones():
  with pytest.raises(InputError, match="'80_20' is unknown.*80_20_0"):
    dataclasses.replace(tiny.MASKING, style="80_20")
  with pytest.raises(InputError, match="vocab_size=0 .*at least 1"):
    dataclasses.replace(tiny.MASKING, style="80_10_10", vocab_size=0)
  assert masking.STYLES.keys() == STYLES.keys()


@pytest.mark.parametrize(
  "options", [tiny.MASKING, dataclasses.replace(REPEATED, style="80_10_10")]
)
def test_slots_depend_neither_on_devices_nor_on_the_other_rows(options):
  place = NamedSharding(
    sharding.make_mesh(sharding.get_mesh_spec("dp")), P("data")
  )
  batch = tiny.make_batch(0, rows=64, length=128)

  def draw(tokens, documents, row_B):
    keys_B = rng.row_keys(jax.random.key(0), 3, row_B)
    return masking.hide_slots(tokens, documents, keys_B, options)

  arrays = [batch[name] for name in ("tokens", "documents", "row")]
  got = jax.device_get(jax.jit(draw)(*jax.device_put(arrays, place)))
  order = np.array([3, 0, 60, 5])
  want = jax.device_get(jax.jit(draw)(*(array[order] for array in arrays)))
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    np.testing.assert_array_equal(a[order], b)
