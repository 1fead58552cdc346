"""Writes small checkpoints and compares what is restored."""

import gc

import jax
import numpy as np
import pytest

from truenegs_jax.train import sharding
from truenegs_jax.workdir import checkpoints as checkpoints_lib

# Orbax leaves unfinished reads of a failed restore to the garbage collector.
IGNORE_UNFINISHED_READS = pytest.mark.filterwarnings(
  "ignore::pytest.PytestUnraisableExceptionWarning"
)
RUN = {"config": {"steps": 3, "optim": {"lr": 0.1}}, "names": ["a"]}


@pytest.fixture(autouse=True)
def collect():
  """Collects garbage, so that its warnings stay in the module."""
  yield
  gc.collect()


def make_mesh(num_devices):
  return sharding.make_mesh(
    sharding.get_mesh_spec("dp"), jax.devices()[:num_devices]
  )


def small_tree(mesh, seed=0):
  """Returns arrays of all kinds in a state; splits one over the mesh."""
  kernel = np.random.default_rng(seed).normal(size=(8, 4_000)).astype("f4")
  replicated = sharding.replicated_sharding(mesh)
  split = sharding.batch_sharding(mesh)
  return {
    "step": jax.device_put(np.int32(7), replicated),
    "params": {"kernel": jax.device_put(kernel, split)},
    "key": jax.device_put(jax.random.key(seed), replicated),
  }


def assert_equal(a, b):
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      x, y = jax.random.key_data(x), jax.random.key_data(y)
    np.testing.assert_array_equal(x, y)


def save_steps(folder, steps=(1, 2), **options):
  """Saves a tree at each step and closes the folder."""
  checkpoints = checkpoints_lib.Checkpoints(folder, **options)
  for at in steps:
    checkpoints.save(at, small_tree(make_mesh(1), at), RUN)
  checkpoints.wait()
  checkpoints.close()
  return folder


def truncate(path, rng):
  """Keeps a part of a file, from none of it to all but a byte."""
  path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])
