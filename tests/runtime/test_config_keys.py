"""Every key of every config is described: its meaning, choices and range."""

import importlib

import pytest

from truenegs_jax.configs import common, common_keys
from truenegs_jax.runtime import config_files, help_text
from truenegs_jax.runtime.config_keys import describe_keys

NAMES = config_files.packaged_names()


def get_config(name):
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config()


@pytest.mark.parametrize("name", NAMES)
def test_every_key_has_a_meaning(name):
  c = get_config(name)
  keys = {key.name: key for key in describe_keys(c)}
  values = config_files.flatten(c.to_dict())
  assert {name: key.value for name, key in keys.items()} == values
  for key in keys.values():
    assert len(key.meaning.split()) >= 3, key
    assert key.type == type(key.value).__name__
    chosen = key.value if key.type == "tuple" else (key.value,)
    assert not key.choices or set(chosen) <= set(key.choices)


def test_meanings_are_the_comments_above_and_beside_a_key():
  keys = {key.name: key for key in describe_keys(get_config("finetune_own"))}
  variant = keys["model.variant"].meaning
  assert variant.startswith("Size: a name") and variant.endswith('ffn=1536".')
  assert keys["length"].meaning == "tokens of a row, at most"
  assert keys["finetune.text"].meaning.startswith("column of the text")
  order = list(keys)
  assert order.index("seed") < order.index("model.variant")
  assert order.index("finetune.tasks") < order.index("finetune.text")


def test_ranges_and_resumes_are_described():
  c = common.get_config()
  keys = {key.name: key for key in describe_keys(c)}
  assert keys["seed"].range == "at least 0"
  assert keys["masking.prob"].range == "more than 0 and at most 0.9"
  assert (keys["seed"].may_change, keys["mesh.axes"].may_change) == (
    False,
    True,
  )
  c.task, c.own = "corrections", 3
  *_, own = describe_keys(c)
  assert (own.name, own.meaning, own.may_change) == ("own", "", None)


def test_help_lists_all_keys_in_80_columns():
  c = get_config("electra_demo")
  text = help_text.config_help("electra_demo", c)
  lines = text.splitlines()
  for name in common_keys.KEYS:
    assert any(line.startswith(f"--config.{name}=") for line in lines)
  assert "[electra, mlm]" in text and "[at least 1]" in text
  assert all(len(x) <= 80 for x in lines if not x.startswith("--"))
