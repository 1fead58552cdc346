"""The command `truenegs`: its help, and descriptions of configs."""

import json
import re
import shutil
import signal
import sys

import pytest

import truenegs_jax
from support.doc_pages import ROOT
from truenegs_jax import __main__ as command
from truenegs_jax.config import load
from truenegs_jax.config.tables import TABLES


@pytest.fixture
def call(monkeypatch, capsys):
  """Returns a function that runs the command in this process."""
  # The command lets a closed pipe end it, which would end later tests.
  handler = signal.getsignal(signal.SIGPIPE)

  def call(*words):
    monkeypatch.setattr(sys, "argv", ["truenegs", *words])
    code = 0
    try:
      command.main()
    except SystemExit as e:
      code = e.code
    output = capsys.readouterr()
    return code, output.err if code else output.out

  yield call
  signal.signal(signal.SIGPIPE, handler)


@pytest.mark.parametrize(
  ("words", "code", "expected"),
  [
    ([], 0, "  synonyms   Shows"),
    (["--help"], 0, "  synonyms   Shows"),
    (["--version"], 0, f"truenegs_jax {truenegs_jax.__version__}\n"),
    (["pepare"], 2, "no verb 'pepare'."),
    (["configs", "-h"], 0, "truenegs configs electra_base:hc,continue"),
    (["configs", "electra_bse"], 2, "Did you mean --config=electra_base?"),
    (["configs", "study:x"], 2, "'x' is unknown. Choose any of runlocal."),
  ],
)
def test_the_command_explains_itself_and_mistakes(call, words, code, expected):
  actual, output = call(*words)
  assert actual == code and expected in output
  assert all(len(line) <= 80 for line in output.splitlines() if not code)


def test_configs_are_listed_with_their_words(call):
  _, listed = call("configs")
  for name in load.packaged_names():
    assert re.search(rf"(?m)^  {name}\n      [A-Z]", listed)
  assert "\n      :baseline :hc :sr " in listed


@pytest.mark.parametrize("text", ["electra_base:hc,len512", "study", "own.py"])
def test_configs_describes_every_key_and_word(call, text, tmp_path):
  if text == "own.py":
    text = str(shutil.copy(ROOT / "configs/electra_own.py", tmp_path / text))
  _, described = call("configs", text)
  config = load.load_config(text)
  flat = " ".join(described.split())
  for name, key in TABLES[config.task].items():
    assert f"\n--config.{name}=" in described and key.describe() in flat
  for word, meaning in load.list_words(text.partition(":")[0]).items():
    assert f"\n  :{word}\n" in described and meaning in flat
  assert "--config.length=512\n" in described or "len512" not in text


def test_values_of_a_run_send_no_control_characters(call, tmp_path):
  values = load.load_config("electra_demo:baseline").to_dict()
  values["data"]["vocab"] = "a\x1b[2J"
  (tmp_path / "config.json").write_text(json.dumps(values))
  _, described = call("configs", f"{tmp_path}/config.json")
  assert r"data.vocab='a\x1b[2J'" in described
  assert described.replace("\n", "").isprintable()
