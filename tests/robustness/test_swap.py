"""Tests the rules of the synonym swap, which are TextFlint's."""

import random

import pytest

from support.mini_wordnet import write_wordnet
from support.spacy_tokens import tag_words
from truenegs_jax.robustness import swap as lib
from truenegs_jax.robustness.annotate import Annotator
from truenegs_jax.robustness.transformation import Refused
from truenegs_jax.synonyms.wordnet import open_wordnet
from truenegs_jax.tasks.task import Example, Question


def annotate(text):
  return (tag_words(text, r"\w+|[^\w\s]", "NN"),)


ANNOTATOR = Annotator("test", annotate)


def every_word(token, tag):
  return (f"{token}x",)


SWAP = lib.SwapSynonyms(ANNOTATOR, every_word)


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
    ("House", "NNP", ("firm", "home", "house")),  # case counts
    ("took", "VBD", ("assume", "take")),  # not inflected
    ("good", "JJ", ()),  # dependable is in a satellite's synset
    ("good", "IN", ("dependable",)),
    ("category", "NN", ()),
    ("unknown", "NN", ()),
  ],
)
def test_synonyms_are_textflints(tmp_path, token, tag, synonyms):
  make_satellite(write_wordnet(tmp_path / "wordnet"))
  reader = open_wordnet(str(tmp_path))
  assert lib.textflint_synonyms(reader)(token, tag) == synonyms


@pytest.mark.parametrize(
  ("size", "count"), [(1, 1), (19, 1), (20, 2), (99, 9), (100, 10), (250, 10)]
)
def test_a_tenth_of_the_tokens_is_swapped(size, count):
  text = " ".join(f"w{i}" for i in range(size))
  changed = SWAP(Example("k", text, None, "x", ""), random.Random(0))
  assert changed.first.replace("x", "") == text
  assert changed.first.count("x") == count


def test_function_words_punctuation_and_answers_are_never_swapped():
  context = "The cat and the () dog ate (my fish)."
  answers = tuple((a, context.index(a)) for a in ("dog ate", "fish"))
  question = Question("q", "Who?", context, answers, "")
  changed = {SWAP(question, random.Random(seed)).context for seed in range(40)}
  assert changed == {context.replace("cat", "catx")}
  part = Question("q", "Who?", context, (("at", context.index("at")),), "")
  with pytest.raises(Refused, match="not its tokens"):
    SWAP(part, random.Random(0))


def test_one_text_of_a_pair_may_have_no_synonym():
  swap = lib.SwapSynonyms(
    ANNOTATOR, lambda token, tag: ("cat",) if token == "dog" else ()
  )
  pair = Example("k", "a  dog", "( a  bird )", 1.5, "")
  changed = swap(pair, random.Random(0))
  assert (changed.first, changed.second) == ("a cat", "( a  bird )")
  with pytest.raises(Refused, match=lib.NO_SYNONYM):
    swap(Example("k", "bird", None, 1.5, ""), random.Random(0))


def test_results_name_the_source(tmp_path):
  write_wordnet(tmp_path / "wordnet")
  reader = open_wordnet(str(tmp_path))
  swap = lib.make_swap(ANNOTATOR, reader)
  example = Example("k", "house", None, "x", "")
  assert swap.apply(example, random.Random(0)).first in ("home", "firm")
  assert swap.name == "swap_synonyms" and swap.title == "SwapSynWordNet"
  source = "WordNet (unknown version)"
  assert swap.resources == {"annotations": "test", "synonyms": source}
