"""Trained vocabularies are reproducible, bounded and fit any language."""

import collections
import hashlib
import lzma
import os
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers

from support.texts import ODD_LINES, random_lines
from truenegs_jax.data import encoder as encoder_lib
from truenegs_jax.data import vocabulary as vocabulary_lib
from truenegs_jax.data.encoder import Encoder
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.data.vocabulary import train_vocabulary
from truenegs_jax.runtime.errors import InputError

CASES = [(True, True), (False, False), (True, False), (False, True)]


def ignore_progress(note):
  pass


def make_corpus() -> list[str]:
  rng = np.random.default_rng(3)
  roots = ["swan", "crane", "grebe", "été", "flüge", "天"]
  parts = (roots, ["", "s", "ing", "ed", "like"], ["", "", "."])
  words = ["".join(map(rng.choice, parts)) for _ in range(4000)]
  return [" ".join(words[i : i + 20]) for i in range(0, 4000, 20)]


def make_derived_words() -> list[str]:
  """Generates lines of words with prefixes and suffixes."""
  rng = np.random.default_rng(7)
  birds = ["swan", "grebe", "crane", "heron", "coot", "plover"]
  roots = [*birds, "été", "naïve", "façade", "o'clock", "x-ray", "3rd"]
  prefixes = ["un", "re", "", "", "over"]
  suffixes = ["", "s", "ing", "ed", "like", "ness", "less", "-like"]
  suffixes += ["(a)", ";", ","]
  parts = (prefixes, roots, suffixes)
  words = ["".join(map(rng.choice, parts)) for _ in range(27_000)]
  lines = [" ".join(words[i : i + 9]) for i in range(0, len(words), 9)]
  return [line.capitalize() for line in lines]


def library_counts(texts, *, lowercase, strip_accents) -> collections.Counter:
  """Counts words with `tokenizers`, one text at a time."""
  normalizer = normalizers.BertNormalizer(
    lowercase=lowercase, strip_accents=strip_accents
  )
  splitter = pre_tokenizers.BertPreTokenizer()
  counts: collections.Counter = collections.Counter()
  for text in texts:
    clean = normalizer.normalize_str(text.encode("utf-8", "ignore").decode())
    words = (word for word, _ in splitter.pre_tokenize_str(clean))
    counts.update(word for word in words if len(word) <= 100)
  return counts


@pytest.mark.parametrize("lowercase, strip_accents", CASES)
def test_word_counts_equal_those_of_the_library(lowercase, strip_accents):
  options = {"lowercase": lowercase, "strip_accents": strip_accents}
  corpus = make_corpus()
  texts = ODD_LINES + random_lines(400) + corpus + ["\n".join(corpus[:9])] * 3
  counts = vocabulary_lib._count_words(
    texts, normalizers.BertNormalizer(**options), ignore_progress
  )
  assert counts == library_counts(texts, **options)


@pytest.mark.parametrize(
  "lowercase, digest", [(True, "4002f993717e0176"), (False, "d8188aadc5570279")]
)
def test_vocabularies_do_not_change(lowercase, digest):
  vocab = train_vocabulary(make_derived_words(), size=300, lowercase=lowercase)
  assert hashlib.sha256("\n".join(vocab).encode()).hexdigest()[:16] == digest


def library_vocabulary(texts, size, *, lowercase, strip_accents) -> set[str]:
  bert = tokenizers.BertWordPieceTokenizer(
    lowercase=lowercase, strip_accents=strip_accents
  )
  bert.train_from_iterator(
    texts,
    vocab_size=size,
    min_frequency=2,
    limit_alphabet=vocabulary_lib.MAX_ALPHABET,
    show_progress=False,
    special_tokens=list(SPECIALS),
  )
  return set(bert.get_vocab())


@pytest.mark.slow
def test_entries_of_real_text_equal_those_of_the_library(real_data):
  path = real_data / "corpus" / "wikipedia-en-society.txt.xz"
  with lzma.open(path, "rt", encoding="utf-8") as file:
    texts = file.read(2_000_000).split("\n")
  options = {"lowercase": True, "strip_accents": True}
  vocab = set(train_vocabulary(texts, size=8192, **options))
  library_vocab = library_vocabulary(texts, 8192, **options)
  assert len(vocab) == 8192 and len(vocab - library_vocab) <= 8


def test_every_process_trains_the_same_vocabulary(tmp_path):
  code = (
    "import sys, pathlib;"
    "from truenegs_jax.data.vocabulary import *;"
    "texts = pathlib.Path(sys.argv[1]).read_text('utf-8').split('\\n');"
    "vocab = train_vocabulary(iter(texts), size=400, lowercase=True);"
    "sys.stdout.buffer.write('\\n'.join(vocab).encode())"
  )
  # Many letters and ties, for which the trainer of `tokenizers` alone is not
  # reproducible.
  rng = np.random.default_rng(0)
  letters = list("abcdefghijklmnopqrstuvwxyz")
  words = ["".join(rng.choice(letters, 6)) for _ in range(300)] * 2
  (tmp_path / "c.txt").write_text(" ".join(words) + "\n", encoding="utf-8")
  runs = [
    subprocess.run(
      [sys.executable, "-c", code, str(tmp_path / "c.txt")],
      env={**os.environ, "PYTHONHASHSEED": str(seed)},
      capture_output=True,
      check=True,
    )
    for seed in range(2)
  ]
  assert len({run.stdout for run in runs}) == 1
  assert len(runs[0].stdout.split(b"\n")) == 400
  assert not any(run.stderr for run in runs)


def test_text_without_spaces_gets_enough_characters():
  rng = np.random.default_rng(1)
  characters = rng.permutation([chr(c) for c in range(0x4E00, 0x6E00)])[:5000]
  ranks = np.minimum(rng.zipf(1.3, 400_000), 5000) - 1
  text = "".join(characters[ranks])
  lines = [text[i : i + 50] + "，" for i in range(0, len(text), 50)]
  vocab = train_vocabulary(lines, size=12_000, lowercase=True)
  tokenizer = make_tokenizer(vocab, lowercase=True)
  tokens_T, _ = Encoder(tokenizer).encode(lines)
  share = (tokens_T == tokenizer.unk).mean()
  assert 0 < share < 1.01 * (1 - vocabulary_lib.MIN_COVERAGE)
  small = train_vocabulary(lines, size=2400, lowercase=True)
  assert set(characters[:500]) < set(small)  # the most frequent ones
  assert len(small) < 2400


@pytest.mark.parametrize("texts", [[], [""], ["\x00 \u200b", "\ud800"]])
def test_a_text_without_words_gets_special_entries_only(texts):
  assert train_vocabulary(texts, size=50, lowercase=True) == SPECIALS


def test_a_size_that_is_too_small_is_rejected():
  with pytest.raises(InputError, match=r"vocab_size=20 .* take \d\d\..* \d\d "):
    train_vocabulary(make_corpus(), size=20, lowercase=True)


def test_the_rarest_of_too_many_words_are_dropped(monkeypatch):
  monkeypatch.setattr(vocabulary_lib, "MAX_WORDS", 200)
  frequent = [f"often{c}" for c in "abcdefgh"]
  rare = [f"rare{i:06}" for i in range(30_000)]
  texts = [" ".join([*frequent, *rare[i : i + 8]]) for i in range(0, 30_000, 8)]
  monkeypatch.setattr(encoder_lib, "BATCH_CHARACTERS", 1000)
  normalizer = normalizers.BertNormalizer(lowercase=True)
  count_words = vocabulary_lib._count_words
  counts = count_words(texts, normalizer, ignore_progress)
  assert len(counts) < 1000
  assert [counts[word] for word in frequent] == [len(texts)] * 8
  assert count_words(iter(texts), normalizer, ignore_progress) == counts


def test_large_counts_are_scaled_down_for_the_trainer(monkeypatch):
  def count_repeated(counts):
    texts = vocabulary_lib._repeat_words(counts)
    return collections.Counter(" ".join(texts).split())

  counts = collections.Counter(swan=60_001, grebe=1003, heron=1)
  assert count_repeated(counts) == counts
  monkeypatch.setattr(vocabulary_lib, "MAX_FED_WORDS", 10_000)
  assert count_repeated(counts) == {"swan": 60_001 // 7, "grebe": 1003 // 7}
