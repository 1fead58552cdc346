"""Readers of JSON files, each with a valid file."""

import json

from support import report_workdirs, tiny, weight_files
from support.small_rows import write_texts
from support.texts import make_texts
from truenegs_jax.config.load import load_config
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import common
from truenegs_jax.data.rows import open_rows
from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.finetune import results
from truenegs_jax.pretrain import export_run
from truenegs_jax.report import page
from truenegs_jax.report.write import read_workdir
from truenegs_jax.robustness import eval_set
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.tasks import records, squad
from truenegs_jax.tasks.task import TASKS, Question
from truenegs_jax.weights import find
from truenegs_jax.workdir import metrics_file, saved_model

CONFIG = json.loads(common.get_config().to_json())
TYPED = PretrainConfig.read(CONFIG)
RECORD = {"step": 3, "time": 1.5, "split": "train", "total": 2.0, "mlm": 2.0}
ANSWER = {"text": "swan", "answer_start": 2}
QUESTION = {"id": "q", "question": "Who?", "answers": [ANSWER]}
PARAGRAPH = {"context": "A swan.", "qas": [QUESTION]}
RESULT = {
  "task": "own",
  "seed": 0,
  "failure": "",
  "scores": {"dev": {"accuracy": 50.0}},
  "step": 3,
  "secs": 1.0,
  "answers": {"dev": {"keys": ["1"], "golds": ["a"], "answers": ["b"]}},
  "provenance": {"config": {"seed": 0}, "data": {"dev": "1"}},
}
SST2 = TASKS["sst2"]
VOCABULARY = {entry: i for i, entry in enumerate([*SPECIALS, "swan"])}


def read_metrics(folder):
  metrics_file.JsonlWriter(folder, first_step=9).close()
  export_run.summarize_run(folder, TYPED, step=3)


def read_report(path):
  run = read_workdir(path.parent)
  page.render([run])
  for level, text in run.notes:
    if level == page.ERROR:
      raise CheckpointError(text)


def read_weights(folder):
  return find.Weights(str(folder)).networks


def read_corpus(path):
  return list(open_corpus(f"{path} document=join chars=99"))


def read_published(path):
  return eval_set.read_published("set", str(path))


# File -> its content, and a function of its path that reads it.
READERS = {
  "saved/config.json": (CONFIG, lambda x: load_config(str(x))),
  "run/config.json": (CONFIG, lambda x: saved_model.read_config(x.parent)),
  "run/results.json": (
    {"steps": 3, "verdict": {"passed": False}},
    lambda x: export_run.summarize_run(x.parent, TYPED, step=3),
  ),
  "run/metrics.jsonl": (RECORD, lambda x: read_metrics(x.parent)),
  "own/seed-0/result.json": (
    RESULT,
    lambda x: results.load_all(x.parent.parent.parent),
  ),
  "rows/manifest.json": (None, lambda x: open_rows(x.parent, "train")),
  "weights/config.json": (None, lambda x: read_weights(x.parent)),
  "weights/tokenizer_config.json": (None, lambda x: read_weights(x.parent)),
  "finished/config.json": (
    {"task": "pretrain", "steps": 3, "batch_size": 2, "length": 8},
    read_report,
  ),
  "finished/metrics.jsonl": (RECORD, read_report),
  "finished/about.json": (report_workdirs.make_about(), read_report),
  "finished/results.json": (report_workdirs.make_results(), read_report),
  "finished/cases.json": (report_workdirs.make_cases(2), read_report),
  "tokenizer.json": (
    {
      "model": {"type": "WordPiece", "vocab": VOCABULARY},
      "normalizer": {"lowercase": True, "strip_accents": None},
    },
    lambda x: load_tokenizer(str(x), lowercase=True),
  ),
  "train-v1.1.json": (
    {"data": [{"title": "Swans", "paragraphs": [PARAGRAPH]}]},
    lambda x: squad.read_squad(str(x)),
  ),
  "task.jsonl": (
    {"text": "a swan", "label": "1"},
    lambda x: [
      (r.text("text"), r.label("label", SST2.kind, labels=SST2.labels))
      for r in records.read_file(x)
    ],
  ),
  "corpus.jsonl": ({"text": "a swan", "id": 1}, read_corpus),
  "sets/ori_swap.json": (None, read_published),
}


def write_files(root):
  """Writes all files of READERS, and those that they need, into a folder."""
  weight_files.write_export(root / "export", tiny.make_bert())
  (root / "export/bert").rename(root / "weights")
  write_texts(root / "rows", make_texts(20))
  questions = [Question("1", "Who?", "A swan.", (("swan", 2),), "")]
  saved = eval_set.EvalSet("swap", "Swap", questions, questions, {})
  eval_set.save_set(saved, root / "sets")
  (root / "run/checkpoints/3/state").mkdir(parents=True)
  for name, (content, _) in READERS.items():
    if content is not None:
      (root / name).parent.mkdir(parents=True, exist_ok=True)
      (root / name).write_text(json.dumps(content))
