"""Reads lines of a text and predicts slots with a masked language model."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.objectives import masking, mlm, output_softmax
from truenegs_jax.pretrain.cases import Predictions
from truenegs_jax.pretrain.plan import Run
from truenegs_jax.runtime import distributed, rng
from truenegs_jax.runtime.errors import DataError, InputError, NonFiniteError
from truenegs_jax.runtime.files import short_sha256
from truenegs_jax.train import sharding

MASK_TEXT = "[MASK]"
TEXT = "corrections.text"  # the config key
Batch = Mapping[str, np.ndarray]
NARROW = (4, 2)  # batches of short lines have 1/4 or 1/2 of the length


@dataclasses.dataclass(frozen=True)
class Lines:
  """The lines of a text, each as a sequence `[CLS] line [SEP]`."""

  sequences: tuple[np.ndarray, ...]  # int32, the tokens of each line
  length: int  # of a sequence, at most
  num_cut: int  # lines that were cut to this length
  fingerprint: str  # 16 hex digits over all tokens


def read_lines(
  text: str,
  tokenizer: Tokenizer,
  *,
  length: int,
  limit: int = 0,
  open_wordnet: Callable[[], Any] | None = None,
) -> Lines:
  """Tokenizes up to `limit` lines (0: all) of a value like `data.sources`."""
  documents = open_corpus(text, key=TEXT, open_wordnet=open_wordnet)
  lines = (line for document in documents for line in document.split("\n"))
  chosen = [*itertools.islice(lines, limit or None)]
  encoded = [ids for ids in tokenizer.encode_lines(chosen) if ids]
  if not encoded:
    raise DataError(f"{TEXT}={text!r} has no tokens. Use other text.")
  sequences = tuple(
    np.array([tokenizer.cls, *ids[: length - 2], tokenizer.sep], np.int32)
    for ids in encoded
  )
  return Lines(
    sequences=sequences,
    length=length,
    num_cut=sum(len(ids) > length - 2 for ids in encoded),
    fingerprint=short_sha256(b"\n".join(s.tobytes() for s in sequences)),
  )


def encode_sentences(
  tokenizer: Tokenizer, sentences: Sequence[str], *, max_length: int
) -> list[list[int]]:
  """Encodes sentences; the first [MASK] of each becomes the mask token."""
  rows = []
  for sentence in sentences:
    # The tokenizer encodes the text "[MASK]" as text, not as the mask token.
    before, mask, after = sentence.partition(MASK_TEXT)
    if not mask:
      raise InputError(
        f"eval.sentences: {sentence!r} has no {MASK_TEXT}. Add one or remove"
        " the sentence."
      )
    ids = tokenizer.encode_lines([before.rstrip(), after])
    row = [tokenizer.cls, *ids[0], tokenizer.mask, *ids[1], tokenizer.sep]
    if len(row) > max_length:
      raise InputError(
        f"eval.sentences: {sentence!r} has {len(row)} tokens, and the model"
        f" takes at most {max_length}. Use a shorter sentence."
      )
    rows.append(row)
  return rows


def build_predict_step(run: Run) -> Callable[..., dict[str, jax.Array]]:
  """Builds the prediction of slots: `(params, batch, width) -> [B, K] arrays`.

  Parameters and rows are split over the mesh as in an evaluation step. Rows are
  masked like in training, by the run's seed and their number; there is no
  dropout. The model reads the first `width` positions; the others must be
  padding. Masking draws for all L positions: slots do not depend on `width`.

  The arrays are `position`, `gold`, `predicted` (the likeliest token or a
  sample), `probability` of the predicted token, `weight` (1 for slots in use)
  and `eligible`, by `strict_subword`.
  """
  options = run.options
  edges_V = run.edges_V
  aux = {} if edges_V is None else {"edges_V": edges_V}

  def predict(
    params: dict, batch: Mapping[str, jax.Array], width: int
  ) -> dict[str, jax.Array]:
    keys_B = rng.row_keys(jax.random.key(run.config.seed), 0, batch["row"])
    keys = functools.partial(rng.purpose_keys, keys_B)
    slots, masked_BxL = masking.hide_slots(
      batch["tokens"], batch["documents"], keys(rng.MASK), options.masking, aux
    )
    most = int(options.masking.mask_prob * width) + 1  # slots of `width` tokens
    slots = jax.tree.map(lambda x_BxK: x_BxK[:, :most], slots)
    inputs = {"tokens": masked_BxL[:, :width]}
    for name in ("types", "documents"):
      inputs[name] = batch[name][:, :width]
    bound = run.model.bind({"params": params})
    compute = functools.partial(
      output_softmax.compute,
      bound.generate_vectors(inputs, slots.positions_BxK, None),
      *bound.output_layer(),
      keys_B=keys(rng.SAMPLE),
      chunk=options.vocabulary_chunk,
    )
    output = compute(gold_BxK=slots.gold_BxK)
    is_sampled = options.prediction == "sample"
    predicted_BxK = output.sampled_BxK if is_sampled else output.predicted_BxK
    return {
      "position": slots.positions_BxK,
      "gold": slots.gold_BxK,
      "weight": slots.weight_BxK,
      "predicted": predicted_BxK,
      "probability": jnp.exp(-compute(gold_BxK=predicted_BxK).loss_BxK),
      "eligible": mlm.is_whole_word(batch, slots.positions_BxK, aux["edges_V"])
      if options.strict_subword
      else jnp.ones_like(slots.gold_BxK, bool),
    }

  return jax.jit(
    sharding.gather_params(predict, run.mesh, run.mesh_spec),
    static_argnums=2,
    out_shardings=sharding.replicated_sharding(run.mesh),
  )


def predict_batch(
  predict: Callable, params: optax.Params, mesh: jax.sharding.Mesh, batch: Batch
) -> Predictions:
  """Predicts the slots of all rows of a batch; each document is a sequence."""
  length = batch["tokens"].shape[1]
  slots = _predict_slots(predict, params, mesh, batch, length)
  row_M = slots["row"]
  document_M = batch["documents"][row_M, slots["position"]]
  documents, sequence_M = np.unique(
    np.stack([row_M, document_M]), axis=1, return_inverse=True
  )
  slots["sequence"] = sequence_M.ravel()  # some releases return [1, M]
  sequences = []
  starts = []
  for b, document in documents.T:  # attention stays inside a document
    is_inside_L = batch["documents"][b] == document
    sequences.append(batch["tokens"][b][is_inside_L])
    starts.append(is_inside_L.argmax())
  slots["position"] -= np.array(starts, np.int32)[slots["sequence"]]
  return _make_predictions(slots, sequences)


def predict_lines(
  predict: Callable,
  params: optax.Params,
  sequences: Sequence[np.ndarray],
  *,
  length: int,
  batch_size: int,
  mesh: jax.sharding.Mesh,
  advance: Callable[[int], object] = lambda lines: None,
) -> Predictions:
  """Predicts the slots of every line of a text, in the order of the text.

  The index of a line determines its masking, `length` (L) and the share of
  masking the number of its slots. `advance` gets the number of lines of each
  batch. Raises NonFiniteError for a probability that is not finite.
  """
  parts = []
  for batch, width in _batches(sequences, length, batch_size):
    part = _predict_slots(predict, params, mesh, batch, width)
    part["sequence"] = batch["row"][part["row"]]
    parts.append(part)
    advance(int((batch["row"] >= 0).sum()))
  slots = jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)
  order_M = np.lexsort([slots["position"], slots["sequence"]])
  slots = {name: x_M[order_M] for name, x_M in slots.items()}
  return _make_predictions(slots, sequences)


def _predict_slots(
  predict: Callable,
  params: optax.Params,
  mesh: jax.sharding.Mesh,
  batch: Batch,
  width: int,
) -> dict[str, np.ndarray]:
  """Returns the fields of the M slots of a batch, with the `row` of each."""
  with distributed.watch_step():
    on_device = sharding.place_batch(batch, mesh)
    slots = jax.device_get(predict(params, on_device, width))
  in_use = np.nonzero(slots["weight"] > 0)
  fields = {name: x_BxK[in_use] for name, x_BxK in slots.items()}
  return fields | {"row": in_use[0]}


def _make_predictions(
  slots: Mapping[str, np.ndarray], sequences: Sequence[np.ndarray]
) -> Predictions:
  """Makes predictions of slots; `position` counts in their `sequence`."""
  probability_M = slots["probability"]
  if not np.isfinite(probability_M).all():
    raise NonFiniteError(
      f"{np.count_nonzero(~np.isfinite(probability_M)):,} of"
      f" {len(probability_M):,} predictions are not finite. The parameters are"
      " damaged. Use an earlier checkpoint, or float32."
    )
  return Predictions(
    sequence_M=slots["sequence"].astype(np.int32),
    position_M=slots["position"].astype(np.int32),
    gold_M=slots["gold"],
    predicted_M=slots["predicted"],
    probability_M=np.minimum(probability_M, 1.0),  # may round above 1
    eligible_M=slots["eligible"],
    sequences=tuple(sequences),
  )


def _batches(
  sequences: Sequence[np.ndarray], length: int, batch_size: int
) -> Iterator[tuple[dict[str, np.ndarray], int]]:
  """Yields batches `[B, L]` of lines of similar length, and their width."""
  order = np.argsort([len(row) for row in sequences], kind="stable")
  for first in range(0, len(order), batch_size):
    numbers = order[first : first + batch_size]
    batch: dict[str, np.ndarray] = {}
    for name in ("tokens", "types", "documents"):
      batch[name] = np.zeros((batch_size, length), np.int32)
    batch["row"] = np.full(batch_size, -1, np.int32)
    batch["row"][: len(numbers)] = numbers
    for b, number in enumerate(numbers):  # the last line is the longest
      size = len(sequences[number])
      batch["tokens"][b, :size] = sequences[number]
      batch["documents"][b, :size] = 1
    widths = (length // divisor for divisor in NARROW)
    yield batch, next((w for w in widths if w >= size), length)
