"""Losses and tables of PyTorch equal those of JAX, with their gradients."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import oracle
from truenegs_jax.objectives import mlm, negatives, soft_regularization
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms.table import SynonymTable

torch = pytest.importorskip("torch")

from truenegs_jax import torch as tn  # noqa: E402

B, L, V = 4, 16, 48
IGNORED = -100
KINDS = (
  {},
  {"smoothing": 0.1},
  {"smoothing": 1.0},
  {"smoothing": 0.3, "smoothing_by": "model"},
  {"smoothing": 0.3, "smoothing_by": "balanced"},
  {"smoothing": 1.0, "smoothing_by": "set"},
)


def make_table(seed, *, share=0.2):
  """Draws a table; a third of the tokens are pieces, or may be (odd seeds)."""
  rng = np.random.default_rng(seed)
  inner, first = ("", "Ġ") if seed % 2 else ("##", "")
  tokens = [f"{first if i % 3 else inner}w{i}" for i in range(V)]
  tokens[-1] = first + ","
  words = [f"w{i}" for i in range(V)]
  pairs = [(a, b) for a in words for b in words if rng.random() < share]
  return SynonymTable.from_pairs(pairs, tokens)


def make_inputs(seed, *, padding=0):
  """Draws logits, labels and masked rows; many predictions are synonyms.

  With `padding`, some gold tokens are beyond the table.
  """
  rng = np.random.default_rng(seed)
  logits_BxLxV = 3 * rng.normal(size=(B, L, V)).astype(np.float32)
  padding_BxLxP = rng.normal(size=(B, L, padding)).astype(np.float32)
  logits_BxLxV = np.concatenate([logits_BxLxV, 3 * padding_BxLxP], axis=-1)
  tokens_BxL = rng.integers(0, V, (B, L))
  is_slot_BxL = rng.random((B, L)) < 0.6
  labels_BxL = np.where(is_slot_BxL, tokens_BxL, IGNORED)
  if padding:
    labels_BxL[:, :2] = V
  masked_BxL = np.where(is_slot_BxL, 1, tokens_BxL)
  return logits_BxLxV, labels_BxL, masked_BxL


def find_words(table, labels_BxL, masked_BxL):
  """Returns True for slots that are no pieces of words, one by one."""
  words_BxL = np.ones(labels_BxL.shape, bool)
  ids_BxL = np.where(labels_BxL != IGNORED, labels_BxL, masked_BxL)
  is_marked = any("Ġ" in token for token in table.tokens)
  inner = "w" if is_marked else "##"
  for b, i in np.ndindex(B, L - 1):
    first, second = ([*table.tokens, ""][x] for x in ids_BxL[b, i : i + 2])
    open_end = first[-1:].isdigit() if is_marked else first != ""
    if open_end and second.startswith(inner):
      words_BxL[b, i : i + 2] = False
  return words_BxL


def check_equal(seed, options, *, strict=False, padding=0):
  """Compares losses and gradients of the mean; returns the count."""
  table = make_table(seed)
  logits_BxLxV, labels_BxL, masked_BxL = make_inputs(seed, padding=padding)
  ends = {}
  if strict:
    ends["words_BxK"] = find_words(table, labels_BxL, masked_BxL)

  def mean(logits_BxLxV):
    aux = table.arrays(rates=bool(options.get("smoothing")))
    total, count = mlm.mlm_loss(
      logits_BxLxV, labels_BxL, None, aux, **options, **ends
    )
    return total / jnp.maximum(count, 1), count

  (expected, expected_count), expected_gradient = jax.jit(
    jax.value_and_grad(mean, has_aux=True)
  )(logits_BxLxV)
  logits = torch.tensor(logits_BxLxV, requires_grad=True)
  labels, synonyms = torch.tensor(labels_BxL), tn.Synonyms(table)
  if strict:
    ends["words_BxK"] = synonyms.is_whole_word(torch.tensor(masked_BxL), labels)
  total, count = tn.mlm_loss(logits, labels, synonyms, **options, **ends)
  (total / count.clamp(min=1)).backward()
  np.testing.assert_allclose(
    (total / count).item(), expected, rtol=1e-6, atol=1e-6
  )
  np.testing.assert_allclose(logits.grad, expected_gradient, rtol=0, atol=1e-6)
  assert count.item() == expected_count
  return int(count)


@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_every_option_equals_that_of_jax(seed):
  padding = (0, 1, 80, 127)[seed % 4]
  is_slot_BxL = make_inputs(seed, padding=padding)[1] != IGNORED
  options = {"padding": padding, "strict": seed > 1}
  assert check_equal(seed, KINDS[seed], **options) < is_slot_BxL.sum()
  options["strict"] = not options["strict"]
  plain = {"hard_correction": False, **KINDS[seed]}
  assert check_equal(seed, plain, **options) == is_slot_BxL.sum()


@pytest.mark.parametrize(
  ("inputs", "message"),
  [
    ({"labels_BxK": torch.zeros(3, 2, dtype=int)}, "labels_BxK has the shape"),
    ({"logits_BxKxV": torch.zeros(2, 3, V + 128)}, "the tokenizer of the mod"),
    ({"synonyms": make_table(0)}, "Pass Synonyms(table)"),
    ({"smoothing": 0.3, "smoothing_by": "set"}, "set needs 1"),
  ],
)
def test_mlm_loss_refuses_what_does_not_fit(inputs, message):
  valid = {
    "logits_BxKxV": torch.zeros(2, 3, V),
    "labels_BxK": torch.zeros(2, 3, dtype=int),
    "synonyms": tn.Synonyms(make_table(0)),
  }
  with pytest.raises(InputError, match=re.escape(message)):
    tn.mlm_loss(**valid | inputs)


def test_a_table_moves_and_is_saved_with_its_model(tmp_path):
  table = make_table(0)
  model = torch.nn.ModuleDict({"synonyms": tn.Synonyms(table)})
  torch.save(model.state_dict(), tmp_path / "model.pt")
  fresh = torch.nn.ModuleDict({"synonyms": tn.Synonyms(table, table.tokens)})
  for buffer in fresh.buffers():
    buffer.zero_()
  state = torch.load(tmp_path / "model.pt", weights_only=True)
  fresh.load_state_dict(state)
  ids_VxS = state["synonyms.ids_VxS"].numpy()
  np.testing.assert_array_equal(ids_VxS[:V], table.build_ids())
  for name, x in fresh.state_dict().items():
    assert torch.equal(x, model.state_dict()[name])
  assert len(state) == 3 and not list(model.parameters())
  assert {x.device.type for x in fresh.to("meta").buffers()} == {"meta"}
  tokens = ["w1", "w2", *table.tokens[2:]]
  with pytest.raises(DataError, match="2 of 48 ids stand for other tokens"):
    tn.Synonyms(table, tokens)


def test_the_soft_loss_equals_that_of_jax():
  logits_BxLxV, labels_BxL, _ = make_inputs(3)
  word_VxE = np.random.default_rng(3).normal(size=(V, 8)).astype(np.float32)
  word_VxE[:4] = 0.0
  weight_BxK = jnp.asarray(labels_BxL != IGNORED, jnp.float32)
  gold_BxK = np.maximum(labels_BxL, 0)

  def jax_soft(logits_BxLxV, word_VxE):
    slots = types.SimpleNamespace(weight_BxK=weight_BxK)
    return soft_regularization.word_term(
      types.SimpleNamespace(slots=slots),
      oracle.make_options(),
      word_VxE[gold_BxK],
      word_VxE[logits_BxLxV.argmax(-1)],
    )

  arrays = logits_BxLxV, word_VxE
  (expected, num), gradients = jax.jit(
    jax.value_and_grad(jax_soft, argnums=(0, 1), has_aux=True)
  )(*arrays)
  tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
  total, count = tn.soft_loss(tensors[0], torch.tensor(labels_BxL), tensors[1])
  total.backward()
  assert count.item() == num and expected > 1
  np.testing.assert_allclose(total.item() / num, expected / num, rtol=1e-6)
  for x, gradient in zip(tensors, gradients, strict=True):
    grad = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
    np.testing.assert_allclose(grad / num, gradient / num, atol=1e-6)


@pytest.mark.parametrize("strict", [False, True])
def test_detection_labels_spare_the_synonyms_that_jax_finds(strict):
  table, rng = make_table(4), np.random.default_rng(4)
  tokens_BxL, corrupted_BxL = rng.integers(0, V, (2, B, L))
  spared_BxL = np.array(
    negatives.false_negatives(table.arrays(), tokens_BxL, corrupted_BxL)
  )
  if strict:
    all_labels = np.full((B, L), IGNORED)
    spared_BxL &= find_words(table, all_labels, tokens_BxL)
  assert 0 < spared_BxL.sum() < spared_BxL.size
  labels = functools.partial(
    tn.detection_labels,
    torch.tensor(tokens_BxL),
    torch.tensor(corrupted_BxL),
    tn.Synonyms(table),
    strict_subword=strict,
  )
  replaced_BxL = (tokens_BxL != corrupted_BxL).astype(np.float32)
  np.testing.assert_array_equal(labels(), replaced_BxL)
  for label, target in ((0.5, 0.5), (0.0, 0.0), (-0.5, IGNORED)):
    np.testing.assert_array_equal(
      labels(discriminator_label=label),
      np.where(spared_BxL, target, replaced_BxL),
    )


class Logits(torch.nn.Module):
  """Returns logits that do not depend on its input."""

  def __init__(self, logits_BxLxV):
    super().__init__()
    self.logits = torch.nn.Parameter(torch.tensor(logits_BxLxV))

  def forward(self, *, input_ids):
    del input_ids
    return {"logits": self.logits}


@pytest.mark.parametrize(
  ("strict", "seed"), [(False, 4), (True, 4), (False, 5)]
)
def test_the_trainer_loss_is_the_mean_over_the_kept_slots(strict, seed):
  """Where spaces are marked, as with seed 5, it is always strict."""
  logits_BxLxV, labels_BxL, masked_BxL = map(torch.tensor, make_inputs(seed))
  synonyms = tn.Synonyms(make_table(seed))
  model = Logits(logits_BxLxV.numpy())
  loss = tn.make_trainer_loss(
    model, synonyms, strict_subword=strict, smoothing=0.1
  )
  words_BxK = synonyms.is_whole_word(masked_BxL, labels_BxL)
  words_BxK = words_BxK if strict or seed % 2 else None
  total, count = tn.mlm_loss(
    model.logits, labels_BxL, synonyms, words_BxK=words_BxK, smoothing=0.1
  )
  outputs = model(input_ids=masked_BxL)
  num = (labels_BxL != IGNORED).sum()
  assert 0 < count < num
  for items, share in ((None, 1.0), (num, 1.0), (4 * num, 0.25)):
    actual = loss(outputs, labels_BxL, num_items_in_batch=items)
    torch.testing.assert_close(actual, share * total / count)
  with pytest.raises(InputError, match="2 GPUs.*torchrun"):
    loss(outputs, labels_BxL, num_items_in_batch=num.expand(2))
  with torch.no_grad():
    plain, _ = tn.mlm_loss(model.logits, labels_BxL)
    torch.testing.assert_close(loss(outputs, labels_BxL), plain / num)
  nothing = loss(outputs, torch.full((B, L), IGNORED), num_items_in_batch=0)
  assert nothing == 0
