"""The optimizer and its schedules equal the released ones, in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.errors import InputError
from truenegs_jax.train import optim


def rate_at(name, t, **sizes):
  sizes = dict(peak=5e-4, warmup_steps=10_000, total_steps=1_000_000) | sizes
  return float(optim.make_schedule(name, **sizes)(jnp.asarray(t)))


@pytest.mark.parametrize(
  ("t", "rate"),
  [
    (0, 0.0),
    (5_000, 2.4875e-4),
    (10_000, 4.95e-4),
    (500_000, 2.5e-4),
    (1_000_000, 0.0),
    (1_000_001, 0.0),
  ],
)
def test_electra_warms_up_and_decays_at_once(t, rate):
  assert rate_at("electra", t) == pytest.approx(rate, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize(
  ("t", "rate"),
  [
    (0, 0.0),
    (5_000, 2.5e-4),
    (9_999, 4.9995e-4),
    (10_000, 4.95e-4),
    (500_000, 2.5e-4),
    (1_000_000, 0.0),
  ],
)
def test_bert_warms_up_to_the_peak_and_then_decays(t, rate):
  assert rate_at("bert", t) == pytest.approx(rate, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("name", optim.SCHEDULES)
def test_every_schedule_starts_at_nothing_and_ends_at_nothing(name):
  assert rate_at(name, 0) == 0.0
  assert rate_at(name, 1_000_000) == 0.0
  assert 0.0 < rate_at(name, 10_000) <= 5e-4
  assert np.isfinite(rate_at(name, 3, warmup_steps=0))


def test_an_unknown_schedule_is_refused_with_the_known_ones():
  with pytest.raises(InputError, match="'cosine' is unknown.*electra"):
    rate_at("cosine", 0)


def params_like(seed):
  rng = np.random.default_rng(seed)
  normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
  return {
    "embeddings": {"word": normal(5, 3), "norm": {"scale": normal(3)}},
    "encoder": {
      "dense": {"kernel": normal(3, 4), "bias": normal(4)},
      "norm": {"scale": normal(4), "bias": normal(4)},
    },
    "head": {"bias": normal(5)},
  }


DECAYED = {("embeddings", "word"), ("encoder", "dense", "kernel")}


def leaves(tree):
  return {
    tuple(key.key for key in path): np.asarray(leaf, np.float64)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


@pytest.mark.parametrize("scale", [0.01, 10.0])  # below and above the clip
def test_updates_equal_a_numpy_adam_over_several_steps(scale):
  rate = lambda t: 0.1 * (1 - t / 20) * min(1, t / 3)
  tx = optim.make_optimizer(
    optim.make_schedule("electra", peak=0.1, warmup_steps=3, total_steps=20)
  )
  params = params_like(0)
  state = tx.init(params)
  want = leaves(params)
  mean, square = ({k: 0 * v for k, v in want.items()} for _ in range(2))
  for t in range(6):
    grads = jax.tree.map(lambda g: scale * g, params_like(t + 1))
    updates, state = tx.update(grads, state, params)
    params = jax.tree.map(lambda p, u: p + u, params, updates)
    g = leaves(grads)
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    for path, p in want.items():
      clipped = g[path] / max(norm, 1.0)
      mean[path] = 0.9 * mean[path] + 0.1 * clipped
      square[path] = 0.999 * square[path] + 0.001 * clipped**2
      update = mean[path] / (np.sqrt(square[path]) + 1e-6)
      update = update + 0.01 * p * (path in DECAYED)
      want[path] = p - rate(t) * update
    for path, p in leaves(params).items():
      np.testing.assert_allclose(
        p, want[path], rtol=1e-4, atol=1e-5, err_msg=f"{path} at {t}"
      )


def test_tables_and_kernels_decay_and_no_bias_or_norm_does():
  mask = optim.decay_mask(params_like(0))
  decayed = {path for path, decays in leaves(mask).items() if decays}
  assert decayed == DECAYED


def test_the_first_update_moves_moments_and_no_parameter():
  rate = optim.make_schedule("electra", peak=1, warmup_steps=2, total_steps=9)
  tx = optim.make_optimizer(rate)
  params = params_like(0)
  updates, state = tx.update(params_like(1), tx.init(params), params)
  assert not any(np.any(u) for u in jax.tree.leaves(updates))
  assert all(np.any(m) for m in jax.tree.leaves(state[1]))


def test_moments_are_buffers_of_their_own():
  state = optim.scale_by_plain_adam(0.9, 0.999, 1e-6).init(
    jax.tree.map(jnp.asarray, params_like(0))
  )
  pointers = [
    x.unsafe_buffer_pointer()
    for x in jax.tree.leaves((state.mean, state.square))
  ]
  assert len(set(pointers)) == len(pointers)  # each can be donated
