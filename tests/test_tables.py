"""The synonym table of a run is the one that its config names."""

import io
import os

from rich.console import Console

from truenegs_jax import tables
from truenegs_jax.configs import electra_small
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.train import startup

WORDS = ("primary", "main", "chief", "stay")
TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True
)


def write_vectors(path, *rows):
  lines = [f"{word} {x} {y}" for word, (x, y) in zip(WORDS, rows, strict=True)]
  path.write_text("\n".join(lines) + "\n")
  return str(path)


def find(config, workdir):
  return tables.find_or_build(
    config, workdir, TOKENIZER, Console(file=io.StringIO())
  )


def test_vectors_of_another_file_make_another_table(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  c = electra_small.get_config("hc_glove")
  path = tmp_path / "vectors.txt"
  c.negatives.vectors = write_vectors(path, (1, 0), (2, 1), (3, 1), (0, 1))
  first = find(c, tmp_path)
  assert find(c, tmp_path).fingerprint == first.fingerprint
  table_lib.save_table(first, tmp_path / startup.SYNONYMS)

  write_vectors(path, (1, 0), (0, 0), (3, 1), (0, 1))  # "main" has none now
  os.utime(path, ns=(0, 0))
  second = find(c, tmp_path)
  assert second.num_rows == 3 != first.num_rows

  # One that was not saved to the end is none.
  (tmp_path / "checkpoints" / "10.orbax-checkpoint-tmp").mkdir(parents=True)
  assert find(c, tmp_path).fingerprint == second.fingerprint

  # What a checkpoint was made with stays, with or without the file.
  (tmp_path / "checkpoints" / "10").mkdir()
  path.unlink()
  assert find(c, tmp_path).fingerprint == first.fingerprint
