"""Reads questions of SQuAD v1.1, or of data sets in the same form.

questions = read_squad("dev-v1.1.json")  # or .gz, .xz, .zst, .bz2
questions = read_squad("hf:rajpurkar/squad", split="dev")
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from truenegs_jax.data.corpus import files
from truenegs_jax.runtime.errors import DataError, UnavailableError
from truenegs_jax.runtime.files import parse_json
from truenegs_jax.tasks.records import HUB, read_dataset, read_file
from truenegs_jax.tasks.task import Question

MOVED = "answers that are not at their answer_start"
Value = TypeVar("Value")


def read_squad(
  where: str, *, split: str = "train", moved: list[str] | None = None
) -> list[Question]:
  """Reads all questions, in order.

  Args:
    where: a file, plain or compressed; or a data set, "hf:NAME split=S". A file
      is SQuAD's JSON, or has a question with its context on each line, in an
      array or in the list "data".
    moved: receives the location of each answer that is not at its answer_start;
      they are moved to the nearest occurrence.
  """
  is_hub = where.startswith(HUB)
  records = read_dataset(where, split=split) if is_hub else _read_json(where)
  questions: dict[str, Question] = {}
  for location, context, record in _find_questions(records):
    question = parse_question(location, context, record, moved)
    known = questions.setdefault(question.key, question)
    if known is not question:
      raise DataError(
        f"{question.location}: the id is already in {known.location}. Give each"
        " question a unique id."
      )
  if not questions:
    raise DataError(f"{where}: no questions. Choose another file.")
  return list(questions.values())


def _read_json(where: str) -> Iterator[tuple[str, Any]]:
  """Yields location and value of each article or question of a file."""
  path = files.find_existing(where)
  if path is None:
    raise UnavailableError(
      f"{where}: there is no such file. Pass train-v1.1.json or dev-v1.1.json,"
      " plain or compressed, or hf:rajpurkar/squad."
    )
  content = b"".join(files.read_blocks(files.stat_file(path)))
  if content.startswith(b"["):
    content = b'{"data": ' + content + b"}"
  try:
    value = parse_json(content, strict=False)
  except ValueError as error:
    if "Extra data" not in str(error):
      raise DataError(
        f"{where}: {error}. Download it again, or write an object with context,"
        " question, answers and id on each line."
      ) from error
    yield from read_file(path)
    return
  entries = [value]
  if "question" not in value:
    entries = _get(value, "data", list, where)
  for number, entry in enumerate(entries, start=1):
    location = f"{where}: article {number}"
    if isinstance(entry, dict) and "title" in entry:
      location += f" ({entry['title']})"
    yield location, entry


def _find_questions(
  records: Iterable[tuple[str, Any]],
) -> Iterator[tuple[str, str, Any]]:
  """Yields location, context and question of the records of a file."""
  for location, record in records:
    if not isinstance(record, dict) or "question" in record:
      yield location, _get(record, "context", str, location), record
      continue
    paragraphs = _get(record, "paragraphs", list, location)
    for number, paragraph in enumerate(paragraphs, start=1):
      place = f"{location}, paragraph {number}"
      context = _get(paragraph, "context", str, place)
      for question in _get(paragraph, "qas", list, place):
        yield place, context, question


def parse_question(
  location: str, context: str, record: Any, moved: list[str] | None = None
) -> Question:
  """Returns the question of a record; DataError if it is invalid."""
  text = _get(record, "question", str, location)
  key = record.get("id", record.get("sample_id", location))
  if not isinstance(key, int):
    key = _get({"id": key}, "id", str, location)
  location = f"{location}, question {key}"
  answers = _list_answers(record, location)
  if record.get("is_impossible") or not answers:
    raise DataError(
      f"{location}: the question has no answer. SQuAD v2.0 is not supported."
      " Pass train-v1.1.json or dev-v1.1.json, or remove such questions."
    )
  spans = []
  for answer in answers:
    answer_text = _get(answer, "text", str, location)
    answer_start = _get(answer, "answer_start", int, location)
    start = _find_answer(context, answer_text, answer_start, location)
    if start != answer_start and moved is not None:
      moved.append(location)
    spans.append((answer_text, start))
  return Question(str(key), text, context, tuple(spans), location)


def _list_answers(record: dict[str, Any], location: str) -> list[Any]:
  """Returns answers as objects; `datasets` has an object of lists instead."""
  columns = record.get("answers")
  if not isinstance(columns, dict):
    return _get(record, "answers", list, location)
  texts = _get(columns, "text", list, location)
  starts = _get(columns, "answer_start", list, location)
  pairs = zip(texts, starts, strict=False)
  return [{"text": text, "answer_start": start} for text, start in pairs]


def _find_answer(context: str, answer: str, start: int, location: str) -> int:
  """Returns the occurrence of an answer that is nearest to `start`."""
  if start >= 0 and context.startswith(answer, start):
    return start
  starts = [i for i in range(len(context)) if context.startswith(answer, i)]
  if not starts:
    text = context[max(0, start) :][: len(answer)]
    raise DataError(
      f"{location}: the answer {answer!r} does not occur in the context. Its"
      f" answer_start, {start}, points at {text!r}. Fix or remove the record."
    )
  return min(starts, key=lambda i: abs(i - start))


def _get(record: Any, key: str, kind: type[Value], location: str) -> Value:
  """Returns a value of a JSON object if it is a `kind`, and no blank text."""
  value = record.get(key) if isinstance(record, dict) else record
  if not isinstance(record, dict) or not isinstance(value, kind):
    raise DataError(
      f"{location}: {key!r} must be of type {kind.__name__}, not"
      f" {value!r:.40}. The form of SQuAD is data / paragraphs / context, qas /"
      " id, question, answers / text, answer_start."
    )
  if isinstance(value, str) and not value.strip():
    raise DataError(f"{location}: {key!r} is blank. Fix or remove the record.")
  return value
