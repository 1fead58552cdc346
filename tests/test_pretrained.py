"""Weights to start from: what is read, carried along, and refused."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import tiny
from truenegs_jax import export, huggingface, model_card, pretrained
from truenegs_jax.configs import bert_base
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.errors import InputError
from truenegs_jax.models import pretrain
from truenegs_jax.train import build, step

TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  + [f"w{i}" for i in range(5, tiny.V)],
  lowercase=True,
)
load_params = functools.partial(pretrained.load_params, vocab=TOKENIZER.vocab)
WORDS = "bert.embeddings.word_embeddings.weight"
POOLED = {
  "bert.pooler.dense.weight",
  "bert.pooler.dense.bias",
  "cls.seq_relationship.weight",
  "cls.seq_relationship.bias",
}


def _bert(**fields):
  return pretrain.make_bert(
    vocab_size=tiny.V, variant="tiny", max_positions=64, **fields
  )


def _pair(**fields):
  return tiny.make_model(max_positions=64, **fields)


def _params(model, seed=0):
  shapes = jax.eval_shape(
    lambda: pretrain.init_params(model, jax.random.key(0))
  )
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda x: rng.normal(0, 0.1, x.shape).astype(np.float32), shapes
  )


def _write(folder, model, params, **kwargs):
  """A folder for each role, as an export has them."""
  for role in model.roles:
    (folder / role).mkdir(parents=True)
    huggingface.write_model(
      folder / role, params, model, role, TOKENIZER, **kwargs
    )
  return folder


def _edit(folder, **changed):
  """Puts arrays into a folder's file, by name; None takes one out."""
  tensors = safetensors.numpy.load_file(folder / "model.safetensors")
  for name, x in changed.items():
    tensors.pop(name, None)
    if x is not None:
      tensors[name] = x
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")


def _assert_same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize(
  "make",
  [_pair, _bert, lambda: _bert(pooler=True)],
  ids=["pair", "b", "pooled"],
)
def test_what_was_written_is_read(tmp_path, make):
  model = make()
  params = _params(model)
  read = load_params(str(_write(tmp_path, model, params)), model)
  _assert_same(read, params)
  assert {x.dtype for x in jax.tree.leaves(read)} == {np.dtype(np.float32)}


def test_half_precision_is_read_as_f32(tmp_path):
  model = _pair()
  params = _params(model)
  _write(tmp_path, model, params, dtype="bfloat16")
  read = load_params(str(tmp_path), model)
  _assert_same(
    read,
    jax.tree.map(lambda x: np.float32(jnp.asarray(x, jnp.bfloat16)), params),
  )


def test_bert_is_read_from_a_folder_of_its_own_too(tmp_path):
  model = _bert()
  params = _params(model)
  _write(tmp_path, model, params)
  _assert_same(load_params(str(tmp_path / "bert"), model), params)


def _transformers_bert(folder, architecture):
  """A random BERT of our tiny size, saved by transformers itself."""
  torch = pytest.importorskip("torch")
  import transformers

  config = transformers.BertConfig(
    **huggingface.model_config(_bert(pooler=True), "bert", pad=0)
  )
  torch.manual_seed(0)
  network = getattr(transformers, architecture)(config)
  if architecture == "BertForPreTraining":
    with torch.no_grad():
      network.cls.seq_relationship.bias[0] = -0.0  # a sum would lose the sign
      network.bert.pooler.dense.bias += 0.1
  network.save_pretrained(folder)
  return safetensors.numpy.load_file(folder / "model.safetensors")


def test_pooler_and_next_sentence_survive_training_to_the_last_bit(tmp_path):
  before = _transformers_bert(tmp_path / "in", "BertForPreTraining")
  assert POOLED <= set(before)
  c = bert_base.get_config("runlocal,hc+sr")
  c.model.pooler, c.model.max_positions = True, 64
  c.optim.weight_decay = 0.5
  run = build.build_run(c, TOKENIZER)
  params = load_params(str(tmp_path / "in"), run.model)
  state = jax.jit(lambda: run.init_state(0))()
  state = step.TrainState(**(vars(state) | {"params": params}))
  train_step = jax.jit(
    step.make_train_step(
      run.objective(train=True), run.weights, run.tx, num_microbatches=1
    )
  )
  for i in range(4):
    batch = jax.tree.map(jnp.array, tiny.make_batch(i))
    state, _ = train_step(state, batch, tiny.make_aux())
  export.export_model(
    state.params,
    run.model,
    TOKENIZER,
    tmp_path / "out",
    about=model_card.About(json.loads(c.to_json()), 4),
  )
  after = safetensors.numpy.load_file(
    tmp_path / "out" / "bert" / "model.safetensors"
  )
  assert set(after) == set(before)
  for name, x in before.items():
    same = after[name].tobytes() == x.tobytes()
    assert same == (name in POOLED), name


def test_a_pooler_that_the_model_lacks_is_left_out_and_that_is_said(tmp_path):
  tensors = _transformers_bert(tmp_path, "BertForPreTraining")
  said = []
  params = load_params(str(tmp_path), _bert(), say=said.append)
  assert set(params) == {"embeddings", "bert", "bert_head"}
  np.testing.assert_array_equal(params["embeddings"]["word"], tensors[WORDS])
  (line,) = said
  assert all(name in line for name in POOLED)
  assert "--config.model.pooler=True" in line


def test_a_masked_language_model_of_transformers_is_read(tmp_path, capsys):
  tensors = _transformers_bert(tmp_path, "BertForMaskedLM")
  params = load_params(str(tmp_path), _bert())
  for name, ours in (
    (WORDS, params["embeddings"]["word"]),
    (
      "bert.encoder.layer.1.intermediate.dense.weight",
      params["bert"]["layer_1"]["ffn_input"]["kernel"].T,
    ),
    (
      "cls.predictions.transform.LayerNorm.bias",
      params["bert_head"]["norm"]["bias"],
    ),
  ):
    np.testing.assert_array_equal(tensors[name], ours)
  assert not capsys.readouterr().out


def test_a_pooler_that_the_file_lacks_is_missing(tmp_path):
  _write(tmp_path, _bert(), _params(_bert()))
  with pytest.raises(InputError) as e:
    load_params(str(tmp_path), _bert(pooler=True))
  for words in (
    "bert.pooler.dense.weight is missing, the model's is (32, 32)",
    "cls.seq_relationship.weight is missing, the model's is (2, 32)",
    "--config.model.pooler=False",
  ):
    assert words in str(e.value)


@functools.cache
def _bert_params():
  return _params(_bert())


@pytest.mark.parametrize(
  ("name", "role", "tied"),
  [
    ("cls.predictions.decoder.weight", "bert", ("embeddings", "word")),
    ("cls.predictions.decoder.bias", "bert", ("bert_head", "bias")),
    ("generator_lm_head.weight", "generator", ("embeddings", "word")),
  ],
)
def test_a_tied_array_may_be_there_twice_but_not_in_two_versions(
  tmp_path, name, role, tied
):
  model = _bert() if role == "bert" else _pair()
  params = _params(model)
  x = params[tied[0]][tied[1]]
  _write(tmp_path, model, params)
  _edit(tmp_path / role, **{name: x})
  _assert_same(load_params(str(tmp_path), model), params)
  changed = x.copy()
  changed[7] += 0.25
  _edit(tmp_path / role, **{name: changed})
  with pytest.raises(InputError, match=f"{name} differs from .* 0.25"):
    load_params(str(tmp_path), model)


def test_every_array_that_does_not_fit_is_listed_with_both_shapes(tmp_path):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  layer = "bert.encoder.layer.{}.attention.self.query"
  _edit(
    folder,
    **{
      f"{layer.format(0)}.bias": None,
      f"{layer.format(1)}.weight": np.zeros((32, 16), np.float32),
      f"{layer.format(2)}.weight": np.zeros((32, 32), np.float32),
      WORDS: np.zeros((71, 32), np.float32),
      "bert.embeddings.position_embeddings.weight": np.zeros((64, 32), int),
    },
  )
  with pytest.raises(InputError) as e:
    load_params(str(tmp_path), _bert())
  lines = str(e.value).partition("\nGive")[0].split("\n  ")[1:]
  assert lines == [
    "bert.embeddings.position_embeddings.weight is of type I64, not F32, F16,"
    " BF16",
    f"{WORDS} is (71, 32), the model's (70, 32)",
    f"{layer.format(1)}.weight is (32, 16), the model's (32, 32)",
    f"{layer.format(2)}.weight (32, 32) is not in the model",
    f"{layer.format(0)}.bias is missing, the model's is (32,)",
  ]


@pytest.mark.parametrize(
  ("field", "value", "said"),
  [
    ("num_attention_heads", 4, "num_attention_heads is 4, the model's 2"),
    ("num_attention_heads", None, "num_attention_heads is 12, the model's 2"),
    ("hidden_act", "gelu_new", "'gelu_new', the model's 'gelu'"),
    ("layer_norm_eps", 1e-6, "layer_norm_eps is 1e-06"),
    ("position_embedding_type", "relative_key", "the model's 'absolute'"),
    ("is_decoder", True, "is_decoder is True"),
    ("model_type", "electra", "'electra' model, and this run trains 'bert'"),
    ("model_type", None, "KeyError"),
  ],
)
def test_a_config_of_another_network_is_refused(tmp_path, field, value, said):
  """None of these shows in the shapes of the arrays."""
  path = _write(tmp_path, _bert(), _bert_params()) / "bert" / "config.json"
  config = json.loads(path.read_text())
  config.pop(field, None)
  path.write_text(json.dumps(config | ({field: value} if value else {})))
  with pytest.raises(InputError, match=said):
    load_params(str(tmp_path), _bert())


def test_both_networks_of_a_pair_are_checked_before_either_is_refused(tmp_path):
  _write(tmp_path, _pair(), _params(_pair()))
  with pytest.raises(InputError) as e:
    load_params(str(tmp_path), _pair(layers=1))
  assert str(e.value).count("config.json: num_hidden_layers is 2") == 2
  for role in ("discriminator", "generator"):
    assert f"{tmp_path / role} does not fit the model:\n" in str(e.value)


@pytest.mark.parametrize("name", ["norm", "position"])
def test_a_pair_that_does_not_share_its_embeddings_is_refused(tmp_path, name):
  model, params = _pair(), _params(_pair())
  _write(tmp_path, model, params)
  theirs, ours = {
    "norm": ("LayerNorm.bias", params["embeddings"]["norm"]["bias"]),
    "position": (
      "position_embeddings.weight",
      params["embeddings"]["position"],
    ),
  }[name]
  full = f"electra.embeddings.{theirs}"
  near = ours + np.float32(1e-8)  # as a sum in another order would have it
  _edit(tmp_path / "generator", **{full: near})
  _assert_same(load_params(str(tmp_path), model), params)
  far = ours.copy()
  far[..., 3] += 0.125
  _edit(tmp_path / "generator", **{full: far})
  with pytest.raises(InputError, match=f"embeddings/{name}.* 0.125"):
    load_params(str(tmp_path), model)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  bias = np.zeros(tiny.V, np.float32)
  bias[3:5] = value
  _edit(folder, **{"cls.predictions.bias": bias})
  with pytest.raises(InputError, match="cls.predictions.bias holds 2 values"):
    load_params(str(tmp_path), _bert())


def test_a_name_on_the_hub_is_answered_with_what_to_download():
  with pytest.raises(InputError) as e:
    load_params("google/electra-small-discriminator", _pair())
  assert "no folder google/electra-small-discriminator" in str(e.value)
  for role, name in (
    ("discriminator", "ElectraForPreTraining"),
    ("generator", "ElectraForMaskedLM"),
  ):
    assert f'{name}.from_pretrained("NAME")' in str(e.value)
    assert f'save_pretrained("FOLDER/{role}")' in str(e.value)
  with pytest.raises(InputError, match="BertForPreTraining.from_pretrained"):
    load_params("bert-base-uncased", _bert(pooler=True))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_the_files_is_refused(tmp_path, name):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  (folder / "pytorch_model.bin").write_bytes(b"never unpickled")
  (folder / name).unlink()
  with pytest.raises(InputError, match=f"holds no {name}"):
    load_params(str(tmp_path), _bert())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_damaged_file_is_refused(tmp_path, name):
  path = _write(tmp_path, _bert(), _bert_params()) / "bert" / name
  path.write_bytes(path.read_bytes()[:-40])
  with pytest.raises(InputError, match=f"{name} cannot be read"):
    load_params(str(tmp_path), _bert())


def test_a_backbone_without_names_has_no_weights_to_start_from(tmp_path):
  with pytest.raises(InputError, match="rotary"):
    load_params(str(tmp_path), _bert(backbone="rotary"))


def test_weights_of_other_words_are_refused(tmp_path):
  model = _bert()
  _write(tmp_path, model, _params(model))
  vocab = list(TOKENIZER.vocab)
  vocab[7], vocab[8] = vocab[8], vocab[7]
  with pytest.raises(InputError, match="config.data.vocab=.*vocab.txt"):
    pretrained.load_params(str(tmp_path), model, vocab=vocab)
  beside = tmp_path / "bert"
  (beside / "vocab.txt").unlink()
  ids = {token: i for i, token in enumerate(TOKENIZER.vocab)}
  (beside / "tokenizer.json").write_text(
    json.dumps({"model": {"vocab": ids, "type": "WordPiece"}})
  )
  with pytest.raises(InputError, match="config.data.vocab=.*tokenizer.json"):
    pretrained.load_params(str(tmp_path), model, vocab=vocab)
  (beside / "tokenizer.json").unlink()  # then nobody can tell
  pretrained.load_params(str(tmp_path), model, vocab=vocab)


def test_another_size_is_refused_before_the_vocabulary_is_known(tmp_path):
  model = _bert()
  folder = str(_write(tmp_path, model, _params(model)))
  unknown = dict(vocab_size=1, variant="tiny")
  pretrained.check_fields(
    folder, pretrain.make_bert(**unknown, max_positions=64)
  )
  for other in (dict(), dict(max_positions=64, type_vocab_size=3)):
    with pytest.raises(InputError, match="does not fit the model"):
      pretrained.check_fields(folder, pretrain.make_bert(**unknown, **other))
