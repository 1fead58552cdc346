"""Builds the synonym table of the source "model" while it trains.

The synonyms of a token are the nearest neighbours of its embedding. The table
is part of the train state, so that a resumed run continues with it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.data.words import read_words
from truenegs_jax.objectives import negatives
from truenegs_jax.synonyms import vocabulary as vocabulary_lib
from truenegs_jax.synonyms.run_table import ModelTable, TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import step


@dataclasses.dataclass(frozen=True)
class ModelTableBuilder:
  """Builds synonym tables from embeddings."""

  options: ModelTable  # neighbours, lowest cosine, steps between two tables
  source: str  # normalized `negatives.sources`
  stop_words: str  # fingerprint of the words without synonyms
  words_V: np.ndarray  # int8, of `neighbour_ids`

  @property
  def fingerprint(self) -> str:
    """Identifies how tables are built; their content changes every N steps."""
    return f"{self.source}, stop words {self.stop_words}"

  def empty_table(self) -> dict[str, jax.Array]:
    """Returns the table before the first refresh, which has no synonyms."""
    shape = len(self.words_V), self.options.top
    return {"ids_VxS": jnp.full(shape, -1, jnp.int32)}

  def build(self, word_VxE: jax.Array) -> dict[str, jax.Array]:
    """Builds the table of an embedding table; can be jitted."""
    ids_VxS = negatives.neighbour_ids(
      word_VxE,
      jnp.asarray(self.words_V),
      top=self.options.top,
      threshold=self.options.threshold,
    )
    return {"ids_VxS": ids_VxS}

  def to_synonym_table(
    self, ids_VxS: np.ndarray, vocab: Sequence[str], *, steps: int
  ) -> SynonymTable:
    """Converts the last table of a run of `steps` steps, to be saved."""
    every = self.options.every
    options: dict[str, str | bool | int] = {
      "stop_words": self.stop_words,
      "made_before_step": (steps - 1) // every * every,
    }
    return SynonymTable.from_ids(
      ids_VxS, vocab, source=self.source, options=options
    )


def make_table_builder(
  request: TableRequest, tokenizer: Tokenizer
) -> ModelTableBuilder | None:
  """Makes the builder of the source "model"; None for other sources."""
  options = request.model
  if options is None:
    return None
  words = read_words(tokenizer.vocab)
  vocabulary = vocabulary_lib.Vocabulary(
    tokenizer.vocab, str, request.no_neighbours
  )
  words_V = np.array([*map(vocabulary.may_have_neighbours, words.words)])
  return ModelTableBuilder(
    options,
    source=request.identity,
    stop_words=vocabulary_lib.fingerprint(request.load_stop_words()),
    words_V=words_V * (1 + words.classes_V),
  )


def make_refresh(
  builder: ModelTableBuilder | None,
  abstract: step.TrainState,
  *,
  from_weights: bool,
) -> Callable[[step.TrainState, int], step.TrainState]:
  """Compiles `refresh(state, done) -> state`, which rebuilds the table.

  It does so before every N-th step; before step 0 only if the run starts from
  weights, because random embeddings have no neighbours.
  """
  if builder is None:
    return lambda state, done: state
  shardings = jax.tree.map(lambda x: x.sharding, abstract.aux)

  def build(params: dict[str, Any]) -> dict[str, jax.Array]:
    # The embeddings are gathered first. With a split embedding table, each
    # block of cosines would be summed over the devices.
    word_VxE = jax.lax.with_sharding_constraint(
      params["embeddings"]["word"], shardings["ids_VxS"]
    )
    return builder.build(word_VxE)

  jitted = jax.jit(build, out_shardings=shardings)
  compiled = jitted.lower(abstract.params).compile()

  def refresh(state: step.TrainState, done: int) -> step.TrainState:
    if done % builder.options.every or not (done or from_weights):
      return state
    return dataclasses.replace(state, aux=compiled(state.params))

  return refresh
