"""Tests that mistakes are wrong answers, and which answers are useless."""

import numpy as np
import pytest

from truenegs_jax.configs import finetune_glue, finetune_squad
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.options import parse_options
from truenegs_jax.tasks.task import SQUAD, TASKS, Example, Question

TOKENIZER = make_tokenizer([*SPECIALS, *"abcdefghij0123456789"], lowercase=True)


def make_split(task, examples):
  module = finetune_squad if task.name == SQUAD else finetune_glue
  options = parse_options(module.get_config().to_dict())
  return task_data.encode_split(options, task, examples, TOKENIZER)


def make_pairs(labels):
  return [
    Example(f"key {i}", f"first {i}", f"second {i} " + "a" * 600, label, "")
    for i, label in enumerate(labels)
  ]


@pytest.mark.parametrize("size", [50, 3_000])
def test_wrong_classes_have_their_texts_and_probabilities(size):
  task, rng = TASKS["rte"], np.random.default_rng(1)
  label_N, is_wrong_N = rng.integers(2, size=size), rng.random(size) < 0.3
  labels = [task.labels[i] for i in label_N]
  split = make_split(task, make_pairs(labels))
  outputs = list(np.log(3) * np.eye(2)[label_N ^ is_wrong_N])
  answers = split.decode_answers(outputs)
  wrong = task_data.find_mistakes(split, outputs, answers)
  assert wrong == task_data.find_mistakes(split, outputs, answers)
  assert len(wrong) == min(is_wrong_N.sum(), task_data.MOST)
  numbers = [int(x["key"].split()[1]) for x in wrong]
  assert numbers == sorted(set(numbers))
  if len(wrong) < is_wrong_N.sum():  # drawn from all parts of the set
    assert np.histogram(numbers, 5, (0, size))[0].min() > 5
  for number, x in zip(numbers, wrong, strict=True):
    assert x["gold"] == labels[number] != x["answer"] == answers[number]
    assert x["probability"] == pytest.approx(0.75)
    first, second = x["text"].split("\n")
    assert first == f"first {number}"
    assert second.startswith(f"second {number} a") and len(second) == 500


def test_scores_have_the_largest_errors_first():
  task, golds = TASKS["stsb"], np.linspace(0, 5, 301)
  split = make_split(task, make_pairs(golds.tolist()))
  errors = np.random.default_rng(0).permutation(301) / 100
  outputs = list((golds + errors)[:, None] / task.scale[1])
  answers = split.decode_answers(outputs)
  wrong = task_data.find_mistakes(split, outputs, answers)
  expected = np.argsort(-errors)[:100]
  assert [x["key"] for x in wrong] == [f"key {i}" for i in expected]
  for i, x in zip(expected, wrong, strict=True):
    assert x["gold"] == golds[i] and f"first {i}\n" in x["text"]
    assert x["answer"] - x["gold"] == pytest.approx(errors[i])


def test_wrong_answers_show_the_context_around_the_gold_answer():
  context = " ".join(f"word{i}" for i in range(400))
  questions = []
  for i in (0, 200, 399, 5):
    text = f"word{i}"
    answers = ((text, context.index(text)), (f"that {text}", 0))
    questions.append(Question(f"q{i}", f"what {i}?", context, answers, ""))
  split = make_split(TASKS[SQUAD], questions)
  answers = ["a", "b", "c", "WORD5."]  # the last is right
  wrong = task_data.find_mistakes(split, [], answers)
  assert [(x["key"], x["answer"]) for x in wrong] == [
    ("q0", "a"),
    ("q200", "b"),
    ("q399", "c"),
  ]
  for x in wrong:
    number = x["key"][1:]
    question, shown = x["text"].split("\n")
    assert question == f"what {number}?" and len(shown) == 500
    assert f"word{number}" in shown.split() and shown in context
    assert x["gold"] == f"word{number} | that word{number}"


@pytest.mark.parametrize(
  "gold, predicted, reason",
  [
    ([0, 1, 1], [1, 1, 1], "all 3 predictions are 1"),
    ([0, 1, 1], [1, 0, 0], ""),  # wrong, but not constant
    ([1, 1], [1, 1], ""),
    ([0.0, 5.0], [1.0, np.inf], "finite"),
    ([0.0, 5.0, 2.0], [2.5, 2.5001, 2.5], "range"),
    ([0.0, 5.0, 2.0], [2.5, 2.6, 2.5], ""),
    (["a", "b"], ["the", "the"], "'the'"),
    (["a", "b"], ["the", "b"], ""),
  ],
)
def test_runs_with_constant_predictions_failed(gold, predicted, reason):
  failure = task_data.find_failure(gold, predicted)
  assert (reason in failure) if reason else not failure
