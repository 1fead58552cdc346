"""Loading weights: what is read, copied or drawn at random."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import tiny, tokenizer_files
from support.tokenizer_files import write_vocabulary
from support.weight_files import (
  TOKENIZER,
  assert_same_tree,
  edit_config,
  edit_tensors,
  load_params,
  random_params,
  read_tensors,
  run_export,
  strip_prefix,
  write_export,
  write_run,
)
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import bert_base, electra_small
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import plan
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import load
from truenegs_jax.workdir.saved_model import build_model

SMALL = {"layers": 1, "max_positions": 64}


def _bert(**fields):
  return tiny.make_bert(**SMALL | fields)


def _pair(**fields):
  return tiny.make_model(**SMALL | fields)


def _downstream(role, head, outputs=2, **fields):
  return tiny.make_downstream(role, head, outputs, **SMALL | fields)


@pytest.fixture(autouse=True)
def quick_init(monkeypatch):
  """Replaces slow initialization by `random_params` with seed + 100."""

  def draw_params(model, seed):
    return random_params(model, 100 + seed)

  monkeypatch.setattr(load, "draw_params", draw_params)


def test_weights_in_bfloat16_are_read_as_float32(tmp_path):
  model = _bert(pooler=True)
  bert = write_export(tmp_path, model) / "bert"
  tensors = read_tensors(bert)
  edit_tensors(bert, {x: y.astype(jnp.bfloat16) for x, y in tensors.items()})
  half = jax.tree.map(
    lambda x: np.float32(jnp.bfloat16(x)), random_params(model)
  )
  loaded, _ = load_params(tmp_path, model)
  assert_same_tree(loaded, half)
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {np.dtype(np.float32)}


def test_training_keeps_pooler_and_next_sentence():
  c = bert_base.get_config("runlocal,baseline")
  c.init, c.model.max_positions = "weights", 64  # with a pooler
  run = plan.make_run(PretrainConfig.read(c), TOKENIZER)
  params = random_params(run.model)
  grads = jax.tree.map(np.zeros_like, params)  # these have none
  state, update = run.tx.init(params), jax.jit(run.tx.update)
  for _ in range(2):  # the first step of a warm-up has the rate 0
    updates, state = update(grads, state, params)
  assert not any(map(np.any, jax.tree.leaves(updates["pooled"])))
  assert np.any(updates["embeddings"]["word"])  # others decay


def test_a_pair_without_shared_embeddings_is_refused(tmp_path):
  model = _pair()
  params = random_params(model)
  write_export(tmp_path, model)
  full = "electra.embeddings.position_embeddings.weight"
  x = read_tensors(tmp_path / "generator")[full]
  # A difference by rounding is accepted.
  edit_tensors(tmp_path / "generator", {full: x + np.float32(1e-8)})
  assert_same_tree(load_params(tmp_path, model)[0], params)
  far = x.copy()
  far[..., 3] += 0.125
  edit_tensors(tmp_path / "generator", {full: far})
  words = "embeddings/position.* up to 0.125.*sharing=disentangled"
  with pytest.raises(InputError, match=words):
    load_params(tmp_path, model)


def test_a_pair_that_does_not_share_keeps_the_embeddings_of_each(tmp_path):
  model = _pair(sharing="disentangled")
  params = random_params(model)
  write_export(tmp_path, model)
  loaded, lines = load_params(tmp_path, model)
  assert not lines
  own = load.load(str(tmp_path)).params
  for role in model.roles:
    expected = pretrain.own_embeddings(params, role)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-7)
    jax.tree.map(close, pretrain.own_embeddings(loaded, role), expected)
    equal = np.testing.assert_array_equal
    jax.tree.map(equal, pretrain.own_embeddings(own, role), expected)
  loaded, _ = load_params(tmp_path / "discriminator", model)
  expected = pretrain.own_embeddings(params, "discriminator")["embeddings"]
  assert_same_tree(loaded["embeddings"], expected)


def test_missing_modules_are_drawn_as_in_a_run_from_scratch(
  tmp_path, monkeypatch
):
  monkeypatch.undo()  # of quick_init
  model = _bert(pooler=True)
  params = random_params(model)
  init = jax.jit(lambda: pretrain.init_params(model, jax.random.key(3)))
  fresh = jax.device_get(init())
  strip_prefix(write_export(tmp_path, model) / "bert")
  loaded, [line] = load_params(tmp_path, model, seed=3)
  for name in ("embeddings", "bert"):
    assert_same_tree(loaded[name], params[name])
  assert_same_tree(loaded["bert_head"], fresh["bert_head"])
  for name, origin in ("pooler", params), ("next_sentence", fresh):
    assert_same_tree(loaded["pooled"][name], origin["pooled"][name])
  assert "NOT in" in line and line.endswith("bert_head, pooled/next_sentence.")
  with pytest.raises(InputError, match="lacks bert_head.*at random"):
    load_params(tmp_path, model, complete=True)


@pytest.mark.parametrize("skip", ["", "head, words"])
def test_a_missing_generator_or_skipped_head_is_drawn(tmp_path, skip):
  params, fresh = random_params(_pair()), random_params(_pair(), 105)
  folder = write_export(tmp_path, _pair())
  init, drawn = folder / "discriminator", ["generator", "generator_head"]
  if skip:
    init, drawn = folder, ["discriminator_head", "generator_head"]
  loaded, lines = load_params(init, _pair(), seed=5, skip=skip)
  for name, x in loaded.items():
    assert_same_tree(x, (fresh if name in drawn else params)[name])
  assert lines[-1].endswith(f"DRAWN AT RANDOM: {', '.join(drawn)}.")


NEW = ("three", "new", "words")
CHANGED = make_tokenizer(
  [*(t for t in TOKENIZER.vocab if t not in ("w7", "w20")), *NEW],
  lowercase=True,
)


@pytest.mark.parametrize("make", [_pair, _bert])
def test_rows_of_known_words_are_copied_to_another_vocabulary(tmp_path, make):
  params = random_params(make())
  write_export(tmp_path, make())
  fields = SMALL | {"vocab_size": len(CHANGED.vocab), "variant": "tiny"}
  if make is _pair:
    model = pretrain.make_electra(**fields, generator_multiplier=0.5)
    head = "generator_head"
  else:
    model, head = pretrain.make_bert(**fields), "bert_head"
  loaded, [line] = load_params(
    tmp_path, model, tokenizer=CHANGED, seed=2, skip="words"
  )
  fresh = random_params(model, 102)
  for module, name in (("embeddings", "word"), (head, "bias")):
    for i, token in enumerate(CHANGED.vocab):
      expected = fresh[module][name][i]
      if token not in NEW:
        expected = params[module][name][TOKENIZER.vocab.index(token)]
      np.testing.assert_array_equal(loaded[module][name][i], expected)
  for module in loaded.keys() - {"embeddings", head}:
    assert_same_tree(loaded[module], params[module])
  assert all(x in line for x in ("68 of 71", "(three, new, words)", "2 rows"))


def test_rows_of_padding_are_dropped(tmp_path):
  bert = write_export(tmp_path, _bert()) / "bert"
  words = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
  tensors = read_tensors(bert)
  widths = {
    name: [(0, 6)] + [(0, 0)] * (tensors[name].ndim - 1) for name in words
  }
  edit_tensors(bert, {x: np.pad(tensors[x], widths[x]) for x in words})
  edit_config(bert, {"vocab_size": tiny.V + 6})
  loaded, [line] = load_params(bert, _bert(), skip="words")
  assert_same_tree(loaded, random_params(_bert()))
  assert "Dropped 6 rows" in line
  assert_same_tree(load.load(str(bert), report=str).params, loaded)


def test_another_kind_of_tokenizer_keeps_the_encoder(tmp_path):
  bert = write_export(tmp_path, _bert()) / "bert"
  tokenizer_files.write_files(tmp_path, "bpe")
  bpe = load_tokenizer(str(tmp_path / "tokenizer.json"), lowercase=True)
  assert bpe.lowercase != TOKENIZER.lowercase
  vocab = [*TOKENIZER.vocab[:-1], "a"]  # a word here, a piece of a word in BPE
  write_vocabulary(vocab, bert / "vocab.txt")
  assert "a" in bpe.vocab
  model = pretrain.make_bert(vocab_size=len(bpe.vocab), variant="tiny", **SMALL)
  loaded, [line] = load_params(bert, model, tokenizer=bpe, skip="words", seed=2)
  assert f"copied the rows of 5 of {len(bpe.vocab)} words" in line
  params = random_params(_bert())
  fresh = random_params(model, 102)
  words = loaded["embeddings"].pop("word")
  expected = fresh["embeddings"].pop("word")
  known = params["embeddings"].pop("word")[[*TOKENIZER.special_ids]]
  expected[[*bpe.special_ids]] = known
  np.testing.assert_array_equal(words, expected)
  assert_same_tree(loaded["embeddings"], params["embeddings"])
  assert_same_tree(loaded["bert"], params["bert"])


def _as_run(folder, role="discriminator"):
  """Writes the workdir of a pre-training run with one checkpoint."""
  config = electra_small if role == "discriminator" else bert_base
  c = config.get_config("runlocal")
  c.init = "weights"  # a BERT with a pooler
  c.model.update(SMALL)
  model = build_model(c, vocab_size=tiny.V)
  return write_run(folder, c, {3: random_params(model)})


# Case -> role, head, and how the weights are written.
STARTS = {
  "pair": ("discriminator", "dense", _pair),
  "discriminator run": ("discriminator", "dense", None),
  "bert": ("bert", "pooler", _bert),
  "bert spans": ("bert", "spans", _bert),
  "pooled": ("bert", "pooler", lambda: _bert(pooler=True)),
  "run": ("bert", "pooler", None),
}


@pytest.mark.parametrize("case", STARTS)
def test_fine_tuning_takes_the_encoder_of_any_pre_training(tmp_path, case):
  role, head, make = STARTS[case]
  if make:
    init = write_export(tmp_path, make())
    expected = random_params(make())
  else:
    init = _as_run(tmp_path, role)
    expected = random_params(_pair() if role != "bert" else _bert(pooler=True))
  model = _downstream(role, head)
  loaded, lines = load_params(init, model, seed=5)
  fresh = random_params(model, 105)
  assert_same_tree(loaded["embeddings"], expected["embeddings"])
  assert_same_tree(loaded[role], expected[role])
  assert_same_tree(loaded["task_head"], fresh["task_head"])
  if head == "pooler":
    pooler = expected if "pooled" in expected else fresh
    assert_same_tree(loaded["pooled"], {"pooler": pooler["pooled"]["pooler"]})
    assert ("DRAWN AT RANDOM: pooled/pooler" in lines[-1]) == (case == "bert")
  name = "cls" if role == "bert" else "discriminator_predictions"
  assert lines[0].endswith(f": {name}.") and "task_head/output." in lines[1]


def _fine_tuned(folder, role, head, labels):
  """Writes a fine-tuned model; returns its folder and parameters."""
  model = _downstream(role, head, len(labels))
  more = {"id2label": {str(i): x for i, x in enumerate(labels)}}
  write_export(folder, model, extra_fields=more)
  return folder / role, random_params(model)


@pytest.mark.parametrize(
  ("role", "saved", "head", "left_out", "saved_class"),
  [
    ("discriminator", "dense", "spans", "classifier", ""),
    ("discriminator", "spans", "dense", "qa_outputs", ""),
    ("bert", "pooler", "pooler", "classifier", "BertForTokenClassification"),
  ],
)
def test_a_head_of_another_task_is_left_out(
  tmp_path, role, saved, head, left_out, saved_class
):
  folder, params = _fine_tuned(tmp_path, role, saved, ("no", "yes"))
  if saved_class:  # another class with the same shapes
    edit_config(folder, {"architectures": [saved_class]})
  model = _downstream(role, head)
  loaded, lines = load_params(folder, model)
  assert_same_tree(loaded[role], params[role])
  fresh = random_params(model, 100)
  assert_same_tree(loaded["task_head"], fresh["task_head"])
  assert lines[0].endswith(f"lacks of '{folder}': {left_out}.")
  with pytest.raises(InputError, match="lacks task_head"):
    load_params(folder, model, complete=True)


def test_a_head_of_more_classes_is_refused_or_skipped(tmp_path):
  folder, params = _fine_tuned(tmp_path, "bert", "pooler", "abc")
  model = _downstream("bert", "pooler")
  words = r"(?s)classifier.* is \(3,\).*--config.init_skip=head"
  with pytest.raises(InputError, match=words):
    load_params(folder, model)
  loaded, lines = load_params(folder, model, skip="head")
  assert_same_tree(loaded["bert"], params["bert"])
  assert "classifier" in lines[0] and lines[1].endswith("task_head/output.")


@pytest.mark.parametrize(
  ("role", "head", "backbone"),
  [
    ("discriminator", "dense", "encoder"),
    ("bert", "pooler", "encoder"),
    ("bert", "dense", "modern"),
  ],
)
def test_pre_training_and_export_take_a_fine_tuned_model(
  tmp_path, no_torch, role, head, backbone
):
  fields = {"backbone": backbone, "layers": 2}
  tuned = _downstream(role, head, **fields)
  params = random_params(tuned)
  write_export(tmp_path / "in", tuned, params)
  make = _bert if role == "bert" else _pair
  model = make(**fields)
  loaded, lines = load_params(tmp_path / "in" / role, model, seed=3)
  assert_same_tree(loaded[role], params[role])
  assert_same_tree(loaded["embeddings"], params["embeddings"])
  name = f"{role}_head"
  assert_same_tree(loaded[name], random_params(model, 103)[name])
  assert "left out what this model lacks" in lines[0]
  assert "DRAWN AT RANDOM" in lines[1] and name in lines[1]
  output = tmp_path / "again"
  code, printed = run_export(tmp_path / "in" / role, f"--output={output}")
  assert code == 0
  assert "left out what" in printed and f"RANDOM: {name}" in printed


def test_a_pair_of_two_vocabularies_is_refused_also_if_words_differ(tmp_path):
  others = make_tokenizer(TOKENIZER.vocab[::-1], lowercase=True)
  first = write_export(tmp_path / "a", _pair()) / "discriminator"
  second = write_export(tmp_path / "b", _pair(), tokenizer=others) / "generator"
  with pytest.raises(InputError, match="Pass two networks of one vocabulary"):
    load_params(f"{first},{second}", _pair(), skip="words")
