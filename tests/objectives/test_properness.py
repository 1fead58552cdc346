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

from support import doc_pages, oracle
from truenegs_jax.objectives import electra, mlm
from truenegs_jax.synonyms.table import SynonymTable

LEXICONS = ("perfect", "partition", "overlapping", "asymmetric")
STARTS, DROP = 20, 0.25
NO_WORD = -1e4  # the logit of ids that are no words: their p is exactly 0
rng = np.random.default_rng(0)
WORD_VxE = rng.normal(size=(40, 4)) * rng.exponential(size=(40, 1))


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
    The logits, and the loss and the gradient before the step.
  """

  def mean_loss(z_V):
    logits_BxKxV = jnp.broadcast_to(z_V, (1, len(z_V), len(z_V)))
    gold_BxK = jnp.arange(len(z_V))[None]
    total, count = loss(logits_BxKxV, gold_BxK, p_V[None], table)
    return total / jnp.maximum(count, 1e-3)

  value, gradient_V = jax.value_and_grad(mean_loss)(z_V)
  ratio_V = gradient_V / jnp.where(p_V > 0, jax.nn.softmax(z_V), 1.0)
  moved_V = z_V + jnp.log(jnp.maximum(1 - 0.5 * ratio_V, 0.1))
  has_ended = jnp.abs(gradient_V).max() < 1e-10
  return jnp.where(has_ended, z_V, moved_V), value, gradient_V


@dataclasses.dataclass(frozen=True)
class Path:
  """The starts and the ends of a loss."""

  value_NxT: np.ndarray  # at the starts, as the gradient
  gradient_NxTxV: np.ndarray
  p_NxTxV: np.ndarray  # at the ends
  has_ended_NxT: np.ndarray  # the gradient has vanished


@functools.cache
def compile_step(loss):
  over_starts = jax.vmap(functools.partial(move, loss), (0, None, None))
  return jax.jit(jax.vmap(over_starts))


@functools.cache
def follow(loss, cases, steps=70):
  """Follows the gradient from all starts."""
  step = compile_step(loss)
  with jax.enable_x64(True):
    z, p, table = jax.device_put((cases.starts_NxTxV, cases.p_NxV, cases.table))
    z, *start = step(z, p, table)
    for _ in range(steps):
      z, _, gradient = step(z, p, table)
      has_ended = jnp.abs(gradient).max(axis=-1) < 1e-10
      if has_ended.all():
        break
    path = Path(*jax.device_get((*start, jax.nn.softmax(z), has_ended)))
  assert path.value_NxT.dtype == path.gradient_NxTxV.dtype == np.float64
  return path


def find_kept(loss, cases, **limits):
  """Returns whether a loss keeps sums of the true classes, and words, `[N]`."""
  path = follow(loss, cases, **limits)
  off_NxTxV = path.p_NxTxV - cases.p_NxV[:, None]
  same_NxVxV = np.stack([*map(same, cases.classes_NxV)])
  off_sums_NxTxV = np.einsum("nvw,ntw->ntv", same_NxVxV, off_NxTxV)
  kl_NxT = scipy.special.rel_entr(cases.p_NxV[:, None], path.p_NxTxV).sum(-1)
  stays_N = np.abs(path.gradient_NxTxV[:, 0]).max(-1) < 1e-6
  ends_N = path.has_ended_NxT.all(-1)
  assert (ends_N | (kl_NxT > 1e-3).any(-1)).all()  # else steps are lacking
  keeps_sums_N = ends_N & (np.abs(off_sums_NxTxV).max((1, 2)) < 1e-6)
  keeps_words_N = ends_N & stays_N & (kl_NxT < 1e-8).all(-1)
  return keeps_sums_N, keeps_words_N


def tabulate(loss, cases, **limits):
  """Returns a loss's row of `read_claims`; each holds in all or in no cases."""
  sums_N, words_N = find_kept(loss, cases, **limits)
  words = {}
  for i, lexicon in enumerate(LEXICONS):
    [words[lexicon]] = set(words_N[i :: len(LEXICONS)])
  [sums] = set(sums_N[:: len(LEXICONS)])
  return sums, words.pop("perfect"), all(words.values())


def quick_cases():
  return draw_cases(3, words=16)


def of_kind(lexicon):
  return slice(LEXICONS.index(lexicon), None, len(LEXICONS))


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
  assert tabulate(LOSSES[name], quick_cases()) == read_claims()[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_keeps_what_it_claims_to_keep_of_many_words(name):
  cases = draw_cases(5, words=40, seed=1)
  assert tabulate(LOSSES[name], cases) == read_claims()[name]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["uniform", "model", "balanced"])
def test_a_large_share_changes_no_claim(by):
  loss = smooth(by, share=0.9)
  claims = read_claims()[f"smoothing_by={by}"]
  assert tabulate(loss, quick_cases(), steps=500) == claims


def test_a_constant_loss_has_no_gradient_but_leads_nowhere():
  def constant(logits_BxKxV, gold_BxK, weight_BxK, table):
    return mlm.mlm_loss(logits_BxKxV, gold_BxK, 0.0 * weight_BxK)

  cases = quick_cases()
  path = follow(constant, cases)
  assert path.has_ended_NxT.all() and not path.gradient_NxTxV.any()
  assert tabulate(constant, cases) == (False, False, False)


def compute_loss(name, z_V, p_V, listed_VxV):
  """Computes the mean loss in numpy."""
  log_p_V = scipy.special.log_softmax(z_V)
  losses_V = -log_p_V
  if name == "hc":
    p_V = np.where(listed_VxV[:, z_V.argmax()], 0.0, p_V)
    p_V /= p_V.sum()
  elif "smoothing" in name:
    by, share = name.split("=")[1], LOSSES[name].keywords["smoothing"]
    with np.errstate(divide="ignore", invalid="ignore"):
      losses = [
        oracle.smoothed_loss(log_p_V, g, listed_VxV, share=share, by=by)
        for g in range(len(z_V))
      ]
    losses_V = np.array(losses)
  return p_V @ losses_V


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_equal_numpy(name):
  cases, start = quick_cases(), 1
  path = follow(LOSSES[name], cases)
  direction_V = np.random.default_rng(0).normal(size=cases.p_NxV.shape[1])
  for n in range(len(LEXICONS)):
    z_V = cases.starts_NxTxV[n, start]
    case = cases.p_NxV[n], cases.listed_NxVxV[n]
    value = compute_loss(name, z_V, *case)
    np.testing.assert_allclose(path.value_NxT[n, start], value, rtol=1e-6)
    step_V = 1e-5 * direction_V
    ends = [compute_loss(name, z_V + x, *case) for x in (step_V, -step_V)]
    slope = path.gradient_NxTxV[n, start] @ direction_V
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


def test_hard_correction_takes_the_likeliest_words_synonyms_away():
  """The ends are P without the synonyms of the likeliest word."""
  cases = quick_cases()
  path = follow(LOSSES["hc"], cases)
  assert path.has_ended_NxT.all()
  for n, t in np.ndindex(path.has_ended_NxT.shape):
    best = path.p_NxTxV[n, t].argmax()
    p_V = np.where(cases.listed_NxVxV[n, :, best], 0.0, cases.p_NxV[n])
    np.testing.assert_allclose(path.p_NxTxV[n, t], p_V / p_V.sum(), atol=1e-8)
    assert p_V.sum() < 1


def test_the_plain_loss_mends_what_hard_correction_did():
  cases = quick_cases()
  ends = np.log(np.maximum(follow(LOSSES["hc"], cases).p_NxTxV, 1e-300))
  cases = dataclasses.replace(
    cases, starts_NxTxV=np.where(cases.starts_NxTxV > NO_WORD, ends, NO_WORD)
  )
  path = follow(LOSSES["baseline"], cases)
  np.testing.assert_allclose(
    path.p_NxTxV, cases.p_NxV[:, None] + 0 * path.p_NxTxV, atol=1e-8
  )


def test_uniform_smoothing_levels_words():
  """The ends are P times the targets, which is not P even within a class."""
  cases = quick_cases()
  path = follow(LOSSES["smoothing_by=uniform"], cases)
  for n, listed_VxV in enumerate(cases.listed_NxVxV):
    share_VxV = listed_VxV / np.maximum(listed_VxV.sum(1, keepdims=True), 1)
    p_V = 0.7 * cases.p_NxV[n] + 0.3 * cases.p_NxV[n] @ share_VxV
    np.testing.assert_allclose(
      path.p_NxTxV[n], np.tile(p_V, (1 + STARTS, 1)), atol=1e-8
    )


def test_sets_keep_the_sums_of_their_own_partition_only():
  cases, kind = quick_cases(), of_kind("partition")
  path = follow(LOSSES["smoothing_by=set"], cases)
  off_NxTxV = path.p_NxTxV[kind] - cases.p_NxV[kind, None]
  in_set_NxVxV = cases.listed_NxVxV[kind] | np.eye(
    off_NxTxV.shape[-1], dtype=bool
  )
  off_sums_NxTxV = np.einsum("nvw,ntw->ntv", in_set_NxVxV, off_NxTxV)
  np.testing.assert_allclose(off_sums_NxTxV, 0.0, atol=1e-8)
  assert not find_kept(LOSSES["smoothing_by=set"], cases)[0][kind].any()


def test_model_smoothing_keeps_words_with_any_partition():
  _, words_N = find_kept(LOSSES["smoothing_by=model"], quick_cases())
  for lexicon in LEXICONS:
    keeps = lexicon in ("perfect", "partition")
    assert (words_N[of_kind(lexicon)] == keeps).all()


def test_balanced_smoothing_is_a_score_with_the_gradient_of_its_target():
  """The target moves share * q * p[s] / (p[g] + p[s]) from g to s.

  The loss exceeds that of P by (1 - share) KL(P || p) or more.
  """
  cases, start, share = quick_cases(), 1, 0.3
  path = follow(LOSSES["smoothing_by=balanced"], cases)
  p_NxV = scipy.special.softmax(cases.starts_NxTxV[:, start], axis=-1)
  for n, (gold_V, p_V) in enumerate(zip(cases.p_NxV, p_NxV, strict=True)):
    rates_VxV = oracle.find_rates(cases.listed_NxVxV[n])
    moved_VxV = np.zeros_like(rates_VxV)
    for g, s in np.argwhere(rates_VxV):
      moved_VxV[g, s] = share * rates_VxV[g, s] * p_V[s] / (p_V[g] + p_V[s])
    target_V = gold_V * (1 - moved_VxV.sum(axis=1)) + gold_V @ moved_VxV
    np.testing.assert_allclose(
      path.gradient_NxTxV[n, start], p_V - target_V, atol=1e-7
    )
  excess_N = path.value_NxT[:, start] - path.value_NxT[:, 0]
  kl_N = scipy.special.rel_entr(cases.p_NxV, p_NxV).sum(axis=-1)
  assert (excess_N > (1 - share) * kl_N).all()


@pytest.mark.parametrize(
  ("label", "is_ignored", "optimum"),
  [
    (1.0, False, 0.4),
    (0.0, False, 0.1),
    (0.5, False, 0.25),
    (1.0, True, 1 / 7),
  ],
)
def test_the_discriminators_optimum_is_a_mixture_or_conditional(
  label, is_ignored, optimum
):
  """Of equal tokens 60 % are original, 30 % sampled synonyms, and 10 % others.

  The optimum is the mean label; of ignored synonyms, 10 / 70 instead of 40 %.
  """
  labels_BxL = jnp.array([[0.0, label, 1.0]])
  weight_BxL = jnp.array([[0.6, 0.0 if is_ignored else 0.3, 0.1]])

  @jax.jit
  @jax.grad
  def slope(logit):
    return electra.detection_loss(
      jnp.full((1, 3), logit), labels_BxL, weight_BxL
    )[0]

  best = scipy.special.logit(optimum)
  np.testing.assert_allclose(slope(best), 0.0, atol=1e-6)
  assert slope(best - 0.5) < 0 < slope(best + 0.5)
