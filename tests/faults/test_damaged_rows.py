"""A damaged rows folder ends a run before it exports, naming the file."""

import os
import pathlib
import random
import re
import shutil
import types

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from support.faults import tries
from support.small_rows import TOKENIZER, write_texts
from support.texts import make_texts
from truenegs_jax.data.rows import rows_folder, shards
from truenegs_jax.pretrain import loop, run
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.workdir.checkpoints import Checkpoints


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
  """A folder with several shards."""
  folder = tmp_path_factory.mktemp("intact") / "rows"
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(shards, "SHARD_CHUNKS", 1)
    patch.setattr(shards, "CHUNK_CHARACTERS", 4000)
    write_texts(folder, make_texts(60))
  use_rows(folder)
  return folder


@pytest.fixture
def folder(intact, tmp_path):
  return shutil.copytree(intact, tmp_path / "rows")


def use_rows(folder, start=0.0) -> None:
  """Reads all rows as a run does, and ends."""
  rows_folder.load_vocabulary(folder)
  verification = rows_folder.Verification(folder, start=start)
  for split in rows_folder.SPLITS:
    rows = rows_folder.open_rows(folder, split, verification)
    rows.take(np.arange(len(rows)))
  rows.finish_verification()


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
    use_rows(folder, start=rng.random())


@pytest.mark.parametrize("start", [0.0, 0.9])  # 0.9 skips the file at first
def test_damage_is_found_while_rows_are_read(folder, start):
  path = folder / "train-00001.types.npy"
  flip_bit(path, -1, 0)  # 0 or 1 as before
  verification = rows_folder.Verification(folder, start=start)
  rows = rows_folder.open_rows(folder, "train", verification)
  verification._thread.join(timeout=100)
  with pytest.raises(DataError, match="train-00001.types.npy"):
    rows.take(np.array([0]))


@pytest.mark.parametrize(
  ("verified", "suspects"),
  [([], []), ([0, 0], ["1, 2"]), ([0, 1, 0], ["3"]), ([0, 1], [])],
)
def test_damage_ends_a_run_and_names_suspect_steps(
  folder, tmp_path, verified, suspects
):
  workdir, path = tmp_path / "run", folder / "held_out-00000.types.npy"
  flip_bit(path, -1, 0)
  if verified:
    checkpoints = Checkpoints(workdir / "checkpoints", keep=9)
    for step, flag in enumerate(verified, 1):
      description = {loop.ROWS_VERIFIED: bool(flag)}
      checkpoints.save(step, {"x": jnp.ones(3)}, description)
    checkpoints.wait()
    checkpoints.close()
  verification = rows_folder.Verification(folder)
  rows = rows_folder.open_rows(folder, "train", verification)
  assert not rows.is_verified
  setup = types.SimpleNamespace(inputs=types.SimpleNamespace(train_rows=rows))
  result = types.SimpleNamespace(setup=setup, console=Console(quiet=True))
  with pytest.raises(DataError, match=path.name) as error:
    run.finish_run(workdir, result)
  assert re.findall("Steps (.*) in '", str(error.value)) == suspects
  names = [path.name for path in workdir.glob("*")]
  assert names == ["checkpoints"] * bool(verified)  # nothing was written


@pytest.mark.parametrize("change", ["edited", "replaced", "same", "removed"])
def test_a_file_that_changes_after_it_was_verified_is_verified_again(
  folder, tmp_path, change
):
  path = folder / "train-00001.types.npy"
  verification = rows_folder.Verification(folder)
  rows = rows_folder.open_rows(folder, "train", verification)
  verification._thread.join(timeout=100)
  assert rows.is_verified
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
  assert rows.is_verified == (change == "removed")  # a checkpoint says so
  if change in ("same", "removed"):
    rows.finish_verification()
    assert rows.is_verified
  else:
    with pytest.raises(DataError, match=path.name):
      rows.finish_verification()


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
