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

ROWS, LENGTH = 8_192, 128  # a million positions
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
  for style in STYLES
  for repeated in (False, True)
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


def choose(tokens, documents, options=tiny.MASKING, keys_B=None, step=0):
  tokens, documents = jnp.asarray(tokens), jnp.asarray(documents)
  keys_B = keys_of(len(tokens), step) if keys_B is None else keys_B
  slots = jax.jit(masking.choose_slots, static_argnums=3)(
    tokens, documents, keys_B, options
  )
  masked = jax.jit(masking.apply_mask, static_argnums=3)(
    tokens, slots, keys_B, options
  )
  return jax.device_get(slots), np.asarray(masked)


def test_a_row_has_the_released_number_of_slots():
  assert masking.num_slots(128, 0.15) == 19
  assert masking.num_slots(512, 0.15) == 79
  assert masking.num_slots(512, 0.25) == 130
  assert masking.num_slots(64, 0.15) == 9
  assert masking.num_slots(4, 0.15) == 1


@pytest.mark.parametrize("options", [tiny.MASKING, REPEATED], ids=name_of)
def test_slots_in_use_are_the_rounded_share_of_the_real_tokens(options):
  length = 128
  documents = (np.arange(length)[None] < np.arange(1, length + 1)[:, None]) * 1
  tokens = np.full((length, length), 9, np.int32)
  slots, _ = choose(tokens, documents, options)
  used = slots.weight_BxK.sum(axis=1)
  share = fractions.Fraction(15, 100)
  want = [
    min(max(round(share * n), 1), 19, n) for n in range(1, length + 1)
  ]  # Python rounds a fraction's half to even
  np.testing.assert_array_equal(used, want)
  by_length = dict(zip(range(1, length + 1), used, strict=True))
  assert [by_length[n] for n in (128, 100, 30, 3)] == [19, 15, 4, 1]


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
    np.testing.assert_array_equal(slots.original_BxK[b][used], chosen)
    # Unused slots are at the end, at position 0, and change nothing.
    assert (np.diff(used.astype(int)) <= 0).all()
    assert (slots.positions_BxK[b][~used] == 0).all()
    elsewhere = np.setdiff1d(np.arange(tiny.L), positions)
    np.testing.assert_array_equal(
      masked[b, elsewhere], batch["tokens"][b, elsewhere]
    )


def test_unknown_words_can_be_masked():
  tokens = np.full((64, 8), tiny.UNK, np.int32)
  slots, _ = choose(tokens, np.ones((64, 8), np.int32))
  assert (slots.weight_BxK.sum(axis=1) == 1).all()


def test_more_slots_than_candidates_uses_the_candidates_alone():
  options = masking.MaskingOptions(
    tiny.MASK, (tiny.CLS, tiny.SEP, tiny.MASK), mask_prob=0.9
  )
  tokens = np.array([[tiny.CLS, 7, tiny.SEP, 8, tiny.SEP, tiny.PAD]] * 3)
  tokens[1] = tiny.CLS, tiny.SEP, tiny.SEP, tiny.SEP, tiny.SEP, tiny.PAD
  documents = np.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0], [0] * 6])
  slots, masked = choose(tokens.astype(np.int32), documents, options)
  np.testing.assert_array_equal(slots.weight_BxK.sum(axis=1), [2, 0, 0])
  assert set(slots.positions_BxK[0][:2].tolist()) == {1, 3}
  np.testing.assert_array_equal(masked[1:], tokens[1:])
  # With replacement a slot may come back to a candidate: round(0.9 * 5) of 5.
  options = dataclasses.replace(options, with_replacement=True)
  slots, masked = choose(tokens.astype(np.int32), documents, options)
  np.testing.assert_array_equal(slots.weight_BxK.sum(axis=1), [4, 0, 0])
  assert set(slots.positions_BxK[0][:4].tolist()) <= {1, 3}
  np.testing.assert_array_equal(slots.positions_BxK[1:], 0)
  np.testing.assert_array_equal(masked[1:], tokens[1:])


def test_positions_are_uniform_and_the_mask_hides_85_percent():
  rows, length = 4_096, 128
  tokens = np.full((rows, length), 9, np.int32)
  documents = np.ones((rows, length), np.int32)
  counts, hidden, drawn = np.zeros(length), 0, 0
  pairs = np.zeros((2, 2))
  for step in range(13):  # 13 * 4,096 * 19 = 1.01 million slots
    slots, masked = choose(tokens, documents, step=step)
    chosen = np.zeros((rows, length), bool)
    np.put_along_axis(chosen, slots.positions_BxK, True, axis=1)
    assert (chosen.sum(axis=1) == 19).all()
    counts += chosen.sum(axis=0)
    hidden += (masked == tiny.MASK).sum()
    drawn += chosen.sum()
    for i, j in np.ndindex(2, 2):
      pairs[i, j] += (
        (chosen[:, 10] == i) & ((masked[:, 11] == tiny.MASK) == j)
      ).sum()
  expected = drawn / length
  chi_square = ((counts - expected) ** 2 / expected).sum()
  # Drawing without replacement shrinks the variance by 1 - 19/128.
  assert abs(chi_square / (1 - 19 / 128) - 127) < 5 * np.sqrt(2 * 127)
  error = np.sqrt(0.85 * 0.15 / drawn)
  assert abs(hidden / drawn - 0.85) < 5 * error
  # Neighbours hardly hinder one another.
  share = pairs[1, 1] / pairs[1].sum()
  want = 0.85 * 18 / 127
  assert abs(share - want) < 5 * np.sqrt(want * (1 - want) / pairs[1].sum())


def test_the_choice_to_keep_does_not_depend_on_the_positions():
  rows, length = 4_096, 128
  tokens = np.full((rows, length), 9, np.int32)
  slots, masked = choose(tokens, np.ones((rows, length), np.int32))
  kept = np.take_along_axis(masked, slots.positions_BxK, 1) != tiny.MASK
  error = 5 * np.sqrt(0.15 * 0.85 / rows)
  np.testing.assert_allclose(kept.mean(axis=0), 0.15, atol=error)
  # The k-th draw of one kind says nothing about the k-th of the other.
  chosen = np.zeros((rows, length), bool)
  np.put_along_axis(chosen, slots.positions_BxK, True, axis=1)
  late = slots.positions_BxK >= length // 2
  for side in (kept[late], kept[~late], kept[chosen[:, : kept.shape[1]]]):
    assert abs(side.mean() - 0.15) < 5 * np.sqrt(0.1275 / side.size)


@pytest.mark.parametrize("options", RECIPES, ids=name_of)
def test_chosen_tokens_are_shown_as_the_style_says(options):
  tokens = np.full((ROWS, LENGTH), 9, np.int32)
  slots, masked = choose(tokens, np.ones_like(tokens), options, step=1)
  places = places_of(slots, ROWS)  # slots at each position
  alone = places == 1
  style = masking.Style(*STYLES[options.style])
  by_chance = style.random / tiny.V  # a random token may be any
  want = {
    "hidden": 1 - style.kept - style.random + by_chance,
    "kept": style.kept + by_chance,
    "random": style.random * (1 - 2 / tiny.V),
  }
  shown = masked[alone]
  got = {
    "hidden": (shown == tiny.MASK).sum(),
    "kept": (shown == 9).sum(),
    "random": np.isin(shown, (tiny.MASK, 9), invert=True).sum(),
  }
  for name, probability in want.items():
    if probability in (0, 1):
      assert got[name] == shown.size * probability
    else:
      z = z_score(got[name], shown.size, probability)
      assert abs(z) < MOST, (name, got[name] / shown.size, z)
  np.testing.assert_array_equal(masked[places == 0], 9)
  if not options.with_replacement:
    assert places.sum() == alone.sum() == ROWS * 19
    return
  # One of several slots is enough to hide a position.
  for slots_there in (2, 3):
    shown = masked[places == slots_there]
    spared = (style.kept + style.random) ** slots_there
    z = z_score((shown == tiny.MASK).sum(), shown.size, 1 - spared)
    # The few random tokens that happen to be [MASK] do not show here.
    assert abs(z) < MOST, (slots_there, (shown == tiny.MASK).mean(), z)


def test_random_tokens_come_from_all_of_the_vocabulary_alike():
  options = dataclasses.replace(tiny.MASKING, style="80_10_10")
  tokens = np.full((ROWS, LENGTH), tiny.V, np.int32)  # one that is not in it
  _, masked = choose(tokens, np.ones_like(tokens), options)
  counts = np.bincount(masked.ravel(), minlength=tiny.V + 1)[: tiny.V]
  others = np.delete(counts, tiny.MASK)  # specials too, as BERT's
  assert counts.size == tiny.V and others.min() > 0
  assert abs(chi_square_z(others)) < MOST
  # Ids beyond 2^16 are drawn too.
  many = dataclasses.replace(options, vocab_size=200_000)
  _, masked = choose(tokens, np.ones_like(tokens), many)
  drawn = masked[(masked != tiny.MASK) & (masked != tiny.V)]
  assert drawn.min() >= 0 and 199_000 < drawn.max() < 200_000
  assert abs(chi_square_z(np.bincount(drawn // 20_000))) < MOST


@pytest.mark.parametrize("options", RECIPES, ids=name_of)
def test_what_a_slot_shows_is_its_own_affair(options):
  tokens = np.full((ROWS, LENGTH), 9, np.int32)
  style = masking.Style(*STYLES[options.style])
  shown = []
  for step in (0, 1):
    slots, masked = choose(tokens, np.ones_like(tokens), options, step=step)
    single = np.take_along_axis(
      places_of(slots, ROWS) == 1, slots.positions_BxK, 1
    )
    shown.append(np.take_along_axis(masked, slots.positions_BxK, 1))
  hidden = shown[1] == tiny.MASK
  chance = 1 - (style.kept + style.random) * (1 - 1 / tiny.V)
  chance = chance if style.random else 1 - style.kept
  late = slots.positions_BxK >= LENGTH // 2
  odd = slots.positions_BxK % 2 == 1
  first_half = np.broadcast_to(np.arange(19) < 9, hidden.shape)
  for part in (late, ~late, odd, ~odd, first_half, ~first_half):
    part = part & single
    z = z_score(hidden[part].sum(), part.sum(), chance)
    assert abs(z) < MOST, z
  if options.with_replacement:
    return  # slots of one place agree, as they should
  both = chance**2 + (1 - chance) ** 2
  for a, b in (
    (hidden[:, 1:], hidden[:, :-1]),  # neighbouring slots,
    (hidden[1:], hidden[:-1]),  # rows
    (hidden, shown[0] == tiny.MASK),  # and steps
  ):
    assert abs(z_score((a == b).sum(), a.size, both)) < MOST


def places_of(slots, rows, length=LENGTH):
  """How many slots in use each position has, `[rows, length]`."""
  places = np.zeros((rows, length), np.int64)
  row, k = np.nonzero(slots.weight_BxK)
  np.add.at(places, (row, slots.positions_BxK[row, k]), 1)
  return places


@pytest.mark.parametrize(
  ("length", "rows", "wanted", "distinct"),
  [(128, ROWS, 19, 17.7), (512, ROWS // 4, 77, 71.5)],
)
def test_draws_with_replacement_are_independent_and_uniform(
  length, rows, wanted, distinct
):
  tokens = np.full((rows, length), 9, np.int32)
  tokens[:, 0], tokens[:, length // 2] = tiny.CLS, tiny.SEP
  candidates = length - 2
  drawn = []
  for step in (0, 1):
    slots, _ = choose(tokens, np.ones_like(tokens), REPEATED, step=step)
    drawn.append(slots.positions_BxK[:, :wanted])
    assert (
      slots.weight_BxK == (np.arange(slots.weight_BxK.shape[1]) < wanted)
    ).all()
  places = places_of(slots, rows, length)
  # The released code's 17.7 of 19 and 71.5 of 77: 13.8 and 14 % of the tokens.
  n, k = candidates, wanted
  mean = n * (1 - (1 - 1 / n) ** k)
  variance = n * (n - 1) * (1 - 2 / n) ** k + n * (1 - 1 / n) ** k
  variance -= n**2 * (1 - 1 / n) ** (2 * k)
  assert mean == pytest.approx(distinct, abs=0.05)
  got = (places > 0).sum(axis=1).mean()
  assert abs(got - mean) / np.sqrt(variance / rows) < MOST
  # Every candidate as often as any other, the first and the last too.
  special = [0, length // 2]
  assert not places[:, special].any()
  counts = np.delete(places, special, axis=1).sum(axis=0)
  assert abs(chi_square_z(counts)) < MOST
  for a, b in (
    (drawn[1][:, 1:], drawn[1][:, :-1]),  # neighbouring slots,
    (drawn[1][1:], drawn[1][:-1]),  # rows
    (drawn[1], drawn[0]),  # and steps
  ):
    assert abs(z_score((a == b).sum(), a.size, 1 / n)) < MOST


def test_without_replacement_rows_and_steps_choose_apart():
  tokens = np.full((ROWS, LENGTH), 9, np.int32)
  places = [
    places_of(choose(tokens, np.ones_like(tokens), step=step)[0], ROWS)
    for step in (0, 1)
  ]
  share = 19 / LENGTH
  for a, b in ((places[0][1:], places[0][:-1]), (places[0], places[1])):
    # Overlaps of a row are hypergeometric, a little narrower than binomial.
    assert abs(z_score((a & b).sum(), a.size, share**2)) < MOST
  assert places[0].sum() / places[0].size == share


def test_slots_of_one_place_agree_and_the_first_decides():
  slots = masking.Slots(
    positions_BxK=jnp.array([[2, 1, 2, 2, 1, 0], [0, 3, 0, 3, 0, 0]]),
    original_BxK=jnp.array([[7, 6, 7, 7, 6, 5], [5, 8, 5, 8, 5, 5]]),
    weight_BxK=jnp.array([[1.0, 1, 1, 1, 1, 0], [1.0, 1, 1, 1, 0, 0]]),
    distinct=False,
  )
  values = jnp.array([[90, 91, 92, 93, 94, 95], [80, 81, 82, 83, 84, 85]])
  agreed = np.asarray(masking.of_first(slots, values))
  assert agreed[0, :5].tolist() == [90, 91, 90, 90, 91]
  assert agreed[1, :4].tolist() == [80, 81, 80, 81]
  tokens = jnp.array([[5, 6, 7, 8], [5, 6, 7, 8]])
  for fill in (masking.fill_slots, jax.jit(masking.fill_slots)):
    got = fill(tokens, slots, values)
    np.testing.assert_array_equal(got, [[5, 91, 90, 8], [80, 6, 7, 81]])


def test_a_place_is_hidden_if_one_of_its_slots_says_so():
  batch = tiny.make_batch(0, rows=512)
  batch["tokens"][:, 0] = 7  # where unused slots stand, a used one may too
  many = dataclasses.replace(REPEATED, mask_prob=0.6, style="80_10_10")
  keys_B = keys_of(512)
  slots, masked = choose(batch["tokens"], batch["documents"], many, keys_B)
  shape = slots.positions_BxK.shape[1:]
  uniform = np.asarray(rng.uniform(keys_B, shape, site=masking.KEEP_SITE))
  want = batch["tokens"].copy()
  seen = set()
  for b in range(512):
    used = np.flatnonzero(slots.weight_BxK[b])
    for position, group in itertools.groupby(
      sorted(used, key=lambda k: (slots.positions_BxK[b, k], k)),
      key=lambda k: slots.positions_BxK[b, k],
    ):
      u = uniform[b, list(group)]
      if (u >= np.float32(0.2)).any():
        want[b, position] = tiny.MASK
      elif u[0] >= np.float32(0.1):  # the first: a random token
        want[b, position] = masked[b, position]
      seen.add((len(u) > 1, bool((u >= 0.2).any()), bool((u >= 0.2).all())))
  np.testing.assert_array_equal(masked, want)
  assert {(True, True, False), (True, False, False)} <= seen


@pytest.mark.parametrize("length", DRAWS)
def test_the_default_draws_are_those_of_the_first_release(length):
  # README's figures rest on them: what they hash to may not change.
  batch = tiny.make_batch(0, rows=64, length=length)
  slots, masked = choose(batch["tokens"], batch["documents"], step=5)
  digest = zlib.crc32(masked.astype("<i4").tobytes())
  assert (slots.weight_BxK.sum(), digest) == DRAWS[length]


def test_an_unknown_style_is_refused_with_the_known_ones():
  with pytest.raises(InputError, match="'100_0_0' is unknown.*80_10_10"):
    masking.get_style("100_0_0")
  with pytest.raises(InputError, match="'80_20' is unknown.*80_20_0"):
    dataclasses.replace(tiny.MASKING, style="80_20")
  with pytest.raises(InputError, match="vocab_size has to be at least 1"):
    dataclasses.replace(tiny.MASKING, style="80_10_10", vocab_size=0)
  assert masking.STYLES.keys() == STYLES.keys()


@pytest.mark.parametrize(
  ("num_devices", "options"),
  [
    (1, tiny.MASKING),
    (8, tiny.MASKING),
    (8, dataclasses.replace(REPEATED, style="80_10_10")),
  ],
)
def test_slots_depend_neither_on_devices_nor_on_the_other_rows(
  num_devices, options
):
  mesh = sharding.make_mesh(
    sharding.get_spec("dp"), jax.devices()[:num_devices]
  )
  place = NamedSharding(mesh, P("data"))
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


def test_another_step_masks_other_words():
  batch = tiny.make_batch(0)
  a, _ = choose(batch["tokens"], batch["documents"], step=0)
  b, _ = choose(batch["tokens"], batch["documents"], step=1)
  assert np.any(a.positions_BxK != b.positions_BxK)


def test_fill_writes_the_slots_in_use_and_position_zero_never():
  slots = masking.Slots(
    positions_BxK=jnp.array([[2, 0], [3, 1]]),
    original_BxK=jnp.array([[7, 5], [8, 6]]),
    weight_BxK=jnp.array([[1.0, 0.0], [1.0, 1.0]]),
  )
  tokens = jnp.array([[5, 6, 7, 8], [5, 6, 7, 8]])
  got = masking.fill_slots(tokens, slots, jnp.array([[90, 91], [92, 93]]))
  np.testing.assert_array_equal(got, [[5, 6, 90, 8], [5, 93, 7, 92]])
