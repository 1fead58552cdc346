"""Preparing finds what was prepared, and says what differs."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from truenegs_jax.configs import common
from truenegs_jax.data.corpus.corpus import Corpus
from truenegs_jax.data.rows import build_rows
from truenegs_jax.data.rows.prepare_rows import prepare
from truenegs_jax.data.rows.rows_folder import (
  open_rows,
  read_manifest,
  verify_rows,
)
from truenegs_jax.data.tokens import train_vocabulary
from truenegs_jax.data.tokens.tokenizer import (
  SPECIALS,
  load_tokenizer,
  write_vocabulary,
)
from truenegs_jax.prepare import parse_job
from truenegs_jax.runtime.errors import (
  DataError,
  DiskError,
  InputError,
  TrueNegsError,
)
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
    {"layout": "packed"},
    {"strip_accents": False},
    {"errors": "replace"},
  ):
    folders.append(run(corpus, **change)[0])
  with open(corpus, "a") as file:
    file.write(" swan")
  folders.append(run(corpus)[0])
  assert len(set(folders)) == 11


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
  with pytest.raises(DataError, match="not a file"):
    run(corpus)


@pytest.mark.parametrize(
  "change, kind, message",
  [
    ({"layout": "x"}, InputError, "data.layout='x'"),
    ({"overflow": "x"}, InputError, "data.overflow='x'"),
    ({"length": 3}, InputError, "length=3"),
    ({"held_out": 2}, InputError, "held_out=2"),
    ({"held_out": float("nan")}, InputError, "held_out=nan"),
    ({"seed": -1}, InputError, "seed=-1"),
    ({"vocab_size": 10}, InputError, "vocab_size=10"),
    ({"errors": "x"}, InputError, "data.errors.'x'"),
    ({"stopping": "x"}, InputError, "data.stopping.'x'"),
    ({"tokenizer": "x"}, InputError, "data.tokenizer='x'"),
    ({"num_workers": -1}, InputError, "data.workers=-1"),
    ({"vocab_size": 10**20}, InputError, "vocab_size=1000"),
    ({"rows": "/"}, InputError, "data.rows='/'"),
    ({"vocab": "nothing.txt"}, InputError, "nothing.txt"),
    ({"rows": "/dev/null/rows"}, DiskError, "could not be written"),
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
from truenegs_jax.configs import common

def get_config(arg=""):
  c = common.get_config()
  c.length = 16
  c.data.update(dict(sources={corpus!r}, vocab_size=60, held_out=0.1))
  return c
"""


def start_verb(corpus, tmp_path, *flags, **how):
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
    **how,
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


@pytest.fixture(scope="module")
def large(tmp_path_factory):
  """A text of six chunks or so, and a vocabulary for it."""
  folder = tmp_path_factory.mktemp("large")
  rng = np.random.default_rng(1)
  words = np.array([f"w{i}" for i in range(400)])
  documents = [
    "\n".join(" ".join(rng.choice(words, 60)) for _ in range(40))
    for _ in range(1200)
  ]
  (folder / "large.txt").write_text("\n\n".join(documents))
  write_vocabulary([*SPECIALS, *words], folder / "vocab.txt")
  return folder


def start_large(large, tmp_path, rows, *flags, **how):
  return start_verb(
    str(large / "large.txt"),
    tmp_path,
    f"--config.data.vocab={large / 'vocab.txt'}",
    f"--config.data.rows={rows}",
    *flags,
    **how,
  )


def read_all(folder):
  return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def one_go(large, tmp_path):
  folder = tmp_path / "one_go"
  verb = start_large(large, tmp_path, folder, "--config.data.workers=1")
  _, err = verb.communicate()
  assert verb.returncode == 0, err
  return read_all(folder)


@pytest.mark.slow
def test_jobs_of_an_array_make_the_rows_of_one_go(large, tmp_path, one_go):
  folder = tmp_path / "rows"
  jobs = [
    start_large(large, tmp_path, folder, f"--shard={i}/3") for i in range(3)
  ]
  results = [job.communicate() for job in jobs]
  assert [job.returncode for job in jobs] == [0, 0, 0], results
  assert str(folder) + "\n" in [out for out, _ in results]
  assert sum("to train on" in err for _, err in results) == 1
  assert read_all(folder) == one_go


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [("SIGINT", 130), ("SIGTERM", 75)])
def test_an_interrupted_preparation_goes_on(
  large, tmp_path, one_go, number, code
):
  folder = tmp_path / "rows"
  workers = "--config.data.workers=4"
  verb = start_large(large, tmp_path, folder, workers, start_new_session=True)
  unfinished = tmp_path / ".rows.unfinished"
  while verb.poll() is None and not unfinished.exists():
    time.sleep(0.01)
  time.sleep(0.3)  # workers start
  # To all processes of the group, as a terminal does.
  target = os.killpg if number == "SIGINT" else os.kill
  target(verb.pid, getattr(signal, number))
  _, err = verb.communicate()
  assert verb.returncode == code, err
  assert "Traceback" not in err, err
  assert not folder.exists()
  verb = start_large(large, tmp_path, folder)
  _, err = verb.communicate()
  assert verb.returncode == 0, err
  assert read_all(folder) == one_go


def test_verify_reads_every_file(corpus, tmp_path):
  folder, _ = run(corpus)
  for damaged in (False, True):
    if damaged:
      path = folder / "held_out-00000.types.npy"
      data = bytearray(path.read_bytes())
      data[-1] ^= 1
      path.write_bytes(data)
    verb = start_verb(corpus, tmp_path, "--verify")
    _, err = verb.communicate()
    assert verb.returncode == (DataError.exit_code if damaged else 0)
    assert ("held_out-00000.types.npy" in err) == damaged


@pytest.mark.parametrize("shard", ["3/3", "-1/3", "1", "a/b", "0/0"])
def test_impossible_shares_are_refused(shard):
  with pytest.raises(InputError, match=f"--shard={shard}"):
    parse_job(shard)


def test_a_run_does_not_download_a_corpus_by_itself(corpus, monkeypatch):
  config = common.get_config()
  config.data.update(dict(sources=corpus, vocab_size=60))
  monkeypatch.setattr(Corpus, "is_local", lambda self: False)
  with pytest.raises(InputError, match="Prepare them first"):
    find_or_prepare_rows(config)
  monkeypatch.undo()
  made = find_or_prepare_rows(config)
  monkeypatch.setattr(Corpus, "is_local", lambda self: False)
  assert find_or_prepare_rows(config) == made


def test_a_vocabulary_once_trained_is_not_trained_again(corpus, monkeypatch):
  def stop(*args, **kwargs):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(build_rows, "build_chunks", stop)
    with pytest.raises(KeyboardInterrupt):
      run(corpus)
  monkeypatch.setattr(train_vocabulary, "train_vocabulary", stop)
  folder, tokenizer = run(corpus)
  assert "swan" in tokenizer.vocab


GUARDLESS = """
import sys
from truenegs_jax.data.rows.prepare_rows import prepare
prepare(sys.argv[1], length=16, vocab=sys.argv[2], num_workers=2)
"""


def test_a_script_without_a_guard_is_told_so(large, tmp_path):
  (tmp_path / "script.py").write_text(GUARDLESS)
  done = subprocess.run(
    [sys.executable, str(tmp_path / "script.py"), str(large / "large.txt")]
    + [str(large / "vocab.txt")],
    env={**os.environ, "PYTHONPATH": ROOT},
    stderr=subprocess.PIPE,
    text=True,
    timeout=60,
  )
  assert done.returncode and "without `if __name__" in done.stderr


@pytest.mark.parametrize("spec", ["{}", "{}/**/*.txt"])
def test_rows_are_not_written_into_their_corpus(corpus, tmp_path, spec):
  with pytest.raises(InputError, match="lies in the corpus itself"):
    run(spec.format(tmp_path), rows=str(tmp_path / "deep" / "rows"))
  run(f"{tmp_path}/*.txt", rows=str(tmp_path / "deep" / "rows"))


def test_what_a_killed_merge_left_is_cleared_up(corpus, tmp_path):
  folder = tmp_path / "rows"
  run(corpus, rows=str(folder))
  left = tmp_path / ".rows.unfinished"
  left.mkdir()
  run(corpus, rows=str(folder))
  assert not left.exists()


def test_messages_cannot_command_a_terminal(tmp_path):
  (tmp_path / "t.csv").write_text("a\x1b]0;owned\x07,b\n1,2\n")
  verb = start_verb(str(tmp_path / "t.csv"), tmp_path)
  _, err = verb.communicate()
  assert verb.returncode == 3 and "owned" in err
  assert "\x1b" not in err and "\x07" not in err
