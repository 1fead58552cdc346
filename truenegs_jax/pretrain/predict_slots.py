"""Predicts the slots of rows with a masked language model."""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truenegs_jax.objectives import masking, mlm, output_softmax
from truenegs_jax.pretrain.cases import Predictions
from truenegs_jax.pretrain.plan import Run
from truenegs_jax.runtime import distributed, rng
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.train import sharding


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
  predict: Callable,
  params: optax.Params,
  mesh: jax.sharding.Mesh,
  batch: sharding.Batch,
) -> Predictions:
  """Predicts the slots of all rows of a batch; each document is a sequence."""
  length = batch["tokens"].shape[1]
  slots = read_slots(predict, params, mesh, batch, length)
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
  return make_predictions(slots, sequences)


def read_slots(
  predict: Callable,
  params: optax.Params,
  mesh: jax.sharding.Mesh,
  batch: sharding.Batch,
  width: int,
) -> dict[str, np.ndarray]:
  """Returns the fields of the M slots of a batch, with the `row` of each."""
  with distributed.watch_step():
    on_device = sharding.place_batch(batch, mesh)
    slots = jax.device_get(predict(params, on_device, width))
  in_use = np.nonzero(slots["weight"] > 0)
  fields = {name: x_BxK[in_use] for name, x_BxK in slots.items()}
  return fields | {"row": in_use[0]}


def make_predictions(
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
