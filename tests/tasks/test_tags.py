"""Tests tags of words: their schemes, rows and scores, against seqeval."""

import json

import datasets
import numpy as np
import pytest

from support import tokenizer_files
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks import batches, entities, scoring, tags
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import METRICS, OWN, TAGS, Task

TYPES = ("creative-work", "person")
LABELS = entities.list_tags(TYPES)
TASK = Task(OWN, OWN, TAGS, columns=("tokens",), label_column="ner_tags")
# One sentence's entities in each scheme: two of a type that touch, and a lone.
SCHEMES = {
  "BIO": "B-a I-a B-a O B-b B-a I-a I-a",
  "IOB1": "I-a I-a B-a O I-b I-a I-a I-a",
  "IOBES": "B-a E-a S-a O S-b B-a I-a E-a",
}


def draw_tags(rng, sentences=40):
  """Draws tags of sentences, also such that no scheme allows."""
  sizes = rng.integers(1, 12, sentences)
  return [[*map(str, rng.choice(LABELS, size))] for size in sizes]


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_seqeval(seed):
  pytest.importorskip("seqeval")
  from seqeval import metrics
  from seqeval.scheme import IOB2

  rng = np.random.default_rng(seed)
  golds = [entities.to_bio(x) for x in draw_tags(rng)]
  answers = [
    [x if rng.random() < 0.6 else y for x, y in zip(*pair, strict=True)]
    for pair in zip(golds, map(reversed, golds), strict=True)
  ]
  ours = scoring.score_answers(METRICS[TAGS], golds, answers)
  listed = [*map(list, golds)]
  modes = {"": {}, "strict_": {"mode": "strict", "scheme": IOB2}}
  for prefix, mode in modes.items():
    for name in ("precision", "recall", "f1"):
      score = getattr(metrics, f"{name}_score")
      theirs = 100 * score(listed, answers, **mode)
      assert ours[f"{prefix}{name}"] == pytest.approx(theirs)
  assert ours["strict_f1"] != ours["f1"]
  report = metrics.classification_report(listed, answers, output_dict=True)
  for kind in TYPES:
    pair = ([entities.keep_type(x, kind) for x in y] for y in (golds, answers))
    by_type = scoring.score_answers(["f1", "recall"], *pair)
    assert by_type["f1"] == pytest.approx(100 * report[kind]["f1-score"])
    assert by_type["recall"] == pytest.approx(100 * report[kind]["recall"])


def test_entities_of_every_scheme_are_those_of_seqeval():
  labelling = pytest.importorskip("seqeval.metrics.sequence_labeling")
  known = ["O", *(f"{x}-{kind}" for x in "BIES" for kind in "ab")]
  for sentence in np.random.default_rng(0).choice(known, (200, 6)).tolist():
    ours = [(x, i, j - 1) for x, i, j in entities.find_entities(sentence)]
    assert ours == labelling.get_entities(sentence), sentence


def test_scores_of_drawn_and_of_single_sentences_are_those_of_a_run():
  golds = draw_tags(np.random.default_rng(0))
  answers = [*golds[:20], *reversed(golds[20:])]
  answers = [
    x[: len(y)] + y[len(x) :] for x, y in zip(answers, golds, strict=True)
  ]
  drawn_RxN = np.random.default_rng(1).integers(0, 40, (3, 40))
  for metric, scores in scoring.score_runs(
    METRICS[TAGS], golds, [answers]
  ).items():
    drawn = [
      scoring.score_answers(
        [metric], [golds[i] for i in rows], [answers[i] for i in rows]
      )[metric]
      for rows in drawn_RxN
    ]
    np.testing.assert_allclose(scores.draw(drawn_RxN)[0], drawn)
    score_N = scoring.example_scores(metric, golds, answers)
    assert score_N.shape == (40,) and score_N.std() > 0
    expected = scoring.score_answers([metric], golds, answers)[metric]
    assert score_N.mean() == pytest.approx(expected)


def test_no_entities_score_0():
  scores = scoring.score_answers(METRICS[TAGS], [["O"]], [["O"]])
  assert set(scores.values()) == {0.0}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_schemes_mean_the_same_and_are_named(scheme):
  sentence = SCHEMES[scheme].split()
  assert " ".join(entities.to_bio(sentence)) == SCHEMES["BIO"]
  named = entities.name_scheme([(["O"], "a:1"), (sentence, "a:3")])
  assert named.split(",")[0] == scheme


def test_entities_that_begin_with_i_are_said():
  mixed = [(SCHEMES["BIO"].split(), "a:1"), (["O", "I-a", "I-b"], "a:7")]
  assert "2 entities begin with I" in entities.name_scheme(mixed)
  assert "a:7" in entities.name_scheme(mixed)


def test_files_and_data_sets_hold_the_same_sentences(tmp_path):
  sentences = [("Ada", "Love lace", "."), ("Hi",)]
  golds = [("B-person", "I-person", "O"), ("O",)]
  conll = ["-DOCSTART-\tO", "", "Ada\tB-person", "Love lace\tI-person", ".\tO"]
  (tmp_path / "a.conll").write_text("\n".join([*conll, "\t", "Hi\tO"]))
  columns = {
    "tokens": [*map(list, sentences)],
    "ner_tags": [*map(list, golds)],
  }
  lines = [
    json.dumps({"tokens": words, "ner_tags": gold})
    for words, gold in zip(sentences, golds, strict=True)
  ]
  (tmp_path / "a.jsonl").write_text("\n".join(lines))
  kind = datasets.List(datasets.ClassLabel(names=[*LABELS]))
  features = datasets.Features(
    {"tokens": datasets.List(datasets.Value("string")), "ner_tags": kind}
  )
  saved = datasets.Dataset.from_dict(columns, features=features)
  datasets.DatasetDict({"train": saved}).save_to_disk(tmp_path / "saved")
  for where in ("a.conll", "a.jsonl", "saved"):
    path = str(tmp_path / where)
    path = f"hf:{path}" if where == "saved" else path
    sentences_read = tags.read_sentences(path, split="train", task=TASK)
    assert [x.words for x in sentences_read] == sentences, where
    assert [x.gold for x in sentences_read] == golds, where
  (tmp_path / "words.conll").write_text("Ada\n\nHi\n")
  path = str(tmp_path / "words.conll")
  sentences_read = tags.read_sentences(path, split="test", task=TASK)
  assert [x.gold for x in sentences_read] == [None, None]


@pytest.mark.parametrize(
  "name, text, message",
  [
    ("a.conll", "Ada B-per\nis O x\n", r"a.conll:2: .*columns is 3, not 2"),
    ("a.conll", "a O\n\nAda per\n", r"a.conll:3: the word 'Ada'.*'per'"),
    ("a.conll", "Ada B-place\n", r"a.conll:1: .*finetune.labels"),
    ("a.conll", "Ada\n", r"a.conll:1: .*columns is 1, not 2"),
    ("a.conll", "\n\n", "no words"),
    ("a.jsonl", {"tokens": [], "ner_tags": []}, "a.jsonl:1: .*a list of texts"),
    ("a.jsonl", {"tokens": ["a"], "ner_tags": [3]}, "a list of texts"),
    (
      "a.jsonl",
      {"tokens": ["a", "b"], "ner_tags": ["O"]},
      "2 words, but 1 tag",
    ),
  ],
)
def test_bad_sentences_are_refused_by_name(tmp_path, name, text, message):
  text = text if isinstance(text, str) else json.dumps(text)
  (tmp_path / name).write_text(text)
  task = Task(
    OWN, OWN, TAGS, LABELS, columns=("tokens",), label_column="ner_tags"
  )
  with pytest.raises(DataError, match=message):
    tags.read_sentences(str(tmp_path / name), split="dev", task=task)


def make_sentence(words, gold):
  return task_lib.Sentence("0", tuple(words), tuple(gold), "a:1")


@pytest.mark.parametrize("kind", ["bert", "bpe", "unigram", "wordpiece"])
def test_the_first_piece_of_each_word_has_its_tag(tmp_path, kind):
  if kind == "bert":
    path = tmp_path / "vocab.txt"
    pieces = ["sw", "##an", "##ims", "the", "a", "swan"]
    path.write_text("\n".join([*SPECIALS, *pieces]) + "\n")
  else:
    path = tokenizer_files.write_files(tmp_path, kind)
  tokenizer = load_tokenizer(str(path), lowercase=True)
  words = ["Swancrane", "the", "swims", "swimsflies", "a.", "grebe"]
  gold = [LABELS[i] for i in (0, 1, 2, 0, 3, 0)]
  rows = tags.encode([make_sentence(words, gold)], tokenizer, LABELS, length=64)
  [(ids, numbers)] = tokenizer.encode_words([words])
  for i, word in enumerate(words):
    own = [x for x, number in zip(ids, numbers, strict=True) if number == i]
    assert own == tokenizer.encode(f" {word}" if i else word)
    assert rows.words[0][i] == 1 + numbers.index(i)  # after [CLS]
  batch = batches.batch_at(rows, 0, batch_size=2, seed=0, limit=64)
  used_BxL = batch["tags"] >= 0
  assert used_BxL.sum() == len(words)
  logits_nxC = np.eye(len(LABELS))[np.maximum(batch["tags"], 0)]
  [row] = np.flatnonzero(used_BxL.any(axis=1))
  assert tags.decode_tags(rows, [logits_nxC[row]], LABELS) == [gold]


@pytest.fixture
def tokenizer(tmp_path):
  path = tmp_path / "vocab.txt"
  path.write_text("\n".join([*SPECIALS, "a", "##b"]) + "\n")
  return load_tokenizer(str(path), lowercase=True)


def test_words_without_a_piece_are_outside(tokenizer):
  sentence = make_sentence(["\u200b", "\xad"], ["B-person", "O"])
  rows = tags.encode([sentence], tokenizer, LABELS, length=6)
  logits = np.ones((2, len(LABELS)))
  assert tags.decode_tags(rows, [logits], LABELS) == [["O", "O"]]


def test_words_beyond_a_row_are_counted_and_outside(tokenizer):
  gold = ["B-person", "I-person", "B-person"]
  sentences = [make_sentence(["ab", "ab", "ab"], gold)]
  rows = tags.encode(sentences, tokenizer, LABELS, length=6)
  assert rows.num_cut == 1 and len(rows.tokens[0]) == 6
  logits = np.zeros((6, len(LABELS)))
  logits[:, LABELS.index("B-person")] = 1
  [answer] = tags.decode_tags(rows, [logits], LABELS)
  assert answer == ["B-person", "B-person", "O"]
