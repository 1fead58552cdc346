"""Building rows: whole or nothing, whatever happens on the way."""

import itertools
import os
import resource
import signal
import subprocess
import sys

import pytest
from test_rows import OPTIONS, TOKENIZER, make_texts, write

from truenegs_jax.data import build, rows
from truenegs_jax.data.rows import open_rows, verify_rows
from truenegs_jax.errors import DataError, DiskError


@pytest.mark.parametrize("texts", [[], ["\u200b"], ["\x01", "\u200e\n\x02"]])
def test_a_text_without_tokens_is_refused_and_leaves_nothing(tmp_path, texts):
  with pytest.raises(DataError, match="0 rows"):
    write(tmp_path / "rows", texts)
  assert not list(tmp_path.iterdir())


def test_a_failing_source_leaves_nothing(tmp_path):
  def texts():
    yield from make_texts(3000)
    raise DataError("damaged")

  class Damaged:
    def __iter__(self):
      return texts()

  with pytest.raises(DataError, match="damaged"):
    write(tmp_path / "rows", Damaged())
  assert not list(tmp_path.iterdir())


def test_a_killed_preparation_is_invisible_and_swept(tmp_path):
  code = (
    "import sys, os, signal; sys.path.insert(0, 'tests');"
    "import test_rows as t; from truenegs_jax.data import build, shards;"
    "shards.BUFFER_ROWS = 5;"
    "die = lambda p: os.kill(os.getpid(), signal.SIGKILL);"
    "build.PROGRESS_ROWS = 50;"
    "build.write_rows(sys.argv[1], t.make_texts(60), t.TOKENIZER,"
    " t.OPTIONS, progress=die)"
  )
  target = tmp_path / "rows"
  done = subprocess.run(
    [sys.executable, "-c", code, str(target)],
    env={**os.environ, "PYTHONPATH": "."},
    cwd=os.path.dirname(os.path.dirname(__file__)),
  )
  assert done.returncode == -signal.SIGKILL
  [left] = tmp_path.iterdir()
  assert left != target and any(left.iterdir())
  with pytest.raises(DataError, match="is no rows folder"):
    open_rows(target, "train")
  write(target, make_texts(60))
  assert list(tmp_path.iterdir()) == [target]
  verify_rows(target)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  try:
    with pytest.raises(DiskError, match="cannot be written: File too large"):
      write(tmp_path / "rows", make_texts(3000))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)
  assert not list(tmp_path.iterdir())


def test_foreign_files_are_never_replaced(tmp_path):
  (tmp_path / "rows").mkdir()
  (tmp_path / "rows" / "mine").write_text("x")
  with pytest.raises(DataError, match="exists and is not empty"):
    write(tmp_path / "rows", make_texts(3))
  (tmp_path / "file").write_text("x")
  with pytest.raises(DataError, match="exists and is not empty"):
    write(tmp_path / "file", make_texts(3))
  with pytest.raises(DiskError, match="cannot be written"):
    write(tmp_path / "file" / "rows", make_texts(3))
  assert (tmp_path / "rows" / "mine").read_text() == "x"


def test_progress_counts_documents_and_bytes(tmp_path):
  seen = []
  texts = make_texts(60)
  build.write_rows(
    tmp_path / "rows", texts, TOKENIZER, OPTIONS, progress=seen.append
  )
  last = seen[-1]
  assert last.documents == 60
  assert last.text_bytes == sum(len(t) for t in texts)
  assert last.rows == sum(
    len(open_rows(tmp_path / "rows", s)) for s in rows.SPLITS
  )
  assert all(a.rows <= b.rows for a, b in itertools.pairwise(seen))
