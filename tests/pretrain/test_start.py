"""A workdir is resumed by its own run only."""

import contextlib
import copy
import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.weight_files import TOKENIZER, write_run
from truenegs_jax.config.keys import flatten
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import PRETRAIN
from truenegs_jax.configs import common
from truenegs_jax.pretrain import branch, start
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.workdir.checkpoints import Checkpoints

FINGERPRINTS = {"vocabulary": "v", "rows": "r", "synonyms": None}


def make_description(**changes) -> dict:
  """Describes a run with some changed keys, with `__` for dots."""
  c = common.get_config()
  named = {name.replace("__", "."): x for name, x in changes.items()}
  c.update_from_flattened_dict(named)
  return {"config": json.loads(c.to_json()), "fingerprints": FINGERPRINTS}


def resume(saved, now):
  start.check_same_run(pathlib.Path("run/checkpoints"), 7, saved, now)


def change_value(value):
  """Returns another value of the same type."""
  if isinstance(value, bool):
    return not value
  return value + {tuple: (9,), str: "x"}.get(type(value), 1)


@pytest.mark.parametrize("key", PRETRAIN)
def test_keys_may_change_according_to_their_rules(key):
  value = flatten(common.get_config().to_dict())[key]
  now = make_description(**{key: change_value(value)})
  if PRETRAIN[key].may_change or key == "steps":  # may grow
    resume(make_description(), now)
  else:
    with pytest.raises(CheckpointError, match=f"(?s){key}: .* -> .*--workdir"):
      resume(make_description(), now)


def test_a_branch_of_no_run_is_refused(tmp_path):
  with pytest.raises(InputError, match="'.*lnog' is not the workdir"):
    start.read_saved_config(tmp_path / "new", str(tmp_path / "lnog"))


@pytest.mark.parametrize(
  ("backbone", "key", "value", "is_refused"),
  [
    ("encoder", "generator.detect_weight", 10.0, False),
    ("encoder", "generator.multiplier", 0.9, True),
    ("encoder", "model.max_positions", 256, True),
    ("encoder", "optim.muon_lr", 0.01, True),
    ("modern", "model.max_positions", 256, False),  # its are rotary
  ],
)
def test_a_branch_changes_what_decides_no_array(
  tmp_path, backbone, key, value, is_refused
):
  c = common.get_config()
  c.model.backbone = backbone
  check_branch(tmp_path, c, key, value, is_refused=is_refused)


@pytest.mark.parametrize(
  ("sources", "key", "value", "is_refused"),
  [
    ("wordnet", "sources", "pairs path=x", False),
    ("wordnet", "hard_correction", False, False),
    ("wordnet", "sources", "model", True),
    ("model every=9", "hard_correction", False, True),
    ("model every=9", "sources", "model top=20", True),
    ("model every=9", "sources", "model every=5", False),
    ("model every=9", "drop_prob", 0.5, False),
  ],
)
def test_a_branch_keeps_the_table_in_its_state(
  tmp_path, sources, key, value, is_refused
):
  c = common.get_config()
  c.negatives.sources = sources
  key = f"negatives.{key}"
  check_branch(tmp_path, c, key, value, is_refused=is_refused)


def test_kept_steps_stay_when_steps_grow(tmp_path):
  c = common.get_config()
  c.steps = 10
  c.checkpoint.keep_percent = (50.0, 100.0)
  params = {step: {"w": np.ones(3, np.float32)} for step in (8, 10)}
  folder = write_run(tmp_path / "run", c, params) / "checkpoints"

  def find():
    return start.find_kept_steps(PretrainConfig.read(c), folder)

  c.steps = 30
  assert find() == [10, 15, 30]
  c.checkpoint.keep_percent = (10.0, 100.0)
  assert find() == [3, 10, 30]
  c.checkpoint.keep_percent = ()  # as to recover from a full disk
  assert find() == []
  (folder / "10/run/metadata").write_text("?")  # is not lost for that
  assert find() == [10]


def test_a_branch_has_more_steps_than_it_copies(tmp_path):
  c = common.get_config()
  check_branch(tmp_path, c, "steps", 6, is_refused=False)
  message = "is at step 5, and steps=5 counts from the start"
  with pytest.raises(CheckpointError, match=message):
    check_branch(tmp_path / "short", c, "steps", 5, is_refused=False)


def check_branch(tmp_path, c, key, value, *, is_refused):
  """Asserts that a branch with another value is refused, or has the state."""
  old = copy.deepcopy(c)
  del old.model.sharing  # was saved by an earlier version
  folder = write_run(tmp_path / "run", old, {5: {"w": np.ones(3, np.float32)}})
  c.update_from_flattened_dict({key: value})
  prints = {"vocabulary": TOKENIZER.fingerprint}
  now = {"config": json.loads(c.to_json()), "fingerprints": prints}
  like = jax.ShapeDtypeStruct((3,), np.float32, sharding=jnp.ones(3).sharding)
  abstract = types.SimpleNamespace(params={"w": like})
  expected = contextlib.nullcontext()
  if is_refused:
    expected = pytest.raises(CheckpointError, match=f"{key}: .* -> .*{value}")
  checkpoints = Checkpoints(tmp_path / "new" / "checkpoints")
  with contextlib.closing(checkpoints):
    with expected:
      branch.copy_branch(str(folder), checkpoints, now, abstract)
    assert checkpoints.steps() == ([] if is_refused else [5])


def test_a_run_with_other_rows_is_another():
  now = make_description() | {"fingerprints": FINGERPRINTS | {"rows": "other"}}
  with pytest.raises(CheckpointError, match="rows: 'r' -> 'other'"):
    resume(make_description(), now)
