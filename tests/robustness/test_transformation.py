"""Tests transformed sets, TextFlint's text of tokens, and the synonym swap."""

import random

import nltk
import pytest

from support.mini_wordnet import write_wordnet
from support.spacy_tokens import tag_words
from truenegs_jax.robustness import transformation as lib
from truenegs_jax.robustness.annotate import Annotator
from truenegs_jax.synonyms.wordnet import open_wordnet
from truenegs_jax.tasks.task import Question


def annotate(text):
  return (tag_words(text, r"\w+|[^\w\s]", "NN"),)


SWAP = lib.SwapSynonyms(
  Annotator("test", annotate), lambda token, tag: (f"{token}x",)
)


def make_question(context, *answers, key="q", text="Who?"):
  spans = tuple((answer, context.index(answer)) for answer in answers)
  return Question(key, text, context, spans, "file")


def upper(question, rng):
  if question.key == "hard":
    raise lib.Refused("no letter")
  return make_question(rng.choice(["A", "B", "x"]), key=question.key)


UPPER = lib.Transformation("upper", "Upper", upper, {"letters": "AB"})


def test_refusals_are_counted_by_cause():
  questions = [make_question("x", key=str(i)) for i in range(40)]
  questions.append(make_question("y", key="hard"))
  questions.append(make_question("y", key="blank", text=" "))
  result, again, other = (
    lib.transform_all(x, UPPER, seed=seed)
    for x, seed in ((questions, 0), (questions[::-1], 0), (questions, 1))
  )
  keys = [x.key for x in result.original]
  assert keys == [x.key for x in result.transformed]
  counts = {lib.SAME: 40 - len(keys), "no letter": 1, lib.BLANK: 1}
  assert result.about["refused"] == counts
  assert (result.about["tried"], result.about["changed"]) == (42, len(keys))
  assert result.about["resources"] == {"letters": "AB"}
  # Draws depend on the seed, but not on the other questions.
  drawn, same, others = (
    {x.key: x.context for x in y.transformed} for y in (result, again, other)
  )
  assert drawn == same != others
  assert {*drawn.values()} == {"A", "B"}


@pytest.mark.parametrize(
  ("tokens", "text"),
  [
    ("`` Hi , '' he said .", '"Hi," he said.'),
    ('" Hi " !', '" Hi "!'),
    ("( 10 % ) of wide - ranging x", "(10 %) of wide-ranging x"),
    ("Ann 's dogs ca n't . So ?", "Ann's dogs can't. So?"),
    ("I can not ; you : 3 .5", "I cannot; you: 3 .5"),
  ],
)
def test_text_follows_the_rules(tokens, text):
  assert lib.detokenize(tokens.split())[0] == text


def test_tokens_are_at_their_spans():
  words = ["a", "``", "''", '"', "(", ")", "n't", "'s", "can", "not", "-", ".,"]
  tokens = random.Random(0).choices(words, k=200)
  text, spans = lib.detokenize(tokens)
  quotes = {"``": '"', "''": '"'}
  expected = [quotes.get(token, token) for token in tokens]
  assert [text[a:b].replace(" ", "") for a, b in spans] == expected


@pytest.mark.parametrize(
  ("answer", "new"),
  [("Two  dogs", "Two dogs"), ("dogs", "dogs"), ("og", None), ("  ", None)],
)
def test_answers_move_with_their_tokens(answer, new):
  context = "( Two  dogs )"
  question = make_question(context, answer)
  tokens = tag_words(context, r"\S+", "NN")

  def change():
    places = lib.find_answers(question, tokens)
    return lib.replace_context(question, [x.text for x in tokens], places)

  if new is None:
    with pytest.raises(lib.Refused, match=lib.ILLEGAL):
      change()
  else:
    changed = change()
    assert changed.context == "(Two dogs)" and changed.key == "q"
    assert changed.answers == ((new, changed.context.index(new)),)


def make_satellite(folder):
  """Makes the adjective of the small WordNet a satellite of another one."""
  data, index = folder / "data.adj", folder / "index.adj"
  licence, synset = data.read_text().splitlines(keepends=True)
  synset = synset.replace(" 03 a ", " 03 s ").replace(" 000 ", " 001 & {} ")
  head = len(licence) + len(synset.format("00000000 a 0000"))
  synset = synset.format(f"{head:08} a 0000")
  data.write_text(f"{licence}{synset}{head:08} 03 a 01 fine 0 000 | fine  \n")
  index.write_text(f"{index.read_text()}fine a 1 0 1 0 {head:08}  \n")


@pytest.mark.parametrize(
  ("token", "tag", "synonyms"),
  [
    ("house", "NN", ("firm", "home")),  # no business_firm
    ("house", "VBD", ("lodge",)),
    ("house", "DT", ("firm", "home", "lodge")),  # all parts of speech
    ("took", "VBD", ("assume", "take")),  # not inflected
    ("good", "JJ", ()),  # dependable is in a satellite's synset
    ("good", "IN", ("dependable",)),
  ],
)
def test_synonyms_are_textflints(tmp_path, monkeypatch, token, tag, synonyms):
  make_satellite(write_wordnet(tmp_path / "corpora" / "wordnet"))
  monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
  reader = open_wordnet()
  assert lib.textflint_synonyms(reader)(token, tag) == synonyms


@pytest.mark.parametrize(
  ("size", "count"), [(1, 1), (19, 1), (99, 9), (250, 10)]
)
def test_a_tenth_of_the_tokens_is_swapped(size, count):
  context = " ".join(f"w{i}" for i in range(size))
  changed = SWAP(make_question(context), random.Random(0)).context
  assert changed.replace("x", "") == context
  assert changed.count("x") == count


def test_function_words_punctuation_and_answers_are_never_swapped():
  context = "The cat and the () dog ate (my fish)."
  question = make_question(context, "dog ate", "fish")
  changed = {SWAP(question, random.Random(seed)).context for seed in range(40)}
  assert changed == {context.replace("cat", "catx")}
  with pytest.raises(lib.Refused, match="not its tokens"):
    SWAP(make_question(context, "at"), random.Random(0))
  with pytest.raises(lib.Refused, match=lib.NO_SYNONYM):
    SWAP(make_question("and my (fish)", "fish"), random.Random(0))
