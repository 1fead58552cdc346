"""The command `truenegs`: its help, configs, and completion in shells."""

import fnmatch
import re
import shutil
import signal
import subprocess
import sys

import pytest

import truenegs_jax
from support.doc_pages import ROOT
from truenegs_jax import __main__ as command
from truenegs_jax import completion
from truenegs_jax.runtime import config_files
from truenegs_jax.runtime.config_keys import describe_keys

RUN = [sys.executable, "-m", "truenegs_jax"]


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
    ([], 0, "  synonyms   Builds"),
    (["--help"], 0, "  synonyms   Builds"),
    (["--version"], 0, f"truenegs_jax {truenegs_jax.__version__}\n"),
    (["pepare"], 2, "no verb 'pepare'. Did you mean truenegs prepare?"),
    (["configs", "-h"], 0, "truenegs configs electra_base:hc,continue"),
    (["configs", "electra_bse"], 2, "Did you mean --config=electra_base?"),
    (["configs", "study:x"], 2, "'x' is unknown. Choose any of runlocal."),
    (["completion", "csh"], 2, "'csh' is unknown. Choose bash, zsh or fish."),
  ],
)
def test_the_command_explains_itself_and_mistakes(call, words, code, expected):
  actual, output = call(*words)
  assert actual == code and expected in output
  assert all(len(line) <= 80 for line in output.splitlines() if not code)


def test_help_names_every_config_and_configs_lists_them_with_words(call):
  _, listed = call("configs")
  patterns = ", ".join(command.TASKS.values()).split(", ")
  for name in config_files.packaged_names():
    assert any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    assert re.search(rf"(?m)^  {name}\n      [A-Z]", listed)
  assert "\n      :baseline :hc :sr " in listed


@pytest.mark.parametrize("text", ["electra_base:hc,len512", "study", "own.py"])
def test_configs_describes_every_key_and_word(call, text, tmp_path):
  if text == "own.py":
    text = str(shutil.copy(ROOT / "configs/electra_own.py", tmp_path / text))
  _, described = call("configs", text)
  config = config_files.load_config(text)
  flat = " ".join(described.split())
  for key in describe_keys(config):
    allowed = f"{key.meaning} [{key.allowed()}]"
    assert f"\n--config.{key.name}=" in described and allowed in flat
  for word, meaning in config_files.list_words(text.partition(":")[0]).items():
    assert f"\n  :{word}\n" in described and meaning in flat
  assert "--config.length=512\n" in described or "len512" not in text


@pytest.mark.parametrize(
  ("line", "expected"),
  [
    ("truenegs st", ["status"]),
    ("truenegs completion ", ["bash", "zsh", "fish"]),
    ("truenegs configs stu", ["study", "study_small"]),
    ("truenegs configs study:", ["study:runlocal"]),
    ("truenegs main --config=electra_d", ["--config=electra_demo"]),
    (
      "truenegs main --config=electra_own:sr,s",
      [
        f"--config=electra_own:sr,{word}" for word in ("sr", "sr_sent", "small")
      ],
    ),
    (
      "truenegs main --config=study:runlocal --config.study.b",
      ["--config.study.base="],
    ),
    ("truenegs export --i", ["--init="]),
    ("truenegs main --workdir=ru", []),  # files
    ("truenegs main --config=own.py:", []),  # is not executed
    ("truenegs nonesuch --", []),
  ],
)
def test_words_are_completed(line, expected, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "own.py").write_text("raise AssertionError")
  verbs = command.VERBS | command.OWN_VERBS
  assert completion.complete(line, verbs) == expected


def test_all_flags_of_all_verbs_are_completed():
  programs = {
    verb: subprocess.Popen([*RUN, verb, "--help"], stdout=-1, text=True)
    for verb in command.VERBS
  }
  for verb, program in programs.items():
    output, _ = program.communicate()
    assert program.returncode == 0
    shown = re.findall(r"(?m)^--(\w+)=", output)
    assert set(shown) == set(completion.list_flags(verb)), verb


SHELL_LINES = {
  "bash": """
    eval "$(truenegs completion bash)"
    COMP_LINE="truenegs main --config=electra_d" COMP_POINT=32
    _truenegs 2>&1; echo "${COMPREPLY[@]}"
  """,
  "fish": """
    truenegs completion fish | source
    complete -C "truenegs main --config=electra_d"
  """,
  # Completion needs a terminal; this only compiles the script.
  "zsh": "truenegs completion zsh | zsh -n && echo electra_demo",
}


@pytest.mark.parametrize("shell", SHELL_LINES)
def test_shells_complete_a_config(shell, tmp_path, monkeypatch):
  if not shutil.which(shell):
    pytest.skip(f"no shell {shell}")
  tool = tmp_path / "truenegs"
  tool.write_text(f'#!/bin/sh\nexec {" ".join(RUN)} "$@"\n')
  tool.chmod(0o755)
  monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
  done = subprocess.run(
    [shell, "-c", SHELL_LINES[shell]], capture_output=True, text=True
  )
  assert done.stdout.split("=")[-1].strip() == "electra_demo", done


def test_completion_imports_neither_jax_nor_numpy():
  line = "truenegs main --config=electra_demo --config.optim."
  done = subprocess.run(
    [sys.executable, "-X", "importtime", *RUN[1:], "complete", line],
    capture_output=True,
    text=True,
  )
  assert "--config.optim.lr=" in done.stdout
  assert not re.search(r"\| +(jax|numpy)$", done.stderr, re.MULTILINE)
