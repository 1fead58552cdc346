"""The tokens of any vocabulary show their texts and the words they are in."""

import itertools
import random

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from truenegs_jax.data.tokenizer import read_tokens
from truenegs_jax.data.words import read_words, word_edges
from truenegs_jax.objectives import mlm

WORDS = ["main", "mainly", "primary", "chief", "chiefs", "élan", "naïve", "x2"]
SEPARATORS = (" ", " ", " ", " (", "-", ", ", "  ", '"', "\n", " 2", "_", "")
FORMS = (str.lower, str.capitalize, str.upper, str.swapcase)


def draw_text(seed):
  rng = random.Random(seed)
  parts = (
    rng.choice(FORMS)(rng.choice(WORDS)) + rng.choice(SEPARATORS)
    for _ in range(12)
  )
  return "".join(parts).strip()


def train_backend(kind):
  """Trains a tokenizer that has some forms of words whole, splits others."""
  specials = ["<s>", "</s>", "[MASK]", "<unk>"]
  if kind == "unigram":
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
      vocab_size=110, special_tokens=specials, unk_token="<unk>"
    )
  else:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=170, special_tokens=specials)
  texts = [*map(draw_text, range(300)), *["main Main (main (chief"] * 99]
  backend.train_from_iterator(texts, trainer)
  return backend


@pytest.mark.parametrize("kind", ["byte-level", "unigram"])
def test_only_whole_words_of_a_text_are_whole(kind):
  """The text around a token decides, not the tokens beside it."""
  backend = train_backend(kind)
  tokens, _ = read_tokens(backend)
  words = read_words(tokens)
  numbers = {True: 0, False: 0}
  texts = [*map(draw_text, range(40))]
  encodings = backend.encode_batch(texts)
  columns = itertools.zip_longest(*(x.ids for x in encodings), fillvalue=-1)
  tokens_BxL = np.array([*columns]).T
  batch = {"tokens": tokens_BxL, "documents": jnp.array(tokens_BxL >= 0)}
  positions_BxL = jnp.indices(tokens_BxL.shape)[1]
  whole_BxL = mlm.is_whole_word(batch, positions_BxL, word_edges(tokens))
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


@pytest.mark.parametrize(
  ("tokens", "texts", "words", "edges", "classes"),
  [
    ("[PAD] # [] ##s", "[PAD] # [] ##s", " # [] ", "2223", "1110"),
    (
      "Ġa Ġ <s> Ãł Ã ĠÃ , Ġ(b Ċ ĠMain main MAIN mAin",
      "a Ġ <s> à \ufffd \ufffd , (b Ċ Main main MAIN mAin",
      "a   à   , (b  main main main main",
      "2003320202333",
      "1110010103046",
    ),
    ("▁A <0xC3> [x] ", "A <0xC3> [x] ", "a   ", "2300", "3111"),  # and ""
  ],
)
def test_texts_words_edges_and_classes(tokens, texts, words, edges, classes):
  result = read_words(tuple(tokens.split(" ")))
  assert result.texts == tuple(texts.split(" "))
  assert result.words == tuple(words.split(" "))
  assert "".join(map(str, result.edges_V)) == edges
  assert "".join(map(str, result.classes_V)) == classes
