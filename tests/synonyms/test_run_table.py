"""Tests the tables of runs: their options, and what resumed runs load."""

import dataclasses
import io
import itertools
import types

import pytest
import tokenizers
from rich.console import Console
from tests.support.tokenizer_files import write_vocabulary
from tokenizers import models, normalizers

from truenegs_jax.data.tokenizer import (
  SPECIALS,
  Tokenizer,
  load_tokenizer,
)
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import run_table
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable

WORDS = ("primary", "main", "chief", "stay")
TOKENS = ("[PAD]", "[UNK]", *WORDS)
TOKENIZER = Tokenizer(TOKENS, True, True, pad=0, unk=1, cls=0, sep=0, mask=0)
PAIRS = [("primary", "main"), ("main", "primary"), ("stay", "chief")]
SWITCHES = ("keep_stop_words", "symmetric", "include_self")


def write_vectors(path, *rows):
  lines = [f"{word} {x} {y}" for word, (x, y) in zip(WORDS, rows, strict=True)]
  path.write_text("\n".join(lines) + "\n")
  return path


def save_pairs(path, pairs, *, source="example"):
  """Saves and returns a table, for use as the source `table`."""
  table = SynonymTable.from_pairs(pairs, TOKENS, source=source)
  table.save(path)
  return table


def load_or_build(request, saved=None, file=None):
  console = Console(file=file or io.StringIO())
  return run_table.load_or_build(
    request, TOKENIZER, saved=saved, console=console
  )


def table_pairs(table):
  """Returns the pairs of a table, as words."""
  keys = (divmod(key, table.vocab_size) for key in table.keys_Q.tolist())
  return {(TOKENS[a], TOKENS[b]) for a, b in keys}


def test_a_resumed_run_keeps_its_table_if_source_files_change(tmp_path):
  path = write_vectors(tmp_path / "v.txt", (1, 0), (2, 1), (3, 1), (0, 1))
  request = TableRequest(f"vectors path={path} top=10")
  first = load_or_build(request)
  saved = tmp_path / "synonyms.safetensors"
  first.save(saved)
  write_vectors(path, (1, 0), (0, 0), (3, 1), (0, 1))  # none for "main" now
  second = load_or_build(request)
  assert second.num_rows == 3 != first.num_rows
  path.unlink()
  assert load_or_build(request, saved).fingerprint == first.fingerprint


def test_a_resumed_run_needs_a_table_of_the_same_options(tmp_path):
  path, words = tmp_path / "t.safetensors", tmp_path / "words.txt"
  save_pairs(path, PAIRS)
  words.write_text("stay\n")
  request = TableRequest(f"table path={path}", stop_words=str(words))
  first = load_or_build(request)
  saved = tmp_path / "synonyms.safetensors"
  first.save(saved)
  path.unlink()  # so that nothing can be built
  assert load_or_build(request, saved).fingerprint == first.fingerprint
  changes = dict.fromkeys(SWITCHES, True) | {"stop_words": ""}
  for name, value in changes.items():
    with pytest.raises(InputError, match="no file '.*safetensors'"):
      load_or_build(dataclasses.replace(request, **{name: value}), saved)
  other = dataclasses.replace(request, sources=f"table path={path}2")
  with pytest.raises(InputError, match="no file '.*safetensors2'"):
    load_or_build(other, saved)
  # A file may be in another folder, and the list of stop words may be missing.
  words.unlink()
  moved = dataclasses.replace(
    request, sources="table path=elsewhere/t.safetensors"
  )
  assert load_or_build(moved, saved).fingerprint == first.fingerprint


def test_options_change_the_table_of_a_request(tmp_path):
  path, words = tmp_path / "t.safetensors", tmp_path / "words.txt"
  save_pairs(path, PAIRS)
  words.write_text("primary\n")
  request = TableRequest(f"table path={path}", stop_words=str(words))
  assert table_pairs(load_or_build(request)) == set(PAIRS[1:])
  symmetric, naive, kept = (
    load_or_build(dataclasses.replace(request, **{name: True}))
    for name in ("symmetric", "include_self", "keep_stop_words")
  )
  assert table_pairs(symmetric) == {*PAIRS[1:], ("chief", "stay")}
  assert table_pairs(naive) == {*PAIRS[1:], ("main", "main"), ("stay", "stay")}
  assert table_pairs(kept) == set(PAIRS)


def test_a_damaged_saved_table_is_reported_and_built_again(tmp_path):
  first = save_pairs(tmp_path / "t.safetensors", PAIRS)
  saved, printed = tmp_path / "synonyms.safetensors", io.StringIO()
  saved.write_bytes(b"PK cut off")
  request = TableRequest(f"table path={tmp_path}/t.safetensors")
  table = load_or_build(request, saved, file=printed)
  assert table.fingerprint == first.fingerprint
  assert "warning: not used: " in printed.getvalue()
  assert saved.name in printed.getvalue()


# Tokenizers of other libraries.

FOREIGN = ("[PAD]", "[UNK]", "<mask>", "eleve", "élève", "Main", "main", "##s")
FOREIGN_PAIRS = "Élève\tMain\nélève\tmain\neleve\t##s\n"


def make_backend(words=FOREIGN, **options):
  """Returns a WordPiece tokenizer of the library tokenizers."""
  ids = {word: i for i, word in enumerate(words)}
  backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
  backend.normalizer = normalizers.BertNormalizer(**options)
  return backend


@pytest.mark.parametrize(
  "lowercase, strip", [*itertools.product((True, False), repeat=2)]
)
def test_a_foreign_tokenizer_has_the_table_of_its_own_kind(
  tmp_path, lowercase, strip
):
  (tmp_path / "pairs.tsv").write_text(FOREIGN_PAIRS)
  sources = f"pairs path={tmp_path / 'pairs.tsv'}"
  options = {"lowercase": lowercase, "strip_accents": strip}
  backend = make_backend(**options)
  words = (*FOREIGN, "<added>")
  backend.add_tokens([words[-1]])
  fast = types.SimpleNamespace(backend_tokenizer=backend)  # transformers' field
  own = Tokenizer(words, **options, pad=0, unk=1, cls=0, sep=0, mask=2)
  expected = run_table.build_table(own, sources)
  assert expected.num_pairs >= 2
  for tokenizer in (backend, fast):
    built = run_table.build_table(tokenizer, sources)
    assert built.fingerprint == expected.fingerprint
    assert built.tokens == words


def test_what_is_no_fast_tokenizer_is_refused():
  for tokenizer, name in (("bert-base-uncased", "str"), (None, "NoneType")):
    with pytest.raises(InputError, match=f"{name} is not supported. Pass a"):
      run_table.build_table(tokenizer, "pairs path=x")


@pytest.mark.slow
def test_fast_tokenizers_of_transformers_are_read(tmp_path):
  (tmp_path / "pairs.tsv").write_text(FOREIGN_PAIRS)
  sources = f"pairs path={tmp_path / 'pairs.tsv'}"
  transformers = pytest.importorskip("transformers")
  write_vocabulary((*SPECIALS, *FOREIGN[3:]), tmp_path / "vocab.txt")
  own = load_tokenizer(str(tmp_path), lowercase=True)
  expected = run_table.build_table(own, sources)
  bert = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
  backend = bert.backend_tokenizer
  plain = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
  for tokenizer in (bert, plain):
    built = run_table.build_table(tokenizer, sources)
    assert built.fingerprint == expected.fingerprint
  bpe = tokenizers.Tokenizer(models.BPE())
  with pytest.raises(InputError, match="The vocabulary is empty"):
    run_table.build_table(
      transformers.PreTrainedTokenizerFast(tokenizer_object=bpe), sources
    )
