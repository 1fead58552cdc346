"""Heads of tasks: their outputs, gradients and dropout; equal to references."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from support import tiny
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.objectives import task_losses
from truenegs_jax.runtime import rng as rng_lib
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import step
from truenegs_jax.weights.formats import hf_folder, hf_names

B, L, C = 8, 12, 3
ROLES = {  # the network that a head is mostly tested with
  "linear": "discriminator",
  "dense": "discriminator",
  "pooler": "bert",
  "spans": "discriminator",
  "joint": "discriminator",
}
PAIRS = [(head, role) for head in ROLES for role in finetune.HEAD_ROLES[head]]
TERMS = {
  kind: functools.partial(task_losses.task_terms, kind=kind)
  for kind in task_losses.LOSSES
}
KEYS = functools.partial(rng_lib.row_keys, jax.random.key(0), 0)


def make_model(head, role=None, **overrides):
  """Builds a model, by default without layers, which compiles faster."""
  return finetune.make_downstream(
    role=role or ROLES[head],
    head=head,
    vocab_size=tiny.V,
    variant="tiny",
    **{"num_outputs": C, "layers": 0, **overrides},
  )


@functools.cache
def draw_params(head, **overrides):
  """Draws parameters so large that a softmax is far from uniform."""
  rng = np.random.default_rng(1)
  return jax.tree.map(
    lambda x: rng.normal(scale=0.2, size=x.shape).astype(np.float32),
    pretrain.param_shapes(make_model(head, **overrides)),
  )


def make_inputs():
  """Builds rows of two texts with targets of all kinds."""
  rng = np.random.default_rng(0)
  batch = tiny.make_batch(0, B, L)
  batch["tokens"][:, 0] += np.arange(B)  # no two rows begin with the same token
  ends = batch["documents"].sum(axis=1)
  index = np.arange(L)[None]
  spans = np.sort(rng.integers(3, ends[:, None], (B, 2)), axis=1)
  spans[0] = 0  # no answer in this window
  return {
    "tokens": batch["tokens"],
    "types": ((index >= 3) * batch["documents"]).astype(np.int32),
    "documents": batch["documents"],
    "weight": np.ones(B, np.float32),
    "label": rng.integers(0, C, B).astype(np.int32),
    "start": spans[:, 0].astype(np.int32),
    "end": spans[:, 1].astype(np.int32),
  }


@functools.cache
def compiled(head):
  """Compiles (params, inputs) -> (loss of the step, its gradient)."""
  terms, model = TERMS.get(head, TERMS["classes"]), make_model(head)

  def loss(params, inputs):
    values = terms(params, inputs, None, {}, model=model, train=False)
    return step.total_loss(values, {"loss": 1.0})

  return jax.jit(jax.value_and_grad(loss))


def outputs(model, inputs, keys_B=None):
  """Calls the method of the head."""
  if model.head == "joint":
    return model.joint_logits(inputs, inputs["start"], keys_B)
  if model.head == "spans":
    return model.span_logits(inputs, keys_B)
  return model.class_logits(inputs, keys_B)


@pytest.mark.parametrize(("head", "role"), PAIRS)
def test_every_head_returns_f32_of_its_shape(head, role):
  model = make_model(head, role, layers=1, dtype="bfloat16")
  shapes = pretrain.param_shapes(model)
  pooled = {"pooled"} if head == "pooler" else set()
  assert set(shapes) == {"embeddings", role, "task_head"} | pooled

  def apply(method):
    return jax.eval_shape(
      functools.partial(model.apply, method=method),
      {"params": shapes},
      make_inputs(),
    )

  expected = {"spans": (B, L, 2), "joint": ((B, L), (B, L), (B,))}
  logits = apply(outputs)
  assert {x.dtype for x in jax.tree.leaves(logits)} == {jnp.dtype("float32")}
  assert jax.tree.map(jnp.shape, logits) == expected.get(head, (B, C))
  if head == "joint":
    starts_BxS, ends_BxSxS, scores_BxSxS = apply("joint_beam")
    assert starts_BxS.shape == (B, L)  # there are no 20
    assert ends_BxSxS.shape == scores_BxSxS.shape == (B, L, L)
    assert starts_BxS.dtype == ends_BxSxS.dtype == jnp.int32


@pytest.mark.parametrize("backbone", ["encoder", "rotary"])
@pytest.mark.parametrize("head", ROLES)
def test_dropout_sites_of_heads_follow_those_of_the_layers(
  head, backbone, monkeypatch
):
  model = make_model(head, backbone=backbone, layers=2, head_dropout=0.3)
  sites, rates = [], []

  def dropout(x, keys_B, *, rate, site):
    if keys_B is not None:
      sites.append(site)
      rates.append(rate)
    return x

  monkeypatch.setattr(rng_lib, "dropout", dropout)
  inputs = make_inputs()
  jax.eval_shape(
    functools.partial(model.apply, method=outputs),
    {"params": pretrain.param_shapes(model)},
    inputs,
    KEYS(jnp.arange(B)),
  )
  num_in_head = {"spans": 0, "joint": 0, "dense": 2}.get(head, 1)
  assert sorted(sites) == list(range(1 + 2 * 3 + num_in_head))
  assert rates == [0.1] * 7 + [0.3] * num_in_head


@pytest.mark.parametrize("head", ROLES)
def test_rows_without_weight_change_nothing(head):
  inputs = make_inputs()
  inputs["weight"][6:] = 0.0
  other = {**inputs, "documents": inputs["documents"].copy()}
  other["documents"][7] = 0  # padding, as in the rows that fill a batch
  other["label"] = (inputs["label"] + (inputs["weight"] == 0)) % C
  loss, grads = compiled(head)(draw_params(head), inputs)
  loss_other, grads_other = compiled(head)(draw_params(head), other)
  assert loss_other == loss
  jax.tree.map(np.testing.assert_array_equal, grads_other, grads)
  inputs["weight"][6:] = 1.0
  assert compiled(head)(draw_params(head), inputs)[0] != loss


@pytest.mark.parametrize("head", ROLES)
def test_every_parameter_is_trained(head):
  _, grads = compiled(head)(draw_params(head), make_inputs())
  without_gradient = {
    jax.tree_util.keystr(path, simple=True, separator="/")
    for path, x in jax.tree_util.tree_leaves_with_path(grads)
    if abs(x).max() < 1e-6
  }
  # A softmax over positions ignores a constant that is added to all.
  added = {
    "spans": {
      "embeddings/norm/bias",
      "discriminator/project/bias",
      "task_head/output/bias",
    },
    "joint": {"task_head/start/bias", "task_head/end_output/bias"},
  }
  assert without_gradient == added.get(head, set())


def log_softmax(x):
  x = x - x.max(axis=-1, keepdims=True)
  return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def joint_reference(params, hidden_BxLxD, inputs):
  """Computes the joint head in f64, for all pairs of start and end.

  Returns log p(start) [B, L], log p(end | start) [B, L, L], and the logit [B]
  of a question without an answer.
  """

  def dense(name, x):
    bias = np.float64(params[name]["bias"])
    return x @ np.float64(params[name]["kernel"]) + bias

  def gelu(x):
    return np.float64(jax.nn.gelu(np.float32(x), approximate=False))

  allowed = (inputs["documents"] == 1) & (inputs["types"] == 1)
  allowed[:, 0] = True
  forbidden_BxL = 1000.0 * (allowed - 1.0)
  start_BxL = log_softmax(dense("start", hidden_BxLxD)[..., 0] + forbidden_BxL)
  starts_BxLxLxD = np.repeat(hidden_BxLxD[:, :, None], L, axis=2)
  ends_BxLxLxD = np.repeat(hidden_BxLxD[:, None], L, axis=1)
  concatenated = np.concatenate((starts_BxLxLxD, ends_BxLxLxD), axis=-1)
  end_BxLxLx1 = dense("end_output", gelu(dense("end_hidden", concatenated)))
  end_BxLxL = log_softmax(end_BxLxLx1[..., 0] + forbidden_BxL[:, None])
  expected_BxD = np.einsum("bl,bld->bd", np.exp(start_BxL), hidden_BxLxD)
  concatenated = np.concatenate((hidden_BxLxD[:, 0], expected_BxD), axis=-1)
  hidden_BxU = gelu(dense("answer_hidden", concatenated))
  return start_BxL, end_BxLxL, dense("answer_output", hidden_BxU)[:, 0]


@functools.cache
def joint_case():
  """Returns a model, its parameters, a batch, and the reference outputs."""
  model, params = make_model("joint"), draw_params("joint")
  inputs = make_inputs()
  encode = functools.partial(model.apply, method="encode")
  hidden_BxLxD = np.float64(jax.jit(encode)({"params": params}, inputs, None))
  reference = joint_reference(params["task_head"], hidden_BxLxD, inputs)
  return model, params, inputs, reference


def test_the_joint_loss_is_of_the_end_given_the_gold_start():
  _, params, inputs, (start_BxL, end_BxLxL, answerable_B) = joint_case()
  rows, start_B, end_B = np.arange(B), inputs["start"], inputs["end"]
  losses_B = -(start_BxL[rows, start_B] + end_BxLxL[rows, start_B, end_B]) / 2
  losses_B += 0.5 * np.log1p(np.exp(answerable_B))
  loss = compiled("joint")(params, inputs)[0]
  np.testing.assert_allclose(loss, losses_B.mean(), rtol=1e-5)


def test_the_beam_finds_the_best_of_all_pairs():
  model, params, inputs, (start_BxL, end_BxLxL, _) = joint_case()
  beam = functools.partial(model.apply, method="joint_beam", size=4)
  starts_BxS, ends_BxSxS, scores_BxSxS = map(
    np.asarray, jax.jit(beam)({"params": params}, inputs)
  )
  all_BxLxL = start_BxL[..., None] + end_BxLxL
  rows = np.arange(B)
  best_BxS = np.argsort(-start_BxL, axis=1)[:, :4]
  np.testing.assert_array_equal(starts_BxS, best_BxS)
  of_starts_BxSxL = all_BxLxL[rows[:, None], starts_BxS]
  best_BxSxS = np.argsort(-of_starts_BxSxL, axis=2)[..., :4]
  np.testing.assert_array_equal(ends_BxSxS, best_BxSxS)
  expected = np.take_along_axis(of_starts_BxSxL, ends_BxSxS, axis=2)
  np.testing.assert_allclose(scores_BxSxS, expected, rtol=1e-4, atol=1e-4)


# Head -> the class in transformers, and our layers -> its names.
TRANSFORMERS = {
  "dense": (
    "ElectraForSequenceClassification",
    {
      "task_head/dense": "classifier.dense",
      "task_head/output": "classifier.out_proj",
    },
  ),
  "pooler": (
    "BertForSequenceClassification",
    {"pooled/pooler": "bert.pooler.dense", "task_head/output": "classifier"},
  ),
  "spans": ("ElectraForQuestionAnswering", {"task_head/output": "qa_outputs"}),
}


def make_transformers_network(head, params):
  """Builds the class of transformers with our parameters, all of them."""
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  role, (name, layers) = ROLES[head], TRANSFORMERS[head]
  make = {"discriminator": tiny.make_model, "bert": tiny.make_bert}[role]
  pretrained = make(layers=1)
  names = hf_names.name_table(pretrained, role)
  for layer, torch_layer in layers.items():
    names[f"{layer}/kernel"] = f"{torch_layer}.weight"
    names[f"{layer}/bias"] = f"{torch_layer}.bias"
  fields = hf_folder.model_config(pretrained, role, pad=0)
  fields["num_labels"] = 2 if head == "spans" else C
  network_class = getattr(transformers, name)
  network = network_class(network_class.config_class(**fields)).eval()
  tensors = {}
  for path, x in traverse_util.flatten_dict(params, sep="/").items():
    tensors[names[path]] = torch.tensor(x.T if path.endswith("kernel") else x)
  network.load_state_dict(tensors)
  return network


@pytest.mark.parametrize("head", TRANSFORMERS)
def test_heads_equal_those_of_transformers(head):
  params, inputs = draw_params(head, layers=1), make_inputs()
  network = make_transformers_network(head, params)
  torch = pytest.importorskip("torch")
  with torch.no_grad():
    output = network(
      input_ids=torch.tensor(inputs["tokens"]),
      token_type_ids=torch.tensor(inputs["types"]),
      attention_mask=torch.tensor(inputs["documents"]),
    )
  apply = functools.partial(make_model(head, layers=1).apply, method=outputs)
  logits = np.asarray(jax.jit(apply)({"params": params}, inputs))
  if head == "spans":
    real = inputs["documents"] != 0
    expected = np.stack((output.start_logits, output.end_logits), axis=-1)[real]
    logits = logits[real]
  else:
    expected = output.logits.numpy()
  np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
  assert logits.std() > 0.05


def test_impossible_heads_are_errors():
  for wrong, message in (
    (dict(head="span"), "Choose linear, dense, spans, joint"),
    (dict(head="pooler"), "Choose linear, dense, spans, joint"),
    (dict(head="dense", role="bert"), "linear, pooler, spans, joint"),
    (dict(head="linear", role="generator"), "not a head of .*generator"),
  ):
    with pytest.raises(InputError, match=message):
      make_model(**{"role": "discriminator", **wrong})


def test_embeddings_of_bert_are_as_wide_as_the_network():
  assert make_model("linear", "bert").config.embedding_size == 32
  assert make_model("linear", "discriminator").config.embedding_size == 16
