"""Every number of every config has a range; everything else is refused."""

import json
import math
import pathlib

import pytest
from rich.console import Console

from support.faults import tries
from truenegs_jax.config import load, tables
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.keys import LARGEST, flatten
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import Corrections, Robustness, Study
from truenegs_jax.corrections import run as corrections
from truenegs_jax.finetune.task_data import parse_options
from truenegs_jax.pretrain import checks
from truenegs_jax.pretrain import run as pretrain
from truenegs_jax.robustness import run as robustness
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study import run as study

NOWHERE = pathlib.Path("no/workdir")


def check_pretrain(c):
  checks.check(PretrainConfig.read(c))


def check_study(c):
  parts_lib.make_parts(Study.read(c.study.to_dict()), NOWHERE)


def check_corrections(c):
  tables.check_values(c)
  options = Corrections.read(c.corrections)
  corrections.resolve(PretrainConfig.read(c), options, print)


def check_finetune(c):
  tables.check_values(c)
  parse_options(c.to_dict())


CHECKS = {
  "pretrain": check_pretrain,
  "finetune": check_finetune,
  "corrections": check_corrections,
  "robustness": lambda c: robustness.check(
    Robustness.read(c.robustness), NOWHERE
  ),
  "study": check_study,
}
# Flags with which a config passes its check.
FLAGS = {
  "electra_demo": [],
  "finetune_glue": [],
  "finetune_own": ["--config.finetune.epochs=3"],
  "corrections": [
    *("--config.corrections.text=a.txt", "--config.init=x"),
    *("--config.model.variant=tiny", "--config.data.vocab=v"),
    # No size is open, for which the weights would be read.
    *("--config.model.type_vocab_size=2", "--config.model.max_positions=512"),
    *("--config.model.window=64", "--config.model.global_every=3"),
  ],
  "robustness": [],
  "study": [],
}


def check(name, *flags):
  c = parse_config([f"--config={name}", *FLAGS[name], *flags])
  CHECKS[c.task](c)
  return c


def numeric_keys(name):
  """Returns the keys whose values are numbers, with these."""
  c = parse_config([f"--config={name}"])
  values = flatten(c.to_dict())
  return {
    key: value
    for key, value in values.items()
    if isinstance(first_of(value), int | float)
    and not isinstance(first_of(value), bool)
  }


def first_of(value):
  return value[0] if isinstance(value, tuple) and value else value


def replace_last(value, text):
  """Returns the text of a value in which one number is `text`."""
  if not isinstance(value, tuple):
    return text
  text = text.replace("inf", "1e999").replace("nan", "1e999 - 1e999")
  return f"({', '.join([*map(repr, value[:-1]), text])},)"


@pytest.mark.parametrize("name", load.packaged_names())
def test_every_number_has_a_range_that_its_value_is_in(name):
  task = parse_config([f"--config={name}"]).task
  for key, value in numeric_keys(name).items():
    rule = tables.TABLES[task][key]
    assert rule.low is not None, f"{key} needs a range"
    numbers = value if isinstance(value, tuple) else (value,)
    assert all(rule.low <= x <= rule.high for x in numbers), key


@pytest.mark.parametrize("name", FLAGS)
def test_numbers_out_of_range_are_refused_with_their_range(name):
  task = check(name).task
  for key, value in numeric_keys(name).items():
    rule = tables.TABLES[task][key]
    wrong = ["nan", repr(rule.low - 1), repr(rule.high + 1)]
    for text in wrong:
      flag = f"--config.{key}={replace_last(value, text)}"
      with pytest.raises(InputError) as error:
        check(name, flag)
        pytest.fail(f"{flag} is accepted")
      message = str(error.value)
      assert key in message, flag
      if "out of range" in message:
        least = "more than 0" if 0 < rule.low < 1 else f"least {rule.low:,}"
        assert least in message, flag
      if text == repr(rule.high + 1) and rule.high < math.inf:
        assert f"{rule.high:,}" in message, flag


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("part", tries(1, 15))
def test_wrong_types_and_misspelt_keys_of_flags_are_refused(name, part):
  for key in list(numeric_keys(name))[part::15]:
    for flag in (f"--config.{key}=many", f"--config.{key}x=1"):
      with pytest.raises(InputError, match=key):
        check(name, flag)
        pytest.fail(f"{flag} is accepted")


def save_changed(folder, name, key, change):
  """Saves a config in which `change(section, name of the key)` was called."""
  saved = json.loads(parse_config([f"--config={name}"]).to_json())
  *sections, last = key.split(".")
  section = saved
  for part in sections:
    section = section[part]
  change(section, last)
  path = folder / "config.json"
  path.write_text(json.dumps(saved))
  return f"--config={path}"


def write_python(folder, name, line):
  path = folder / "own.py"
  path.write_text(
    "import ml_collections\n"
    f"from truenegs_jax.configs import {name}\n"
    f"def get_config():\n  c = {name}.get_config()\n  {line}\n  return c\n"
  )
  return f"--config={path}"


@pytest.mark.parametrize("name", FLAGS)
def test_unknown_keys_of_files_are_refused_by_name(tmp_path, name):
  for key in ("sed", "optim.lrr", "batchsize"):
    if key.startswith("optim") and name in ("robustness", "study"):
      continue
    path = write_python(tmp_path, name, f"c.{key} = 1")
    with pytest.raises(InputError, match=f"own.py' sets {key}.*no key"):
      parse_config([path])
    add = lambda section, last: section.update({last: 1})  # noqa: E731
    path = save_changed(tmp_path, name, key, add)
    with pytest.raises(InputError, match=f"config.json' sets {key}.*no key"):
      parse_config([path])


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ("c.optim = ml_collections.ConfigDict()", "own.py' has no value of optim"),
    ("del c.optim.lr", "own.py' has no value of optim.lr. Start from"),
    ("c.steps = True", "own.py': steps=True has the wrong type"),
    ("c.steps = None", "own.py': steps=None has the wrong type"),
    ("c.steps = '9'", "own.py:5: TypeError"),
    ("c.checkpoint.keep_percent = ('a',)", "own.py': .*percent=.'a',. has"),
    ("c.eval.sentences = (1,)", "own.py': eval.sentences=.1,. has"),
  ],
)
def test_wrong_values_of_python_files_are_refused(tmp_path, line, message):
  with pytest.raises(InputError, match=message):
    parse_config([write_python(tmp_path, "electra_demo", line)])


def test_numbers_at_the_bounds_are_accepted():
  for flag in ("optim.b1=0", "optim.b2=0.999999", "seed=4294967295"):
    check("electra_demo", f"--config.{flag}")
  check("finetune_glue", f"--config.seed={LARGEST - 1000}")


@pytest.mark.parametrize(
  ("name", "task"), [("electra_demo", pretrain), ("study", study)]
)
def test_a_workdir_that_cannot_have_checkpoints_is_refused(
  tmp_path, monkeypatch, name, task
):
  monkeypatch.chdir(tmp_path)
  flags = [*FLAGS[name], "--config.dry_run=True"]
  c = parse_config([f"--config={name}", *flags])
  with pytest.raises(InputError, match=r"because of '\[1\]'"):
    task.run(c, tmp_path / "run[1]", Console(quiet=True))
  assert not list(tmp_path.iterdir())
