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

from support import runs
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import bert_base, electra_demo
from truenegs_jax.models import attention
from truenegs_jax.pretrain import plan, start
from truenegs_jax.runtime import rng
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import sharding

KEY = jax.random.key(0)


def make_flash(platform, mesh=None):
  return attention.Implementation("flash", mesh, True, platform)


def make_documents(length, size):
  """Numbers documents of `size` in 4 rows: full, padded, padding, one token."""
  ends_4x1 = np.array([[length], [length // 2 + 1], [0], [1]])
  index_L = np.arange(length)
  return jnp.asarray((index_L < ends_4x1) * (1 + index_L // size), jnp.int32)


@pytest.mark.parametrize(
  "platforms,on_mesh,length,heads,dtype,size,window,rate",
  [
    (("cuda",), True, 70, 4, "float32", 20, 9, 0.1),
    (("tpu",), False, 600, 1, "float32", 180, 100, 0.1),  # 5 blocks
    (("cuda", "tpu"), False, 33, 12, "bfloat16", 33, 0, 0.0),  # 1 block
    pytest.param(  # ModernBERT's longest rows: one row, to save memory
      *(("cuda", "tpu"), False, 8_192, 1, "float32", 5_000, 64, 0.0),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_results_and_gradients_equal_xla(
  platforms, on_mesh, length, heads, dtype, size, window, rate
):
  """No length is that of a tile; the mesh divides rows and heads by 2."""
  mesh = None
  if on_mesh:
    spec = sharding.get_mesh_spec("fsdp_tp")
    mesh = sharding.make_mesh(spec, jax.devices()[:4])
  draw = np.random.default_rng(0)
  documents_BxL = make_documents(length, size)[: 1 if length > 1_000 else 4]
  shape = (4, len(documents_BxL), length, heads, 16)
  arrays = jnp.asarray(draw.normal(size=shape), dtype)

  @jax.jit
  def run(arrays):
    *qkv, cotangent = arrays
    keys_B = rng.row_keys(KEY, 0, jnp.arange(len(documents_BxL)))

    def compute(implementation):
      mask = attention.make_mask(implementation, documents_BxL, window)
      result, vjp = jax.vjp(
        lambda *qkv: attention.attend(*qkv, mask, keys_B, rate=rate, site=3),
        *qkv,
      )
      return [x.astype(jnp.float32) for x in (result, *vjp(cotangent))]

    kernels = [make_flash(platform, mesh) for platform in platforms]
    return [compute(x) for x in (attention.XLA, *kernels)]

  expected, *results = run(arrays)
  tolerance = 1e-5 if dtype == "float32" else 0.02
  for result in results:
    for a, b in zip(result, expected, strict=True):
      largest = max(np.abs(b).max(), 0.1)
      np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


def test_a_kernel_works_with_accumulation_scan_and_remat():
  """train/step.py transposes a linearized pass; a scan traces the site."""
  x_BxLxHxS = jax.random.normal(KEY, (4, 5, 2, 16))
  keys_B = rng.row_keys(KEY, 0, jnp.arange(4))

  def differentiate(implementation):
    mask = attention.make_mask(implementation, make_documents(5, 3))

    @jax.checkpoint
    def layer(x, site):
      return attention.attend(x, x, x, mask, keys_B, rate=0.1, site=site), None

    def loss(x):
      return (jax.lax.scan(layer, x, jnp.arange(2))[0] ** 3).mean()

    _, jvp = jax.linearize(loss, x_BxLxHxS)
    return jax.linear_transpose(jvp, x_BxLxHxS)(jnp.ones(()))[0]

  kernel = make_flash("cuda")
  expected, result = jax.jit(
    lambda: [differentiate(x) for x in (attention.XLA, kernel)]
  )()
  largest = np.abs(expected).max()
  np.testing.assert_allclose(result, expected, rtol=0, atol=1e-5 * largest)


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
  ends_Bx1 = draw.integers(8, c.length + 1, (c.batch_size, 1))
  index_L = np.arange(c.length)
  documents = (index_L < ends_Bx1) * (1 + packed * (index_L // 11))
  tokens = draw.integers(5, vocab_size, shape) * (documents > 0)
  rows = np.arange(c.batch_size) + step * c.batch_size
  batch = {"tokens": tokens, "documents": documents, "row": rows}
  batch["types"] = np.zeros(shape)
  return {name: x.astype(np.int32) for name, x in batch.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
  "config,arg,platform,layout,devices",
  [
    (electra_demo, "hc+sr", "cuda", "packed", 4),
    (bert_base, "runlocal", "tpu", "electra", 1),
  ],
)
def test_losses_of_a_training_are_those_of_xla(
  config, arg, platform, layout, devices
):
  """Four steps on random rows, and random synonyms; XLA on one device."""
  c = config.get_config(arg)
  c.update_from_flattened_dict(runs.ONE_LAYER)
  c.model.dropout = c.model.attention_dropout = 0.1
  c.data.layout, c.batch_size, c.data.vocab_size = layout, 4, 500
  c.data.sources = "texts"
  config = PretrainConfig.read(c)
  tokenizer = plan.find_tokenizer(config.data)
  run = plan.make_run(config, tokenizer)
  vocab_size = len(tokenizer.vocab)
  table = SynonymTable.from_ids(
    np.random.default_rng(0).integers(5, vocab_size, (vocab_size, 20)),
    tokenizer.vocab,
    source="random",
    options={},
  )
  first_state = jax.jit(run.init_state)()

  def train(implementation, devices):
    preset = "fsdp_tp" if devices > 1 else "dp"
    spec = sharding.get_mesh_spec(preset)
    mesh = sharding.make_mesh(spec, jax.devices()[:devices])
    if devices > 1:
      implementation = dataclasses.replace(implementation, mesh=mesh)
    changed = dataclasses.replace(
      run,
      config=config.replace({"mesh.preset": preset}),
      mesh=mesh,
      attention=implementation,
    )
    aux = start.make_aux(changed, table)
    abstract = changed.abstract_state()
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    state, losses = jax.device_put(first_state, shardings), []
    step = jax.jit(changed.train_step)
    for i in range(4):
      batch = random_batch(c, i, vocab_size, packed=c.data.layout == "packed")
      state, terms = step(state, sharding.shard_batch(batch, mesh), aux)
      terms = jax.device_get([terms[name] for name in run.loss_weights])
      losses.append([total / max(count, 1) for total, count in terms])
    return losses

  expected = train(attention.XLA, 1)
  assert np.isfinite(expected).any()
  losses = train(make_flash(platform), devices)
  np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
