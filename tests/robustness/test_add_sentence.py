"""Tests AddSentenceDiverse with recorded annotations."""

import json
import random

import pytest

from support.mini_wordnet import write_wordnet
from truenegs_jax.robustness import add_sentence, annotate
from truenegs_jax.robustness.annotate import Sentence, Token
from truenegs_jax.robustness.parse_question import read_tree
from truenegs_jax.robustness.transformation import Refused
from truenegs_jax.synonyms import wordnet
from truenegs_jax.tasks.squad import Question

QUESTION = "Which NFL team represented the AFC at Super Bowl 50?"
TREE = (
  "(ROOT (SBARQ (WHNP (WDT Which) (NNP NFL) (NN team)) (SQ (VP"
  " (VBD represented) (NP (DT the) (NNP AFC)) (PP (IN at) (NP (NNP Super)"
  " (NNP Bowl) (CD 50))))) (. ?)))"
)
TAGS = "WDT NNP/ORGANIZATION NN VBD DT NNP/ORGANIZATION IN NNP NNP CD ."
CONTEXT = "It was in 2016. The Denver Broncos beat Carolina. Denver cheered."
CONTEXT_TAGS = "PRP VBD IN CD . DT NNP NNPS VBD NNP . NNP VBD ."


def annotated(text, tags, tree=None):
  """Returns the sentences of a text, from tags or tag/entity."""
  sentences, tokens, start = [], [], 0
  for field in tags.split():
    tag, _, entity = field.partition("/")
    while text[start] == " ":
      start += 1
    end = start + 1
    while (
      end < len(text) and text[end] not in " ?." and text[start] not in "?."
    ):
      end += 1
    word = text[start:end]
    tokens.append(Token(word, start, end, tag, word.lower(), entity))
    start = end
    if word in (".", "?"):
      sentences.append(Sentence(tuple(tokens), tree and read_tree(tree)))
      tokens = []
  return tuple(sentences)


@pytest.fixture
def make(tmp_path, monkeypatch):
  """Returns a function: the transformation by recorded annotations."""
  folder = write_wordnet(tmp_path / "wordnet")
  (folder / "cntlist.rev").write_text("")
  reader = wordnet.open_wordnet(str(folder))
  monkeypatch.setattr(wordnet, "open_wordnet", lambda folder: reader)
  neighbours = tmp_path / "neighbour.json"
  lists = {"super": ["super", "champ"], "50": ["50", "40"]}
  content = {k: [{"word": w} for w in v] for k, v in lists.items()}
  neighbours.write_text(json.dumps(content))

  def make(question, known, *, is_parser=True):
    parser = annotate.Annotator("a parser", known.get, is_parser=is_parser)
    path = tmp_path / "recorded.jsonl"
    annotate.save_annotations(path, known, parser)
    annotator = annotate.make_annotator(str(path))
    return add_sentence.make_add_sentence(
      annotator, [question], neighbours=str(neighbours)
    )

  yield make
  wordnet.close_wordnet(reader)


def known_with(tree=TREE):
  return {
    QUESTION: annotated(QUESTION, TAGS, tree),
    CONTEXT: annotated(CONTEXT, CONTEXT_TAGS),
  }


def ask(*answers):
  spans = tuple((a, CONTEXT.index(a)) for a in answers)
  return Question("q1", QUESTION, CONTEXT, spans, "file: q1")


@pytest.mark.parametrize(
  "is_parser, title",
  [(True, "AddSentenceDiverse"), (False, "AddSentDiverse-style")],
)
def test_worked_example_of_textflint(make, is_parser, title):
  question = ask("Denver Broncos", "The Denver Broncos", "2016")
  transformation = make(question, known_with(), is_parser=is_parser)
  changed = transformation.apply(question, random.Random(0))
  assert changed.context == (
    "It was in 2016. The UNICEF team of Kew Gardens represented the UNICEF at"
    " Champ Bowl 40. The Denver Broncos beat Carolina. Denver cheered."
  )
  for (text, start), (new_text, new_start) in zip(
    question.answers, changed.answers, strict=True
  ):
    assert new_text == text
    assert changed.context[new_start : new_start + len(text)] == text
    shift = len(changed.context) - len(CONTEXT)
    assert new_start - start == (0 if text == "2016" else shift)
  assert (changed.key, changed.text) == (question.key, question.text)
  assert transformation.title == title
  assert transformation.resources["annotations"] == "a parser, recorded"


def test_answer_at_the_start_of_its_sentence_is_off_by_one(make):
  question = ask("The Denver Broncos")
  changed = make(question, known_with()).apply(question, random.Random(0))
  assert changed.context.startswith(
    "The UNICEF team of The Kew Gardens represented"
  )
  assert changed.context.endswith(CONTEXT)


@pytest.mark.parametrize(
  "known, cause",
  [
    (known_with(TREE.replace("Super", "super")), add_sentence.NOT_ALIGNED),
    (known_with("(ROOT (S (XX a)))"), add_sentence.NOT_ALIGNED),
    (known_with(TREE.replace("WH", "")), add_sentence.NO_RULE),
    (known_with(None), add_sentence.NO_RULE),
    (known_with() | {QUESTION: ()}, add_sentence.SEVERAL),
  ],
)
def test_refusals_have_causes(make, known, cause):
  question = ask("Carolina")
  with pytest.raises(Refused, match=cause):
    make(question, known).apply(question, random.Random(0))


@pytest.mark.parametrize(
  "answer, question, expected",
  [
    ("NNP/PERSON NNP/PERSON", "When?", "Jeff Dean"),
    ("NNP/PERSON NNP", "When was it?", "1956"),
    ("NNP/LOCATION", "?", "Chicago"),
    ("NNP/ORGANIZATION", "?", "Stark Industries"),
    ("NN", "How many are there?", "42"),
    ("VBD DT NN", "What?", "learned"),
    ("DT JJ NN", "What?", "the hamster"),
    ("JJ NNS", "What?", "hamsters"),
    ("NNP NNPS", "What?", "Kew Gardens"),
    ("RB JJR", "What?", "deeper"),
    ("CD", "What?", "aliens"),
  ],
)
def test_fake_answers_are_of_the_answers_kind(answer, question, expected):
  fields = [field.partition("/") for field in answer.split()]
  tokens = [
    Token("the" if tag == "DT" else "x", 0, 1, tag, "x", entity)
    for tag, _, entity in fields
  ]
  example = Question("q", question, "x", (("x", 0),), "")
  assert add_sentence.fake_answer(example, tokens) == expected


def test_fake_answer_of_capitals():
  example = Question("q", "Who won?", "IBM 5", (("IBM 5", 0),), "")
  token = Token("IBM", 0, 3, "NNP", "IBM")
  assert add_sentence.fake_answer(example, [token]) == "LSTM"
