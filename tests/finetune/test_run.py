"""Tests whole fine-tunings: tasks and seeds in a workdir, from the config."""

import dataclasses
import functools
import io
import json
import random

import huggingface_hub
import jax
import numpy as np
import pytest
from rich.console import Console

from support import runs, word_task
from support.doc_pages import read_first_cells
from support.word_task import WORDS
from truenegs_jax.configs import finetune_glue, finetune_own, finetune_squad
from truenegs_jax.finetune import (
  eval_splits,
  initial_weights,
  loop,
  results,
  task_data,
)
from truenegs_jax.finetune import run as run_lib
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import (
  CheckpointError,
  DataError,
  InputError,
)
from truenegs_jax.tasks import glue
from truenegs_jax.train import sharding

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
  return word_task.write_vocabulary(tmp_path_factory.mktemp("vocab"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  return word_task.write_files(tmp_path_factory.mktemp("task"))


def own_config(vocab, folder, **changes):
  """Makes a config of the task of words; see `change_config`."""
  c = finetune_own.get_config()
  c.update_from_flattened_dict(word_task.config_values(vocab, folder))
  f = c.finetune
  f.seeds, f.epochs, f.export, f.layer_decay = 1, 2.0, "none", 1.0
  change_config(c, changes)
  return c


def change_config(c, changes):
  """Changes values; names are keys of `finetune`, or SECTION__KEY."""
  for name, value in changes.items():
    section, _, key = name.rpartition("__")
    c[section or "finetune"][key] = value


def run(c, workdir):
  """Returns the exit code and the printed text."""
  out = io.StringIO()
  code = run_lib.run(c, workdir, Console(file=out, width=200))
  return code, out.getvalue()


def read_results(workdir):
  return json.loads((workdir / "results.json").read_text())


def load_without_times(workdir, seed=0):
  fields = vars(results.load(workdir, "own", seed))
  return {k: v for k, v in fields.items() if k not in ("secs", "rows_per_s")}


@pytest.fixture(scope="module")
def learned(vocab, files, tmp_path_factory):
  """Runs two seeds that learn the task: config, workdir and result of `run`."""
  workdir = tmp_path_factory.mktemp("learned")
  c = own_config(vocab, files, epochs=6.0, seeds=2, head="linear")
  c.log.every_steps = 20
  return c, workdir, run(c, workdir)


def test_the_users_task_is_learned_and_printed(learned):
  _, workdir, (code, text) = learned
  summary = read_results(workdir)["tasks"]["own"]["summary"]["accuracy"]
  assert code == 0
  assert summary["median"] > 90
  assert summary["runs"] == 2
  assert f"{summary['median']:.2f}" in text


def test_saved_answers_have_the_saved_scores(learned):
  _, workdir, _ = learned
  for saved_run in read_results(workdir)["tasks"]["own"]["runs"]:
    dev = saved_run["answers"]["dev"]
    accuracy = np.mean(np.array(dev["golds"]) == np.array(dev["answers"]))
    scores = saved_run["scores"]["dev"]
    assert scores["accuracy"] == pytest.approx(100 * accuracy)
    assert len(dev["keys"]) == 80


def test_saved_mistakes_are_the_wrong_answers(learned, files):
  _, workdir, _ = learned
  lines = (files / "dev.jsonl").read_text().splitlines()
  for saved_run in read_results(workdir)["tasks"]["own"]["runs"]:
    dev, wrong = saved_run["answers"]["dev"], saved_run["mistakes"]
    columns = zip(dev["keys"], dev["golds"], dev["answers"], strict=True)
    assert [(x["key"], x["gold"], x["answer"]) for x in wrong] == [
      (key, gold, answer) for key, gold, answer in columns if gold != answer
    ]
    for x in wrong:
      record = json.loads(lines[int(x["key"])])
      assert record == {"text": x["text"], "label": x["gold"]}


def test_results_without_mistakes_are_loaded(learned, tmp_path):
  _, workdir, _ = learned
  folder = results.run_folder(tmp_path, "own", 0)
  folder.mkdir(parents=True)
  path = results.run_folder(workdir, "own", 0) / "result.json"
  saved = json.loads(path.read_text())
  del saved["mistakes"]
  (folder / "result.json").write_text(json.dumps(saved))
  loaded, new = (results.load(x, "own", 0) for x in (tmp_path, workdir))
  assert loaded == dataclasses.replace(new, mistakes=())


@pytest.mark.slow
def test_finished_runs_are_kept_and_seeds_added(vocab, files, tmp_path):
  both, one = tmp_path / "both", tmp_path / "one"
  run(own_config(vocab, files, seeds=2, epochs=0.5), both)
  run(own_config(vocab, files, epochs=0.5), one)
  path = one / "own" / "seed-0" / "result.json"
  before = path.stat().st_mtime_ns
  run(own_config(vocab, files, seeds=2, epochs=0.5), one)
  assert path.stat().st_mtime_ns == before
  assert load_without_times(one, 1) == load_without_times(both, 1)
  assert load_without_times(one, 0) != load_without_times(one, 1)


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"epochs": 1.0}, "epochs"),
    ({"optim__lr": 1e-4}, "optim.lr"),
    ({"head_dropout": 0.0}, "head_dropout"),
    ({"head": "dense"}, "finetune.head: (?s:.)*default head was 'linear'"),
  ],
)
def test_rejects_a_workdir_with_another_config(learned, changes, message):
  c, workdir, _ = learned
  c = c.copy_and_resolve_references()
  change_config(c, changes)
  with pytest.raises(CheckpointError, match=message):
    run(c, workdir)


def test_rejects_a_workdir_with_other_data(learned, files, tmp_path):
  c, workdir, _ = learned
  c = c.copy_and_resolve_references()
  text = (files / "train.csv").read_text()
  (tmp_path / "train.csv").write_text(text.replace("good", "bad", 1))
  c.finetune.files = f"train={tmp_path}/train.csv dev={files}/dev.jsonl"
  with pytest.raises(CheckpointError, match="data.train"):
    run(c, workdir)
  c.finetune.files = f"train={tmp_path}/none.csv dev={files}/dev.jsonl"
  with pytest.raises(DataError, match="none.csv"):
    run(c, workdir)


def test_finished_runs_are_shown_without_their_data(learned, files):
  c, workdir, (_, text) = learned
  (files / "train.csv").rename(files / "away.csv")
  code, again = run(c, workdir)
  (files / "away.csv").rename(files / "train.csv")
  assert code == 0 and "Not checked whether" in again
  assert text.splitlines()[-3:] == again.splitlines()[-3:]


def test_a_workdir_is_usable_after_an_error(vocab, files, tmp_path):
  with pytest.raises(DataError, match="sentence"):
    run(own_config(vocab, files, text="sentence"), tmp_path)
  assert run(own_config(vocab, files, epochs=0.2), tmp_path)[0] == 0


@pytest.mark.slow
def test_failed_runs_are_counted_and_printed(vocab, files, tmp_path):
  c = own_config(
    vocab, files, seeds=2, epochs=1.0, lrs=(1.0,) * 3, export="all"
  )
  code, text = run(c, tmp_path)
  summary = read_results(tmp_path)["tasks"]["own"]["summary"]["accuracy"]
  assert code == 0 and summary["runs"] == 2 and summary["failed"] == 2
  assert "FAILED" in text and "not exported: the run failed" in text


def test_nonfinite_gradients_fail_only_their_run(
  vocab, files, tmp_path, monkeypatch
):
  make_params = initial_weights.InitialWeights.make_params

  def break_seed_0(self, model, task, seed, **kwargs):
    params = make_params(self, model, task, seed, **kwargs)
    if seed == 0:
      output = params["task_head"]["output"]
      output["kernel"] = np.full_like(output["kernel"], np.inf)
    return params

  monkeypatch.setattr(
    initial_weights.InitialWeights, "make_params", break_seed_0
  )
  run(own_config(vocab, files, seeds=2, epochs=1.0), tmp_path)
  broken, other = (results.load(tmp_path, "own", seed) for seed in (0, 1))
  assert "not finite" in broken.failure
  assert "not finite" not in other.failure and other.step == 13
  summary = read_results(tmp_path)["tasks"]["own"]["summary"]
  assert summary["accuracy"]["failed"] >= 1


@pytest.mark.slow
def test_keep_best_selects_the_best_evaluation(vocab, files, tmp_path):
  c = own_config(vocab, files, epochs=4.0, keep="best", evals_per_epoch=2)
  run(c, tmp_path)
  result = results.load(tmp_path, "own", 0)
  accuracy = {int(n): x["accuracy"] for n, x in result.evaluations.items()}
  assert len(accuracy) == 8
  assert result.scores["dev"]["accuracy"] == max(accuracy.values())
  assert result.step == max(accuracy, key=accuracy.get)  # the first of them


def test_rejects_another_test_set(vocab, files, tmp_path):
  def make_config(lines):
    (tmp_path / "test.csv").write_text("text\n" + "ba be\n" * lines)
    value = f"train={files}/train.csv dev={files}/dev.jsonl"
    value += f" test={tmp_path}/test.csv"
    return own_config(vocab, files, files=value, predict_test=True, epochs=0.2)

  assert run(make_config(1), tmp_path / "work")[0] == 0
  test = results.load(tmp_path / "work", "own", 0).answers["test"]
  assert len(test["answers"]) == 1 and not test["golds"]
  with pytest.raises(CheckpointError, match="data.test"):
    run(make_config(2), tmp_path / "work")
  without = own_config(vocab, files, epochs=0.2)
  assert run(without, tmp_path / "work")[0] == 0


def test_patience_ends_a_run_without_progress(vocab, files, tmp_path):
  c = own_config(vocab, files, epochs=8.0, evals_per_epoch=1, patience=2)
  c.optim.lr = 1e-12
  run(c, tmp_path)
  result = results.load(tmp_path, "own", 0)
  assert list(result.evaluations) == ["13", "26", "39"]
  assert result.step == 39 and result.steps == 104
  assert result.notes[-1] == "ended at step 39 of 104 by this dev set"
  for split, section in (("train", "Training records of"), ("dev", "Evalu")):
    for record in runs.read_records(tmp_path / "own" / "seed-0", split):
      assert record.keys() <= read_first_cells("metrics.md", section)


@pytest.mark.slow
def test_meshes_and_micro_batches_give_the_same_losses(
  vocab, files, tmp_path, monkeypatch
):
  def train(**changes):
    c = own_config(vocab, files, epochs=0.3, **changes)
    c.model.dropout = c.model.attention_dropout = 0.1
    c.log.every_steps = 1
    workdir = tmp_path / json.dumps(changes)
    run(c, workdir)
    records = runs.read_records(workdir / "own" / "seed-0")
    return [record["total"] for record in records]

  losses = train()
  monkeypatch.setattr(sharding, "make_mesh", sharding.make_mesh.func)
  monkeypatch.setattr(sharding, "device_count", jax.device_count)
  for changes in (
    {"mesh__preset": "fsdp"},
    {"mesh__preset": "fsdp_tp", "optim__accumulation": 2},
  ):
    np.testing.assert_allclose(train(**changes), losses, atol=2e-5)


def test_two_models_are_compared_on_the_same_examples(
  learned, vocab, files, tmp_path
):
  _, workdir, _ = learned
  c = own_config(vocab, files, seeds=2, epochs=1.0, against=str(workdir))
  c.optim.lr = 1e-5
  _, text = run(c, tmp_path)
  [row] = read_results(tmp_path)["compared"]["tasks"]["own"]
  assert row["difference"] < -20 and row["high"] < 0
  assert "paired bootstrap" in " ".join(text.split())


def test_fewer_seeds_keep_all_runs(learned):
  c, workdir, _ = learned
  c = c.copy_and_resolve_references()
  c.finetune.seeds = 1
  _, text = run(c, workdir)
  assert len(read_results(workdir)["tasks"]["own"]["runs"]) == 2
  assert "│    1 │" in text


@pytest.mark.parametrize("content", ["{", "[]", '{"task": "own"}', None])
def test_rejects_damaged_results(learned, tmp_path, content):
  c, workdir, _ = learned
  if content is None:
    path = workdir / "own" / "seed-0" / "result.json"
    content = json.dumps({**json.loads(path.read_text()), "scores": {}})
  path = tmp_path / "own" / "seed-0" / "result.json"
  path.parent.mkdir(parents=True)
  path.write_text(content)
  with pytest.raises(CheckpointError, match="own/seed-0' and run the same"):
    run(c, tmp_path)


def test_rejects_folders_with_other_files(vocab, files, tmp_path):
  path = tmp_path / "own" / "seed-0" / "thesis.tex"
  path.parent.mkdir(parents=True)
  path.touch()
  with pytest.raises(InputError, match="thesis.tex"):
    run(own_config(vocab, files), tmp_path)
  assert path.exists()


def test_explains_why_runs_cannot_be_compared(learned, vocab, files, tmp_path):
  _, workdir, _ = learned
  lines = (files / "dev.jsonl").read_text().splitlines()
  (tmp_path / "dev.jsonl").write_text("\n".join(lines[1:]) + "\n")
  value = f"train={files}/train.csv dev={tmp_path}/dev.jsonl"
  c = own_config(vocab, files, files=value, epochs=0.2, against=str(workdir))
  _, text = run(c, tmp_path / "work")
  assert "own is not compared: the other runs have other examples" in text


def test_tasks_of_a_workdir_have_the_same_weights(learned):
  _, workdir, _ = learned
  runs = results.load_all(workdir)
  saved = runs["own"][0].provenance
  other = {**saved, "data": {}, "labels": [], "head": "?"}
  results.check_provenance(runs, "another", other)
  with pytest.raises(CheckpointError, match="own with other weights"):
    results.check_provenance(runs, "another", {**other, "weights": "0"})
  with pytest.raises(CheckpointError, match="head"):
    results.check_provenance(runs, "own", {**saved, "head": "?"})
  first, last = runs["own"]
  tested = {**saved, "data": {**saved["data"], "test": "1"}}
  runs = {"own": [first, dataclasses.replace(last, provenance=tested)]}
  results.check_provenance(runs, "own", tested)
  other = {**saved, "data": {**saved["data"], "test": "2"}}
  with pytest.raises(CheckpointError, match="data.test"):
    results.check_provenance(runs, "own", other)


@pytest.mark.parametrize(
  "arg, role, head",
  [
    ("rte", "discriminator", "dense"),
    ("rte", "bert", "pooler"),
    ("released", "discriminator", "linear"),
    ("released", "bert", "linear"),
  ],
)
def test_the_default_head_matches_hugging_face(vocab, arg, role, head):
  c = finetune_glue.get_config(arg)
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  initial = initial_weights.open_weights(c, report=print)
  initial = dataclasses.replace(initial, role=role)
  assert initial.make_model(2).head == head


def test_learning_rates_follow_schedule_and_layer_decay(vocab):
  c = finetune_glue.get_config("rte")
  c.model.variant, c.data.vocab, c.optim.epsilon = "tiny", str(vocab), 1e-30
  c.finetune.head = "linear"
  model = initial_weights.open_weights(c, report=print).make_model(2)
  tx, schedule = loop.make_optimizer(FinetuneOptions.from_config(c), model, 100)
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


GLUE_FILES = {
  "qqp": "qqp.train={0}/QQP/train.sample9k.tsv.xz"
  " qqp.dev={0}/QQP/dev.sample1k-from-train.tsv.xz",
  "qnli": "qnli.train={0}/QNLI/train.sample10k.tsv.xz",
  "mnli": "mnli.train={0}/MNLI/train.sample10k.tsv.xz",
}


def glue_config(task, vocab, real_data, rows):
  c = finetune_glue.get_config(task)
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  folder = real_data / "glue"
  c.finetune.data, c.finetune.rows = str(folder), rows
  c.finetune.files = GLUE_FILES.get(task, "").format(folder)
  return c


# Two classes of a sentence, three of a pair, and a score.
@pytest.mark.parametrize(
  "task",
  [
    *(pytest.param(x, marks=pytest.mark.slow) for x in ("cola", "mnli")),
    "stsb",
  ],
)
def test_trains_and_scores_every_kind_of_glue(task, vocab, real_data, tmp_path):
  c = glue_config(task, vocab, real_data, rows=96)
  c.finetune.epochs, c.finetune.seeds, c.finetune.export = 1.0, 1, "none"
  c.length, c.batch_size = 16, 64  # one length to compile for
  code, _ = run(c, tmp_path)
  result = results.load(tmp_path, task, 0)
  assert code == 0 and np.isfinite(result.losses).all()
  assert any("96 of" in note for note in result.notes)
  published = read_results(tmp_path)["published"]
  assert published[0]["name"] == "ELECTRA small" and "paper" in str(published)
  assert all(model["scores"][task] > 50 for model in published)


@pytest.mark.parametrize("task", finetune_glue.TASKS)
def test_scores_of_perfect_and_constant_answers(task, vocab, real_data):
  c = glue_config(task, vocab, real_data, rows=8)
  tokenizer = initial_weights.open_weights(c, report=print).tokenizer
  options = FinetuneOptions.from_config(c)
  dev = task_data.read_task_data(options, task, tokenizer).dev
  metrics = glue.TASKS[task].metrics
  perfect = dev.score(list(dev.golds))
  assert perfect == pytest.approx(dict.fromkeys(metrics, 100))
  constant = dev.score([dev.golds[0]] * len(dev.golds))[metrics[0]]
  share = 100 * np.mean([gold == dev.golds[0] for gold in dev.golds])
  expected = share if metrics[0] == "accuracy" else 0
  assert constant == pytest.approx(expected)
  assert eval_splits.find_failure(dev.golds, [dev.golds[0]] * len(dev.golds))
  assert not eval_splits.find_failure(dev.golds, list(dev.golds))


def test_writes_submissions_for_glue(vocab, tmp_path):
  folder = tmp_path / "glue" / "RTE"
  folder.mkdir(parents=True)

  def make_row(i, *label):
    return "\t".join([str(i), WORDS[i % 9], WORDS[i % 7], *label])

  header = "index\tsentence1\tsentence2"
  labels = "entailment", "not_entailment"
  for split in ("train", "dev"):
    lines = [make_row(i, labels[i % 2]) for i in range(40)]
    text = "\n".join([f"{header}\tlabel", *lines]) + "\n"
    (folder / f"{split}.tsv").write_text(text)
  lines = [make_row(i) for i in range(30)]
  (folder / "test.tsv").write_text("\n".join([header, *lines]) + "\n")
  c = finetune_glue.get_config("rte")
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  f = c.finetune
  f.data, f.seeds, f.epochs, f.predict_test = str(folder.parent), 2, 1.0, True
  f.export = "none"
  run(c, tmp_path / "work")
  text = (tmp_path / "work" / "submission" / "RTE.tsv").read_text()
  header, *lines = text.splitlines()
  assert header == "index\tprediction" and len(lines) == 30
  assert [line.split("\t")[0] for line in lines] == list(map(str, range(30)))
  assert {line.split("\t")[1] for line in lines} <= set(labels)


def write_squad(path, num_questions):
  """Writes questions of one word, whose answer is the next word."""
  rng = random.Random(num_questions)
  paragraphs = []
  for number in range(num_questions):
    words = rng.sample(WORDS, 30)
    index = rng.randrange(28)
    context = " ".join(words)
    answer = words[index + 1]
    start = len(" ".join(words[: index + 1])) + 1
    qa = {
      "id": f"q{number}",
      "question": words[index],
      "answers": [{"text": answer, "answer_start": start}],
    }
    paragraphs.append({"context": context, "qas": [qa]})
  data = {"data": [{"title": "made", "paragraphs": paragraphs}]}
  path.write_text(json.dumps({"version": "1.1", **data}))


@pytest.mark.slow
@pytest.mark.parametrize("head", ["spans", "joint"])
def test_trains_and_scores_span_heads(head, vocab, tmp_path):
  write_squad(tmp_path / "train-v1.1.json", 64)
  write_squad(tmp_path / "dev-v1.1.json", 20)
  c = finetune_squad.get_config()
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  c.length, c.finetune.question_length, c.finetune.stride = 24, 4, 8
  f = c.finetune
  f.head, f.data, f.export = head, str(tmp_path), "none"
  f.seeds, f.epochs = 1, 1.0
  code, _ = run(c, tmp_path / "work")
  result = results.load(tmp_path / "work", "squad", 0)
  assert code == 0
  assert set(result.scores["dev"]) == {"em", "f1"}
  assert all(isinstance(x, str) for x in result.answers["dev"]["answers"])


def test_an_exported_classifier_gives_the_same_answers_in_transformers(
  vocab, files, tmp_path
):
  pytest.importorskip("torch")
  import transformers

  run(own_config(vocab, files, export="all", epochs=4.0), tmp_path)
  folder = tmp_path / "own" / "seed-0" / "model"
  for file in folder.iterdir():
    assert str(tmp_path.parent).encode() not in file.read_bytes(), file
  card = huggingface_hub.ModelCard.load(folder / "README.md")
  assert card.data.license == "unknown" and "accuracy" in card.text
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  auto = transformers.AutoModelForSequenceClassification
  model = auto.from_pretrained(folder)
  lines = (files / "dev.jsonl").read_text().splitlines()
  texts = [json.loads(line)["text"] for line in lines]
  batch = tokenizer(
    texts, truncation=True, max_length=128, padding=True, return_tensors="pt"
  )
  label_ids = model(**batch).logits.argmax(-1).tolist()
  answers = results.load(tmp_path, "own", 0).answers["dev"]["answers"]
  assert [model.config.id2label[i] for i in label_ids] == answers


@pytest.mark.parametrize(
  "changes, error, message",
  [
    ({"text": "sentence"}, DataError, "train.csv:.*sentence"),
    ({"label": "klass"}, DataError, "klass"),
    ({"labels": "good,fine"}, DataError, r"train.csv:\d+.*bad"),
    ({"kind": "score"}, DataError, r"train.csv:\d+"),
    ({"metric": "bleu"}, InputError, "bleu"),
    ({"files": "train=x"}, InputError, "dev"),
    ({"files": "trian=x dev=y"}, InputError, "trian"),
    ({"head": "spans"}, InputError, "finetune.head"),
    ({"patience": 2}, InputError, "evals_per_epoch"),
    ({"loss": "total"}, InputError, "finetune.loss"),
    ({"tasks": "mrpc"}, InputError, "finetune.tasks"),
    ({"optim__accumulation": 3}, InputError, "batch_size"),
    ({"model__variant": "init"}, InputError, "init"),
  ],
)
def test_rejects_bad_input_and_names_it(
  vocab, files, tmp_path, changes, error, message
):
  c = own_config(vocab, files, **changes)
  with pytest.raises(error, match=message):
    run(c, tmp_path)
  assert not (tmp_path / "own").exists()
  c.dry_run = True
  if error is InputError:  # what needs no data
    with pytest.raises(error, match=message):
      run(c, tmp_path)


def test_a_dry_run_describes_a_network_and_the_missing_runs(
  learned, files, tmp_path
):
  c, workdir, _ = learned
  c = c.copy_and_resolve_references()
  c.dry_run, c.finetune.seeds = True, 3
  before = sorted(workdir.rglob("*"))
  code, printed = run(c, workdir)
  assert code == 0 and sorted(workdir.rglob("*")) == before
  assert "drawn at random" in printed and "1 layers of 32 units" in printed
  assert f"train: {files}/train.csv; dev: {files}/dev.jsonl; 6 ep" in printed
  assert "0 to 2; 1 of 3 runs are to train" in printed
  c.finetune.epochs = 5.0
  with pytest.raises(CheckpointError, match="finetune.epochs"):
    run(c, workdir)


def test_a_dry_run_needs_neither_weights_nor_data(tmp_path, monkeypatch):
  c = finetune_glue.get_config("mrpc")
  monkeypatch.setitem(glue.TASKS, "added", glue.TASKS["mrpc"])
  c.finetune.tasks = "added"
  c.dry_run, c.init, c.finetune.data = True, "own/weights", str(tmp_path)
  code, printed = run(c, tmp_path / "out")
  assert code == 0 and not list(tmp_path.iterdir())
  assert "'own/weights', which are looked up on the Hugging Face" in printed
  assert f"{tmp_path}/MRPC/train.tsv (missing)" in printed
  assert "3 epochs of 7,336 rows, 690 steps" in " ".join(printed.split())
