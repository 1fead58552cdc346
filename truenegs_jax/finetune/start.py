"""Opens the networks that fine-tunings start from, and fine-tuned ones.

A workdir of fine-tuning has one exported model for each seed, whose answers to
the dev set have the scores that the fine-tuning printed.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from rich.console import Console

from truenegs_jax.config.sections import (
  FROM_WEIGHTS,
  OPEN_SIZES,
  POSITIONS,
  SIZES,
)
from truenegs_jax.configs import finetune_glue, finetune_own, finetune_squad
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.finetune import results, task_data
from truenegs_jax.finetune.options import FinetuneOptions, parse_options
from truenegs_jax.finetune.results import Result
from truenegs_jax.models import finetune
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import CLASSES, OWN, SCORE, SPANS, SQUAD, Task
from truenegs_jax.train import sharding
from truenegs_jax.weights import hf_folder, hf_names, load, match
from truenegs_jax.weights.find import Weights
from truenegs_jax.weights.hf_folder import Network
from truenegs_jax.workdir import files

MODEL_KEYS = ("dropout", "attention_dropout", "dtype", "remat", "scan")
DRAWN = "drawn at random"  # instead of a fingerprint, as it depends on the seed
HEAD_PREFIXES = ("task_head/", "pooled/")  # of parameter paths


@dataclasses.dataclass(frozen=True)
class Start:
  """The network that all runs start from, opened once for tasks and seeds."""

  options: FinetuneOptions
  weights: Weights | None  # None for a network drawn at random
  role: str  # "discriminator" or "bert"
  tokenizer: tokenizer_lib.Tokenizer
  network: Mapping[str, Any]  # arguments of `make_downstream` of all tasks

  def make_model(self, task: Task) -> finetune.DownstreamModel:
    """Makes the network with the head of a task."""
    class_head = finetune.class_head(self.role, self.network["backbone"])
    return finetune.make_downstream(
      role=self.role,
      head="spans" if task.kind == SPANS else class_head,
      num_outputs=max(1, len(task.labels)),
      vocab_size=len(self.tokenizer.vocab),
      **self.network,
    )

  def match_task(self, task: Task) -> match.MatchedWeights | None:
    """Compares weights, model and task; None without weights.

    InputError: the weights do not fit the model, or the model not the task.
    """
    model = self.make_model(task)
    types = hf_names.flat_shapes(model).get("embeddings/type")
    has_pairs = task.kind == SPANS or len(task.columns) > 1
    if has_pairs and types is not None and types.shape[0] < 2:
      raise InputError(
        f"init: {self.options.init!r} has one token type, but {task.title} has"
        " pairs of texts, which need two. Use other weights, or a task of"
        " single texts."
      )
    if self.weights is None:
      return None
    skip = self.options.init_skip
    weights = self.weights.for_roles(model.roles)
    return match.match_weights(
      weights, model, self.tokenizer, init_skip=skip, task=task
    )

  def make_params(
    self, task: Task, seed: int, *, complete: bool = False
  ) -> dict[str, Any]:
    """Makes initial parameters; draws a missing head unless `complete`."""
    matched = self.match_task(task)
    if self.weights is None or matched is None:
      return load.draw_params(self.make_model(task), seed)
    return load.load_params(
      matched, seed=seed, complete=complete, report=self.weights.report
    )

  def provenance(self, task: Task, data: Mapping[str, str]) -> dict[str, Any]:
    """Returns `Result.provenance` without the config, in JSON's types."""
    model = self.make_model(task)
    prints = {"weights": DRAWN, "head": DRAWN}
    if matched := self.match_task(task):
      network = matched.networks[self.role]
      names = matched.names[self.role]
      loaded = network.load()
      for key, is_head in (("weights", False), ("head", True)):
        paths = [x for x in names if x.startswith(HEAD_PREFIXES) == is_head]
        if paths or not is_head:
          arrays = (loaded[names[x]] for x in sorted(paths))
          prints[key] = results.fingerprint(x.tobytes() for x in arrays)
    return {
      "family": hf_names.network_names(model, self.role).family,
      "width": model.config.width,
      "sizes": {x: getattr(model.config, x) for x in SIZES},
      "backbone": model.backbone,
      "vocabulary": self.tokenizer.fingerprint,
      **prints,
      "labels": list(task.labels),
      "data": data,
    }


def resolve(options: FinetuneOptions, report: Callable[[str], None]) -> Start:
  """Opens the weights of `init` without arrays; "" is a network at random."""
  o = options
  network: dict[str, Any] = {x: getattr(o.model, x) for x in MODEL_KEYS}
  network["head_dropout"] = o.finetune.head_dropout
  weights = Weights(o.init, report) if o.init else None
  source = weights.encoder() if weights else None
  if source is None:
    if FROM_WEIGHTS in (o.model.variant, o.data.vocab):
      raise InputError(
        "init='' names no weights. Set --config.init=FOLDER (a workdir, or a"
        " folder or hub name of Hugging Face), or for a network drawn at random"
        " --config.model.variant=NAME and --config.data.vocab=FILE."
      )
    role = "discriminator"
    location = "a network drawn at random"
    network["backbone"] = "encoder"
  else:
    role = source.role
    location = source.location
    network |= source.thetas
    network["backbone"] = source.backbone
    network["pooling"] = source.fields.get("classifier_pooling", "cls")
  network |= _choose_sizes(o, source)
  positions = network.get("max_positions", POSITIONS)
  if o.length > positions:
    raise InputError(
      f"length={o.length} is over the {positions:,} positions of {location}."
      f" Set --config.length={positions} or less."
    )
  return Start(o, weights, role, _load_tokenizer(o, source), network)


def _choose_sizes(
  options: FinetuneOptions, source: Network | None
) -> Mapping[str, Any]:
  """Returns the variant and the sizes that are set or those of the weights."""
  variant = options.model.variant
  sizes = {x: getattr(options.model, x) for x in SIZES}
  sizes = {name: size for name, size in sizes.items() if size}
  if source is not None and variant == FROM_WEIGHTS:
    for name, size in sizes.items():
      raise InputError(
        f"model.{name}={size} does not go with model.variant=init, which takes"
        " all sizes of the weights. Remove it, or set"
        " --config.model.variant=NAME."
      )
    sizes = dict(source.sizes)
  elif source is not None:
    for name in OPEN_SIZES:
      if name in source.sizes:
        sizes.setdefault(name, source.sizes[name])
  return {"variant": variant, **sizes}


def _load_tokenizer(
  options: FinetuneOptions, source: Network | None
) -> tokenizer_lib.Tokenizer:
  """Loads `data.vocab`, or the vocabulary of the weights."""
  data = options.data
  if source is None or data.vocab != FROM_WEIGHTS:
    return tokenizer_lib.build_tokenizer(data, data.vocab)
  if source.lowercase and not data.lowercase:
    raise InputError(
      f"data.lowercase=False, but {source.location} was trained on"
      " lower-cased text. Remove --config.data.lowercase."
    )
  strip_accents = tokenizer_lib.ACCENTS[data.accents]
  if data.accents == "auto":
    strip_accents = source.strip_accents
  return tokenizer_lib.load_tokenizer(
    str(source.vocabulary),
    lowercase=data.lowercase and source.tokenizer.lowercase,
    strip_accents=strip_accents,
  )


@dataclasses.dataclass(frozen=True)
class FineTunedModel:
  """A fine-tuned model, of one or several seeds."""

  seeds: Mapping[str, int | None]  # by folder; None of a model of others
  task: Task
  outputs: Task  # with labels in the order of the model's outputs
  starts: tuple[Start, ...]  # of each seed
  predictor: task_data.Predictor  # for the parameters of any seed
  note: str  # what limits its scores: failed seeds, few epochs

  @property
  def options(self) -> FinetuneOptions:
    """How rows are read and made."""
    return self.starts[0].options

  @property
  def network(self) -> str:
    """The role and the width of the network."""
    return f"{self.starts[0].role} of {self.predictor.model.config.width} units"

  def answer(
    self, examples: Sequence[Any], console: Console
  ) -> list[Sequence[task_data.Answer]]:
    """Returns each seed's answers to examples with different keys."""
    with progress.working(console, "Encoding examples"):
      split = task_data.encode_split(
        self.options, self.outputs, examples, self.starts[0].tokenizer
      )
    replicated = sharding.replicated_sharding(self.predictor.mesh)
    answers_S = []
    for folder, start in zip(self.seeds, self.starts, strict=True):
      params = start.make_params(self.outputs, seed=0, complete=True)
      _, answers = self.predictor.answer(
        jax.device_put(params, replicated),
        split,
        console=console,
        title=f"Answering with '{folder}', rows",
      )
      answers_S.append(answers)
    return answers_S


def open_model(
  init: str,
  values: Mapping[str, Any],
  report: Callable[[str], None],
  *,
  task_name: str = "",
) -> FineTunedModel:
  """Opens a fine-tuned model; reads no arrays yet.

  Args:
    values: a config of the task "robustness" as a dict.
    task_name: the task; "" for that of the run, or the only one of its head.
  """
  if not init:
    raise InputError(
      "init='' names no model. Set --config.init=WORKDIR of a fine-tuning,"
      " or a folder or hub name of a Hugging Face model with a head for"
      " questions or classes."
    )
  runs, note = _find_runs(init, task_name)
  seeds: dict[str, int | None] = {x: run.seed for x, run in runs.items()}
  seeds = seeds or {init: None}
  run = next(iter(runs.values()), None)
  network = Weights(next(iter(seeds)), report).encoder()
  head = match.detect_task_head(network)
  if not head:
    raise InputError(
      f"init: {network.location} has no head for questions or classes, so it"
      " was not fine-tuned. Fine-tune it with --config=finetune_squad or"
      " finetune_glue, and pass that workdir."
    )
  task = _find_task(run, task_name, network, head)
  classes = _find_classes(network, head, task)
  outputs = dataclasses.replace(task, labels=classes)
  options = parse_options(_make_values(values, run, task))
  each = (dataclasses.replace(options, init=folder) for folder in seeds)
  starts = tuple(resolve(x, report) for x in each)
  for start in starts:
    start.match_task(outputs)
  predictor = task_data.Predictor(options, starts[0].make_model(outputs))
  return FineTunedModel(seeds, task, outputs, starts, predictor, note)


def _find_runs(init: str, task: str) -> tuple[dict[str, Result], str]:
  """Returns runs by the folders of their models, {} for models of others.

  Runs that failed are left out. A note says so, and how the runs differ from
  the published setting.
  """
  workdir = open_path("init", init)
  by_task = results.load_all(workdir)
  if not by_task:
    if any(workdir.glob(results.RUNS)):
      raise InputError(
        f"init={init!r} is a fine-tuning without a finished run. Run its"
        " command again to continue it."
      )
    return {}, ""
  if task not in by_task and (task or len(by_task) > 1):
    raise InputError(
      f"init={init!r} has runs of {', '.join(by_task)}, and robustness.task="
      f"{task!r} is none of these. Set --config.robustness.task={min(by_task)},"
      " for example."
    )
  pool = by_task[task or next(iter(by_task))]
  runs: dict[str, Result] = {}
  failed: list[str] = []
  for x in pool:
    folder = results.run_folder(workdir, x.task, x.seed) / results.MODEL
    if x.failure:
      failed.append(f"seed {x.seed}, {x.failure}")
    elif (folder / hf_folder.CONFIG).exists():
      runs[str(folder)] = x
    else:
      raise InputError(
        f"init={init!r} lacks models of its seeds: '{folder}' is missing."
        " Fine-tune again with --config.finetune.export=all."
      )
  if not runs:
    raise InputError(
      f"init={init!r} has no model, as all its runs failed. Fine-tune again"
      " with another learning rate."
    )
  notes = [*dict.fromkeys(note for run in runs.values() for note in run.notes)]
  if failed:
    count = f"{len(runs)} of {len(pool)} seeds; {len(failed)} failed"
    notes.insert(0, f"{count}: {'; '.join(failed)}")
  return runs, f"{init}: {'; '.join(notes)}." if notes else ""


def _find_task(
  run: Result | None, name: str, network: Network, head: str
) -> Task:
  """Returns the task of a run or the one that is set; refuses other heads."""
  if run and run.task == OWN:
    labels = tuple(run.provenance["labels"])
    kind = CLASSES if labels else SCORE
    saved = run.provenance[files.CONFIG]["finetune"]
    own = {name: saved[name] for name in ("text", "label")}
    task = task_lib.define_own_task(**own, kind=kind)
    metrics = (*run.scores["dev"],)
    return dataclasses.replace(task, labels=labels, metrics=metrics)
  name = run.task if run else name or (SQUAD if head == "spans" else "")
  one_of("robustness.task", name, task_lib.TASKS)
  task = task_lib.TASKS[name]
  if (head == "spans") != (task.kind == SPANS):
    raise InputError(
      f"init: {network.location} has the head {head!r}, which is not for"
      f" {task.title}. Choose another model or --config.robustness.task."
    )
  return task


def _find_classes(network: Network, head: str, task: Task) -> tuple[str, ...]:
  """Returns the labels of a task in the order of a model's outputs."""
  if task.kind == SPANS:
    return ()
  output = hf_names.task_head(head, network.backbone)["task_head/output"]
  size = network.shapes[f"{output}.weight"][0]
  if task.kind == SCORE and size == 1:
    return ()
  known = {label.casefold(): label for label in task.labels}
  if set(task.labels) == set(task_lib.BINARY):
    known |= task_lib.HUB_LABELS | {f"label_{i}": i for i in task_lib.BINARY}
  saved = match.read_labels(network.fields)
  classes = tuple(known.get(name.casefold(), "") for name in saved)
  if len(classes) == size and sorted(classes) == sorted(task.labels):
    return classes
  raise InputError(
    f"init: {network.location} has {size} outputs,"
    f" {', '.join(saved[:8]) or 'unnamed'}, but {task.title} needs"
    f" {', '.join(task.labels) or 'one score'}. Choose the model's task with"
    " --config.robustness.task, or name the classes in id2label of its"
    " config.json."
  )


def _make_values(
  values: Mapping[str, Any], run: Result | None, task: Task
) -> dict[str, Any]:
  """Returns the config of the run's fine-tuning, in which `values` go first."""
  makers = {SQUAD: finetune_squad, OWN: finetune_own}
  config = makers.get(task.name, finetune_glue).get_config().to_dict()
  saved = run.provenance.get(files.CONFIG, {}) if run else {}
  config["length"] = values["length"] or saved.get("length", config["length"])
  config["batch_size"] = values["batch_size"]
  for name in ("model", "data", "mesh"):
    config[name] |= values[name]
  config["finetune"] |= saved.get("finetune", {})
  if data := values["robustness"]["data"]:
    is_folder = pathlib.Path(data).expanduser().is_dir()
    for name in ("data", "train", "dev", "test"):
      config["finetune"][name] = ""
    key = "data" if is_folder else "dev"
    config["finetune"][key] = data
  config["finetune"]["tasks"] = task.name
  return config
