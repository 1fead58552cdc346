"""All implementations of attention agree with XLA, or are not chosen."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.models import attention, encoder, flash_attention
from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import sharding

L = 128
SLICED = attention.Implementation("sliced")
KEY = jax.random.key(0)
ONE_DEVICE = sharding.make_mesh(sharding.get_mesh_spec("dp"), jax.devices()[:1])


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradients(implementation, arrays, documents, keys_B):
  mask = attention.make_mask(implementation, documents)

  def attend(*qkv):
    return attention.attend(*qkv, mask, keys_B, rate=0.5, site=3)

  result, vjp = jax.vjp(attend, *arrays[:3])
  return result, *vjp(arrays[3])


def test_quarters_of_a_batch_equal_the_batch():
  """Nine rows make quarters of two and three; dropout is the same.

  They are full, padded and of padding, in turn, in several documents.
  """
  assert 9 * 2 * L**2 >= attention.MIN_SCORES
  ends = np.array([L, 70, 0] * 3)[:, None]
  numbers = 1 + np.searchsorted([10, 64], np.arange(L), side="right")
  documents = jnp.asarray((np.arange(L) < ends) * numbers, jnp.int32)
  arrays = jax.random.normal(KEY, (4, 9, L, 2, 8))
  inputs = arrays, documents, rng.row_keys(KEY, 0, jnp.arange(9))
  result, expected = (
    value_and_gradients(x, *inputs) for x in (SLICED, attention.XLA)
  )
  for a, b in zip(result, expected, strict=True):
    largest = float(jnp.abs(b).max())
    assert largest > 0
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest)


def make_config(**overrides):
  fields = dict(width=256, heads=4, dtype="bfloat16", attention_dropout=0.0)
  return encoder.EncoderConfig(
    vocab_size=9, embedding_size=8, layers=1, ffn=8, **{**fields, **overrides}
  )


def choose(choice, platform, mesh=ONE_DEVICE, length=512, **kw):
  configs = make_config(), make_config(**kw)
  return attention.choose(
    choice, configs, mesh, length=length, platform=platform
  )


def test_auto_chooses_by_platform():
  names = {"cpu": "sliced", "cuda": "flash", "tpu": "flash", "gpu": "xla"}
  assert {p: choose("auto", p)[0].name for p in names} == names
  several = sharding.make_mesh(sharding.get_mesh_spec("dp"), jax.devices()[:2])
  assert choose("auto", "cuda", several)[0].mesh == several
  assert choose("auto", "cpu", several)[0] == attention.XLA


@pytest.mark.parametrize(
  ("name", "platform", "width", "needed"),
  [
    ("flash", "cuda", 96, "heads .*not 24"),  # no power of two
    ("flash", "cpu", 256, "other devices than cpu"),
    ("sliced", "tpu", 256, "other devices than tpu"),
  ],
)
def test_what_is_not_possible_is_refused(name, platform, width, needed):
  with pytest.raises(InputError, match=f"'{name}' is not.*{needed}.*=auto"):
    choose(name, platform, width=width)
  if attention.PLATFORMS[platform] == name:
    implementation, line = choose("auto", platform, width=width)
    assert implementation == attention.XLA
    assert re.fullmatch(f"xla, as {name} needs {needed}", line)


def correct_kernel(query, key, value, documents, *_):
  allowed = attention.same_document(documents)
  return attention.dot_product_attention(
    query, key, value, allowed, None, lambda x, _: x
  )


def attends_to_padding(query, key, value, documents, *others):
  return correct_kernel(query, key, value, jnp.ones_like(documents))


def returns_nan_in_padding(*arrays):
  real = arrays[3][..., None, None] != 0
  return jnp.where(real, correct_kernel(*arrays), jnp.nan)


def has_no_key_gradient(query, key, *others):
  return correct_kernel(query, jax.lax.stop_gradient(key), *others)


def raises_an_error(*_):
  raise RuntimeError("no such library\nat all")


@pytest.mark.parametrize(
  ("kernel", "rate", "problem"),
  [
    (correct_kernel, 0.0, ""),
    (attends_to_padding, 0.0, "it is off by"),
    (returns_nan_in_padding, 0.0, "it is off by nan"),
    (has_no_key_gradient, 0.0, "it is off by 1"),
    (correct_kernel, 0.1, "it is off by"),  # without dropout
    (raises_an_error, 0.0, "RuntimeError: no such library"),
  ],
)
def test_only_a_correct_kernel_is_chosen(kernel, rate, problem, monkeypatch):
  monkeypatch.setattr(flash_attention, "attend", kernel)
  config = make_config(width=64, attention_dropout=rate)
  implementation, line = attention.choose(
    "auto", [config], ONE_DEVICE, length=L, platform="cuda", check=True
  )
  expected = "flash, checked against xla"
  if problem:
    expected = f"xla, as flash failed its check: {problem}.*"
  assert re.fullmatch(expected, line)
  assert implementation.name == expected.partition(",")[0]
