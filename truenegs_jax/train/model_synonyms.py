"""Synonyms that are the neighbours in the model's own word table.

The source "model" of `negatives.sources`. The table is made anew on the device
every N steps. It is part of the state, so that a run that was stopped between
two refreshes goes on with the same one.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.models import pretrain
from truenegs_jax.objectives import negatives
from truenegs_jax.synonyms import stop_words
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.synonyms.sources import ModelTable, parse_expression
from truenegs_jax.train import step as step_lib

RefreshFn = Callable[[step_lib.TrainState, int], step_lib.TrainState]


@dataclasses.dataclass(frozen=True)
class ModelTableBuilder:
  """The rule by which a model makes its table.

  Attributes:
    options: how many neighbours, how near, how often.
    source: `negatives.sources` in its normal form.
    stop_words: fingerprint of those that get no list.
    keep_stop_words: they get one all the same.
    golds_V: bool, the tokens that get a list.
    words_V: bool, those that can be in one.
  """

  options: ModelTable
  source: str
  stop_words: str
  keep_stop_words: bool
  golds_V: np.ndarray
  words_V: np.ndarray

  @property
  def fingerprint(self) -> str:
    """Stands for the content of the table, which changes as it trains."""
    return f"{self.source}, stop words {self.stop_words}"

  def empty(self) -> dict[str, jax.Array]:
    """The table before the first refresh: nothing is listed."""
    shape = len(self.words_V), self.options.top
    return {"ids_VxS": jnp.full(shape, -1, jnp.int32)}

  def from_embeddings(self, word_VxE: jax.Array) -> dict[str, jax.Array]:
    """The table of these embeddings; pure."""
    ids_VxS = negatives.neighbour_ids(
      word_VxE,
      jnp.asarray(self.golds_V),
      jnp.asarray(self.words_V),
      top=self.options.top,
      threshold=self.options.threshold,
    )
    return {"ids_VxS": ids_VxS}

  def saved(
    self, ids_VxS: np.ndarray, vocab: Sequence[str], *, steps: int
  ) -> table_lib.SynonymTable:
    """The last table of a run that has done all its steps."""
    every = self.options.every
    return table_lib.from_ids(
      ids_VxS,
      vocab,
      source=self.source,
      options={
        "keep_stop_words": self.keep_stop_words,
        "stop_words": self.stop_words,
        "made_before_step": (steps - 1) // every * every,
      },
    )


def make_table_builder(
  sources: str,
  vocab: Sequence[str],
  *,
  stop_words_file: str,
  keep_stop_words: bool,
) -> ModelTableBuilder | None:
  """The rule of `negatives.sources`; None where synonyms are from outside."""
  spec = parse_expression(sources)
  if spec.model is None:
    return None
  words = frozenset() if keep_stop_words else stop_words.load(stop_words_file)
  return ModelTableBuilder(
    spec.model,
    source=spec.identity,
    stop_words=stop_words.fingerprint(words),
    keep_stop_words=keep_stop_words,
    golds_V=stop_words.may_have_synonyms(vocab, stop_words=words),
    words_V=stop_words.may_have_synonyms(vocab, keep_stop_words=True),
  )


def make_refresh(
  own: ModelTableBuilder | None,
  abstract: step_lib.TrainState,
  *,
  from_weights: bool,
) -> RefreshFn:
  """`(state, step) -> state` with the table that its parameters make.

  It is made before every N-th step, and before the first only of a run that
  starts from weights. Without an own table nothing changes. Compiles.
  """
  if own is None:
    return lambda state, step: state
  places = jax.tree.map(lambda x: x.sharding, abstract.aux)

  def table_of(params):
    # Gathered first: of a split table every chunk of cosines would be summed
    # up over the devices.
    word_VxE = jax.lax.with_sharding_constraint(
      pretrain.get_word_embeddings(params), places["ids_VxS"]
    )
    return own.from_embeddings(word_VxE)

  jitted = jax.jit(table_of, out_shardings=places)
  compiled = jitted.lower(abstract.params).compile()

  def refresh(state, step):
    if step % own.options.every or not (step or from_weights):
      return state
    return dataclasses.replace(state, aux=compiled(state.params))

  return refresh
