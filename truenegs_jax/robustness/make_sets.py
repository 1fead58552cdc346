"""Makes the sets that a config names, or reads those that are saved."""

import pathlib
import random
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.robustness import (
  add_sentence,
  annotate,
  perturbations,
  swap_synonyms,
)
from truenegs_jax.robustness.alter_question import MODEL
from truenegs_jax.robustness.eval_set import EvalSet, save_set
from truenegs_jax.robustness.fine_tuned import FineTunedModel
from truenegs_jax.robustness.published_sets import read_saved
from truenegs_jax.robustness.transformation import (
  Transformation,
  describe_origin,
  transform_all,
)
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.synonyms.vocabulary import Vocabulary
from truenegs_jax.tasks.task import SPANS, Task
from truenegs_jax.workdir.files import find_changes

SWAP, ADD, PAPER = "swap_synonyms", "add_sentence", "paper"
NAMES = (SWAP, ADD, *perturbations.NAMES)
SETS = "sets"  # the folder in a workdir


def parse_names(text: str, task: Task) -> tuple[str, ...]:
  """Parses `robustness.sets`; InputError for a set that the task cannot have.

  "paper" is SWAP and, for questions, ADD.
  """
  has_questions = task.kind == SPANS
  names: list[str] = []
  for name in filter(None, text.replace(" ", "").split(",")):
    one_of("robustness.sets", name, (*NAMES, PAPER))
    paper = [SWAP, ADD] if has_questions else [SWAP]
    names += paper if name == PAPER else [name]
    is_question = name == ADD or name.endswith(perturbations.IN_QUESTION)
    if is_question and not has_questions:
      raise InputError(
        f"robustness.sets={text!r}: {name} changes questions on contexts, but"
        f" {task.title} has labeled texts. Remove it."
      )
  return tuple(dict.fromkeys(names))


def draw_rows(examples: Sequence[Any], rows: int, seed: int) -> list[Any]:
  """Draws `rows` examples without replacement, in order; 0 takes all."""
  if not 0 < rows < len(examples):
    return list(examples)
  drawn = random.Random(f"{seed}/rows").sample(range(len(examples)), rows)
  return [examples[i] for i in sorted(drawn)]


def make_transformations(
  c: ConfigDict,
  names: Sequence[str],
  model: FineTunedModel,
  examples: Sequence[Any],
) -> tuple[list[Transformation], annotate.Annotator | None]:
  """Makes the transformations of a config, and the annotator that they use.

  Raises:
    InputError, DataError: a source, a parser or a file is missing.
  """
  o, annotator = c.robustness, None
  if {SWAP, ADD} & set(names):
    annotator = annotate.make_annotator(
      o.annotations, wordnet_dir=c.data.wordnet_dir
    )
  tokenizer = model.initials[0].tokenizer
  lexicon: dict[str, Any] = {
    "wordnet_dir": c.data.wordnet_dir,
    "vocabulary": Vocabulary(tokenizer.vocab, tokenizer.normalize),
  }
  if annotator and MODEL in (*o.synonyms.split(), o.neighbours):
    params = model.read_params(model.initials[0])
    lexicon["word_VxE"] = params["embeddings"]["word"]
  transformations = []
  for name in names:
    if name == SWAP and annotator:
      transformation = swap_synonyms.make_swap(
        annotator, synonyms=o.synonyms, **lexicon
      )
    elif name == ADD and annotator:
      transformation = add_sentence.make_add_sentence(
        annotator, examples, neighbours=o.neighbours, **lexicon
      )
    else:
      transformation = perturbations.make_perturbation(name)
    transformations.append(transformation)
  return transformations, annotator


def make_or_read(
  transformation: Transformation,
  examples: Sequence[Any],
  seed: int,
  folder: pathlib.Path,
  model: FineTunedModel,
  console: Console,
) -> EvalSet:
  """Transforms examples and saves the set, or reads the one in `folder`.

  Raises:
    InputError: the saved set is of other examples, another seed or resources.
    DataError: see `read_saved`.
  """
  if not folder.exists():
    title = f"Changing texts, {transformation.title}"
    with progress.counting(console, title, len(examples)) as advance:
      result = transform_all(
        examples, transformation, seed=seed, advance=advance
      )
    save_set(result, folder)
    return result
  saved = read_saved(transformation.name, folder, model.task, model.columns)
  origin = describe_origin(examples, transformation, seed)
  was = {key: saved.about.get(key) for key in origin}
  if changes := find_changes(was, origin):
    raise InputError(
      f"'{folder}' has another set (saved -> now): "
      f"{'; '.join(map(str, changes))}. Pass another --workdir, or remove that"
      " folder."
    )
  return saved
