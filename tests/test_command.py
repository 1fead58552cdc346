"""The command `truenegs`: its help, and descriptions of configs."""

import json
import re
import shutil
import signal
import sys

import pytest
from absl import flags as absl_flags

import truenegs_jax
from support.doc_pages import ROOT
from truenegs_jax import __main__ as command
from truenegs_jax.config import flags, load
from truenegs_jax.config.tables import TABLES


@pytest.mark.parametrize(
  ("words", "code", "expected"),
  [
    ([], 0, "  synonyms   Shows"),
    (["--help"], 0, "  synonyms   Shows"),
    (["--version"], 0, f"truenegs_jax {truenegs_jax.__version__}\n"),
    (["pepare"], 2, "no verb 'pepare'."),
  ],
)
def test_the_command_explains_itself(
  monkeypatch, capsys, words, code, expected
):
  monkeypatch.setattr(sys, "argv", ["truenegs", *words])
  try:
    command.main()
    assert not code
  except SystemExit as e:
    assert e.code == code
  output = "".join(capsys.readouterr())
  assert expected in output
  lines = [x for x in output.splitlines() if not x.startswith("error: ")]
  assert all(len(line) <= 80 for line in lines)


@pytest.fixture
def show_help(capsys, monkeypatch):
  """Returns a function of --config that returns the help of a verb."""
  # The command lets a closed pipe end it, which would end later tests.
  monkeypatch.setattr(signal, "signal", lambda *_: None)

  def show(*words):
    values = absl_flags.FlagValues()
    flags.define_config(values)
    with pytest.raises(SystemExit):
      flags.parse(["main", *words, "--help"], values, "Trains.")
    return capsys.readouterr().out

  return show


def test_configs_are_listed_with_their_words(show_help):
  listed = show_help()
  for name in load.packaged_names():
    assert re.search(rf"(?m)^  {name}\n      [A-Z]", listed)
  assert "\n      :baseline :hc :sr " in listed


@pytest.mark.parametrize("text", ["electra_base:hc,len512", "study", "mine.py"])
def test_every_key_and_word_of_a_config_is_described(show_help, text, tmp_path):
  if text == "mine.py":
    text = str(shutil.copy(ROOT / "configs/own.py", tmp_path / text))
  described = show_help(f"--config={text}")
  config = load.load_config(text)
  flat = " ".join(described.split())
  for name, key in TABLES[config.task].items():
    assert f"\n--config.{name}=" in described and key.describe() in flat
  for word, meaning in load.list_words(text.partition(":")[0]).items():
    assert f"\n  :{word}\n" in described and meaning in flat
  assert "--config.length=512\n" in described or "len512" not in text


def test_values_of_a_run_send_no_control_characters(show_help, tmp_path):
  values = load.load_config("demo:baseline").to_dict()
  values["data"]["vocab"] = "a\x1b[2J"
  (tmp_path / "config.json").write_text(json.dumps(values))
  described = show_help(f"--config={tmp_path}/config.json")
  assert r"data.vocab='a\x1b[2J'" in described
  assert described.replace("\n", "").isprintable()
