"""Tests annotations: rules, recorded files and stand-ins for spaCy."""

import functools
import json
import sys
import types

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
  "tokens",
  [
    "in 720p at 6 p.m. or later",
    "the U.S population and the U.S. army",
    "21st 1990s 1,000.5 3D",
    "$ 5 or 10 %",
  ],
)
def test_tokens_stay_together(tokens):
  text = tokens.replace("$ ", "$").replace(" %", "%")
  assert words_of(text) == [tokens.split()]


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
      "What are ABC's talk shows?",  # talk and shows are verbs as well
      "(SBARQ (WHNP (WP What)) (SQ (VBP are) (NP (NNP ABC) (POS 's) (NN talk)"
      " (NNS shows))) (. ?))",
    ),
    (
      "The war ended in what year?",
      "(SBARQ (DT The) (NN war) (VBD ended) (WHPP (IN in) (WHNP (WDT what)"
      " (NN year))) (. ?))",
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
  rules(texts[1])  # without being drawn
  annotate.save_annotations(path, [texts[0], texts[2]], rules)
  recorded = annotate.make_annotator(str(path))
  assert [recorded(t) for t in texts] == [rules(t) for t in texts]
  assert rules.name in recorded.name and not recorded.is_parser
  with pytest.raises(DataError, match="no annotation of 'Other'"):
    recorded("Other")
  lines = path.read_text().splitlines()
  [row] = [row for row in map(json.loads, lines) if row["text"] == TEXT]
  row["sentences"][0][0][1][1] += 1
  path.write_text(json.dumps(row))
  with pytest.raises(DataError, match="jsonl:1: damaged annotation: no token"):
    annotate.make_annotator(str(path))


def test_missing_backends_are_refused(monkeypatch):
  for name in ("spacy", "stanza", "benepar"):
    monkeypatch.setitem(sys.modules, name, None)
  for name in ("spacy", "stanza", "benepar"):
    with pytest.raises(InputError, match="is not installed. Run pip install"):
      annotate.make_annotator(name)
  with pytest.raises(
    UnavailableError, match="annotations='missing.jsonl': there"
  ):
    annotate.make_annotator("missing.jsonl")


SPACY_TEXT = "Who  won in Rome?"
PARSE = (
  "(SBARQ (WHNP (WP Who)) (SQ (VP (VBD won) (PP (IN in) (NP Rome)))) (. ?))"
)


def spacy_stand_in(monkeypatch):
  """Installs a module spacy whose model knows SPACY_TEXT, and benepar."""
  rows = [("Who", "WP", ""), (" ", "_SP", ""), ("won", "VBD", "")]
  rows += [("in", "IN", ""), ("Rome", "NNP", "GPE"), ("?", ".", "")]
  tokens, start = [], 0
  for word, tag, entity in rows:
    start = SPACY_TEXT.index(word, start)
    tokens.append(
      types.SimpleNamespace(
        text=word,
        idx=start,
        tag_=tag,
        lemma_=word,
        ent_type_=entity,
        is_space=word == " ",
      )
    )
    start += len(word)
  pipes = []

  class Span(list):
    _ = types.SimpleNamespace(parse_string=PARSE)

  class Model:
    def __call__(self, text):
      assert text == SPACY_TEXT
      return types.SimpleNamespace(sents=[Span(tokens)])

    def add_pipe(self, name, config):
      pipes.append((name, config))

  spacy = types.ModuleType("spacy")
  spacy.__version__ = "3.7"
  spacy.util = types.SimpleNamespace(is_package=lambda name: "_md" in name)
  spacy.load = lambda name: Model()
  benepar = types.ModuleType("benepar")
  benepar.__version__ = "0.2"
  monkeypatch.setitem(sys.modules, "spacy", spacy)
  monkeypatch.setitem(sys.modules, "benepar", benepar)
  return pipes


@pytest.mark.parametrize("choice, is_parser", [("spacy", 0), ("benepar", 1)])
def test_spacy_gives_tokens_and_benepar_trees(monkeypatch, choice, is_parser):
  pipes = spacy_stand_in(monkeypatch)
  annotator = annotate.make_annotator(choice)
  (sentence,) = annotator(SPACY_TEXT)
  words = [SPACY_TEXT[t.start : t.end] for t in sentence.tokens]
  assert words == ["Who", "won", "in", "Rome", "?"]
  assert sentence.tokens[3][3:] == ("NNP", "Rome", "LOCATION")
  assert annotator.is_parser == is_parser == len(pipes)
  assert annotator.name.startswith("spaCy 3.7 en_core_web_md")
  if is_parser:
    assert sentence.tree == parse_question.read_tree(PARSE)
    return
  assert sentence.tree[1][0][1][0] == ("WHNP", (("WP", "Who"),))


def test_stanza_gives_tokens_and_trees(monkeypatch):
  def token(text, start, tag, ner):
    word = types.SimpleNamespace(xpos=tag, lemma=text.lower())
    end = start + len(text)
    return types.SimpleNamespace(
      text=text, start_char=start, end_char=end, ner=ner, words=[word]
    )

  sentence = types.SimpleNamespace(
    tokens=[token("Rome", 0, "NNP", "S-GPE"), token("won", 5, "VBD", "O")],
    constituency="(ROOT (S (NP (NNP Rome)) (VP (VBD won))))",
  )
  stanza = types.ModuleType("stanza")
  stanza.__version__ = "1.9"
  stanza.Pipeline = lambda *_, **options: (
    lambda text: types.SimpleNamespace(sentences=[sentence])
  )
  monkeypatch.setitem(sys.modules, "stanza", stanza)
  annotator = annotate.make_annotator("stanza")
  ((tokens, tree),) = annotator("Rome won")
  assert [t.entity for t in tokens] == ["LOCATION", ""]
  assert tree == parse_question.read_tree(sentence.constituency)
  assert annotator.is_parser and annotator.name == "Stanza 1.9"


@pytest.mark.parametrize(
  "usable, expected",
  [("spacy stanza benepar", "benepar"), ("spacy", "spacy"), ("", "rules")],
)
def test_auto_takes_the_best_that_is_usable(monkeypatch, usable, expected):
  def make(name):
    if name not in usable.split():
      raise InputError("not installed, or no model")
    return name

  for name in annotate._MAKERS:
    maker = functools.partial(make, name)
    monkeypatch.setitem(annotate._MAKERS, name, maker)
  monkeypatch.setattr(annotate, "_by_rules", lambda folder: "rules")
  assert annotate.make_annotator("auto") == expected


def test_wordnet_is_needed(monkeypatch):
  def refuse(folder):
    raise InputError("There is no WordNet")

  monkeypatch.setattr(wordnet, "open_wordnet", refuse)
  with pytest.raises(InputError, match="no WordNet"):
    annotate.make_annotator("rules")


def test_sentences_of_one_word_have_trees():
  label, _ = parse_question.parse([("JJ", "cool"), (".", "?")])
  assert label == "ROOT"
