"""Weights to start from: what is read, carried along, and refused."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import traverse_util

from support import tf1_stand_in, tiny
from truenegs_jax.configs import bert_base
from truenegs_jax.data.tokens.tokenizer import make_tokenizer, write_vocabulary
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import build_run, step
from truenegs_jax.weights.export import model_card, pretrained
from truenegs_jax.weights.formats import find, google_tf1, hf_folder
from truenegs_jax.weights.init import check_fit, load

TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  + [f"w{i}" for i in range(5, tiny.V)],
  lowercase=True,
)


def load_params(init, model, **kwargs):
  kwargs = {"tokenizer": TOKENIZER, **kwargs}
  return load.load_params(find.Weights(init), model, **kwargs)


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


@functools.cache
def _fresh(model, seed):
  """What a run from scratch starts with."""
  init = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))
  return jax.device_get(init())


def _write(folder, model, params, **kwargs):
  """A folder for each role, as an export has them."""
  for role in model.roles:
    (folder / role).mkdir(parents=True)
    hf_folder.write_model(
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


def _networks(init):
  return find.Weights(init).networks


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
    **hf_folder.model_config(_bert(pooler=True), "bert", pad=0)
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
  run = build_run.build_run(c, TOKENIZER)
  params = load_params(str(tmp_path / "in"), run.model)
  state = jax.jit(lambda: run.init_state())()
  state = step.TrainState(**(vars(state) | {"params": params}))
  train_step = jax.jit(
    step.make_train_step(
      run.objective(train=True), run.weights, run.tx, num_microbatches=1
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
    about=model_card.About("", trained=True),
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
  unknown, line = said  # the words: transformers' models save none
  assert "NO vocabulary" in unknown
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
  assert capsys.readouterr().out.startswith("init: NO vocabulary")


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
    "bert.embeddings.position_embeddings.weight is of type int64, not float32,"
    " float16, bfloat16",
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
    ("model_type", "electra", "holds a discriminator, by its config"),
    ("model_type", None, "names no model_type"),
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
  assert str(e.value).count("num_hidden_layers is 2, the model's 1") == 2
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


def test_a_folder_without_config_or_with_a_damaged_one_is_refused(tmp_path):
  path = _write(tmp_path, _bert(), _bert_params()) / "bert" / "config.json"
  text = path.read_text()
  for damaged in (text[:-40], "[]", "{}", '{"model_type": "roberta"}'):
    path.write_text(damaged)
    with pytest.raises(InputError, match="config.json"):
      load_params(str(tmp_path), _bert())
  path.unlink()
  with pytest.raises(InputError, match="holds no config.json"):
    load_params(str(tmp_path), _bert())


def test_a_backbone_without_names_has_no_weights_to_start_from(tmp_path):
  _write(tmp_path, _bert(), _bert_params())
  with pytest.raises(InputError, match="rotary"):
    load_params(str(tmp_path), _bert(backbone="rotary"))


def test_weights_of_other_words_are_refused(tmp_path):
  model = _bert()
  _write(tmp_path, model, _params(model))
  vocab = list(TOKENIZER.vocab)
  vocab[7], vocab[8] = vocab[8], vocab[7]
  other = make_tokenizer(vocab, lowercase=True)
  with pytest.raises(InputError, match="config.data.vocab=.*vocab.txt"):
    load_params(str(tmp_path), model, tokenizer=other)
  beside = tmp_path / "bert"
  (beside / "vocab.txt").unlink()
  ids = {token: i for i, token in enumerate(TOKENIZER.vocab)}
  (beside / "tokenizer.json").write_text(
    json.dumps({"model": {"vocab": ids, "type": "WordPiece"}})
  )
  with pytest.raises(InputError, match="config.data.vocab=.*tokenizer.json"):
    load_params(str(tmp_path), model, tokenizer=other)
  (beside / "tokenizer.json").unlink()  # then nobody can tell
  load_params(str(tmp_path), model, tokenizer=other)


def test_another_size_is_refused_before_the_vocabulary_is_known(tmp_path):
  model = _bert()
  networks = find.Weights(str(_write(tmp_path, model, _params(model)))).networks
  unknown = dict(vocab_size=1, variant="tiny")
  check_fit.check(
    networks, pretrain.make_bert(**unknown, max_positions=64), skip=["words"]
  )
  for other in (dict(), dict(max_positions=64, type_vocab_size=3)):
    with pytest.raises(InputError, match="does not fit the model"):
      check_fit.check(
        networks, pretrain.make_bert(**unknown, **other), skip=["words"]
      )


@pytest.mark.parametrize("make", [_pair, _bert])
def test_old_names_and_constants_are_those_of_today(tmp_path, make):
  model = make()
  params = _params(model)
  _write(tmp_path, model, params)
  for role in model.roles:
    path = tmp_path / role / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    family = "bert" if role == "bert" else "electra"
    old = {
      name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
        "LayerNorm.bias", "LayerNorm.beta"
      ): x
      for name, x in tensors.items()
    } | {f"{family}.embeddings.position_ids": np.arange(64)[None]}
    assert any(name.endswith("gamma") for name in old)
    safetensors.numpy.save_file(old, path)
  _assert_same(load_params(str(tmp_path), model), params)


def test_one_array_by_two_names_is_refused(tmp_path):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  name = "bert.embeddings.LayerNorm"
  _edit(folder, **{f"{name}.gamma": np.ones(32, np.float32)})
  with pytest.raises(InputError, match=f"both {name}.* and {name}"):
    load_params(str(tmp_path), _bert())


def _bare(folder, *without):
  """Turns a folder into that of an encoder alone, its names unprefixed."""
  tensors = safetensors.numpy.load_file(folder / "model.safetensors")
  bare = {
    name.removeprefix("bert.").removeprefix("electra."): x
    for name, x in tensors.items()
    if name.startswith(("bert.", "electra.")) and not name.startswith(without)
  }
  safetensors.numpy.save_file(bare, folder / "model.safetensors")


def test_an_encoder_alone_gets_the_heads_of_a_run_from_scratch(tmp_path):
  model = _bert(pooler=True)
  params = _params(model)
  _bare(_write(tmp_path, model, params) / "bert")
  said = []
  read = load_params(str(tmp_path), model, seed=3, say=said.append)
  fresh = _fresh(model, 3)
  for name in ("embeddings", "bert"):
    _assert_same(read[name], params[name])
  _assert_same(read["pooled"]["pooler"], params["pooled"]["pooler"])
  _assert_same(read["bert_head"], fresh["bert_head"])
  _assert_same(
    read["pooled"]["next_sentence"], fresh["pooled"]["next_sentence"]
  )
  (line,) = said
  assert "NOT in" in line and line.endswith("bert_head, pooled/next_sentence")
  with pytest.raises(InputError, match="DRAWN AT RANDOM: bert_head"):
    load_params(str(tmp_path), model, complete=True)


def test_a_head_that_is_there_in_part_is_no_fresh_head(tmp_path):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  _edit(folder, **{"cls.predictions.transform.dense.weight": None})
  with pytest.raises(InputError, match="transform.dense.weight is missing"):
    load_params(str(tmp_path), _bert())


def test_a_discriminator_alone_gets_the_generator_of_a_run_from_scratch(
  tmp_path,
):
  model = _pair()
  params = _params(model)
  _write(tmp_path, model, params)
  said = []
  read = load_params(
    str(tmp_path / "discriminator"), model, seed=5, say=said.append
  )
  fresh = _fresh(model, 5)
  for name, expected in read.items():
    from_scratch = name.startswith("generator")
    _assert_same(expected, (fresh if from_scratch else params)[name])
  (line,) = said
  assert line.endswith("DRAWN AT RANDOM: generator, generator_head")


def test_a_pair_may_lie_in_two_places(tmp_path):
  model = _pair()
  params = _params(model)
  _write(tmp_path, model, params)
  both = [str(tmp_path / role) for role in ("generator", "discriminator")]
  _assert_same(load_params(", ".join(both), model), params)
  with pytest.raises(InputError, match="are both a discriminator"):
    _networks(f"{both[1]},{both[1]}")
  with pytest.raises(InputError, match="weights of a discriminator"):
    load_params(both[0], model)


def test_a_folder_that_is_named_after_another_network_is_refused(tmp_path):
  _write(tmp_path, _pair(), _params(_pair()))
  (tmp_path / "generator").rename(tmp_path / "other")
  (tmp_path / "discriminator").rename(tmp_path / "generator")
  (tmp_path / "other").rename(tmp_path / "discriminator")
  with pytest.raises(InputError, match="holds a generator, by its config"):
    _networks(str(tmp_path))


def test_a_network_that_a_link_leads_to_is_refused(tmp_path):
  _write(tmp_path / "a", _pair(), _params(_pair()))
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "discriminator").symlink_to(tmp_path / "a/discriminator")
  with pytest.raises(InputError, match="leads out of the folder"):
    _networks(str(tmp_path / "b"))


@pytest.mark.parametrize("given", ["model.safetensors", "bert_model.ckpt"])
def test_a_file_is_answered_with_its_folder(tmp_path, given):
  (tmp_path / "model.safetensors").touch()
  (tmp_path / "bert_model.ckpt.index").touch()
  with pytest.raises(InputError, match=f"give its folder: {tmp_path}"):
    _networks(str(tmp_path / given))


def test_what_is_no_place_at_all_is_answered_with_what_is(tmp_path):
  for nothing in (tmp_path / "nothing", tmp_path):
    with pytest.raises(InputError, match="workdir of a run of ours"):
      _networks(str(nothing))


def test_weights_of_cased_text_are_refused_for_lower_cased(tmp_path):
  _write(tmp_path, _bert(), _bert_params())
  cased = make_tokenizer(TOKENIZER.vocab, lowercase=False)
  with pytest.raises(InputError, match="config.data.lowercase=True"):
    load_params(str(tmp_path), _bert(), tokenizer=cased)


WITHOUT = [token for token in TOKENIZER.vocab if token not in ("w7", "w20")]
CHANGED = make_tokenizer([*WITHOUT, "new", "words", "here"], lowercase=True)


@pytest.mark.parametrize("make", [_pair, _bert])
def test_rows_of_known_words_are_carried_into_another_vocabulary(
  tmp_path, make
):
  old = make()
  params = _params(old)
  _write(tmp_path, old, params)
  fields = dict(vocab_size=len(CHANGED.vocab), variant="tiny", max_positions=64)
  is_pair = "generator" in old.roles
  model = (
    pretrain.make_pair(**fields, generator_multiplier=0.5)
    if is_pair
    else pretrain.make_bert(**fields)
  )
  with pytest.raises(InputError, match="config.init_skip=words"):
    load_params(str(tmp_path), model, tokenizer=CHANGED)
  said = []
  read = load_params(
    str(tmp_path),
    model,
    tokenizer=CHANGED,
    seed=2,
    skip="words",
    say=said.append,
  )
  fresh = _fresh(model, 2)
  head = "generator_head" if is_pair else "bert_head"
  for i, token in enumerate(CHANGED.vocab):
    for part, name in (("embeddings", "word"), (head, "bias")):
      expected = (
        fresh[part][name][i]
        if token in ("new", "words", "here")
        else params[part][name][TOKENIZER.vocab.index(token)]
      )
      np.testing.assert_array_equal(read[part][name][i], expected)
  for part in read.keys() - {"embeddings", head}:
    _assert_same(read[part], params[part])
  (line,) = said
  assert "68 of 71 words" in line and "(new, words, here)" in line
  assert "2 rows are left out" in line


def test_no_row_is_carried_over_that_no_vocabulary_names(tmp_path):
  _write(tmp_path, _bert(), _bert_params())
  (tmp_path / "bert" / "vocab.txt").unlink()
  with pytest.raises(InputError, match="no vocabulary beside it"):
    load_params(str(tmp_path), _bert(), skip="words")


@pytest.mark.parametrize("size", [40, 64, 100])
def test_the_first_positions_are_carried_over(tmp_path, size):
  params = _params(_bert())
  _write(tmp_path, _bert(), params)
  model = pretrain.make_bert(
    vocab_size=tiny.V, variant="tiny", max_positions=size
  )
  if size != 64:
    with pytest.raises(InputError, match="config.init_skip=positions"):
      load_params(str(tmp_path), model)
  said = []
  read = load_params(str(tmp_path), model, skip="positions", say=said.append)
  fresh = _fresh(model, 0)
  first = min(size, 64)
  place = "embeddings", "position"
  table = read[place[0]].pop(place[1])
  old = dict(params, embeddings=dict(params["embeddings"]))
  expected = old["embeddings"].pop("position")[:first]
  np.testing.assert_array_equal(table[:first], expected)
  np.testing.assert_array_equal(table[64:], fresh[place[0]][place[1]][64:])
  assert len(table) == size
  _assert_same(read, old)
  assert len(said) == (size != 64)


def test_what_differs_alike_in_many_layers_is_said_once(tmp_path):
  _write(tmp_path, _bert(), _bert_params())
  with pytest.raises(InputError) as e:
    load_params(
      str(tmp_path),
      pretrain.make_bert(
        vocab_size=tiny.V,
        variant="embedding_size=16 width=16 layers=2 heads=2 ffn=64",
        max_positions=64,
      ),
    )
  name = "bert.encoder.layer.{0-1}.attention.self.query.weight"
  assert f"{name} is (32, 32), the model's (16, 16)" in str(e.value)
  assert "--config.model.variant=init" in str(e.value)


def _padded(folder, rows):
  """Makes a table longer than its vocabulary, as some released ones are."""
  tensors = safetensors.numpy.load_file(folder / "model.safetensors")
  for name in (WORDS, "cls.predictions.bias"):
    more = np.full((rows, *tensors[name].shape[1:]), 9, np.float32)
    _edit(folder, **{name: np.concatenate([tensors[name], more])})
  path = folder / "config.json"
  config = json.loads(path.read_text())
  path.write_text(json.dumps(config | {"vocab_size": tiny.V + rows}))


def test_rows_of_padding_are_left_out_where_that_is_asked_for(tmp_path):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  _padded(folder, 6)
  with pytest.raises(InputError, match="config.init_skip=words"):
    load_params(str(tmp_path), _bert())
  said = []
  read = load_params(str(tmp_path), _bert(), skip="words", say=said.append)
  _assert_same(read, _bert_params())
  (line,) = said
  assert "6 rows are left out; new, drawn at random: 0" in line


def test_a_vocabulary_longer_than_the_table_is_refused(tmp_path):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  write_vocabulary([*TOKENIZER.vocab, "more"], folder / "vocab.txt")
  with pytest.raises(InputError, match="71 words, their table 70 rows"):
    load_params(str(tmp_path), _bert(), skip="words")


def test_a_vocabulary_with_capitals_tells_that_text_is_not_lower_cased(
  tmp_path,
):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  vocab = [*TOKENIZER.vocab[:-1], "Berlin"]
  write_vocabulary(vocab, folder / "vocab.txt")
  (folder / "tokenizer_config.json").unlink()
  run = make_tokenizer(vocab, lowercase=True)
  with pytest.raises(InputError, match="config.data.lowercase=False"):
    load_params(str(tmp_path), _bert(), tokenizer=run)
  run = make_tokenizer(vocab, lowercase=False)
  load_params(str(tmp_path), _bert(), tokenizer=run)


@pytest.mark.parametrize(
  "name", ["config.json", "vocab.txt", "tokenizer_config.json"]
)
def test_files_that_a_link_brings_in_from_elsewhere_are_refused(tmp_path, name):
  folder = _write(tmp_path / "a", _bert(), _bert_params()) / "bert"
  (folder / name).rename(tmp_path / name)
  (folder / name).symlink_to(tmp_path / name)
  with pytest.raises(InputError, match=f"{name}: a link that leads out"):
    load_params(str(folder), _bert())


def test_arrays_of_another_task_are_said_to_be_that(tmp_path):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  _edit(folder, **{"classifier.weight": np.zeros((2, 32), np.float32)})
  with pytest.raises(InputError) as e:
    load_params(str(tmp_path), _bert())
  assert "classifier.weight (2, 32) is not in the model" in str(e.value)
  assert "of another task" in str(e.value)
  assert "variant" not in str(e.value)


def test_a_list_of_what_differs_has_an_end(tmp_path):
  folder = _write(tmp_path, _bert(), _bert_params()) / "bert"
  _edit(folder, **{f"x{i}": np.zeros(1, np.float32) for i in range(500)})
  with pytest.raises(InputError, match="and 440 more"):
    load_params(str(tmp_path), _bert())


def test_more_layers_than_arrays_are_refused_at_once(tmp_path):
  path = _write(tmp_path, _bert(), _bert_params()) / "bert" / "config.json"
  config = json.loads(path.read_text())
  for layers, said in (10**6, "says 1000000 layers"), (10**9, "no size"):
    path.write_text(json.dumps(config | {"num_hidden_layers": layers}))
    with pytest.raises(InputError, match=said):
      _networks(str(tmp_path))


def test_googles_checkpoint_is_read_beside_a_config_of_transformers(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(google_tf1, "load_checkpoint", tf1_stand_in.Reader)
  model = _bert()
  params = _params(model)
  flat = traverse_util.flatten_dict(params, sep="/")
  tf1_stand_in.write(
    tmp_path / "bert_model.ckpt",
    {
      name: flat[ours]
      for ours, name in google_tf1.name_table(model, "bert").items()
    },
  )
  write_vocabulary(TOKENIZER.vocab, tmp_path / "vocab.txt")
  (tmp_path / "config.json").write_text("{}")
  _assert_same(load_params(str(tmp_path), model), params)


@pytest.mark.parametrize("init", ["a,", ",a", ",", "a" * 300, "a" * 5_000])
def test_what_can_be_no_place_is_refused(init):
  with pytest.raises(InputError, match="^init: .*(empty part|no place)"):
    _networks(init)


def test_layers_that_the_model_lacks_are_of_no_other_task(tmp_path):
  _write(tmp_path, _bert(), _bert_params())
  path = tmp_path / "bert" / "config.json"
  config = json.loads(path.read_text())
  path.write_text(json.dumps(config | {"num_hidden_layers": 1}))
  with pytest.raises(InputError) as e:
    load_params(str(tmp_path), _bert(layers=1))
  assert "of another task" not in str(e.value)
