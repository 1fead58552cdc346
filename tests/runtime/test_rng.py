"""Draws are uniform, uncorrelated and depend only on their address."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from support import runs
from truenegs_jax.runtime import rng
from truenegs_jax.train import sharding


def keys(rows=64, step=0):
  return rng.row_keys(jax.random.key(0), step, jnp.arange(rows))


def dropped(keys_B, shape, rate=0.1, site=0):
  x = jnp.ones((len(keys_B), *shape))
  return np.asarray(rng.dropout(x, keys_B, rate=rate, site=site)) == 0


def assert_uniform(values, count):
  """Asserts chi-square of `count` equally likely values within 5 deviations."""
  counts = np.bincount(values.ravel(), minlength=count)
  expected = values.size / count
  chi_square = ((counts - expected) ** 2 / expected).sum()
  assert abs(chi_square - (count - 1)) < 5 * np.sqrt(2 * (count - 1))


def assert_uncorrelated(a, b):
  """Asserts a correlation within 5 standard errors of zero."""
  assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)


def test_uniform_numbers_are_uniform():
  x = np.asarray(rng.uniform(keys(), (4096,)))
  assert_uniform((x * 256).astype(int), 256)
  assert abs(x.mean() - 0.5) < 5 / np.sqrt(12 * x.size)
  # Low digits too; 2^-12 is far above the resolution.
  low = (x * 2**12) % 1
  assert abs(low.mean() - 0.5) < 5 / np.sqrt(12 * x.size)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_neighbouring_decisions_are_independent(rate):
  """A pattern would change the variance of sums, or counts of 8 neighbours."""
  drop = dropped(keys(64), (64, 512), rate)
  kurtosis = 1 / (rate * (1 - rate)) - 6
  shares = np.bincount([x.bit_count() for x in range(256)], minlength=9)
  for x in (drop, np.swapaxes(drop, 1, 2)):
    for size in (2, 16, 64):
      sums = x.reshape(-1, size).sum(axis=1) - size * rate
      mean_square = (sums**2).mean() / (size * rate * (1 - rate))
      error = np.sqrt((2 + kurtosis / size) / sums.size)
      assert abs(mean_square - 1) < 5 * error, size
    for lag in (1, 2, 4, 16, 32):
      assert_uncorrelated(x[:, :, :-lag], x[:, :, lag:])
    eights = np.packbits(x.reshape(-1, 8), axis=1)
    ones = np.bitwise_count(eights).ravel()
    probs = shares * rate ** np.arange(9.0) * (1 - rate) ** np.arange(8, -1, -1)
    counts, expected = np.bincount(ones, minlength=9), probs * ones.size
    assert (abs(counts - expected) < 5 * np.sqrt(expected) + 5).all()


def test_rows_sites_steps_and_purposes_are_uncorrelated():
  """All pairs at once, to detect a small part that many have in common."""
  streams = [
    dropped(rng.purpose_keys(keys(6, step), purpose), (16, 512), site=site)
    for step in (0, 1, 2, 1000)
    for purpose in (2, 3)
    for site in (0, 1, 2, 3, 35, 36)
  ]
  keep = np.concatenate(streams).reshape(-1, 8192).astype(np.float32)
  z = np.corrcoef(keep)[np.triu_indices(len(keep), 1)] * np.sqrt(8192)
  assert abs(z).max() < 6
  assert abs((z**2).mean() - 1) < 5 * np.sqrt(2 / z.size)


def test_uniform_numbers_are_never_0_or_1(monkeypatch):
  for bits in (0, 2**32 - 1):
    monkeypatch.setattr(
      rng,
      "random_bits",
      lambda keys_B, shape, site, bits=bits: jnp.full(shape, bits, jnp.uint32),
    )
    u = rng.uniform(keys(1), (1,))
    assert 0.0 < u[0] < 1.0
    assert np.isfinite(-np.log(-np.log(u[0])))


def test_draws_do_not_depend_on_devices_or_other_rows():
  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  by_row = NamedSharding(mesh, P("data"))

  def numbers(row_B):
    keys_B = rng.row_keys(jax.random.key(5), 7, row_B)
    return rng.random_bits(keys_B, (3, 5), site=2)

  row_B = jax.device_put(jnp.arange(8), by_row)
  actual = np.asarray(jax.jit(numbers, in_shardings=by_row)(row_B))
  for row in range(8):
    np.testing.assert_array_equal(actual[row], numbers(jnp.array([row]))[0])


def test_dropout_scales_what_it_keeps():
  y = np.asarray(rng.dropout(jnp.ones((2, 99)), keys(2), rate=0.1, site=3))
  np.testing.assert_allclose(np.unique(y), [0.0, 1 / 0.9], rtol=1e-6)


def test_numbers_are_the_same_in_every_version():
  """Published results depend on them."""
  words = [[4165894930, 804218099], [1353695780, 2116000888]]
  keys_2 = jax.random.wrap_key_data(jnp.array(words, jnp.uint32))
  np.testing.assert_array_equal(
    rng.random_bits(keys_2, (3,), site=5),
    [[3173825177, 302846390, 724730429], [2935275416, 506603176, 3792768047]],
  )
  drop = dropped(keys_2, (2, 8), rate=0.5, site=5)
  np.testing.assert_array_equal(np.packbits(drop), [54, 149, 251, 151])


def test_dropout_without_keys_or_rate_is_the_identity_and_keeps_the_type():
  x = jnp.ones((2, 3), jnp.bfloat16)
  np.testing.assert_array_equal(rng.dropout(x, None, rate=0.5, site=0), x)
  np.testing.assert_array_equal(rng.dropout(x, keys(2), rate=0.0, site=0), x)
  assert rng.dropout(x, keys(2), rate=0.5, site=0).dtype == x.dtype


PRINT_GENERATOR = """
import sys
from truenegs_jax import main
main._run = lambda: print(sys.modules["jax"].config.jax_default_prng_impl) or 0
main.main([])
"""


def test_variables_of_jax_change_no_draws_of_a_run(tmp_path):
  env = runs.make_environment(tmp_path) | {"JAX_DEFAULT_PRNG_IMPL": "rbg"}
  ended = runs.run_code(PRINT_GENERATOR, env=env)
  assert (ended.returncode, ended.stdout) == (0, "threefry2x32\n"), ended
