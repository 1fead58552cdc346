"""Tests the rules that hold for every transformation.

The answers stand at their offsets, nothing else changes than may, and draws
depend on the seed only. As a script, saves all sets to a folder.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
from unittest import mock

import pytest
from nltk.tree import Tree

from support.mini_wordnet import SYNSETS, write_wordnet
from support.spacy_tokens import make_tokens
from truenegs_jax.robustness import add_sentence, annotate, swap
from truenegs_jax.robustness import transformation as lib
from truenegs_jax.robustness.annotate import Annotator
from truenegs_jax.robustness.eval_set import save_set
from truenegs_jax.synonyms import wordnet
from truenegs_jax.tasks.task import Example, Question

SENTENCES = (
  "Ann's house in Indiana was not big; it is her home and firm.",
  "They stay at a good house, and did not take the house of Mr. Dee (a firm).",
  "It's \"good\": don't take the category 50 % of them are in, stay home!",
  "Remote villages of Indiana knew that they are going to take the house.",
)
ANSWERS = ("Indiana", "good house", "house", "They", "Dee", "take", "home")
CONVERTIBLE = [
  Question(
    key=f"q{i}",
    text=f"What is the house that they are said to take in {SENTENCES[i % 4]}",
    context=(context := " ".join([*SENTENCES[i % 4 :], *SENTENCES[: i % 4]])),
    answers=tuple(
      (answer, context.index(answer))
      for answer in (ANSWERS[i % 7], ANSWERS[i % 7], ANSWERS[i % 5])
    ),
    location=f"file, question q{i}",
  )
  for i in range(28)
]
REFUSED = [
  Question("blank", " ", " ", (), "file"),
  Question("fixed", "12-%", "12-%", (("12", 0),), "file"),
]
TEXTS = [Example(q.key, q.context, q.text, "x", "") for q in CONVERTIBLE]
TEXTS += [Example("one", "It's the house.", None, 0.5, "")]
TEXTS += [
  Example("blank", "a", " ", "x", ""),
  Example("fixed", "%", "%", 1, ""),
]
DATA = {"questions": CONVERTIBLE + REFUSED, "texts": TEXTS}

TAGS = {"house": "NN", "home": "NN", "stay": "VB", "take": "VB", "good": "JJ"}
TAGS |= {"What": "WP", "is": "VBZ"}
TOKEN = r"\w+(?=n't\b)|n't\b|'s\b|Mr\.|\w+|[^\w\s]"
GROUPS = [set(lemmas) for synsets in SYNSETS.values() for lemmas in synsets]
WORDS = sorted(set().union(*GROUPS))


def annotate_text(text):
  """Returns one sentence."""
  words = re.findall(TOKEN, text)
  return (make_tokens(text, words, [TAGS.get(x, "DT") for x in words]),)


def parse(tokens):
  """Returns the tree `What` `is` NP of a question."""
  what, verb, *rest = [Tree(token.tag_, [token.text]) for token in tokens]
  if what[0] == "What":
    return Tree("SBARQ", [Tree("WHNP", [what]), verb, Tree("NP", rest)])
  return None


@contextlib.contextmanager
def make_all(folder):
  """Yields every transformation, by its name."""
  write_wordnet(folder / "wordnet")
  annotator = Annotator("test", annotate_text)
  reader = wordnet.open_wordnet(str(folder))
  with mock.patch.object(annotate, "parse_question", parse):
    yield {
      "swap_synonyms": swap.make_swap(annotator, reader),
      "add_sentence": add_sentence.make_add_sentence(
        annotator, reader, CONVERTIBLE
      ),
    }


CASES = [
  pytest.param(name, DATA[data], id=f"{name}-{data}")
  for name in ("swap_synonyms", "add_sentence")
  for data in DATA
  if data == "questions" or name != "add_sentence"
]


@pytest.fixture(scope="module")
def transformations(tmp_path_factory):
  with make_all(tmp_path_factory.mktemp("wordnet")) as transformations:
    yield transformations


def squeeze(text):
  return re.sub(r"\s", "", text)


def check_answers(old, new):
  """The answers stand at their offsets; nothing but texts changes."""
  if isinstance(old, Question):
    assert old.text == new.text
    for (before, _), (answer, start) in zip(
      old.answers, new.answers, strict=True
    ):
      assert answer and new.context.startswith(answer, start)
      assert squeeze(answer).lower() == squeeze(before).lower()
    same = {"context": "", "answers": ()}
  else:
    same = {"first": "", "second": ""}
  assert dataclasses.replace(old, **same) == dataclasses.replace(new, **same)


def check_swap(old, new):
  old, new = re.findall(TOKEN, old), re.findall(TOKEN, new)
  changed = [(a, b) for a, b in zip(old, new, strict=True) if a != b]
  assert len(changed) <= max(1, len(old) // 10)
  for a, b in changed:
    forms = {a.lower(), b.lower()}
    assert any(forms <= {x.lower() for x in group} for group in GROUPS)


def check_add(old, new):
  old, new = squeeze(old), squeeze(new)
  start = len(os.path.commonprefix([old, new]))
  assert len(new) > len(old) and new.endswith(old[start:])


CHECKS = {
  "swap_synonyms": check_swap,
  "add_sentence": check_add,
}
CAUSES = {
  "swap_synonyms": swap.NO_SYNONYM,
  "add_sentence": add_sentence.NO_RULE,
}


@pytest.mark.parametrize(("name", "examples"), CASES)
def test_every_transformation_keeps_the_rules(transformations, name, examples):
  first, again, other = (
    lib.transform_all(examples, transformations[name], seed=seed)
    for seed in (0, 0, 1)
  )
  assert first == again
  is_same = first.transformed == other.transformed
  assert is_same == (name == "add_sentence")  # which draws nothing
  assert first.about["refused"] == {lib.BLANK: 1, CAUSES[name]: 1}
  assert len(first.original) == first.about["tried"] - 2 == len(examples) - 2
  for result in (first, other):
    for old, new in zip(result.original, result.transformed, strict=True):
      check_answers(old, new)
      pairs = zip(old.texts, new.texts, strict=True)
      changed = [(before, after) for before, after in pairs if before != after]
      assert changed
      for before, after in changed:
        CHECKS[name](before, after)


def save_all(folder):
  """Saves a set of each of CASES."""
  with make_all(folder) as transformations:
    for case in CASES:
      name, examples = case.values
      result = lib.transform_all(examples, transformations[name], seed=3)
      save_set(result, folder / case.id)


def read_all(folder):
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.glob("*-*/*"))
  }


@pytest.mark.slow
def test_sets_are_the_same_in_another_process(tmp_path):
  path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
  command = [sys.executable, __file__, str(tmp_path / "there")]
  seed = "1" if os.environ.get("PYTHONHASHSEED") == "0" else "0"
  environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed}
  with subprocess.Popen(command, env=environment) as worker:
    save_all(tmp_path / "here")
    assert worker.wait() == 0
  ours, theirs = (read_all(tmp_path / name) for name in ("here", "there"))
  assert len(ours) == 2 * len(CASES) and ours == theirs


if __name__ == "__main__":
  save_all(pathlib.Path(sys.argv[1]))
