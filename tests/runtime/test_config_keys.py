"""Every key of every config is described: its meaning, choices and range."""

import importlib

import pytest

from truenegs_jax.runtime import config_files
from truenegs_jax.runtime.config_keys import describe_keys


def describe(name):
  module = importlib.import_module(f"truenegs_jax.configs.{name}")
  c = module.get_config()
  return c, {key.name: key for key in describe_keys(c)}


@pytest.mark.parametrize("name", config_files.packaged_names())
def test_every_key_has_a_meaning(name):
  c, keys = describe(name)
  values = config_files.flatten(c.to_dict())
  assert {name: key.value for name, key in keys.items()} == values
  for key in keys.values():
    assert len(key.meaning.split()) >= 3, key
    chosen = key.value if isinstance(key.value, tuple) else (key.value,)
    assert not key.rule.choices or set(chosen) <= set(key.rule.choices)


def test_meanings_are_the_comments_above_and_beside_a_key():
  c, keys = describe("finetune_own")
  variant = keys["model.variant"].meaning
  assert variant.startswith("Size: a name") and variant.endswith('ffn=1536".')
  assert keys["length"].meaning == "tokens of a row, at most"
  assert keys["finetune.text"].meaning.startswith("column of the text")
  order = list(keys)
  assert order.index("seed") < order.index("model.variant")
  assert order.index("finetune.tasks") < order.index("finetune.text")
  assert keys["optim.max_skips"].allowed() == "int: at least 0"
  assert keys["finetune.head_dropout"].allowed() == (
    "float: at least 0 and at most 0.99"
  )
  c.own = 3
  own = describe_keys(c)[-1]
  assert (own.name, own.meaning) == ("own", "")
