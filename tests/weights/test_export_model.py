"""Exports of pre-trained, fine-tuned and converted models."""

import errno
import functools
import hashlib
import json
import re

import huggingface_hub
import jax
import numpy as np
import pytest

from support import runs, tiny
from support.weight_files import (
  TOKENIZER,
  assert_same_tree,
  edit_tensors,
  load_params,
  random_params,
  read_tensors,
  run_export,
  write_export,
  write_run,
)
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import electra_small
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import export_run
from truenegs_jax.runtime.errors import (
  DiskError,
  InputError,
  NonFiniteError,
  TrueNegsError,
)
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import export_model, find, hf_names, match
from truenegs_jax.workdir.saved_model import build_model

FILES = export_model.MODEL_FILES - {"tokenizer.json"}


def _export(model, output, params=None, **changed):
  params = random_params(model) if params is None else params
  line = export_model.export_model(model, params, TOKENIZER, output, **changed)
  assert line.startswith(f"Exported to '{output}'. ")
  return line


@pytest.mark.parametrize("make", [tiny.make_model, tiny.make_bert])
def test_an_export_is_complete_and_the_same_after_loading(
  tmp_path, no_torch, make
):
  model = make()
  params = random_params(model)
  params["embeddings"]["word"][7] = -0.0  # a sum would lose the sign
  first = tmp_path / "first"
  assert "torch is not installed" in _export(model, first, params)
  files = runs.read_files(first)
  complete = {f"{role}/{x}" for role in model.roles for x in FILES}
  assert {*files} == complete | {*model.roles}
  for role in model.roles:
    lines = files[f"{role}/SHA256SUMS"].decode().splitlines()
    digests = dict(reversed(line.split("  ")) for line in lines)
    assert {*digests} == FILES - {"SHA256SUMS", "README.md"}
    for name, digest in digests.items():
      assert hashlib.sha256(files[f"{role}/{name}"]).hexdigest() == digest
  loaded, _ = load_params(first, model)
  assert_same_tree(loaded, params)
  assert np.signbit(loaded["embeddings"]["word"][7]).all()
  _export(model, first, loaded)  # replaces an older one
  assert runs.read_files(first) == files
  assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_the_card_says_how_it_was_trained_and_how_to_use_it(tmp_path, no_torch):
  config = electra_small.get_config("runlocal,hc+sr")
  config.data.sources = "/home/me/wiki.txt"
  config.negatives.sources = "wordnet, pairs path=ppdb.txt"
  held_out = {"mlm": 4.25, "detect": 0.6, "auc": 0.75}
  results = {"steps": 20, "verdict": {"passed": False}}
  about = export_run.describe_run(
    PretrainConfig.read(config), 20, held_out, results
  )
  output = tmp_path / "export"
  _export(tiny.make_model(), output, about=about, language="no")
  card = huggingface_hub.ModelCard.load(output / "generator" / "README.md")
  assert card.data.to_dict() == {
    "language": "no",  # without quotes, YAML reads False
    "library_name": "transformers",
    "license": "unknown",
    "tags": ["electra", "truenegs_jax"],
  }
  for words in (
    "# ElectraForMaskedLM\n",
    "* Text: `wiki.txt`, vocabulary",
    "not shown to beat guessing",
    "20 of 8 rows of 32 tokens, seed 0, from `scratch`",
    "hard correction by wordnet, pairs path=ppdb.txt (argmax) + soft",
    "nats, loss of detection 0.6000, its AUC 0.7500",
    "copyright Princeton",
  ):
    assert words in card.text
  config = electra_small.get_config("proper,runlocal")
  about = export_run.describe_run(PretrainConfig.read(config), 20, {}, {})
  assert "smoothing" in about and "arxiv" not in about  # is not the paper's
  config = electra_small.get_config("baseline,runlocal")
  about = export_run.describe_run(PretrainConfig.read(config), 20, {}, {})
  for claim in "orrected", "arxiv", "Held-out", "guessing":
    assert claim not in about


def test_a_failed_export_keeps_the_older_one(tmp_path, no_torch, monkeypatch):
  output = tmp_path / "export"
  _export(tiny.make_model(), output)
  before = runs.read_files(output)

  def fail(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(export_model.safetensors.numpy, "save_file", fail)
  with pytest.raises(DiskError):
    _export(tiny.make_model(), output)
  assert runs.read_files(output) == before
  assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path, no_torch):
  model = tiny.make_model()
  home = tmp_path / "home"
  (home / "generator").mkdir(parents=True)
  (home / "generator" / "thesis.tex").write_text("years of work")
  (tmp_path / "empty").mkdir()
  (tmp_path / "linked").mkdir()
  (tmp_path / "linked" / "bert").symlink_to(tmp_path / "empty")
  output = tmp_path / "export"
  _export(model, output)
  before = runs.read_files(tmp_path)
  for folder, name, roles in (
    (home, "generator", ()),
    (tmp_path / "linked", "bert", ["bert"]),
    (output, "generator", ["discriminator"]),
  ):
    with pytest.raises(InputError, match=f"does not replace: {name}"):
      _export(model, folder, roles=roles)
  assert runs.read_files(tmp_path) == before


def test_exported_models_work_in_transformers_without_network(
  tmp_path, monkeypatch
):
  pytest.importorskip("torch")
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  import transformers

  output = tmp_path / "export"
  line = _export(tiny.make_model(), output)
  names = "ElectraForPreTraining and ElectraForMaskedLM"
  assert f"loads {names} and computes our logits" in line
  fill = transformers.pipeline("fill-mask", str(output / "generator"))
  assert len(fill("w7 [MASK] w9", top_k=3)) == 3
  # The code of the model card runs.
  monkeypatch.chdir(output / "discriminator")
  card = (output / "discriminator" / "README.md").read_text()
  names = {}
  exec(re.search("```python\n(.*?)```", card, re.DOTALL)[1], names)
  assert type(names["model"]).__name__ == "ElectraForPreTraining"
  assert names["outputs"].logits.shape[0] == 1


LABELS = ("against", "for", "neither")
CLASSES = task_lib.Task("nli", "NLI", task_lib.CLASSES, labels=LABELS)
SCORE = task_lib.Task("sim", "Sim", task_lib.SCORE, scale=(1.0, 4.0))
SPANS = task_lib.Task("qa", "QA", task_lib.SPANS)
TAGS = task_lib.Task("ner", "NER", task_lib.TAGS, labels=("O", "B-a", "I-a"))
MODERN = {"backbone": "modern"}
CASES = {
  "electra-classes": ("discriminator", "dense", CLASSES, {}),
  "electra-spans": ("discriminator", "spans", SPANS, {}),
  "bert-pooler": ("bert", "pooler", SCORE, {}),
  "bert-spans": ("bert", "spans", SPANS, {}),
  "modern-score": ("bert", "dense", SCORE, MODERN),
  "modern-mean": ("bert", "dense", CLASSES, MODERN | {"pooling": "mean"}),
  "modern-spans": ("bert", "spans", SPANS, MODERN),
  "electra-tags": ("discriminator", "tags", TAGS, {}),
  "bert-tags": ("bert", "tags", TAGS, {}),
  "modern-tags": ("bert", "tags", TAGS, MODERN),
}


@pytest.mark.parametrize("case", CASES)
def test_transformers_and_load_params_read_a_fine_tuned_model(
  tmp_path, monkeypatch, case
):
  transformers = pytest.importorskip("transformers")
  pytest.importorskip("torch")
  monkeypatch.setattr(export_model, "TOLERANCE", 1e-5)
  role, head, task, more = CASES[case]
  outputs = len(task.labels) or 1
  model = tiny.make_downstream(role, head, outputs, layers=1, **more)
  params = random_params(model)
  output = tmp_path / "out"
  export = functools.partial(
    export_model.export_task, params, model, TOKENIZER, output, task=task
  )
  assert "computes our logits" in export(about="Recipe")
  kinds = {
    task_lib.SPANS: transformers.AutoModelForQuestionAnswering,
    task_lib.TAGS: transformers.AutoModelForTokenClassification,
  }
  kind = kinds.get(task.kind, transformers.AutoModelForSequenceClassification)
  loaded = kind.from_pretrained(output, local_files_only=True)
  if task.labels:
    assert loaded.config.id2label == dict(enumerate(task.labels))
    if task.kind == task_lib.CLASSES:
      assert loaded.config.problem_type == "single_label_classification"
  elif task.kind == task_lib.SCORE:
    assert loaded.config.num_labels == 1
    assert loaded.config.problem_type == "regression"
    bias = dict(loaded.named_parameters())["classifier.bias"].item()
    trained = params["task_head"]["output"]["bias"]
    np.testing.assert_allclose(bias, 1 + 4 * trained, rtol=1e-6)
  network = find.Weights(str(output)).encoder()
  assert match.answers_questions(network) == (head == "spans")
  reloaded, lines = load_params(output, model, complete=True, task=task)
  assert not lines
  close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-6)
  jax.tree.map(close, reloaded, params)


def test_wrong_or_non_finite_weights_are_not_exported(tmp_path, monkeypatch):
  pytest.importorskip("torch")
  model = tiny.make_bert()
  params = random_params(model)
  names = hf_names.BERT_NAMES
  query, value = names["layer_N/query"], names["layer_N/value"]
  with monkeypatch.context() as patch:
    patch.setitem(names, "layer_N/query", value)
    patch.setitem(names, "layer_N/value", query)
    with pytest.raises(TrueNegsError, match="differ from ours"):
      _export(model, tmp_path / "out", params)
  folder = write_export(tmp_path / "other", model) / "bert"
  bias = read_tensors(folder)["cls.predictions.bias"]
  for shift in (1e-3, np.nan):
    edit_tensors(folder, {"cls.predictions.bias": bias + np.float32(shift)})
    with pytest.raises(TrueNegsError, match="differ from ours"):
      export_model.compare_logits({"bert": folder}, params, model)
  params["bert"]["layer_1"]["query"]["kernel"][0, 0] = np.nan
  with pytest.raises(NonFiniteError, match="layer_1/query/kernel holds 1 "):
    _export(model, tmp_path / "out", params)
  assert [x.name for x in tmp_path.iterdir()] == ["other"]


def _odd_pair():
  """Makes a pair with sizes of no named variant."""
  return pretrain.make_electra(
    vocab_size=tiny.V,
    variant="init",
    embedding_size=12,
    width=24,
    layers=3,
    heads=3,
    ffn=20,
    generator_sizes=(8, 1, 4, 10),
    generator_multiplier=1.0,
    max_positions=40,
    dropout=0.0,
  )


CONVERTED = {
  "pair": (_odd_pair, {}),
  "cased": (tiny.make_bert, {"lowercase": False, "strip_accents": True}),
  "accents": (tiny.make_bert, {"lowercase": True, "strip_accents": False}),
}


@pytest.mark.parametrize("case", CONVERTED)
def test_a_converted_model_is_byte_identical(tmp_path, no_torch, case):
  make, options = CONVERTED[case]
  options = {"lowercase": True, **options}
  tokenizer = make_tokenizer(TOKENIZER.vocab, **options)
  folder = write_export(tmp_path / "in", make(), tokenizer=tokenizer)
  for init, output in (folder, "out"), (folder / "discriminator", "alone"):
    if not init.exists():
      continue
    code, printed = run_export(init, f"--output={tmp_path / output}")
    assert code == 0 and "RANDOM" not in printed
    converted = runs.read_files(tmp_path / output)
    for name, content in runs.read_files(init).items():
      role = "discriminator/" if output == "alone" else ""
      assert converted[role + name] == content, name
    [card, *_] = [x for name, x in converted.items() if name.endswith(".md")]
    about = f"Converted, not trained, from `{init.name}`, whose license"
    assert about in card.decode() and "RANDOM" not in card.decode()
  assert {x.name for x in (tmp_path / "out").iterdir()} == set(make().roles)
  # Neither the weights nor a generator alone is an export's place.
  before = runs.read_files(tmp_path)
  code, printed = run_export(folder, f"--output={folder}")
  assert code == 2 and "holds the weights" in printed
  if "generator" in make().roles:
    generator = folder / "generator"
    code, printed = run_export(generator, f"--output={tmp_path}/g")
    assert code == 2 and "holds only generator" in printed
  assert runs.read_files(tmp_path) == before


def test_the_command_exports_the_newest_step_or_a_given_one(tmp_path, no_torch):
  config, folder = electra_small.get_config("runlocal,hc+sr"), tmp_path
  first = random_params(build_model(config, vocab_size=tiny.V))
  second = jax.tree.map(lambda x: x + 1, first)
  word_VxE = first["embeddings"]["word"]
  write_run(folder, config, {10: first, 20: second})
  record = {"split": "held_out", "step": 20, "mlm": 3.5, "auc": 0.75, "lr": 0.1}
  lines = [json.dumps(x) for x in (record | {"step": 10, "mlm": 9.0}, record)]
  lines.append('{"split": "tr')  # of a run that still writes
  (folder / "metrics.jsonl").write_text("\n".join(lines))
  for path, *flags, output, added, mlm in (
    (folder, folder / "export", 1, 3.5),
    (folder, "--step=10", folder / "export-10", 0, 9.0),
    (folder / "checkpoints" / "10", folder / "export-10", 0, 9.0),
  ):
    code, printed = run_export(path, *flags)
    assert code == 0
    assert f"Exported to '{output}'. Not compared" in printed
    tensors = read_tensors(output / "generator")
    table = tensors["electra.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(table, word_VxE + added)
    card = (output / "generator" / "README.md").read_text()
    assert f"masked tokens {mlm:.4f} nats" in card
  code, printed = run_export(folder, "--step=11")
  assert code == 4 and "of step 11. Saved steps: 10, 20." in printed
  code, printed = run_export(folder / "rnu")
  assert code == 2 and "rnu' is not the folder of a run" in printed
