"""A workdir is resumed by its own run only."""

import json
import pathlib

import pytest

from truenegs_jax.config.keys import flatten
from truenegs_jax.config.tables import PRETRAIN
from truenegs_jax.configs import common
from truenegs_jax.pretrain import start
from truenegs_jax.runtime.errors import CheckpointError, InputError

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


def test_only_differences_that_matter_are_listed():
  now = make_description(optim__lr=0.5, log__every_steps=3, seed=4)
  now["fingerprints"] = FINGERPRINTS | {"rows": "other"}
  with pytest.raises(CheckpointError) as e:
    resume(make_description(), now)
  for part in (
    "optim.lr: 0.0005 -> 0.5",
    "seed",
    "rows",
    "--config.branch=run",
  ):
    assert part in str(e.value)
  assert "log." not in str(e.value)
