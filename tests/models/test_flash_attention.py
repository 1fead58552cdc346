"""The fused kernels equal XLA's attention with the same draws.

They run in Pallas's interpreter, in the layout and tiles of both platforms.
"""

import dataclasses
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.configs import bert_base, electra_demo
from truenegs_jax.models import attention, encoder, flash_attention
from truenegs_jax.pretrain import dry_run
from truenegs_jax.runtime import rng
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.train import build_run, plan, sharding

KEY = jax.random.key(0)
PLATFORMS = ("cuda", "tpu")
SITE = 3


def make_flash(platform, mesh=None):
  return attention.Implementation("flash", mesh, True, platform)


def make_documents(rows, length, packed):
  """Numbers the documents of rows: full, padded, and padding alone."""
  ends = np.array([length, length // 2 + 1, 0])[np.arange(rows) % 3, None]
  index = np.arange(length)
  return ((index < ends) * (1 + packed * (index // 7))).astype(np.int32)


def results_and_errors(implementations, shape, dtype, packed, window, rate):
  """Computes results and gradients; the second's difference to the first's."""
  rows, length, *_ = shape
  documents_BxL = jnp.asarray(make_documents(rows, length, packed))
  keys_B = rng.row_keys(KEY, 0, jnp.arange(rows))
  arrays = [jax.random.normal(k, shape) for k in jax.random.split(KEY, 4)]

  @jax.jit
  def run(query, key, value, cotangent):
    def compute(implementation):
      mask = attention.make_mask(implementation, documents_BxL, window)
      result, vjp = jax.vjp(
        lambda *qkv: attention.attend(*qkv, mask, keys_B, rate=rate, site=SITE),
        *(query, key, value),
      )
      return result, *vjp(cotangent)

    return [compute(x) for x in implementations]

  expected, results = run(*(x.astype(dtype) for x in arrays))
  return [
    (np.float32(b), float(jnp.abs((a - b).astype(jnp.float32)).max()))
    for a, b in zip(expected, results, strict=True)
  ]


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize(
  "length,heads,dtype,packed,window,rate",
  [
    (70, 4, "float32", True, 0, 0.1),
    (40, 12, "bfloat16", False, 9, 0.1),
    (33, 1, "float32", False, 9, 0.0),
    (1, 2, "float32", False, 0, 0.5),
  ],
)
def test_result_and_gradients_equal_xla(
  platform, length, heads, dtype, packed, window, rate
):
  """No length is that of a tile; a row is padding alone."""
  implementations = attention.XLA, make_flash(platform)
  results = results_and_errors(
    implementations, (3, length, heads, 16), dtype, packed, window, rate
  )
  tolerance = 1e-5 if dtype == "float32" else 0.02
  for result, error in results:
    assert error <= tolerance * max(np.abs(result).max(), 0.1)


def test_several_blocks_of_a_tpu_equal_xla():
  """5 blocks of 128; the window reaches one of them on each side."""
  implementations = attention.XLA, make_flash("tpu")
  shape = 1, 600, 1, 16
  for result, error in results_and_errors(
    implementations, shape, "float32", True, 100, 0.1
  ):
    assert error <= 1e-5 * np.abs(result).max()


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_kernel_drops_the_units_of_dropout_on_any_mesh(platform):
  """Values that are the identity give the weights: 2 x 2 devices, and one."""
  rows, length, heads, rate = 2, 16, 4, 0.3
  shape = rows, length, heads, length
  mesh = sharding.make_mesh(
    sharding.get_mesh_spec("fsdp_tp"), jax.devices()[:4]
  )
  value = jnp.broadcast_to(jnp.eye(length)[:, None], shape)
  query, key = (jax.random.normal(k, shape) for k in jax.random.split(KEY))
  keys_B = rng.row_keys(KEY, 7, jnp.arange(rows))

  @jax.jit
  def weigh(keys_B):
    return [
      attention.attend(
        *(query, key, value),
        attention.make_mask(flash, jnp.ones((rows, length), jnp.int32)),
        keys_B,
        rate=rate,
        site=SITE,
      )
      for flash in (make_flash(platform), make_flash(platform, mesh))
    ]

  ones_BxHxLxL = jnp.ones((rows, heads, length, length))
  kept = rng.dropout(ones_BxHxLxL, keys_B, rate=rate, site=SITE) > 0
  for weights_BxLxHxL in weigh(keys_B):
    np.testing.assert_array_equal(weights_BxLxHxL.swapaxes(1, 2) > 0, kept)


def layer_gradient(implementation, **how):
  """Transposes a linearized pass, as train/step.py does per micro-batch."""
  fields = encoder.VARIANTS["tiny"] | {"layers": 1, **how}
  config = encoder.EncoderConfig(9, attention=implementation, **fields)
  network = encoder.Encoder(config)
  documents_BxL = jnp.asarray(make_documents(3, 40, packed=True))
  x_BxLxE = 5 * jax.random.normal(KEY, (3, 40, 16))
  keys_B = rng.row_keys(KEY, 0, jnp.arange(3))

  @jax.jit
  def gradient():
    params = network.init(KEY, x_BxLxE[:, :2], jnp.ones((3, 2), int), None)

    def loss(params):
      return (network.apply(params, x_BxLxE, documents_BxL, keys_B) ** 3).mean()

    _, jvp = jax.linearize(loss, params)
    return jax.linear_transpose(jvp, params)(jnp.ones(()))[0]

  return jax.tree.leaves(gradient())


def test_a_kernel_works_with_accumulation_scan_and_remat():
  result = layer_gradient(make_flash("cuda"), scan=True, remat="full")
  expected = layer_gradient(attention.XLA)
  largest = max(float(jnp.abs(x).max()) for x in expected)
  for a, b in zip(result, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5 * largest)


def test_declared_cost_is_the_formula():
  rows, heads, width, unit = 32, 12, 64, 2 * 12 * 32 * 64  # bytes of a token
  for length in (128, 512, 1024):
    flops = rows * heads * length**2 * width
    for platform, factor in (
      ("cuda", 14),
      ("tpu", 10 if length < 1024 else 14),
    ):
      settings = flash_attention.Settings(length, platform=platform)
      forward, backward = (
        flash_attention.cost(
          kernel,
          settings,
          rows=rows,
          heads=heads,
          width=width,
          dtype="bfloat16",
        )
        for kernel in ("flash_forward", "flash_backward")
      )
      assert forward["flops"] == 4 * flops
      assert backward["flops"] == factor * flops
      again = 1  # times that a GPU reads keys and values
      if platform == "cuda":
        again = -(-length // 256)
      least = (2 + 2 * again) * unit * length
      assert 1 <= forward["bytes_accessed"] / least < 1.1
  windowed = dataclasses.replace(settings, window=128)
  cost = flash_attention.cost(
    "flash_forward", windowed, rows=1, heads=1, width=64, dtype="bfloat16"
  )
  assert cost["flops"] == 4 * 64 * 1024 * 1024  # 2 blocks of 512


def test_kernels_are_not_imported_with_the_package():
  """Imports at the top of a module also run on a CPU."""
  package = pathlib.Path(attention.__file__).parents[1]
  pattern = re.compile(r"^(from|import) .*(pallas|triton|mosaic)", re.MULTILINE)
  assert pattern.search("import jax.experimental.pallas")
  for path in package.rglob("*.py"):
    assert not pattern.search(path.read_text()), path


def random_batch(c, step, vocab_size, packed):
  """Draws rows of 8 tokens or more, followed by padding."""
  draw = np.random.default_rng(step)
  shape = c.batch_size, c.length
  ends_B = draw.integers(8, c.length + 1, c.batch_size)
  index_L = np.arange(c.length)
  documents = (index_L < ends_B[:, None]) * (1 + packed * (index_L // 11))
  tokens = draw.integers(5, vocab_size, shape) * (documents > 0)
  rows = np.arange(c.batch_size) + step * c.batch_size
  batch = {"tokens": tokens, "documents": documents, "row": rows}
  batch["types"] = np.zeros(shape)
  return {name: x.astype(np.int32) for name, x in batch.items()}


def train_losses(c, implementation, mesh):
  """Returns the losses of 20 steps on random rows, and random synonyms."""
  tokenizer, _ = dry_run.placeholder_tokenizer(c)
  run = build_run.build_run(c, tokenizer)
  model = encoder.replace_configs(run.model, attention=implementation)
  run = dataclasses.replace(run, model=model)
  vocab_size = len(tokenizer.vocab)
  table = table_lib.from_ids(
    np.random.default_rng(0).integers(5, vocab_size, (vocab_size, 20)),
    tokenizer.vocab,
    source="random",
    options={},
  )
  aux = plan.make_aux(run, table, tokenizer.vocab, mesh)
  shardings = jax.tree.map(lambda x: x.sharding, plan.abstract_state(run, mesh))
  state = jax.jit(run.init_state, out_shardings=shardings)()
  step = jax.jit(plan.build_train_step(run, mesh), donate_argnums=0)
  losses = []
  for i in range(20):
    batch = random_batch(c, i, vocab_size, packed=run.packed)
    state, terms = step(state, sharding.shard_batch(batch, mesh), aux)
    terms = jax.device_get([terms[name] for name in run.loss_weights])
    losses.append([total / max(count, 1) for total, count in terms])
  return np.array(losses)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(
  "config,arg,platform,layout",
  [
    (electra_demo, "hc+sr", "cuda", "packed"),
    (bert_base, "runlocal", "tpu", "electra"),
  ],
)
def test_losses_of_a_training_are_those_of_xla(
  config, arg, platform, layout, devices
):
  c = config.get_config(arg)
  c.model.dropout = c.model.attention_dropout = 0.1
  c.data.layout, c.batch_size, c.data.vocab_size = layout, 8, 500
  c.data.sources = "texts"
  c.mesh.preset = "fsdp_tp" if devices == 8 else "dp"
  mesh = sharding.make_mesh(
    sharding.get_mesh_spec(c.mesh.preset), jax.devices()[:devices]
  )
  kernel_mesh = mesh if devices > 1 else None
  losses = train_losses(c, make_flash(platform, kernel_mesh), mesh)
  expected = train_losses(c, attention.XLA, mesh)
  assert np.isfinite(expected).any()
  np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
