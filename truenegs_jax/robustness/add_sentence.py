"""Adds a distracting sentence to contexts: TextFlint's AddSentenceDiverse.

The question is altered, answered with a fake answer, turned into a statement,
and put before the sentence of the answer. There is no random choice, so that
all seeds give the same sentences.

Differences to TextFlint: the tokens of an answer are those at its offset, not
the first that are spelled alike; the first word of a question is in lower case
inside a statement.
"""

import functools
import random
from collections.abc import Iterable, Sequence

import numpy as np

from truenegs_jax.robustness import alter_question, statements
from truenegs_jax.robustness import detokenize as detokenize_lib
from truenegs_jax.robustness.annotate import Annotator, Sentence, Token
from truenegs_jax.robustness.tag_words import WordTags
from truenegs_jax.robustness.transformation import (
  Refused,
  Transformation,
  answer_spans,
)
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.vocabulary import Vocabulary
from truenegs_jax.tasks.squad import Question

NOT_ALIGNED = "the parse does not align with the tokens"
SEVERAL = "the question has several sentences"
NO_RULE = "no statement rule matches the question"
FAKE_BY_ENTITY = {
  "PERSON": "Jeff Dean",
  "LOCATION": "Chicago",
  "ORGANIZATION": "Stark Industries",
  "MISC": "Jupiter",
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


def make_add_sentence(
  annotator: Annotator,
  questions: Iterable[Question],
  *,
  neighbours: str = "",
  wordnet_dir: str = "",
  vocabulary: Vocabulary | None = None,
  word_VxE: np.ndarray | None = None,
) -> Transformation:
  """Makes the transformation of questions.

  Args:
    annotator: see `make_annotator`. Without a trained parser the title is
      "AddSentDiverse-style".
    questions: all questions, whose words need neighbours.
    neighbours, vocabulary, word_VxE: see `read_neighbours`.
    wordnet_dir: folder of WordNet, see `wordnet.open_wordnet`.

  Raises:
    InputError, DataError: see `open_wordnet` and `read_neighbours`.
  """
  reader = wordnet.open_wordnet(wordnet_dir)
  asked_words = {
    token.text.lower()
    for question in questions
    for sentence in annotator(question.text)
    for token in sentence.tokens
  }
  near = alter_question.read_neighbours(
    neighbours, asked_words, vocabulary=vocabulary, word_VxE=word_VxE
  )
  words = alter_question.Words(reader, near, WordTags(reader).likeliest)
  wordnet.close_wordnet(reader)
  return Transformation(
    name="add_sentence",
    title="AddSentenceDiverse"
    if annotator.is_parser
    else "AddSentDiverse-style",
    apply=functools.partial(_apply, annotator=annotator, words=words),
    resources={
      "annotations": annotator.name,
      "neighbours": neighbours or "none",
    },
    questions_only=True,
  )


def _apply(
  question: Question,
  rng: random.Random,
  *,
  annotator: Annotator,
  words: alter_question.Words,
) -> Question:
  del rng  # nothing is drawn
  sentences = annotator(question.context)
  tokens = [token for sentence in sentences for token in sentence.tokens]
  spans = [(token.start, token.end) for token in tokens]
  answers = [
    detokenize_lib.find_tokens(spans, span) for span in answer_spans(question)
  ]
  first, last = answers[0]
  fake = fake_answer(question, tokens[first:last])
  statement = make_distractor(annotator(question.text), fake.split(), words)
  place = insertion_place(sentences, first)
  texts = [token.text for token in tokens]
  texts[place:place] = statement.tokens
  shift = len(statement.tokens)
  moved = [(a + shift, b + shift) if a >= place else (a, b) for a, b in answers]
  return detokenize_lib.replace_context(question, texts, moved)


def make_distractor(
  sentences: Sequence[Sentence],
  answer: Sequence[str],
  words: alter_question.Words,
) -> statements.Statement:
  """Returns the statement that a question's altered form has a fake answer.

  Raises:
    Refused: the question is not one parsed sentence, or no rule matches.
  """
  if len(sentences) != 1:
    raise Refused(SEVERAL)
  (sentence,) = sentences
  if sentence.tree is None:
    raise Refused(NO_RULE)
  tokens = [token.text for token in sentence.tokens]
  if statements.words(sentence.tree) != tokens:
    raise Refused(NOT_ALIGNED)
  altered = alter_question.alter(sentence.tokens, words)
  if not sentence.tokens[0].tag.startswith("NNP"):
    altered[0] = altered[0][:1].lower() + altered[0][1:]
  tree = statements.with_words(sentence.tree, iter(altered))
  statement = statements.make_statement(tree, answer)
  if statement is None:
    raise Refused(NO_RULE)
  return statement


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
  answer is at the start of its own (`>=`, as in TextFlint).

  Args:
    sentences: the sentences of the context.
    first: first token of the answer.
  """
  count = 0
  for sentence in sentences:
    if count + len(sentence.tokens) >= first:
      return count
    count += len(sentence.tokens)
  return count
