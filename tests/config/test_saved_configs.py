"""A saved config.json is loaded as the config that a run had."""

import importlib
import json

import pytest

from truenegs_jax.config import load
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.keys import flatten
from truenegs_jax.runtime.errors import InputError

NAMES = [x for x in load.packaged_names() if not x.startswith("study")]


def get_config(name):
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config()


DEMO = json.loads(get_config("demo").to_json())


def save(folder, config):
  path = folder / "config.json"
  path.write_text(config if isinstance(config, str) else config.to_json())
  return f"--config={path}"


@pytest.mark.parametrize("name", NAMES)
def test_every_config_is_loaded_as_it_was_saved(tmp_path, name):
  c = get_config(name)
  loaded = parse_config([save(tmp_path, c)])
  assert loaded.is_locked
  values = flatten(loaded.to_dict())
  expected = flatten(c.to_dict())
  assert values == expected
  for key, value in values.items():
    assert type(value) is type(expected[key]), key


def test_flags_change_a_saved_config(tmp_path):
  c = get_config("demo")
  change = "--config.generator.multiplier=2"
  for args in ([change, save(tmp_path, c)], [save(tmp_path, c), change]):
    assert parse_config(args).generator.multiplier == 2


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "cannot be read"),
    ('{"command": "x", "task": ["pretrain"]}', "is not the config of a run"),
    (json.dumps(DEMO | {"steps": "many"}), "'steps'"),
  ],
)
def test_another_file_is_refused_with_what_to_pass(tmp_path, text, message):
  flag = save(tmp_path, text)
  with pytest.raises(InputError, match=message) as error:
    parse_config([flag])
  assert "Pass the config.json of a workdir" in str(error.value)
  with pytest.raises(InputError, match="is no file and no packaged config"):
    parse_config([f"--config={tmp_path}"])
  with pytest.raises(InputError, match="cannot be read.*No such file"):
    parse_config([f"{flag}:hc"])


@pytest.mark.parametrize("more", [[], ["--config.dry_run=True"]])
def test_a_saved_study_is_refused_as_it_may_name_a_program(tmp_path, more):
  program = tmp_path / "base.py"
  program.write_text(f"import os\nos.mkdir({str(tmp_path / 'ran')!r})")
  c = get_config("study")
  c.study.base = f"{program}:hc"
  flag = save(tmp_path, c)
  with pytest.raises(InputError, match="a study is continued by the command"):
    parse_config([flag, *more])
  assert not (tmp_path / "ran").exists()
  with pytest.raises(InputError, match="base.py.*get_config"):
    load.load_config(str(program))  # as its user says
  assert (tmp_path / "ran").exists()


def test_no_file_takes_the_name_of_a_packaged_config(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "demo").write_text("1 / 0")
  for path in ("demo", "demo.py", "configs/demo.py"):
    assert load.find_config(path) == load.PACKAGED / "demo.py"
  with pytest.raises(InputError, match="no/such/folder/demo.py' is no file"):
    load.find_config("no/such/folder/demo.py")
  load.load_config("demo")
