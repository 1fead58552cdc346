"""Exporting fine-tuned models for the Auto classes of transformers."""

import dataclasses
import hashlib
import json

import jax
import numpy as np
import pytest

from support import tiny
from support.weight_files import TOKENIZER, load_params, random_params
from truenegs_jax.models import finetune
from truenegs_jax.runtime.errors import (
  InputError,
  NonFiniteError,
  TrueNegsError,
)
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import (
  export_model,
  hf_names,
  model_card,
)

CLASSES = task_lib.Task(
  "nli",
  "NLI",
  task_lib.CLASSES,
  labels=("against", "for", "neither"),
  metrics=("matthews",),
)
SCORE = task_lib.Task("sim", "Sim", task_lib.SCORE, scale=(1.0, 4.0))
SPANS = task_lib.Task("qa", "QA", task_lib.SPANS)
MEAN = {"backbone": "modern", "pooling": "mean"}
CASES = {
  "electra-dense": ("discriminator", "dense", SCORE),
  "electra-classes": ("discriminator", "dense", CLASSES),
  "electra-spans": ("discriminator", "spans", SPANS),
  "bert-pooler": ("bert", "pooler", SCORE),
  "bert-spans": ("bert", "spans", SPANS),
  "modern-score": ("bert", "dense", SCORE, {"backbone": "modern"}),
  "modern-mean": ("bert", "dense", CLASSES, MEAN),
  "modern-spans": ("bert", "spans", SPANS, {"backbone": "modern"}),
}
SCORES = {
  "discriminator": "classifier.out_proj.bias",
  "bert": "classifier.bias",
}
ORIGIN = model_card.ModelOrigin({"Training": "* Recipe: 3 steps"})


def _model(role, head, task, **fields):
  outputs = len(task.labels) or (2 if task.kind == task_lib.SPANS else 1)
  return finetune.make_downstream(
    role=role,
    head=head,
    num_outputs=outputs,
    vocab_size=tiny.V,
    variant="tiny",
    layers=1,
    **fields,
  )


def _export(model, params, output, task):
  return export_model.export_task(
    params, model, TOKENIZER, output, task=task, origin=ORIGIN
  )


def _load_auto(folder, task):
  """Loads a folder with an Auto class of transformers."""
  import transformers

  kinds = {task_lib.SPANS: transformers.AutoModelForQuestionAnswering}
  kind = kinds.get(task.kind, transformers.AutoModelForSequenceClassification)
  model, info = kind.from_pretrained(
    folder, local_files_only=True, output_loading_info=True
  )
  assert not info["missing_keys"] and not info["unexpected_keys"]
  return model


@pytest.mark.parametrize("case", CASES)
def test_transformers_and_load_params_read_the_export(
  tmp_path, monkeypatch, case
):
  pytest.importorskip("torch")
  monkeypatch.setattr(export_model, "TOLERANCE", 1e-5)
  role, head, task, *more = CASES[case]
  model = _model(role, head, task, **(more[0] if more else {}))
  params = random_params(model)
  exported = _export(model, params, tmp_path / "out", task)
  assert "computes our logits" in exported.summary
  loaded = _load_auto(exported.output, task)
  if task.labels:
    assert loaded.config.id2label == dict(enumerate(task.labels))
    assert loaded.config.problem_type == "single_label_classification"
  elif task.kind == task_lib.SCORE:
    assert loaded.config.num_labels == 1
    assert loaded.config.problem_type == "regression"
    bias = dict(loaded.named_parameters())[SCORES[role]].item()
    trained = params["task_head"]["output"]["bias"]
    np.testing.assert_allclose(bias, 1 + 4 * trained, rtol=1e-6)

  reloaded, lines = load_params(
    exported.output, model, complete=True, task=task
  )
  assert not lines
  assert jax.tree.structure(reloaded) == jax.tree.structure(params)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6),
    reloaded,
    params,
  )


def test_writes_checksums_config_and_model_card(tmp_path, no_torch):
  model = _model("discriminator", "dense", CLASSES)
  exported = _export(model, random_params(model), tmp_path / "out", CLASSES)
  assert "torch is not installed" in exported.summary
  files = {path.name for path in exported.output.iterdir()}
  assert files == export_model.MODEL_FILES - {"tokenizer.json"}
  assert [path.name for path in tmp_path.iterdir()] == ["out"]
  lines = (exported.output / "SHA256SUMS").read_text().splitlines()
  digests = dict(reversed(line.split("  ")) for line in lines)
  assert {*digests, "SHA256SUMS", "README.md"} == files  # owners edit the card
  for name, digest in digests.items():
    content = (exported.output / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest
  config = json.loads((exported.output / "config.json").read_text())
  assert config["architectures"] == ["ElectraForSequenceClassification"]
  assert config["label2id"] == {"against": 0, "for": 1, "neither": 2}
  card = (exported.output / "README.md").read_text()
  for words in (
    "pipeline_tag: text-classification",
    "# ELECTRA, fine-tuned on NLI",
    "`against`, `for`, `neither`",
    "import AutoTokenizer, ElectraForSequenceClassification\n",
    "## Training\n\n* Recipe: 3 steps\n",
  ):
    assert words in card


def test_labels_of_a_file_are_no_markup_of_the_card():
  markdown_it = pytest.importorskip("markdown_it")
  hack = "x` <img src=x> [a](http://b)\n\n# b\n\n<script></script> ``"
  task = dataclasses.replace(CLASSES, labels=("for", hack, "\x0b \u2028<b>`"))
  model = _model("discriminator", "dense", task)
  params = random_params(model)
  card = model_card.task_card(params, model, TOKENIZER, task, ORIGIN)
  page = markdown_it.MarkdownIt("commonmark").render(card)
  for tag in ("<img", "<script", "<b>", "<a ", "<h1>b"):
    assert tag not in page


def test_wrong_or_non_finite_weights_are_not_exported(tmp_path, monkeypatch):
  pytest.importorskip("torch")
  model = _model("bert", "pooler", CLASSES)
  params = random_params(model)
  names = hf_names.BERT_NAMES
  query, value = names["layer_N/query"], names["layer_N/value"]
  with monkeypatch.context() as patch:
    patch.setitem(names, "layer_N/query", value)
    patch.setitem(names, "layer_N/value", query)
    with pytest.raises(TrueNegsError, match="differ from ours"):
      _export(model, params, tmp_path / "out", CLASSES)
  params["task_head"]["output"]["bias"][1] = np.nan
  with pytest.raises(NonFiniteError, match="task_head/output/bias"):
    _export(model, params, tmp_path / "out", CLASSES)
  assert not list(tmp_path.iterdir())


def test_existing_folder_is_refused(tmp_path, no_torch):
  model = _model("bert", "spans", SPANS)
  (tmp_path / "out").mkdir()
  with pytest.raises(InputError, match="exists"):
    _export(model, random_params(model), tmp_path / "out", SPANS)
  assert [x.name for x in tmp_path.rglob("*")] == ["out"]
