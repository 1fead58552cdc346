"""Reads sentences with a tag for each word, and encodes them as rows.

  sentences = read_sentences("train.conll", split="train", task=task)
  rows = encode(sentences, tokenizer, task.labels, length=128)
  decode_tags(rows, [logits_nxC, ...], task.labels)  # [["B-loc", "O"], ...]

A row is [CLS] words [SEP]; the tag of a word is that of its first piece.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.runtime import text as text_lib
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.tasks import entities
from truenegs_jax.tasks.records import HUB, Record, read_dataset, read_file
from truenegs_jax.tasks.task import EncodedRows, Sentence, Task

DOCUMENT = "-DOCSTART-"  # the word of a line before each document
WORD = "word"
TAG = "tag"


def read_sentences(where: str, *, split: str, task: Task) -> list[Sentence]:
  """Reads sentences, in order; those of a test set may lack tags.

  `where` is a file, plain or compressed; or a data set, "hf:NAME split=S". JSON
  lines and data sets have a list of words and one of tags in the task's
  columns. Other files have a word on each line, its tag in the last column, and
  an empty line after each sentence (CoNLL 2003).
  """
  words_column = task.columns[0]
  tags_column = task.label_column
  suffix, _ = text_lib.split_suffixes(where)
  records: Iterator[Record]
  if where.startswith(HUB):
    records = read_dataset(where, split=split)
  elif suffix in (".jsonl", ".json"):
    records = read_file(where)
  else:
    records = _read_columns(where, least=1 if split == "test" else 2)
    words_column = WORD
    tags_column = TAG
  sentences = []
  for number, record in enumerate(records):
    words = record.strings(words_column)
    tags = None
    if split != "test" or record.fields.get(tags_column) is not None:
      tags = record.strings(tags_column)
      _check_tags(record.location, words, tags, task.labels)
    sentences.append(Sentence(str(number), words, tags, record.location))
  return sentences


def _read_columns(path: str, *, least: int) -> Iterator[Record]:
  """Yields the sentences of a file with a word on each line.

  All lines have as many columns as the first, and at least `least`.
  """
  rows = [(n, _split_line(line)) for n, line in text_lib.read_lines(path)]
  widths = [len(fields) for _, fields in rows if fields]
  if not widths:
    raise DataError(f"{path}: the file has no words. Choose another file.")
  width = max(widths[0], least)
  for number, fields in rows:
    if fields and len(fields) != width:
      raise DataError(
        f"{path}:{number}: the number of columns is {len(fields)}, not {width}."
        " Write a word and its tag on each line, divided by a tab, and an empty"
        " line after each sentence."
      )
  for is_sentence, lines in itertools.groupby(rows, lambda x: bool(x[1])):
    if is_sentence:
      numbers, words = zip(*lines, strict=True)
      columns = {WORD: [x[0] for x in words]}
      if width > 1:
        columns[TAG] = [x[-1] for x in words]
      yield Record(f"{path}:{numbers[0]}", columns)


def _split_line(line: str) -> list[str]:
  """Returns the columns of a line; none between sentences and documents."""
  text = line.rstrip()
  fields = text.split("\t") if "\t" in text else text.split()
  return [] if fields[:1] == [DOCUMENT] else fields


def _check_tags(
  location: str,
  words: Sequence[str],
  tags: Sequence[str],
  known: Sequence[str],
) -> None:
  """Refuses tags that do not belong to these words or to the task."""
  if len(words) != len(tags):
    raise DataError(
      f"{location}: {len(words)} words, but {len(tags)} tags. Each word must"
      " have one. Correct the sentence or remove it."
    )
  types = {x.partition("-")[2] for x in known}
  for word, tag in zip(words, tags, strict=True):
    if not entities.TAG.fullmatch(tag):
      raise DataError(
        f"{location}: the word {word!r:.40} has the tag {tag!r:.40}. Tags are"
        " O, B-TYPE and I-TYPE, also E-TYPE and S-TYPE. Correct the file."
      )
    kind = tag.partition("-")[2]
    if known and kind and kind not in types:
      raise DataError(
        f"{location}: the word {word!r:.40} has the tag {tag!r:.40}, whose type"
        " is neither in the training file nor in finetune.labels. Name all"
        " types in --config.finetune.labels=TYPE,TYPE."
      )


def encode(
  sentences: Sequence[Sentence],
  tokenizer: Tokenizer,
  labels: Sequence[str],
  *,
  length: int,
) -> EncodedRows:
  """Encodes each sentence as a row of at most `length` token ids, in order.

  The words of a sentence are joined by spaces. Those that do not fit are cut
  off. `tags` is empty unless all sentences have tags.
  """
  rows: list[np.ndarray] = []
  places: list[np.ndarray] = []
  num_cut = 0
  encoded = tokenizer.encode_words([x.words for x in sentences])
  for sentence, (pieces, words) in zip(sentences, encoded, strict=True):
    num_cut += len(pieces) > length - 2
    # int, as BERT's normalizer may leave no piece of any word.
    kept = np.array(words[: length - 2], int)
    word_K, first_K = np.unique(kept, return_index=True)
    place_W = np.full(len(sentence.words), -1)
    place_W[word_K] = first_K + 1  # after [CLS]
    row = [tokenizer.cls, *pieces[: length - 2], tokenizer.sep]
    rows.append(np.array(row, np.int32))
    places.append(place_W)
  types = [np.zeros_like(x) for x in rows]
  ids = {label: i for i, label in enumerate(labels)}
  golds = [x.gold for x in sentences if x.gold is not None]
  tags = [np.array([ids[x] for x in gold], np.int32) for gold in golds]
  if len(tags) < len(rows):
    tags = []
  return EncodedRows(rows, types, {}, num_cut, places, tags)


def decode_tags(
  rows: EncodedRows, logits: Sequence[np.ndarray], labels: Sequence[str]
) -> list[list[str]]:
  """Returns the best tags of the words of each row; O of those cut off.

  `logits` are f32 `[n, C]` of each row; positions after its tokens are ignored.
  """
  outside = labels.index(entities.OUTSIDE)
  answers = []
  for place_W, logits_nxC in zip(rows.words, logits, strict=True):
    best_W = logits_nxC.argmax(axis=-1)[place_W]
    best_W = np.where(place_W < 0, outside, best_W)
    answers.append([labels[i] for i in best_W])
  return answers
