"""Synonyms that are the neighbours in the model's own word table.

The source "model" of `negatives.sources`. The table is made anew on the device
every N steps. What is looked up between two refreshes is part of the state, so
that a run which was stopped between them goes on with the same.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from truenegs_jax.models import pretrain
from truenegs_jax.objectives import negatives
from truenegs_jax.objectives.options import needs_table
from truenegs_jax.synonyms import sources_spec, stop_words
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.train import step as step_lib

Refresh = Callable[[step_lib.TrainState, int], step_lib.TrainState]


@dataclasses.dataclass(frozen=True)
class OwnTable:
  """The rule by which a model makes its table."""

  options: sources_spec.ModelTable
  golds_V: np.ndarray  # bool: the tokens that get a list
  words_V: np.ndarray  # bool: those that can be in one

  def empty(self) -> dict[str, jax.Array]:
    """What is looked up before the first refresh: nothing is listed."""
    shape = len(self.words_V), self.options.top
    return {"ids_VxS": jnp.full(shape, -1, jnp.int32)}

  def of(self, word_VxE: jax.Array) -> dict[str, jax.Array]:
    """The table of these embeddings; pure."""
    ids_VxS = negatives.neighbour_ids(
      word_VxE,
      jnp.asarray(self.golds_V),
      jnp.asarray(self.words_V),
      top=self.options.top,
      threshold=self.options.threshold,
    )
    return {"ids_VxS": ids_VxS}


def make(c: ConfigDict, vocab: Sequence[str]) -> OwnTable | None:
  """The rule of a config; None where synonyms come from outside, or none."""
  n = c.negatives
  model = sources_spec.parse(n.sources).model
  if model is None or not needs_table(n):
    return None
  return OwnTable(
    model,
    golds_V=stop_words.golds(vocab, stop_words=_stop_words(c)),
    words_V=stop_words.golds(vocab, keep_stop_words=True),
  )


def make_refresh(
  c: ConfigDict, own: OwnTable | None, abstract: step_lib.TrainState
) -> Refresh:
  """`(state, step) -> state` with the table that its parameters make.

  It is made before every N-th step, and before the first only of weights that a
  run starts from. Without an own table nothing changes. Compiles.
  """
  if own is None:
    return lambda state, step: state
  places = jax.tree.map(lambda x: x.sharding, abstract.aux)

  def table_of(params):
    # Gathered first: of a split table every chunk of cosines would be summed
    # up over the devices.
    word_VxE = jax.lax.with_sharding_constraint(
      pretrain.word_table(params), places["ids_VxS"]
    )
    return own.of(word_VxE)

  jitted = jax.jit(table_of, out_shardings=places)
  compiled = jitted.lower(abstract.params).compile()

  def refresh(state, step):
    if step % own.options.every or not (step or c.init):
      return state
    return dataclasses.replace(state, aux=compiled(state.params))

  return refresh


def rule(c: ConfigDict) -> str:
  """What stands for the content of the table, which changes as it trains."""
  digest = stop_words.fingerprint(_stop_words(c))
  return (
    f"{sources_spec.parse(c.negatives.sources).identity}, stop words {digest}"
  )


def saved_table(
  c: ConfigDict, ids_VxS: np.ndarray, vocab: Sequence[str]
) -> table_lib.SynonymTable:
  """The last table of a run that has done all its steps."""
  asked = sources_spec.parse(c.negatives.sources)
  every = asked.model.every if asked.model else 1
  return table_lib.from_ids(
    ids_VxS,
    vocab,
    source=asked.identity,
    options={
      "keep_stop_words": c.negatives.keep_stop_words,
      "stop_words": stop_words.fingerprint(_stop_words(c)),
      "made_before_step": (c.steps - 1) // every * every,
    },
  )


def _stop_words(c: ConfigDict) -> frozenset[str]:
  n = c.negatives
  return frozenset() if n.keep_stop_words else stop_words.load(n.stop_words)
