"""Command lines: values by type, and one clear line for each mistake."""

import re
import subprocess
import sys

import pytest
from absl import flags as absl_flags

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.config import load
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.keys import flatten
from truenegs_jax.config.tables import PRETRAIN
from truenegs_jax.runtime.errors import InputError

DEMO = "--config=demo"
PATH = "--config=configs/electra_base.py"
FLAGS = [f"\n--config.{key}=" for key in PRETRAIN]


@pytest.mark.parametrize(
  ("flags", "key", "value"),
  [
    (["--config.optim.lr=1"], "optim.lr", 1.0),
    (["--config.optim.lr", "1e-3"], "optim.lr", 1e-3),
    (["-config.steps=7", "--config.steps=0x10"], "steps", 16),
    (["--config.dry_run"], "dry_run", True),
    (["--noconfig.data.lowercase"], "data.lowercase", False),
    (["--config.data.sources=a=b, c\nd"], "data.sources", "a=b, c\nd"),
    (["--config.init", ""], "init", ""),
    (["--config.log.writers=tensorboard"], "log.writers", ("tensorboard",)),
    (["--config.log.writers=()"], "log.writers", ()),
    (["--config.eval.sentences=('a [MASK] b',)"],)
    + ("eval.sentences", ("a [MASK] b",)),
    (["--config.checkpoint.keep_percent=[5, 50.5]"],)
    + ("checkpoint.keep_percent", (5.0, 50.5)),
  ],
)
def test_a_flag_sets_its_key(flags, key, value):
  c = parse_config([*flags, DEMO, "--config.seed=3"])
  assert flatten(c.to_dict())[key] == value
  assert c.seed == 3 and c.is_locked
  assert type(c.optim.lr) is float


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--config.optim.warmup_step=3"], "Did you mean --config.optim.warmup_s"),
    (["--config.lr=1"], "Did you mean --config.optim.lr?"),
    (["--optim.lr=1"], "--optim.lr. Did you mean --config.optim.lr?"),
    (["--config.model=x"], "Did you mean --config.model."),
    (["steps=5"], "'steps=5'. Did you mean --config.steps?"),
    (["--config.data.sources"], "Missing value for flag --config.data.sources"),
    (["--config.data.lowercase=no"], "flag --config.data.lowercase=no: "),
    (["--config.optim.lr=fast"], "optim.lr=fast: could not convert string"),
    (["--config.log.writers=a,b"], "log.writers='a,b' is unknown. Choose"),
    (["--config.checkpoint.keep_percent=x"], "('x',) has the wrong type."),
    (["--config.task=study"], "--config.task=study is no flag"),
    (["runs/mine"], "Use --config.KEY=VALUE."),
    (["--config=dmo"], "Did you mean --config=demo?"),
    (["--config=demo:hcc"], "'hcc' is unknown"),
    (["--config=finetune_own.py:x"], "There are none."),
    (["--config"], "Missing value for flag --config."),
  ],
)
def test_a_mistake_is_refused_in_one_line(flags, message):
  with pytest.raises(InputError) as error:
    parse_config([DEMO, *flags])
  text = str(error.value)
  assert message in text and text[-1] in ".?" and "\n" not in text


@pytest.mark.parametrize(
  ("code", "message"),
  [
    ("def get_config():\n  return nonesuch", r"own.py:2: NameError"),
    ("x = 1", "own.py: KeyError.*function get_config"),
    ("def get_config(:", "own.py: SyntaxError"),
    ("def get_config(): pass", "own.py: TypeError"),
  ],
)
def test_a_broken_config_file_is_refused_with_its_line(tmp_path, code, message):
  path = tmp_path / "own.py"
  path.write_text(code)
  with pytest.raises(InputError, match=message):
    parse_config([f"--config={path}"])


@pytest.mark.parametrize(
  ("text", "workdir"),
  [
    ("demo:hc,len512", "runs/demo-hc-len512"),
    ("my/demo.py:hc", "runs/demo-hc"),
    ("runs/x/config.json", "runs/x"),
  ],
)
def test_the_default_workdir_is_named_after_the_config(text, workdir):
  assert str(load.default_workdir(text)) == workdir


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ([], "--config is missing. Try --config=demo."),
    (["--config.steps=9"], "--config is missing. Try --config=demo."),
    (["--workdr=x"], "Did you mean --workdir?"),
    (["--count=two"], "flag --count=two: invalid literal for int()"),
    (["demo:hc"], "Did you mean --config=demo:hc?"),
  ],
)
def test_a_wrong_flag_of_a_verb_is_refused(words, message):
  values = absl_flags.FlagValues()
  define = {"flag_values": values}
  flags_lib.define_config(values)
  absl_flags.DEFINE_string("workdir", "", "", **define)
  absl_flags.DEFINE_integer("count", 0, "", **define)
  with pytest.raises(InputError) as error:
    flags_lib.parse_flags(["program", *words], values)
  assert message in str(error.value)


def test_a_verb_ends_with_one_line_and_exit_code_2():
  command = [sys.executable, "-m", "truenegs_jax", "prepare", "--workdr=x"]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 2 and done.stderr.count("\n") == 1
  assert done.stderr.startswith("error: There is no flag --workdr.")


@pytest.mark.parametrize(
  ("words", "expected"),
  [
    (["main", "-h"], ["--workdir=''\n", "  demo\n", "docs/index.md"]),
    (["main", "--config", "demo", "--help"], FLAGS),
    (["prepare", "--help"], ["--runner=DataflowRunner --beam=", "  demo\n"]),
    (["export", "--help"], ["--step=VALUE", "[--output=FOLDER]"]),
    (["main", PATH, "--config.seed=7", "--help"], ["seed=7\n", *FLAGS]),
  ],
)
def test_help_is_printed_without_importing_jax(words, expected):
  command = [sys.executable, "-X", "importtime", "-m", "truenegs_jax"]
  done = subprocess.run([*command, *words], capture_output=True, text=True)
  assert done.returncode == 0
  assert [x for x in expected if x not in done.stdout] == []
  lines = done.stdout.splitlines()
  assert all(len(x) <= 80 for x in lines if not x.startswith("--config."))
  assert "--pdb" not in done.stdout
  assert not re.search(r"\| +jax$", done.stderr, re.MULTILINE)
