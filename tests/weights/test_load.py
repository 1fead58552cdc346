"""Loading weights: what is read, copied, drawn at random or refused."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.tokenizer_files import write_vocabulary

from support import tiny, tokenizer_files
from support.weight_files import (
  TOKENIZER,
  assert_same_tree,
  edit_config,
  edit_tensors,
  load_params,
  random_params,
  read_tensors,
  strip_prefix,
  write_export,
)
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import bert_base
from truenegs_jax.data.tokenizer import load_tokenizer, make_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import plan
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import step
from truenegs_jax.weights import hf_folder, load

WORDS = "bert.embeddings.word_embeddings.weight"


def assert_refused(init, model, *words, **kwargs):
  """Asserts that loading fails with a message that contains the words."""
  with pytest.raises(InputError, match="^init: ") as caught:
    load_params(init, model, **kwargs)
  for word in words:
    assert word in str(caught.value)


def _bert(**fields):
  return tiny.make_bert(**{"max_positions": 64, **fields})


def _pair(**fields):
  return tiny.make_model(max_positions=64, **fields)


@functools.cache
def _init_params(model, seed):
  """Returns the parameters with which a run from scratch starts."""
  init = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))
  return jax.device_get(init())


@pytest.fixture
def bert(tmp_path):
  """The folder of a BERT with the parameters `random_params(_bert())`."""
  return write_export(tmp_path, _bert()) / "bert"


@pytest.mark.parametrize(
  "make",
  [_pair, _bert, lambda: _bert(pooler=True)],
  ids=["pair", "bert", "pooled"],
)
def test_loads_what_was_written(tmp_path, make):
  model = make()
  params = random_params(model)
  loaded, _ = load_params(write_export(tmp_path / "f32", model), model)
  assert_same_tree(loaded, params)
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}
  for role in model.roles:
    tensors = read_tensors(tmp_path / "f32" / role)
    halves = {name: x.astype(jnp.bfloat16) for name, x in tensors.items()}
    edit_tensors(tmp_path / "f32" / role, halves)
  half = jax.tree.map(lambda x: np.float32(jnp.bfloat16(x)), params)
  assert_same_tree(load_params(tmp_path / "f32", model)[0], half)


def _transformers_bert(folder, architecture):
  """Saves a random tiny BERT with transformers; returns its tensors."""
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
  write_vocabulary(TOKENIZER.vocab, folder / "vocab.txt")
  return read_tensors(folder)


@pytest.mark.slow
def test_training_keeps_pooler_and_next_sentence_bit_for_bit():
  c = bert_base.get_config("runlocal,baseline")
  c.init, c.model.max_positions = "weights", 64  # with a pooler
  c.optim.weight_decay = 0.5
  run = plan.make_run(PretrainConfig.read(c), TOKENIZER)
  params = random_params(run.model)
  params["pooled"]["pooler"]["bias"][0] = -0.0  # a sum would lose the sign
  state = run.init_state()
  state = step.TrainState(**(vars(state) | {"params": params}))
  train_step = jax.jit(
    step.make_train_step(
      run.objective(train=True), run.loss_weights, run.tx, num_microbatches=1
    )
  )
  for i in range(2):
    batch = jax.tree.map(jnp.array, tiny.make_batch(i))
    state, _ = train_step(state, batch, {})
  is_same = jax.tree.map(
    lambda a, b: np.asarray(a).tobytes() == b.tobytes(), state.params, params
  )
  assert all(jax.tree.leaves(is_same.pop("pooled")))
  assert not any(jax.tree.leaves(is_same))


def test_unused_pooler_is_dropped_and_reported(tmp_path):
  tensors = _transformers_bert(tmp_path, "BertForPreTraining")
  params, lines = load_params(tmp_path, _bert())
  assert set(params) == {"embeddings", "bert", "bert_head"}
  np.testing.assert_array_equal(params["embeddings"]["word"], tensors[WORDS])
  location = f"'{tmp_path}'"
  assert lines == [
    f"init: left out what this model lacks of {location}: bert.pooler, cls."
  ]


QUERY = "bert.encoder.layer.{}.attention.self.query"
# Case -> changed tensors, changed fields of config.json, words of the message.
MISFITS = {
  "arrays": (
    {
      f"{QUERY.format(0)}.bias": None,
      f"{QUERY.format(1)}.weight": np.zeros((32, 16), np.float32),
      f"{QUERY.format(2)}.weight": np.zeros((32, 32), np.float32),
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
    ("(and 499 more of this kind)", "--config.model.variant=init"),
  ),
  "type": (
    {WORDS: np.zeros((tiny.V, 32), int)},
    {},
    ("word_embeddings.weight of", "is of type int64, not float32"),
  ),
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
  ("num_attention_heads", 4, "num_attention_heads is 4, the model's is 2"),
  ("num_attention_heads", None, "attention_heads is 12, the model's is 2"),
  ("hidden_act", "gelu_new", "'gelu_new', the model's is 'gelu'"),
  ("layer_norm_eps", 1e-6, "layer_norm_eps is 1e-06"),
  ("position_embedding_type", "relative_key", "the model's is 'absolute'"),
  ("is_decoder", True, "is_decoder is True"),
  ("model_type", "electra", "weights of BERT"),
  ("num_hidden_layers", 10**6, "has 1,000,000 layers"),
  ("num_hidden_layers", 10**9, "not a valid size"),
]
MISFITS |= {f"{k}={x}": ({}, {k: x}, (words,)) for k, x, words in FIELDS}


@pytest.mark.parametrize("case", MISFITS)
def test_weights_that_do_not_fit_are_refused(bert, case):
  tensors, fields, words = MISFITS[case]
  if tensors:
    edit_tensors(bert, tensors)
  edit_config(bert, fields)
  assert_refused(bert, _bert(), *words)


@pytest.mark.parametrize(
  ("make", "role", "words"),
  [
    (
      lambda: _pair(layers=1),
      "discriminator",
      [
        "num_hidden_layers is 2, the model's is 1",
        "discriminator' does not fit",
      ],
    ),
  ],
)
def test_weights_of_another_model_are_refused(tmp_path, make, role, words):
  write_export(tmp_path, _bert() if role == "bert" else _pair())
  assert_refused(tmp_path, make(), *words)


def test_damaged_config_is_refused(bert):
  (bert / "config.json").write_text((bert / "config.json").read_text()[:-40])
  assert_refused(bert, _bert(), "config.json")
  (bert / "config.json").unlink()
  assert_refused(bert, _bert(), "holds no config.json")


@pytest.mark.parametrize(
  ("name", "role", "tied"),
  [
    ("cls.predictions.decoder.weight", "bert", ("embeddings", "word")),
    ("cls.predictions.decoder.bias", "bert", ("bert_head", "bias")),
    ("generator_lm_head.weight", "generator", ("embeddings", "word")),
  ],
)
def test_tied_array_may_be_stored_twice_if_both_are_equal(
  tmp_path, name, role, tied
):
  model = _bert() if role == "bert" else _pair()
  params = random_params(model)
  x = params[tied[0]][tied[1]]
  write_export(tmp_path, model)
  edit_tensors(tmp_path / role, {name: x})
  assert_same_tree(load_params(tmp_path, model)[0], params)
  changed = x.copy()
  changed[7] += 0.25
  edit_tensors(tmp_path / role, {name: changed})
  assert_refused(tmp_path, model, f"{name} of", "differs from", "0.25")


@pytest.mark.parametrize(
  ("name", "tensor"), [("position", "position"), ("type", "token_type")]
)
def test_pair_without_shared_embeddings_is_refused(tmp_path, name, tensor):
  model, params = _pair(), random_params(_pair())
  write_export(tmp_path, model)
  full = f"electra.embeddings.{tensor}_embeddings.weight"
  x = params["embeddings"][name]
  # A difference by rounding is accepted.
  edit_tensors(tmp_path / "generator", {full: x + np.float32(1e-8)})
  assert_same_tree(load_params(tmp_path, model)[0], params)
  far = x.copy()
  far[..., 3] += 0.125
  edit_tensors(tmp_path / "generator", {full: far})
  assert_refused(tmp_path, model, f"embeddings/{name}", "0.125")


@pytest.mark.parametrize(
  "sharing", ["disentangled", pytest.param("none", marks=pytest.mark.slow)]
)
def test_pair_that_does_not_share_keeps_the_embeddings_of_each(
  tmp_path, sharing
):
  model = _pair(sharing=sharing)
  params = random_params(model)
  write_export(tmp_path, model)
  for role in model.roles:
    expected = pretrain.own_embeddings(params, role)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-7)
    loaded, lines = load_params(tmp_path, model)
    jax.tree.map(close, pretrain.own_embeddings(loaded, role), expected)
    assert not lines
    own = load.load(str(tmp_path))
    loaded = pretrain.own_embeddings(own.params, role)
    jax.tree.map(np.testing.assert_array_equal, loaded, expected)
  assert_refused(tmp_path, _pair(), "set --config.model.sharing=disentangled")
  loaded, _ = load_params(tmp_path / "discriminator", model)
  expected = pretrain.own_embeddings(params, "discriminator")["embeddings"]
  assert_same_tree(loaded["embeddings"], expected)
  both = pretrain.own_embeddings(loaded, "discriminator")["embeddings"]
  assert_same_tree(both, expected)


def test_weights_with_another_vocabulary_are_refused(bert):
  vocab = list(TOKENIZER.vocab)
  vocab[7], vocab[8] = vocab[8], vocab[7]
  other = make_tokenizer(vocab, lowercase=True)
  assert_refused(
    bert, _bert(), "--config.data.vocab=", "vocab.txt", tokenizer=other
  )
  (bert / "vocab.txt").unlink()
  ids = {token: i for i, token in enumerate(TOKENIZER.vocab)}
  (bert / "tokenizer.json").write_text(
    json.dumps({"model": {"vocab": ids, "type": "WordPiece"}})
  )
  assert_refused(bert, _bert(), "tokenizer.json", tokenizer=other)
  (bert / "tokenizer.json").unlink()
  assert_refused(bert, _bert(), "no vocabulary file. Copy")


@pytest.mark.parametrize("make", [_pair, _bert])
def test_loads_old_names_and_ignores_old_constants(tmp_path, make):
  model = make()
  write_export(tmp_path, model)
  for role in model.roles:
    family = "bert" if role == "bert" else "electra"
    new = {f"{family}.embeddings.position_ids": np.arange(64)[None]}
    for name, x in read_tensors(tmp_path / role).items():
      if "LayerNorm" in name:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        new |= {name: None, old.replace("LayerNorm.bias", "LayerNorm.beta"): x}
    edit_tensors(tmp_path / role, new)
  assert_same_tree(load_params(tmp_path, model)[0], random_params(model))


def test_missing_heads_are_drawn_as_in_a_run_from_scratch(tmp_path):
  model = _bert(pooler=True)
  params = random_params(model)
  strip_prefix(write_export(tmp_path, model) / "bert")
  loaded, lines = load_params(tmp_path, model, seed=3)
  fresh = _init_params(model, 3)
  for name in ("embeddings", "bert"):
    assert_same_tree(loaded[name], params[name])
  assert_same_tree(loaded["bert_head"], fresh["bert_head"])
  for name, origin in ("pooler", params), ("next_sentence", fresh):
    assert_same_tree(loaded["pooled"][name], origin["pooled"][name])
  (line,) = lines
  assert "NOT in" in line and line.endswith("bert_head, pooled/next_sentence.")
  assert_refused(tmp_path, model, "lacks bert_head", "at random", complete=True)


def test_loads_a_pair_from_two_folders_or_a_discriminator_alone(tmp_path):
  model, params = _pair(), random_params(_pair())
  write_export(tmp_path, model)
  folders = [str(tmp_path / role) for role in ("generator", "discriminator")]
  assert_same_tree(load_params(", ".join(folders), model)[0], params)
  twice = f"{folders[1]},{tmp_path}"
  assert_refused(twice, model, "are both a discriminator")
  assert_refused(folders[0], model, "weights of a discriminator")
  fresh = _init_params(model, 5)
  loaded, lines = load_params(folders[1], model, seed=5)
  for name, x in loaded.items():
    origin = fresh if name.startswith("generator") else params
    assert_same_tree(x, origin[name])
  assert lines[0].endswith("DRAWN AT RANDOM: generator, generator_head.")


def test_folder_must_hold_the_network_that_it_is_named_after(tmp_path):
  write_export(tmp_path / "a", _pair())
  (tmp_path / "b").mkdir()
  (tmp_path / "b" / "discriminator").symlink_to(tmp_path / "a/discriminator")
  assert_refused(tmp_path / "b", _pair(), "leads out of the folder")
  (tmp_path / "a" / "generator").rename(tmp_path / "g")
  (tmp_path / "a" / "discriminator").rename(tmp_path / "a" / "generator")
  assert_refused(tmp_path / "a", _pair(), "holds a discriminator, according to")


@pytest.mark.parametrize(
  ("init", "message"),
  [
    ("model.safetensors", "holds no weights. Pass a folder"),
    ("missing/folder/of/weights", "there is no folder"),
    ("a" * 5_000, "is not a path"),
  ],
)
def test_invalid_locations_are_refused(tmp_path, monkeypatch, init, message):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "model.safetensors").touch()
  assert_refused(init, _bert(), message)
  (tmp_path / "empty").mkdir()
  assert_refused(tmp_path / "empty", _bert(), "holds no weights")


def test_case_must_be_that_of_the_weights(bert):
  vocab = [*TOKENIZER.vocab[:-1], "Berlin"]
  cased, uncased = (make_tokenizer(vocab, lowercase=x) for x in (False, True))
  write_vocabulary(vocab, bert / "vocab.txt")
  assert_refused(bert, _bert(), "config.data.lowercase=True", tokenizer=cased)
  # Without a tokenizer config, capitals in the vocabulary decide.
  (bert / "tokenizer_config.json").unlink()
  cased_flag = "config.data.lowercase=False"
  assert_refused(bert, _bert(), cased_flag, tokenizer=uncased)
  load_params(bert, _bert(), tokenizer=cased)


NEW = ("three", "new", "words")
CHANGED = make_tokenizer(
  [*(t for t in TOKENIZER.vocab if t not in ("w7", "w20")), *NEW],
  lowercase=True,
)


@pytest.mark.parametrize("make", [_pair, _bert])
def test_rows_of_known_words_are_copied_to_another_vocabulary(tmp_path, make):
  params = random_params(make())
  write_export(tmp_path, make())
  fields = dict(vocab_size=len(CHANGED.vocab), variant="tiny", max_positions=64)
  if make is _pair:
    model = pretrain.make_electra(**fields, generator_multiplier=0.5)
    head = "generator_head"
  else:
    model, head = pretrain.make_bert(**fields), "bert_head"
  assert_refused(tmp_path, model, "config.init_skip=words", tokenizer=CHANGED)
  loaded, lines = load_params(
    tmp_path, model, tokenizer=CHANGED, seed=2, skip="words"
  )
  fresh = _init_params(model, 2)
  for module, name in (("embeddings", "word"), (head, "bias")):
    for i, token in enumerate(CHANGED.vocab):
      expected = fresh[module][name][i]
      if token not in NEW:
        expected = params[module][name][TOKENIZER.vocab.index(token)]
      np.testing.assert_array_equal(loaded[module][name][i], expected)
  for module in loaded.keys() - {"embeddings", head}:
    assert_same_tree(loaded[module], params[module])
  (line,) = lines
  assert all(x in line for x in ("68 of 71", "(three, new, words)", "2 rows"))


def test_rows_of_padding_are_dropped_on_request(bert):
  tensors = read_tensors(bert)
  edit_tensors(
    bert,
    {
      name: np.pad(x, [(0, 6)] + [(0, 0)] * (x.ndim - 1))
      for name, x in tensors.items()
      if name in (WORDS, "cls.predictions.bias")
    },
  )
  edit_config(bert, {"vocab_size": tiny.V + 6})
  assert_refused(bert, _bert(), "config.init_skip=words")
  loaded, lines = load_params(bert, _bert(), skip="words")
  assert_same_tree(loaded, random_params(_bert()))
  assert "Dropped 6 rows" in lines[0]


def test_links_out_of_the_folder_are_refused(bert, tmp_path):
  for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
    (bert / name).rename(tmp_path / name)
    (bert / name).symlink_to(tmp_path / name)
    assert_refused(bert, _bert(), name, "leads out")
    (tmp_path / name).replace(bert / name)


WRAPPERS = ["_orig_mod.", "module.", "model.", "module._orig_mod.", "0.auto."]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("kind", ["bert", "bare", "modern"])
def test_a_common_prefix_of_names_is_taken_off_and_said(
  tmp_path, kind, wrapper
):
  model = _bert(backbone="modern" if kind == "modern" else "encoder")
  folder = write_export(tmp_path, model) / "bert"
  if kind == "bare":
    strip_prefix(folder)
  expected, drawn = load_params(folder, model)
  tensors = read_tensors(folder)
  old = dict.fromkeys(tensors)
  edit_tensors(folder, old | {f"{wrapper}{x}": y for x, y in tensors.items()})
  loaded, lines = load_params(folder, model)
  assert_same_tree(loaded, expected)
  line = f"init: read the names of '{folder}' without the prefix '{wrapper}'."
  assert lines == [line, *drawn]
  # What does not begin with it, such as a loss, is outside of the network.
  edit_tensors(folder, {"loss.weight": np.ones(3, np.float32)})
  _, lines = load_params(folder, model)
  assert any(line.endswith(": loss.") for line in lines)


def test_a_config_without_model_type_is_that_of_its_class(bert):
  edit_config(bert, {"model_type": None})
  loaded, _ = load_params(bert, _bert())
  assert_same_tree(loaded, random_params(_bert()))
  for classes in None, [], ["GPT2Model"], "BertModel":
    edit_config(bert, {"architectures": classes})
    assert_refused(bert, _bert(), "Add the one", '"model_type": "bert"')
  edit_config(bert, {"model_type": "gpt2"})
  assert_refused(bert, _bert(), "model_type='gpt2'", "Use other weights")


def test_another_kind_of_tokenizer_keeps_the_encoder(bert, tmp_path):
  tokenizer_files.write_files(tmp_path, "bpe")
  bpe = load_tokenizer(str(tmp_path / "tokenizer.json"), lowercase=True)
  assert bpe.lowercase != TOKENIZER.lowercase
  vocab = [*TOKENIZER.vocab[:-1], "a"]  # a word here, a piece of a word in BPE
  write_vocabulary(vocab, bert / "vocab.txt")
  assert "a" in bpe.vocab
  model = pretrain.make_bert(
    vocab_size=len(bpe.vocab), variant="tiny", max_positions=64
  )
  assert_refused(bert, model, "config.init_skip=words", tokenizer=bpe)
  loaded, [line] = load_params(bert, model, tokenizer=bpe, skip="words", seed=2)
  assert f"copied the rows of 5 of {len(bpe.vocab)} words" in line
  params = random_params(_bert())
  fresh = _init_params(model, 2)
  words = loaded["embeddings"].pop("word")
  expected = fresh["embeddings"].pop("word").copy()
  expected[[*bpe.special_ids]] = params["embeddings"].pop("word")[
    [*TOKENIZER.special_ids]
  ]
  np.testing.assert_array_equal(words, expected)
  assert_same_tree(loaded["embeddings"], params["embeddings"])
  assert_same_tree(loaded["bert"], params["bert"])
