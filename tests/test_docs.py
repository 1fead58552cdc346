"""Checks and runs the code of README and of the pages of docs/.

Every command is parsed and its config built and checked. A block under the
comment `<!-- run -->` is executed, in one temporary folder for each page.
"""

import ast
import collections
import os
import pathlib
import re
import string
import subprocess
import sys

import pytest

from support.doc_pages import (
  PAGES,
  ROOT,
  capture_commands,
  read_blocks,
  write_files,
)
from truenegs_jax import models
from truenegs_jax.__main__ import MODULES, VERBS
from truenegs_jax.config.flags import parse_config
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.objectives import soft_regularization
from truenegs_jax.synonyms import sources
from truenegs_jax.tasks import task
from truenegs_jax.train import sharding

LANGUAGES = {"sh", "python", "text", "json", "ini", "bibtex"}
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)
TARGETS = re.findall(r"(?m)^([\w -]+):", (ROOT / "Makefile").read_text())
MAKE_TARGETS = {name for names in TARGETS for name in names.split()}


def scripts_of(page):
  return "\n".join(b.text for b in read_blocks(page) if b.language == "sh")


@each_page
def test_blocks_have_a_language_that_is_tested(page):
  for block in read_blocks(page):
    is_directive = re.fullmatch(r"\{[\w-]+\}", block.language)
    assert is_directive or block.language in LANGUAGES, block


@pytest.mark.slow
@each_page
def test_python_compiles_and_its_imports_exist(page):
  codes = [b.text for b in read_blocks(page) if b.language == "python"]
  codes += re.findall(r"(?ms)<<'PY'\n(.*?)^PY$", scripts_of(page))
  failures = []
  for code in codes:
    for node in ast.walk(ast.parse(code, page.name)):
      if isinstance(node, ast.Import | ast.ImportFrom):
        statement = ast.unparse(node)
        try:
          if "truenegs_jax" in statement:
            exec(statement, {})
        except ImportError as error:
          failures.append(f"{statement}: {error}")
  assert not failures


@pytest.fixture(autouse=True)
def registries(monkeypatch):
  """Removes what config files of pages add to the package."""
  tables = (
    task.TASKS,
    sharding.MESHES,
    soft_regularization.REGULARIZERS,
    sources.SOURCES,
  )
  copies = [dict(table) for table in tables]
  monkeypatch.setattr(models, "__path__", list(models.__path__))
  modules = set(sys.modules)
  yield
  for table, copy in zip(tables, copies, strict=True):
    table.clear()
    table.update(copy)
  for name in set(sys.modules) - modules:
    if name.startswith("truenegs_jax.models."):
      del sys.modules[name]


@pytest.mark.slow
@each_page
def test_commands_are_accepted(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  write_files(page, tmp_path)
  script = scripts_of(page)
  for words in capture_commands(script, tmp_path):
    check_command(words)


def check_command(words):
  """Fails if a command is one of ours and would be refused."""
  program = pathlib.Path(words[0]).name
  if program == "make":
    goals = [w for w in words[1:] if "=" not in w and not w.startswith("-")]
    assert set(goals) <= MAKE_TARGETS, words
  if words[0].startswith("launch/"):
    verb = "prepare" if words[1] == "prepare" else "main"
    parse_flags(verb, words[1 + (words[1] in ("prepare", "study")) :])
  if program == "sbatch":
    scripts = [i for i, word in enumerate(words) if word.endswith(".sh")]
    parse_flags("main", words[scripts[0] + 1 :])
  if program == "truenegs":
    parse_flags(words[1], words[2:])
  if program == "python" and words[1:2] == ["-m"]:
    assert not words[2].startswith("truenegs_jax"), "spell it truenegs VERB"
  if program == "python" and words[1].startswith(("benchmarks/", "studies/")):
    assert (ROOT / words[1]).is_file(), words


def parse_flags(verb, words):
  """Parses a verb's flags, builds its config, and returns it."""
  assert verb in VERBS, verb
  module = MODULES[verb].replace(".", "/")
  source = (ROOT / "truenegs_jax" / f"{module}.py").read_text()
  if {"--config=...", "OUTPUT"} & set(words):
    return None
  ours = [w for w in words if re.match(r"--config\b", w)]
  if verb in ("report", "export", "synonyms"):
    words = [word for word in words if word.startswith("--")]
  for word in set(words) - {*ours, "--help"}:
    name = re.fullmatch(r"--(?:no)?(\w+)(=.*)?", word, re.S)
    assert name, f"{word!r} is no flag"
    assert f'"{name[1]}"' in source, word
  has_config = any(w.startswith("--config=") for w in ours)
  return parse_config(ours) if has_config else None


@each_page
def test_links_to_files_exist(page):
  for link in re.findall(r"\]\((?!http|#|mailto)([^)#\s]+)", page.read_text()):
    assert (page.parent / link).exists(), link
  for path in re.findall(r"`(tests/[\w/.]+)`", page.read_text()):
    assert (ROOT / path).exists(), path


def pages_to_run():
  """Yields the pages with blocks to execute; shell blocks start processes."""
  for page, name in zip(PAGES, NAMES, strict=True):
    languages = {b.language for b in read_blocks(page) if b.is_run}
    if languages:
      marks = [pytest.mark.slow] if "sh" in languages else []
      yield pytest.param(page, id=name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("page", list(pages_to_run()))
def test_marked_blocks_run(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  monkeypatch.setenv("JAX_PLATFORMS", "cpu")
  binaries = pathlib.Path(sys.executable).parent
  monkeypatch.setenv("PATH", str(binaries), prepend=os.pathsep)
  write_sample_files(tmp_path)
  write_files(page, tmp_path)
  namespace = {"__name__": "__main__", "__file__": str(tmp_path / "page.py")}
  for block in read_blocks(page):
    if block.is_run and block.language == "sh":
      script = ["bash", "-euo", "pipefail", "-c", block.text]
      done = subprocess.run(script, capture_output=True, text=True)
      assert done.returncode == 0, block.text + done.stdout + done.stderr
    elif block.is_run:
      exec(compile(block.text, page.name, "exec"), namespace)


def write_sample_files(folder):
  """Writes texts/ and vocab.txt, which executed blocks may use."""
  (folder / "texts").mkdir()
  words = collections.Counter()
  for name, source in (("one", "LICENSE"), ("two", "CHANGELOG.md")):
    text = (ROOT / source).read_text()
    copies = [text] * (1 + 60_000 // len(text))
    (folder / "texts" / f"{name}.txt").write_text("\n\n".join(copies))
    words.update(re.findall(r"[a-z]+", text.lower()))
  letters = string.ascii_lowercase + string.digits + string.punctuation
  pieces = [*letters, *(f"##{letter}" for letter in letters)]
  common = [word for word, _ in words.most_common(2_000) if len(word) > 1]
  vocab = [*SPECIALS, *pieces, *common][:2_000]
  (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
