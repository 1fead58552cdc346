"""Loading weights to fine-tune, with or without a task head."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from support import tiny
from support.weight_files import (
  assert_same_tree,
  edit_config,
  edit_tensors,
  load_params,
  random_params,
  run_export,
  strip_prefix,
  write_export,
  write_run,
)
from truenegs_jax.configs import (
  bert_base,
  electra_demo,
  finetune_glue,
  finetune_own,
  finetune_squad,
)
from truenegs_jax.finetune.start import resolve
from truenegs_jax.finetune.task_data import parse_options
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import find, load, match
from truenegs_jax.workdir.saved_model import build_model

TASK = task_lib.Task("nli", "NLI", task_lib.CLASSES, labels=("no", "yes"))
FRESH_HEAD = "init: the task head starts from scratch."
POOLER = "pooled/pooler"


def _model(role, head, outputs=2):
  return finetune.make_downstream(
    role=role,
    head=head,
    num_outputs=outputs,
    vocab_size=tiny.V,
    variant="tiny",
    max_positions=64,
  )


@functools.cache
def _pre_trained(role, *, pooler=False):
  """Returns a pre-trained model and random parameters."""
  if role == "bert":
    model = tiny.make_bert(max_positions=64, pooler=pooler)
  else:
    model = tiny.make_model(max_positions=64)
  return model, random_params(model)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
  """Replaces slow initialization by `random_params` with seed + 100."""

  def draw_params(model, seed):
    return random_params(model, 100 + seed)

  monkeypatch.setattr(load, "draw_params", draw_params)


def _load(init, model, **kwargs):
  """Returns the parameters, of the model's shapes, and the reported lines."""
  params, lines = load_params(init, model, **kwargs)
  shapes = pretrain.param_shapes(model)
  assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, shapes)
  return params, lines


def _encoder(init):
  return find.Weights(str(init)).encoder()


def _as_pair(folder):
  write_export(folder, *_pre_trained("discriminator"))
  return folder


def _as_discriminator(folder):
  return _as_pair(folder) / "discriminator"


def _as_two_folders(folder):
  _as_pair(folder)
  return f"{folder / 'discriminator'},{folder / 'generator'}"


def _as_bare(folder):
  encoder = _as_discriminator(folder)
  strip_prefix(encoder)
  return encoder


def _as_run(folder, role="discriminator"):
  """Writes the workdir of a pre-training run with one checkpoint."""
  config = electra_demo if role == "discriminator" else bert_base
  c = config.get_config("runlocal")
  c.model.max_positions = 64
  if role == "bert":
    c.init = "weights"  # which have a pooler
  model = build_model(c, vocab_size=tiny.V)
  expected, params = _pre_trained(role, pooler=True)
  assert pretrain.param_shapes(model) == pretrain.param_shapes(expected)
  return write_run(folder, c, {3: params})


def _as_bert(folder):
  return write_export(folder, *_pre_trained("bert"))


def _as_pooled_bert(folder):
  """Adds output embeddings that are not tied, as in some files."""
  folder = write_export(folder, *_pre_trained("bert", pooler=True)) / "bert"
  edit_tensors(
    folder,
    {
      "cls.predictions.decoder.weight": np.ones((tiny.V, 32), np.float32),
      "cls.predictions.decoder.bias": np.ones(tiny.V, np.float32),
    },
  )
  return folder


def _as_bare_bert(folder):
  """Writes a BertModel with pooler, names without "bert.", as in MiniLM."""
  encoder = _as_pooled_bert(folder)
  strip_prefix(encoder)
  return encoder


@pytest.mark.parametrize("make", [_as_pair, _as_two_folders, _as_bare, _as_run])
def test_loads_the_discriminator_from_any_format(tmp_path, make):
  init = make(tmp_path / "in")
  _, params = _pre_trained("discriminator")
  model = _model("discriminator", "dense")
  loaded, lines = _load(init, model, seed=5)
  fresh = random_params(model, 105)
  expected = {name: params[name] for name in ("embeddings", "discriminator")}
  assert_same_tree(loaded, expected | {"task_head": fresh["task_head"]})
  assert lines[-1] == FRESH_HEAD
  if make != _as_bare:
    head = "discriminator_head" if make == _as_run else "discriminator_pred"
    assert f": {head}" in lines[0]
  encoder = _encoder(init)
  assert encoder.role == "discriminator"
  assert encoder.fields["max_position_embeddings"] == 64


@pytest.mark.parametrize("head", ["pooler", "spans"])
@pytest.mark.parametrize(
  "make",
  [
    _as_bert,
    _as_pooled_bert,
    _as_bare_bert,
    functools.partial(_as_run, role="bert"),
  ],
  ids=["masked", "pre-trained", "bare", "run"],
)
def test_loads_bert_from_any_format_and_its_pooler_if_needed(
  tmp_path, make, head
):
  init, model = make(tmp_path / "in"), _model("bert", head)
  _, params = _pre_trained("bert", pooler=make != _as_bert)
  loaded, lines = _load(init, model)
  for name in ("embeddings", "bert"):
    assert_same_tree(loaded[name], params[name])
  if head != "pooler":
    assert "pooled" not in loaded and lines[1:] == [FRESH_HEAD]
    assert "left out what this model lacks" in lines[0]
  elif make == _as_bert:
    drawn = f"init: NOT in '{init / 'bert'}', so DRAWN AT RANDOM: {POOLER}."
    assert lines[-2:] == [drawn, FRESH_HEAD]
    with pytest.raises(InputError, match=f"lacks {POOLER}"):
      _load(init, model, complete=True)
  else:
    assert_same_tree(loaded["pooled"]["pooler"], params["pooled"]["pooler"])
    assert lines[-1] == FRESH_HEAD
  assert _encoder(init).role == "bert"


def test_a_generator_cannot_be_fine_tuned(tmp_path):
  folder = _as_pair(tmp_path) / "generator"
  message = "holds a generator, but .*discriminator"
  with pytest.raises(InputError, match=message):
    _encoder(folder)
  with pytest.raises(InputError, match="Pass weights of a discriminator"):
    _load(folder, _model("discriminator", "dense"))


def _fine_tuned(folder, role, head, labels):
  """Writes a fine-tuned model; returns its folder and parameters."""
  model = _model(role, head, len(labels))
  params = random_params(model)
  more = {"id2label": {str(i): x for i, x in enumerate(labels)}}
  return write_export(folder, model, params, extra_fields=more) / role, params


@pytest.mark.parametrize(
  ("role", "head"), [("discriminator", "dense"), ("bert", "pooler")]
)
def test_classes_are_reordered_as_in_the_task(tmp_path, role, head):
  folder, params = _fine_tuned(tmp_path, role, head, ("YES", "no"))
  model = _model(role, head)
  loaded, lines = _load(folder, model, task=TASK)
  output, saved = (x["task_head"].pop("output") for x in (loaded, params))
  assert_same_tree(jax.tree.map(lambda x: x[..., ::-1], output), saved)
  assert_same_tree(loaded, params)
  assert not lines
  other_task = dataclasses.replace(TASK, labels=("0", "1"))
  loaded, [line] = _load(folder, model, task=other_task)
  assert "(yes, no) are 0, 1, in this order" in line
  assert_same_tree(loaded["task_head"]["output"], saved)


CLASSES = ("no", "yes")
# Role, head and labels of the weights; head of the model; what is left out,
# and of which class the weights are, if not of the head's.
OTHER_HEADS = [
  ("discriminator", "dense", CLASSES, "spans", "classifier", ""),
  ("discriminator", "spans", CLASSES, "dense", "qa_outputs", ""),
  ("bert", "pooler", CLASSES, "pooler", "classifier", "TokenClassification"),
]


@pytest.mark.parametrize(
  ("role", "saved_head", "labels", "head", "left_out", "saved_class"),
  OTHER_HEADS,
)
def test_head_of_another_task_is_left_out(
  tmp_path, role, saved_head, labels, head, left_out, saved_class
):
  folder, params = _fine_tuned(tmp_path, role, saved_head, labels)
  if saved_class:  # another class with the same shapes
    edit_config(folder, {"architectures": [f"BertFor{saved_class}"]})
  model = _model(role, head)
  loaded, lines = _load(folder, model, task=TASK)
  assert_same_tree(loaded[role], params[role])
  fresh = random_params(model, 100)
  assert_same_tree(loaded["task_head"], fresh["task_head"])
  report = f"init: left out what this model lacks of '{folder}': {left_out}."
  assert lines == [report, FRESH_HEAD]
  if role == "bert":
    assert_same_tree(loaded["pooled"], params["pooled"])
  with pytest.raises(InputError, match="lacks task_head"):
    _load(folder, model, task=TASK, complete=True)


@pytest.mark.parametrize(
  ("role", "head", "name"),
  [
    ("discriminator", "dense", "out_proj.bias"),
    ("bert", "pooler", "classifier.bias"),
  ],
)
def test_head_of_more_classes_is_refused_or_skipped(tmp_path, role, head, name):
  folder, params = _fine_tuned(tmp_path, role, head, "abc")
  model = _model(role, head)
  with pytest.raises(
    InputError, match=rf"(?s){name} is \(3,\).*--config.init_skip=head"
  ):
    _load(folder, model, task=TASK)
  loaded, lines = _load(folder, model, task=TASK, skip="head")
  assert_same_tree(loaded[role], params[role])
  assert lines[1:] == [FRESH_HEAD] and "classifier" in lines[0]


@pytest.mark.parametrize(
  ("role", "head", "backbone"),
  [
    ("discriminator", "dense", "encoder"),
    ("bert", "pooler", "encoder"),
    ("bert", "spans", "encoder"),
    ("bert", "dense", "modern"),
  ],
)
def test_pre_training_and_export_take_a_fine_tuned_model(
  tmp_path, no_torch, capsys, role, head, backbone
):
  tuned = finetune.make_downstream(
    **{"role": role, "head": head, "num_outputs": 2, "vocab_size": tiny.V},
    **{"variant": "tiny", "max_positions": 64, "backbone": backbone},
  )
  params = random_params(tuned)
  folder = tmp_path / "out" / "seed-0" / "model"
  write_export(folder, tuned, params)
  make = tiny.make_bert if role == "bert" else tiny.make_model
  model = make(max_positions=64, backbone=backbone)
  loaded, lines = _load(folder / role, model, seed=3)
  assert_same_tree(loaded[role], params[role])
  assert_same_tree(loaded["embeddings"], params["embeddings"])
  fresh = random_params(model, 103)
  name = f"{role}_head"
  assert_same_tree(loaded[name], fresh[name])
  assert "left out what this model lacks" in lines[0]
  assert "DRAWN AT RANDOM" in lines[1] and name in lines[1]
  assert run_export(folder / role, f"--output={tmp_path / 'again'}") == 0
  printed = capsys.readouterr().out
  assert "left out what" in printed and "DRAWN AT RANDOM" in printed
  again = find.Weights(str(tmp_path / "again")).for_roles([role])[role]
  assert (
    again.architecture != find.Weights(str(folder)).networks[role].architecture
  )


def test_unknown_array_of_the_encoder_is_refused(tmp_path):
  folder = _as_discriminator(tmp_path)
  edit_tensors(folder, {"electra.encoder.extra": np.zeros(3, np.float32)})
  for skip in ("", "head"):
    with pytest.raises(InputError, match="electra.encoder.extra .* not in"):
      _load(folder, _model("discriminator", "dense"), skip=skip)


def test_pre_training_can_skip_the_heads(tmp_path):
  model, params = _pre_trained("discriminator")
  assert match.parse_skip("head, words") == {"head", "words"}
  loaded, lines = _load(_as_pair(tmp_path), model, skip="head")
  fresh = random_params(model, 100)
  for name in loaded:
    origin = fresh if name.endswith("_head") else params
    assert_same_tree(loaded[name], origin[name])
  assert "discriminator_head, generator_head" in lines[-1]


def test_fine_tuning_workdir_is_refused_with_a_model_to_pass(tmp_path):
  for seed in (1, 0):
    model = tmp_path / "rte" / f"seed-{seed}" / "model"
    model.mkdir(parents=True)
  (tmp_path / "config.json").write_text("{}")
  for folder in (tmp_path, tmp_path / "rte", model.parent):
    with pytest.raises(InputError, match=f"Pass one of .*init={model}.$"):
      _encoder(folder)


@pytest.mark.parametrize("task", ["mrpc", "squad", "own"])
def test_pairs_of_texts_need_two_token_types(tmp_path, task):
  for types in (1, 2):
    model = tiny.make_bert(max_positions=128, type_vocab_size=types)
    folder = write_export(tmp_path / str(types), model) / "bert"
    makers = {"squad": finetune_squad, "own": finetune_own}
    c = makers.get(task, finetune_glue).get_config()
    c.init = str(folder)
    c.length = 64
    c.finetune.tasks = task
    options = parse_options(c.to_dict())
    pairs = task_lib.define_own_task(text="a,b", label="label", kind="classes")
    pairs = dataclasses.replace(pairs, labels=("a", "b"))
    of_pairs = pairs if task == "own" else options.find_task(task)
    opened = resolve(options, str)
    if types == 1:
      with pytest.raises(InputError, match="one token type, but .* has pairs"):
        opened.match_task(of_pairs)
      single = dataclasses.replace(pairs, columns=("a",))
      assert opened.match_task(single)
    else:
      assert opened.match_task(of_pairs)
