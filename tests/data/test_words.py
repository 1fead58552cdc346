"""Tests which tokens are words, in vocabularies made by `tokenizers`."""

import itertools
import random
import re

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from truenegs_jax.data.words import read_words, word_edges
from truenegs_jax.objectives import mlm
from truenegs_jax.synonyms.table import SynonymTable

WORDS = ["main", "mainly", "primary", "chief", "chiefs", "élan", "naïve", "x2"]
PAIRS = [("main", "primary"), ("Primary", "chief"), ("naïve", "élan")]
SEPARATORS = (" ", " ", " ", " (", "-", ", ", "  ", '"', "\n", " 2", "_", "")
SPECIALS = ["<s>", "</s>", "[MASK]"]
FORMS = (str.lower, str.capitalize, str.upper, str.swapcase)


def draw_text(seed):
  rng = random.Random(seed)
  parts = (
    rng.choice(FORMS)(rng.choice(WORDS)) + rng.choice(SEPARATORS)
    for _ in range(12)
  )
  return "".join(parts).strip()


@pytest.fixture(scope="module", params=["byte-level", "unigram"])
def backend(request):
  """A tokenizer that has some forms of words whole, and splits others."""
  if request.param == "unigram":
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
      vocab_size=110, special_tokens=[*SPECIALS, "<unk>"], unk_token="<unk>"
    )
  else:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=170, special_tokens=SPECIALS)
  texts = map(draw_text, range(300))
  backend.train_from_iterator(
    [*texts, *["main Main (main (chief"] * 99], trainer
  )
  return backend


def list_tokens(backend):
  ids = backend.get_vocab()
  return tuple(sorted(ids, key=ids.get))


def test_only_whole_words_of_a_text_are_whole(backend):
  """The text around a token decides, not the tokens beside it."""
  tokens, numbers = list_tokens(backend), {True: 0, False: 0}
  edges_V, words = word_edges(tokens), read_words(tokens)
  texts = [*map(draw_text, range(40))]
  encodings = backend.encode_batch(texts)
  columns = itertools.zip_longest(*(x.ids for x in encodings), fillvalue=-1)
  tokens_BxL = np.array([*columns]).T
  batch = {"tokens": tokens_BxL, "documents": jnp.array(tokens_BxL >= 0)}
  positions_BxL = jnp.indices(tokens_BxL.shape)[1]
  whole_BxL = mlm.is_whole_word(batch, positions_BxL, edges_V)
  rows = zip(texts, encodings, whole_BxL.tolist(), strict=True)
  for text, encoding, whole_L in rows:
    for i, (start, end) in enumerate(encoding.offsets):
      start += text[start:end][:1] == " "
      token = encoding.ids[i]
      if words.words[token].isalpha():
        expected = not any(
          (text[:cut][-1:] + text[cut:][:1]).isalnum() and 0 < cut < len(text)
          for cut in (start, end)
        )
        assert whole_L[i] == expected, (text, tokens[token])
        assert words.texts[token] == text[start:end]
        numbers[expected] += 1
  assert min(numbers.values()) > 50


def find_form(text):
  """Returns the number of the form of a word; another casing is its own."""
  forms = [form(text) for form in FORMS[:3]]
  return forms.index(text) if text in forms else "mixed"


def test_pairs_join_ids_of_one_boundary_and_casing(backend):
  tokens = list_tokens(backend)
  mark = "Ġ" if any("Ġ" in token for token in tokens) else "▁"
  table = SynonymTable.from_pairs(PAIRS, tokens, symmetric=True)
  pairs = {tuple(map(str.lower, pair)) for pair in PAIRS}
  pairs |= {pair[::-1] for pair in pairs}
  decode = decoders.ByteLevel().decode if mark == "Ġ" else "".join
  texts = [decode([token.removeprefix(mark)]) for token in tokens]
  expected = {
    (i, j)
    for (i, a), (j, b) in itertools.product(enumerate(texts), repeat=2)
    if (a.lower(), b.lower()) in pairs
    and find_form(a) == find_form(b)
    and tokens[i].startswith(mark) == tokens[j].startswith(mark)
  }
  size = len(tokens)
  assert {divmod(key, size) for key in table.keys_Q.tolist()} == expected
  assert len(expected) >= 6
  kinds = {
    (tokens[i].startswith(mark), find_form(texts[i])) for i, _ in expected
  }
  assert len(kinds) >= 3 and re.search(", [1-9].* words", table.coverage)


@pytest.mark.parametrize(
  ("tokens", "texts", "words", "edges"),
  [
    ("[PAD] house # [] ##s", "[PAD] house # [] ##s", " house # [] ", "22223"),
    ("house s [x]", "house s [x]", "house s ", "222"),
    (
      "Ġa Ġ <s> Ãł Ã ĠÃ , Ġ(b Ċ",
      "a Ġ <s> à \ufffd \ufffd , (b Ċ",
      "a   à   , (b ",
      "200332020",
    ),
    # The last token is empty.
    ("▁A <0xC3> s <unk> [x] ", "A <0xC3> s <unk> [x] ", "a  s   ", "233300"),
  ],
)
def test_texts_words_and_edges(tokens, texts, words, edges):
  result = read_words(tuple(tokens.split(" ")))
  assert result.texts == tuple(texts.split(" "))
  assert result.words == tuple(words.split(" "))
  assert "".join(map(str, result.edges_V)) == edges
