"""Optimizer and schedules equal the released ones, computed with NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import runs
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.sections import Optim
from truenegs_jax.train import optim, sharding


def rate_at(name, t, **sizes):
  sizes = dict(peak=5e-4, warmup_steps=10_000, total_steps=1_000_000) | sizes
  return float(optim.make_schedule(name, **sizes)(jnp.asarray(t)))


@pytest.mark.parametrize(
  ("t", "electra", "bert"),
  [
    (0, 0.0, 0.0),
    (5_000, 2.4875e-4, 2.5e-4),
    (9_999, 4.9495e-4, 4.9995e-4),
    (10_000, 4.95e-4, 4.95e-4),
    (500_000, 2.5e-4, 2.5e-4),
    (1_000_000, 0.0, 0.0),
    (1_000_001, 0.0, 0.0),
  ],
)
def test_schedules_equal_the_released_ones(t, electra, bert):
  rates = [rate_at("electra", t), rate_at("bert", t)]
  assert rates == pytest.approx([electra, bert], rel=1e-4, abs=1e-12)
  at_once = [rate_at(x, 0, warmup_steps=0) for x in ("electra", "bert")]
  assert at_once == [0.0, pytest.approx(5e-4)]


@pytest.mark.parametrize(("warmup", "decay"), [(7, 11), (0, 40), (20, 0)])
def test_wsd_warms_up_is_stable_and_decays_by_a_square_root(warmup, decay):
  rates = [
    rate_at("wsd", t, warmup_steps=warmup, total_steps=40, decay_steps=decay)
    for t in range(43)
  ]
  t = np.arange(43.0)
  left = np.clip((t - (40 - decay)) / max(decay, 1), 0, 1)
  expected = 5e-4 * np.minimum(t / max(warmup, 1e-9), 1) * (1 - left**0.5)
  if warmup == 0:
    expected[0] = 5e-4
  np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=5e-10)
  assert {float(np.float32(5e-4))} == set(rates[warmup : 40 - decay + 1])


def flatten(tree):
  return {
    tuple(key.key for key in path): np.asarray(leaf, np.float64)
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  }


@pytest.mark.parametrize("scale", [0.01, 10.0])  # below and above the clip
def test_updates_equal_adam_in_numpy(scale):
  tx = optim.make_optimizer(
    optim.make_schedule("electra", peak=0.1, warmup_steps=3, total_steps=20),
    Optim(),
  )
  params = layered_params(0)
  state = tx.init(params)
  expected = flatten(params)
  mean, square = ({k: 0 * v for k, v in expected.items()} for _ in range(2))
  for t in range(6):
    grads = jax.tree.map(lambda g: scale * g, layered_params(t + 1))
    updates, state = tx.update(grads, state, params)
    params = jax.tree.map(lambda p, u: p + u, params, updates)
    g = flatten(grads)
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    for path, p in expected.items():
      clipped = g[path] / max(norm, 1.0)
      mean[path] = 0.9 * mean[path] + 0.1 * clipped
      square[path] = 0.999 * square[path] + 0.001 * clipped**2
      update = mean[path] / (np.sqrt(square[path]) + 1e-6)
      update = update + 0.01 * p * (path[-1] in ("word", "kernel"))
      rate = 0.1 * (1 - t / 20) * min(1, t / 3)
      expected[path] = p - rate * update
    for path, p in flatten(params).items():
      np.testing.assert_allclose(
        p, expected[path], rtol=1e-4, atol=1e-5, err_msg=f"{path} at {t}"
      )


def test_networks_that_are_clipped_apart_have_optimizers_of_their_own(
  monkeypatch,
):
  monkeypatch.setattr(optim, "EPSILON", 1.0)
  params, grads = layered_params(0), layered_params(1)
  grads["bert"] = jax.tree.map(lambda g: 50 * g, grads["bert"])

  def update(params, grads, **options):
    tx = optim.make_optimizer(lambda _: 0.1, Optim(), **options)
    return tx.update(grads, tx.init(params), params)[0]

  def split(tree):
    own = {name: x for name, x in tree.items() if name == "bert"}
    return own, {name: x for name, x in tree.items() if name != "bert"}

  together = update(params, grads, clip_apart="be")
  own, others = map(update, split(params), split(grads))
  jax.tree.map(np.testing.assert_array_equal, together, own | others)
  head = update(params, grads)["mlm_head"]["dense"]["bias"]  # of one norm
  apart = together["mlm_head"]["dense"]["bias"]
  assert np.all(np.abs(head) < np.abs(apart))


def test_frozen_parameters_without_gradient_stay_as_they_are():
  params = layered_params(0)
  options = Optim(muon_lr=0.1)
  frozen = ("bert", "pooled")
  tx = optim.make_optimizer(lambda _: 0.1, options, frozen=frozen)
  zeros = jax.tree.map(jnp.zeros_like, params)
  updates, _ = tx.update(zeros, tx.init(params), params)
  for name in frozen:
    assert not any(np.any(x) for x in jax.tree.leaves(updates[name]))
  assert np.all(updates["embeddings"]["word"])  # decays


def layered_params(seed):
  """Draws a network with kernels of layers that are square, wide and fused."""
  rng = np.random.default_rng(seed)

  def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)

  layer = {
    "query": {"kernel": normal(8, 8), "bias": normal(8)},
    "ffn_gated": {"kernel": normal(8, 2, 16)},
    "ffn_output": {"kernel": normal(16, 8), "bias": normal(8)},
    "norm": {"scale": normal(8)},
  }
  return {
    "embeddings": {"word": normal(9, 8)},
    "bert": {"layer_0": layer, "project": {"kernel": normal(8, 8)}},
    "pooled": {"pooler": {"kernel": normal(8, 8)}},
    "mlm_head": {"dense": {"kernel": normal(8, 8), "bias": normal(8)}},
  }


def updates_of_steps(options, steps=3, **more):
  """Returns the parameters, and the updates of some steps."""
  rate = optim.make_schedule("bert", peak=0.1, warmup_steps=2, total_steps=20)
  tx = optim.make_optimizer(rate, options, **more)
  params = layered_params(0)
  state = tx.init(params)
  updates = []
  for t in range(steps):
    update, state = tx.update(layered_params(t + 1), state, params)
    updates.append(flatten(update))
  return flatten(params), updates


def orthogonalize(x):
  """Makes a matrix about orthogonal, as Jordan et al. 2024, in f64."""
  x = x / np.linalg.norm(x)
  for _ in range(5):
    square = x @ x.T
    x = 3.4445 * x - 4.7750 * square @ x + 2.0315 * square @ square @ x
  return x


def test_matrices_of_layers_get_muons_updates_in_numpy():
  options = Optim(lr=0.1, muon_lr=0.3, weight_decay=0.5)
  params, updates = updates_of_steps(options)
  kernels = [path for path in params if "layer_0" in path and "kernel" in path]
  assert len(kernels) == 3
  momenta = dict.fromkeys(kernels, 0.0)
  for t, update in enumerate(updates):
    grads = flatten(layered_params(t + 1))
    norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
    schedule = (0.0, 0.5, 0.9)[t]
    for path in kernels:
      momenta[path] = 0.95 * momenta[path] + grads[path] / norm
      nesterov = 0.95 * momenta[path] + grads[path] / norm
      fused = nesterov if nesterov.ndim == 3 else nesterov[:, None]
      parts = [orthogonalize(x) for x in np.moveaxis(fused, 1, 0)]
      expected = np.stack(parts, axis=1).reshape(nesterov.shape)
      expected *= 0.2 * max(nesterov.shape[0], nesterov.shape[-1]) ** 0.5
      # The decay follows the rate of Adam.
      expected = 0.3 * expected + 0.1 * 0.5 * params[path]
      np.testing.assert_allclose(
        update[path], -schedule * expected, rtol=1e-3, atol=2e-5, err_msg=path
      )


def test_muon_leaves_all_else_to_adam():
  _, by_adam = updates_of_steps(Optim(lr=0.1))
  _, by_both = updates_of_steps(Optim(lr=0.1, muon_lr=0.3))
  for adam, both in zip(by_adam, by_both, strict=True):
    for path, update in adam.items():
      is_muon = "layer_0" in path and "kernel" in path
      assert np.array_equal(both[path], update) != is_muon or not update.any()


def test_muon_is_the_same_on_a_mesh():
  spec = sharding.get_mesh_spec("fsdp_tp")
  mesh = sharding.make_mesh(spec)
  tx = optim.make_optimizer(lambda _: 1.0, Optim(lr=1.0, muon_lr=1.0))
  params = layered_params(0)
  arguments = {"params": params, "opt_state": tx.init(params)}
  shardings = sharding.tree_shardings(arguments, mesh, spec)
  placed = jax.device_put(arguments, shardings)
  kernel = placed["params"]["bert"]["layer_0"]["ffn_gated"]["kernel"]
  momentum = [x for x in jax.tree.leaves(placed["opt_state"]) if x.ndim == 3]
  assert momentum[0].sharding == kernel.sharding
  assert not kernel.sharding.is_fully_replicated
  grads = jax.device_put(layered_params(1), shardings["params"])
  update = jax.jit(tx.update)
  split, _ = update(grads, placed["opt_state"], placed["params"])
  one, _ = update(layered_params(1), arguments["opt_state"], params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
    *(split, one),
  )


def make_network(layers, role="discriminator"):
  """Returns the tree of a fine-tuned network with one number per parameter."""
  stack = {f"layer_{j}": {"key": {"kernel": 1.0}} for j in range(layers)}
  return {
    "embeddings": {"word": 1.0, "norm": {"scale": 1.0}},
    role: {**stack, "project": {"kernel": 1.0}, "final_norm": {"scale": 1.0}},
    "pooled": {"pooler": {"kernel": 1.0}},
    "task_head": {"output": {"kernel": 1.0, "bias": 1.0}},
  }


@pytest.mark.parametrize(
  ("role", "layers", "decay", "top", "bottom", "embeddings"),
  [
    ("discriminator", 12, 0.8, 0.64, 0.05498, 0.04398),
    ("bert", 24, 0.9, 0.81, 0.07179, 0.06461),
  ],
)
def test_lower_layers_have_the_released_lower_rates(
  role, layers, decay, top, bottom, embeddings
):
  params = make_network(layers, role)
  factors = optim.layer_lr_factors(params, decay=decay)
  assert jax.tree.structure(factors) == jax.tree.structure(params)
  network = factors[role]
  for tree, expected in (
    (factors["task_head"], 1.0),
    (factors["pooled"], 1.0),
    (network[f"layer_{layers - 1}"], top),
    (network["final_norm"], top),
    (network["layer_0"], bottom),
    (network["project"], embeddings),
    (factors["embeddings"], embeddings),
  ):
    for leaf in jax.tree.leaves(tree):
      assert leaf == pytest.approx(expected, rel=1e-4)


def test_factors_multiply_update_and_decay():
  params = jax.tree.map(jnp.asarray, make_network(2))
  grads = jax.tree.map(lambda p: 0.3 * p, params)
  factors = optim.layer_lr_factors(params, decay=0.5)

  def update(**options):
    tx = optim.make_optimizer(lambda _: 0.1, Optim(weight_decay=0.3), **options)
    return tx.update(grads, tx.init(params), params)[0]

  jax.tree.map(
    lambda u, f, v: np.testing.assert_allclose(v, u * f, rtol=1e-6),
    *(update(), factors, update(lr_factors=factors)),
  )


@pytest.mark.parametrize("name", ["own:runlocal", "finetune_glue:mrpc"])
def test_a_high_learning_rate_draws_a_warning_that_helps(name, tmp_path):
  def warn(*words):
    flags = [f"--config={name}", "--config.dry_run=True", *words]
    if name.startswith("finetune"):
      flags += ["--config.init=org/model", f"--config.finetune.data={tmp_path}"]
    c = parse_config(flags)
    code, printed = runs.run_task(c, tmp_path / "none", width=400)
    assert code == 0
    return re.findall("warning: (optim.lr.*)", printed)

  assert not warn() and not warn("--config.optim.lr=0.05")
  (warning,) = warn("--config.optim.lr=100")
  assert warning.startswith("optim.lr=100 is more than 0.05.")
  (advice,) = re.findall(r"--config\S+[^.\s]", warning)
  assert not warn(advice)
