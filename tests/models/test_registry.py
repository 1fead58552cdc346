"""What every backbone keeps to: each file of models/ that is one."""

import functools
import importlib
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax import models
from truenegs_jax.models import encoder, layers, registry
from truenegs_jax.runtime import rng as rng_lib
from truenegs_jax.train import sharding

FIELDS = ("tokens", "types", "documents")
FOLDER = pathlib.Path(models.__file__).parent


def found():
  """The modules of models/ that expose what a backbone exposes, by name."""
  names = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "__init__")
  modules = {
    n: importlib.import_module(f"truenegs_jax.models.{n}") for n in names
  }
  return {
    name: module
    for name, module in modules.items()
    if all(hasattr(module, n) for n in registry.REQUIRED_NAMES)
  }


BACKBONES = found()
# Each remat and each scan, and a loop with and without remat.
MODES = [dict(remat="full"), dict(remat="dots", scan=True), dict(scan=True)]
# Compiled in half the time; what runs, runs a moment.
quick_jit = functools.partial(
  jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


@pytest.fixture(params=BACKBONES)
def backbone(request):
  return BACKBONES[request.param]


def config_of(backbone, **overrides):
  """Of the tiny variant: 16 wide embeddings, 32 wide layers."""
  fields = {**backbone.VARIANTS["tiny"], "max_positions": 64, **overrides}
  return encoder.EncoderConfig(vocab_size=tiny.V, **fields)


def inputs_of(seed, rows=2, length=tiny.L):
  batch = tiny.make_batch(seed, rows, length)
  return {name: jnp.asarray(batch[name]) for name in FIELDS}


def keys_of(rows=2):
  return rng_lib.row_keys(jax.random.key(7), 0, jnp.arange(rows))


def init(backbone, config):
  """Parameters of embedding block and network, as training starts with."""
  inputs = {name: jnp.zeros((1, 2), jnp.int32) for name in FIELDS}
  first, second = jax.random.split(jax.random.key(0))
  embeddings = backbone.Embeddings(config)
  x, a = embeddings.init_with_output(first, inputs, None)
  b = backbone.Encoder(config).init(second, x, inputs["documents"], None)
  return {"embeddings": a["params"], "network": b["params"]}


initial = functools.cache(quick_jit(init, static_argnums=(0, 1)))


@functools.cache
def wide(backbone, config):
  """At an initial deviation of 0.02 attention would hardly matter."""
  grow = lambda p: 5 * p if p.ndim > 1 else p
  return jax.tree.map(grow, initial(backbone, config))


def forward(backbone, config, params, inputs, keys_B=None):
  """The hidden states `[B, L, D]`."""
  x = backbone.Embeddings(config).apply(
    {"params": params["embeddings"]}, inputs, keys_B
  )
  return backbone.Encoder(config).apply(
    {"params": params["network"]}, x, inputs["documents"], keys_B
  )


run = quick_jit(forward, static_argnums=(0, 1))


def encode(backbone, inputs, keys_B=None, **overrides):
  """`forward` with wide random parameters."""
  config = config_of(backbone, **overrides)
  params = wide(backbone, config_of(backbone))
  return np.asarray(run(backbone, config, params, inputs, keys_B))


def assert_same_tree(a, b, *, rtol):
  """Equal but for `rtol` of the largest entry of the whole tree."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  largest = max(np.abs(x).max() for x in jax.tree.leaves(a))
  assert largest > 0
  for (path, x), y in zip(
    jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True
  ):
    np.testing.assert_allclose(
      y, x, rtol=0, atol=rtol * largest, err_msg=jax.tree_util.keystr(path)
    )


def test_the_backbones_that_there_are_were_found():
  assert {"encoder", "rotary"} <= set(BACKBONES)


@pytest.mark.parametrize("multiplier", [1.0, 0.25])
def test_hidden_states_of_every_variant_have_their_shape(backbone, multiplier):
  inputs = {name: jax.ShapeDtypeStruct((2, 16), jnp.int32) for name in FIELDS}
  for name, fields in backbone.VARIANTS.items():
    fields = {**fields, "dtype": "bfloat16", "layers": 1}  # alike, so one
    config = encoder.EncoderConfig(vocab_size=99, **fields)
    if multiplier != 1:
      config = encoder.scale_config(config, multiplier)
    params = jax.eval_shape(functools.partial(init, backbone, config))
    assert {p.dtype for p in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    apply = functools.partial(forward, backbone, config)
    hidden = jax.eval_shape(apply, params, inputs, keys_of())
    assert hidden.shape == (2, 16, config.width), name
    assert hidden.dtype == jnp.bfloat16, name


def test_layers_do_not_start_alike(backbone):
  network = initial(backbone, config_of(backbone))["network"]
  first, second = (jax.tree.leaves(network[f"layer_{i}"]) for i in range(2))
  same = [np.array_equal(a, b) for a, b in zip(first, second, strict=True)]
  is_drawn = [np.ptp(a) > 0 for a in first]
  assert any(is_drawn)
  assert not any(a and b for a, b in zip(same, is_drawn, strict=True))


def test_packed_documents_equal_separate_rows(backbone):
  rng = np.random.default_rng(0)
  lengths = (7, 10, 4)
  documents = [rng.integers(5, tiny.V, n) for n in lengths]
  types = [np.minimum(np.arange(n) // 5, 1) for n in lengths]

  def row(*arrays):
    pad = (0, tiny.L - len(arrays[0]))
    return {
      name: jnp.asarray(np.pad(x, pad)[None], jnp.int32)
      for name, x in zip(FIELDS, arrays, strict=True)
    }

  numbers = np.repeat([1, 2, 3], lengths)
  packed = encode(
    backbone, row(np.concatenate(documents), np.concatenate(types), numbers)
  )[0]
  start = 0
  for tokens, kinds in zip(documents, types, strict=True):
    n = len(tokens)
    alone = encode(backbone, row(tokens, kinds, np.ones(n)))[0, :n]
    np.testing.assert_allclose(
      packed[start : start + n], alone, rtol=1e-5, atol=1e-5
    )
    start += n


def test_padding_changes_no_real_position(backbone):
  """Neither what stands in it nor how much there is of it."""
  inputs = inputs_of(0, length=12)
  real = np.asarray(inputs["documents"]) != 0
  assert not real.all()
  junk = {**inputs, "tokens": jnp.where(real, inputs["tokens"], 9)}
  junk["types"] = jnp.where(real, inputs["types"], 1)
  base = encode(backbone, inputs)
  np.testing.assert_array_equal(base[real], encode(backbone, junk)[real])
  longer = {name: jnp.pad(x, ((0, 0), (0, 12))) for name, x in junk.items()}
  np.testing.assert_allclose(
    encode(backbone, longer)[:, :12][real], base[real], rtol=1e-5, atol=1e-5
  )


def test_every_real_token_sees_every_other_of_its_document(backbone):
  inputs = inputs_of(1, rows=1, length=8)
  n = int((np.asarray(inputs["documents"]) != 0).sum())
  base = encode(backbone, inputs)[0]
  for i in range(n):
    changed = {**inputs, "tokens": inputs["tokens"].at[0, i].add(1)}
    moved = np.abs(encode(backbone, changed)[0, :n] - base[:n]).max(axis=-1)
    assert (moved > 1e-6).all(), f"token {i}"


def test_positions_and_types_matter(backbone):
  """Two tokens change places: without positions only these two would."""
  inputs = inputs_of(2)
  pair = lambda a, b: {
    **inputs,
    "tokens": inputs["tokens"].at[0, 1].set(a).at[0, 2].set(b),
  }
  there, back = (encode(backbone, pair(*p)) for p in ((9, 10), (10, 9)))
  assert np.abs(there[0, 0] - back[0, 0]).max() > 1e-4
  assert np.abs(there[0, 1:3] - back[0, 2:0:-1]).max() > 1e-4
  other = {**inputs, "types": inputs["types"].at[0, 1].set(1)}
  moved = np.abs(encode(backbone, other) - encode(backbone, inputs))
  assert moved[0, 0].max() > 1e-4 and moved[1].max() == 0


def test_a_row_of_padding_is_finite_in_value_and_gradient(backbone):
  inputs = {name: jnp.zeros((1, 8), jnp.int32) for name in FIELDS}
  config = config_of(backbone)
  total = lambda params: forward(backbone, config, params, inputs).sum()
  params = initial(backbone, config)
  value, grads = quick_jit(jax.value_and_grad(total))(params)
  assert np.isfinite(value)
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_every_kind_of_dropout_acts_alone(backbone):
  inputs = inputs_of(3)
  quiet = encode(backbone, inputs)
  for rates in (dict(dropout=0.0), dict(attention_dropout=0.0)):
    noisy = encode(backbone, inputs, keys_of(), **rates)
    assert np.abs(noisy - quiet).max() > 1e-4, rates
  none = dict(dropout=0.0, attention_dropout=0.0)
  np.testing.assert_array_equal(
    encode(backbone, inputs, keys_of(), **none), quiet
  )


def test_every_dropout_site_of_a_network_has_a_number_of_its_own(
  backbone, monkeypatch
):
  seen = []
  true_dropout = rng_lib.dropout

  def note(x, keys_B, *, rate, site):
    seen.append(site)
    return true_dropout(x, keys_B, rate=rate, site=site)

  monkeypatch.setattr(rng_lib, "dropout", note)
  config = config_of(backbone, layers=3)
  params = jax.eval_shape(functools.partial(init, backbone, config))
  seen.clear()
  apply = functools.partial(forward, backbone, config)
  jax.eval_shape(apply, params, inputs_of(0), keys_of())
  assert sorted(seen) == list(range(1 + 3 * layers.SITES_PER_LAYER))


def test_half_precision_stays_close_to_single(backbone):
  inputs = inputs_of(4, rows=8)
  probe = np.asarray(jax.random.normal(jax.random.key(1), (32,)))
  score = lambda **kw: encode(backbone, inputs, **kw).astype("f4") @ probe
  half, single = score(dtype="bfloat16"), score()
  loss = lambda x: np.logaddexp(0, x).mean()
  assert half.dtype == single.dtype and np.any(half != single)
  assert loss(half) == pytest.approx(loss(single), rel=2e-2)
  # Half precision keeps 8 bits.
  assert np.abs(half - single).mean() < 5e-2 * np.abs(single).mean()


def loss_of(backbone, **overrides):
  """A loss of random direction, dropout on, as a function of three trees."""
  config = config_of(backbone, **overrides)
  probe_D = jax.random.normal(jax.random.key(1), (config.width,))

  def loss(params, inputs, keys_B):
    hidden_BxLxD = forward(backbone, config, params, inputs, keys_B)
    return jax.nn.softplus(hidden_BxLxD @ probe_D).mean()

  return loss


def loss_arguments(backbone):
  return wide(backbone, config_of(backbone)), inputs_of(5, rows=8), keys_of(8)


@functools.cache
def plain_loss_and_gradient(backbone):
  loss = loss_of(backbone)
  return quick_jit(jax.value_and_grad(loss))(*loss_arguments(backbone))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_remat_and_scan_change_no_number(backbone, mode):
  value, grads = plain_loss_and_gradient(backbone)
  loss = quick_jit(jax.value_and_grad(loss_of(backbone, **mode)))
  other_value, other_grads = loss(*loss_arguments(backbone))
  assert float(other_value) == pytest.approx(float(value), rel=1e-6)
  assert_same_tree(grads, other_grads, rtol=1e-6)


def test_remat_and_scan_bear_what_accumulation_does(backbone):
  """One linearized pass transposed, rows spread over a mesh (train/step.py)."""
  loss = loss_of(backbone, remat="full", scan=True)

  @quick_jit
  def gradient(params, inputs, keys_B):
    _, push = jax.linearize(lambda p: loss(p, inputs, keys_B), params)
    return jax.linear_transpose(push, params)(jnp.ones(()))[0]

  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  params, inputs, keys_B = loss_arguments(backbone)
  got = gradient(
    jax.device_put(params, sharding.replicated_sharding(mesh)),
    *jax.device_put((inputs, keys_B), sharding.batch_sharding(mesh)),
  )
  assert_same_tree(plain_loss_and_gradient(backbone)[1], got, rtol=1e-6)


@pytest.mark.slow
def test_full_remat_needs_less_memory(backbone):
  """As a loop: XLA's CPU compiler alone drops what delays the second pass."""
  params, inputs, keys_B = loss_arguments(backbone)
  network = params["network"]
  deep = {f"layer_{i}": network["layer_0"] for i in range(8)}
  params = {**params, "network": {**network, **deep}}

  def bytes_of(remat):
    loss = loss_of(backbone, layers=8, remat=remat, scan=True)
    lowered = quick_jit(jax.grad(loss)).lower(params, inputs, keys_B)
    return lowered.compile().memory_analysis().temp_size_in_bytes

  assert bytes_of("full") < 0.5 * bytes_of("none")
