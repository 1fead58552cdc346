"""Names, shapes, configs and tokenizer files of the exported models."""

import json
import struct

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import tiny
from truenegs_jax import huggingface
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.errors import InputError
from truenegs_jax.models import pretrain

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
  "the",
  "mute",
  "swan",
  "##s",
  ",",
  "uber",
  "Über",
  "Swan",
  "über",
  "天",
]


def _tokenizer(*, lowercase=True, specials_last=False):
  words = WORDS + [f"w{i}" for i in range(tiny.V - len(WORDS) - len(SPECIALS))]
  # In another order than BERT's, too.
  vocab = words + SPECIALS[::-1] if specials_last else SPECIALS + words
  return make_tokenizer(vocab, lowercase=lowercase)


def _pair(**fields):
  model = tiny.make_model(**fields)
  shapes = jax.eval_shape(
    lambda: pretrain.init_params(model, jax.random.key(0))
  )
  rng = np.random.default_rng(0)
  return model, jax.tree.map(
    lambda x: rng.normal(size=x.shape).astype(np.float32), shapes
  )


@pytest.mark.parametrize(
  ("variant", "multiplier", "role", "count"),
  [
    ("small", 1 / 4, "discriminator", 203),
    ("small", 1 / 4, "generator", 204),
    ("base", 1 / 3, "discriminator", 201),
    ("base", 1 / 3, "generator", 204),
  ],
)
def test_released_sizes_have_as_many_tensors_as_their_files(
  variant, multiplier, role, count
):
  model = pretrain.make_pair(
    vocab_size=30_522, variant=variant, generator_multiplier=multiplier
  )
  config = huggingface.network_config(model, role)
  assert len(huggingface.name_table(role, config)) == count


def test_every_tensor_has_its_own_name():
  model, _ = _pair()
  for role in huggingface.ARCHITECTURES:
    config = huggingface.network_config(model, role)
    names = huggingface.name_table(role, config)
    assert len(set(names.values())) == len(names)


@pytest.mark.parametrize("role", huggingface.ARCHITECTURES)
@pytest.mark.parametrize("fields", [dict(), dict(embedding_size=32)])
def test_round_trip_gives_the_same_parameters(role, fields):
  model, params = _pair(**fields)
  config = huggingface.network_config(model, role)
  tensors = huggingface.to_huggingface(params, role, config)
  back = huggingface.from_huggingface(tensors, role, config)
  assert set(back) == {"embeddings", role, f"{role}_head"}
  jax.tree.map(
    np.testing.assert_array_equal, back, {name: params[name] for name in back}
  )


def test_linear_weights_are_out_by_in_on_disk(tmp_path):
  model, params = _pair()
  huggingface.write_model(
    tmp_path,
    "discriminator",
    params,
    model.discriminator_config,
    _tokenizer(),
  )
  tensors = safetensors.numpy.load_file(tmp_path / "model.safetensors")
  layer = params["discriminator"]["layer_1"]
  for ours, theirs in {
    "query": "attention.self.query",  # square: a wrong shape would not show
    "ffn_input": "intermediate.dense",
  }.items():
    np.testing.assert_array_equal(
      tensors[f"electra.encoder.layer.1.{theirs}.weight"],
      layer[ours]["kernel"].T,
    )
  np.testing.assert_array_equal(
    tensors["electra.embeddings.word_embeddings.weight"],
    params["embeddings"]["word"],
  )


def test_generator_file_has_the_output_bias_and_no_second_word_table(tmp_path):
  model, params = _pair()
  huggingface.write_model(
    tmp_path, "generator", params, model.generator_config, _tokenizer()
  )
  with safetensors.safe_open(tmp_path / "model.safetensors", "numpy") as file:
    assert file.metadata() == {"format": "pt"}
    names = set(file.keys())
    bias_V = file.get_tensor("generator_lm_head.bias")
  assert "generator_lm_head.weight" not in names
  np.testing.assert_array_equal(bias_V, params["generator_head"]["bias"])


@pytest.mark.parametrize(
  ("dtype", "stored"), [("float32", "F32"), ("bfloat16", "BF16")]
)
def test_dtype_is_that_of_weights_and_config(tmp_path, dtype, stored):
  model, params = _pair()
  huggingface.write_model(
    tmp_path,
    "generator",
    params,
    model.generator_config,
    _tokenizer(),
    dtype=dtype,
  )
  content = (tmp_path / "model.safetensors").read_bytes()
  (length,) = struct.unpack("<Q", content[:8])
  header = json.loads(content[8 : 8 + length])
  del header["__metadata__"]
  assert {entry["dtype"] for entry in header.values()} == {stored}
  config = json.loads((tmp_path / "config.json").read_text())
  assert config["dtype"] == dtype


def test_config_leaves_nothing_to_defaults_which_are_those_of_small():
  from transformers import ElectraConfig

  model = pretrain.make_pair(
    vocab_size=99,
    variant="base",
    generator_multiplier=1 / 3,
    max_positions=128,
    dropout=0.2,
    attention_dropout=0.3,
  )
  written = huggingface.model_config("generator", model.generator_config, pad=7)
  expected = {
    "architectures": ["ElectraForMaskedLM"],
    "model_type": "electra",
    "vocab_size": 99,
    "embedding_size": 768,
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "max_position_embeddings": 128,
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 7,
    "tie_word_embeddings": True,
  }
  assert expected.items() <= written.items()
  # What of these is not written has no meaning for an encoder.
  unused = {
    "transformers_version",
    "position_embedding_type",  # 4.57 alone has it, as "absolute"
    "use_cache",
    "is_decoder",
    "add_cross_attention",
    "bos_token_id",
    "eos_token_id",
  }
  fields = json.loads(ElectraConfig().to_json_string())
  assert "embedding_size" in fields
  assert set(fields) - unused <= set(written)


@pytest.mark.parametrize("specials_last", [False, True])
@pytest.mark.parametrize("lowercase", [False, True])
def test_transformers_tokenizes_as_we_do(tmp_path, lowercase, specials_last):
  from transformers import AutoTokenizer

  ours = _tokenizer(lowercase=lowercase, specials_last=specials_last)
  model, params = _pair(max_positions=48)
  huggingface.write_model(
    tmp_path, "generator", params, model.generator_config, ours
  )
  theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
  texts = [
    "The mute Swans, über alles",
    "ÜBER über\u0301  uber\tSwan\u00a0w3 w33",
    "天swan the\u0000 天天 " + "w" * 101,
    "",
  ]
  bare = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
  assert bare == ours.encode_lines(texts)
  assert len({tuple(ids) for ids in bare}) == len(texts)

  a, b = ours.encode_lines(["the swan", "mute"])
  pair = theirs("the swan", "mute")
  assert pair["input_ids"] == [ours.cls, *a, ours.sep, *b, ours.sep]
  assert pair["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
  assert ours.special_ids == (
    theirs.pad_token_id,
    theirs.unk_token_id,
    theirs.cls_token_id,
    theirs.sep_token_id,
    theirs.mask_token_id,
  )
  assert theirs.model_max_length == 48
  assert len(theirs) == tiny.V  # nothing was added


def test_another_vocabulary_than_the_models_is_refused(tmp_path):
  model, params = _pair()
  tokenizer = make_tokenizer(SPECIALS + WORDS, lowercase=True)
  with pytest.raises(InputError, match="15 entries, the model 70"):
    huggingface.write_model(
      tmp_path, "generator", params, model.generator_config, tokenizer
    )


def test_parameters_without_a_name_are_refused():
  model, params = _pair()
  params["generator"]["layer_0"]["gate"] = {"kernel": np.zeros((2, 2))}
  with pytest.raises(InputError, match="generator/layer_0/gate/kernel"):
    huggingface.to_huggingface(params, "generator", model.generator_config)
  _, params = _pair()
  params["adapter"] = {"kernel": np.zeros((2, 2))}
  with pytest.raises(InputError, match="adapter/kernel"):
    huggingface.to_huggingface(params, "generator", model.generator_config)


def test_a_missing_tensor_is_refused():
  model, params = _pair()
  config = model.generator_config
  tensors = huggingface.to_huggingface(params, "generator", config)
  del tensors["generator_lm_head.bias"]
  with pytest.raises(InputError, match="missing: generator_lm_head.bias"):
    huggingface.from_huggingface(tensors, "generator", config)
