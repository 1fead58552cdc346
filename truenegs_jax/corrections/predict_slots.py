"""Lets a masked language model fill the slots of a corpus."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax.models.pretrain import Model
from truenegs_jax.objectives import masking, mlm, output_softmax
from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.synonyms.table import SynonymTable, contains
from truenegs_jax.train import sharding


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
  """One entry a slot in use, in any order: M slots of T lines.

  Raises ValueError where the arrays do not fit one another: that is a defect of
  the code that made them.

  Attributes:
    sequence_M: int32, the number of the slot's line, 0 to T - 1.
    position_M: int32, the slot's place in that line.
    gold_M: int32, the token that stands there in the text.
    predicted_M: int32, what is judged: the token that the model takes for the
      likeliest, or one drawn from what it says.
    probability_M: float32, what it gives to that token.
    eligible_M: bool, hard correction may touch the slot.
    sequences: T arrays, the token ids of every line, nothing masked, [CLS]
      first and [SEP] last; lines without a slot are among them.
  """

  sequence_M: np.ndarray
  position_M: np.ndarray
  gold_M: np.ndarray
  predicted_M: np.ndarray
  probability_M: np.ndarray
  eligible_M: np.ndarray
  sequences: tuple[np.ndarray, ...]

  def __post_init__(self) -> None:
    for name in ("sequence_M", "position_M", "gold_M", "predicted_M"):
      self._check(name, np.integer)
    self._check("probability_M", np.floating)
    self._check("eligible_M", np.bool_)
    p_M = self.probability_M
    if not (
      (p_M >= 0) & (p_M < 1.001)
    ).all():  # A softmax may round to above 1.
      raise ValueError("probability_M has values that are no probabilities.")
    if (self.predicted_M < 0).any():
      raise ValueError("predicted_M has negative ids.")
    self._check_golds()

  @property
  def mismatch_M(self) -> np.ndarray:
    """bool: the prediction is not the gold."""
    return self.predicted_M != self.gold_M

  def corrected_M(self, table: SynonymTable) -> np.ndarray:
    """bool: hard correction spares the prediction, another word than the gold.

    The gold itself is none, though `include_self` drops it from the loss, too.
    """
    listed_M = contains(table, self.gold_M, self.predicted_M)
    return self.eligible_M & self.mismatch_M & listed_M

  def _check(self, name: str, kind: type) -> None:
    """An entry of this kind for every slot."""
    values = getattr(self, name)
    if values.shape != (len(self.sequence_M),):
      raise ValueError(
        f"{name} has shape {values.shape}, sequence_M"
        f" {self.sequence_M.shape}; both must be the same [M]."
      )
    if not np.issubdtype(values.dtype, kind):
      raise ValueError(f"{name} is {values.dtype}, not {kind.__name__}.")

  def _check_golds(self) -> None:
    """The gold of every slot stands where the slot says."""
    if not len(self.gold_M):
      return
    first, last = self.sequence_M.min(), self.sequence_M.max()
    if first < 0 or last >= len(self.sequences):
      raise ValueError(
        f"sequence_M names lines {first} to {last} of {len(self.sequences)}."
      )
    length_T = np.array([len(row) for row in self.sequences])
    start_T = np.cumsum(length_T) - length_T
    end_M = length_T[self.sequence_M] - 1
    if not ((0 < self.position_M) & (self.position_M < end_M)).all():
      raise ValueError("position_M names places not between [CLS] and [SEP].")
    tokens = np.concatenate(self.sequences)
    place_M = start_T[self.sequence_M] + self.position_M
    if (tokens[place_M] != self.gold_M).any():
      raise ValueError("gold_M is not what stands in the sequences.")


Batch = Mapping[str, np.ndarray]
NARROW = (4, 2)  # a batch of short lines takes 1/4 or 1/2 of the length


def make_predict_slots(
  model: Model,
  options: masking.MaskingOptions,
  *,
  prediction: str = "argmax",
  temperature: float = 1.0,
  continues_V: np.ndarray | None = None,
) -> Callable:
  """Builds `predict(params, batch, key, width=L) -> dict of [B, K] arrays`.

  Rows are masked as in training, by `key` and their number; dropout is off.
  `predicted` is the likeliest token, or for "sample" one drawn at
  `temperature`; `probability` is what the model gives to it. `weight` is 1 for
  the slots in use; `eligible` is where hard correction may strike: anywhere or,
  given the `##` pieces, by `strict_subword` of `Options`.
  No token stands beyond `width`: what is there is masked and not computed, so
  that the slots do not depend on it.
  """

  @functools.partial(jax.jit, static_argnames="width")
  def predict(params, batch, key, width=None):
    keys_B = rng.row_keys(key, 0, batch["row"])
    keys = functools.partial(rng.purpose_keys, keys_B)
    slots, masked_BxL = masking.hide_slots(
      batch["tokens"], batch["documents"], keys(rng.MASK), options
    )
    length = masked_BxL.shape[1]
    width = length if width is None else width
    inputs = {name: batch[name][:, :width] for name in ("types", "documents")}
    k = min(
      masking.num_slots(length, options.mask_prob),
      int(options.mask_prob * width) + 1,  # no row so short has more
    )
    slots = jax.tree.map(lambda x_BxK: x_BxK[:, :k], slots)
    logits_BxKxV = model.bind({"params": params}).generate_logits(
      inputs | {"tokens": masked_BxL[:, :width]}, slots.positions_BxK, None
    )
    if prediction == "argmax":
      predicted_BxK = output_softmax.predict(logits_BxKxV)
    else:
      drawn_BxK = output_softmax.sample(
        logits_BxKxV, keys(rng.SAMPLE), temperature
      )
      predicted_BxK = masking.of_first(slots, drawn_BxK)
    return {
      "position": slots.positions_BxK,
      "gold": slots.original_BxK,
      "weight": slots.weight_BxK,
      "predicted": predicted_BxK,
      "probability": _probability(logits_BxKxV, predicted_BxK),
      "eligible": jnp.ones_like(slots.original_BxK, bool)
      if continues_V is None
      else mlm.ends_its_word(batch, slots.positions_BxK, continues_V),
    }

  return predict


def _probability(logits_BxKxV: jax.Array, token_BxK: jax.Array) -> jax.Array:
  """What a softmax gives to a token."""
  loss_BxK = optax.softmax_cross_entropy_with_integer_labels(
    logits_BxKxV.astype(jnp.float32), token_BxK
  )
  return jnp.exp(-loss_BxK)


def predict_batch(
  predict: Callable, params: Any, batch: Batch, key: jax.Array
) -> Predictions:
  """What a model says of the rows of a batch; a document is a sequence."""
  found = jax.device_get(predict(params, _on_device(batch), key))
  row_M, slot_M = np.nonzero(found["weight"] > 0)
  position_M = found["position"][row_M, slot_M]
  document_M = batch["documents"][row_M, position_M]
  places, sequence_M = np.unique(
    np.stack([row_M, document_M]), axis=1, return_inverse=True
  )
  # Of a packed row the tokens of other documents were not seen.
  inside = [batch["documents"][b] == document for b, document in places.T]
  sequences = [
    batch["tokens"][b][inside_L]
    for b, inside_L in zip(places[0], inside, strict=True)
  ]
  start_T = np.array([inside_L.argmax() for inside_L in inside], np.int64)
  return _predictions(
    found,
    (row_M, slot_M),
    sequence_M=sequence_M.ravel(),
    start_M=start_T[sequence_M.ravel()] if len(row_M) else 0,
    sequences=sequences,
  )


def predict_lines(
  predict: Callable,
  params: Any,
  sequences: Sequence[np.ndarray],
  key: jax.Array,
  *,
  length: int,
  batch_size: int,
  mesh: jax.sharding.Mesh,
  advance: Callable[[int], Any] = lambda lines: None,
) -> Predictions:
  """What a model says of every line of a corpus.

  Args:
    predict: by `make_predict_slots`.
    params: on the devices of the mesh.
    sequences: int32, the tokens of each line, at most `length`.
    key: with the number of a line it decides what is hidden there.
    length: L, which with the share of masking decides how many slots there are.
    batch_size: lines of a batch; the last ones are filled up with padding.
    mesh: batches are split over its axis "data".
    advance: told of each batch how many lines it was.

  Raises:
    NonFiniteError: the model gives no probabilities.
  """
  parts = []
  for batch, width in _batches(sequences, length, batch_size):
    found = jax.device_get(
      predict(params, sharding.to_device(batch, mesh), key, width=width)
    )
    places = np.nonzero(found["weight"] > 0)
    sequence_M = batch["row"][places[0]]
    parts.append((found, places, sequence_M))
    advance(int((batch["row"] >= 0).sum()))
  found = {
    name: np.concatenate([part[name][places] for part, places, _ in parts])
    for name in parts[0][0]
  }
  sequence_M = np.concatenate([part[2] for part in parts])
  order_M = np.lexsort([found["position"], sequence_M])  # as one reads
  return _predictions(
    found,
    (order_M,),
    sequence_M=sequence_M[order_M],
    start_M=0,
    sequences=sequences,
  )


def _predictions(
  found: Mapping[str, np.ndarray],
  places: tuple[np.ndarray, ...],
  *,
  sequence_M: np.ndarray,
  start_M: Any,
  sequences: Sequence[np.ndarray],
) -> Predictions:
  probability_M = found["probability"][places]
  if not np.isfinite(probability_M).all():
    raise NonFiniteError(
      f"{np.count_nonzero(~np.isfinite(probability_M)):,} of"
      f" {len(probability_M):,} predictions are not finite: these parameters"
      " are damaged; take an earlier checkpoint, or float32."
    )
  return Predictions(
    sequence_M=sequence_M.astype(np.int32),
    position_M=(found["position"][places] - start_M).astype(np.int32),
    gold_M=found["gold"][places],
    predicted_M=found["predicted"][places],
    probability_M=np.minimum(probability_M, 1.0),  # 1 + a rounding
    eligible_M=found["eligible"][places],
    sequences=tuple(sequences),
  )


def _batches(
  sequences: Sequence[np.ndarray], length: int, batch_size: int
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
  """Batches `[B, L]` of lines of like length, and how much of L they need."""
  order = np.argsort([len(row) for row in sequences], kind="stable")
  for first in range(0, len(order), batch_size):
    numbers = order[first : first + batch_size]
    shape = batch_size, length
    tokens, documents = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    row = np.full(batch_size, -1, np.int32)
    row[: len(numbers)] = numbers
    for b, number in enumerate(numbers):
      size = len(sequences[number])
      tokens[b, :size], documents[b, :size] = sequences[number], 1
    batch = {"tokens": tokens, "documents": documents, "row": row}
    batch["types"] = np.zeros_like(tokens)
    needed = len(sequences[numbers[-1]])
    widths = (length // part for part in NARROW)
    yield batch, next((w for w in widths if w >= needed), length)


def _on_device(batch: Batch) -> dict[str, jax.Array]:
  return {name: jnp.asarray(array) for name, array in batch.items()}
