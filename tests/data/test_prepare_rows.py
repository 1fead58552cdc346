"""Preparation reuses rows, resumes, and explains what it rejects."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from rich.console import Console
from tests.support.tokenizer_files import write_vocabulary

from support.small_rows import read_files
from truenegs_jax.config.sections import Data
from truenegs_jax.data import steps
from truenegs_jax.data import vocabulary as vocabulary_lib
from truenegs_jax.data.corpus.corpus import Corpus
from truenegs_jax.data.prepare_rows import prepare
from truenegs_jax.data.rows import open_rows, read_manifest, verify_rows
from truenegs_jax.data.tokenizer import SPECIALS, load_tokenizer
from truenegs_jax.runtime.errors import DataError, DiskError, InputError
from truenegs_jax.train.prepare_data import find_or_prepare_rows

ROOT = str(pathlib.Path(__file__).parents[3])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache"


@pytest.fixture
def corpus(tmp_path):
  rng = np.random.default_rng(0)
  words = ["swan", "crane", "grebe", "swims", "flies", "the", "a", "."]
  documents = [
    "\n".join(" ".join(rng.choice(words, 9)) for _ in range(6))
    for _ in range(40)
  ]
  path = tmp_path / "corpus.txt"
  path.write_text("\n\n".join(documents))
  return str(path)


def make_rows(corpus, **changes):
  options = {"length": 16, "vocab_size": 60, "held_out": 0.1, **changes}
  return prepare(corpus, **options)


def test_rows_and_trained_vocabulary_go_to_the_cache(corpus, cache):
  folder, tokenizer = make_rows(corpus)
  assert folder.parent == cache / "rows"
  assert tokenizer == load_tokenizer(str(folder), lowercase=True)
  assert tokenizer.special_ids == (0, 1, 2, 3, 4)
  manifest = read_manifest(folder)
  assert manifest["tokenizer"]["fingerprint"] == tokenizer.fingerprint
  verify_rows(folder)
  rows = open_rows(folder, "train")
  text = tokenizer.decode(rows.take(np.array([0]))["tokens"][0])
  assert text.startswith("[CLS] ") and " swan " in text


def test_each_text_and_set_of_options_has_its_own_folder(corpus):
  changes = [{}, {"length": 17}, {"seed": 1}, {"vocab_size": 50}]
  changes += [{"lowercase": False}, {"held_out": 0.0}, {"layout": "packed"}]
  changes += [{"overflow": "discard"}, {"accents": "keep"}]
  changes += [{"errors": "replace"}]
  folders = [make_rows(corpus, **change)[0] for change in changes]
  with open(corpus, "a") as file:
    file.write(" swan")
  folders.append(make_rows(corpus)[0])
  assert len(set(folders)) == 11


def test_a_named_folder_of_other_options_is_rejected(corpus, tmp_path):
  folder = str(tmp_path / "rows")
  make_rows(corpus, rows=folder)
  make_rows(corpus, rows=folder)
  with pytest.raises(DataError) as caught:
    make_rows(corpus, rows=folder, length=20, seed=2)
  message = str(caught.value)
  assert "length: 16 in the folder, 20 now" in message
  assert "seed: 0 in the folder, 2 now" in message
  assert "lowercase" not in message


def test_rows_can_be_used_without_their_text(corpus, tmp_path):
  folder = str(tmp_path / "rows")
  first = make_rows(corpus, rows=folder)
  os.utime(corpus, (1, 1))
  with pytest.raises(DataError, match="sources.0.files: "):
    make_rows(corpus, rows=folder)
  os.remove(corpus)
  assert make_rows(corpus, rows=folder) == first
  with pytest.raises(DataError, match="length: 16 in the folder"):
    make_rows(corpus, rows=folder, length=20)
  with pytest.raises(DataError, match="is no file, folder or URL"):
    make_rows(corpus)


@pytest.mark.parametrize(
  "change, kind, message",
  [
    ({"layout": "x"}, InputError, "data.layout='x'"),
    ({"overflow": "x"}, InputError, "data.overflow='x'"),
    ({"length": 3}, InputError, "length=3"),
    ({"vocab_size": 10}, InputError, "vocab_size=10"),
    ({"vocab": "nothing.txt"}, InputError, "nothing.txt"),
    ({"rows": "/dev/null/rows"}, DiskError, "could not be written"),
  ],
)
def test_invalid_values_are_rejected_and_leave_no_files(
  corpus, cache, change, kind, message
):
  with pytest.raises(kind, match=message):
    make_rows(corpus, **change)
  paths = [p for p in cache.rglob("*") if not p.name.endswith(".lock")]
  assert [p for p in paths if p.name != "rows"] == []


CONFIG = """
from truenegs_jax.configs import common

def get_config(arg=""):
  c = common.get_config()
  c.length = 16
  c.data.update(dict(sources={corpus!r}, vocab_size=60, held_out=0.1))
  return c
"""


def start_command(corpus, tmp_path, *flags, **options):
  config = tmp_path / "config.py"
  config.write_text(textwrap.dedent(CONFIG).format(corpus=corpus))
  command = [sys.executable, "-m", "truenegs_jax.prepare", f"--config={config}"]
  return subprocess.Popen(
    [*command, *flags],
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": ROOT},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **options,
  )


def test_the_command_prints_the_folder_or_one_error(corpus, tmp_path):
  command = start_command(corpus, tmp_path)
  out, err = command.communicate()
  assert command.returncode == 0, err
  assert out.strip() == str(make_rows(corpus)[0])
  assert "rows of 16 tokens to train on" in err and "\x1b" not in err
  command = start_command(corpus, tmp_path, "--config.data.sources=weight=3")
  out, err = command.communicate()
  assert command.returncode == 2 and not out
  assert "no name or path" in err and "Traceback" not in err


def test_two_commands_at_once_prepare_once(corpus, tmp_path, cache):
  commands = [start_command(corpus, tmp_path) for _ in range(2)]
  results = [command.communicate() for command in commands]
  assert [command.returncode for command in commands] == [0, 0]
  assert results[0][0] == results[1][0]
  assert sum("to train on" in err for _, err in results) == 1
  warning = "warning: .*% of the rows are padding.*length=16"
  assert all(re.search(warning, err) for _, err in results)
  [folder] = [p for p in (cache / "rows").iterdir() if p.is_dir()]
  verify_rows(folder)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
  """A folder with a text of about four chunks and its vocabulary."""
  folder = tmp_path_factory.mktemp("large")
  rng = np.random.default_rng(1)
  words = np.array([f"w{i}" for i in range(400)])
  documents = [
    "\n".join(" ".join(rng.choice(words, 60)) for _ in range(40))
    for _ in range(700)
  ]
  (folder / "large.txt").write_text("\n\n".join(documents))
  write_vocabulary([*SPECIALS, *words], folder / "vocab.txt")
  return folder


@pytest.mark.slow
def test_an_interrupted_preparation_is_resumed(large, tmp_path):
  def start(name, workers):
    return start_command(
      str(large / "large.txt"),
      tmp_path,
      f"--config.data.vocab={large / 'vocab.txt'}",
      f"--config.data.rows={tmp_path / name}",
      f"--config.data.workers={workers}",
      start_new_session=True,
    )

  def finish(name, workers):
    command = start(name, workers)
    _, err = command.communicate()
    assert command.returncode == 0, err
    return read_files(tmp_path / name)

  # A terminal sends SIGINT to all processes of the group.
  for name, kill, code in (
    ("SIGINT", os.killpg, 130),
    ("SIGTERM", os.kill, 75),
  ):
    command = start(name, 2)
    unfinished = tmp_path / f".{name}.unfinished"
    while command.poll() is None and not unfinished.exists():
      time.sleep(0.01)
    time.sleep(0.3)  # until workers have started
    kill(command.pid, getattr(signal, name))
    _, err = command.communicate()
    assert command.returncode == code, err
    assert "Traceback" not in err, err
    assert unfinished.exists() and not (tmp_path / name).exists()
  assert finish("SIGINT", 2) == finish("plain", 1)


def test_a_run_does_not_download_a_corpus_by_itself(corpus, monkeypatch):
  data, quiet = Data(sources=corpus, vocab_size=60), Console(quiet=True)
  with monkeypatch.context() as patch:
    patch.setattr(Corpus, "is_local", lambda self: False)
    with pytest.raises(InputError, match="not prepared yet"):
      find_or_prepare_rows(data, 128, quiet)
  rows = find_or_prepare_rows(data, 128, quiet)
  monkeypatch.setattr(Corpus, "is_local", lambda self: False)
  assert find_or_prepare_rows(data, 128, quiet) == rows


def test_a_resumed_preparation_keeps_its_vocabulary(corpus, monkeypatch):
  def interrupt(*args, **kwargs):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(steps, "build_shards", interrupt)
    with pytest.raises(KeyboardInterrupt):
      make_rows(corpus)
  monkeypatch.setattr(vocabulary_lib, "train_vocabulary", interrupt)
  _, tokenizer = make_rows(corpus)
  assert "swan" in tokenizer.vocab


UNGUARDED_SCRIPT = """
import sys
from truenegs_jax.data.prepare_rows import prepare
prepare(sys.argv[1], length=16, vocab=sys.argv[2], workers=2)
"""


def test_the_error_of_an_unguarded_script_names_the_guard(large, tmp_path):
  (tmp_path / "script.py").write_text(UNGUARDED_SCRIPT)
  result = subprocess.run(
    [sys.executable, str(tmp_path / "script.py"), str(large / "large.txt")]
    + [str(large / "vocab.txt")],
    env={**os.environ, "PYTHONPATH": ROOT},
    stderr=subprocess.PIPE,
    text=True,
    timeout=60,
  )
  assert result.returncode and "without `if __name__" in result.stderr
