"""Every number of every config has a range; everything else is refused."""

import math

import pytest

from truenegs_jax.config import tables
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.keys import flatten
from truenegs_jax.runtime.errors import InputError

CONFIGS = "demo", "finetune_glue", "corrections", "blimp", "robustness", "study"


def find_numbers(name):
  """Returns task and numeric keys of a config, with their values."""
  c = parse_config([f"--config={name}"])
  numbers = {
    key: value
    for key, value in flatten(c.to_dict()).items()
    if isinstance(value, int | float) and not isinstance(value, bool)
  }
  return c.task, numbers


@pytest.mark.parametrize("name", CONFIGS)
def test_numbers_out_of_range_are_refused_with_their_range(name):
  task, numbers = find_numbers(name)
  for key, value in numbers.items():
    rule = tables.TABLES[task][key]
    assert rule.low <= value <= rule.high, key
    for wrong in (math.nan, rule.low - 1, rule.high + 1):
      with pytest.raises(InputError, match=key) as error:
        rule.check(key, wrong)
      if rule.high < wrong < math.inf:
        assert f"{rule.high:,}" in str(error.value)


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ("c.optim.lrr = 1", "own.py' sets optim.lrr.*no key"),
    ("c.optim = ml_collections.ConfigDict()", "own.py' has no value of optim"),
    ("del c.optim.lr", "own.py' has no value of optim.lr. Start from"),
    ("c.steps = True", "steps=True has the wrong type"),
  ],
)
def test_wrong_values_of_python_files_are_refused(tmp_path, line, message):
  path = tmp_path / "own.py"
  path.write_text(
    "import ml_collections\nfrom truenegs_jax.configs import demo\n"
    "def get_config():\n"
    f"  c = demo.get_config()\n  {line}\n  return c\n"
  )
  with pytest.raises(InputError, match=message):
    parse_config([f"--config={path}"])
