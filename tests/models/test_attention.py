"""Every form of attention gives plain attention's numbers, or is not taken."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import attention, choose_attention, encoder
from truenegs_jax.runtime import cpu, cpu_ops, rng
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import sharding

L = 128
SPLASH = attention.Implementation("splash", interpret=True)
PIECES = attention.Implementation("pieces")
NO_MESH = sharding.make_mesh(sharding.get_mesh_spec("dp"), jax.devices()[:1])


def documents_of(packed, rows=3):
  """Full, padded and, if packed, rows of several documents; one of padding."""
  ends = np.array([L, 70, 0])[np.arange(rows) % 3, None]
  documents = (np.arange(L) < ends).astype(np.int32)
  if packed:
    documents *= 1 + np.searchsorted([10, 64], np.arange(L), side="right")
  return jnp.asarray(documents, jnp.int32)


def arrays_of(width, rows=3, heads=2):
  """Queries, keys, values and a cotangent."""
  shape = rows, L, heads, width
  return [jax.random.normal(k, shape) for k in jax.random.split(KEY, 4)]


KEY = jax.random.key(0)


@functools.partial(jax.jit, static_argnums=0, static_argnames="rate")
def result_and_gradients(form, documents, arrays, keys_B=None, rate=0.0):
  mask = attention.make_mask(form, documents)
  go = lambda *qkv: attention.attend(*qkv, mask, keys_B, rate=rate, site=3)
  result, push = jax.vjp(go, *arrays[:3])
  return result, *push(arrays[3])


def assert_plain(form, documents, arrays, **kw):
  got = result_and_gradients(form, documents, arrays, **kw)
  want = result_and_gradients(attention.XLA, documents, arrays, **kw)
  for name, a, b in zip(choose_attention.COMPARED, got, want, strict=True):
    largest = float(jnp.abs(b).max())
    assert largest > 0
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest, err_msg=name)


def test_splash_attention_is_plain_attention():
  assert_plain(SPLASH, documents_of(packed=False), arrays_of(64))


def test_splash_attention_knows_documents_and_runs_on_meshes():
  """Two slices of the rows, two of the heads."""
  spec = sharding.get_mesh_spec("fsdp_tp")
  mesh = sharding.make_mesh(spec, jax.devices()[:4])
  form = dataclasses.replace(SPLASH, mesh=mesh)
  rows = sharding.batch_sharding(mesh)
  documents = jax.device_put(documents_of(packed=True, rows=4), rows)
  arrays = jax.device_put(arrays_of(32, 4), rows)
  assert_plain(form, documents, arrays)
  result, *_ = result_and_gradients(form, documents, arrays)
  assert result.sharding.shard_shape(result.shape) == (2, L, 1, 32)


def test_pieces_of_a_batch_are_the_batch():
  """Nine rows are pieces of two and three; their dropout is the same."""
  keys_B = rng.row_keys(KEY, 0, jnp.arange(9))
  assert 9 * 2 * L**2 >= cpu_ops.MIN_SCORES
  documents, arrays = documents_of(packed=True, rows=9), arrays_of(8, 9)
  assert_plain(PIECES, documents, arrays, keys_B=keys_B, rate=0.5)


def test_cudnn_is_given_lengths_and_no_mask(monkeypatch):
  """By XLA's form of the same call, which cuDNN's mirrors."""
  public, asked = jax.nn.dot_product_attention, []

  def stand_in(*qkv, implementation, **kw):
    asked.append((implementation, sorted(kw)))
    return public(*qkv, implementation="xla", **kw)

  monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
  documents, (*qkv, cotangent) = documents_of(packed=False), arrays_of(64)
  real = documents[..., None, None] != 0
  arrays = [*qkv, jnp.where(real, cotangent, 0)]  # nothing reads padding
  got = result_and_gradients(
    attention.Implementation("cudnn"), documents, arrays
  )
  want = result_and_gradients(attention.XLA, documents, arrays)
  assert asked == [("cudnn", ["key_value_seq_lengths", "query_seq_lengths"])]
  for a, b in zip(got, want, strict=True):
    assert np.isfinite(a).all()
    np.testing.assert_allclose(a * real, b * real, atol=1e-5)


def test_kernels_leave_other_lengths_to_xla():
  for length, name in ((96, "xla"), (128, "splash")):
    documents = jnp.ones((1, length), jnp.int32)
    assert attention.make_mask(SPLASH, documents).implementation.name == name


def gradient_of_a_layer(form, **how):
  """As of a micro-batch: one linearized pass transposed (train/step.py)."""
  fields = {**encoder.VARIANTS["tiny"], "layers": 1, **how, "attention": form}
  network = encoder.Encoder(encoder.EncoderConfig(vocab_size=9, **fields))
  x_BxLxE = 5 * jax.random.normal(KEY, (3, L, 16))

  @jax.jit
  def gradient():
    params = network.init(KEY, x_BxLxE[:, :2], jnp.ones((3, 2), int), None)
    go = lambda p: network.apply(p, x_BxLxE, documents_of(packed=True), None)
    _, push = jax.linearize(lambda p: (go(p) ** 3).mean(), params)
    return jax.linear_transpose(push, params)(jnp.ones(()))[0]

  return jax.tree.leaves(gradient())


def test_a_kernel_bears_accumulation_scan_and_remat():
  got = gradient_of_a_layer(SPLASH, scan=True, remat="full")
  want = gradient_of_a_layer(attention.XLA)
  largest = max(float(jnp.abs(x).max()) for x in want)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5 * largest)


def config_of(**overrides):
  fields = dict(width=256, heads=4, dtype="bfloat16", attention_dropout=0.0)
  return encoder.EncoderConfig(
    vocab_size=9, embedding_size=8, layers=1, ffn=8, **{**fields, **overrides}
  )


def choose(wanted, platform, mesh=NO_MESH, *, length=512, packed=False, **kw):
  return choose_attention.choose(
    wanted,
    [config_of(), config_of(**kw)],
    mesh,
    length=length,
    packed=packed,
    platform=platform,
  )


def test_each_platform_has_its_own(monkeypatch):
  monkeypatch.delenv(cpu.SWITCH, raising=False)
  found = {p: choose("auto", p)[0].name for p in ("cpu", "cuda", "tpu", "gpu")}
  assert found == {
    "cpu": "pieces",
    "cuda": "cudnn",
    "tpu": "splash",
    "gpu": "xla",
  }
  monkeypatch.setenv(cpu.SWITCH, "plain")
  assert choose("auto", "cpu")[0] == attention.XLA
  assert choose("pieces", "cpu")[0].name == "pieces"
  several = sharding.make_mesh(sharding.get_mesh_spec("dp"), jax.devices()[:2])
  assert choose("auto", "cuda", several)[0].mesh == several
  assert choose("auto", "cpu", several)[0] == attention.XLA
  assert choose("auto", "tpu", length=256)[0] == attention.XLA
  assert choose("splash", "tpu", length=256)[0].name == "splash"
  assert choose("auto", "tpu", packed=True)[0].name == "splash"


@pytest.mark.parametrize(
  "given,way",
  [
    (dict(attention_dropout=0.1), "model.attention_dropout=0"),
    (dict(dtype="float32"), "model.dtype=bfloat16"),
    (dict(length=192), "a length that 128 divides"),
    (dict(packed=True), "rows that are not packed"),
    (dict(heads=64), "not 4"),
    (dict(width=1024), "not 256"),
  ],
)
def test_what_cudnn_cannot_do_is_left_to_xla_or_refused(given, way):
  form, line = choose("auto", "cuda", **given)
  assert form == attention.XLA
  assert line.startswith("xla, as cudnn needs ") and way in line
  with pytest.raises(InputError, match=f"attention='cudnn' is not.*{way}"):
    choose("cudnn", "cuda", **given)


def test_a_form_of_other_devices_is_refused():
  with pytest.raises(InputError, match="tpu devices .not cpu.*=auto"):
    choose("splash", "cpu")
  with pytest.raises(InputError, match="'flash' is unknown.*auto, xla"):
    choose("flash", "cpu")


def settle(monkeypatch, kernel):
  monkeypatch.setitem(attention.KERNELS, "cudnn", kernel)
  monkeypatch.setattr(choose_attention, "get_platform", lambda _: "cuda")
  return choose_attention.choose_checked(
    "cudnn", [config_of(width=32)], NO_MESH, length=L, packed=False
  )


def right(query, key, value, documents, *, interpret):
  allowed = attention.same_document(documents)
  drop = lambda x, _: x
  return attention.dot_product_attention(query, key, value, allowed, None, drop)


def sees_padding(query, key, value, documents, **kw):
  return right(query, key, value, jnp.ones_like(documents), **kw)


def not_finite_in_padding(query, key, value, documents, **kw):
  real = documents[..., None, None] != 0
  return jnp.where(real, right(query, key, value, documents, **kw), jnp.nan)


def no_gradient(query, key, value, documents, **kw):
  return right(query, jax.lax.stop_gradient(key), value, documents, **kw)


def does_not_run(*_, **__):
  raise RuntimeError("no such library\nat all")


def test_a_kernel_is_taken_where_its_numbers_are_right(monkeypatch):
  form, line = settle(monkeypatch, right)
  assert (form.name, line) == ("cudnn", "cudnn, checked against xla")


@pytest.mark.parametrize(
  "kernel,told",
  [
    (sees_padding, "its result is off by"),
    (not_finite_in_padding, "its result is off by nan"),
    (no_gradient, "its key is off by 1"),
    (does_not_run, "RuntimeError: no such library"),
  ],
)
def test_a_kernel_that_is_wrong_here_gives_way(kernel, told, monkeypatch):
  form, line = settle(monkeypatch, kernel)
  assert form == attention.XLA
  assert re.fullmatch(f"xla, as cudnn failed its check: {told}.*", line)


def test_every_network_of_a_model_gets_the_form():
  for model in (tiny.make_model(), tiny.make_bert()):
    given = choose_attention.with_attention(model, PIECES)
    assert {c.attention for c in given.roles.values()} == {PIECES}
    assert choose_attention.with_attention(given, attention.XLA) == model
