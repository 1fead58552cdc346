"""Checks the commands in the documentation without running them."""

import functools
import importlib
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
CONFIGS = [path.stem for path in (ROOT / "configs").glob("[!_]*.py")]


@functools.cache
def config_keys():
  """Returns the keys of all configs, as in `--config.data.vocab`."""
  modules = (
    importlib.import_module(f"truenegs_jax.configs.{n}") for n in CONFIGS
  )
  configs = [m.get_config() for m in modules if hasattr(m, "get_config")]
  return {key for c in configs for key in flatten(c.to_dict())}


def flatten(values, prefix=""):
  for name, value in values.items():
    yield prefix + name
    if isinstance(value, dict):
      yield from flatten(value, f"{prefix}{name}.")


def blocks(page, language):
  return re.findall(rf"(?ms)^```{language}\n(.*?)^```", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_blocks_are_shell_and_python(page):
  scripts = "\n".join(blocks(page, "sh"))
  done = subprocess.run(
    ["bash", "-n"], input=scripts, capture_output=True, text=True
  )
  assert (done.returncode, done.stderr) == (0, "")
  heredocs = re.findall(r"(?ms)<<'PY'\n(.*?)^PY$", scripts)
  for code in blocks(page, "python") + heredocs:
    compile(code, page.name, "exec")


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_flags_set_keys_of_a_config(page):
  used = set(re.findall(r"--config\.([a-z_.0-9]+)=", page.read_text()))
  assert used <= config_keys()
