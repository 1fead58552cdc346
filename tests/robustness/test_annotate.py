"""Tests annotations: rules, recorded files and stand-ins for spaCy."""

import json

import pytest

from truenegs_jax.robustness import annotate, parse_question, split_text
from truenegs_jax.runtime.errors import DataError, InputError, UnavailableError
from truenegs_jax.synonyms import wordnet

TEXT = (
  "Dr. Smith can't win 1,000.5 U.S. dollars (or AT&T's). \"Why not?\" he asked."
)


@pytest.fixture(scope="module")
def rules():
  try:
    return annotate.make_annotator("rules")
  except InputError as error:
    pytest.skip(str(error))


def words_of(text):
  return [[text[a:b] for a, b in s] for s in split_text.split_sentences(text)]


def test_tokens_cover_the_text_by_penn_rules():
  first, *_ = words_of(TEXT)
  assert " ".join(first) == (
    "Dr. Smith ca n't win 1,000.5 U.S. dollars ( or AT&T 's ) ."
  )
  assert "".join(w for s in words_of(TEXT) for w in s) == TEXT.replace(" ", "")


@pytest.mark.parametrize(
  "text, count",
  [
    ("He left the U.S. army. She stayed.", 2),
    ("J. R. Smith won. 12 lost.\n\nno capital", 3),
    ("It cost 3.5 dollars? yes.", 1),
    ("", 0),
  ],
)
def test_sentences_end_before_capitals(text, count):
  assert len(words_of(text)) == count


@pytest.mark.parametrize(
  "question, tags",
  [
    ("Which NFL team won the title ?", "WDT NNP NN VBD DT NN ."),
    ("What did the state fund ?", "WP VBD DT NN VB ."),  # a noun as well
    ("When was the fund founded ?", "WRB VBD DT NN VBN ."),
    ("What was a gold-trimmed logo ?", "WP VBD DT NN HYPH VBN NN ."),
    ("Who led the team coached by him ?", "WP VBD DT NN VBN IN PRP ."),
  ],
)
def test_tags_depend_on_the_context(rules, question, tags):
  (sentence,) = rules(question)
  assert " ".join(t.tag for t in sentence.tokens) == tags


def test_names_have_kinds(rules):
  text = "In Paris, J. Doe of the IPCC met 12 Americans from Oxford University."
  (sentence,) = rules(text)
  kinds = {t.text: t.entity for t in sentence.tokens if t.entity}
  assert kinds["Paris"] == "LOCATION" and kinds["Doe"] == "PERSON"
  assert kinds["IPCC"] == kinds["University"] == "ORGANIZATION"


@pytest.mark.parametrize(
  "question, tree",
  [
    (
      "When was it founded?",
      "(SBARQ (WHADVP (WRB When)) (SQ (VBD was) (NP (PRP it))"
      " (VP (VBN founded))) (. ?))",
    ),
    (
      "In what year did the war end?",
      "(SBARQ (WHPP (IN In) (WHNP (WDT what) (NN year))) (SQ (VBD did)"
      " (NP (DT the) (NN war)) (VP (VB end))) (. ?))",
    ),
    (
      "How many people live in Warsaw?",
      "(SBARQ (WHNP (WHADJP (WRB How) (JJ many)) (NNS people)) (SQ (VP"
      " (VBP live) (PP (IN in) (NP (NNP Warsaw))))) (. ?))",
    ),
  ],
)
def test_questions_have_trees(rules, question, tree):
  (sentence,) = rules(question)
  assert sentence.tree == ("ROOT", (parse_question.read_tree(tree),))


def test_recorded_annotations_stand_for_the_annotator(rules, tmp_path):
  path = tmp_path / "annotations.jsonl"
  texts = [TEXT, "Who won?", "naïve “quotes”"]
  annotate.save_annotations(path, texts, rules)
  recorded = annotate.make_annotator(str(path))
  assert [recorded(t) for t in texts] == [rules(t) for t in texts]
  assert rules.name in recorded.name and not recorded.is_parser
  with pytest.raises(DataError, match="no annotation of 'Other'"):
    recorded("Other")
  row = json.loads(path.read_text().splitlines()[0])
  row["sentences"][0][0][1][1] += 1
  path.write_text(json.dumps(row))
  with pytest.raises(DataError, match="jsonl:1: damaged annotation: no token"):
    annotate.make_annotator(str(path))


def test_missing_backends_are_refused(monkeypatch):
  for name in ("spacy", "stanza", "benepar"):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(InputError, match="is not installed. Run pip install"):
      annotate.make_annotator(name)
  with pytest.raises(UnavailableError, match="no such file of annotations"):
    annotate.make_annotator("missing.jsonl")


def test_wordnet_is_needed(monkeypatch):
  def refuse():
    raise InputError("There is no WordNet")

  monkeypatch.setattr(wordnet, "open_wordnet", refuse)
  with pytest.raises(InputError, match="no WordNet"):
    annotate.make_annotator("rules")
