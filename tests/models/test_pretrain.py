"""Sizes, shared parameters and logits of the models of pre-training."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny
from truenegs_jax.models import encoder, heads, pretrain
from truenegs_jax.runtime.errors import InputError

RELEASED = {  # facts: Google's checkpoints, generator 1/4, 1/3, 1/4
  "small": (1 / 4, 14_196_219, (64, 1, 256, 12)),
  "base": (1 / 3, 119_386_427, (256, 4, 1024, 12)),
  "large": (1 / 4, 354_655_291, (256, 4, 1024, 24)),
}


@pytest.mark.parametrize("variant", RELEASED)
def test_pairs_have_the_released_number_of_parameters(variant):
  multiplier, total, generator_size = RELEASED[variant]
  model = pretrain.make_electra(
    vocab_size=30_522, variant=variant, generator_multiplier=multiplier
  )
  shapes = pretrain.param_shapes(model)
  assert pretrain.count_parameters(shapes) == total
  g = model.generator_config
  assert (g.width, g.heads, g.ffn, g.layers) == generator_size
  assert g.embedding_size == model.discriminator_config.embedding_size


def test_networks_of_the_small_pair_have_the_released_sizes():
  model = pretrain.make_electra(
    vocab_size=30_522, variant="small", generator_multiplier=0.25
  )
  shapes = pretrain.param_shapes(model)
  count = {name: pretrain.count_parameters(x) for name, x in shapes.items()}
  assert count["embeddings"] == 3_972_864
  assert count["generator"] + count["generator_head"] == 647_162
  rest = count["discriminator"] + count["discriminator_head"]
  assert count["embeddings"] + rest == 13_549_057
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(shapes))


@functools.cache
def tiny_params():
  init_params = jax.jit(pretrain.init_params, static_argnums=0)
  return init_params(tiny.make_model(), jax.random.key(0))


@jax.jit
def compute_logits(params):
  """Returns the logits of the generator and of the discriminator."""
  variables, inputs = {"params": params}, tiny.make_batch(0)
  del inputs["row"]
  positions = jnp.ones((tiny.B, 2), jnp.int32)
  apply = tiny.make_model().apply
  return (
    apply(variables, inputs, positions, None, method="generate_logits"),
    apply(variables, inputs, None, method="detect_logits"),
  )


@pytest.mark.parametrize(
  ("part", "moves_generator", "moves_detector"),
  [
    ("embeddings", True, True),
    ("generator", True, False),
    ("generator_head", True, False),
    ("discriminator", False, True),
    ("discriminator_head", False, True),
  ],
)
def test_only_the_embeddings_are_shared(part, moves_generator, moves_detector):
  params = tiny_params()
  base = compute_logits(params)

  def perturb(x):
    # A pattern, as layer norm would remove a constant.
    index = jnp.arange(x.size, dtype=jnp.float32).reshape(x.shape)
    return x + 0.1 * jnp.sin(index**2)

  changed_part = jax.tree.map(perturb, params[part])
  changed = compute_logits({**params, part: changed_part})
  assert np.any(changed[0] != base[0]) == moves_generator
  assert np.any(changed[1] != base[1]) == moves_detector


def test_the_output_table_is_the_word_table():
  params, absent = tiny_params(), tiny.MASK  # a token that is in no row
  louder = params["embeddings"]["word"].at[absent].multiply(3.0)
  changed = {**params, "embeddings": {**params["embeddings"], "word": louder}}
  base, logits_changed = compute_logits(params)[0], compute_logits(changed)[0]
  np.testing.assert_allclose(
    logits_changed[..., absent], 3 * base[..., absent], rtol=1e-4, atol=1e-5
  )
  others = np.arange(tiny.V) != absent
  np.testing.assert_array_equal(logits_changed[..., others], base[..., others])


def test_logits_are_of_the_given_positions():
  bound = tiny.make_model().bind({"params": tiny_params()})
  inputs = tiny.make_batch(0)
  positions = np.random.default_rng(0).integers(0, tiny.L, (tiny.B, 5))
  all_positions = np.tile(np.arange(tiny.L), (tiny.B, 1))
  all_logits = bound.generate_logits(inputs, jnp.asarray(all_positions), None)
  expected = np.take_along_axis(all_logits, positions[..., None], axis=1)
  logits = bound.generate_logits(inputs, jnp.asarray(positions), None)
  np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  "make",
  [
    tiny.make_model,
    functools.partial(tiny.make_model, backbone="rotary"),
    functools.partial(tiny.make_bert, pooler=True),
  ],
)
def test_a_temperature_divides_the_logits_and_can_be_folded(make):
  plain, hot, batch = make(), make(temperature=3.0), tiny.make_batch(0)
  positions = jnp.ones((tiny.B, 2), jnp.int32)
  params = tiny.random_params(hot)

  def compute(model, params):
    bound = model.bind({"params": params})
    return bound.generate_logits(batch, positions, None)

  expected = compute(plain, params) / 3
  for logits in (
    compute(hot, params),
    compute(plain, pretrain.fold_temperature(params, hot)),
  ):
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)


def test_initial_weights_are_cut_at_two_deviations():
  kernel = tiny_params()["discriminator"]["layer_0"]["query"]["kernel"]
  assert np.abs(kernel).max() <= 0.04
  assert np.std(kernel) == pytest.approx(0.0176, rel=0.1)  # not rescaled
  table = tiny_params()["embeddings"]["word"]
  assert np.std(table) == pytest.approx(0.0176, rel=0.1)


@pytest.mark.parametrize(
  ("variant", "between"), [("small", " "), ("minilm", ","), ("large", ", ")]
)
def test_a_list_of_sizes_equals_the_variant_of_these_sizes(variant, between):
  fields = encoder.VARIANTS[variant]
  size_list = between.join(f"{name}={x}" for name, x in fields.items())
  make = functools.partial(
    pretrain.make_electra, vocab_size=100, generator_multiplier=0.5
  )
  assert make(variant=size_list) == make(variant=variant)
  typed = make(variant=f"type_vocab_size=3{between}{size_list}")
  assert pretrain.param_shapes(typed)["embeddings"]["type"].shape[0] == 3


SIZES = dict(embedding_size=8, width=12, layers=1, heads=3, ffn=7)


def make_size_list(**changed):
  return " ".join(f"{k}={x}" for k, x in {**SIZES, **changed}.items() if x)


@pytest.mark.parametrize(
  ("variant", "match"),
  [
    (
      make_size_list(depth=3),
      "depth=3. Choose tiny.*embedding_size=.*type_vocab_size=",
    ),
    (make_size_list(heads=None, ffn=None), "no heads, no ffn"),
    (make_size_list() + " ffn=7", "ffn twice"),
    (make_size_list(layers="two"), "layers=two"),
    (make_size_list(layers="0"), "layers=0"),
    (make_size_list(width="-4"), "width=-4"),
    (make_size_list(width="4.5"), "width=4.5"),
    (make_size_list(width="1" * 5_000), "width=111"),
    (make_size_list(heads=5), "5 heads do not divide a width of 12"),
    ("smal", "'smal' is unknown"),
    ("small width=4", "small, no embedding_size"),
  ],
)
@pytest.mark.parametrize("name", ["model.variant", "generator.variant"])
def test_an_invalid_variant_is_an_error_with_its_key(name, variant, match):
  network, _ = name.split(".")
  argument = "variant" if network == "model" else "generator_variant"
  variants = dict.fromkeys(("variant", "generator_variant"), make_size_list())
  variants[argument] = variant
  network_or_key = network if "divide" in match else name
  with pytest.raises(InputError, match=f"^{network_or_key}.*{match}"):
    pretrain.make_electra(vocab_size=9, generator_multiplier=1, **variants)


def test_a_generator_can_have_its_own_sizes():
  model = pretrain.make_electra(
    vocab_size=9,
    variant=make_size_list(type_vocab_size=3),
    generator_multiplier=0.25,
    generator_variant=make_size_list(width=10, heads=5, layers=2),
  )
  g = model.generator_config
  assert (g.width, g.heads, g.layers, g.ffn) == (10, 5, 2, 7)
  assert g.type_vocab_size == 3  # that of the shared embeddings
  pretrain.param_shapes(model)


@pytest.mark.parametrize("name", ["embedding_size", "type_vocab_size"])
def test_embeddings_of_another_size_are_an_error(name):
  with pytest.raises(InputError, match=f"generator.variant=.* {name}=5"):
    pretrain.make_electra(
      vocab_size=9,
      variant=make_size_list(),
      generator_multiplier=0.5,
      generator_variant=make_size_list(**{name: 5}),
    )


def test_an_unknown_variant_or_backbone_is_an_error():
  make = functools.partial(
    pretrain.make_electra, vocab_size=9, generator_multiplier=0.5
  )
  with pytest.raises(InputError, match="'smal' is unknown.*small"):
    make(variant="smal")
  with pytest.raises(InputError, match="backbone='resnet' is unknown"):
    make(variant="tiny", backbone="resnet")
  with pytest.raises(InputError, match="3 heads do not divide"):
    make(variant="tiny", heads=3)
  with pytest.raises(InputError, match="backbone='heads' is not a backbone"):
    make(variant="tiny", backbone="heads")  # another module of models/


def test_vocabulary_logits_are_products_with_the_word_table_and_a_bias():
  rng = np.random.default_rng(0)
  shapes = (2, 3, 4), (7, 4), (7,)
  vectors, word, bias = (rng.normal(size=n).astype("f4") for n in shapes)
  np.testing.assert_allclose(
    heads.vocabulary_logits(vectors, jnp.asarray(word), jnp.asarray(bias)),
    vectors @ word.T + bias,
    rtol=1e-5,
    atol=1e-6,
  )
