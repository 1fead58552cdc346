"""Every key of every task is described, and its values are checked."""

import pytest

from truenegs_jax.config.keys import flatten
from truenegs_jax.config.tables import DICTS, TABLES, make_config
from truenegs_jax.runtime.errors import InputError


@pytest.mark.parametrize("task", TABLES)
def test_every_key_has_a_meaning_and_a_valid_default(task):
  for name, key in TABLES[task].items():
    assert key.meaning, name
    key.check(name, key.default)
    if key.choices and not key.is_open:
      other = ("nonesuch",) if key.default == () else "nonesuch"
      with pytest.raises(InputError, match=f"{name}='nonesuch'.*Choose"):
        key.check(name, other)
    is_number = type(key.default) in (int, float)
    assert is_number == (key.low is not None) or type(key.default) is tuple


@pytest.mark.parametrize("task", TABLES)
def test_a_config_has_the_keys_of_its_table(task):
  values = flatten(make_config(task).to_dict(), kept=DICTS)
  assert values == {name: key.default for name, key in TABLES[task].items()}
