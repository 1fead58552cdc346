"""Weights to start from: what is read, carried along, and refused."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tf1_stand_in, tiny
from support.weight_files import (
  TOKENIZER,
  assert_same,
  edit,
  edit_config,
  random_params,
  read,
  strip_prefix,
  write,
)
from truenegs_jax.configs import bert_base
from truenegs_jax.data.tokens.tokenizer import make_tokenizer, write_vocabulary
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import build_run, step
from truenegs_jax.weights.export import model_card, pretrained
from truenegs_jax.weights.formats import find, google_tf1, hf_folder
from truenegs_jax.weights.init import check_fit, load

WORDS = "bert.embeddings.word_embeddings.weight"
POOLED = {
  "bert.pooler.dense.weight",
  "bert.pooler.dense.bias",
  "cls.seq_relationship.weight",
  "cls.seq_relationship.bias",
}


def load_params(init, model, **kwargs):
  kwargs = {"tokenizer": TOKENIZER, **kwargs}
  return load.load_params(find.Weights(str(init)), model, **kwargs)


def refused(init, model, *words, **kwargs):
  with pytest.raises(InputError, match="^init: ") as caught:
    load_params(init, model, **kwargs)
  for word in words:
    assert word in str(caught.value)


def _bert(**fields):
  return tiny.make_bert(**{"max_positions": 64, **fields})


def _pair(**fields):
  return tiny.make_model(max_positions=64, **fields)


@functools.cache
def _fresh(model, seed):
  """What a run from scratch starts with."""
  init = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))
  return jax.device_get(init())


@pytest.fixture
def bert(tmp_path):
  """A folder of BERT, with the parameters `random_params(_bert())`."""
  return write(tmp_path, _bert()) / "bert"


@pytest.mark.parametrize(
  "make",
  [_pair, _bert, lambda: _bert(pooler=True)],
  ids=["pair", "bert", "pooled"],
)
def test_what_was_written_is_read(tmp_path, make):
  model = make()
  params = random_params(model)
  loaded = load_params(write(tmp_path / "f32", model), model)
  assert_same(loaded, params)
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}
  write(tmp_path / "half", model, dtype="bfloat16")
  rounded = lambda x: np.float32(jnp.asarray(x, jnp.bfloat16))
  assert_same(
    load_params(tmp_path / "half", model), jax.tree.map(rounded, params)
  )


def _transformers_bert(folder, architecture):
  """A random BERT of our tiny size, saved by transformers itself."""
  torch = pytest.importorskip("torch")
  import transformers

  config = transformers.BertConfig(
    **hf_folder.model_config(_bert(pooler=True), "bert", pad=0)
  )
  torch.manual_seed(0)
  network = getattr(transformers, architecture)(config)
  if architecture == "BertForPreTraining":
    with torch.no_grad():
      network.cls.seq_relationship.bias[0] = -0.0  # a sum would lose the sign
      network.bert.pooler.dense.bias += 0.1
  network.save_pretrained(folder)
  return read(folder)


def test_pooler_and_next_sentence_survive_training_to_the_last_bit(tmp_path):
  before = _transformers_bert(tmp_path / "in", "BertForPreTraining")
  assert set(before) >= POOLED
  c = bert_base.get_config("runlocal,hc+sr")
  c.model.pooler, c.model.max_positions = True, 64
  c.optim.weight_decay, c.negatives.strict_subword = 0.5, False
  run = build_run.build_run(c, TOKENIZER)
  params = load_params(tmp_path / "in", run.model)
  state = jax.jit(lambda: run.init_state())()
  state = step.TrainState(**(vars(state) | {"params": params}))
  train_step = jax.jit(
    step.make_train_step(
      run.objective(train=True), run.loss_weights, run.tx, num_microbatches=1
    )
  )
  for i in range(4):
    batch = jax.tree.map(jnp.array, tiny.make_batch(i))
    state, _ = train_step(state, batch, tiny.make_aux())
  pretrained.export_model(
    state.params,
    run.model,
    TOKENIZER,
    tmp_path / "out",
    origin=model_card.ModelOrigin("", trained=True),
  )
  after = read(tmp_path / "out" / "bert")
  assert set(after) == set(before)
  for name, x in before.items():
    same = after[name].tobytes() == x.tobytes()
    assert same == (name in POOLED), name


def test_a_pooler_that_the_model_lacks_is_left_out_and_that_is_said(tmp_path):
  tensors = _transformers_bert(tmp_path, "BertForPreTraining")
  said = []
  params = load_params(tmp_path, _bert(), report=said.append)
  assert set(params) == {"embeddings", "bert", "bert_head"}
  np.testing.assert_array_equal(params["embeddings"]["word"], tensors[WORDS])
  unknown, line = said  # the words: transformers' models save none
  assert "NO vocabulary" in unknown
  assert all(name in line for name in (*POOLED, "--config.model.pooler=True"))


def test_a_pooler_that_the_file_lacks_is_missing(bert):
  refused(
    bert,
    _bert(pooler=True),
    "bert.pooler.dense.weight is missing, the model's is (32, 32)",
    "--config.model.pooler=False",
  )


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
  params = random_params(model)
  x = params[tied[0]][tied[1]]
  write(tmp_path, model)
  edit(tmp_path / role, {name: x})
  assert_same(load_params(tmp_path, model), params)
  changed = x.copy()
  changed[7] += 0.25
  edit(tmp_path / role, {name: changed})
  refused(tmp_path, model, f"{name} differs from", "0.25")


def test_every_array_that_does_not_fit_is_listed_with_both_shapes(bert):
  query = "bert.encoder.layer.{}.attention.self.query"
  edit(
    bert,
    {
      f"{query.format(0)}.bias": None,
      f"{query.format(1)}.weight": np.zeros((32, 16), np.float32),
      f"{query.format(2)}.weight": np.zeros((32, 32), np.float32),
      "bert.embeddings.position_embeddings.weight": np.zeros((64, 32), int),
    },
  )
  refused(
    bert,
    _bert(),
    "position_embeddings.weight is of type int64",
    f"{query.format(1)}.weight is (32, 16), the model's (32, 32)",
    f"{query.format(2)}.weight (32, 32) is not in the model",
    f"{query.format(0)}.bias is missing, the model's is (32,)",
  )


@pytest.mark.parametrize(
  ("field", "value", "said"),
  [
    ("num_attention_heads", 4, "num_attention_heads is 4, the model's 2"),
    ("num_attention_heads", None, "num_attention_heads is 12, the model's 2"),
    ("hidden_act", "gelu_new", "'gelu_new', the model's 'gelu'"),
    ("layer_norm_eps", 1e-6, "layer_norm_eps is 1e-06"),
    ("position_embedding_type", "relative_key", "the model's 'absolute'"),
    ("is_decoder", True, "is_decoder is True"),
    ("model_type", "electra", "weights of BERT"),
    ("model_type", None, "names no model_type"),
    ("num_hidden_layers", 10**6, "says 1000000 layers"),
    ("num_hidden_layers", 10**9, "no size"),
  ],
)
def test_a_config_of_another_network_is_refused(bert, field, value, said):
  """None of these shows in the shapes of the arrays."""
  edit_config(bert, {field: value})
  refused(bert, _bert(), said)


def test_a_damaged_config_is_refused(bert):
  text = (bert / "config.json").read_text()
  for damaged in text[:-40], "[]", "{}", '{"model_type": "roberta"}':
    (bert / "config.json").write_text(damaged)
    refused(bert, _bert(), "config.json")
  (bert / "config.json").unlink()
  refused(bert, _bert(), "holds no config.json")


def test_both_networks_of_a_pair_are_checked_before_either_is_refused(tmp_path):
  write(tmp_path, _pair())
  refused(
    tmp_path,
    _pair(layers=1),
    f"{tmp_path / 'discriminator'} does not fit the model",
    f"{tmp_path / 'generator'} does not fit the model",
    "num_hidden_layers is 2, the model's 1",
  )


@pytest.mark.parametrize(
  ("name", "theirs"),
  [("position", "position_embeddings.weight"), ("type", "token_type_embed")],
)
def test_a_pair_that_does_not_share_its_embeddings_is_refused(
  tmp_path, name, theirs
):
  model, params = _pair(), random_params(_pair())
  write(tmp_path, model)
  full = f"electra.embeddings.{theirs}"
  full += "" if full.endswith("weight") else "dings.weight"
  x = params["embeddings"][name]
  # As a sum in another order would have it.
  edit(tmp_path / "generator", {full: x + np.float32(1e-8)})
  assert_same(load_params(tmp_path, model), params)
  far = x.copy()
  far[..., 3] += 0.125
  edit(tmp_path / "generator", {full: far})
  refused(tmp_path, model, f"embeddings/{name}", "0.125")


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_refused(bert, value):
  bias = np.zeros(tiny.V, np.float32)
  bias[3:5] = value
  edit(bert, {"cls.predictions.bias": bias})
  refused(bert, _bert(), "cls.predictions.bias holds 2 values")


def test_a_backbone_without_names_has_no_weights_to_start_from(bert):
  with pytest.raises(InputError, match="rotary"):
    load_params(bert, _bert(backbone="rotary"))


def test_weights_of_other_words_are_refused(bert):
  vocab = list(TOKENIZER.vocab)
  vocab[7], vocab[8] = vocab[8], vocab[7]
  other = make_tokenizer(vocab, lowercase=True)
  refused(bert, _bert(), "--config.data.vocab=", "vocab.txt", tokenizer=other)
  (bert / "vocab.txt").unlink()
  ids = {token: i for i, token in enumerate(TOKENIZER.vocab)}
  (bert / "tokenizer.json").write_text(
    json.dumps({"model": {"vocab": ids, "type": "WordPiece"}})
  )
  refused(bert, _bert(), "tokenizer.json", tokenizer=other)
  (bert / "tokenizer.json").unlink()  # then nobody can tell
  load_params(bert, _bert(), tokenizer=other)
  refused(bert, _bert(), "no vocabulary beside it", skip="words")


def test_another_size_is_refused_before_the_vocabulary_is_known(bert):
  networks = find.Weights(str(bert)).networks
  unknown = functools.partial(pretrain.make_bert, vocab_size=1, variant="tiny")
  check_fit.check_networks(networks, unknown(max_positions=64), skip=["words"])
  for other in {}, {"max_positions": 64, "type_vocab_size": 3}:
    with pytest.raises(InputError, match="does not fit the model"):
      check_fit.check_networks(networks, unknown(**other), skip=["words"])


@pytest.mark.parametrize("make", [_pair, _bert])
def test_old_names_and_constants_are_those_of_today(tmp_path, make):
  model = make()
  write(tmp_path, model)
  for role in model.roles:
    family = "bert" if role == "bert" else "electra"
    new = {f"{family}.embeddings.position_ids": np.arange(64)[None]}
    for name, x in read(tmp_path / role).items():
      if "LayerNorm" in name:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        new |= {name: None, old.replace("LayerNorm.bias", "LayerNorm.beta"): x}
    edit(tmp_path / role, new)
  assert_same(load_params(tmp_path, model), random_params(model))


def test_one_array_by_two_names_is_refused(bert):
  name = "bert.embeddings.LayerNorm"
  edit(bert, {f"{name}.gamma": np.ones(32, np.float32)})
  refused(bert, _bert(), f"both {name}")


def test_an_encoder_alone_gets_the_heads_of_a_run_from_scratch(tmp_path):
  model = _bert(pooler=True)
  params = random_params(model)
  strip_prefix(write(tmp_path, model) / "bert")
  said = []
  loaded = load_params(tmp_path, model, seed=3, report=said.append)
  fresh = _fresh(model, 3)
  for name in ("embeddings", "bert"):
    assert_same(loaded[name], params[name])
  assert_same(loaded["bert_head"], fresh["bert_head"])
  for name, origin in ("pooler", params), ("next_sentence", fresh):
    assert_same(loaded["pooled"][name], origin["pooled"][name])
  (line,) = said
  assert "NOT in" in line and line.endswith("bert_head, pooled/next_sentence")
  refused(tmp_path, model, "DRAWN AT RANDOM: bert_head", complete=True)


def test_a_head_that_is_there_in_part_is_no_fresh_head(bert):
  edit(bert, {"cls.predictions.transform.dense.weight": None})
  refused(bert, _bert(), "transform.dense.weight is missing")


def test_a_pair_in_two_places_and_a_discriminator_alone(tmp_path):
  model, params = _pair(), random_params(_pair())
  write(tmp_path, model)
  places = [str(tmp_path / role) for role in ("generator", "discriminator")]
  assert_same(load_params(", ".join(places), model), params)
  refused(f"{places[1]},{places[1]}", model, "are both a discriminator")
  refused(places[0], model, "weights of a discriminator")
  said, fresh = [], _fresh(model, 5)
  loaded = load_params(places[1], model, seed=5, report=said.append)
  for name, x in loaded.items():
    assert_same(x, (fresh if name.startswith("generator") else params)[name])
  assert said[0].endswith("DRAWN AT RANDOM: generator, generator_head")


def test_a_folder_is_of_the_network_that_it_is_named_after(tmp_path):
  write(tmp_path / "a", _pair())
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "discriminator").symlink_to(tmp_path / "a/discriminator")
  refused(tmp_path / "b", _pair(), "leads out of the folder")
  (tmp_path / "a" / "generator").rename(tmp_path / "g")
  (tmp_path / "a" / "discriminator").rename(tmp_path / "a" / "generator")
  refused(tmp_path / "a", _pair(), "holds a discriminator, by its config")


@pytest.mark.parametrize(
  ("init", "said"),
  [
    ("model.safetensors", "give its folder: "),
    ("bert_model.ckpt", "give its folder: "),
    ("nothing/here/at/all", "workdir of a run of ours"),
    ("", "empty part"),
    ("a,", "empty part"),
    ("a" * 5_000, "no place"),
  ],
)
def test_what_is_no_folder_of_weights_is_refused(
  tmp_path, monkeypatch, init, said
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "model.safetensors").touch()
  (tmp_path / "bert_model.ckpt.index").touch()
  if init:
    refused(init, _bert(), said)
  (tmp_path / "empty").mkdir()
  refused(tmp_path / "empty", _bert(), "holds no weights")


def test_case_is_that_of_the_weights(bert):
  vocab = [*TOKENIZER.vocab[:-1], "Berlin"]
  cased, uncased = (
    make_tokenizer(vocab, lowercase=lowercase) for lowercase in (False, True)
  )
  write_vocabulary(vocab, bert / "vocab.txt")
  refused(bert, _bert(), "config.data.lowercase=True", tokenizer=cased)
  # Without a word on it, capitals tell.
  (bert / "tokenizer_config.json").unlink()
  refused(bert, _bert(), "config.data.lowercase=False", tokenizer=uncased)
  load_params(bert, _bert(), tokenizer=cased)


NEW = ("new", "words", "here")
CHANGED = make_tokenizer(
  [*(t for t in TOKENIZER.vocab if t not in ("w7", "w20")), *NEW],
  lowercase=True,
)


@pytest.mark.parametrize("make", [_pair, _bert])
def test_rows_of_known_words_are_carried_into_another_vocabulary(
  tmp_path, make
):
  params = random_params(make())
  write(tmp_path, make())
  fields = dict(vocab_size=len(CHANGED.vocab), variant="tiny", max_positions=64)
  is_pair = make is _pair
  model = (
    pretrain.make_pair(**fields, generator_multiplier=0.5)
    if is_pair
    else pretrain.make_bert(**fields)
  )
  given = functools.partial(load_params, tmp_path, model, tokenizer=CHANGED)
  refused(tmp_path, model, "config.init_skip=words", tokenizer=CHANGED)
  said = []
  loaded = given(seed=2, skip="words", report=said.append)
  fresh = _fresh(model, 2)
  head = "generator_head" if is_pair else "bert_head"
  for part, name in (("embeddings", "word"), (head, "bias")):
    for i, token in enumerate(CHANGED.vocab):
      expected = (
        fresh[part][name][i]
        if token in NEW
        else params[part][name][TOKENIZER.vocab.index(token)]
      )
      np.testing.assert_array_equal(loaded[part][name][i], expected)
  for part in loaded.keys() - {"embeddings", head}:
    assert_same(loaded[part], params[part])
  (line,) = said
  assert all(x in line for x in ("68 of 71", "(new, words, here)", "2 rows"))


@pytest.mark.slow
@pytest.mark.parametrize("size", [40, 64, 100])
def test_the_first_positions_are_carried_over(bert, size):
  params, model = random_params(_bert()), _bert(max_positions=size)
  if size != 64:
    refused(bert, model, "config.init_skip=positions")
  said = []
  loaded = load_params(bert, model, skip="positions", report=said.append)
  old, new = (x["embeddings"].pop("position") for x in (params, loaded))
  assert len(new) == size
  np.testing.assert_array_equal(new[:64], old[:size])
  fresh = _fresh(model, 0)["embeddings"]["position"]
  np.testing.assert_array_equal(new[64:], fresh[64:])
  assert_same(loaded, params)
  assert len(said) == (size != 64)


def test_rows_of_padding_are_left_out_where_that_is_asked_for(bert):
  tensors = read(bert)
  edit(
    bert,
    {
      name: np.pad(x, [(0, 6)] + [(0, 0)] * (x.ndim - 1))
      for name, x in tensors.items()
      if name in (WORDS, "cls.predictions.bias")
    },
  )
  edit_config(bert, {"vocab_size": tiny.V + 6})
  refused(bert, _bert(), "config.init_skip=words")
  said = []
  loaded = load_params(bert, _bert(), skip="words", report=said.append)
  assert_same(loaded, random_params(_bert()))
  assert "6 rows are left out" in said[0]


def test_a_vocabulary_longer_than_the_table_is_refused(bert):
  write_vocabulary([*TOKENIZER.vocab, "more"], bert / "vocab.txt")
  refused(bert, _bert(), "71 words", "70 rows", skip="words")


@pytest.mark.parametrize(
  "name", ["config.json", "vocab.txt", "tokenizer_config.json"]
)
def test_files_that_a_link_brings_in_from_elsewhere_are_refused(
  bert, tmp_path, name
):
  (bert / name).rename(tmp_path / name)
  (bert / name).symlink_to(tmp_path / name)
  refused(bert, _bert(), name, "leads out")


def test_arrays_of_another_task_are_said_to_be_that(bert):
  edit(bert, {"classifier.weight": np.zeros((2, 32), np.float32)})
  refused(bert, _bert(), "classifier.weight (2, 32)", "of another task")


def test_what_differs_in_many_arrays_is_not_listed_to_its_end(bert):
  edit(bert, {f"x{i}": np.zeros(1, np.float32) for i in range(500)})
  refused(bert, _bert(), "and 4", " more")
  edit_config(bert, {"hidden_size": 16})
  refused(bert, _bert(), "--config.model.variant=init")


def test_googles_checkpoint_is_read_beside_a_config_of_transformers(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(google_tf1, "load_checkpoint", tf1_stand_in.Reader)
  model, params = _bert(), random_params(_bert())
  tf1_stand_in.write_model(tmp_path / "bert_model.ckpt", model, params)
  write_vocabulary(TOKENIZER.vocab, tmp_path / "vocab.txt")
  (tmp_path / "config.json").write_text("{}")
  assert_same(load_params(tmp_path, model), params)
