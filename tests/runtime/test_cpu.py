"""Code for CPUs gives the results of plain flax."""

import pathlib

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.models import layers
from truenegs_jax.runtime import cpu


def test_layers_on_other_platforms_are_those_of_flax(monkeypatch):
  monkeypatch.setattr(layers, "_affine", None)
  x = jax.random.normal(jax.random.key(0), (3, 5, 8), jnp.bfloat16)
  options = dict(kernel_init=nn.initializers.normal(), dtype="bfloat16")
  params = nn.Dense(4, **options).init(jax.random.key(1), x)
  with cpu.lowering_for("cuda"):
    actual = layers.Dense(4, **options).apply(params, x)
    assert layers.gelu(jnp.ones(())) == jax.nn.gelu(1.0, approximate=False)
  np.testing.assert_array_equal(actual, nn.Dense(4, **options).apply(params, x))


@pytest.mark.parametrize(
  ("flags", "version", "dtype"),
  [
    ("avx2 avx512f", (0, 12, 0), "float32"),
    ("avx512_bf16", (0, 11, 9), "float32"),
    ("avx512_bf16", (0, 12, 0), "bfloat16"),
    ("avx512f amx_bf16", (0, 13, 0), "bfloat16"),
  ],
)
def test_the_precision_follows_the_cpu_and_the_version_of_jax(
  monkeypatch, flags, version, dtype
):
  monkeypatch.delenv("XLA_FLAGS", raising=False)
  monkeypatch.setattr(pathlib.Path, "exists", lambda path: True)
  monkeypatch.setattr(pathlib.Path, "read_text", lambda *_, **__: flags)
  monkeypatch.setattr(jax, "__version_info__", version)
  assert cpu.choose_dtype() == dtype
  options = cpu.compiler_options("bfloat16")
  assert (cpu.ONEDNN in options) == (dtype == "bfloat16")
  assert cpu.ONEDNN not in cpu.compiler_options("float32")
  with cpu.lowering_for("cuda"):
    assert cpu.choose_dtype() == "bfloat16"


def test_the_installed_xla_knows_the_options_of_a_cpu(monkeypatch):
  monkeypatch.delenv("XLA_FLAGS", raising=False)
  monkeypatch.setattr(cpu, "has_bfloat16", lambda: True)
  options = cpu.compiler_options("bfloat16")
  assert len(options) > 1
  with cpu.lowering_for("cuda"):
    assert not cpu.compiler_options("bfloat16")
  add = jax.jit(lambda x: x + 1, compiler_options=options)
  assert add(1) == 2  # an unknown option is an error
