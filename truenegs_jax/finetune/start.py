"""Opens the network that fine-tunings start from, and answers examples."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from rich.console import Console

from truenegs_jax.config.sections import AUTO, FROM_WEIGHTS, POSITIONS, SIZES
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data import tokenizer_files
from truenegs_jax.finetune import task_data
from truenegs_jax.finetune.task_data import (
  Answer,
  EvalSplit,
  FinetuneOptions,
)
from truenegs_jax.models import attention, encoder, finetune
from truenegs_jax.runtime import cpu, distributed, progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import batches
from truenegs_jax.tasks.task import SPANS, TAGS, Task
from truenegs_jax.train import sharding
from truenegs_jax.weights import hf_names, load, match
from truenegs_jax.weights.find import Weights
from truenegs_jax.weights.hf_folder import Network

MODEL_KEYS = ("dropout", "dtype", "remat", "scan")
DRAWN = "drawn at random"  # instead of a fingerprint, as it depends on the seed
HEAD_PREFIXES = ("task_head/", "pooled/")  # of parameter paths


@dataclasses.dataclass(frozen=True)
class Start:
  """The network that all runs start from, opened once for tasks and seeds."""

  options: FinetuneOptions
  weights: Weights  # of "" for a network drawn at random
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
    if not self.options.init:
      return None
    skip = self.options.init_skip
    weights = self.weights.for_roles(model.roles)
    return match.match_weights(weights, model, self.tokenizer, init_skip=skip)

  def make_params(
    self, task: Task, seed: int, *, complete: bool = False
  ) -> dict[str, Any]:
    """Makes initial parameters; draws a missing head unless `complete`."""
    matched = self.match_task(task)
    if matched is None:
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
  weights = Weights(o.init, report)
  if o.init:
    if o.model.variant != FROM_WEIGHTS or sizes:
      raise InputError(
        f"model.variant={o.model.variant!r} and the sizes {sizes} are for a"
        " network drawn at random, but init has weights, with their sizes. Set"
        " --config.model.variant=init and no size."
      )
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
    role = "discriminator"
    location = "a network drawn at random"
    network |= sizes
    network["backbone"] = "encoder"
    tokenizer = tokenizer_files.build_tokenizer(o.data, o.data.vocab)
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
    return tokenizer_files.build_tokenizer(data, data.vocab)
  strip_accents = tokenizer_lib.ACCENTS[data.accents]
  if data.accents == "auto":
    strip_accents = source.strip_accents
  return tokenizer_files.load_tokenizer(
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
