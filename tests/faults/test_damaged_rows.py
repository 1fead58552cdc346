"""A damaged rows folder ends a run before its first step, naming the file."""

import pathlib
import random
import shutil

import numpy as np
import pytest

from support.faults import tries
from support.small_rows import TOKENIZER, write_texts
from support.texts import make_texts
from truenegs_jax.data import build
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.runtime.errors import DataError, InputError


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
  """Reads all rows as a run does."""
  rows_folder.load_vocabulary(folder)
  rows_folder.verify_rows(folder)
  for split in rows_folder.SPLITS:
    rows = rows_folder.open_rows(folder, split)
    rows.take(np.arange(len(rows)))


def choose_byte(folder, rng) -> tuple[pathlib.Path, int]:
  """Draws a file and a byte of it; each byte of the folder is as likely."""
  sizes = {path: path.stat().st_size for path in sorted(folder.iterdir())}
  path = rng.choices(list(sizes), list(sizes.values()))[0]
  return path, rng.randrange(sizes[path])


@pytest.mark.parametrize("seed", tries(12, 100))
def test_a_flipped_bit_is_found(folder, seed):
  rng = random.Random(seed)
  path, at = choose_byte(folder, rng)
  data = bytearray(path.read_bytes())
  data[at] ^= 1 << rng.randrange(8)
  path.write_bytes(data)
  with pytest.raises((DataError, InputError), match=path.name):
    use_rows(folder)


def test_another_vocabulary_is_refused(folder):
  *specials, first, second = TOKENIZER.vocab[:7]
  words = [*specials, second, first, *TOKENIZER.vocab[7:]]
  (folder / "vocab.txt").write_text("\n".join(words) + "\n")
  with pytest.raises(DataError, match="damaged or missing files: vocab.txt"):
    rows_folder.load_vocabulary(folder)


@pytest.mark.parametrize("size", [-1, 100, 0, None])
def test_damaged_unigrams_are_found_at_the_start(folder, size):
  path = folder / rows_folder.UNIGRAMS
  data = path.read_bytes()
  path.unlink() if size is None else path.write_bytes(data[:size])
  with pytest.raises(DataError, match=rows_folder.UNIGRAMS):
    rows_folder.open_rows(folder, "train")
