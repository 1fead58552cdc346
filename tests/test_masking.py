"""Slots: as many as ELECTRA's, distinct, uniform, and bound to their row."""

import fractions

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import tiny
from truenegs_jax import randomness
from truenegs_jax.objectives import masking
from truenegs_jax.train import sharding


def keys_of(rows, step=0):
  return randomness.row_keys(jax.random.key(0), step, jnp.arange(rows))


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


def test_slots_in_use_are_the_rounded_share_of_the_real_tokens():
  length = 128
  documents = (np.arange(length)[None] < np.arange(1, length + 1)[:, None]) * 1
  tokens = np.full((length, length), 9, np.int32)
  slots, _ = choose(tokens, documents)
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


@pytest.mark.parametrize("num_devices", [1, 8])
def test_slots_depend_neither_on_devices_nor_on_the_other_rows(num_devices):
  mesh = sharding.make_mesh(
    sharding.get_spec("dp"), jax.devices()[:num_devices]
  )
  place = NamedSharding(mesh, P("data"))
  batch = tiny.make_batch(0)

  def draw(tokens, documents, row_B):
    keys_B = randomness.row_keys(jax.random.key(0), 3, row_B)
    slots = masking.choose_slots(tokens, documents, keys_B, tiny.MASKING)
    return slots, masking.apply_mask(tokens, slots, keys_B, tiny.MASKING)

  arrays = [batch[name] for name in ("tokens", "documents", "row")]
  got = jax.device_get(jax.jit(draw)(*jax.device_put(arrays, place)))
  order = np.array([3, 0, 5])
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
