"""Building rows: whole or nothing, whatever happens on the way."""

import dataclasses
import multiprocessing
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from support.small_rows import (
  OPTIONS,
  TOKENIZER,
  contents,
  letters,
  write,
  write_rows,
)
from support.texts import FakeCorpus, make_texts
from truenegs_jax.data.corpus.corpus import Meter
from truenegs_jax.data.rows import (
  build_rows,
  chunks,
  merge_chunks,
  worker_pool,
)
from truenegs_jax.data.rows.rows_folder import open_rows
from truenegs_jax.runtime.errors import DataError, DiskError, InputError


def left_in(folder) -> list[str]:
  """What is in a folder beside the files of locks."""
  names = (path.name for path in folder.iterdir())
  return sorted(name for name in names if not name.endswith(".lock"))


class Broken:
  """Texts that end in an error, at every reading."""

  def __init__(self, error, count):
    self.error, self.count = error, count

  def __iter__(self):
    yield from make_texts(self.count)
    raise self.error


@pytest.mark.parametrize(
  "texts, message",
  [
    ([], "0 rows"),
    (["\x01", "\u200e\n\x02"], "0 rows"),
    (300, "damaged"),
    (60, "changed while it was read"),
  ],
)
def test_unusable_text_is_refused_and_leaves_nothing(
  tmp_path, monkeypatch, texts, message
):
  monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 100)
  if message == "damaged":
    texts = Broken(DataError("damaged"), texts)
  elif "changed" in message:
    monkeypatch.setattr(FakeCorpus, "identity", lambda self: ["changed"])
    texts = make_texts(texts)
  with pytest.raises(DataError, match=message):
    write(tmp_path / "rows", texts)
  assert not left_in(tmp_path)


def same_folders(a, b) -> bool:
  names = sorted(p.name for p in a.iterdir())
  assert names == sorted(p.name for p in b.iterdir())
  return all((a / n).read_bytes() == (b / n).read_bytes() for n in names)


@pytest.fixture
def small_chunks(monkeypatch):
  monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 500)


@pytest.fixture
def whole(tmp_path, small_chunks):
  """The rows of 200 documents in some 80 chunks, made in one go."""
  write(tmp_path / "whole", make_texts(200))
  return tmp_path / "whole"


def run(target, **how):
  return write_rows(
    target, FakeCorpus(make_texts(200)), TOKENIZER, OPTIONS, **how
  )


def test_rows_do_not_depend_on_chunks_or_processes(tmp_path, whole):
  run(tmp_path / "three", num_workers=3)
  assert same_folders(whole, tmp_path / "three")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_shares_merge_to_the_rows_of_one_go(tmp_path, whole, order):
  target, corpus = tmp_path / "shared", FakeCorpus(make_texts(200))
  for place, index in enumerate(order):
    built = build_rows.build_chunks(
      target, corpus, TOKENIZER, OPTIONS, share=(index, 3)
    )
    assert built.is_complete() == (place == 2)
    assert not target.exists()
  merge_chunks.merge(target, built)
  assert same_folders(whole, target)


KILLED = """
import os, runpy, signal, sys
sys.path.insert(0, "tests")
from truenegs_jax.data.rows import chunks
chunks.CHUNK_CHARACTERS = 500
run = runpy.run_path("tests/data/rows/test_build_rows.py")["run"]
seen = []
def die(*progress):
  seen.append(progress)
  if len(seen) == int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL)
run(sys.argv[1], progress=die)
"""


def test_a_killed_preparation_is_invisible_and_goes_on(
  tmp_path, whole, monkeypatch
):
  target = tmp_path / "rows"
  for count in (1, 30):
    done = subprocess.run(
      [sys.executable, "-c", KILLED, str(target), str(count)],
      env={**os.environ, "PYTHONPATH": "."},
      cwd=str(pathlib.Path(__file__).parents[3]),
    )
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(DataError, match="is no rows folder"):
      open_rows(target, "train")
  built = []
  monkeypatch.setattr(
    chunks,
    "build_chunk",
    lambda spec, encoder, chunk, f=chunks.build_chunk: (
      built.append(chunk.number) or f(spec, encoder, chunk)
    ),
  )
  seen = []
  run(target, progress=lambda *p: seen.append(p))
  assert built and built[0] >= 29  # what was done is not done again
  assert len(seen) > len(built) + 29  # and the skipping of it is shown
  assert same_folders(whole, target)
  assert left_in(tmp_path) == ["rows", "whole"]


def test_what_other_options_left_is_not_gone_on_with(tmp_path, whole):
  target = tmp_path / "rows"
  other = dataclasses.replace(OPTIONS, seed=1)
  corpus = FakeCorpus(make_texts(200))
  build_rows.build_chunks(target, corpus, TOKENIZER, other)
  run(target)
  assert same_folders(whole, target)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_chunk_is_made_anew_the_next_time(tmp_path, whole, damage):
  target, corpus = tmp_path / "rows", FakeCorpus(make_texts(200))
  built = build_rows.build_chunks(target, corpus, TOKENIZER, OPTIONS)
  path = chunks.chunk_path(built.spec.folder, 7)
  data = bytearray(path.read_bytes())
  data[300] ^= 1  # of the first array
  path.write_bytes({"cut": data[:-50], "flip": data, "empty": b""}[damage])
  with pytest.raises(DiskError, match="piece-000007.npz was damaged"):
    merge_chunks.merge(target, built)
  run(target)
  assert same_folders(whole, target)


class Mixture(FakeCorpus):
  """Documents 0 to 9, read three times over."""

  def read(self, meter):
    for repeat in range(3):
      for document in super().read(meter):
        yield document._replace(repeat=repeat)


def test_what_is_held_out_is_never_trained_on(tmp_path, small_chunks):
  texts = [" ".join([letter] * 30) for letter in "abcdefghijklmnopqrst"]
  write_rows(tmp_path / "rows", Mixture(texts), TOKENIZER, OPTIONS)
  held = letters(contents(tmp_path / "rows", "held_out"))
  train = letters(contents(tmp_path / "rows", "train"))
  assert held == "j" * 30 + "t" * 30
  assert not set(held) & set(train) and train.count("a") == 90


def test_rows_of_repeated_documents_are_not_held_out(tmp_path):
  with pytest.raises(DataError, match="less than one of any part"):
    write_rows(tmp_path / "rows", Mixture(make_texts(5)), TOKENIZER, OPTIONS)


def test_a_killed_worker_is_said_and_what_is_done_stays(tmp_path, whole):
  target = tmp_path / "rows"

  def kill(*_):
    for child in multiprocessing.active_children():
      os.kill(child.pid, signal.SIGKILL)

  with pytest.raises(InputError, match="data.workers=2: a worker process"):
    run(target, num_workers=2, progress=kill)
  assert not target.exists()
  run(target)
  assert same_folders(whole, target)


def test_workers_end_with_a_killed_parent(tmp_path):
  code = KILLED.replace("progress=die", "progress=die, num_workers=2").replace(
    "os.kill(os.getpid()",
    "import multiprocessing;"
    "print(*[c.pid for c in multiprocessing.active_children()], flush=True);"
    "os.kill(os.getpid()",
  )
  done = subprocess.run(
    [sys.executable, "-c", code, str(tmp_path / "rows"), "2"],
    env={**os.environ, "PYTHONPATH": "."},
    cwd=str(pathlib.Path(__file__).parents[3]),
    stdout=subprocess.PIPE,
    text=True,
  )
  workers = [int(pid) for pid in done.stdout.split()]
  assert len(workers) == 2
  deadline = time.monotonic() + 20
  while any(os.path.exists(f"/proc/{pid}") for pid in workers):
    assert time.monotonic() < deadline, "workers outlive their parent"
    time.sleep(0.1)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  try:
    with pytest.raises(DiskError, match="could not be written: File too large"):
      write(tmp_path / "rows", make_texts(3000))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)
  assert not (tmp_path / "rows").exists()
  write(tmp_path / "rows", make_texts(3000))
  assert left_in(tmp_path) == ["rows"]


def test_foreign_files_are_never_replaced(tmp_path):
  (tmp_path / "rows").mkdir()
  (tmp_path / "rows" / "mine").write_text("x")
  with pytest.raises(DataError, match="exists and is not empty"):
    write(tmp_path / "rows", make_texts(3))
  (tmp_path / "file").write_text("x")
  with pytest.raises(DataError, match="exists and is not empty"):
    write(tmp_path / "file", make_texts(3))
  with pytest.raises(DiskError, match="could not be written"):
    write(tmp_path / "file" / "rows", make_texts(3))
  assert (tmp_path / "rows" / "mine").read_text() == "x"


def begin_often(folder, gate, results):
  for _ in range(40):
    gate.wait()
    temporary = build_rows.open_unfinished(folder, OPTIONS, share=(0, 3))
    (temporary / f"piece-{os.getpid()}").write_text("done")
    gate.wait()
    results.put(len(list(temporary.glob("piece-*"))))
    if gate.wait() == 0:
      shutil.rmtree(temporary)


def test_jobs_that_begin_at_once_lose_nothing(tmp_path):
  spawn = multiprocessing.get_context("spawn")
  gate, results = spawn.Barrier(3), spawn.Queue()
  jobs = [
    spawn.Process(target=begin_often, args=(tmp_path / "rows", gate, results))
    for _ in range(3)
  ]
  for job in jobs:
    job.start()
  counts = [results.get(timeout=60) for _ in range(3 * 40)]
  for job in jobs:
    job.join()
  assert counts == [3] * 120 and all(job.exitcode == 0 for job in jobs)


def test_a_share_of_other_options_is_refused(tmp_path):
  corpus, target = FakeCorpus(make_texts(20)), tmp_path / "rows"
  build_rows.build_chunks(target, corpus, TOKENIZER, OPTIONS, share=(0, 2))
  other = dataclasses.replace(OPTIONS, seed=1)
  with pytest.raises(DataError, match="other options or of another text"):
    build_rows.build_chunks(target, corpus, TOKENIZER, other, share=(1, 2))


def test_a_failing_disk_costs_no_chunk(tmp_path, small_chunks):
  error, target = DataError("cannot be read"), tmp_path / "rows"
  error.__cause__ = OSError(5, "EIO")
  with pytest.raises(DataError, match="cannot be read"):
    write(target, Broken(error, 100))
  assert len(list((tmp_path / ".rows.unfinished").glob("piece-*"))) > 10
  assert not target.exists()


@pytest.mark.parametrize("share", [0.01, 0.02, 0.1, 0.15, 0.3, 0.4, 0.5])
def test_the_asked_share_of_documents_is_held_out(share):
  options = dataclasses.replace(OPTIONS, held_out=share)
  corpus = FakeCorpus(["a"] * 2000)
  cut = chunks.cut_corpus(corpus, options, Meter(), by="documents")
  splits = [split for chunk in cut for _, split, _ in chunk.documents]
  assert splits.count("held_out") == round(2000 * share)
  # Evenly: any run of n documents holds its share of them.
  held = np.cumsum([split == "held_out" for split in splits])
  expected = share * np.arange(1, 2001)
  assert abs(held - expected).max() <= 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_another_thread_takes_is_held_too(number):
  """As Python has the main thread handle it, whose mask then says nothing."""
  handled, taken = [], threading.Event()
  before = signal.signal(number, lambda *_: handled.append(True))
  thread = threading.Thread(target=taken.wait)  # blocks no signal
  thread.start()
  try:
    with worker_pool._signals_held():
      signal.pthread_kill(thread.ident, number)
      for _ in range(100):
        time.sleep(0.001)
      assert not handled
    assert handled == [True]
  finally:
    taken.set()
    thread.join()
    signal.signal(number, before)
