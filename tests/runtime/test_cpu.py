"""Code for CPUs gives the results of plain flax and can be switched off."""

import functools
import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import layers, pretrain
from truenegs_jax.runtime import cpu, rng


def trace_step():
  """Returns ELECTRA's loss terms with gradients, and the traced program."""
  batch = jax.tree.map(jnp.asarray, tiny.make_batch(0))
  keys_B = rng.row_keys(jax.random.key(0), 0, batch.pop("row"))
  model = tiny.make_model(layers=1)
  objective = tiny.make_objective(model, tiny.make_options(), train=True)
  init = jax.jit(functools.partial(pretrain.init_params, model))
  params = init(jax.random.key(1))

  @jax.jit
  def run(params):
    def loss(params):
      terms = objective(params, batch, keys_B, tiny.make_aux())
      return terms["mlm"][0] + terms["detect"][0], terms

    return jax.value_and_grad(loss, has_aux=True)(params)

  return run(params), run.lower(params).as_text()


@pytest.mark.slow
def test_a_step_has_the_same_gradients_without_cpu_code(monkeypatch):
  monkeypatch.delenv(cpu.SWITCH, raising=False)
  ((_, terms), gradients), program = trace_step()
  with cpu.lowering_for("tpu"):
    ((_, plain_terms), plain_gradients), plain = trace_step()
  assert "optimization_barrier" in program and "erf" in program
  assert "optimization_barrier" not in plain
  np.testing.assert_array_equal(terms["replaced"], plain_terms["replaced"])
  np.testing.assert_allclose(
    terms["detect"][0], plain_terms["detect"][0], rtol=1e-5
  )
  actual, expected = (
    np.concatenate([x.ravel() for x in jax.tree.leaves(tree)])
    for tree in (gradients, plain_gradients)
  )
  largest = np.abs(expected).max()
  np.testing.assert_allclose(actual, expected, atol=1e-5 * largest)


def test_layers_on_other_platforms_are_those_of_flax(monkeypatch):
  monkeypatch.setattr(layers, "_affine", None)
  x = jax.random.normal(jax.random.key(0), (3, 5, 8), jnp.bfloat16)
  options = dict(kernel_init=nn.initializers.normal(), dtype="bfloat16")
  params = nn.Dense(4, **options).init(jax.random.key(1), x)
  with cpu.lowering_for("cuda"):
    actual = layers.Dense(4, **options).apply(params, x)
    assert layers.gelu(jnp.ones(())) == jax.nn.gelu(1.0, approximate=False)
  np.testing.assert_array_equal(actual, nn.Dense(4, **options).apply(params, x))


def test_the_installed_xla_knows_the_options_of_a_cpu(monkeypatch):
  monkeypatch.delenv(cpu.SWITCH, raising=False)
  monkeypatch.delenv("XLA_FLAGS", raising=False)
  monkeypatch.setattr(pathlib.Path, "exists", lambda path: True)
  for flags, count in (("avx512_bf16", 2), ("avx512f", 1)):
    text = f"flags : fpu {flags} sse\n"
    monkeypatch.setattr(pathlib.Path, "read_text", lambda *_, **__: text)  # noqa: B023
    options = cpu.compiler_options()
    assert len(options) == count
    with cpu.lowering_for("cuda"):
      assert not cpu.compiler_options()
    add = jax.jit(lambda x: x + 1, compiler_options=options)
    assert add(1) == 2  # an unknown option is an error
