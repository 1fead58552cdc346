"""A rows folder is complete or absent, whatever interrupts its preparation."""

import dataclasses
import itertools
import multiprocessing
import os
import pathlib
import resource
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
  build_shards,
  read_files,
  read_letters,
  write_rows,
  write_texts,
)
from support.texts import make_corpus, make_texts
from truenegs_jax.data import engines, shards
from truenegs_jax.data.corpus.corpus import Corpus, ReadCounts
from truenegs_jax.data.rows import open_rows
from truenegs_jax.runtime.errors import DataError, DiskError, InputError

ROOT = str(pathlib.Path(__file__).parents[3])


def list_without_locks(folder) -> list[str]:
  names = (path.name for path in folder.iterdir())
  return sorted(name for name in names if not name.endswith(".lock"))


class FailingTexts:
  """Texts that end with an error, each time they are read."""

  def __init__(self, error, count):
    self.error, self.count = error, count

  def __iter__(self):
    yield from make_texts(self.count)
    raise self.error


@pytest.mark.parametrize(
  "texts, message",
  [
    ([], "has no text"),
    (["\x01", "\u200e\n\x02"], "0 rows"),
    (FailingTexts(DataError("damaged"), 300), "damaged"),
    (make_texts(60), "changed while it was read"),
  ],
)
def test_unusable_text_is_rejected_and_leaves_no_files(
  tmp_path, monkeypatch, texts, message
):
  monkeypatch.setattr(shards, "CHUNK_CHARACTERS", 100)
  if "changed" in message:
    identities = itertools.count()
    monkeypatch.setattr(Corpus, "identity", lambda _: [next(identities)])
  with pytest.raises(DataError, match=message):
    write_texts(tmp_path / "rows", texts)
  assert not list_without_locks(tmp_path)


@pytest.fixture
def small_shards(monkeypatch):
  monkeypatch.setattr(shards, "CHUNK_CHARACTERS", 500)
  monkeypatch.setattr(shards, "SHARD_CHUNKS", 4)


@pytest.fixture
def expected_files(tmp_path, small_shards):
  """The rows of 200 documents in some 20 shards, built by one process."""
  write_texts(tmp_path / "expected", make_texts(200))
  return read_files(tmp_path / "expected")


def build_200(folder, options=OPTIONS, **build_options):
  corpus = make_corpus(make_texts(200))
  return build_shards(folder, corpus, TOKENIZER, options, **build_options)


def write_200(folder, **build_options):
  return write_rows(folder, make_corpus(make_texts(200)), **build_options)


def test_rows_do_not_depend_on_the_number_of_workers(tmp_path, expected_files):
  write_200(tmp_path / "three", num_workers=3)
  assert read_files(tmp_path / "three") == expected_files


# Arguments: the folder, and after how many calls of `progress` to die.
KILLED_SCRIPT = """
import os, runpy, signal, sys
sys.path.insert(0, "tests")
from truenegs_jax.data import shards
shards.CHUNK_CHARACTERS, shards.SHARD_CHUNKS = 500, 4
tests = runpy.run_path("tests/data/test_steps.py")
calls = []
def die(*progress):
  calls.append(progress)
  if len(calls) == int(sys.argv[2]):
    os.kill(os.getpid(), signal.SIGKILL)
tests["write_200"](sys.argv[1], progress=die)
"""


def run_killed_script(script, *args, **options):
  return subprocess.run(
    [sys.executable, "-c", script, *map(str, args)],
    env={**os.environ, "PYTHONPATH": "."},
    cwd=ROOT,
    **options,
  )


def test_a_killed_preparation_leaves_no_folder_and_is_resumed(
  tmp_path, expected_files, monkeypatch
):
  folder = tmp_path / "rows"
  for count in (1, 30):
    result = run_killed_script(KILLED_SCRIPT, folder, count)
    assert result.returncode == -signal.SIGKILL
    with pytest.raises(DataError, match="is not a rows folder"):
      open_rows(folder, "train")
  built, write_shard = [], shards.write_shard

  def record_and_write(spec, chunks):
    built.append(chunks[0].number // 4)
    write_shard(spec, chunks)

  monkeypatch.setattr(shards, "write_shard", record_and_write)
  progress = []
  write_200(folder, progress=lambda *args: progress.append(args))
  assert built[0] == 7  # earlier shards are not built again
  assert len(progress) > 4 * len(built) + 20  # but they are shown
  assert read_files(folder) == expected_files
  assert list_without_locks(tmp_path) == ["expected", "rows"]


def test_shards_of_other_options_are_not_used(tmp_path, expected_files):
  folder = tmp_path / "rows"
  build_200(folder, dataclasses.replace(OPTIONS, seed=1))
  write_200(folder)
  assert read_files(folder) == expected_files


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone", "record"])
def test_a_damaged_shard_is_built_again(tmp_path, expected_files, damage):
  folder = tmp_path / "rows"
  shard_set = build_200(folder)
  path = shards.unfinished_folder(folder) / "rows/train-00007.types.npy"
  if damage == "record":
    path = shard_set.spec.record_path(7)
  data = bytearray(path.read_bytes())
  data[-1] ^= 1
  changed = {"cut": data[:-50], "empty": b""}
  path.write_bytes(changed.get(damage, data))
  if damage == "gone":
    path.unlink()
  with pytest.raises(DiskError, match=f"{path}.* the same command again"):
    write_200(folder)
  if damage == "record":
    path.unlink()  # as the message says
  write_200(folder)
  assert read_files(folder) == expected_files


def make_mixture(texts, others, *, stopping="all", num_units=1) -> Corpus:
  """Returns a corpus that reads the first texts three times as often."""
  parts = [make_corpus(x, num_units).parts[0] for x in (texts, others)]
  return Corpus(tuple(parts), (0.75, 0.25), "strict", stopping)


def test_held_out_documents_are_never_trained_on(tmp_path, small_shards):
  texts = [" ".join([letter] * 30) for letter in "abcdefghijklmnopqrst"]
  corpus = make_mixture(texts, ["z " * 80] * 9)
  manifest = write_rows(tmp_path / "rows", corpus)
  assert manifest["parts"][0]["passes"] >= 3
  held_out = read_letters(tmp_path / "rows", "held_out")
  train = read_letters(tmp_path / "rows", "train")
  assert held_out == "j" * 30 + "t" * 30
  assert not set(held_out) & set(train) and train.count("a") >= 90


def test_rows_of_repeated_documents_are_not_held_out(tmp_path):
  corpus = make_mixture(make_texts(5), make_texts(9))
  with pytest.raises(DataError, match="less than one document of any part"):
    write_rows(tmp_path / "rows", corpus)


CORPORA = {
  "one unit": lambda: make_corpus(make_texts(100)),
  "units": lambda: make_corpus(make_texts(100), num_units=7),
  "parts": lambda: Corpus(
    make_corpus(make_texts(60), num_units=3).parts
    + make_corpus(make_texts(80, seed=1), num_units=5).parts
  ),
  "mixture": lambda: make_mixture(
    make_texts(60), make_texts(90, seed=1), num_units=4
  ),
  "mixture that ends first": lambda: make_mixture(
    make_texts(120), make_texts(90, seed=1), num_units=4, stopping="first"
  ),
  "no held-out document": lambda: make_corpus(make_texts(9), num_units=2),
}


PACKED = pytest.param("packed", marks=pytest.mark.slow)


def run_backwards(steps):
  """Runs the items of each step in this process, the last one first."""
  for step in steps:
    for item in [*step.list_items()][::-1]:
      step.function(item)


@pytest.mark.parametrize("layout", ["electra", PACKED])
@pytest.mark.parametrize("name", CORPORA)
def test_an_engine_builds_the_rows_of_one_process(
  tmp_path, monkeypatch, small_shards, name, layout
):
  monkeypatch.setattr(shards, "SHARD_CHUNKS", 4)
  corpus = CORPORA[name]()
  options = dataclasses.replace(
    OPTIONS, layout=layout, sources=corpus.identity()
  )
  write_rows(tmp_path / "plain", corpus, options=options)
  engine = {"engine": run_backwards, "open_corpus": lambda: corpus}
  write_rows(tmp_path / "engine", corpus, options=options, **engine)
  assert read_files(tmp_path / "engine") == read_files(tmp_path / "plain")


def test_an_item_reads_only_its_units(tmp_path, monkeypatch, small_shards):
  monkeypatch.setattr(shards, "SHARD_CHUNKS", 2)
  corpus = make_corpus(make_texts(200), num_units=20)
  [part], units = corpus.parts, []

  def read(state, unit):
    units.append(unit)
    return part.read(state, unit)

  corpus = Corpus((dataclasses.replace(part, read=read),))

  def run_items(steps):
    count, build = steps
    for unit in count.list_items():
      count.function(unit)
    assert units[-20:] == list(range(20))
    units.clear()
    for chunks in build.list_items():
      assert not units
      build.function(chunks)
      assert units == [*range(units[0], units[-1] + 1)] and len(units) < 5
      units.clear()

  engine = {"engine": run_items, "open_corpus": lambda: corpus}
  write_rows(tmp_path / "rows", corpus, **engine)


@pytest.mark.slow
def test_a_killed_worker_keeps_the_shards(tmp_path, expected_files):
  folder = tmp_path / "rows"

  def kill_workers(*_):
    for child in multiprocessing.active_children():
      os.kill(child.pid, signal.SIGKILL)

  with pytest.raises(InputError, match="data.workers=2: a worker process"):
    write_200(folder, num_workers=2, progress=kill_workers)
  assert not folder.exists()
  write_200(folder)
  assert read_files(folder) == expected_files


@pytest.mark.slow
def test_workers_exit_when_their_parent_is_killed(tmp_path):
  script = KILLED_SCRIPT.replace(
    "progress=die", "progress=die, num_workers=2"
  ).replace(
    "os.kill(os.getpid()",
    "import multiprocessing;"
    "print(*[c.pid for c in multiprocessing.active_children()], flush=True);"
    "os.kill(os.getpid()",
  )
  result = run_killed_script(
    script, tmp_path / "rows", 8, stdout=subprocess.PIPE, text=True
  )
  workers = [int(pid) for pid in result.stdout.split()]
  assert len(workers) == 2
  deadline = time.monotonic() + 20
  while any(os.path.exists(f"/proc/{pid}") for pid in workers):
    assert time.monotonic() < deadline, "workers outlive their parent"
    time.sleep(0.1)


def test_a_full_disk_is_reported_and_leaves_no_folder(tmp_path, small_shards):
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
  handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  try:
    with pytest.raises(DiskError, match="could not be written: File too large"):
      write_texts(tmp_path / "rows", make_texts(400))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)
  assert not (tmp_path / "rows").exists()
  write_texts(tmp_path / "rows", make_texts(400))
  assert list_without_locks(tmp_path) == ["rows"]


def test_other_files_are_never_replaced(tmp_path):
  (tmp_path / "rows").mkdir()
  (tmp_path / "rows" / "mine").write_text("x")
  (tmp_path / "file").write_text("x")
  for name in ("rows", "file"):
    with pytest.raises(DataError, match="exists and is not empty"):
      write_texts(tmp_path / name, make_texts(3))
  with pytest.raises(DiskError, match="could not be written"):
    write_texts(tmp_path / "file" / "rows", make_texts(3))
  assert (tmp_path / "rows" / "mine").read_text() == "x"


def test_a_disk_error_keeps_all_shards(tmp_path, small_shards):
  error, folder = DataError("cannot be read"), tmp_path / "rows"
  error.__cause__ = OSError(5, "EIO")
  with pytest.raises(DataError, match="cannot be read"):
    write_texts(folder, FailingTexts(error, 100))
  assert len(list((tmp_path / ".rows.unfinished").glob("shard-*"))) > 5
  assert not folder.exists()


@pytest.mark.parametrize("share", [0.01, 0.02, 0.1, 0.15, 0.3, 0.4, 0.5])
def test_the_requested_share_of_documents_is_held_out(share):
  options = dataclasses.replace(OPTIONS, held_out=share)
  corpus = make_corpus(["a"] * 2000)
  spec = shards.ShardSpec(pathlib.Path(), TOKENIZER, options, "documents")
  cut = spec.cut(corpus, ReadCounts())
  splits = [split for chunk in cut for _, split, _ in chunk.documents]
  assert splits.count("held_out") == round(2000 * share)
  # Evenly spaced: the first n documents contain n * share of them.
  held_out = np.cumsum([split == "held_out" for split in splits])
  expected = share * np.arange(1, 2001)
  assert abs(held_out - expected).max() <= 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_received_by_another_thread_is_deferred_too(number):
  """Python runs its handler in the main thread, whatever that thread blocks."""
  handled, stop = [], threading.Event()
  handler = signal.signal(number, lambda *_: handled.append(True))
  thread = threading.Thread(target=stop.wait)  # blocks no signal
  thread.start()
  try:
    with engines.defer_signals():
      signal.pthread_kill(thread.ident, number)
      for _ in range(100):
        time.sleep(0.001)
      assert not handled
    assert handled == [True]
  finally:
    stop.set()
    thread.join()
    signal.signal(number, handler)
