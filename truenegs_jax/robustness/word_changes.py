"""Changes of words: synonyms (TextFlint's SwapSynWordNet) and typos.

The rules of synonyms are TextFlint's: a tenth of the tokens, at most ten, of
those that are no function words and in no answer. A synonym stands in for a
token as it is: neither inflection nor capital is restored. TextFlint takes the
first synonym of a Python set; here it is drawn.
"""

import dataclasses
import functools
import random
import re
import string
from collections.abc import Callable, Collection, Sequence

from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.robustness import transformation
from truenegs_jax.robustness.annotate import Annotator, Token
from truenegs_jax.robustness.transformation import Refused, Span, Transformation
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.vocabulary import NUMBERS
from truenegs_jax.tasks.task import Example, Question

NO_SYNONYM, NO_PLACE = "no token has a synonym", "no place for a change"
# Never swapped, in this case; TextFlint's list.
_NEVER = """
I my My mine you You your Your he He him Him his His she She her Her it It they
They their Their am are Are is Is and And or nor a A an An the The have Have has
Has in In by By on On of Of at At from From
"""
NEVER_SWAPPED = frozenset(_NEVER.split())
PARTS_OF_SPEECH = {"JJ": "a", "VB": "v", "NN": "n", "RB": "r"}
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
SAFE_OMISSION = 8  # letters; "health" without one would be "heath"

Text = Question | Example
# Synonyms of a token with a tag of the Penn Treebank, without the token.
Synonyms = Callable[[str, str], Sequence[str]]
Edit = tuple[int, int, str]  # a span and the text that replaces it


def make_swap(annotator: Annotator, wordnet_dir: str = "") -> Transformation:
  """Makes the swap of synonyms; "" searches for the folder of WordNet."""
  reader = wordnet.open_wordnet(wordnet_dir)
  source = f"WordNet {reader.get_version() or '(unknown version)'}"
  return swap_synonyms(annotator, textflint_synonyms(reader), source)


def swap_synonyms(
  annotator: Annotator, synonyms: Synonyms, source: str
) -> Transformation:
  """Makes the transformation of a lookup; `source` names it in results."""

  def apply(example: Text, rng: random.Random) -> Text:
    if isinstance(example, Question):
      tokens = annotator.list_tokens(example.context)
      answers = transformation.find_answers(example, tokens)
      protected = {i for answer in answers for i in range(*answer)}
      words = _swap(tokens, protected, synonyms, rng)
      return transformation.replace_context(example, words, answers)

    def swap(text: str) -> str:
      words = _swap(annotator.list_tokens(text), (), synonyms, rng)
      return transformation.detokenize(words)[0]

    return transformation.change_texts(example, swap)

  resources = {"annotations": annotator.name, "synonyms": source}
  return Transformation("swap_synonyms", "SwapSynWordNet", apply, resources)


def textflint_synonyms(reader: WordNetReader) -> Synonyms:
  """Returns TextFlint's synonyms: lemmas of a token's synsets, single words.

  Only synsets of the tag's part of speech count, where it is one of WordNet's;
  for adjectives, satellites do not.
  """

  @functools.cache
  def find(token: str, tag: str) -> tuple[str, ...]:
    pos = PARTS_OF_SPEECH.get(tag[:2], "")
    names = wordnet.find_lemma_names(
      token, reader, pos=pos or wordnet.PARTS_OF_SPEECH, satellites=not pos
    )
    return tuple(name for name in names if name != token and "_" not in name)

  return find


def _swap(
  tokens: Sequence[Token],
  protected: Collection[int],
  synonyms: Synonyms,
  rng: random.Random,
) -> list[str]:
  """Returns the tokens with some swapped; Refused if none has a synonym."""
  words = [token.text for token in tokens]
  choices = {
    i: names
    for i, word in enumerate(words)
    if i not in protected
    if word not in NEVER_SWAPPED and word not in string.punctuation
    if (names := synonyms(word, tokens[i].tag))
  }
  if not choices:
    raise Refused(NO_SYNONYM)
  count = transformation.num_changes(len(words), len(choices))
  for i in sorted(rng.sample(list(choices), count)):
    words[i] = rng.choice(choices[i])
  return words


def mistype(
  text: str, protected: Sequence[Span], rng: random.Random
) -> list[Edit]:
  """Mistypes a letter, not the first, in a tenth of the words, at most ten.

  A letter is swapped with the next one, hit together with a neighbour on a
  QWERTY keyboard, or instead of it, or left out. Names, numbers, short words
  and omissions that often make another word ("form", "heath") are spared.
  """
  words = [
    match
    for match in re.finditer(r"\b[a-z]{5,}\b", text)
    if match[0] not in NUMBERS
    if not any(match.start() < b and match.end() > a for a, b in protected)
  ]
  count = transformation.num_changes(len(text.split()), len(words))
  edits = []
  for match in sorted(rng.sample(words, count), key=re.Match.start):
    i = match.start() + rng.randrange(1, len(match[0]) - 1)
    letter, following = text[i], text[i + 1]
    near = rng.choice(_keys_around(letter))
    choices = [(i, i + 1, new) for new in (near, near + letter)]
    if len(match[0]) >= SAFE_OMISSION:
      choices.append((i, i + 1, ""))
    if letter != following:
      choices.append((i, i + 2, following + letter))
    edits.append(rng.choice(choices))
  return edits


def make_typos() -> Transformation:
  """Makes typos in both texts of an `Example`, or in a `Question`'s context."""

  def change(
    text: str, rng: random.Random, spans: Sequence[Span] = ()
  ) -> tuple[str, list[Span]]:
    if edits := mistype(text, spans, rng):
      return edit_text(text, edits, spans)
    raise Refused(NO_PLACE)

  def apply(example: Text, rng: random.Random) -> Text:
    if isinstance(example, Example):
      return transformation.change_texts(example, lambda x: change(x, rng)[0])
    before = transformation.answer_spans(example)
    context, spans = change(example.context, rng, before)
    answers = tuple((context[a:b], a) for a, b in spans)
    return dataclasses.replace(example, context=context, answers=answers)

  return Transformation("typos", "Typos", apply)


def edit_text(
  text: str, edits: Sequence[Edit], spans: Sequence[Span]
) -> tuple[str, list[Span]]:
  """Replaces ranges of a text; returns it with the new places of `spans`.

  Edits are in order and overlap neither each other nor a span. An empty range
  inserts; at the start of a span, the new text is before it.
  """
  pieces, end = [], 0
  for first, last, new in edits:
    pieces += [text[end:first], new]
    end = last
  moved = []
  for a, b in spans:
    shift = sum(len(new) - (last - i) for i, last, new in edits if last <= a)
    moved.append((a + shift, b + shift))
  return "".join([*pieces, text[end:]]), moved


def _keys_around(letter: str) -> str:
  """Returns the letters next to a letter on a QWERTY keyboard."""
  row = next(i for i, keys in enumerate(KEYBOARD) if letter in keys)
  column = KEYBOARD[row].index(letter)
  around = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
  return "".join(
    KEYBOARD[row + i][column + j]
    for i, j in around
    if 0 <= row + i < len(KEYBOARD)
    if 0 <= column + j < len(KEYBOARD[row + i])
  )
