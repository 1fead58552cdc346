"""A damaged rows folder ends a run before it exports, naming the file."""

import errno
import gc
import os
import pathlib
import random
import re
import resource
import shutil
import time
import types

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from support.faults import tries
from support.small_rows import TOKENIZER, write_texts
from support.texts import make_texts
from truenegs_jax.data import batches, build
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.pretrain import run
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.workdir.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
  """A folder with several shards."""
  folder = tmp_path_factory.mktemp("intact") / "rows"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(build, "MIN_SLICE", 4000)
    write_texts(folder, make_texts(60))
  use_rows(folder)
  return folder


@pytest.fixture
def folder(intact, tmp_path):
  return shutil.copytree(intact, tmp_path / "rows")


def use_rows(folder) -> None:
  """Reads all rows as a run does, and ends."""
  rows_folder.load_vocabulary(folder)
  verification = rows_folder.Verification(folder)
  for split in rows_folder.SPLITS:
    rows = rows_folder.open_rows(folder, split)
    rows.take(np.arange(len(rows)))
  verification.finish()


def choose_byte(folder, rng) -> tuple[pathlib.Path, int]:
  """Draws a file and a byte of it; each byte of the folder is as likely."""
  sizes = {path: path.stat().st_size for path in sorted(folder.iterdir())}
  path = rng.choices(list(sizes), list(sizes.values()))[0]
  return path, rng.randrange(sizes[path])


def flip_bit(path, at, bit) -> None:
  data = bytearray(path.read_bytes())
  data[at] ^= 1 << bit
  path.write_bytes(data)


@pytest.mark.parametrize("seed", tries(12, 100))
def test_a_flipped_bit_is_found(folder, seed):
  rng = random.Random(seed)
  path, at = choose_byte(folder, rng)
  flip_bit(path, at, rng.randrange(8))
  with pytest.raises((DataError, InputError), match=path.name):
    use_rows(folder)


def test_damage_is_found_while_rows_are_read(folder):
  path = folder / "train-00000-0001.types.npy"
  flip_bit(path, -1, 0)  # 0 or 1 as before
  deadline = time.monotonic() + 100
  with pytest.raises(DataError, match=path.name):
    for _ in batches.batches(folder, 1, tokenizer=TOKENIZER):
      assert time.monotonic() < deadline


def test_lost_files_raise_errors(folder, monkeypatch):
  path = folder / "train-00000-0001.tokens.npy"
  rows = rows_folder.open_rows(folder, "train")
  row_B, content = rows.starts[1:2], path.read_bytes()
  tokens_BxL = rows.take(row_B)["tokens"]
  os.truncate(path, 0)  # a process that maps it would get SIGBUS
  with pytest.raises(DataError, match=path.name):
    rows.take(row_B)
  path.write_bytes(content)
  np.testing.assert_array_equal(rows.take(row_B)["tokens"], tokens_BxL)
  path.unlink()
  np.testing.assert_array_equal(rows.take(row_B)["tokens"], tokens_BxL)

  def fail(*_):
    raise OSError(errno.ESTALE, "Stale file handle")

  monkeypatch.setattr(os, "pread", fail)
  with pytest.raises(OSError) as error:
    rows.take(row_B)
  explained = errors.explain(error.value)
  assert isinstance(explained, errors.DiskError)
  assert f"'{path}' cannot be used: Stale" in str(explained)


def test_too_many_open_files_are_an_error_of_the_limit(folder):
  """A command raises its limit at the start; a library call may not."""
  number = resource.RLIMIT_NOFILE
  soft, hard = resource.getrlimit(number)
  gc.collect()  # files of other tests
  try:
    resource.setrlimit(number, (len(os.listdir("/proc/self/fd")), hard))
    with pytest.raises(OSError) as error:
      [rows_folder.open_rows(folder, "train") for _ in range(99)]
  finally:
    resource.setrlimit(number, (soft, hard))
  assert "Run `ulimit -n" in str(errors.explain(error.value))


@pytest.mark.parametrize(
  ("verified", "suspects"),
  [([], []), ([0, 0], ["1, 2"]), ([0, 1, 0], ["3"]), ([0, 1], [])],
)
def test_damage_ends_a_run_and_names_suspect_steps(
  folder, tmp_path, verified, suspects
):
  workdir, path = tmp_path / "run", folder / "held_out-00000-0000.types.npy"
  flip_bit(path, -1, 0)
  if verified:
    checkpoints = Checkpoints(workdir / "checkpoints", keep=9)
    for step, flag in enumerate(verified, 1):
      description = {run.ROWS_VERIFIED: bool(flag)}
      checkpoints.save(step, {"x": jnp.ones(3)}, description)
    checkpoints.wait()
    checkpoints.close()
  verification = rows_folder.Verification(folder)
  assert not verification.is_complete
  inputs = types.SimpleNamespace(verification=verification)
  trained = types.SimpleNamespace(inputs=inputs)
  with pytest.raises(DataError, match=path.name) as error:
    with run._name_suspect_steps(workdir):
      run._finish(trained, workdir, None, Console(quiet=True))
  assert re.findall("Steps (.*) in '", str(error.value)) == suspects
  names = [path.name for path in workdir.glob("*")]
  assert names == ["checkpoints"] * bool(verified)  # nothing was written


@pytest.mark.parametrize("change", ["edited", "replaced", "same", "removed"])
def test_a_file_that_changes_after_it_was_verified_is_verified_again(
  folder, tmp_path, change
):
  path = folder / "train-00000-0001.types.npy"
  verification = rows_folder.Verification(folder)
  verification._thread.join(timeout=100)
  assert verification.is_complete
  status = path.stat()
  if change == "removed":
    path.unlink()
  elif change == "same":
    shutil.copy(path, tmp_path / "copy").replace(path)
  else:
    file = shutil.copy(path, tmp_path / "copy")
    flip_bit(file, -1, 0)  # 0 or 1 as before
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    if change == "edited":
      path.write_bytes(file.read_bytes())
      os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
      file.replace(path)
  assert verification.is_complete == (change == "removed")
  if change in ("same", "removed"):
    verification.finish()
    assert verification.is_complete
  else:
    with pytest.raises(DataError, match=path.name):
      verification.finish()


def test_another_vocabulary_is_refused(folder):
  *specials, first, second = TOKENIZER.vocab[:7]
  words = [*specials, second, first, *TOKENIZER.vocab[7:]]
  (folder / "vocab.txt").write_text("\n".join(words) + "\n")
  with pytest.raises(InputError, match="vocab.txt' has the fingerprint"):
    use_rows(folder)


@pytest.mark.parametrize("size", [-1, 100, 0, None])
def test_damaged_unigrams_are_found_at_the_start(folder, size):
  path = folder / rows_folder.UNIGRAMS
  data = path.read_bytes()
  path.unlink() if size is None else path.write_bytes(data[:size])
  with pytest.raises(DataError, match=rows_folder.UNIGRAMS):
    rows_folder.open_rows(folder, "train")
