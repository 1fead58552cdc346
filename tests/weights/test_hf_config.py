"""Names, fields of config.json and tokenizer files of exports."""

import json

import numpy as np
import pytest

from support import tiny
from support.weight_files import (
  random_params,
  read_tensors,
  run_export,
  write_export,
)
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.weights import export_model, hf_config, hf_names

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "mute", "swan", "##s", ",", "uber", "Über", "Swan", "über"]
WORDS += ["天"]
WORDS += [f"w{i}" for i in range(tiny.V - len(WORDS) - len(SPECIALS))]


@pytest.mark.parametrize(
  ("name", "lowercase", "specials_last"),
  [
    ("generator", True, False),
    ("bert", True, True),
    ("bert", False, False),
    ("modern", True, False),
    ("modern", False, True),
  ],
)
def test_transformers_tokenizes_like_our_tokenizer(
  tmp_path, lowercase, specials_last, name
):
  from transformers import AutoTokenizer

  vocab = WORDS + SPECIALS[::-1] if specials_last else SPECIALS + WORDS
  ours = make_tokenizer(vocab, lowercase=lowercase)
  model = tiny.make_model(max_positions=48)
  role = "generator"
  if name != "generator":
    backbone = "modern" if name == "modern" else "encoder"
    model = tiny.make_bert(max_positions=48, backbone=backbone)
    role = "bert"
  params = random_params(model)
  export_model.write_model(tmp_path, params, model, role, ours)
  theirs = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
  texts = [
    "The mute Swans, über alles",
    "ÜBER über\u0301  uber\tSwan\u00a0w3 w33",
    "天swan the\u0000 天天 " + "w" * 101,
    "",
  ]
  bare = [theirs(text, add_special_tokens=False)["input_ids"] for text in texts]
  assert bare == ours.encode_lines(texts)
  a, b = ours.encode_lines(["the swan", "mute"])
  pair = theirs("the swan", "mute")
  assert pair["input_ids"] == [ours.cls, *a, ours.sep, *b, ours.sep]
  types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
  assert pair.get("token_type_ids") == (None if name == "modern" else types)
  names = ("pad", "unk", "cls", "sep", "mask")
  ids = tuple(getattr(theirs, f"{name}_token_id") for name in names)
  assert ours.special_ids == ids
  assert theirs.model_max_length == 48
  assert len(theirs) == tiny.V  # transformers added no tokens


ADDED = {"newword": tiny.V, "<url>": tiny.V + 1}
FLAGS = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
DECODER = {
  str(i): {"content": name, "special": False, **FLAGS}
  for name, i in {"[PAD]": 0, **ADDED}.items()
}


@pytest.mark.parametrize(
  ("file", "content"),
  [
    ("added_tokens.json", ADDED),
    ("tokenizer_config.json", {"added_tokens_decoder": DECODER}),
  ],
)
def test_tokens_that_users_added_keep_their_rows(
  tmp_path, monkeypatch, file, content
):
  monkeypatch.setattr(export_model, "compare_logits", lambda *args: "")
  transformers = pytest.importorskip("transformers")
  model = pretrain.make_bert(vocab_size=tiny.V + 2, variant="tiny")
  plain = [*SPECIALS, "the", "##s", *(f"w{i}" for i in range(tiny.V - 7))]
  long = make_tokenizer([*plain, *ADDED], lowercase=True)
  folder = write_export(tmp_path / "in", model, tokenizer=long) / "bert"
  (folder / "vocab.txt").write_text("\n".join([*plain, ""]))
  (folder / "tokenizer_config.json").unlink()
  (folder / file).write_text(json.dumps(content))
  code, output = run_export(folder, f"--output={tmp_path / 'out'}")
  assert code == 0, output
  exported = tmp_path / "out" / "bert"
  written = read_tensors(exported)
  for name, x in read_tensors(folder).items():
    np.testing.assert_array_equal(written[name], x)
  ours = load_tokenizer(str(folder), lowercase=True)
  assert ours.vocab == (*plain, *ADDED)
  text = "The newword w11 <url>s"
  expected = ours.encode(text)
  assert [i for i in expected if i >= tiny.V] == [tiny.V, tiny.V + 1]
  for path in (folder, exported):
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    assert theirs(text, add_special_tokens=False)["input_ids"] == expected


@pytest.mark.parametrize("family", ["electra", "bert"])
def test_a_config_is_complete_and_missing_fields_have_their_defaults(family):
  import transformers

  defaults = transformers.AutoConfig.for_model(family).to_dict()
  saved = {"model_type": family, "vocab_size": 99}
  fields = hf_config.complete_fields(saved, None)
  unwritten = {"position_embedding_type", "is_decoder"}
  for name in fields.keys() - {"vocab_size", *unwritten}:
    assert fields[name] == defaults[name], name
  assert {"hidden_size", "num_attention_heads", "hidden_act"} <= fields.keys()
  sizes = hf_config.read_sizes(fields)
  for rate in (1.5, "0.1", None, True):  # a model takes its default
    odd = {**fields, "hidden_dropout_prob": rate}
    assert "dropout" not in hf_config.read_sizes(odd)
  make = tiny.make_bert if family == "bert" else tiny.make_model
  model = make(**{x: sizes[x] for x in ("max_positions", "dropout", "layers")})
  role = "bert" if family == "bert" else "generator"
  written = hf_config.make_fields(model, role, pad=7)
  assert written["architectures"] == [hf_names.NETWORKS[role].architecture]
  assert written["pad_token_id"] == 7 and written["layer_norm_eps"] == 1e-12
  assert fields.keys() - unwritten <= written.keys()
