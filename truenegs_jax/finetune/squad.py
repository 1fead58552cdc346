"""Questions of SQuAD: read, cut to windows, answered and scored."""

import collections
import os
import pathlib
from collections.abc import Mapping

from ml_collections import ConfigDict

from truenegs_jax.data.compression import MAGIC
from truenegs_jax.data.files import existing
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.errors import DataError
from truenegs_jax.evals import scoring
from truenegs_jax.finetune.material import Split
from truenegs_jax.tasks import answers, squad, windows
from truenegs_jax.tasks.examples import SPANS, Encoded, Task
from truenegs_jax.tasks.hub import HUB

TASK = Task(
  name="squad",
  title="SQuAD v1.1",
  kind=SPANS,
  metrics=("em", "f1"),
  epochs=2.0,
  official={"train": 87_599, "dev": 10_570},
)


def read(
  c: ConfigDict, files: Mapping[str, str]
) -> tuple[Task, dict[str, list[squad.Question]], list[str]]:
  """The task, its questions by split, and what there is to note.

  Args:
    files: by split, in the place of what `finetune.data` has.

  Raises:
    DataError: as `tasks.squad.read_squad`.
  """
  moved, questions = collections.Counter[str](), {}
  for split in TASK.official:
    where = files.get(split) or c.finetune.data
    if split not in files and not where.startswith(HUB):
      where = _find(where, split)
    questions[split] = squad.read_squad(where, split=split, oddities=moved)
  return TASK, questions, [f"{count:,} {name}" for name, count in moved.items()]


def cut(
  c: ConfigDict,
  questions: Mapping[str, list[squad.Question]],
  tokenizer: Tokenizer,
) -> tuple[Encoded, dict[str, Split]]:
  """Windows to train on, and the dev set."""
  make = lambda split, **more: windows.make_windows(
    questions[split],
    tokenizer,
    length=c.length,
    stride=c.finetune.stride,
    question_length=c.finetune.question_length,
    **more,
  )
  train, dev = make("train", train=True), make("dev", train=False)
  return train.encoded, {"dev": _split(c, dev)}


def _split(c: ConfigDict, found: windows.Windows) -> Split:
  golds = {q.key: tuple(x for x, _ in q.answers) for q in found.questions}

  def answers_of(outputs):
    # Logits of all places as [n, 2], or the candidates of the joint head.
    pairs = [x if isinstance(x, tuple) else tuple(x.T) for x in outputs]
    best = answers.best_answers(
      found,
      pairs,
      num_best=c.finetune.num_best,
      max_answer=c.finetune.max_answer,
    )
    return [best[key][0][0] for key in golds]

  return Split(
    encoded=found.encoded,
    keys=tuple(golds),
    golds=tuple(golds.values()),
    answers=answers_of,
    scores=lambda said: scoring.squad_scores(
      dict(zip(golds, said, strict=True)), golds
    ),
  )


def _find(where: str, split: str) -> str:
  """The official file, as it is or compressed."""
  path = pathlib.Path(os.path.expanduser(where), f"{split}-v1.1.json")
  if found := existing(path, packed=True):
    return str(found)
  raise DataError(
    f"{path}: there is no such file, nor one with {' '.join(MAGIC)}. Give"
    " --config.finetune.data=FOLDER of SQuAD's files, the files themselves,"
    " --config.finetune.files='train=FILE dev=FILE', or hf:rajpurkar/squad."
  )
