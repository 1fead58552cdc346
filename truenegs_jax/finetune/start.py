"""Opens the networks that fine-tunings start from, and fine-tuned ones.

A workdir of fine-tuning has one exported model for each seed, whose answers to
the dev set have the scores that the fine-tuning printed.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console

from truenegs_jax.config.sections import AUTO, FROM_WEIGHTS, POSITIONS, SIZES
from truenegs_jax.configs import finetune_squad
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.finetune import results, task_data
from truenegs_jax.finetune.results import Result
from truenegs_jax.finetune.task_data import (
  Answer,
  EvalSplit,
  FinetuneOptions,
  parse_options,
)
from truenegs_jax.models import attention, encoder, finetune
from truenegs_jax.runtime import cpu, distributed, progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.tasks import batches
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import SPANS, SQUAD, TAGS, Question, Task
from truenegs_jax.train import sharding
from truenegs_jax.weights import hf_folder, hf_names, load, match
from truenegs_jax.weights.find import Weights
from truenegs_jax.weights.hf_folder import Network
from truenegs_jax.workdir import files

MODEL_KEYS = ("dropout", "dtype", "remat", "scan")
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
    heads = {SPANS: "spans", TAGS: "tags"}
    return finetune.make_downstream(
      role=self.role,
      head=heads.get(task.kind, class_head),
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
    return match.match_weights(weights, model, self.tokenizer, init_skip=skip)

  def make_params(
    self, task: Task, seed: int, *, complete: bool = False
  ) -> dict[str, Any]:
    """Makes initial parameters; draws a missing head unless `complete`."""
    matched = self.match_task(task)
    if self.weights is None or matched is None:
      return load.draw_params(self.make_model(task), seed)
    report = self.weights.report
    return load.load_params(
      matched, seed=seed, complete=complete, task=task, report=report
    )

  def provenance(self, task: Task) -> dict[str, Any]:
    """Returns what results say of network and classes, in JSON's types."""
    model = self.make_model(task)
    weights = DRAWN
    if matched := self.match_task(task):
      names = matched.names[self.role]
      loaded = matched.networks[self.role].load()
      paths = sorted(x for x in names if not x.startswith(HEAD_PREFIXES))
      weights = task_data.fingerprint(loaded[names[x]].tobytes() for x in paths)
    return {
      "family": hf_names.network_names(model, self.role).family,
      "width": model.config.width,
      "weights": weights,
      "labels": list(task.labels),
    }


def resolve(options: FinetuneOptions, report: Callable[[str], None]) -> Start:
  """Opens the weights of `init` without arrays; "" is a network at random.

  Size and vocabulary are those of the weights.
  """
  o = options
  sizes = {x: getattr(o.model, x) for x in SIZES}
  sizes = {name: size for name, size in sizes.items() if size}
  network: dict[str, Any] = {x: getattr(o.model, x) for x in MODEL_KEYS}
  if o.model.dtype == AUTO:
    network["dtype"] = cpu.choose_dtype()
  network["attention_dropout"] = o.model.dropout
  network["head_dropout"] = o.finetune.head_dropout
  if o.init:
    if o.model.variant != FROM_WEIGHTS or sizes:
      raise InputError(
        f"model.variant={o.model.variant!r} and the sizes {sizes} are for a"
        " network drawn at random, but init has weights, with their sizes. Set"
        " --config.model.variant=init and no size."
      )
    weights = Weights(o.init, report)
    source = weights.encoder()
    role = source.role
    location = source.location
    network |= source.sizes
    network["backbone"] = source.backbone
    network["pooling"] = source.fields.get("classifier_pooling", "cls")
    tokenizer = _load_tokenizer(o, source)
  else:
    if FROM_WEIGHTS in (o.model.variant, o.data.vocab):
      raise InputError(
        "init='' names no weights. Set --config.init=FOLDER (a workdir, or a"
        " folder or hub name of Hugging Face), or for a network drawn at random"
        " --config.model.variant=NAME and --config.data.vocab=FILE."
      )
    weights = None
    role = "discriminator"
    location = "a network drawn at random"
    network |= sizes
    network["backbone"] = "encoder"
    tokenizer = tokenizer_lib.build_tokenizer(o.data, o.data.vocab)
  positions = network.get("max_positions", POSITIONS)
  if o.length > positions:
    raise InputError(
      f"length={o.length} is over the {positions:,} positions of {location}."
      f" Set --config.length={positions} or less."
    )
  network["variant"] = o.model.variant
  return Start(o, weights, role, tokenizer, network)


def _load_tokenizer(
  options: FinetuneOptions, source: Network
) -> tokenizer_lib.Tokenizer:
  """Loads `data.vocab`, or the vocabulary of the weights."""
  data = options.data
  if data.vocab != FROM_WEIGHTS:
    return tokenizer_lib.build_tokenizer(data, data.vocab)
  strip_accents = tokenizer_lib.ACCENTS[data.accents]
  if data.accents == "auto":
    strip_accents = source.strip_accents
  return tokenizer_lib.load_tokenizer(
    str(source.vocabulary),
    lowercase=data.lowercase and source.tokenizer.lowercase,
    strip_accents=strip_accents,
  )


class Predictor:
  """A model's compiled forward pass, for any parameters of that model.

  Its `attention` names the implementation of attention, which `model` has.
  """

  def __init__(self, options: FinetuneOptions, model: finetune.DownstreamModel):
    self.options = options
    self.mesh = sharding.make_mesh(options.mesh_spec)
    implementation, self.attention = attention.choose(
      options.model.attention,
      [model.config],
      self.mesh,
      length=options.length,
      check=True,
    )
    attending = encoder.replace_configs(model, attention=implementation)
    self.model = attending

    def predict_batch(params, inputs):
      return attending.apply({"params": params}, inputs, None, method="logits")

    self.predict_batch = jax.jit(
      predict_batch, out_shardings=sharding.replicated_sharding(self.mesh)
    )

  def answer(
    self,
    params: optax.Params,
    split: EvalSplit,
    *,
    console: Console,
    title: str,
    check: Callable[[], None] = lambda: None,
  ) -> Sequence[Answer]:
    """Returns the answers to a split; calls `check` before each batch."""
    o = self.options
    rows = len(split.encoded.tokens)
    by_row: dict[int, np.ndarray] = {}
    with progress.counting(console, title, rows, brief=True) as advance:
      for batch in batches.batches_in_order(
        split.encoded, batch_size=o.batch_size, limit=o.length
      ):
        with distributed.watch_step():
          check()
          inputs = {name: batch[name] for name in batches.INPUTS}
          on_device = sharding.place_batch(inputs, self.mesh)
          output_B = jax.device_get(self.predict_batch(params, on_device))
        pairs = zip(batch["row"].tolist(), output_B, strict=True)
        by_row |= {row: output for row, output in pairs if row >= 0}
        advance(int((batch["row"] >= 0).sum()))
      return split.decode_answers([by_row[row] for row in range(rows)])


@dataclasses.dataclass(frozen=True)
class FineTunedModel:
  """A model that answers questions, of one or several seeds."""

  seeds: Mapping[str, int | None]  # by folder; None of a model of others
  starts: tuple[Start, ...]  # of each seed
  predictor: Predictor  # for the parameters of any seed
  note: str  # which seeds are left out, or ""

  @property
  def options(self) -> FinetuneOptions:
    """The config with which all seeds were fine-tuned, of the first folder."""
    return self.starts[0].options

  @property
  def network(self) -> str:
    """Kind and width of the network, such as "BERT of 384 units"."""
    return f"{self.starts[0].role} of {self.predictor.model.config.width} units"

  def answer(
    self, questions: Sequence[Question], console: Console
  ) -> list[Sequence[Answer]]:
    """Returns each seed's answers to questions with different keys."""
    task = task_lib.TASKS[SQUAD]
    with progress.working(console, "Encoding questions"):
      split = task_data.encode_split(
        self.options, task, questions, self.starts[0].tokenizer
      )
    replicated = sharding.replicated_sharding(self.predictor.mesh)
    answers_S = []
    for folder, start in zip(self.seeds, self.starts, strict=True):
      params = start.make_params(task, seed=0, complete=True)
      title = f"Answering with '{folder}', rows"
      answers = self.predictor.answer(
        jax.device_put(params, replicated), split, console=console, title=title
      )
      answers_S.append(answers)
    return answers_S


def open_model(
  init: str, values: Mapping[str, Any], report: Callable[[str], None]
) -> FineTunedModel:
  """Opens a model that was fine-tuned on questions; reads no arrays yet.

  `values` is a config of the task "robustness" as a dict.
  """
  if not init:
    raise InputError(
      "init='' names no model. Set --config.init=WORKDIR of a fine-tuning on"
      " SQuAD, or a folder or hub name of a Hugging Face model for questions."
    )
  runs, note = _find_runs(init)
  seeds: dict[str, int | None] = {x: run.seed for x, run in runs.items()}
  seeds = seeds or {init: None}
  run = next(iter(runs.values()), None)
  network = Weights(next(iter(seeds)), report).encoder()
  if not match.answers_questions(network):
    raise InputError(
      f"init: {network.location} has no head for questions. Fine-tune it with"
      " --config=finetune_squad, and pass that workdir."
    )
  options = parse_options(_make_values(values, run))
  each = (dataclasses.replace(options, init=folder) for folder in seeds)
  starts = tuple(resolve(x, report) for x in each)
  task = task_lib.TASKS[SQUAD]
  for start in starts:
    start.match_task(task)
  predictor = Predictor(options, starts[0].make_model(task))
  return FineTunedModel(seeds, starts, predictor, note)


def _find_runs(init: str) -> tuple[dict[str, Result], str]:
  """Returns runs by the folders of their models, {} for models of others.

  Runs that failed, or have no model, are left out; a note says so.
  """
  workdir = open_path("init", init)
  pool = results.load_all(workdir).get(SQUAD, [])
  if not pool:
    if any(workdir.glob(files.SEEDS)):
      raise InputError(
        f"init={init!r} is a fine-tuning without a finished run on SQuAD. Run"
        " its command again, or fine-tune on SQuAD: --config=finetune_squad."
      )
    return {}, ""
  runs: dict[str, Result] = {}
  left_out: list[str] = []
  for x in pool:
    folder = results.run_folder(workdir, x.task, x.seed) / results.MODEL
    if not x.failure and (folder / hf_folder.CONFIG).exists():
      runs[str(folder)] = x
    else:
      left_out.append(f"seed {x.seed} ({x.failure or 'not exported'})")
  text = f"{len(runs)} of {len(pool)} seeds; without {', '.join(left_out)}"
  if not runs:
    raise InputError(
      f"init={init!r} has models of {text}. Fine-tune again with"
      " --config.finetune.export=all, or another learning rate."
    )
  return runs, f"{init}: {text}." if left_out else ""


def _make_values(
  values: Mapping[str, Any], run: Result | None
) -> dict[str, Any]:
  """Returns the config of the run's fine-tuning, in which `values` go first."""
  config = finetune_squad.get_config().to_dict()
  saved = run.provenance.get(files.CONFIG, {}) if run else {}
  config["length"] = values["length"] or saved.get("length", config["length"])
  config["batch_size"] = values["batch_size"]
  for name in ("model", "mesh"):
    config[name] |= values[name]
  config["finetune"] |= saved.get("finetune", {})
  if data := values["robustness"]["data"]:
    is_folder = pathlib.Path(data).expanduser().is_dir()
    for name in ("data", "train", "dev", "test"):
      config["finetune"][name] = ""
    config["finetune"]["data" if is_folder else "dev"] = data
  config["finetune"]["tasks"] = SQUAD
  return config
