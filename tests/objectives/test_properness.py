"""Every loss leads where it claims: to the words of the data, or their classes.

Gold words are drawn from a distribution P, whose words form true classes. A
proper loss has no gradient at z = log P on average, and its gradient leads to P
from everywhere. The lexicon is perfect, which lists the true classes, or wrong:
another partition, overlapping, or asymmetric.
"""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from support import doc_pages
from truenegs_jax.objectives import mlm
from truenegs_jax.synonyms.table import SynonymTable

LEXICONS = ("perfect", "partition", "overlapping", "asymmetric")
STARTS, DROP = 20, 0.25
NO_WORD = -1e4  # the logit of ids that are no words: their p is exactly 0


def smooth(by, share=0.3):
  return functools.partial(
    mlm.mlm_loss, hard_correction=False, smoothing=share, smoothing_by=by
  )


def leave_plain(logits_BxKxV, gold_BxK, weight_BxK, table):
  del table
  return mlm.mlm_loss(logits_BxKxV, gold_BxK, weight_BxK)


def drop_slots(logits_BxKxV, gold_BxK, weight_BxK, table):
  """Computes the expected loss if slots are dropped at random."""
  return leave_plain(logits_BxKxV, gold_BxK, (1 - DROP) * weight_BxK, table)


LOSSES = {
  "baseline": leave_plain,
  "hc": mlm.mlm_loss,
  "drop_prob": drop_slots,
  "smoothing_by=uniform": smooth("uniform"),
  "smoothing_by=model": smooth("model"),
  "smoothing_by=balanced": smooth("balanced"),
  "smoothing_by=set": smooth("set", share=1.0),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Cases:
  """Distributions with all kinds of lexicons, and starts for each."""

  p_NxV: np.ndarray  # 0 for ids that are no words
  classes_NxV: np.ndarray  # the true ones; -1 for no word
  listed_NxVxV: np.ndarray  # [g, s]; lexicon n is of kind LEXICONS[n % 4]
  table: dict[str, np.ndarray]  # [N, V, S]
  starts_NxTxV: np.ndarray  # logits; the first are log P


def same(classes_V):
  return (classes_V == classes_V[:, None]) & (classes_V >= 0)


def draw_classes(rng, num):
  """Draws a partition in classes of two words and more."""
  classes_V = np.repeat(np.arange(num), rng.integers(2, 5, num))[:num]
  classes_V[-1] = classes_V[-2]
  return rng.permutation(classes_V)


def draw_lexicons(rng, classes_V):
  """Draws a relation of each kind, in which every word has a synonym."""
  num = len(classes_V)
  other_V = draw_classes(rng, num)
  while (same(other_V) == same(classes_V)).all():
    other_V = draw_classes(rng, num)
  directed_VxV = rng.random((num, num)) < rng.choice([0.0, 0.1, 0.3])
  cycle = rng.permutation(num)
  directed_VxV[cycle, np.roll(cycle, 1)] = True
  overlapping_VxV = directed_VxV | directed_VxV.T
  overlapping_VxV[cycle[[0, 2]], cycle[[2, 0]]] = False
  directed_VxV[cycle[0], cycle[1]] = False
  kinds = same(classes_V), same(other_V), overlapping_VxV, directed_VxV
  return np.stack(kinds) & ~np.eye(num, dtype=bool)


def make_table(listed_NxVxV):
  """Returns the arrays of a table for each relation."""
  num, words, _ = listed_NxVxV.shape
  tokens = [f"word{i}" for i in range(num * words)]  # of all relations
  pairs = [
    (tokens[n * words + g], tokens[n * words + s])
    for n, g, s in np.argwhere(listed_NxVxV)
  ]
  arrays = SynonymTable.from_pairs(pairs, tokens).arrays(rates=True)
  table = {name: x.reshape(num, words, -1) for name, x in arrays.items()}
  first_Nx1x1 = words * np.arange(num, dtype=np.int32).reshape(-1, 1, 1)
  is_listed = table["ids_VxS"] >= 0
  table["ids_VxS"] -= np.where(is_listed, first_Nx1x1, 0)
  return table


@functools.cache
def draw_cases(num, words, seed=0):
  """Draws `num` distributions over 8 to `words` words."""
  rng = np.random.default_rng(seed)
  kinds = len(LEXICONS)
  p_NxV = np.zeros((num * kinds, words))
  classes_NxV = np.full((num * kinds, words), -1)
  listed_NxVxV = np.zeros((num * kinds, words, words), bool)
  starts_NxTxV = np.full((num * kinds, 1 + STARTS, words), NO_WORD)
  for i, size in enumerate(np.linspace(8, words, num).astype(int)):
    lanes = slice(i * kinds, (i + 1) * kinds)
    classes_V = draw_classes(rng, size)
    log_p_V = scipy.special.log_softmax(1.5 * rng.normal(size=size))
    classes_NxV[lanes, :size] = classes_V
    listed_NxVxV[lanes, :size, :size] = draw_lexicons(rng, classes_V)
    p_NxV[lanes, :size] = np.exp(log_p_V)
    starts_NxTxV[lanes, 0, :size] = log_p_V
    shape = kinds, STARTS, size
    starts_NxTxV[lanes, 1:, :size] = 3.0 * rng.normal(size=shape)
  table = make_table(listed_NxVxV)
  return Cases(p_NxV, classes_NxV, listed_NxVxV, table, starts_NxTxV)


def move(loss, z_V, p_V, table):
  """Follows the gradient for one step.

  A word moves by its gradient over its probability, at a vanishing gradient not
  at all.

  Returns:
    The logits, and the gradient before the step.
  """

  def mean_loss(z_V):
    logits_BxKxV = jnp.broadcast_to(z_V, (1, len(z_V), len(z_V)))
    gold_BxK = jnp.arange(len(z_V))[None]
    total, count = loss(logits_BxKxV, gold_BxK, p_V[None], table)
    return total / jnp.maximum(count, 1e-3)

  gradient_V = jax.grad(mean_loss)(z_V)
  ratio_V = gradient_V / jnp.where(p_V > 0, jax.nn.softmax(z_V), 1.0)
  moved_V = z_V + jnp.log(jnp.maximum(1 - 0.5 * ratio_V, 0.1))
  has_ended = jnp.abs(gradient_V).max() < 1e-10
  return jnp.where(has_ended, z_V, moved_V), gradient_V


def find_kept(loss, cases):
  """Returns whether a loss keeps sums of the true classes, and words, `[N]`.

  Follows its gradient from all starts.
  """
  over_starts = jax.vmap(functools.partial(move, loss), (0, None, None))
  step = jax.jit(jax.vmap(over_starts))
  with jax.enable_x64(True):
    z, p, table = jax.device_put((cases.starts_NxTxV, cases.p_NxV, cases.table))
    z, first_gradient = step(z, p, table)
    for _ in range(70):
      z, gradient = step(z, p, table)
      has_ended = jnp.abs(gradient).max(axis=-1) < 1e-10
      if has_ended.all():
        break
    p_NxTxV, first_NxTxV, has_ended_NxT = jax.device_get(
      (jax.nn.softmax(z), first_gradient, has_ended)
    )
  assert first_NxTxV.dtype == np.float64
  off_NxTxV = p_NxTxV - cases.p_NxV[:, None]
  same_NxVxV = np.stack([*map(same, cases.classes_NxV)])
  off_sums_NxTxV = np.einsum("nvw,ntw->ntv", same_NxVxV, off_NxTxV)
  kl_NxT = scipy.special.rel_entr(cases.p_NxV[:, None], p_NxTxV).sum(-1)
  stays_N = np.abs(first_NxTxV[:, 0]).max(-1) < 1e-6
  ends_N = has_ended_NxT.all(-1)
  assert (ends_N | (kl_NxT > 1e-3).any(-1)).all()  # else steps are lacking
  keeps_sums_N = ends_N & (np.abs(off_sums_NxTxV).max((1, 2)) < 1e-6)
  keeps_words_N = ends_N & stays_N & (kl_NxT < 1e-8).all(-1)
  return keeps_sums_N, keeps_words_N


def tabulate(loss, cases):
  """Returns a loss's row of `read_claims`; each holds in all or in no cases."""
  sums_N, words_N = find_kept(loss, cases)
  words = {}
  for i, lexicon in enumerate(LEXICONS):
    [words[lexicon]] = set(words_N[i :: len(LEXICONS)])
  [sums] = set(sums_N[:: len(LEXICONS)])
  return sums, words.pop("perfect"), all(words.values())


@functools.cache
def read_claims():
  """Returns what the page says of each loss.

  These are three truths: whether a perfect lexicon keeps the sums of classes,
  and words, and whether every wrong one keeps words.
  """
  page = doc_pages.ROOT / "docs/explanation/proper_corrections.md"
  rows = re.findall(
    r"(?m)^\| `(\S+)`[^|]*" + 3 * r"\| (yes|no) " + r"\|$", page.read_text()
  )
  return {name: tuple(x == "yes" for x in cells) for name, *cells in rows}


def test_the_page_lists_the_losses():
  assert list(read_claims()) == list(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_keeps_what_it_claims_to_keep(name):
  assert tabulate(LOSSES[name], draw_cases(3, words=16)) == read_claims()[name]
