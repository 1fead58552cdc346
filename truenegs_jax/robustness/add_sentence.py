"""Adds a distracting sentence to contexts: TextFlint's AddSentenceDiverse.

The question is altered, answered with a fake answer, turned into a statement,
and put before the sentence of the answer. There is no random choice, so that
all seeds give the same sentences.

Differences to TextFlint: the tokens of an answer are those at its offset, not
the first that are spelled alike; the first word of a question is in lower case
inside a statement. A word's most frequent tag is that of the word alone.
"""

import dataclasses
import functools
import pathlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from truenegs_jax.data.corpus.files import stat_file
from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.robustness import annotate, statements
from truenegs_jax.robustness.annotate import Annotator, Sentence, Token
from truenegs_jax.robustness.transformation import (
  Refused,
  Transformation,
  find_answers,
  replace_context,
)
from truenegs_jax.runtime.errors import UnavailableError
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.lexicons import find_neighbours
from truenegs_jax.synonyms.vocabulary import Vocabulary
from truenegs_jax.tasks.task import Question

STYLE = "AddSentDiverse-style"  # title of a set without a parser
NOT_ALIGNED = "the parse does not align with the tokens"
SEVERAL = "the question has several sentences"
NO_RULE = "no statement rule matches the question"
FAKE_BY_ENTITY = {
  "PERSON": "Jeff Dean",
  "LOCATION": "Chicago",
  "ORGANIZATION": "Stark Industries",
}
FAKE_CAPITALS = "LSTM"
FAKE_BY_QUESTION = {
  "who ": "Jeff Dean",
  "when ": "1956",
  "where ": "Chicago",
  "how many ": "42",
}
FAKE_BY_FIRST_TAG = {
  "VB": "learn",
  "VBD": "learned",
  "VBG": "learning",
  "VBP": "learns",
  "VBZ": "learns",
}
# After the determiner of the answer, if it has one.
FAKE_NOUNS = {
  "NN": "hamster",
  "NNP": "Central Park",
  "NNS": "hamsters",
  "NNPS": "Kew Gardens",
}
FAKE_BY_LAST_TAG = {
  "JJ": "deep",
  "JJR": "deeper",
  "JJS": "deepest",
  "RB": "silently",
  "VBG": "learning",
}
FAKE_ELSE = "aliens"
TOP = 100  # nearest words of a word
_FROM = "States US U.S U.S. UK U.K U.K. largest smallest highest lowest May"
_TO = "Kingdom UK U.K. U.K. US U.S. U.S. smallest largest lowest highest April"
ALTERED = dict(zip(_FROM.split(), _TO.split(), strict=True))
ALTERED["Peyton"] = "Trevor"
_DO_NOT_ALTER = """
many such few much other same general type record kind sort part form terms use
place way old young bowl united one different square war republic doctor color
"""
DO_NOT_ALTER = frozenset(_DO_NOT_ALTER.split())
BAD_ALTERATIONS = {"mx2004", "planet", "u.s.", "http://www.co.mo.md.us"}
ADJECTIVES = ("JJ", "JJR", "JJS")
ENTITY_WORDS = {
  "PERSON": "Jackson",
  "LOCATION": "Berlin",
  "ORGANIZATION": "Acme",
}


@dataclasses.dataclass(frozen=True)
class AddSentence:
  """The transformation of questions.

  Attributes:
    annotator: annotates questions and contexts.
    reader: WordNet, for antonyms.
    neighbours: word in lower case -> other words, nearest first.
  """

  annotator: Annotator
  reader: WordNetReader
  neighbours: Mapping[str, Sequence[str]]

  def __call__(self, question: Question, rng: random.Random) -> Question:
    """Adds the sentence; refused are questions without a parse or a rule."""
    del rng  # nothing is drawn
    sentences = self.annotator.annotate(question.context)
    tokens = [token for sentence in sentences for token in sentence.tokens]
    answers = find_answers(question, tokens)
    first, last = answers[0]
    fake = fake_answer(question, tokens[first:last])
    added = self._make_distractor(
      self.annotator.annotate(question.text), fake.split()
    )
    place = insertion_place(sentences, first)
    texts = [token.text for token in tokens]
    texts[place:place] = added
    moved = [
      (a + len(added), b + len(added)) if a >= place else (a, b)
      for a, b in answers
    ]
    return replace_context(question, texts, moved)

  def _make_distractor(
    self, sentences: Sequence[Sentence], answer: Sequence[str]
  ) -> list[str]:
    """Returns the statement that a question's altered form has an answer."""
    if len(sentences) != 1:
      raise Refused(SEVERAL)
    (sentence,) = sentences
    if sentence.tree is None:
      raise Refused(NO_RULE)
    words = [token.text for token in sentence.tokens]
    if annotate.list_words(sentence.tree) != words:
      raise Refused(NOT_ALIGNED)
    altered = self.alter(sentence.tokens)
    if not sentence.tokens[0].tag.startswith("NNP"):
      altered[0] = altered[0][:1].lower() + altered[0][1:]
    tree = statements.with_words(sentence.tree, iter(altered))
    if statement := statements.make_statement(tree, answer):
      return statement
    raise Refused(NO_RULE)

  def alter(self, tokens: Sequence[Token]) -> list[str]:
    """Alters words so that a question asks for something else.

    Each token is replaced by the first candidate of the first rule that has
    one. The rules are TextFlint's, after Jia & Liang (2017).
    """
    refused = {token.text.lower() for token in tokens} | BAD_ALTERATIONS
    altered = []
    for token in tokens:
      new = (x for x in self._candidates(token) if x.lower() not in refused)
      altered.append(_match_case(next(new, token.text), token.text))
    return altered

  def _candidates(self, token: Token) -> Iterator[str]:
    """Yields other words for a token, by TextFlint's rules in order."""
    text, tag, entity = token.text, token.tag, token.entity
    if text.lower() in DO_NOT_ALTER:
      return
    if text in ALTERED:
      yield ALTERED[text]
    if tag == "NN" or tag in ADJECTIVES:
      yield from self._antonyms(text, "n" if tag == "NN" else "a")
    near = self._near_words(text.lower())
    if tag in ("CD", "NNP", "NNPS"):
      yield from near
    elif entity in ENTITY_WORDS and tag in ("NN", "NNS", *ADJECTIVES):
      for word in near:
        if self.annotator.annotate(word)[0].tokens[0].tag == tag:
          yield word
    if tag[:2] not in ("JJ", "NN", "RB", "VB"):
      return
    if entity == "ORGANIZATION" and text.isupper():
      yield "UNICEF"
    elif entity in ENTITY_WORDS:
      yield ENTITY_WORDS[entity]
    elif tag == "NNPS":
      yield "Daleks"

  def _antonyms(self, word: str, pos: str) -> Iterator[str]:
    """Yields the antonyms of a word's first sense."""
    names = [
      antonym.name()
      for synset in self.reader.synsets(word, pos)[:1]
      for lemma in synset.lemmas()
      for antonym in lemma.antonyms()
    ]
    wordnet.close_wordnet(self.reader)  # until the next word
    yield from (name for name in names if "_" not in name)

  def _near_words(self, word: str) -> Iterator[str]:
    """Yields the neighbours of a word that do not share its stem."""
    find_stem = _load_stemmer()
    stem = find_stem(word)
    for other in self.neighbours.get(word, ()) if word not in "war" else ():
      other_stem = find_stem(other)
      if not stem.startswith(other_stem) and not other_stem.startswith(stem):
        yield other


def make_add_sentence(
  annotator: Annotator,
  questions: Iterable[Question],
  *,
  neighbours: str = "",
  wordnet_dir: str = "",
) -> Transformation:
  """Makes the transformation of questions.

  Args:
    questions: all questions, whose words are each other's neighbours.
    neighbours: a file of word vectors, or "" for none.
    wordnet_dir: folder of WordNet; "" searches for it.
  """
  reader = wordnet.open_wordnet(wordnet_dir)
  wordnet.close_wordnet(reader)
  near: Mapping[str, Sequence[str]] = {}
  if neighbours:
    question_words = {
      token.text.lower()
      for question in questions
      for token in annotator.list_tokens(question.text)
      if any(map(str.isalnum, token.text))
    }
    near = read_neighbours(neighbours, question_words)
  return Transformation(
    name="add_sentence",
    title="AddSentenceDiverse" if annotator.is_parser else STYLE,
    apply=AddSentence(annotator, reader, near),
    resources={
      "annotations": annotator.name,
      "neighbours": neighbours or "none",
    },
  )


def fake_answer(question: Question, tokens: Sequence[Token]) -> str:
  """Returns a fake answer of the kind of the first answer, `tokens`."""
  entities = {token.entity for token in tokens}
  if len(entities) == 1 and (kind := entities.pop()) in FAKE_BY_ENTITY:
    return FAKE_BY_ENTITY[kind]
  if question.answers[0][0].isupper():
    return FAKE_CAPITALS
  text = question.text.lower()
  for start, fake in FAKE_BY_QUESTION.items():
    if text.startswith(start):
      return fake
  first, last = tokens[0], tokens[-1]
  if first.tag in FAKE_BY_FIRST_TAG:
    return FAKE_BY_FIRST_TAG[first.tag]
  if last.tag in FAKE_NOUNS:
    determiner = first.text if first.text.lower() in ("the", "a") else ""
    return f"{determiner} {FAKE_NOUNS[last.tag]}".strip()
  return FAKE_BY_LAST_TAG.get(last.tag, FAKE_ELSE)


def insertion_place(sentences: Sequence[Sentence], first: int) -> int:
  """Returns the token before which the distractor goes.

  This is the start of the answer's sentence; of the sentence before it if the
  answer, whose first token is `first`, is at the start of its own (`>=`: this
  is TextFlint's).
  """
  count = 0
  for sentence in sentences:
    if count + len(sentence.tokens) >= first:
      return count
    count += len(sentence.tokens)
  return count


def read_neighbours(where: str, words: Iterable[str]) -> dict[str, list[str]]:
  """Reads the TOP nearest of `words` for each, by a file of word vectors."""
  path = pathlib.Path(where).expanduser()
  if not path.is_file():
    raise UnavailableError(
      f"robustness.neighbours={where!r}: there is no such file. Pass a file of"
      " word vectors, such as glove.6B.100d.txt."
    )
  neighbours: dict[str, list[str]] = {}
  for word, other in find_neighbours(
    Vocabulary(sorted(words)), stat_file(path), top=TOP, symbols=True
  ):
    neighbours.setdefault(word, []).append(other)
  return neighbours


def _match_case(word: str, pattern: str) -> str:
  """Returns a word in capitals or with a capital if `pattern` is so."""
  if pattern.isupper():
    return word.upper()
  return word.title() if pattern.istitle() else word


@functools.cache
def _load_stemmer() -> Callable[[str], str]:
  from nltk.stem.lancaster import LancasterStemmer

  return functools.lru_cache(maxsize=2**16)(LancasterStemmer().stem)
