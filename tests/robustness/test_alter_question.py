"""Tests how the words of questions are altered."""

import numpy as np
import pytest

from truenegs_jax.robustness import alter_question
from truenegs_jax.robustness.annotate import Token
from truenegs_jax.runtime.errors import DataError, UnavailableError
from truenegs_jax.synonyms.vocabulary import Vocabulary


class Name(str):
  """A stand-in for a WordNet lemma without antonyms."""

  def name(self):
    return str(self)

  def antonyms(self):
    return [Name("absence"), Name("no_show")] if self == "presence" else []


class Reader:
  """A stand-in for WordNet: each word has one synset with itself."""

  def synsets(self, word, pos):
    self.lemmas = lambda: [Name(word.lower())]
    return [self] if pos == "n" else []


WORDS = alter_question.Words(
  Reader(),
  {
    "50": ["50th", "40"],
    "super": ["superior", "planet", "champ"],
    "a": ["b"],
    "team": ["teams", "won", "squad"],
  },
  {"won": "VBD", "squad": "NN"}.get,
)


@pytest.mark.parametrize(
  "word, tag, entity, expected",
  [
    ("U.S.", "NNP", "LOCATION", "U.K."),
    ("largest", "JJS", "", "smallest"),
    ("presence", "NN", "", "absence"),
    ("Presence", "NN", "", "Absence"),
    ("50", "CD", "", "40"),  # 50th has the same stem
    ("Super", "NNP", "", "Champ"),  # planet is a bad alteration
    ("SUPER", "NNP", "", "CHAMP"),
    ("a", "NNP", "", "a"),  # a part of "war"
    ("team", "NN", "", "team"),
    ("team", "NN", "ORGANIZATION", "squad"),  # a noun, unlike won
    ("NFL", "NNP", "ORGANIZATION", "UNICEF"),
    ("Ajax", "NNP", "ORGANIZATION", "Acme"),
    ("Obama", "NNP", "PERSON", "Jackson"),
    ("Rome", "NNP", "LOCATION", "Berlin"),
    ("Celts", "NNPS", "", "Daleks"),
    ("Bowl", "NNP", "ORGANIZATION", "Bowl"),  # not to be altered
    ("of", "IN", "ORGANIZATION", "of"),
  ],
)
def test_first_rule_with_a_candidate_counts(word, tag, entity, expected):
  token = Token(word, 0, len(word), tag, word, entity)
  assert alter_question.alter([token], WORDS) == [expected]


def test_words_of_the_question_are_no_candidates():
  words = [Token(w, 0, 1, "CD", w) for w in ("50", "40")]
  assert alter_question.alter(words, WORDS) == ["50", "40"]


def test_neighbours_come_from_the_embeddings_of_a_model():
  vocabulary = Vocabulary(["[PAD]", "team", "?", "50", "##40", "90", "other"])
  word_VxE = np.eye(7, dtype=np.float32)
  word_VxE[5] = [0, 0.1, 0, 1, 0, 0, 0]  # 90 is near 50, then team
  near = alter_question.read_neighbours(
    "model",
    ["50", "90", "team", "?", "rare", "10"],
    vocabulary=vocabulary,
    word_VxE=word_VxE,
  )
  assert near == {
    "team": ["90", "50"],  # nearest first
    "50": ["90", "team"],
    "90": ["50", "team"],
  }


def test_neighbours_come_from_vectors_or_a_list(tmp_path):
  vectors = tmp_path / "vectors.txt"
  vectors.write_text("50 1 0\n40 1 .1\n30 0 1\nteam -1 0\nother 1 0\n")
  words = ["50", "40", "30", "team"]
  near = alter_question.read_neighbours(str(vectors), words)
  assert near["50"] == ["40", "30", "team"]  # only words of the questions
  lists = tmp_path / "neighbour.json"
  lists.write_text('{"50": [{"word": "50"}, {"word": "40"}]}')
  assert alter_question.read_neighbours(str(lists), words) == {"50": ["40"]}
  assert alter_question.read_neighbours("", words) == {}
  lists.write_text('{"50": [40, 30]}')
  with pytest.raises(DataError, match="neighbour.json.* cannot be read"):
    alter_question.read_neighbours(str(lists), words)
  with pytest.raises(UnavailableError, match="neighbours='missing.txt': there"):
    alter_question.read_neighbours("missing.txt", words)
