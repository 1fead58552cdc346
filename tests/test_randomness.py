"""Draws are uniform, unrelated to one another and bound to their address."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from truenegs_jax import randomness
from truenegs_jax.train import sharding


def keys(rows=64, step=0, seed=0):
  return randomness.row_keys(jax.random.key(seed), step, jnp.arange(rows))


def draw(rows=64, shape=(4096,), *, step=0, seed=0, site=0):
  return np.asarray(
    randomness.uniform(keys(rows, step, seed), shape, site=site)
  )


def assert_unrelated(a, b):
  """Correlation within 5 standard errors of zero."""
  a, b = a.ravel(), b.ravel()
  assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(a.size)


def test_uniform_numbers_fill_the_interval_evenly():
  x = draw()
  counts = np.bincount((x * 256).astype(int).ravel(), minlength=256)
  expected = x.size / 256
  chi_square = ((counts - expected) ** 2 / expected).sum()
  assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)
  assert abs(x.mean() - 0.5) < 5 / np.sqrt(12 * x.size)
  # Low digits too: 2^-12 is far above the resolution.
  low = (x * 2**12) % 1
  assert abs(low.mean() - 0.5) < 5 / np.sqrt(12 * x.size)


def test_uniform_numbers_never_reach_an_end(monkeypatch):
  for bits in (0, 2**32 - 1):
    monkeypatch.setattr(
      randomness,
      "random_bits",
      lambda keys_B, shape, site, bits=bits: jnp.full(shape, bits, jnp.uint32),
    )
    u = randomness.uniform(keys(1), (1,))
    assert 0.0 < u[0] < 1.0
    assert np.isfinite(-np.log(-np.log(u[0])))


def test_neighbours_of_every_kind_are_unrelated():
  x = draw()
  assert_unrelated(x[:-1], x[1:])  # rows
  assert_unrelated(x[:, :-1], x[:, 1:])  # elements
  assert_unrelated(x[:-1, :-1], x[1:, 1:])
  assert_unrelated(x, draw(step=1))
  assert_unrelated(x, draw(seed=1))
  for site in (1, 2, 36):
    assert_unrelated(x, draw(site=site))


def test_no_row_is_a_shifted_copy_of_another():
  x = draw(rows=8, shape=(512,))
  for i in range(8):
    for j in range(i):
      shared = np.intersect1d(x[i], x[j]).size
      assert shared < 5  # 512 * 512 / 2^23 by chance


@pytest.mark.parametrize("words", [[[7, 1], [7, 2]], [[1, 7], [2, 7]]])
def test_both_words_of_a_key_count(words):
  keys_2 = jax.random.wrap_key_data(jnp.array(words, jnp.uint32))
  a, b = np.asarray(randomness.uniform(keys_2, (2**16,)))
  assert_unrelated(a, b)
  assert np.intersect1d(a[:512], b[:512]).size < 5


@pytest.mark.parametrize("purpose", range(1, 4))
def test_purposes_are_unrelated(purpose):
  a = randomness.uniform(randomness.purpose_keys(keys(), 0), (4096,))
  b = randomness.uniform(randomness.purpose_keys(keys(), purpose), (4096,))
  assert_unrelated(np.asarray(a), np.asarray(b))


def test_every_element_of_a_large_draw_is_its_own():
  x = draw(rows=1, shape=(8, 16, 32))
  # 4096 of 2^23 values: one pair in common is to be expected.
  assert np.unique(x).size > x.size - 10
  flat = draw(rows=1, shape=(4096,))
  np.testing.assert_array_equal(x.ravel(), flat.ravel())


@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_a_draw_does_not_depend_on_devices_or_on_the_other_rows(num_devices):
  mesh = sharding.make_mesh(
    sharding.get_spec("dp"), jax.devices()[:num_devices]
  )
  place = NamedSharding(mesh, P("data"))

  def numbers(row_B):
    keys_B = randomness.row_keys(jax.random.key(5), 7, row_B)
    return randomness.random_bits(keys_B, (3, 5), site=2)

  row_B = jax.device_put(jnp.arange(8), place)
  got = np.asarray(jax.jit(numbers, in_shardings=place)(row_B))
  for row in range(8):
    np.testing.assert_array_equal(got[row], numbers(jnp.array([row]))[0])


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_zeroes_its_share_and_keeps_the_mean(rate):
  x = jnp.ones((64, 4096))
  y = np.asarray(randomness.dropout(x, keys(), rate=rate, site=3))
  error = np.sqrt(rate * (1 - rate) / y.size)
  assert abs((y == 0).mean() - rate) < 5 * error
  assert abs(y.mean() - 1.0) < 5 * error / (1 - rate)
  np.testing.assert_allclose(np.unique(y), [0.0, 1 / (1 - rate)], rtol=1e-6)
  other = randomness.dropout(x, keys(), rate=rate, site=4)
  assert_unrelated(y, np.asarray(other))


def test_a_site_may_be_known_only_when_it_runs():
  """The layers of a network as a loop draw what they draw one by one."""
  sites = [0, 1, 36, 2**31 - 1]
  draw_at = lambda site: randomness.random_bits(keys(2), (5,), site=site)
  looped = jax.lax.map(draw_at, jnp.array(sites, jnp.int32))
  for site, bits in zip(sites, looped, strict=True):
    np.testing.assert_array_equal(bits, draw_at(site))


def test_numbers_stay_what_they_were():
  """Reported results hang on them: a seed means the same in every version."""
  words = [[4165894930, 804218099], [1353695780, 2116000888]]
  keys_2 = jax.random.wrap_key_data(jnp.array(words, jnp.uint32))
  np.testing.assert_array_equal(
    randomness.random_bits(keys_2, (3,), site=5),
    [[3173825177, 302846390, 724730429], [2935275416, 506603176, 3792768047]],
  )


def test_dropout_without_keys_or_rate_is_the_identity():
  x = jnp.ones((2, 3))
  np.testing.assert_array_equal(
    randomness.dropout(x, None, rate=0.5, site=0), x
  )
  np.testing.assert_array_equal(
    randomness.dropout(x, keys(2), rate=0.0, site=0), x
  )


def test_dropout_keeps_half_precision():
  x = jnp.ones((2, 3), jnp.bfloat16)
  assert randomness.dropout(x, keys(2), rate=0.5, site=0).dtype == x.dtype
