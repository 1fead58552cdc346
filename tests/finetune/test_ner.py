"""Tests a fine-tuning on tagged words, from the files to the export."""

import json
import random

import pytest

from support import runs, word_task
from truenegs_jax.configs import finetune_ner
from truenegs_jax.finetune import results
from truenegs_jax.tasks import entities

pytestmark = pytest.mark.usefixtures("one_device")

# An entity of a type is one word of its first five, and one of the others.
KINDS = {"good": word_task.GOOD, "bad": word_task.BAD}
OTHERS = word_task.WORDS[20:]


def write_sentences(path, count, seed):
  rng = random.Random(seed)
  lines = []
  for _ in range(count):
    for _ in range(rng.randrange(1, 5)):
      kind = rng.choice([*KINDS, ""])
      if kind:
        lines.append(f"{rng.choice(KINDS[kind][:5])}\tB-{kind}")
        lines.append(f"{rng.choice(KINDS[kind][5:])}\tI-{kind}")
      else:
        lines.append(f"{rng.choice(OTHERS)}\tO")
    lines.append("")
  path.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """Returns the workdir of a fine-tuning, and what it printed."""
  root = tmp_path_factory.mktemp("ner")
  vocab = word_task.write_vocabulary(root)
  write_sentences(root / "train.conll", 400, 0)
  write_sentences(root / "dev.conll", 60, 1)
  c = finetune_ner.get_config()
  values = word_task.config_values(vocab, root) | {
    "finetune.train": f"{root}/train.conll",
    "finetune.dev": f"{root}/dev.conll",
    "finetune.text": "tokens",
    "finetune.seeds": 1,
    "finetune.epochs": 6.0,
    "finetune.layer_decay": 1.0,
  }
  c.update_from_flattened_dict(values)
  code, printed = runs.run_task(c, root / "run")
  assert code == 0
  return root / "run", printed


def test_entities_are_learned_and_shown_by_type(trained):
  workdir, printed = trained
  [run] = results.load_all(workdir)["own"]
  assert run.scores["dev"]["f1"] > 90 and not run.failure
  assert "tags in BIO" in printed and "words by tag: 'O'" in printed
  saved = json.loads((workdir / "results.json").read_text())
  [table] = [x for x in saved["tables"] if "by type" in x["title"]]
  by_type = {x["type"]: x for x in table["rows"]}
  golds = sum(run.answers["dev"]["golds"], [])
  assert {x: int(by_type[x]["entities"]) for x in ("good", "bad")} == {
    x: golds.count(f"B-{x}") for x in ("good", "bad")
  }


def test_a_pipeline_of_transformers_finds_the_same_entities(trained):
  pytest.importorskip("torch")
  import transformers

  workdir, _ = trained
  folder = workdir / "own" / "seed-0" / "model"
  find = transformers.pipeline("ner", str(folder), aggregation_strategy="first")
  answers = results.load(workdir, "own", 0).answers["dev"]["answers"]
  text = (workdir.parent / "dev.conll").read_text().strip()
  for block, tags in zip(text.split("\n\n"), answers, strict=True):
    words = [x.split("\t")[0] for x in block.split("\n")]
    ours = [
      (x.type, " ".join(words[x.start : x.end]))
      for x in entities.find_entities(tags)
    ]
    theirs = find(" ".join(words))
    assert [(x["entity_group"], x["word"]) for x in theirs] == ours
