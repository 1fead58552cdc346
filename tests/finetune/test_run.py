"""Tests whole fine-tunings: tasks and seeds in a workdir, from the config."""

import functools
import json
import shutil

import huggingface_hub
import jax
import numpy as np
import pytest

from support import runs, tiny, weight_files, word_task
from support.doc_pages import read_first_cells
from support.word_task import WORDS
from truenegs_jax.configs import finetune_glue, finetune_own
from truenegs_jax.finetune import loop, results, start
from truenegs_jax.finetune.task_data import parse_options
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import (
  CheckpointError,
  DataError,
  InputError,
)
from truenegs_jax.tasks import batches
from truenegs_jax.tasks.task import TASKS
from truenegs_jax.train import optim, sharding

pytestmark = pytest.mark.usefixtures("one_device")


def change_config(c, changes):
  """Changes values; names are keys of `finetune`, or SECTION__KEY."""
  for name, value in changes.items():
    section, _, key = name.rpartition("__")
    c[section or "finetune"][key] = value


def own_config(learned, **changes):
  """Makes a config of the task of words for a run of a few steps."""
  c = finetune_own.get_config()
  values = word_task.config_values(learned.root / "vocab.txt", learned.root)
  c.update_from_flattened_dict(values)
  f = c.finetune
  f.seeds, f.epochs, f.export, f.layer_decay = 1, 0.2, "none", 1.0
  change_config(c, changes)
  return c


def learned_config(learned, **changes):
  """Makes the config of the shared fine-tuning, with changes."""
  c = finetune_own.get_config()
  c.update_from_flattened_dict(learned.values)
  change_config(c, changes)
  return c


def read_results(workdir):
  return json.loads((workdir / "results.json").read_text())


def load_without_times(workdir, seed=0):
  fields = vars(results.load(workdir, "own", seed))
  return {k: v for k, v in fields.items() if k != "secs"}


def test_the_users_task_is_learned_saved_and_printed(shared_finetuning):
  learned = shared_finetuning
  saved = read_results(learned.workdir)["tasks"]["own"]
  summary = saved["summary"]["accuracy"]
  assert summary["median"] > 90 and summary["runs"] == 2
  assert f"{summary['median']:.2f}" in learned.printed
  for saved_run in saved["runs"]:
    dev = saved_run["answers"]["dev"]
    accuracy = np.mean(np.array(dev["golds"]) == np.array(dev["answers"]))
    scores = saved_run["scores"]["dev"]
    assert scores["accuracy"] == pytest.approx(100 * accuracy)
    assert dev["keys"] == [*map(str, range(80))]


def test_evaluations_and_records_are_documented(shared_finetuning):
  folder = shared_finetuning.workdir / "own" / "seed-0"
  steps = [record["step"] for record in runs.read_records(folder, "dev")]
  assert steps == [13, 26, 39, 52, 65]  # not at the end
  for split, section in (("train", "Training records of"), ("dev", "Evalu")):
    for record in runs.read_records(folder, split):
      assert record.keys() <= read_first_cells("metrics.md", section)


def test_finished_seeds_are_kept_and_others_start_again(
  fine_tuned_run, monkeypatch, no_torch
):
  workdir = fine_tuned_run.workdir
  saved = load_without_times(workdir, 1)
  kept = workdir / "own/seed-0/result.json"
  before = kept.stat().st_mtime_ns
  (workdir / "own/seed-1/result.json").unlink()
  seeds = set()
  batch_at = batches.batch_at

  def note_seed(*args, seed, **more):
    seeds.add(seed)
    return batch_at(*args, seed=seed, **more)

  monkeypatch.setattr(batches, "batch_at", note_seed)
  shutil.rmtree(workdir / "own/seed-0/model")
  _, printed = runs.run_task(learned_config(fine_tuned_run), workdir)
  assert "own, seed 0 was finished without an export. To repeat" in printed
  assert kept.stat().st_mtime_ns == before and seeds == {1}
  assert load_without_times(workdir, 1) == saved
  assert load_without_times(workdir, 0) != saved


def test_a_workdir_keeps_its_config_and_data(fine_tuned_run, tmp_path):
  learned, workdir = fine_tuned_run, fine_tuned_run.workdir
  with pytest.raises(CheckpointError, match="optim.lr"):
    runs.run_task(learned_config(learned, optim__lr=1e-4), workdir)
  text = (learned.root / "train.csv").read_text()
  (tmp_path / "train.csv").write_text(text.replace("good", "bad", 1))
  with pytest.raises(CheckpointError, match="data.train"):
    runs.run_task(
      learned_config(learned, train=f"{tmp_path}/train.csv"), workdir
    )
  saved = results.load(workdir, "own", 0).provenance
  other = {**saved, "data": {}, "labels": []}
  finished = results.load_all(workdir)
  results.check_unchanged(workdir, finished, other, task="mrpc")
  for provenance, task, message in (
    ({**other, "weights": "0"}, "mrpc", "weights: .* -> '0'"),
    ({**saved, "labels": ["a"]}, "own", "labels: .* -> .'a'."),
    ({**saved, "data": {"dev": "?"}}, "own", "data.dev: .* -> '?'"),
  ):
    with pytest.raises(CheckpointError, match=f"(?s)of own with.*{message}"):
      results.check_unchanged(workdir, finished, provenance, task=task)


def test_nonfinite_gradients_fail_only_their_run(
  shared_finetuning, tmp_path, monkeypatch
):
  make_params = start.Start.make_params

  def break_seed_0(self, task, seed):
    params = make_params(self, task, seed)
    if seed == 0:
      output = params["task_head"]["output"]
      output["kernel"] = np.full_like(output["kernel"], np.inf)
    return params

  monkeypatch.setattr(start.Start, "make_params", break_seed_0)
  c = own_config(shared_finetuning, seeds=2, export="all")
  code, text = runs.run_task(c, tmp_path)
  broken, other = (results.load(tmp_path, "own", seed) for seed in (0, 1))
  assert "not finite" in broken.failure
  assert "not finite" not in other.failure and other.step == 3
  summary = read_results(tmp_path)["tasks"]["own"]["summary"]
  assert code == 0 and summary["accuracy"]["failed"] >= 1
  assert "FAILED" in text and "not exported: the run failed" in text


@pytest.mark.slow
def test_meshes_and_micro_batches_give_the_same_losses(
  shared_finetuning, tmp_path, monkeypatch
):
  def train(**changes):
    c = own_config(shared_finetuning, epochs=0.3, **changes)
    c.model.dropout = 0.1
    c.log.every_steps = 1
    workdir = tmp_path / json.dumps(changes)
    runs.run_task(c, workdir)
    records = runs.read_records(workdir / "own" / "seed-0")
    return [record["total"] for record in records]

  losses = train()
  monkeypatch.setattr(sharding, "make_mesh", sharding.make_mesh.func)
  monkeypatch.setattr(sharding, "device_count", jax.device_count)
  changes = {"mesh__preset": "fsdp_tp", "optim__accumulation": 2}
  np.testing.assert_allclose(train(**changes), losses, atol=2e-5)


def test_two_models_are_compared_on_the_same_examples(
  shared_finetuning, tmp_path
):
  against = str(shared_finetuning.workdir)
  c = own_config(shared_finetuning, seeds=2, against=against)
  _, text = runs.run_task(c, tmp_path)
  [row] = read_results(tmp_path)["compared"]["own"]
  assert row["difference"] < -20 and row["high"] < 0
  assert "paired bootstrap" in " ".join(text.split())


def test_rejects_damaged_results(fine_tuned_run):
  path = fine_tuned_run.workdir / "own" / "seed-0" / "result.json"
  path.write_text('{"task": "own"}')
  with pytest.raises(CheckpointError, match="own/seed-0' and run the same"):
    runs.run_task(learned_config(fine_tuned_run), fine_tuned_run.workdir)


def test_learning_rates_follow_schedule_and_layer_decay(
  shared_finetuning, monkeypatch
):
  c = finetune_glue.get_config("rte")
  c.model.variant = "tiny"
  c.data.vocab = f"{shared_finetuning.root}/vocab.txt"
  monkeypatch.setattr(optim, "EPSILON", 1e-30)
  initial = start.resolve(parse_options(c.to_dict()), print)
  model = initial.make_model(TASKS["rte"])
  tx, schedule = loop.make_optimizer(initial.options, model, 100)
  assert float(schedule(0)) == float(schedule(100)) == 0
  assert float(schedule(5)) == pytest.approx(3e-4 * 0.95 * 0.5)
  assert float(schedule(10)) == pytest.approx(3e-4 * 0.9)
  params = jax.tree.map(
    lambda x: np.ones(x.shape, np.float32), pretrain.param_shapes(model)
  )
  state, update = tx.init(params), jax.jit(tx.update)
  for _ in range(2):  # the first step has a learning rate of 0
    updates, state = update(params, state, params)

  def step_size(*path):
    return abs(float(functools.reduce(dict.get, path, updates).ravel()[0]))

  head = step_size("task_head", "output", "kernel")
  below = [
    step_size("discriminator", "layer_1", "query", "kernel"),
    step_size("discriminator", "layer_0", "query", "bias"),
    step_size("discriminator", "project", "kernel"),
    step_size("embeddings", "word"),
  ]
  expected = [0.8**2, 0.8**3, 0.8**4, 0.8**4]
  np.testing.assert_allclose(np.array(below) / head, expected, rtol=1e-5)


def test_writes_submissions_for_glue(shared_finetuning, tmp_path):
  folder = tmp_path / "glue" / "RTE"
  folder.mkdir(parents=True)
  labels = "entailment", "not_entailment"
  table = [("index", "sentence1", "sentence2", "label")]
  table += [
    (str(i), WORDS[i % 9], WORDS[i % 7], labels[i % 2]) for i in range(40)
  ]
  for split, num_columns in ("train", 4), ("dev", 4), ("test", 3):
    lines = ["\t".join(row[:num_columns]) for row in table]
    (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
  c = finetune_glue.get_config("rte")
  c.update_from_flattened_dict(runs.ONE_LAYER)
  c.data.vocab = f"{shared_finetuning.root}/vocab.txt"
  change_config(c, {"data": str(folder.parent), "seeds": 2, "epochs": 1.0})
  change_config(c, {"predict_test": True, "export": "none"})
  runs.run_task(c, tmp_path / "work")
  text = (tmp_path / "work" / "submission" / "RTE.tsv").read_text()
  header, *lines = text.splitlines()
  assert header == "index\tprediction"
  assert [line.split("\t")[0] for line in lines] == list(map(str, range(40)))
  assert {line.split("\t")[1] for line in lines} <= set(labels)


def test_an_exported_classifier_gives_the_same_answers_in_transformers(
  shared_finetuning,
):
  pytest.importorskip("torch")
  import transformers

  workdir, root = shared_finetuning.workdir, shared_finetuning.root
  folder = workdir / "own" / "seed-0" / "model"
  for file in folder.iterdir():
    assert str(root.parent).encode() not in file.read_bytes(), file
  card = huggingface_hub.ModelCard.load(folder / "README.md")
  assert card.data.license == "unknown" and "accuracy" in card.text
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  auto = transformers.AutoModelForSequenceClassification
  model = auto.from_pretrained(folder)
  lines = (root / "dev.jsonl").read_text().splitlines()
  texts = [json.loads(line)["text"] for line in lines]
  batch = tokenizer(
    texts, truncation=True, max_length=128, padding=True, return_tensors="pt"
  )
  label_ids = model(**batch).logits.argmax(-1).tolist()
  answers = results.load(workdir, "own", 0).answers["dev"]["answers"]
  assert [model.config.id2label[i] for i in label_ids] == answers


@pytest.mark.parametrize(
  "changes, error, message",
  [
    ({"labels": "good,fine"}, DataError, r"train.csv:\d+.*bad"),
    ({"dev": "x.csv"}, DataError, r"x.csv: .*\.gz.*Correct .*dev"),
    ({"optim__accumulation": 3}, InputError, "batch_size"),
    ({"model__variant": "init"}, InputError, "init"),
  ],
)
def test_rejects_bad_input_and_names_it(
  shared_finetuning, tmp_path, changes, error, message
):
  c = own_config(shared_finetuning, **changes)
  with pytest.raises(error, match=message):
    runs.run_task(c, tmp_path)
  assert not (tmp_path / "own").exists()
  c.dry_run = True
  if error is InputError:  # what needs no data
    with pytest.raises(error, match=message):
      runs.run_task(c, tmp_path)


def test_sizes_of_weights_are_not_changed(tmp_path):
  c = finetune_own.get_config()
  model = pretrain.make_bert(vocab_size=tiny.V, variant="tiny")
  c.init = str(weight_files.write_export(tmp_path, model))
  c.model.width = 64
  with pytest.raises(InputError, match="the sizes {'width': 64}"):
    start.resolve(parse_options(c.to_dict()), print)


def test_a_dry_run_needs_neither_weights_nor_data(tmp_path, monkeypatch):
  c = finetune_glue.get_config("mrpc")
  monkeypatch.setitem(TASKS, "added", TASKS["mrpc"])
  c.finetune.tasks = "added"
  c.dry_run = True
  c.init = "own/weights"
  c.finetune.data = str(tmp_path)
  code, printed = runs.run_task(c, tmp_path / "out")
  assert code == 0 and not list(tmp_path.iterdir())
  assert "'own/weights', not on this machine" in printed
  assert f"3 epochs; train: {tmp_path}/MRPC/train.tsv (missing)" in printed
