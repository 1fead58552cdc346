"""From a config to the objects of a run: model, objective, optimizer, state.

The one place that reads names out of a ConfigDict and gives numbers to the
functions that want numbers; training, evaluation and export all build here.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import (
  Tokenizer,
)
from truenegs_jax.models import choose_attention, pretrain
from truenegs_jax.objectives import electra, fill_slots, masking, mlm
from truenegs_jax.objectives.options import Options
from truenegs_jax.runtime import distributed
from truenegs_jax.synonyms import run_table
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.train import model_synonyms, optim, sharding, step
from truenegs_jax.workdir.from_config import build_model

OBJECTIVES: dict[str, Callable[..., fill_slots.Terms]] = {
  "electra": electra.electra_terms,
  "mlm": mlm.mlm_terms,
}


@dataclasses.dataclass(frozen=True)
class Run:
  """What a config describes, before any array exists."""

  model: pretrain.Model
  options: Options
  terms: Callable[..., fill_slots.Terms]
  weights: Mapping[str, step.Weight]
  rate: optim.Schedule
  tx: optax.GradientTransformation
  mesh_spec: sharding.MeshSpec
  own_table: model_synonyms.OwnTable | None  # None: outside synonyms, or none

  def objective(self, *, train: bool) -> step.Objective:
    """The objective over this model."""
    return functools.partial(
      self.terms, model=self.model, options=self.options, train=train
    )

  def init_state(self, seed: int) -> step.TrainState:
    """A fresh state; pure, so that it can be jitted onto a mesh."""
    init_params = functools.partial(pretrain.init_params, self.model)
    state = step.init_state(init_params, self.tx, seed)
    if self.own_table is None:
      return state
    return dataclasses.replace(state, aux=self.own_table.empty())


def build_run(c: ConfigDict, tokenizer: Tokenizer) -> Run:
  """Builds a pre-training run from a config that passed `check_config`."""
  rate = optim.make_schedule(
    c.optim.schedule,
    peak=c.optim.lr,
    warmup_steps=c.optim.warmup_steps,
    total_steps=c.steps,
  )
  tx = make_optimizer(c, rate, carried=pretrain.CARRIED)
  options = _options(c, tokenizer)
  return Run(
    model=build_model(c, vocab_size=len(tokenizer.vocab)),
    options=options,
    terms=OBJECTIVES[c.objective],
    weights=_weights(c),
    rate=rate,
    tx=tx,
    mesh_spec=mesh_spec(c),
    own_table=model_synonyms.make(c, tokenizer.vocab),
  )


def make_optimizer(
  c: ConfigDict, rate: optim.Schedule, **more: Any
) -> optax.GradientTransformation:
  """`optim.make_optimizer` by the numbers of `c.optim`."""
  names = "weight_decay clip_norm b1 b2 epsilon".split()
  return optim.make_optimizer(rate, **{n: c.optim[n] for n in names}, **more)


def attending(
  c: ConfigDict,
  run: Run,
  mesh: jax.sharding.Mesh,
  *,
  find: Callable[..., Any] = choose_attention.choose,
) -> tuple[Run, str]:
  """The run with the attention that it has on a mesh, and a line about that.

  It is for the steps of a training; what else is done with the model has the
  attention that runs anywhere.

  Args:
    c, run, mesh: of the training.
    find: `attention_choice.settle`, to have it checked on the devices as well.

  Raises:
    InputError: what `model.attention` wants cannot be, or the processes find
      different ones.
  """
  form, line = find(
    c.model.attention,
    run.model.roles.values(),
    mesh,
    length=c.length,
    packed=c.data.layout == "packed",
  )
  distributed.check_alike("attention", line)
  model: Any = choose_attention.with_form(run.model, form)
  return dataclasses.replace(run, model=model), line


def mesh_spec(c: ConfigDict) -> sharding.MeshSpec:
  """The mesh preset of a config, with the sizes that the config changes."""
  return sharding.get_spec(c.mesh.preset, sharding.parse_axes(c.mesh.axes))


def table_request(c: ConfigDict) -> run_table.TableRequest:
  """The synonym table that a config asks for."""
  names = ("sources", "stop_words", *run_table.OPTIONS)
  return run_table.TableRequest(
    wordnet_dir=c.data.wordnet_dir,
    **{name: c.negatives[name] for name in names},
  )


def make_aux(
  c: ConfigDict,
  table: table_lib.SynonymTable | None,
  vocab: Sequence[str],
  mesh: jax.sharding.Mesh,
) -> dict[str, jax.Array]:
  """Device arrays that are no parameters: the synonym table, if any.

  With `negatives.strict_subword` also which tokens are `##` pieces.
  """
  aux = {}
  if table is not None:
    arrays = table_lib.arrays(table, c.negatives.layout)
    for name, array in arrays.items():
      aux[name] = sharding.place_table(array, mesh, c.mesh.synonyms)
  continues_V = continuations(c, vocab)
  if continues_V is not None:
    whole = sharding.replicated(mesh)
    aux["continues_V"] = jax.make_array_from_callback(
      continues_V.shape, whole, lambda index: continues_V[index]
    )
  return aux


def continuations(c: ConfigDict, vocab: Sequence[str]) -> np.ndarray | None:
  """bool_V: the `##` pieces, where `negatives.strict_subword` asks for them."""
  if not c.negatives.strict_subword:
    return None
  return np.array([token.startswith("##") for token in vocab])


def _options(c: ConfigDict, tokenizer: Tokenizer) -> Options:
  n = c.negatives
  readings = {
    field.name: n[field.name]
    for field in dataclasses.fields(Options)
    if field.name not in ("masking", "sampling_temperature", "vocabulary_chunk")
  }
  return Options(
    masking=masking.MaskingOptions(
      mask_id=tokenizer.mask,
      never_masked=(tokenizer.cls, tokenizer.sep, tokenizer.mask),
      mask_prob=c.masking.prob,
      style=c.masking.style,
      with_replacement=c.masking.with_replacement,
      vocab_size=len(tokenizer.vocab),
    ),
    sampling_temperature=c.generator.temperature,
    # Runs that were saved before there was such a key are read as well.
    vocabulary_chunk=c.model.get("vocabulary_chunk", 0),
    **readings,
  )


def _weights(c: ConfigDict) -> dict[str, step.Weight]:
  """Weight of each term of the loss; one of weight 0 is left out."""
  n = c.negatives
  weights: dict[str, step.Weight] = {"mlm": c.generator.loss_weight}
  for name, weight in ("soft", n.soft_weight), ("sentence", n.sentence_weight):
    if weight:
      weights[name] = optim.weight_schedule(
        n.soft_schedule, weight, n.soft_steps
      )
  if c.objective == "electra":
    weights["detect"] = c.generator.detect_weight
  return weights
