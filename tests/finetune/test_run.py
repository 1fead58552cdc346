"""Fine-tuning as a user starts it: tasks x seeds in a workdir."""

import dataclasses
import functools
import io
import json
import os
import random
import signal

import jax
import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.configs import finetune_glue, finetune_own, finetune_squad
from truenegs_jax.finetune import (
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
  DiskError,
  InputError,
)
from truenegs_jax.tasks import batches, glue
from truenegs_jax.weights.export import finetuned

WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]
GOOD, BAD = WORDS[:10], WORDS[10:20]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
  """A vocabulary of made-up words."""
  path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
  specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  path.write_text("\n".join([*specials, *WORDS]) + "\n")
  return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """A task of good and bad words, as CSV and JSON lines."""
  folder = tmp_path_factory.mktemp("task")
  rng = random.Random(0)
  rows = []
  for _ in range(480):
    words = rng.choices(WORDS[20:], k=rng.randrange(1, 12))
    good = rng.random() < 0.5
    words.insert(
      rng.randrange(len(words) + 1), rng.choice(GOOD if good else BAD)
    )
    rows.append((" ".join(words), "good" if good else "bad"))
  lines = [f'"{text}",{label}\n' for text, label in rows[:400]]
  (folder / "train.csv").write_text("text,label\n" + "".join(lines))
  records = [
    json.dumps({"text": text, "label": label}) for text, label in rows[400:]
  ]
  (folder / "dev.jsonl").write_text("\n".join(records) + "\n")
  return folder


def own(vocab, folder, **more):
  """The config of that task for a tiny network from scratch."""
  c = finetune_own.get_config()
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  f = c.finetune
  f.files = f"train={folder}/train.csv dev={folder}/dev.jsonl"
  f.text, f.seeds, f.epochs, f.export, f.lrs = (
    "text",
    1,
    2.0,
    "none",
    (3e-3,) * 3,
  )
  f.layer_decay = 1.0
  c.log.every_steps = 5
  c.length = 16  # one length to compile for
  for name, value in more.items():
    section, _, key = name.rpartition("__")
    (c[section] if section else f)[key] = value
  return c


def run(c, workdir):
  """Exit code, and what was printed."""
  out = io.StringIO()
  code = run_lib.run(c, workdir, Console(file=out, width=200))
  return code, out.getvalue()


def read(workdir):
  return json.loads((workdir / "results.json").read_text())


def outcome(workdir, seed=0, task="own"):
  """What a run came to, without what a clock says."""
  found = vars(results.load(workdir, task, seed))
  return {k: v for k, v in found.items() if k not in ("secs", "rows_per_s")}


@pytest.fixture(scope="module")
def learned(vocab, files, tmp_path_factory):
  """A workdir with two seeds that learned the task."""
  workdir = tmp_path_factory.mktemp("learned")
  c = own(vocab, files, epochs=6.0, seeds=2, head="linear")
  c.log.every_steps = 20
  return c, workdir, run(c, workdir)


def test_a_task_of_ones_own_is_learned_and_said(learned):
  _, workdir, (code, text) = learned
  found = read(workdir)["tasks"]["own"]
  assert code == 0
  assert found["summary"]["accuracy"]["median"] > 90
  assert found["summary"]["accuracy"]["runs"] == 2
  assert f"{found['summary']['accuracy']['median']:.2f}" in text


def test_saved_answers_have_the_scores_that_are_said(learned):
  _, workdir, _ = learned
  for one in read(workdir)["tasks"]["own"]["runs"]:
    said = one["answers"]["dev"]
    right = np.mean(np.array(said["golds"]) == np.array(said["answers"]))
    assert one["scores"]["dev"]["accuracy"] == pytest.approx(100 * right)
    assert len(said["keys"]) == 80


@pytest.mark.slow
def test_what_has_ended_is_not_made_again_and_seeds_are_added(
  vocab, files, tmp_path
):
  both, one = tmp_path / "both", tmp_path / "one"
  run(own(vocab, files, seeds=2), both)
  run(own(vocab, files), one)
  before = (one / "own" / "seed-0" / "result.json").stat().st_mtime_ns
  run(own(vocab, files, seeds=2), one)
  after = (one / "own" / "seed-0" / "result.json").stat().st_mtime_ns
  assert before == after
  assert outcome(one, 1) == outcome(both, 1)
  assert outcome(one, 0) != outcome(one, 1)


@pytest.mark.slow
def test_a_run_that_was_stopped_is_made_whole_the_next_time(
  vocab, files, tmp_path, monkeypatch
):
  whole, cut = tmp_path / "whole", tmp_path / "cut"
  c = own(vocab, files, epochs=1.0)
  run(c, whole)
  real = batches.batch_at

  def at(rows, step, **more):
    if step == 9:
      os.kill(os.getpid(), signal.SIGTERM)
    return real(rows, step, **more)

  with monkeypatch.context() as patch:
    patch.setattr(batches, "batch_at", at)
    code, text = run(c, cut)
  assert code == 75 and "the 1 runs that are missing" in text
  assert not results.load_all(cut)
  assert run(c, cut)[0] == 0
  assert outcome(cut) == outcome(whole)


@pytest.mark.parametrize(
  "more, said",
  [
    ({"epochs": 1.0}, "epochs"),
    ({"optim__lr": 1e-4}, "optim.lr"),
    ({"head_dropout": 0.0}, "head_dropout"),
    ({"head": "dense"}, "finetune.head: (?s:.)*default head was 'linear'"),
  ],
)
def test_runs_of_another_recipe_are_not_mixed(learned, more, said):
  c, workdir, _ = learned
  c = c.copy_and_resolve_references()
  for name, value in more.items():
    section, _, key = name.rpartition("__")
    c[section or "finetune"][key] = value
  with pytest.raises(CheckpointError, match=said):
    run(c, workdir)


def test_runs_of_other_data_are_not_mixed_nor_shown(learned, files, tmp_path):
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


def test_what_has_ended_is_shown_when_its_data_are_gone(learned, files):
  c, workdir, (_, text) = learned
  (files / "train.csv").rename(files / "away.csv")
  code, again = run(c, workdir)
  (files / "away.csv").rename(files / "train.csv")
  assert code == 0 and "not seen whether" in again
  assert text.splitlines()[-3:] == again.splitlines()[-3:]


def test_a_mistake_does_not_lock_a_workdir(vocab, files, tmp_path):
  with pytest.raises(DataError, match="sentence"):
    run(own(vocab, files, text="sentence"), tmp_path)
  assert run(own(vocab, files, epochs=0.2), tmp_path)[0] == 0


@pytest.mark.slow
def test_a_run_that_learned_nothing_is_counted_and_shown(
  vocab, files, tmp_path
):
  c = own(vocab, files, seeds=2, epochs=1.0, lrs=(1.0,) * 3, export="all")
  code, text = run(c, tmp_path)
  summary = read(tmp_path)["tasks"]["own"]["summary"]["accuracy"]
  assert code == 0 and summary["runs"] == 2 and summary["failed"] == 2
  assert "FAILED" in text and "not exported: the run failed" in text


def test_gradients_that_are_not_finite_fail_the_run_and_not_the_others(
  vocab, files, tmp_path, monkeypatch
):
  real = initial_weights.InitialWeights.make_params

  def broken(self, model, task, seed, **more):
    params = real(self, model, task, seed, **more)
    if seed == 0:
      params["task_head"]["output"]["kernel"] = np.full_like(
        params["task_head"]["output"]["kernel"], np.inf
      )
    return params

  monkeypatch.setattr(initial_weights.InitialWeights, "make_params", broken)
  run(own(vocab, files, seeds=2, epochs=1.0), tmp_path)
  found = [results.load(tmp_path, "own", seed) for seed in (0, 1)]
  assert "not finite" in found[0].failure
  assert "not finite" not in found[1].failure and found[1].step == 13
  assert read(tmp_path)["tasks"]["own"]["summary"]["accuracy"]["failed"] >= 1


@pytest.mark.slow
def test_the_best_evaluation_is_kept_where_it_is_asked_for(
  vocab, files, tmp_path
):
  c = own(vocab, files, epochs=4.0, keep="best", evals_per_epoch=2)
  run(c, tmp_path)
  found = results.load(tmp_path, "own", 0)
  best = max(x["accuracy"] for x in found.evaluations.values())
  assert len(found.evaluations) == 8
  assert found.scores["dev"]["accuracy"] == best
  first = next(
    step for step, x in found.evaluations.items() if x["accuracy"] == best
  )
  assert found.step == int(first)


def test_another_test_set_is_not_taken_for_the_one_answered(
  vocab, files, tmp_path
):
  def config(lines, **more):
    (tmp_path / "test.csv").write_text("text\n" + "ba be\n" * lines)
    given = f"train={files}/train.csv dev={files}/dev.jsonl"
    given += f" test={tmp_path}/test.csv"
    return own(vocab, files, files=given, predict_test=True, epochs=0.2, **more)

  assert run(config(1), tmp_path / "work")[0] == 0
  said = results.load(tmp_path / "work", "own", 0).answers["test"]
  assert len(said["answers"]) == 1 and not said["golds"]
  with pytest.raises(CheckpointError, match="data.test"):
    run(config(2), tmp_path / "work")
  without = own(vocab, files, epochs=0.2)
  assert run(without, tmp_path / "work")[0] == 0


def test_patience_ends_a_run_that_gets_no_better(vocab, files, tmp_path):
  c = own(vocab, files, epochs=8.0, evals_per_epoch=1, patience=2)
  c.optim.lr = 1e-12
  run(c, tmp_path)
  found = results.load(tmp_path, "own", 0)
  assert list(found.evaluations) == ["13", "26", "39"]
  assert found.step == 39 and found.steps == 104
  assert found.notes[-1] == "ended at step 39 of 104 by this dev set"


@pytest.mark.slow
def test_meshes_and_micro_batches_train_alike(vocab, files, tmp_path):
  def losses(**more):
    c = own(vocab, files, **more)
    c.model.dropout = c.model.attention_dropout = 0.1
    c.log.every_steps = 1
    initial = initial_weights.open_weights(c, say=print)
    recipe = FinetuneOptions.from_config(c)
    data = task_data.read_task_data(recipe, "own", initial.tokenizer)
    model = initial.make_model(data.num_outputs)
    tuning = loop.make_setup(recipe, model, data)
    params = initial.make_params(model, data.task, 0, say=print)
    seen = []
    loop.fine_tune(
      tuning, params, 0, tmp_path, write=seen.append, check=lambda: None
    )
    return [x["total"] for x in seen]

  alone = losses(epochs=0.5)
  for more in (
    {"mesh__preset": "fsdp"},
    {"mesh__preset": "fsdp_tp"},
    {"optim__accumulation": 2},
  ):
    np.testing.assert_allclose(losses(epochs=0.5, **more), alone, atol=2e-5)


def test_two_models_are_compared_on_the_same_examples(
  learned, vocab, files, tmp_path
):
  _, workdir, _ = learned
  c = own(vocab, files, seeds=2, epochs=1.0, against=str(workdir))
  c.optim.lr = 1e-5
  _, text = run(c, tmp_path)
  [row] = read(tmp_path)["compared"]["tasks"]["own"]
  assert row["difference"] < -20 and row["high"] < 0
  assert "paired bootstrap" in text


def test_fewer_seeds_forget_no_run(learned):
  c, workdir, _ = learned
  c = c.copy_and_resolve_references()
  c.finetune.seeds = 1
  _, text = run(c, workdir)
  assert len(read(workdir)["tasks"]["own"]["runs"]) == 2
  assert "│    1 │" in text


@pytest.mark.parametrize("content", ["{", "[]", '{"task": "own"}', None])
def test_a_damaged_result_is_refused_with_the_way_out(
  learned, tmp_path, content
):
  c, workdir, _ = learned
  whole = json.loads((workdir / "own" / "seed-0" / "result.json").read_text())
  broken = json.dumps({**whole, "scores": {}}) if content is None else content
  (tmp_path / "own" / "seed-0").mkdir(parents=True)
  (tmp_path / "own" / "seed-0" / "result.json").write_text(broken)
  with pytest.raises(CheckpointError, match="own/seed-0, and the same command"):
    run(c, tmp_path)


def test_what_no_run_has_left_is_not_removed(vocab, files, tmp_path):
  (tmp_path / "own" / "seed-0").mkdir(parents=True)
  (tmp_path / "own" / "seed-0" / "thesis.tex").touch()
  with pytest.raises(InputError, match="thesis.tex"):
    run(own(vocab, files), tmp_path)
  assert (tmp_path / "own" / "seed-0" / "thesis.tex").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_costs_the_export_and_not_the_run(
  vocab, files, tmp_path, monkeypatch
):
  def full(*args, **more):
    raise DiskError("no space")

  c = own(vocab, files, epochs=4.0, export="all")
  with monkeypatch.context() as patch, pytest.raises(DiskError, match="scored"):
    patch.setattr(finetuned, "export_task", full)
    run(c, tmp_path)
  code, text = run(c, tmp_path)
  assert code == 0 and "seed-0 has no model for Hugging Face" in text


def test_what_cannot_be_compared_is_said(learned, vocab, files, tmp_path):
  _, workdir, _ = learned
  lines = (files / "dev.jsonl").read_text().splitlines()
  (tmp_path / "dev.jsonl").write_text("\n".join(lines[1:]) + "\n")
  given = f"train={files}/train.csv dev={tmp_path}/dev.jsonl"
  c = own(vocab, files, files=given, epochs=0.2, against=str(workdir))
  _, text = run(c, tmp_path / "work")
  assert "own is not compared: the other has it on other examples" in text


def test_tasks_of_one_workdir_are_of_the_same_weights(learned):
  _, workdir, _ = learned
  known = results.load_all(workdir)
  made = known["own"][0].made
  other = {**made, "data": {}, "labels": [], "head": "?"}
  results.check_provenance(known, "another", other)
  with pytest.raises(CheckpointError, match="own with other weights"):
    results.check_provenance(known, "another", {**other, "weights": "0"})
  with pytest.raises(CheckpointError, match="head"):
    results.check_provenance(known, "own", {**made, "head": "?"})
  first, last = known["own"]
  tested = {**made, "data": {**made["data"], "test": "1"}}
  known = {"own": [first, dataclasses.replace(last, made=tested)]}
  results.check_provenance(known, "own", tested)
  other = {**made, "data": {**made["data"], "test": "2"}}
  with pytest.raises(CheckpointError, match="data.test"):
    results.check_provenance(known, "own", other)


@pytest.mark.parametrize(
  "arg, role, head",
  [
    ("rte", "discriminator", "dense"),
    ("rte", "bert", "pooler"),
    ("released", "discriminator", "linear"),
    ("released", "bert", "linear"),
  ],
)
def test_the_default_head_is_that_of_hugging_face(vocab, arg, role, head):
  c = finetune_glue.get_config(arg)
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  initial = initial_weights.open_weights(c, say=print)
  initial = dataclasses.replace(initial, role=role)
  assert initial.make_model(2).head == head


def test_rates_rise_fall_and_are_lower_in_lower_layers(vocab):
  c = finetune_glue.get_config("rte")
  c.model.variant, c.data.vocab, c.optim.epsilon = "tiny", str(vocab), 1e-30
  c.finetune.head = "linear"
  model = initial_weights.open_weights(c, say=print).make_model(2)
  tx, rate = loop.make_optimizer(FinetuneOptions.from_config(c), model, 100)
  assert float(rate(0)) == float(rate(100)) == 0
  assert float(rate(5)) == pytest.approx(3e-4 * 0.95 * 0.5)
  assert float(rate(10)) == pytest.approx(3e-4 * 0.9)
  params = jax.tree.map(
    lambda x: np.ones(x.shape, np.float32), pretrain.param_shapes(model)
  )
  state, update = tx.init(params), jax.jit(tx.update)
  for _ in range(2):  # the first has a rate of 0
    updates, state = update(params, state, params)
  moved = lambda *path: abs(
    float(functools.reduce(dict.__getitem__, path, updates).ravel()[0])
  )
  head = moved("task_head", "output", "kernel")
  below = [
    moved("discriminator", "layer_1", "query", "kernel"),
    moved("discriminator", "layer_0", "query", "bias"),
    moved("discriminator", "project", "kernel"),
    moved("embeddings", "word"),
  ]
  expected = [0.8**2, 0.8**3, 0.8**4, 0.8**4]
  np.testing.assert_allclose(np.array(below) / head, expected, rtol=1e-5)


GLUE_FILES = {
  "qqp": "qqp.train={0}/QQP/train.sample9k.tsv.xz"
  " qqp.dev={0}/QQP/dev.sample1k-from-train.tsv.xz",
  "qnli": "qnli.train={0}/QNLI/train.sample10k.tsv.xz",
  "mnli": "mnli.train={0}/MNLI/train.sample10k.tsv.xz",
}


@pytest.mark.parametrize(
  "task",
  [
    pytest.param(x, marks=() if x == "stsb" else pytest.mark.slow)
    for x in finetune_glue.TASKS
  ],
)
def test_every_task_of_glue_trains_and_is_scored(
  task, vocab, real_data, tmp_path
):
  c = finetune_glue.get_config(task)
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  folder = real_data / "glue"
  c.finetune.data = str(folder)
  c.finetune.files = GLUE_FILES.get(task, "").format(folder)
  c.finetune.rows, c.finetune.epochs, c.finetune.seeds = 96, 1.0, 1
  c.finetune.export = "none"
  c.length, c.batch_size = 16, 64  # one length to compile for
  code, _ = run(c, tmp_path)
  found = results.load(tmp_path, task, 0)
  assert code == 0 and np.isfinite(found.losses).all()
  assert any("96 of" in note for note in found.notes)


@pytest.mark.parametrize("task", finetune_glue.TASKS)
def test_perfect_answers_score_100_and_constant_ones_what_they_must(
  task, vocab, real_data
):
  c = finetune_glue.get_config(task)
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  folder = real_data / "glue"
  c.finetune.data = str(folder)
  c.finetune.files = GLUE_FILES.get(task, "").format(folder)
  c.finetune.rows = 8
  tokenizer = initial_weights.open_weights(c, say=print).tokenizer
  dev = task_data.read_task_data(
    FinetuneOptions.from_config(c), task, tokenizer
  ).dev
  own_metric = glue.TASKS[task].metrics[0]
  assert dev.score(list(dev.golds)) == pytest.approx(
    dict.fromkeys(glue.TASKS[task].metrics, 100)
  )
  constant = dev.score([dev.golds[0]] * len(dev.golds))[own_metric]
  share = 100 * np.mean([gold == dev.golds[0] for gold in dev.golds])
  expected = share if own_metric == "accuracy" else 0
  assert constant == pytest.approx(expected)
  assert dev.failure([dev.golds[0]] * len(dev.golds))
  assert not dev.failure(list(dev.golds))


def test_test_sets_are_answered_in_the_format_of_glue(vocab, tmp_path):
  folder = tmp_path / "glue" / "RTE"
  folder.mkdir(parents=True)
  row = lambda i, *more: "\t".join([str(i), WORDS[i % 9], WORDS[i % 7], *more])
  header = "index\tsentence1\tsentence2"
  labels = "entailment", "not_entailment"
  for split in ("train", "dev"):
    lines = [row(i, labels[i % 2]) for i in range(40)]
    text = "\n".join([f"{header}\tlabel", *lines]) + "\n"
    (folder / f"{split}.tsv").write_text(text)
  lines = [row(i) for i in range(30)]
  (folder / "test.tsv").write_text("\n".join([header, *lines]) + "\n")
  c = finetune_glue.get_config("rte")
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  f = c.finetune
  f.data, f.seeds, f.epochs, f.predict_test = str(folder.parent), 2, 1.0, True
  f.export = "none"
  run(c, tmp_path / "work")
  written = (tmp_path / "work" / "submission" / "RTE.tsv").read_text()
  first, *rest = written.splitlines()
  assert first == "index\tprediction" and len(rest) == 30
  assert [line.split("\t")[0] for line in rest] == list(map(str, range(30)))
  assert {line.split("\t")[1] for line in rest} <= set(labels)


def squad_file(path, questions):
  """Questions whose answer stands behind the word that they ask for."""
  rng = random.Random(questions)
  paragraphs = []
  for number in range(questions):
    words = rng.sample(WORDS, 30)
    at = rng.randrange(28)
    context = " ".join(words)
    answer = words[at + 1]
    start = len(" ".join(words[: at + 1])) + 1
    qa = {
      "id": f"q{number}",
      "question": words[at],
      "answers": [{"text": answer, "answer_start": start}],
    }
    paragraphs.append({"context": context, "qas": [qa]})
  data = {"data": [{"title": "made", "paragraphs": paragraphs}]}
  path.write_text(json.dumps({"version": "1.1", **data}))


@pytest.mark.slow
@pytest.mark.parametrize("head", ["spans", "joint"])
def test_spans_are_trained_answered_and_scored(head, vocab, tmp_path):
  squad_file(tmp_path / "train-v1.1.json", 64)
  squad_file(tmp_path / "dev-v1.1.json", 20)
  c = finetune_squad.get_config()
  c.model.variant, c.data.vocab = "tiny", str(vocab)
  c.length, c.finetune.question_length, c.finetune.stride = 24, 4, 8
  f = c.finetune
  f.head, f.data, f.seeds, f.epochs, f.export = (
    head,
    str(tmp_path),
    1,
    1.0,
    "none",
  )
  code, _ = run(c, tmp_path / "work")
  found = results.load(tmp_path / "work", "squad", 0)
  assert code == 0
  assert set(found.scores["dev"]) == {"em", "f1"}
  assert all(isinstance(x, str) for x in found.answers["dev"]["answers"])


def test_an_exported_classifier_says_in_transformers_what_it_said_here(
  vocab, files, tmp_path
):
  pytest.importorskip("torch")
  import transformers

  run(own(vocab, files, export="all", epochs=4.0), tmp_path)
  folder = tmp_path / "own" / "seed-0" / "model"
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  auto = transformers.AutoModelForSequenceClassification
  model = auto.from_pretrained(folder)
  lines = (files / "dev.jsonl").read_text().splitlines()
  texts = [json.loads(line)["text"] for line in lines]
  batch = tokenizer(
    texts, truncation=True, max_length=128, padding=True, return_tensors="pt"
  )
  said = model(**batch).logits.argmax(-1).tolist()
  found = results.load(tmp_path, "own", 0).answers["dev"]["answers"]
  assert [model.config.id2label[i] for i in said] == found


@pytest.mark.parametrize(
  "more, error, said",
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
def test_bad_input_is_refused_by_name(
  vocab, files, tmp_path, more, error, said
):
  with pytest.raises(error, match=said):
    run(own(vocab, files, **more), tmp_path)
  assert not (tmp_path / "own").exists()
