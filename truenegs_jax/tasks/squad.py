"""Questions of SQuAD v1.1, from the official JSON or through `datasets`.

What other data have in the same form is read as well.

  questions = read_squad("dev-v1.1.json")  # .gz, .xz, .zst and .bz2, too
  questions = read_squad("hf:rajpurkar/squad", split="dev")
"""

import collections
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from truenegs_jax.data.corpus import files
from truenegs_jax.data.corpus.read_state import BLOCK_BYTES, ReadState
from truenegs_jax.runtime.errors import DataError, UnavailableError
from truenegs_jax.tasks.records import HUB, read_dataset
from truenegs_jax.tasks.task import SPANS, Task

TASK = Task(
  name="squad",
  title="SQuAD v1.1",
  kind=SPANS,
  metrics=("em", "f1"),
  epochs=2.0,
  split_sizes={"train": 87_599, "dev": 10_570},
)
MOVED = "answers that stand elsewhere than answer_start says"
_V2 = "as in SQuAD v2.0; v1.1 is read, where every question has an answer"


@dataclasses.dataclass(frozen=True)
class Question:
  """A question on a context.

  Attributes:
    key: its id, unique in the file.
    text, context: neither is blank.
    answers: text and first character in `context`, one or more; training has
      one, the dev set those of several people.
    location: file, article, paragraph and id, for messages.
  """

  key: str
  text: str
  context: str
  answers: tuple[tuple[str, int], ...]
  location: str


def read_squad(
  where: str,
  *,
  split: str = "train",
  anomalies: collections.Counter[str] | None = None,
) -> list[Question]:
  """Reads all questions, in order.

  Args:
    where: a JSON file, plain or compressed; or hf:NAME, a data set of the hub
      or a folder, as `parse_dataset_name` has it.
    split: "train" or "dev", of what hf: names.
    anomalies: counts, under MOVED, answers whose text is not where the
      data say; they are taken from the nearest place that has it.

  Raises:
    DataError: damaged, not SQuAD v1.1, repeated ids, blank texts, or an answer
      that its context has nowhere; named by file, article, paragraph and id.
    UnavailableError: no such file, or the hub cannot be reached.
  """
  is_hub = where.startswith(HUB)
  questions: dict[str, Question] = {}
  for place, context, record in (
    _hub_records(where, split) if is_hub else _json_records(where)
  ):
    question = _question(place, context, record, anomalies)
    if question.key in questions:
      raise DataError(
        f"{question.location}: this id stands already in"
        f" {questions[question.key].location}; answers go by ids: give every"
        " question one of its own."
      )
    questions[question.key] = question
  if not questions:
    raise DataError(f"{where}: holds no questions: is it the right file?")
  return list(questions.values())


def _json_records(where: str) -> Iterator[tuple[str, str, Any]]:
  """Place of the paragraph, its context, and a record of "qas"."""
  root = _load_json(where)
  for number, article in enumerate(_get(root, "data", list, where), start=1):
    article_place = f"{where}: article {number}"
    if isinstance(article, dict) and "title" in article:
      article_place += f" ({article['title']})"
    paragraphs = _get(article, "paragraphs", list, article_place)
    for paragraph_number, paragraph in enumerate(paragraphs, start=1):
      place = f"{article_place}, paragraph {paragraph_number}"
      context = _get(paragraph, "context", str, place)
      for record in _get(paragraph, "qas", list, place):
        yield place, context, record


def _load_json(where: str) -> Any:
  path = files.find_existing(where)
  if path is None:
    raise UnavailableError(
      f"{where}: no such file: give train-v1.1.json or dev-v1.1.json, which may"
      " be compressed, or hf:rajpurkar/squad."
    )
  file = files.stat_file(path)
  content = b"".join(files.read_blocks(file, ReadState(), size=BLOCK_BYTES))
  try:
    return json.loads(content)
  except (ValueError, RecursionError) as error:  # also bytes that no UTF-8 has
    raise DataError(
      f"{where}: no JSON ({error}): fetch the file again."
    ) from error


def _hub_records(where: str, split: str) -> Iterator[tuple[str, str, Any]]:
  """As `_json_records`, of a data set with the columns of rajpurkar/squad."""
  for place, row in read_dataset(where, split=split):
    columns = _get(row, "answers", dict, place)
    texts = _get(columns, "text", list, place)
    starts = _get(columns, "answer_start", list, place)
    answers = [
      {"text": text, "answer_start": start}
      for text, start in zip(texts, starts, strict=False)
    ]
    yield place, _get(row, "context", str, place), row | {"answers": answers}


def _question(
  place: str,
  context: str,
  record: Any,
  anomalies: collections.Counter[str] | None,
) -> Question:
  key = _get(record, "id", str, place)
  place = f"{place}, question {key}"
  text = _get(record, "question", str, place)
  for name, value in (("context", context), ("question", text)):
    if not value.strip():
      raise DataError(f"{place}: the {name} is blank: mend or drop the record.")
  answers = _get(record, "answers", list, place)
  if record.get("is_impossible") or not answers:
    raise DataError(
      f"{place}: a question without answers, {_V2}: give train-v1.1.json or"
      " dev-v1.1.json, or drop such questions."
    )
  spans = []
  for answer in answers:
    answer_text = _get(answer, "text", str, place)
    given = _get(answer, "answer_start", int, place)
    start = _find(context, answer_text, given, place)
    if start != given and anomalies is not None:
      anomalies[MOVED] += 1
    spans.append((answer_text, start))
  return Question(key, text, context, tuple(spans), place)


def _find(context: str, answer: str, start: int, place: str) -> int:
  """Where an answer begins: at `start`, or else as near to it as possible."""
  if not answer.strip():
    raise DataError(f"{place}: a blank answer: mend or drop the record.")
  if start >= 0 and context.startswith(answer, start):
    return start
  places = [i for i in range(len(context)) if context.startswith(answer, i)]
  if not places:
    there = context[max(0, start) :][: len(answer)]
    raise DataError(
      f"{place}: the answer {answer!r} stands nowhere in the context; at its"
      f" answer_start, {start}, there is {there!r}: mend or drop the record."
    )
  return min(places, key=lambda i: abs(i - start))


def _get(record: Any, key: str, kind: type, place: str) -> Any:
  """A value of a JSON object, of the right kind."""
  if not isinstance(record, dict) or not isinstance(record.get(key), kind):
    what = record.get(key) if isinstance(record, dict) else record
    raise DataError(
      f"{place}: no {key!r} that is a {kind.__name__}, but {what!r:.40}; SQuAD"
      " has data / paragraphs / context, qas / id, question, answers / text,"
      " answer_start: give a file of this form."
    )
  return record[key]
