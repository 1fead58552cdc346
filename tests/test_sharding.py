"""Meshes lay arrays out by rules, and refuse what cannot be."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import tiny
from truenegs_jax.errors import InputError
from truenegs_jax.train import sharding


def test_the_rest_of_the_devices_goes_to_the_open_axis():
  assert sharding.resolve_sizes({"data": -1}, 8) == (8,)
  assert sharding.resolve_sizes({"data": -1, "model": 2}, 8) == (4, 2)
  with pytest.raises(InputError, match="multiple of 3.* 8"):
    sharding.resolve_sizes({"data": -1, "model": 3}, 8)


def test_the_first_matching_rule_decides_and_none_is_an_error():
  spec = sharding.MeshSpec(
    {"data": -1},
    ((".*/dense/kernel", P("data")), (".*/kernel", P(None, "data"))),
  )
  mesh = sharding.make_mesh(spec)
  tree = {"a": {"dense": {"kernel": 0}, "out": {"kernel": 0}}}
  got = sharding.tree_shardings(tree, mesh, spec)
  assert got["a"]["dense"]["kernel"].spec == P("data")
  assert got["a"]["out"]["kernel"].spec == P(None, "data")
  with pytest.raises(InputError, match="a/bias"):
    sharding.tree_shardings({"a": {"bias": 0}}, mesh, spec)


@pytest.mark.parametrize("preset", sharding.MESHES)
def test_every_preset_places_every_leaf_of_a_state(preset):
  spec = sharding.get_spec(preset)
  mesh = sharding.make_mesh(spec)
  model, tx = tiny.make_model(), tiny.make_tx()
  shapes = jax.eval_shape(lambda: tiny.init_state(model, tx))
  places = sharding.tree_shardings(shapes, mesh, spec)
  assert jax.tree.structure(shapes) == jax.tree.structure(places)


def test_rows_are_split_evenly_and_in_order():
  mesh = sharding.make_mesh(sharding.get_spec("dp"))
  batch = tiny.make_batch(0, rows=16)
  on_device = sharding.to_device(batch, mesh)
  for name, array in batch.items():
    np.testing.assert_array_equal(on_device[name], array)
    shards = on_device[name].addressable_shards
    assert len(shards) == 8
    for shard in shards:
      assert shard.data.shape[0] == 2
      np.testing.assert_array_equal(shard.data, array[shard.index])


def test_bytes_count_what_one_device_holds():
  mesh = sharding.make_mesh(sharding.get_spec("dp"))
  x = np.zeros((16, 3), np.float32)
  split = jax.device_put(x, sharding.batch_sharding(mesh))
  whole = jax.device_put(x, sharding.replicated(mesh))
  assert sharding.bytes_per_device({"a": split}) == 2 * 3 * 4
  assert sharding.bytes_per_device({"a": split, "b": whole}) == 24 + 192


def test_an_unknown_preset_is_refused_with_the_known_ones():
  with pytest.raises(InputError, match="'fspd' is unknown.*dp"):
    sharding.get_spec("fspd")
