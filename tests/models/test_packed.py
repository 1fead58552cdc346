"""A packed document has the losses and gradients of its own row.

The objective itself runs, but slots, masks and samples are set, to be at the
same positions of a document in both cases.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.data.rows import layouts
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import (
  electra,
  masking,
  mlm,
  output_softmax,
  soft_regularization,
)
from truenegs_jax.runtime import rng as rng_lib

LENGTH = 40
SLOTS = 3  # of each document
SIZES = [5, 9, 3, 8, 20, 7, 12, 6, 30, 25]  # tokens of the documents
FIELDS = ("tokens", "types", "documents")
LOSSES = ("mlm", "mlm_uncorrected", "soft", "sentence")
TOKEN_LOSSES = ("detect", "sentence")  # the others go by slot
MODELS = {"electra": tiny.make_model, "bert": tiny.make_bert}


def pack(sizes, tokens_T, *, length=LENGTH, overflow="carry"):
  """Packs documents of these sizes into a batch of rows."""
  spec = layouts.RowSpec(
    length, tiny.CLS, tiny.SEP, tiny.PAD, overflow, np.uint16
  )
  numbered = [(number, [size]) for number, size in enumerate(sizes)]
  arrays = layouts.lay_out(numbered, tokens_T, spec, layout="packed", seed=0)
  batch = dict(zip(FIELDS, map(np.int32, arrays), strict=True))
  return batch | {"row": np.arange(len(arrays[0]), dtype=np.int32)}


@dataclasses.dataclass(frozen=True)
class Document:
  """The words of a document, and what is drawn for each of its slots."""

  words: np.ndarray
  positions: np.ndarray  # of the slots, from 1, as [CLS] is at 0
  hidden: np.ndarray  # shown as [MASK]; otherwise the word stays visible
  sampled: np.ndarray  # tokens from the generator


@functools.cache
def documents():
  rng = np.random.default_rng(0)
  return [
    Document(
      words=rng.integers(5, tiny.V, size),
      positions=1 + rng.choice(size, SLOTS, replace=False),
      hidden=rng.random(SLOTS) < 0.7,
      sampled=rng.integers(5, tiny.V, SLOTS),
    )
    for size in SIZES
  ]


@functools.cache
def packed_batch():
  words_T = np.concatenate([d.words for d in documents()])
  batch = pack(SIZES, words_T, overflow="discard")  # none is cut
  starts = [
    (row, int((documents_L == number).argmax()))
    for row, documents_L in enumerate(batch["documents"])
    for number in range(1, documents_L.max() + 1)
  ]
  return with_slots(batch, starts)


@functools.cache
def single_batch():
  """Builds a batch with one document per row."""
  batch = {name: np.zeros((len(SIZES), LENGTH), np.int32) for name in FIELDS}
  for row, (document, size) in enumerate(zip(documents(), SIZES, strict=True)):
    batch["tokens"][row, : size + 2] = [tiny.CLS, *document.words, tiny.SEP]
    batch["documents"][row, : size + 2] = 1
  return with_slots(batch, [(row, 0) for row in range(len(SIZES))])


def with_slots(batch, starts):
  """Adds the slots of the documents to a batch.

  `starts` holds the row and the first position of each document. Returns a dict
  of `inputs`, `slots`, `masked`, `sampled` and `starts`.
  """
  rows = [row for row, _ in starts]
  shape = len(batch["tokens"]), SLOTS * max(map(rows.count, rows))
  positions_BxK, gold_BxK, sampled_BxK = np.zeros((3, *shape), np.int32)
  weight_BxK, masked_BxL = np.zeros(shape, np.float32), batch["tokens"].copy()
  for document, (row, start) in zip(documents(), starts, strict=True):
    positions = start + document.positions
    first = int(weight_BxK[row].sum())  # behind those of other documents
    index = row, slice(first, first + SLOTS)
    positions_BxK[index], weight_BxK[index] = positions, 1.0
    gold_BxK[index] = batch["tokens"][row, positions]
    sampled_BxK[index] = document.sampled
    masked_BxL[row, positions[document.hidden]] = tiny.MASK
  result = {
    "inputs": {name: batch[name] for name in FIELDS},
    "slots": masking.Slots(positions_BxK, gold_BxK, weight_BxK),
    "masked": masked_BxL,
    "sampled": sampled_BxK,
  }
  return jax.tree.map(jnp.asarray, result) | {"starts": starts}


@functools.cache
def large_params(model):
  """Scales initial parameters up, so that attention has an effect."""
  init_params = jax.jit(pretrain.init_params, static_argnums=0)
  return jax.tree.map(lambda p: 5 * p, init_params(model, jax.random.key(0)))


def compute_losses(batch, kind):
  """Returns gradients, and losses by slot and by token instead of sums.

  The objective runs with the draws of the batch, and its sums are replaced.
  """
  model = MODELS[kind](layers=1, dropout=0.0, attention_dropout=0.0)
  objective = tiny.make_objective(
    model, tiny.make_options(sentence_weight=1.0), train=True
  )
  aux = {"bits_VxW": jnp.asarray(tiny.pack_bits(tiny.dense_table(share=0.5)))}
  rows_B = jnp.arange(len(batch["masked"]))
  keys_B = rng_lib.row_keys(jax.random.key(0), 0, rows_B)
  names = (*LOSSES, "detect") if kind == "electra" else LOSSES
  compute_output = output_softmax.compute

  def hide_slots(*_):
    return batch["slots"], batch["masked"]

  def compute(*args, **more):
    output = compute_output(*args, **more)
    return dataclasses.replace(output, sampled_BxK=batch["sampled"])

  def keep_unsummed(x, weight):
    return jnp.where(weight > 0, x * weight, 0.0), weight

  def summed(params):
    terms = objective(params, batch["inputs"], keys_B, aux)
    terms = {name: terms[name] for name in names}
    weighted = terms.keys() - {"mlm_uncorrected"}
    return sum(terms[name][0].sum() for name in sorted(weighted)), terms

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(masking, "hide_slots", hide_slots)
    patch.setattr(output_softmax, "compute", compute)
    for module in (electra, mlm, soft_regularization):
      patch.setattr(module, "weighted_sum", keep_unsummed)
    gradient = jax.jit(jax.grad(summed, has_aux=True))
    return jax.device_get(gradient(large_params(model)))


def group_by_document(batch, terms):
  """Returns name -> losses and weights [2, N] of all documents, in order."""
  positions_BxK = np.asarray(batch["slots"].positions_BxK)
  used_BxK = np.asarray(batch["slots"].weight_BxK) > 0
  result = {name: [] for name in terms}
  for (row, start), size in zip(batch["starts"], SIZES, strict=True):
    stop = start + size + 2
    is_inside_K = used_BxK[row] & (positions_BxK[row] >= start)
    is_inside_K &= positions_BxK[row] < stop
    assert is_inside_K.sum() == SLOTS
    for name in terms:
      index = slice(start, stop) if name in TOKEN_LOSSES else is_inside_K
      result[name].append(np.stack([x[row, index] for x in terms[name]]))
  result = {name: np.concatenate(result[name], axis=1) for name in terms}
  for name in terms:  # tokens outside documents have no loss
    for i in range(2):
      total = np.sum(terms[name][i], dtype=np.float64)
      np.testing.assert_allclose(total, result[name][i].sum(), rtol=1e-5)
  return result


@functools.cache
def single_losses(kind):
  return compute_losses(single_batch(), kind)


def differences(packed, kind):
  """Returns the largest relative difference of each loss and the gradients.

  A gradient's is relative to the largest entry of its parameter, or to 1/1000
  of the largest gradient (that of attention's key biases is zero).
  """
  grads, terms = compute_losses(packed, kind)
  single_grads, single_terms = single_losses(kind)
  least = 1e-3 * max(np.abs(g).max() for g in jax.tree.leaves(single_grads))

  def relative_difference(a, b, least=0.0):
    return np.abs(a - b).max() / max(np.abs(b).max(), least)

  result = jax.tree.map(
    relative_difference,
    group_by_document(packed, terms),
    group_by_document(single_batch(), single_terms),
  )
  differ = functools.partial(relative_difference, least=least)
  gradients = jax.tree.leaves(jax.tree.map(differ, grads, single_grads))
  return result | {"gradients": max(gradients)}


@pytest.mark.parametrize("kind", MODELS)
def test_a_packed_document_has_the_losses_and_gradients_of_its_own_row(kind):
  documents_B = packed_batch()["inputs"]["documents"].max(axis=1)
  assert documents_B.max() >= 4 and documents_B.sum() == len(SIZES)
  result = differences(packed_batch(), kind)
  assert max(result.values()) < 1e-4, result
  # Some slots are corrected, others are not; most samples are replacements.
  _, terms = single_losses(kind)
  assert 0 < terms["mlm"][1].sum() < len(SIZES) * SLOTS
  assert terms["mlm_uncorrected"][1].sum() == len(SIZES) * SLOTS


def test_masking_skips_the_special_tokens_of_every_document():
  rng = np.random.default_rng(2)
  sizes = rng.integers(1, 12, 200).tolist()
  batch = pack(sizes, rng.integers(5, tiny.V, sum(sizes)), length=64)
  tokens_BxL, documents_BxL = batch["tokens"], batch["documents"]
  rows_B = np.arange(len(tokens_BxL))
  chosen_BxL = np.zeros(tokens_BxL.shape, bool)
  for i in range(60):
    keys_B = rng_lib.row_keys(jax.random.key(i), 0, rows_B)
    slots = choose_slots(tokens_BxL, documents_BxL, keys_B)
    num_slots_B = np.round(0.15 * (documents_BxL != 0).sum(axis=1))
    num_slots_B = np.minimum(num_slots_B, masking.num_slots(64, 0.15))
    np.testing.assert_array_equal(slots.weight_BxK.sum(axis=1), num_slots_B)
    row_S, k_S = np.nonzero(np.asarray(slots.weight_BxK))
    chosen_BxL[row_S, np.asarray(slots.positions_BxK)[row_S, k_S]] = True
  words_BxL = tokens_BxL >= 5
  assert not chosen_BxL[~words_BxL].any()
  # Words are predicted at any position of a document in its row.
  assert chosen_BxL[words_BxL].mean() > 0.99


@jax.jit
def choose_slots(tokens_BxL, documents_BxL, keys_B):
  return masking.choose_slots(tokens_BxL, documents_BxL, keys_B, tiny.MASKING)
