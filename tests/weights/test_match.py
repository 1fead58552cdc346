"""Weights that fit a model, that are left out, and that are refused."""

import dataclasses

import numpy as np
import pytest
import transformers

from support import tiny
from support.tokenizer_files import write_vocabulary
from support.weight_files import (
  TOKENIZER,
  assert_same_tree,
  edit_config,
  edit_tensors,
  load_params,
  random_params,
  write_export,
)
from truenegs_jax.configs import finetune_own
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.finetune.start import resolve
from truenegs_jax.finetune.task_data import parse_options
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task as task_lib

WORDS = "bert.embeddings.word_embeddings.weight"
QUERY = "bert.encoder.layer.{}.attention.self.query"
ZEROS = np.zeros((32, 32), np.float32)
# Case -> changed tensors, changed fields of config.json, words of the message.
MISFITS = {
  "arrays": (
    {
      f"{QUERY.format(0)}.bias": None,
      f"{QUERY.format(1)}.weight": ZEROS[:, :16],
      f"{QUERY.format(2)}.weight": ZEROS,
    },
    {},
    (
      f"{QUERY.format(1)}.weight is (32, 16), the model's is (32, 32)",
      f"{QUERY.format(2)}.weight (32, 32) is not in the model",
      f"{QUERY.format(0)}.bias is missing, the model's is (32,)",
    ),
  ),
  "long list": (
    {f"bert.x{i}": np.zeros(1, np.float32) for i in range(500)},
    {"hidden_size": 16},
    ("hidden_size is 16", "and 493 more", "--config.model.variant=init"),
  ),
  "type": ({WORDS: np.zeros((tiny.V, 32), int)}, {}, (f"{WORDS} of", "2,240")),
  "two names": (
    {"bert.embeddings.LayerNorm.gamma": np.ones(32, np.float32)},
    {},
    ("two names of one array",),
  ),
  "incomplete head": (
    {"cls.predictions.transform.dense.weight": None},
    {},
    ("transform.dense.weight is missing",),
  ),
  "not finite": (
    {"cls.predictions.bias": np.full(tiny.V, np.nan, np.float32)},
    {},
    ("cls.predictions.bias of", f"holds {tiny.V} values"),
  ),
}
FIELDS = [  # no shape of an array depends on these
  ("num_attention_heads", None, "attention_heads is 12, the model's is 2"),
  ("hidden_act", "gelu_new", "'gelu_new', the model's is 'gelu'"),
  ("layer_norm_eps", 1e-6, "layer_norm_eps is 1e-06"),
  ("position_embedding_type", "relative_key", "the model's is 'absolute'"),
  ("tie_word_embeddings", False, "tie_word_embeddings is False"),
  ("model_type", "electra", "weights of BERT"),
  ("num_hidden_layers", 10**6, "has 1,000,000 layers"),
  ("num_hidden_layers", 10**9, "not a valid size"),
]
MISFITS |= {f"{k}={x}": ({}, {k: x}, (words,)) for k, x, words in FIELDS}


def _bert(**fields):
  return tiny.make_bert(**{"max_positions": 64, **fields})


def assert_refused(init, model, *words, **kwargs):
  """Asserts that loading fails with a message that contains the words."""
  with pytest.raises(InputError, match="^init: ") as caught:
    load_params(init, model, **kwargs)
  for word in words:
    assert word in str(caught.value)


@pytest.fixture
def bert(tmp_path):
  """The folder of a BERT with the parameters `random_params(_bert())`."""
  return write_export(tmp_path, _bert()) / "bert"


@pytest.mark.parametrize("case", MISFITS)
def test_weights_that_do_not_fit_are_refused(bert, case):
  tensors, fields, words = MISFITS[case]
  if tensors:
    edit_tensors(bert, tensors)
  edit_config(bert, fields)
  assert_refused(bert, _bert(), *words)


@pytest.mark.parametrize(
  ("name", "role"),
  [
    ("cls.predictions.decoder.weight", "bert"),
    ("generator_lm_head.weight", "generator"),
  ],
)
def test_a_tied_array_may_be_stored_twice(tmp_path, name, role):
  model = _bert() if role == "bert" else tiny.make_model(max_positions=64)
  params = random_params(model)
  write_export(tmp_path, model)
  edit_tensors(tmp_path / role, {name: params["embeddings"]["word"]})
  loaded, lines = load_params(tmp_path, model)
  assert_same_tree(loaded, params)
  assert not lines
  other = params["embeddings"]["word"] + np.float32(0.125)
  edit_tensors(tmp_path / role, {name: other})
  assert_refused(tmp_path, model, f"{name} differs from", "init_skip=head")
  edit_tensors(tmp_path / role, {name: other[1:]})
  assert_refused(tmp_path, model, f"{name} differs from")
  load_params(tmp_path, model, skip="head")


def test_outputs_of_their_own_do_not_matter_without_the_head(bert):
  edit_config(bert, {"tie_word_embeddings": False})
  loaded, _ = load_params(bert, _bert(), skip="head")
  assert_same_tree(loaded["bert"], random_params(_bert())["bert"])


def test_what_the_model_lacks_is_left_out_and_said(tmp_path):
  params = random_params(_bert(pooler=True))
  folder = write_export(tmp_path, _bert(pooler=True), params) / "bert"
  loaded, lines = load_params(tmp_path, _bert())
  for name, x in loaded.items():
    assert_same_tree(x, params[name])
  assert lines == [
    f"init: left out what this model lacks of '{folder}': bert.pooler, cls."
  ]


def test_weights_with_another_vocabulary_are_refused(bert):
  vocab = list(TOKENIZER.vocab)
  vocab[7], vocab[8] = vocab[8], vocab[7]
  other = make_tokenizer(vocab, lowercase=True)
  words = "--config.data.vocab=", "config.init_skip=words", "vocab.txt"
  assert_refused(bert, _bert(), *words, tokenizer=other)
  (bert / "vocab.txt").unlink()
  assert_refused(bert, _bert(), "no vocabulary file. Copy")


def test_case_and_accents_must_be_those_of_the_weights(bert):
  vocab = [*TOKENIZER.vocab[:-1], "Berlin"]
  cased, uncased = (make_tokenizer(vocab, lowercase=x) for x in (False, True))
  accents = make_tokenizer(vocab, lowercase=True, strip_accents=False)
  write_vocabulary(vocab, bert / "vocab.txt")
  assert_refused(bert, _bert(), "config.data.lowercase=True", tokenizer=cased)
  assert_refused(bert, _bert(), "data.accents=strip.", tokenizer=accents)
  # Without a tokenizer config, capitals in the vocabulary decide.
  (bert / "tokenizer_config.json").unlink()
  flag = "config.data.lowercase=False"
  assert_refused(bert, _bert(), flag, tokenizer=uncased)
  load_params(bert, _bert(), tokenizer=cased)
  # A tokenizer.json says it, too.
  names = {name: i for i, name in enumerate(vocab)}
  bert_tokenizer = transformers.BertTokenizer(names, do_lower_case=False)
  bert_tokenizer.backend_tokenizer.save(str(bert / "tokenizer.json"))
  (bert / "vocab.txt").unlink()
  load_params(bert, _bert(), tokenizer=cased)
  assert_refused(bert, _bert(), flag, tokenizer=uncased)


@pytest.mark.parametrize("types", [1, 2])
def test_pairs_of_texts_need_two_token_types(tmp_path, types):
  model = tiny.make_bert(max_positions=128, type_vocab_size=types)
  c = finetune_own.get_config()
  c.init = str(write_export(tmp_path, model) / "bert")
  c.length = 64
  opened = resolve(parse_options(c.to_dict()), str)
  pairs = task_lib.define_own_task(text="a,b", label="label", kind="classes")
  pairs = dataclasses.replace(pairs, labels=("a", "b"))
  assert opened.match_task(dataclasses.replace(pairs, columns=("a",)))
  for task in (pairs, task_lib.TASKS["squad"]):
    if types == 2:
      assert opened.match_task(task)
    else:
      with pytest.raises(InputError, match="one token type, but .* has pairs"):
        opened.match_task(task)
