"""Weights to fine-tune: the network of any kind of them, and a task's head."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from flax import traverse_util

from support import tf1_stand_in, tiny
from support.weight_files import (
  TOKENIZER,
  assert_same,
  edit,
  edit_config,
  random_params,
  strip_prefix,
  write,
  write_run,
)
from truenegs_jax.configs import bert_base, electra_demo
from truenegs_jax.data.tokens.tokenizer import write_vocabulary
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.export import finetuned
from truenegs_jax.weights.formats import (
  find,
  google_tf1,
)
from truenegs_jax.weights.init import check_fit, head_transfer, load
from truenegs_jax.workdir.from_config import build_model

TASK = task_lib.Task("nli", "NLI", task_lib.CLASSES, labels=("no", "yes"))
HEAD = "init: the head of the task starts from scratch"
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
def _pre_trained(role, **fields):
  """A model, and random parameters of it."""
  make = tiny.make_bert if role == "bert" else tiny.make_model
  return _drawn(make(max_positions=64, **fields))


def _drawn(model, seed=0):
  return model, random_params(model, seed)


@pytest.fixture(autouse=True)
def from_scratch(monkeypatch):
  """What a run from scratch starts with, in less time than it takes."""
  draw = lambda model, seed: traverse_util.flatten_dict(
    _drawn(model, 100 + seed)[1], sep="/"
  )
  monkeypatch.setattr(load, "_fresh", draw)
  monkeypatch.setattr(google_tf1, "load_checkpoint", tf1_stand_in.Reader)


def _load(place, model, **kwargs):
  """The parameters and what was said."""
  said = []
  read = load.load_params(
    find.Weights(str(place)),
    model,
    tokenizer=TOKENIZER,
    report=said.append,
    **kwargs,
  )
  shapes = pretrain.param_shapes(model)
  assert jax.tree.map(np.shape, read) == jax.tree.map(np.shape, shapes)
  return read, said


def _as_pair(folder):
  write(folder, *_pre_trained("discriminator"))
  return folder


def _as_discriminator(folder):
  return _as_pair(folder) / "discriminator"


def _as_two_places(folder):
  _as_pair(folder)
  return f"{folder / 'discriminator'},{folder / 'generator'}"


def _as_bare(folder):
  place = _as_discriminator(folder)
  strip_prefix(place)
  return place


def _as_google(folder, role="discriminator"):
  fields = {"pooler": True} if role == "bert" else {}
  model, params = _pre_trained(role, **fields)
  tf1_stand_in.write_model(folder / "model.ckpt", model, params)
  write_vocabulary(TOKENIZER.vocab, folder / "vocab.txt")
  return folder


def _as_run(folder, role="discriminator"):
  """A workdir of pre-training that has saved one step."""
  config = electra_demo if role == "discriminator" else bert_base
  c = config.get_config("runlocal")
  c.model.max_positions = 64
  if role == "bert":
    c.model.pooler = True
  model = build_model(c, vocab_size=tiny.V)
  expected, params = _pre_trained(
    role, **({"pooler": True} if role == "bert" else {})
  )
  assert pretrain.param_shapes(model) == pretrain.param_shapes(expected)
  return write_run(folder, c, {3: params})


def _as_bert(folder):
  return write(folder, *_pre_trained("bert"))


def _as_pooled_bert(folder):
  """With a head that was trained on without its table, as some files have."""
  place = write(folder, *_pre_trained("bert", pooler=True)) / "bert"
  edit(
    place,
    {
      "cls.predictions.decoder.weight": np.ones((tiny.V, 32), np.float32),
      "cls.predictions.decoder.bias": np.ones(tiny.V, np.float32),
    },
  )
  return place


def _as_bare_bert(folder):
  """As MiniLM: BertModel, with its pooler, names without "bert."."""
  place = _as_pooled_bert(folder)
  strip_prefix(place)
  return place


@pytest.mark.parametrize(
  "make",
  [_as_pair, _as_discriminator, _as_two_places, _as_bare, _as_google, _as_run],
)
def test_the_discriminator_of_any_weights_is_taken(tmp_path, make):
  place = make(tmp_path / "in")
  _, params = _pre_trained("discriminator")
  model = _model("discriminator", "linear")
  read, said = _load(place, model, seed=5)
  _, fresh = _drawn(model, 105)
  assert_same(
    read,
    {name: params[name] for name in ("embeddings", "discriminator")}
    | {"task_head": fresh["task_head"]},
  )
  assert said == [HEAD]
  encoder = find.Weights(str(place)).encoder()
  assert encoder.role == "discriminator"
  assert encoder.fields["max_position_embeddings"] == 64


@pytest.mark.parametrize("head", ["pooler", "linear", "joint"])
@pytest.mark.parametrize(
  "make",
  [
    _as_bert,
    _as_pooled_bert,
    _as_bare_bert,
    functools.partial(_as_google, role="bert"),
    functools.partial(_as_run, role="bert"),
  ],
  ids=["masked", "pre-trained", "bare", "google", "run"],
)
def test_bert_is_taken_and_its_pooler_where_it_is_wanted(tmp_path, make, head):
  place, model = make(tmp_path / "in"), _model("bert", head)
  _, params = _pre_trained(
    "bert", **({} if make == _as_bert else dict(pooler=True))
  )
  read, said = _load(place, model)
  for name in ("embeddings", "bert"):
    assert_same(read[name], params[name])
  if head != "pooler":
    assert "pooled" not in read and said[-1:] == [HEAD] and len(said) == 1
  elif make == _as_bert:
    assert said == [f"init: NOT in {place}, so DRAWN AT RANDOM: {POOLER}", HEAD]
    with pytest.raises(InputError, match=f"RANDOM: {POOLER}"):
      _load(place, model, complete=True)
  else:
    assert_same(read["pooled"]["pooler"], params["pooled"]["pooler"])
    assert said == [HEAD]
  assert find.Weights(str(place)).encoder().role == "bert"


def test_a_generator_is_not_what_is_fine_tuned(tmp_path):
  place = str(_as_pair(tmp_path) / "generator")
  with pytest.raises(InputError, match="holds a generator, and .* partner"):
    find.Weights(place).encoder()
  with pytest.raises(InputError, match="give weights of a discriminator"):
    _load(place, _model("discriminator", "linear"))


def _fine_tuned(folder, role, head, labels):
  """Written as transformers does; folder and parameters."""
  model, params = _drawn(_model(role, head, len(labels)))
  more = {"id2label": {str(i): x for i, x in enumerate(labels)}}
  return write(folder, model, params, extra_fields=more) / role, params


@pytest.mark.parametrize(
  ("role", "head"), [("discriminator", "dense"), ("bert", "pooler")]
)
def test_classes_come_in_the_order_of_the_task(tmp_path, role, head):
  place, params = _fine_tuned(tmp_path, role, head, ("YES", "no"))
  model = _model(role, head)
  read, said = _load(place, model, task=TASK)
  ours, theirs = (x["task_head"].pop("output") for x in (read, params))
  assert_same(jax.tree.map(lambda x: x[..., ::-1], ours), theirs)
  assert_same(read, params)
  assert not said
  strangers = dataclasses.replace(TASK, labels=("0", "1"))
  read, [line] = _load(place, model, task=strangers)
  assert "yes, no, are taken to be 0, 1, in this order" in line
  assert_same(read["task_head"]["output"], theirs)
  assert (
    head_transfer.detect_task_head(find.Weights(str(place)).encoder()) == head
  )


SCORE = task_lib.Task("sim", "Sim", task_lib.SCORE, scale=(1.0, 4.0))


@pytest.mark.parametrize("task", [TASK, SCORE], ids=["classes", "score"])
@pytest.mark.parametrize("role", ["discriminator", "bert"])
def test_an_exported_linear_head_is_read_back(tmp_path, role, task):
  model, params = _drawn(_model(role, "linear", len(task.labels) or 1))
  written = finetuned.unscale_head(params, task)
  more = {"id2label": {str(i): x for i, x in enumerate(task.labels)}}
  place = write(tmp_path, model, written, extra_fields=more) / role
  read, said = _load(place, model, task=task, complete=True)
  assert not said
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), read, params
  )
  assert (
    head_transfer.detect_task_head(find.Weights(str(place)).encoder())
    == "linear"
  )
  with pytest.raises(InputError, match="finetune.head=linear takes it"):
    _load(place, _model(role, "dense" if role != "bert" else "pooler"))


@pytest.mark.parametrize("role", ["discriminator", "bert"])
def test_a_head_of_other_classes_is_refused_or_skipped(tmp_path, role):
  head = {"discriminator": "dense", "bert": "pooler"}[role]
  place, params = _fine_tuned(tmp_path, role, head, ("a", "b", "c"))
  model = _model(role, head)
  with pytest.raises(
    InputError,
    match=r"has 3 outputs \(a, b, c\), and this task wants 2 \(no, yes\):"
    " --config.init_skip=head",
  ):
    _load(place, model, task=TASK)
  read, said = _load(place, model, task=TASK, skip="head")
  assert_same(read[role], params[role])
  assert said == [HEAD]
  if role == "bert":
    assert_same(read["pooled"], params["pooled"])


@pytest.mark.parametrize(
  ("head", "wanted", "said"),
  [
    ("dense", "linear", "finetune.head=dense takes .*init_skip=head"),
    (
      "dense",
      "spans",
      "head of ElectraForSeq.* not finetune.head=spans: --config.init",
    ),
    ("spans", "dense", "of ElectraForQuestionAnswering .qa_outputs.bias"),
    ("spans", "joint", "finetune.head=spans takes"),
  ],
)
def test_the_head_of_another_kind_is_refused_or_skipped(
  tmp_path, head, wanted, said
):
  place, params = _fine_tuned(tmp_path, "discriminator", head, ("no", "yes"))
  model = _model("discriminator", wanted)
  with pytest.raises(InputError, match=said):
    _load(place, model)
  read, _ = _load(place, model, skip="head")
  assert_same(read["discriminator"], params["discriminator"])


def test_the_head_of_another_class_is_refused_though_its_shape_fits(tmp_path):
  place, _ = _fine_tuned(tmp_path, "bert", "pooler", ("no", "yes"))
  edit_config(place, {"architectures": ["BertForTokenClassification"]})
  with pytest.raises(InputError, match="head of BertForTokenClass"):
    _load(place, _model("bert", "pooler"))


def test_a_strange_array_of_the_network_itself_is_still_refused(tmp_path):
  place = _as_discriminator(tmp_path)
  edit(place, {"electra.encoder.extra": np.zeros(3, np.float32)})
  for skip in ("", "head"):
    with pytest.raises(InputError, match="electra.encoder.extra .* not in"):
      _load(place, _model("discriminator", "linear"), skip=skip)


def test_a_head_is_only_skipped_in_fine_tuning(tmp_path):
  model, _ = _pre_trained("discriminator")
  assert check_fit.parse_skip("head, words") == {"head", "words"}
  with pytest.raises(InputError, match="init_skip=head is of fine-tuning"):
    load.load_params(
      find.Weights(str(_as_pair(tmp_path))),
      model,
      tokenizer=TOKENIZER,
      skip="head",
    )


def test_the_workdir_of_a_fine_tuning_names_its_models(tmp_path):
  runs = [tmp_path / "rte" / f"seed-{seed}" for seed in (1, 0, 2)]
  for run in runs:
    run.mkdir(parents=True)
    (run / "result.json").touch()
  for place in (tmp_path, tmp_path / "rte", runs[0]):
    (place / "config.json").write_text("{}")
    with pytest.raises(InputError, match="has written no model; --config.fine"):
      find.Weights(str(place)).encoder()
  for run in runs[:2]:
    (run / "model").mkdir()
    (run / "model" / "model.safetensors").touch()
  for place, given, more in (
    (tmp_path, runs[1], "one of its 2 models: "),
    (tmp_path / "rte", runs[1], "one of its 2 models: "),
    (runs[0], runs[0], ""),
  ):
    with pytest.raises(InputError, match=f"give {more}{given / 'model'}.$"):
      find.Weights(str(place)).encoder()
