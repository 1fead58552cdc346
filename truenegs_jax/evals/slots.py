"""Lets a masked language model fill the slots of a corpus."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax import randomness
from truenegs_jax.errors import NonFiniteError
from truenegs_jax.evals.predictions import Predictions
from truenegs_jax.models.pretrain import Model
from truenegs_jax.objectives import masking, mlm, vocabulary
from truenegs_jax.train import sharding

Batch = Mapping[str, np.ndarray]
NARROW = (4, 2)  # a batch of short lines takes 1/4 or 1/2 of the length


def make_predict_slots(
  model: Model,
  options: masking.MaskingOptions,
  *,
  prediction: str = "argmax",
  temperature: float = 1.0,
  visible_slots: str = "judged",
  continues_V: np.ndarray | None = None,
) -> Callable:
  """Builds `predict(params, batch, key, width=L) -> dict of [B, K] arrays`.

  Rows are masked as in training, by `key` and their number; dropout is off.
  `predicted` is the likeliest token, or for "sample" one drawn at
  `temperature`; `probability` is what the model gives to it. `weight` is 1 for
  the slots in use; `eligible` is where hard correction may strike, by
  `visible_slots` of `Options` and, given the `##` pieces, its `strict_subword`.
  No token stands beyond `width`: what is there is masked and not computed, so
  that the slots do not depend on it.
  """

  correctable = functools.partial(
    mlm.correctable, visible_slots=visible_slots, continues_V=continues_V
  )

  @functools.partial(jax.jit, static_argnames="width")
  def predict(params, batch, key, width=None):
    keys_B = randomness.row_keys(key, 0, batch["row"])
    keys = functools.partial(randomness.purpose_keys, keys_B)
    slots, masked_BxL = masking.hide_slots(
      batch["tokens"], batch["documents"], keys(randomness.MASK), options
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
      predicted_BxK = vocabulary.predict(logits_BxKxV)
    else:
      drawn_BxK = vocabulary.sample(
        logits_BxKxV, keys(randomness.SAMPLE), temperature
      )
      predicted_BxK = masking.of_first(slots, drawn_BxK)
    return {
      "position": slots.positions_BxK,
      "gold": slots.original_BxK,
      "weight": slots.weight_BxK,
      "predicted": predicted_BxK,
      "probability": _probability(logits_BxKxV, predicted_BxK),
      "eligible": correctable(batch, slots, masked_BxL),
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
