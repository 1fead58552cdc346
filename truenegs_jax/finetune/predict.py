"""Computes a fine-tuned model's outputs for rows, in evaluation.

predictor = make_predictor(options, model)
outputs = predictor.predict(params, encoded)
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax

from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.models import choose_attention, encoder, finetune
from truenegs_jax.runtime import watchdog
from truenegs_jax.tasks import batches
from truenegs_jax.tasks.task import EncodedRows
from truenegs_jax.train import sharding

Outputs = list[Any]  # for each row, in order: arrays of numpy
# The model's method that computes a head's outputs; else "class_logits".
METHODS = {"spans": "span_logits", "joint": "joint_beam"}


@dataclasses.dataclass(frozen=True)
class Predictor:
  """A model's compiled forward pass, for any parameters of that model.

  Attributes:
    predict_batch: jitted, `(params, batch) -> outputs`, of shape [B, ...].
    model: the network, with its implementation of attention.
    mesh: the devices of the arrays.
    attention: name of that implementation, for reports.
    batch_size, length: B, and the greatest number of tokens of a row.
  """

  predict_batch: Callable[[optax.Params, Mapping[str, jax.Array]], Any]
  model: finetune.DownstreamModel
  mesh: jax.sharding.Mesh
  attention: str
  batch_size: int
  length: int

  def predict(
    self,
    params: optax.Params,
    encoded: EncodedRows,
    *,
    check: Callable[[], None] = lambda: None,
    advance: Callable[[int], None] = lambda rows: None,
  ) -> Outputs:
    """Returns the head's outputs for each row, without dropout.

    `check` is called before each batch; an exception from it ends all.
    `advance` is called after each batch, with the number of its rows.
    """
    outputs: Outputs = [None] * len(encoded.tokens)
    for batch in batches.batches_in_order(
      encoded, batch_size=self.batch_size, limit=self.length
    ):
      with watchdog.step():
        check()
        inputs = {name: batch[name] for name in batches.INPUTS}
        on_device = sharding.place_batch(inputs, self.mesh)
        output_B = jax.device_get(self.predict_batch(params, on_device))
      for i, row in enumerate(batch["row"]):
        if row >= 0:
          outputs[row] = jax.tree.map(lambda x, i=i: np.asarray(x[i]), output_B)
      advance(int((batch["row"] >= 0).sum()))
    return outputs


def make_predictor(
  options: FinetuneOptions, model: finetune.DownstreamModel
) -> Predictor:
  """Makes the forward pass of a model; compiles nothing yet."""
  mesh = sharding.make_mesh(options.mesh)
  implementation, attention = choose_attention.choose(
    options.attention,
    [model.config],
    mesh,
    length=options.length,
    packed=False,
    check=True,
  )
  attending = encoder.replace_configs(model, attention=implementation)
  is_joint = model.head == "joint"
  kwargs: dict[str, Any] = {"size": options.num_best} if is_joint else {}

  def predict_batch(params, inputs):
    method = METHODS.get(model.head, "class_logits")
    return attending.apply(
      {"params": params}, inputs, None, method=method, **kwargs
    )

  return Predictor(
    predict_batch=jax.jit(
      predict_batch, out_shardings=sharding.replicated_sharding(mesh)
    ),
    model=attending,
    mesh=mesh,
    attention=attention,
    batch_size=options.batch_size,
    length=options.length,
  )
