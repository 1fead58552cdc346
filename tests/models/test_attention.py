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


def make_documents(packed, rows=3):
  """Builds a full row, a padded one and one of padding, in turn.

  `packed` divides them into several documents.
  """
  ends = np.array([L, 70, 0])[np.arange(rows) % 3, None]
  documents = (np.arange(L) < ends).astype(np.int32)
  if packed:
    documents *= 1 + np.searchsorted([10, 64], np.arange(L), side="right")
  return jnp.asarray(documents, jnp.int32)


def make_arrays(width, rows=3, heads=2):
  """Draws queries, keys, values and a cotangent."""
  shape = rows, L, heads, width
  return [jax.random.normal(k, shape) for k in jax.random.split(KEY, 4)]


@functools.partial(jax.jit, static_argnums=0, static_argnames="rate")
def value_and_gradients(implementation, documents, arrays, keys_B=None, rate=0):
  mask = attention.make_mask(implementation, documents)

  def attend(*qkv):
    return attention.attend(*qkv, mask, keys_B, rate=rate, site=3)

  result, vjp = jax.vjp(attend, *arrays[:3])
  return result, *vjp(arrays[3])


def assert_equals_xla(implementation, documents, arrays, **kw):
  result = value_and_gradients(implementation, documents, arrays, **kw)
  expected = value_and_gradients(attention.XLA, documents, arrays, **kw)
  for a, b in zip(result, expected, strict=True):
    largest = float(jnp.abs(b).max())
    assert largest > 0
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest)


def test_quarters_of_a_batch_equal_the_batch():
  """Nine rows make quarters of two and three; dropout is the same."""
  keys_B = rng.row_keys(KEY, 0, jnp.arange(9))
  assert 9 * 2 * L**2 >= attention.MIN_SCORES
  documents, arrays = make_documents(packed=True, rows=9), make_arrays(8, 9)
  assert_equals_xla(SLICED, documents, arrays, keys_B=keys_B, rate=0.5)


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


def check_kernel(monkeypatch, kernel, rate=0.0):
  """Chooses for a GPU, with a function in place of its kernel."""
  monkeypatch.setattr(flash_attention, "attend", kernel)
  return attention.choose(
    "auto",
    [make_config(width=64, attention_dropout=rate, dropout=0.0)],
    ONE_DEVICE,
    length=L,
    platform="cuda",
    check=True,
  )


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
  implementation, line = check_kernel(monkeypatch, kernel, rate)
  expected = "flash, checked against xla"
  if problem:
    expected = f"xla, as flash failed its check: {problem}.*"
  assert re.fullmatch(expected, line)
  assert implementation.name == expected.partition(",")[0]
