"""Losses of tasks equal references, without padding and dropped rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from support import tiny
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime import rng as rng_lib

B, L, C = 8, 12, 3
ROWS = np.arange(B)
KEYS_B = rng_lib.row_keys(jax.random.key(0), 0, ROWS)


class StubModel:
  """A model with fixed logits, which records its dropout keys."""

  def __init__(self, outputs):
    self.outputs, self.keys = outputs, []

  def logits(self, inputs, keys_B):
    self.keys.append(keys_B)
    return self.outputs

  def bind(self, variables):
    return self


def make_inputs():
  """Builds rows of two texts: two without weight, the last of padding."""
  rng, inputs = np.random.default_rng(0), tiny.make_batch(0, B, L)
  inputs["documents"][-1] = 0
  ends = np.maximum(inputs["documents"].sum(axis=1), 4)
  start_B, end_B = np.sort(rng.integers(3, ends, (2, B)), axis=0)
  return inputs | {
    "weight": np.float32(ROWS < B - 2),
    "label": rng.integers(0, C, B).astype(np.int32),
    "start": start_B,
    "end": end_B,
    "tags": rng.integers(-1, C, (B, L)).astype(np.int32),
  }


def compute_terms(kind, inputs, *, train=False, logits=None):
  model = StubModel(logits)
  options = dict(kind=kind, model=model, train=train)
  terms = task_losses.task_terms(None, inputs, KEYS_B, {}, **options)
  return jax.device_get(terms), model.keys


def draw_logits(seed, *shape):
  """Draws logits, NaN in the last row, which has no weight."""
  x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
  x[-1] = np.nan
  return x


def log_probs(logits):
  return log_softmax(np.float64(logits), axis=-1)


def span_losses(inputs, start_BxL, end_BxL):
  start_B = log_probs(start_BxL)[ROWS, inputs["start"]]
  return -(start_B + log_probs(end_BxL)[ROWS, inputs["end"]]) / 2


def assert_loss(terms, losses_B):
  total, count = terms["loss"]
  np.testing.assert_allclose(total, losses_B[:-2].sum(), rtol=1e-5)
  assert count == B - 2


def test_cross_entropy_and_accuracy_of_classes():
  inputs, logits_BxC = make_inputs(), draw_logits(1, B, C)
  terms, _ = compute_terms("classes", inputs, logits=logits_BxC)
  assert_loss(terms, -log_probs(logits_BxC)[ROWS, inputs["label"]])
  right_B = logits_BxC.argmax(axis=1) == inputs["label"]
  assert terms["accuracy"] == (right_B[:-2].sum(), B - 2)


def test_squared_error_of_scores():
  inputs = make_inputs() | {"label": draw_logits(2, B)}
  score_Bx1 = draw_logits(3, B, 1)
  terms, _ = compute_terms("score", inputs, logits=score_Bx1)
  assert_loss(terms, (score_Bx1[:, 0] - inputs["label"]) ** 2)


def test_mean_cross_entropy_of_spans_is_over_real_tokens():
  inputs, logits_BxLx2 = make_inputs(), draw_logits(4, B, L, 2)
  terms, _ = compute_terms("spans", inputs, logits=logits_BxLx2)
  real_BxLx1 = (inputs["documents"] != 0)[..., None]
  logits_BxLx2 = np.where(real_BxLx1, logits_BxLx2, -1e9)
  losses_B = span_losses(inputs, logits_BxLx2[..., 0], logits_BxLx2[..., 1])
  assert_loss(terms, losses_B)


def test_cross_entropy_of_tags_is_a_mean_over_words():
  inputs, logits_BxLxC = make_inputs(), draw_logits(5, B, L, C)
  terms, _ = compute_terms("tags", inputs, logits=logits_BxLxC)
  counts_BxL = (inputs["tags"] >= 0) & (inputs["weight"][:, None] > 0)
  row_W, place_W = np.nonzero(counts_BxL)
  scores_WxC = log_probs(logits_BxLxC)[row_W, place_W]
  tag_W = inputs["tags"][row_W, place_W]
  total, count = terms["loss"]
  expected = -scores_WxC[np.arange(len(tag_W)), tag_W].sum()
  np.testing.assert_allclose(total, expected, rtol=1e-5)
  assert count == len(tag_W) < counts_BxL[:-2].size


@pytest.mark.parametrize("kind", task_losses.LOSSES)
def test_dropout_is_on_in_training_only(kind):
  inputs = make_inputs()
  shapes = {"spans": (B, L, 2), "tags": (B, L, C)}
  logits = jnp.zeros(shapes.get(kind, (B, C)))
  _, [training_keys] = compute_terms(kind, inputs, train=True, logits=logits)
  _, [evaluation_keys] = compute_terms(kind, inputs, logits=logits)
  purpose = rng_lib.DISCRIMINATOR_DROPOUT
  assert evaluation_keys is None
  assert (training_keys == rng_lib.purpose_keys(KEYS_B, purpose)).all()
