"""A document in a packed row costs and teaches what it does in one of its own.

The objective itself is run, with slots, masks and samples given, so that they
stand at the same places of a document in both cases.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.data.rows import layouts
from truenegs_jax.models import attention, encoder, pretrain
from truenegs_jax.objectives import (
  electra,
  masking,
  mlm,
  output_softmax,
  soft_regularization,
)
from truenegs_jax.runtime import rng as rng_lib
from truenegs_jax.train import step

LENGTH = 40
SLOTS = 3  # of each document
SIZES = [5, 9, 3, 8, 20, 7, 12, 6, 30, 25]  # tokens of the documents
LOSSES = ("mlm", "mlm_uncorrected", "soft", "sentence")
BY_TOKEN = ("detect", "sentence")  # the others go by slot
MODELS = {"electra": tiny.make_model, "bert": tiny.make_bert}


def pack(sizes, tokens_T, *, length=LENGTH, overflow="carry"):
  """A batch of packed rows of documents of these sizes."""
  arrays = layouts.build_rows(
    [(number, [size]) for number, size in enumerate(sizes)],
    tokens_T,
    layouts.RowSpec(length, tiny.CLS, tiny.SEP, tiny.PAD, overflow, np.uint16),
    layout="packed",
    seed=0,
  )
  names = ("tokens", "types", "documents")
  batch = dict(zip(names, [a.astype(np.int32) for a in arrays], strict=True))
  return batch | {"row": np.arange(len(arrays[0]), dtype=np.int32)}


@dataclasses.dataclass(frozen=True)
class Document:
  """Its words and, for each of its slots, what the draws might have been."""

  words: np.ndarray
  places: np.ndarray  # of the slots, from 1: behind [CLS]
  hidden: np.ndarray  # behind [MASK]; else the word stays visible
  sampled: np.ndarray  # by the generator


@functools.cache
def documents():
  rng = np.random.default_rng(0)
  return [
    Document(
      words=rng.integers(5, tiny.V, size),
      places=1 + rng.choice(size, SLOTS, replace=False),
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
def alone_batch():
  """Each document in a padded row of its own."""
  batch = {
    name: np.zeros((len(SIZES), LENGTH), np.int32)
    for name in ("tokens", "types", "documents")
  }
  for row, (document, size) in enumerate(zip(documents(), SIZES, strict=True)):
    batch["tokens"][row, : size + 2] = [tiny.CLS, *document.words, tiny.SEP]
    batch["documents"][row, : size + 2] = 1
  return with_slots(batch, [(row, 0) for row in range(len(SIZES))])


def with_slots(batch, starts):
  """Gives the slots of every document, found at `starts`, to its row.

  Returns a dict of `inputs`, `slots`, `masked`, `sampled` and `starts`, which
  holds the row and the first position of each document.
  """
  rows = [row for row, _ in starts]
  shape = len(batch["tokens"]), SLOTS * max(map(rows.count, rows))
  positions_BxK, gold_BxK, sampled_BxK = np.zeros((3, *shape), np.int32)
  weight_BxK, masked_BxL = np.zeros(shape, np.float32), batch["tokens"].copy()
  for document, (row, start) in zip(documents(), starts, strict=True):
    positions = start + document.places
    first = int(weight_BxK[row].sum())  # behind those of other documents
    here = row, slice(first, first + SLOTS)
    positions_BxK[here], weight_BxK[here] = positions, 1.0
    gold_BxK[here] = batch["tokens"][row, positions]
    sampled_BxK[here] = document.sampled
    masked_BxL[row, positions[document.hidden]] = tiny.MASK
  slots = masking.Slots(positions_BxK, gold_BxK, weight_BxK)
  found = {
    "inputs": {name: batch[name] for name in ("tokens", "types", "documents")},
    "slots": slots,
    "masked": masked_BxL,
    "sampled": sampled_BxK,
  }
  return jax.tree.map(jnp.asarray, found) | {"starts": starts}


@functools.cache
def params_of(model):
  # At an initial deviation of 0.02 attention would hardly matter.
  init = lambda key: jax.tree.map(
    lambda p: 5 * p, pretrain.init_params(model, key)
  )
  return jax.jit(init)(jax.random.key(0))


def losses_of(batch, kind):
  """Losses by slot and by token, not summed, and gradients of their sums.

  It is the objective that runs: only what it draws is given to it, and its sums
  are left undone.
  """
  model = MODELS[kind](layers=1, dropout=0.0, attention_dropout=0.0)
  objective = tiny.make_objective(
    model, tiny.make_options(sentence_weight=1.0), train=True
  )
  aux = {"bits_VxW": jnp.asarray(tiny.pack_bits(tiny.dense_table(share=0.5)))}
  keys_B = rng_lib.row_keys(
    jax.random.key(0), 0, jnp.arange(len(batch["masked"]))
  )
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      masking, "hide_slots", lambda *_: (batch["slots"], batch["masked"])
    )
    compute = output_softmax.compute
    patch.setattr(
      output_softmax,
      "compute",
      lambda *args, **more: dataclasses.replace(
        compute(*args, **more), sampled_BxK=batch["sampled"]
      ),
    )
    undone = lambda x, weight: (jnp.where(weight > 0, x * weight, 0.0), weight)
    for module in (electra, mlm, soft_regularization):
      patch.setattr(module, "weighted_sum", undone)

    def summed(params):
      terms = objective(params, batch["inputs"], keys_B, aux)
      terms = {name: terms[name] for name in losses(kind)}
      weighted = [name for name in terms if name != "mlm_uncorrected"]
      return sum(terms[name][0].sum() for name in weighted), terms

    gradient = jax.jit(jax.grad(summed, has_aux=True))
    return jax.device_get(gradient(params_of(model)))


def losses(kind):
  return (*LOSSES, "detect") if kind == "electra" else LOSSES


def by_document(batch, terms):
  """name -> losses and weights [2, N]: of a document's slots, or its tokens."""
  positions_BxK = np.asarray(batch["slots"].positions_BxK)
  used_BxK = np.asarray(batch["slots"].weight_BxK) > 0
  found = {name: [] for name in terms}
  for (row, start), size in zip(batch["starts"], SIZES, strict=True):
    stop = start + size + 2
    here_K = used_BxK[row] & (positions_BxK[row] >= start)
    here_K &= positions_BxK[row] < stop
    assert here_K.sum() == SLOTS
    for name in terms:
      here = slice(start, stop) if name in BY_TOKEN else here_K
      found[name].append(np.stack([of[row, here] for of in terms[name]]))
  found = {name: np.concatenate(found[name], axis=1) for name in terms}
  for name in terms:  # what lies in no document costs nothing
    for i in range(2):
      total = np.sum(terms[name][i], dtype=np.float64)
      np.testing.assert_allclose(total, found[name][i].sum(), rtol=1e-5)
  return found


@functools.cache
def alone_losses(kind):
  return losses_of(alone_batch(), kind)


def differences(packed, kind):
  """The largest difference of each loss, and of the gradients.

  Relative to the largest value; a gradient's to that of its parameter, or to
  a thousandth of the largest (that of attention's key biases is zero).
  """
  grads, terms = losses_of(packed, kind)
  wanted_grads, wanted_terms = alone_losses(kind)
  got, wanted = (
    by_document(packed, terms),
    by_document(alone_batch(), wanted_terms),
  )
  found = {
    name: np.abs(got[name] - wanted[name]).max() / np.abs(wanted[name]).max()
    for name in terms
  }
  least = 1e-3 * max(np.abs(g).max() for g in jax.tree.leaves(wanted_grads))
  relative = jax.tree.map(
    lambda a, b: np.abs(a - b).max() / max(np.abs(b).max(), least),
    grads,
    wanted_grads,
  )
  return found | {"gradients": max(jax.tree.leaves(relative))}


@pytest.mark.parametrize("kind", MODELS)
def test_a_packed_document_costs_and_teaches_what_it_does_alone(kind):
  documents_B = packed_batch()["inputs"]["documents"].max(axis=1)
  assert documents_B.max() >= 4 and documents_B.sum() == len(SIZES)
  found = differences(packed_batch(), kind)
  assert max(found.values()) < 1e-4, found
  # Some slots are corrected, others are not; most samples are replacements.
  _, terms = alone_losses(kind)
  assert 0 < terms["mlm"][1].sum() < len(SIZES) * SLOTS
  assert terms["mlm_uncorrected"][1].sum() == len(SIZES) * SLOTS


def see_all(documents_BxL):
  real_BxL = documents_BxL != 0
  return (real_BxL[:, :, None] & real_BxL[:, None, :])[:, None]


def count_on(documents_BxL):
  index_L = jnp.arange(documents_BxL.shape[1], dtype=jnp.int32)
  return jnp.broadcast_to(index_L[None], documents_BxL.shape)


@pytest.mark.parametrize(
  "leak",
  [
    (attention, "same_document", see_all),
    (encoder, "document_positions", count_on),
    None,
  ],
)
def test_a_leak_between_documents_would_be_seen(leak, monkeypatch):
  packed = packed_batch()
  alone_losses("electra")  # before anything leaks
  if leak:
    monkeypatch.setattr(*leak)
  else:
    inputs = packed["inputs"]
    types_BxL = (inputs["documents"] > 1).astype(jnp.int32)
    packed = packed | {"inputs": inputs | {"types": types_BxL}}
  found = differences(packed, "electra")
  for name in ("mlm_uncorrected", "detect", "sentence", "gradients"):
    assert found[name] > 1e-2, (name, found)


@functools.cache
def chain(num_tokens):
  """Text of twelve words, most of which follow from the one before."""
  rng = np.random.default_rng(1)
  follower = rng.permutation(12)
  words = [0]
  for _ in range(num_tokens - 1):
    follows = rng.random() < 0.9
    words.append(int(follower[words[-1]] if follows else rng.integers(12)))
  return 5 + np.array(words)


def test_masking_knows_the_special_tokens_of_every_document():
  rng = np.random.default_rng(2)
  sizes = rng.integers(1, 12, 200).tolist()
  batch = pack(sizes, chain(sum(sizes)), length=64)
  tokens_BxL, documents_BxL = batch["tokens"], batch["documents"]
  rows_B = np.arange(len(tokens_BxL))
  chosen_BxL = np.zeros(tokens_BxL.shape, bool)
  for i in range(60):
    keys_B = rng_lib.row_keys(jax.random.key(i), 0, rows_B)
    slots = choose_slots(tokens_BxL, documents_BxL, keys_B)
    wanted_B = np.round(0.15 * (documents_BxL != 0).sum(axis=1))
    wanted_B = np.minimum(wanted_B, masking.num_slots(64, 0.15))
    np.testing.assert_array_equal(slots.weight_BxK.sum(axis=1), wanted_B)
    row_S, k_S = np.nonzero(np.asarray(slots.weight_BxK))
    chosen_BxL[row_S, np.asarray(slots.positions_BxK)[row_S, k_S]] = True
  words_BxL = tokens_BxL >= 5
  assert not chosen_BxL[~words_BxL].any()
  # Wherever a document stands in its row, its words are predicted.
  assert chosen_BxL[words_BxL].mean() > 0.99


@jax.jit
def choose_slots(tokens_BxL, documents_BxL, keys_B):
  return masking.choose_slots(tokens_BxL, documents_BxL, keys_B, tiny.MASKING)


@pytest.mark.slow
def test_training_on_packed_rows_learns():
  sizes = np.random.default_rng(3).integers(3, 40, 600).tolist()
  rows = pack(sizes, chain(sum(sizes)))
  assert (rows["documents"].max(axis=1) > 1).mean() > 0.5
  model, tx = tiny.make_model(layers=1), tiny.make_tx(peak=1e-2)
  objective = tiny.make_objective(model, tiny.make_options(), train=True)
  train_step = jax.jit(step.make_train_step(objective, tiny.WEIGHTS, tx))
  state, aux = tiny.init_state(model, tx), tiny.make_aux()
  rng = np.random.default_rng(4)
  losses = []
  for _ in range(60):
    row_B = rng.choice(len(rows["row"]), 32, replace=False)
    batch = {name: jnp.asarray(array[row_B]) for name, array in rows.items()}
    state, terms = train_step(state, batch, aux)
    assert terms["skipped"][0] == 0
    # Every real token is judged, [CLS] and [SEP] of all documents too.
    assert terms["detect"][1] == (batch["documents"] != 0).sum()
    losses.append(
      [terms[n][0] / terms[n][1] for n in ("mlm_uncorrected", "detect")]
    )
  losses = np.array(losses)
  assert np.isfinite(losses).all()
  first, last = losses[:5].mean(axis=0), losses[-5:].mean(axis=0)
  assert (last < 0.8 * first).all(), (first, last)
