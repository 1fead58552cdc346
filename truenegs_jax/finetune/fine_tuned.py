"""Opens fine-tuned models of any origin, and answers with them.

model = open_model(c, c.init, report)
answers_SxN = model.answer(examples, console)

A workdir of fine-tuning has one exported model for each seed. Rows, windows and
answers are those of fine-tuning, so that the dev set has the scores that the
fine-tuning printed.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config import grammar
from truenegs_jax.configs import finetune_glue, finetune_own, finetune_squad
from truenegs_jax.finetune import (
  evaluate,
  initial_weights,
  results,
)
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.finetune.initial_weights import InitialWeights
from truenegs_jax.finetune.results import Result
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.tasks.task import (
  BINARY,
  CLASSES,
  HUB_LABELS,
  OWN,
  SCORE,
  SPANS,
  SQUAD,
  TASKS,
  Task,
  define_own_task,
)
from truenegs_jax.train import sharding
from truenegs_jax.weights import fit, hf_folder, hf_names
from truenegs_jax.weights.find import Weights
from truenegs_jax.weights.hf_folder import Network


@dataclasses.dataclass(frozen=True)
class FineTunedModel:
  """A fine-tuned model, of one or several seeds.

  Attributes:
    seeds: the seed of each folder, or None of a model of others.
    task: the task.
    outputs: the task, with its labels in the order of the model's outputs.
    options: how rows are read and made.
    initials: the opened weights of each seed.
    predictor: the forward pass, for the parameters of any seed.
    report: receives lines about the weights.
  """

  seeds: Mapping[str, int | None]
  task: Task
  outputs: Task
  options: FinetuneOptions
  initials: tuple[InitialWeights, ...]
  predictor: evaluate.Predictor
  report: Callable[[str], None]

  def answer(
    self, examples: Sequence[Any], console: Console
  ) -> list[Sequence[evaluate.Answer]]:
    """Returns each seed's answers to examples with different keys.

    Raises:
      InputError: weights are damaged or incomplete.
    """
    with progress.working(console, "Encoding examples"):
      split = evaluate.encode_split(
        self.options, self.outputs, examples, self.initials[0].tokenizer
      )
    replicated = sharding.replicated_sharding(self.predictor.mesh)
    answers_S = []
    for folder, initial in zip(self.seeds, self.initials, strict=True):
      params = initial.make_params(
        initial.make_model(self.outputs),
        self.outputs,
        seed=0,
        report=self.report,
        complete=True,
      )
      _, answers = self.predictor.answer(
        jax.device_put(params, replicated),
        split,
        console=console,
        title=f"Answering with '{folder}', rows",
      )
      answers_S.append(answers)
    return answers_S


def open_model(
  c: ConfigDict,
  init: str,
  report: Callable[[str], None],
  *,
  key: str = "init",
  task_name: str = "",
) -> FineTunedModel:
  """Opens a fine-tuned model; reads no arrays yet.

  Args:
    c: a config of the task "robustness".
    init: the model, as `c.init`.
    report: receives lines about the weights.
    key: the config key that names the model, for messages.
    task_name: the task; "" for that of the run, or the only one of its head.

  Raises:
    InputError: there is no such model, or its head is not for the task.
  """
  if not init:
    raise InputError(
      f"{key}='' names no model. Set --config.{key}=WORKDIR of a fine-tuning,"
      " or a folder or hub name of a Hugging Face model with a head for"
      " questions or classes."
    )
  runs = _find_runs(init, task_name, report, key=key)
  seeds: dict[str, int | None] = {x: run.seed for x, run in runs.items()}
  seeds, run = seeds or {init: None}, next(iter(runs.values()), None)
  network = Weights(next(iter(seeds)), report).encoder()
  head = fit.detect_task_head(network)
  if not head:
    raise InputError(
      f"{key}: {network.location} has no head for questions or classes, so it"
      " was not fine-tuned. Fine-tune it with --config=finetune_squad or"
      " finetune_glue, and pass that workdir."
    )
  task = _find_task(run, task_name, network, head, key=key)
  classes = _find_classes(network, head, task, key=key)
  outputs = dataclasses.replace(task, labels=classes)
  options = FinetuneOptions.from_config(_make_config(c, run, task))
  initials = [
    initial_weights.open_weights(
      dataclasses.replace(options, init=folder), report=report
    )
    for folder in seeds
  ]
  model = initials[0].make_model(outputs)
  for initial in initials:
    initial.fit(model, outputs)
  return FineTunedModel(
    seeds=seeds,
    task=task,
    outputs=outputs,
    options=options,
    initials=tuple(initials),
    predictor=evaluate.make_predictor(options, model),
    report=report,
  )


def _find_runs(
  init: str, task: str, report: Callable[[str], None], *, key: str
) -> dict[str, Result]:
  """Returns the runs of a fine-tuning by the folders of their models.

  There are none if `init` is a model of others.
  """
  workdir = pathlib.Path(init).expanduser()
  by_task = results.load_all(workdir)
  if not by_task and any(workdir.glob(results.RUNS)):
    raise InputError(
      f"{key}={init!r} is a fine-tuning without a finished run. Run its command"
      " again to continue it."
    )
  if not by_task:
    return {}
  if task not in by_task and (task or len(by_task) > 1):
    raise InputError(
      f"{key}={init!r} has runs of {', '.join(by_task)}, and robustness.task="
      f"{task!r} is none of these. Set --config.robustness.task={min(by_task)},"
      " for example."
    )
  runs: dict[str, Result] = {}
  for run in by_task[task or next(iter(by_task))]:
    if run.failure:
      report(f"seed {run.seed} of '{workdir}' is left out: {run.failure}")
    else:
      folder = results.run_folder(workdir, run.task, run.seed) / results.MODEL
      runs[str(folder)] = run
  missing = [x for x in runs if not pathlib.Path(x, hf_folder.CONFIG).exists()]
  if missing or not runs:
    reason = f"'{missing[0]}' is missing" if missing else "all its runs failed"
    raise InputError(
      f"{key}={init!r} lacks models of its seeds: {reason}. Fine-tune again"
      " with --config.finetune.export=all, or another learning rate."
    )
  return runs


def _find_task(
  run: Result | None, name: str, network: Network, head: str, *, key: str
) -> Task:
  """Returns the task of a run or the one that is set; refuses other heads."""
  if run and run.task == OWN:
    labels = tuple(run.provenance["labels"])
    kind = CLASSES if labels else SCORE
    saved = run.provenance[results.CONFIG]["finetune"]
    task = define_own_task(text=saved["text"], label=saved["label"], kind=kind)
    metrics = (*run.scores["dev"],)
    return dataclasses.replace(task, labels=labels, metrics=metrics)
  name = run.task if run else name or (SQUAD if head == "spans" else "")
  one_of("robustness.task", name, TASKS)
  task = TASKS[name]
  if (head == "spans") != (task.kind == SPANS):
    raise InputError(
      f"{key}: {network.location} has the head {head!r}, which is not for"
      f" {task.title}. Choose another model or --config.robustness.task."
    )
  return task


def _find_classes(
  network: Network, head: str, task: Task, *, key: str
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
  if set(task.labels) == set(BINARY):
    known |= HUB_LABELS | {f"label_{i}": i for i in BINARY}
  saved = fit.read_labels(network.fields)
  classes = tuple(known.get(name.casefold(), "") for name in saved)
  if len(classes) == size and sorted(classes) == sorted(task.labels):
    return classes
  raise InputError(
    f"{key}: {network.location} has {size} outputs,"
    f" {', '.join(saved[:8]) or 'unnamed'}, but {task.title} needs"
    f" {', '.join(task.labels) or 'one score'}. Choose the model's task with"
    " --config.robustness.task, or name the classes in id2label of its"
    " config.json."
  )


def _make_config(c: ConfigDict, run: Result | None, task: Task) -> ConfigDict:
  """Returns the config of fine-tuning that answers as the model was scored.

  Data, length and the form of rows are those of the run; `c` has precedence.
  """
  makers = {SQUAD: finetune_squad, OWN: finetune_own}
  config = makers.get(task.name, finetune_glue).get_config()
  saved = run.provenance.get(results.CONFIG, {}) if run else {}
  config.length = c.length or saved.get("length", config.length)
  config.batch_size = c.batch_size
  known = {name: c[name] for name in ("model", "data", "mesh")}
  known["finetune"] = saved.get("finetune", {})
  for name, values in known.items():
    section = config[name]
    section.update({key: x for key, x in values.items() if key in section})
  if data := c.robustness.data:
    is_folder = pathlib.Path(data).expanduser().is_dir()
    config.finetune.data = data if is_folder else ""
    file = f"dev={grammar.quote(data)}"
    config.finetune.files = "" if is_folder else file
  config.finetune.tasks = task.name
  return config
