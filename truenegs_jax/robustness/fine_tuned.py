"""Opens fine-tuned models of any origin, and answers with them.

  model = open_model(c, c.init, report)
  answers_SxN = model.answer(examples)

A workdir of fine-tuning has one exported model for each seed. Rows, windows and
answers are those of fine-tuning, so that the dev set has the scores that the
fine-tuning printed.
"""

import dataclasses
import pathlib
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from truenegs_jax.configs import finetune_glue, finetune_own, finetune_squad
from truenegs_jax.finetune import initial_weights, results, task_data
from truenegs_jax.finetune.config_checks import OWN, FinetuneOptions
from truenegs_jax.finetune.initial_weights import InitialWeights
from truenegs_jax.finetune.predict import Predictor, make_predictor
from truenegs_jax.finetune.results import Result
from truenegs_jax.models import choose_attention
from truenegs_jax.robustness.transformation import texts
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.tasks import batches, glue, squad, squad_windows, user_task
from truenegs_jax.tasks.squad import Question
from truenegs_jax.tasks.task import CLASSES, SCORE, SPANS, Task
from truenegs_jax.train import sharding
from truenegs_jax.weights.formats import hf_folder, hf_names
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.weights.init import head_transfer

# Keys of a fine-tuning's config that decide how it reads and answers.
ANSWERING = (
  "data",
  "files",
  "stride",
  "question_length",
  "num_best",
  "max_answer",
  "text",
  "label",
  "kind",
)


class Origin(NamedTuple):
  """Where a model comes from.

  Attributes:
    folders: the folder, or hub name, of the model of each seed.
    seeds: the seeds of a fine-tuning of ours; empty for a model of others.
    run: the first run of that fine-tuning.
  """

  folders: tuple[str, ...]
  seeds: tuple[int, ...] = ()
  run: Result | None = None


@dataclasses.dataclass(frozen=True)
class FineTunedModel:
  """A fine-tuned model, of one or several seeds.

  Attributes:
    name: the folder or hub name that was given.
    origin: its folders and seeds.
    task: the task.
    classes: the task's labels in the order of the model's outputs.
    options: how rows are read and made.
    initials: the opened weights of each seed.
    predictor: the forward pass, for the parameters of any seed.
    report: receives lines about the weights.
  """

  name: str
  origin: Origin
  task: Task
  classes: tuple[str, ...]
  options: FinetuneOptions
  initials: tuple[InitialWeights, ...]
  predictor: Predictor
  report: Callable[[str], None]

  @property
  def columns(self) -> tuple[str, ...]:
    """Names of the task's columns of labeled texts; none of questions."""
    if self.task.kind == SPANS:
      return ()
    if self.task.name == OWN:
      return user_task.parse_columns(
        self.options.text, self.options.label
      ).texts
    return glue.COLUMNS[self.task.name][0]

  def answer(self, examples: Sequence[Any]) -> list[list[task_data.Answer]]:
    """Returns each seed's answers; examples of equal texts are answered once.

    Raises:
      InputError: weights are damaged or incomplete.
    """
    number: dict[tuple[str, ...], int] = {}
    unique = []
    for example in examples:
      if texts(example) not in number:
        key = str(number.setdefault(texts(example), len(number)))
        blank = {} if isinstance(example, Question) else {"label": None}
        unique.append(dataclasses.replace(example, key=key, **blank))
    split = self._encode(unique)
    replicated = sharding.replicated_sharding(self.predictor.mesh)
    answers_SxN = []
    for initial in self.initials:
      params = jax.device_put(self.read_params(initial), replicated)
      outputs = self.predictor.predict(params, split.encoded)
      answers = split.decode_answers(outputs)
      answers_SxN.append([answers[number[texts(x)]] for x in examples])
    return answers_SxN

  def read_params(self, initial: InitialWeights) -> dict[str, Any]:
    """Reads the parameters of a seed, as numpy arrays; errors as `answer`."""
    return initial.make_params(
      initial.make_model(max(1, len(self.classes))),
      dataclasses.replace(self.task, labels=self.classes),
      seed=0,
      report=self.report,
      complete=True,
    )

  def _encode(self, examples: Sequence[Any]) -> task_data.EvalSplit:
    options, tokenizer = self.options, self.initials[0].tokenizer
    if self.task.kind == SPANS:
      windows = squad_windows.make_windows(
        examples,
        tokenizer,
        train=False,
        length=options.length,
        stride=options.stride,
        question_length=options.question_length,
      )
      return task_data.make_question_split(
        windows, num_best=options.num_best, max_answer=options.max_answer
      )
    task = dataclasses.replace(self.task, labels=self.classes)
    rows = batches.encode(examples, task, tokenizer, length=options.length)
    return task_data.make_split(task, examples, rows)


def open_model(
  c: ConfigDict, init: str, report: Callable[[str], None], *, key: str = "init"
) -> FineTunedModel:
  """Opens a fine-tuned model; reads no arrays yet.

  Args:
    c: a config of this task.
    init: the model, as `c.init`.
    report: receives lines about the weights.
    key: the config key that names the model, for messages.

  Raises:
    InputError: there is no such model, it has no head for the task, or other
      classes.
    CheckpointError: a run's result is damaged.
  """
  if not init:
    raise InputError(
      f"{key}='' names no model. Set --config.{key}=WORKDIR of a fine-tuning,"
      " or a folder or hub name of a Hugging Face model with a head for"
      " questions or classes."
    )
  origin = _find_origin(init, c.robustness.task, report, key=key)
  networks = [Weights(x, report).encoder() for x in origin.folders]
  head = head_transfer.detect_task_head(networks[0])
  if not head:
    raise InputError(
      f"{key}: {networks[0].location} has no head for questions or classes, so"
      " it was not fine-tuned. Fine-tune it with --config=finetune_squad or"
      " finetune_glue, and pass that workdir."
    )
  task = _find_task(origin, c.robustness.task, head)
  _check_head(networks[0], head, task)
  classes = _find_classes(networks[0], head, task, c.robustness.labels)
  base = _answer_config(c, origin, task)
  base.finetune.head = head
  initials = []
  for folder in origin.folders:
    base.init = folder
    initials.append(initial_weights.open_weights(base, report=report))
  model = initials[0].make_model(max(1, len(classes)))
  for initial in initials:
    initial.open_networks(model, dataclasses.replace(task, labels=classes))
  options = FinetuneOptions.from_config(base)
  mesh = sharding.make_mesh(options.mesh)
  attention, _ = choose_attention.choose(
    options.attention,
    [model.config],
    mesh,
    length=options.length,
    packed=False,
    check=True,
  )
  predictor = make_predictor(
    model, mesh, attention, batch_size=c.batch_size, length=options.length
  )
  return FineTunedModel(
    init, origin, task, classes, options, tuple(initials), predictor, report
  )


def _find_origin(
  init: str, task: str, report: Callable[[str], None], *, key: str
) -> Origin:
  """Finds the models of a workdir of fine-tuning, or takes `init` as one."""
  path = pathlib.Path(init).expanduser()
  if path.name == results.MODEL and (path.parent / results.RESULT).exists():
    path = path.parent
  seed = path.name.removeprefix("seed-")
  if (path / results.RESULT).exists() and seed.isdecimal():
    path, name = path.parent.parent, path.parent.name
    runs = {name: [run]} if (run := results.load(path, name, int(seed))) else {}
  else:
    runs = results.load_all(path)
  if not runs and any(path.glob("*/seed-*")):
    raise InputError(
      f"{key}={init!r} is a fine-tuning without a finished run. Run its command"
      " again to continue it."
    )
  if not runs:
    return Origin((init,))
  if task not in runs and (task or len(runs) > 1):
    raise InputError(
      f"{key}={init!r} has runs of {', '.join(runs)}, and robustness.task="
      f"{task!r} is none of these. Set --config.robustness.task={min(runs)},"
      " for example."
    )
  chosen = runs[task or next(iter(runs))]
  for run in chosen:
    if run.failure:
      report(f"seed {run.seed} of '{path}' is left out: {run.failure}")
  chosen = [run for run in chosen if not run.failure]
  if not chosen:
    raise InputError(
      f"{key}={init!r} has only runs that failed. Fine-tune with another"
      " learning rate or more steps."
    )
  folders = [
    results.run_folder(path, x.task, x.seed) / results.MODEL for x in chosen
  ]
  missing = [x for x in folders if not (x / hf_folder.CONFIG).exists()]
  if missing:
    raise InputError(
      f"{key}={init!r} has no model for {len(missing)} of its seeds:"
      f" '{missing[0]}' is missing. Set --config.finetune.export=all and a head"
      " that can be exported (dense or spans), remove the run and fine-tune"
      " again."
    )
  seeds = tuple(run.seed for run in chosen)
  return Origin(tuple(map(str, folders)), seeds, chosen[0])


def _find_task(origin: Origin, name: str, head: str) -> Task:
  """Returns the task of a fine-tuning of ours, or the one that is set."""
  if name:
    one_of("robustness.task", name, (squad.TASK.name, *glue.TASKS, OWN))
  run = origin.run
  if run and run.task == OWN:
    labels = tuple(run.provenance["labels"])
    kind = CLASSES if labels else SCORE
    return Task(OWN, OWN, kind, labels=labels, metrics=(*run.scores["dev"],))
  if run or name or head == "spans":
    name = run.task if run else name or squad.TASK.name
    if task := task_data.find_published_task(name):
      return task
    raise InputError(
      f"robustness.task={name!r} is only for a fine-tuning of this project,"
      " whose config names columns and classes. Pass its workdir."
    )
  raise InputError(
    f"init: '{origin.folders[0]}' does not name its task. Set"
    f" --config.robustness.task to squad, {', '.join(glue.TASKS)}."
  )


def _check_head(network: Network, head: str, task: Task) -> None:
  """Refuses a network without the head that a task needs."""
  if (head == "spans") == (task.kind == SPANS):
    return
  needed = "classes (AutoModelForSequenceClassification)"
  if task.kind == SPANS:
    needed = "spans (AutoModelForQuestionAnswering)"
  raise InputError(
    f"init: {network.location} has the head {head!r}, but"
    f" {task.title} needs one of {needed}. Fine-tune the model on"
    f" {task.title}, or choose another model or --config.robustness.task."
  )


def _find_classes(
  network: Network, head: str, task: Task, labels: str
) -> tuple[str, ...]:
  """Returns the labels of a task in the order of a model's outputs.

  Names of the hub are known, and "LABEL_1" is class 1 where classes are
  numbers.
  """
  if task.kind == SPANS:
    return ()
  output = hf_names.TASK_HEADS[head]["task_head/output"]
  size = network.arrays.shapes[f"{output}.weight"][0]
  if task.kind == SCORE and size == 1:
    return ()
  known = {label.casefold(): label for label in task.labels}
  if set(task.labels) == set(glue.BINARY):
    known |= glue.HUB_LABELS | {f"label_{i}": i for i in glue.BINARY}
  saved = head_transfer.read_labels(network.fields)
  for names in (saved, [x.strip() for x in labels.split(",")]):
    classes = tuple(known.get(name.casefold(), "") for name in names)
    if len(classes) == size and sorted(classes) == sorted(task.labels):
      return classes
  raise InputError(
    f"init: {network.location} has {size} outputs,"
    f" {', '.join(saved[:8]) or 'unnamed'}, but {task.title} needs"
    f" {', '.join(task.labels) or 'one score'}. Choose the model's task with"
    " --config.robustness.task or, if the classes only have other names, set"
    " --config.robustness.labels to those of the task in the model's order."
  )


def _answer_config(c: ConfigDict, origin: Origin, task: Task) -> ConfigDict:
  """Returns the config of fine-tuning that answers as the model was scored.

  Keys of ANSWERING and the length are those of the fine-tuning; `c` has
  precedence.
  """
  makers = {squad.TASK.name: finetune_squad, OWN: finetune_own}
  base = makers.get(task.name, finetune_glue).get_config()
  saved = origin.run.provenance[results.CONFIG] if origin.run else {}
  for name in ANSWERING:
    if name in base.finetune and name in saved.get("finetune", {}):
      base.finetune[name] = saved["finetune"][name]
  base.length = c.length or saved.get("length", base.length)
  base.batch_size = c.batch_size
  for section in ("model", "data", "mesh"):
    shared = {
      name: x for name, x in c[section].items() if name in base[section]
    }
    base[section].update(shared)
  if data := c.robustness.data:
    is_folder = pathlib.Path(data).expanduser().is_dir()
    base.finetune.data = data if is_folder else ""
    base.finetune.files = "" if is_folder else f"dev={shlex.quote(data)}"
  base.finetune.tasks = task.name
  return base
