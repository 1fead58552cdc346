"""Names, shapes, configs and tokenizer files of exported models."""

import json

import jax
import numpy as np
import pytest
from flax import traverse_util

from support import tiny
from support.weight_files import random_params
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import hf_config, hf_folder, hf_names

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "mute", "swan", "##s", ",", "uber", "Über", "Swan", "über"]
WORDS += ["天"]


def _tokenizer(*, lowercase=True, specials_last=False):
  words = WORDS + [f"w{i}" for i in range(tiny.V - len(WORDS) - len(SPECIALS))]
  vocab = words + SPECIALS[::-1] if specials_last else SPECIALS + words
  return make_tokenizer(vocab, lowercase=lowercase)


def _pair(**fields):
  model = tiny.make_model(**fields)
  return model, random_params(model)


def _bert(**fields):
  model = pretrain.make_bert(vocab_size=tiny.V, variant="tiny", **fields)
  return model, random_params(model)


MODELS = {
  "discriminator": _pair,
  "generator": _pair,
  "bert": _bert,
  "pooled": lambda **fields: _bert(pooler=True, **fields),
  "modern": lambda **fields: _bert(backbone="modern", **fields),
}


def _role(name):
  return "bert" if name in ("pooled", "modern") else name


def _make_released(role, variant, *, pooler=False):
  if role == "bert":
    return pretrain.make_bert(vocab_size=30_522, variant=variant, pooler=pooler)
  return pretrain.make_electra(
    vocab_size=30_522,
    variant=variant,
    generator_multiplier=1 / 3 if variant == "base" else 1 / 4,
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("variant", "role", "pooler", "tensors", "parameters"),
  [
    ("small", "discriminator", False, 203, 13_549_057),
    ("small", "generator", False, 204, 4_620_026),
    ("base", "discriminator", False, 201, 109_483_009),
    ("base", "generator", False, 204, 33_740_602),
    ("base", "bert", True, 206, 110_106_428),
    ("large", "bert", True, 398, 336_226_108),
  ],
)
def test_released_sizes_have_as_many_tensors_and_parameters_as_the_files(
  variant, role, pooler, tensors, parameters
):
  model = _make_released(role, variant, pooler=pooler)
  shapes = jax.eval_shape(
    lambda: pretrain.init_params(model, jax.random.key(0))
  )
  names = hf_names.name_table(model, role)
  assert len(names) == tensors
  selected = pretrain.select_params(shapes, role)
  assert set(names) == set(traverse_util.flatten_dict(selected, sep="/"))
  assert pretrain.count_parameters(selected) == parameters


SHARED_FIELDS = {
  "vocab_size": 99,
  "max_position_embeddings": 128,
  "hidden_dropout_prob": 0.2,
  "attention_probs_dropout_prob": 0.3,
  "layer_norm_eps": 1e-12,
  "pad_token_id": 7,
}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
FIELDS = {  # role -> class, family and SIZES
  "generator": ("ElectraForMaskedLM", "electra", 256, 12, 4),
  "bert": ("BertForMaskedLM", "bert", 768, 12, 12),
}
# Fields of transformers without a meaning for an encoder.
UNUSED_FIELDS = {
  "transformers_version",
  "position_embedding_type",  # only in transformers 4.57, as "absolute"
  "use_cache",
  "is_decoder",
  "add_cross_attention",
  "bos_token_id",
  "eos_token_id",
}


@pytest.mark.parametrize("role", FIELDS)
def test_config_is_complete(role):
  import transformers

  sizes = dict(vocab_size=99, variant="base", max_positions=128)
  rates = dict(dropout=0.2, attention_dropout=0.3)
  if role == "bert":
    model = pretrain.make_bert(**sizes, **rates)
  else:
    model = pretrain.make_electra(generator_multiplier=1 / 3, **sizes, **rates)
  written = hf_folder.model_config(model, role, pad=7)
  architecture, family, *sizes = FIELDS[role]
  expected = dict(zip(SIZES, sizes, strict=True)) | {"model_type": family}
  assert (SHARED_FIELDS | expected).items() <= written.items()
  assert written["architectures"] == [architecture]
  assert written["intermediate_size"] == 4 * written["hidden_size"]
  default = transformers.AutoConfig.for_model(family)
  fields = json.loads(default.to_json_string())
  assert set(fields) - UNUSED_FIELDS <= set(written)
  assert written.get("embedding_size") == (None if role == "bert" else 768)


@pytest.mark.parametrize("family", ["electra", "bert"])
def test_missing_fields_get_the_defaults_of_transformers(tmp_path, family):
  import transformers

  path = tmp_path / "config.json"
  path.write_text(json.dumps({"model_type": family, "vocab_size": 99}))
  fields = hf_config.read_fields(path)
  defaults = transformers.AutoConfig.for_model(family).to_dict()
  assert fields.pop("vocab_size") == 99
  for name in fields.keys() - {"position_embedding_type", "is_decoder"}:
    assert fields[name] == defaults[name], name
  assert {"hidden_size", "num_attention_heads", "hidden_act"} <= fields.keys()
  for rate in (1.5, -0.1, "0.1", None, True):  # a model takes its default
    odd = {**fields, "vocab_size": 99, "hidden_dropout_prob": rate}
    assert "dropout" not in hf_config.read_sizes(odd)


@pytest.mark.parametrize("name", ["generator", "bert", "modern"])
@pytest.mark.parametrize("specials_last", [False, True])
@pytest.mark.parametrize("lowercase", [False, True])
def test_transformers_tokenizes_like_our_tokenizer(
  tmp_path, lowercase, specials_last, name
):
  from transformers import AutoTokenizer

  ours = _tokenizer(lowercase=lowercase, specials_last=specials_last)
  model, params = MODELS[name](max_positions=48)
  hf_folder.write_model(tmp_path, params, model, _role(name), ours)
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
  types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
  assert pair.get("token_type_ids") == (None if name == "modern" else types)
  assert ours.special_ids == (
    theirs.pad_token_id,
    theirs.unk_token_id,
    theirs.cls_token_id,
    theirs.sep_token_id,
    theirs.mask_token_id,
  )
  assert theirs.model_max_length == 48
  assert len(theirs) == tiny.V  # transformers added no tokens


def test_a_vocabulary_of_another_size_is_refused(tmp_path):
  model, params = _pair()
  tokenizer = make_tokenizer(SPECIALS + WORDS, lowercase=True)
  with pytest.raises(InputError, match="15 entries, but the model has 70"):
    hf_folder.write_model(tmp_path, params, model, "generator", tokenizer)


def test_a_backbone_without_counterpart_is_refused(tmp_path, monkeypatch):
  model = tiny.make_model(backbone="modern")
  assert not hf_names.unsupported_reason(model)
  monkeypatch.delitem(hf_names.BACKBONES, "modern")
  assert hf_names.unsupported_reason(model)
  assert not hf_names.unsupported_reason(tiny.make_model())
  params = random_params(model)
  with pytest.raises(InputError, match="backbone='modern'"):
    hf_folder.write_model(tmp_path, params, model, "generator", _tokenizer())
  assert not list(tmp_path.iterdir())


def test_parameters_unknown_to_transformers_are_refused():
  model, params = _pair()
  params["generator"]["layer_0"]["gate"] = {"kernel": np.zeros((2, 2))}
  with pytest.raises(InputError, match="generator/layer_0/gate/kernel"):
    hf_names.to_huggingface(params, model, "generator")
  _, params = _pair()
  params["adapter"] = {"kernel": np.zeros((2, 2))}
  with pytest.raises(InputError, match="adapter/kernel"):
    hf_names.to_huggingface(params, model, "generator")
  model, _ = _bert()
  _, params = _bert(pooler=True)
  with pytest.raises(InputError, match="pooled/pooler/kernel"):
    hf_names.to_huggingface(params, model, "bert")
