"""Draws are uniform, uncorrelated and depend only on their address."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from scipy import fft, stats

from support import runs
from truenegs_jax.runtime import rng
from truenegs_jax.train import sharding


def keys(rows=64, step=0, seed=0):
  return rng.row_keys(jax.random.key(seed), step, jnp.arange(rows))


def draw(rows=64, shape=(4096,), *, step=0, seed=0, site=0):
  return np.asarray(rng.uniform(keys(rows, step, seed), shape, site=site))


def random_bits(keys_B, shape, site=0):
  return np.asarray(rng.random_bits(keys_B, shape, site=site))


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
  x = draw()
  assert_uniform((x * 256).astype(int), 256)
  assert abs(x.mean() - 0.5) < 5 / np.sqrt(12 * x.size)
  # Low digits too; 2^-12 is far above the resolution.
  low = (x * 2**12) % 1
  assert abs(low.mean() - 0.5) < 5 / np.sqrt(12 * x.size)


@pytest.mark.parametrize("shape", [(16, 128, 128), (1, 2**18)])
def test_groups_of_bits_are_uniform_at_every_position(shape):
  bits = random_bits(keys(shape[0]), shape[1:])
  for width in (1, 2, 8, 12):
    for low in range(0, 33 - width, max(width // 2, 1)):
      assert_uniform(bits >> low & 2**width - 1, 2**width)


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


def test_decisions_of_a_line_are_uncorrelated_at_every_lag():
  """With one stride for both words, lag 305 would fail: its product is 2^31.

  Each line has its own words, so that the signs of such correlations differ.
  """
  signs = 1 - 2 * dropped(keys(32), (256, 2048), rate=0.5).astype(np.float32)
  for lag in (1, 144, 233, 305, 610):
    sums = np.einsum("blk,blk->bl", signs[..., lag:], signs[..., :-lag])
    squares = sums**2 / (2048 - lag)
    error = squares.std() / np.sqrt(squares.size)
    assert abs(squares.mean() - 1) < 5 * error, lag


STRIDE = 0x9E3779B1


def decide_with_one_stride(place, words, rate):
  """Decides like `is_kept`, but both products have the same stride."""
  first, second = words
  bits = (first ^ place * jnp.uint32(STRIDE)) * (
    second + place * jnp.uint32(STRIDE)
  )
  return bits >= jnp.uint32(int(rate * 2**32))


def decide_with_one_factor(place, words, rate):
  """Decides like `is_kept`, but with one factor for a whole line."""
  first, second = words
  bits = (first ^ place * jnp.uint32(STRIDE)) * (second | 1)
  return bits >= jnp.uint32(int(rate * 2**32))


def measure_lags(z_NxL):
  """Measures by how many errors lines depend on themselves at each lag.

  Sums over a line are squared, as their signs differ from line to line.
  """
  count, length = z_NxL.shape
  pairs_L = length - np.arange(1, length // 2)
  total_L = np.zeros(len(pairs_L))
  total_square_L = np.zeros(len(pairs_L))
  for z_1024xL in np.split(z_NxL, range(1024, count, 1024)):
    power_1024xF = abs(fft.rfft(z_1024xL, 2 * length)) ** 2
    sums_1024xL = fft.irfft(power_1024xF)[:, 1 : length // 2]
    squares_1024xL = sums_1024xL**2 / pairs_L
    total_L += squares_1024xL.sum(axis=0)
    total_square_L += (squares_1024xL**2).sum(axis=0)
  mean_L = total_L / count
  errors_L = np.sqrt((total_square_L / count - mean_L**2) / count)
  return (mean_L - 1) / errors_L


def find_p_values(drop_NxL, rate):
  """Tests whether decisions are independent and have a rate; p-values."""
  z_NxL = ((drop_NxL - rate) / np.sqrt(rate * (1 - rate))).astype(np.float32)
  count, length = z_NxL.shape
  shares_N = z_NxL.sum(axis=1) / np.sqrt(length)
  shares_L = z_NxL.sum(axis=0) / np.sqrt(count)
  lags_L = measure_lags(z_NxL)
  next_N = (z_NxL[1:] * z_NxL[:-1]).sum(axis=1) / np.sqrt(length)
  p_values = {
    "shares of lines": stats.chi2.sf((shares_N**2).sum(), count),
    "shares of places": stats.chi2.sf((shares_L**2).sum(), length),
    "likeness of lines": stats.chi2.sf((next_N**2).sum(), count - 1),
    "any lag": min(1, 2 * stats.norm.sf(abs(lags_L).max()) * lags_L.size),
    "all lags": stats.norm.sf(lags_L.sum() / np.sqrt(lags_L.size)),
  }
  blocks = {
    "8 places": drop_NxL.reshape(-1, 8),
    "8 lines": drop_NxL.T.reshape(-1, 8),
    "2 lines of 4": np.moveaxis(
      drop_NxL.reshape(count // 2, 2, length // 4, 4), 1, 2
    ).reshape(-1, 8),
  }
  ones_256 = np.bitwise_count(np.arange(256))
  probs_256 = rate**ones_256 * (1 - rate) ** (8.0 - ones_256)
  for name, bits_Mx8 in blocks.items():
    patterns_M = np.packbits(bits_Mx8, axis=1).ravel()
    counts_256 = np.bincount(patterns_M, minlength=256)
    is_frequent = probs_256 * len(patterns_M) >= 10
    expected = probs_256[is_frequent] * len(patterns_M)
    chi_square = ((counts_256[is_frequent] - expected) ** 2 / expected).sum()
    p_values[name] = stats.chi2.sf(chi_square, is_frequent.sum())
  return p_values


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_statistics_of_50_million_decisions_find_nothing(rate):
  drop = dropped(keys(96, step=3, seed=1), (128, 4096), rate, site=5)
  p_values = find_p_values(drop.reshape(-1, 4096), rate)
  assert min(p_values.values()) > 1e-4, p_values


@pytest.mark.slow
@pytest.mark.parametrize(
  ("decide", "rate", "statistic"),
  [
    (decide_with_one_stride, 0.5, "any lag"),
    (decide_with_one_factor, 0.1, "all lags"),
  ],
)
def test_statistics_of_decisions_find_weaker_hashes(
  monkeypatch, decide, rate, statistic
):
  monkeypatch.setattr(rng, "is_kept", decide)
  drop = dropped(keys(96, step=3, seed=1), (128, 4096), rate, site=5)
  p_values = find_p_values(drop.reshape(-1, 4096), rate)
  assert p_values[statistic] < 1e-9, p_values


# The counter is multiplied by the golden ratio, so that the products nearly
# repeat after a Fibonacci number of elements; a weaker hash would show that.
@pytest.mark.parametrize("lag", [1, 144, 4181])
def test_differences_of_elements_are_uniform(lag):
  bits = random_bits(keys(16), (2**14,))
  for difference in (
    bits[:, lag:] - bits[:, :-lag],
    bits[:, lag:] ^ bits[:, :-lag],
  ):
    for low in (0, 8, 16, 24):
      assert_uniform(difference >> low & 255, 256)


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


@pytest.mark.parametrize("flipped", ["key", "site", "counter"])
def test_flipping_one_bit_of_the_address_flips_half_of_the_bits(flipped):
  words_Nx2 = np.asarray(jax.random.key_data(keys(256)))

  def bits_at(words, site=5):
    return random_bits(
      jax.random.wrap_key_data(jnp.asarray(words)), (256,), site
    )

  bits = bits_at(words_Nx2)
  for i in range({"key": 64, "site": 31, "counter": 8}[flipped]):
    if flipped == "key":
      word, shift = np.eye(2, dtype=np.uint32)[i // 32], np.uint32(i % 32)
      other = bits_at(words_Nx2 ^ word << shift)
    elif flipped == "site":
      other = bits_at(words_Nx2, 5 ^ 1 << i)
    else:
      other = bits[:, np.arange(256) ^ 1 << i]
    changes = (bits ^ other)[..., None] >> np.arange(32, dtype=np.uint32) & 1
    share = changes.reshape(-1, 32).mean(axis=0)
    # 256 * 256 pairs; with "counter" half as many, each counted twice.
    assert abs(share - 0.5).max() < 5.5 * 0.5 / np.sqrt(2**15), i


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


@pytest.mark.parametrize("words", [[[7, 1], [7, 2]], [[1, 7], [2, 7]]])
def test_both_words_of_a_key_are_used(words):
  keys_2 = jax.random.wrap_key_data(jnp.array(words, jnp.uint32))
  a, b = np.asarray(rng.uniform(keys_2, (2**16,)))
  assert_uncorrelated(a, b)
  assert np.intersect1d(a[:512], b[:512]).size < 5


@pytest.mark.parametrize("num_devices", [1, 2, 8])
def test_draws_do_not_depend_on_devices_or_other_rows(num_devices):
  mesh = sharding.make_mesh(
    sharding.get_mesh_spec("dp"), jax.devices()[:num_devices]
  )
  by_row = NamedSharding(mesh, P("data"))

  def numbers(row_B):
    keys_B = rng.row_keys(jax.random.key(5), 7, row_B)
    return rng.random_bits(keys_B, (3, 5), site=2)

  row_B = jax.device_put(jnp.arange(8), by_row)
  actual = np.asarray(jax.jit(numbers, in_shardings=by_row)(row_B))
  for row in range(8):
    np.testing.assert_array_equal(actual[row], numbers(jnp.array([row]))[0])


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_zeroes_its_share_and_keeps_the_mean(rate):
  x = jnp.ones((64, 4096))
  y = np.asarray(rng.dropout(x, keys(), rate=rate, site=3))
  error = np.sqrt(rate * (1 - rate) / y.size)
  assert abs((y == 0).mean() - rate) < 5 * error
  assert abs(y.mean() - 1.0) < 5 * error / (1 - rate)
  np.testing.assert_allclose(np.unique(y), [0.0, 1 / (1 - rate)], rtol=1e-6)


def test_a_site_can_be_an_array():
  """A loop over layers draws the same numbers as separate layers."""
  sites = [0, 1, 36, 2**31 - 1]

  def draw_at(site):
    return rng.random_bits(keys(2), (5,), site=site)

  looped = jax.lax.map(draw_at, jnp.array(sites, jnp.int32))
  for site, bits in zip(sites, looped, strict=True):
    np.testing.assert_array_equal(bits, draw_at(site))


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
from absl import flags
from truenegs_jax import main
flags.DEFINE_boolean("next", False, "")
flags.FLAGS(["main"])
main._run = lambda: print(sys.modules["jax"].config.jax_default_prng_impl) or 0
main.main([])
"""


def test_variables_of_jax_change_no_draws_of_a_run(tmp_path):
  env = runs.make_environment(tmp_path) | {"JAX_DEFAULT_PRNG_IMPL": "rbg"}
  command = [sys.executable, "-c", PRINT_GENERATOR]
  ended = subprocess.run(command, env=env, capture_output=True, text=True)
  assert (ended.returncode, ended.stdout) == (0, "threefry2x32\n"), ended
