"""Preparing finds what was prepared, and says what differs."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from truenegs_jax.data.rows import open_rows, read_manifest, verify_rows
from truenegs_jax.data.tokenizer import load_tokenizer, write_vocabulary
from truenegs_jax.errors import DataError, DiskError, InputError, TrueNegsError
from truenegs_jax.prepare import prepare

ROOT = os.path.dirname(os.path.dirname(__file__))


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


def run(corpus, **changes):
  options = {"length": 16, "vocab_size": 60, "held_out": 0.1, **changes}
  return prepare(corpus, **options)


def test_a_trained_vocabulary_and_its_rows_lie_in_the_cache(corpus, cache):
  folder, tokenizer = run(corpus)
  assert folder.parent == cache / "rows"
  assert tokenizer == load_tokenizer(str(folder), lowercase=True)
  assert tokenizer.special_ids == (0, 1, 2, 3, 4)
  manifest = read_manifest(folder)
  assert manifest["tokenizer"]["fingerprint"] == tokenizer.fingerprint
  verify_rows(folder)
  rows = open_rows(folder, "train")
  shown = tokenizer.decode(rows.take(np.array([0]))["tokens"][0])
  assert shown.startswith("[CLS] ") and " swan " in shown


def test_what_was_prepared_is_found(corpus):
  folder, tokenizer = run(corpus)
  times = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
  assert run(corpus) == (folder, tokenizer)
  assert times == {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}


def test_other_options_and_other_text_have_another_folder(corpus):
  folders = [run(corpus)[0]]
  for change in (
    {"length": 17},
    {"seed": 1},
    {"vocab_size": 50},
    {"lowercase": False},
    {"held_out": 0.0},
    {"overflow": "discard"},
  ):
    folders.append(run(corpus, **change)[0])
  with open(corpus, "a") as file:
    file.write(" swan")
  folders.append(run(corpus)[0])
  assert len(set(folders)) == 8


def test_a_given_vocabulary_is_known_by_its_content(corpus, tmp_path):
  _, trained = run(corpus)
  for name in ("one.txt", "two.txt"):
    write_vocabulary(trained.vocab, tmp_path / name)
  first = run(corpus, vocab=str(tmp_path / "one.txt"))
  assert first == run(corpus, vocab=str(tmp_path / "two.txt"))
  assert first[1] == trained


def test_a_named_folder_of_other_options_is_refused(corpus, tmp_path):
  folder = str(tmp_path / "rows")
  run(corpus, rows=folder)
  run(corpus, rows=folder)
  with pytest.raises(DataError) as caught:
    run(corpus, rows=folder, length=20, seed=2)
  message = str(caught.value)
  assert "length: 16 there, 20 asked for" in message
  assert "seed: 0 there, 2 asked for" in message
  assert "lowercase" not in message


def test_rows_travel_without_their_text(corpus, tmp_path):
  folder = str(tmp_path / "rows")
  first = run(corpus, rows=folder)
  os.utime(corpus, (1, 1))
  with pytest.raises(DataError, match="sources: "):
    run(corpus, rows=folder)
  os.remove(corpus)
  assert run(corpus, rows=folder) == first
  with pytest.raises(DataError, match="length: 16 there"):
    run(corpus, rows=folder, length=20)
  with pytest.raises(DataError, match="no file"):
    run(corpus)


@pytest.mark.parametrize(
  "change, kind, message",
  [
    ({"layout": "x"}, InputError, "data.layout='x'"),
    ({"overflow": "x"}, InputError, "data.overflow='x'"),
    ({"length": 3}, InputError, "length=3"),
    ({"held_out": 2}, InputError, "held_out=2"),
    ({"vocab_size": 10}, InputError, "vocab_size=10"),
    ({"vocab": "nothing.txt"}, InputError, "nothing.txt"),
    ({"rows": "/dev/null/rows"}, DiskError, "data.rows"),
  ],
)
def test_bad_values_are_refused_and_leave_nothing(
  corpus, cache, change, kind, message
):
  with pytest.raises(kind, match=message) as caught:
    run(corpus, **change)
  assert isinstance(caught.value, TrueNegsError)
  left = [p for p in cache.rglob("*") if not p.name.endswith(".lock")]
  assert [p for p in left if p.name != "rows"] == []


CONFIG = """
import ml_collections

def get_config(arg=""):
  c = ml_collections.ConfigDict()
  c.length = 16
  c.data = ml_collections.ConfigDict(dict(
    sources={corpus!r}, vocab="train", vocab_size=60, lowercase=True,
    layout="electra", overflow="carry", held_out=0.1, rows="",
    wordnet_dir="", seed=0))
  return c
"""


def start_verb(corpus, tmp_path, *flags):
  config = tmp_path / "config.py"
  config.write_text(textwrap.dedent(CONFIG).format(corpus=corpus))
  return subprocess.Popen(
    [sys.executable, "-m", "truenegs_jax.prepare", f"--config={config}"]
    + list(flags),
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": ROOT},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def test_the_verb_prints_the_folder_or_one_error(corpus, tmp_path):
  verb = start_verb(corpus, tmp_path)
  out, err = verb.communicate()
  assert verb.returncode == 0, err
  assert out.strip() == str(run(corpus)[0])
  assert "rows of 16 tokens to train on" in err and "\x1b" not in err
  verb = start_verb(corpus, tmp_path, "--config.data.sources=a,,b")
  out, err = verb.communicate()
  assert verb.returncode == 2 and not out
  assert "part 2 is empty" in err and "Traceback" not in err


def test_two_at_once_prepare_once(corpus, tmp_path, cache):
  verbs = [start_verb(corpus, tmp_path) for _ in range(2)]
  results = [verb.communicate() for verb in verbs]
  assert [verb.returncode for verb in verbs] == [0, 0]
  assert results[0][0] == results[1][0]
  assert sum("to train on" in err for _, err in results) == 1
  [folder] = [p for p in (cache / "rows").iterdir() if p.is_dir()]
  verify_rows(folder)
