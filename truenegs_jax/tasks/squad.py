"""Reads questions of SQuAD v1.1, or of data sets in the same form.

questions = read_squad("dev-v1.1.json")  # or .gz, .xz, .zst, .bz2
questions = read_squad("hf:rajpurkar/squad", split="dev")
"""

from collections.abc import Iterator
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
    where: a JSON file, plain or compressed; or a data set, "hf:NAME split=S".
    moved: receives the location of each answer that is not at its answer_start;
      they are moved to the nearest occurrence.
  """
  is_hub = where.startswith(HUB)
  questions: dict[str, Question] = {}
  records = _hub_records(where, split) if is_hub else _json_records(where)
  for location, context, record in records:
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


def _json_records(where: str) -> Iterator[tuple[str, str, Any]]:
  """Yields location of the paragraph, context, and one record of "qas"."""
  path = files.find_existing(where)
  if path is None:
    raise UnavailableError(
      f"{where}: there is no such file. Pass train-v1.1.json or dev-v1.1.json,"
      " plain or compressed, or hf:rajpurkar/squad."
    )
  content = b"".join(files.read_blocks(files.stat_file(path)))
  try:
    value = parse_json(content, strict=False)
  except ValueError as error:
    if "Extra data" not in str(error):
      raise DataError(
        f"{where}: {error}. Download it again, or write an object with context,"
        " question, answers and id on each line."
      ) from error
    for row in read_file(path):  # as of TextFlint
      key = str(row.fields.get("sample_id", row.location))
      yield row.location, row.text("context"), {"id": key, **row.fields}
    return
  articles = _get(value, "data", list, where)
  for number, article in enumerate(articles, start=1):
    article_location = f"{where}: article {number}"
    if isinstance(article, dict) and "title" in article:
      article_location += f" ({article['title']})"
    paragraphs = _get(article, "paragraphs", list, article_location)
    for paragraph_number, paragraph in enumerate(paragraphs, start=1):
      location = f"{article_location}, paragraph {paragraph_number}"
      context = _get(paragraph, "context", str, location)
      for record in _get(paragraph, "qas", list, location):
        yield location, context, record


def _hub_records(where: str, split: str) -> Iterator[tuple[str, str, Any]]:
  """Yields location, context and question of each row of a data set."""
  for location, row in read_dataset(where, split=split):
    columns = _get(row, "answers", dict, location)
    texts = _get(columns, "text", list, location)
    starts = _get(columns, "answer_start", list, location)
    pairs = zip(texts, starts, strict=False)
    answers = [{"text": t, "answer_start": start} for t, start in pairs]
    context = _get(row, "context", str, location)
    yield location, context, row | {"answers": answers}


def parse_question(
  location: str, context: str, record: Any, moved: list[str] | None = None
) -> Question:
  """Returns the question of a record of "qas"; DataError if it is invalid."""
  key = _get(record, "id", str, location)
  location = f"{location}, question {key}"
  text = _get(record, "question", str, location)
  answers = _get(record, "answers", list, location)
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
  return Question(key, text, context, tuple(spans), location)


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
