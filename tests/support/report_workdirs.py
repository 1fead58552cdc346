"""Writes workdirs as runs leave them, for tests of their reports."""

import json
import pathlib

from support.texts import write_lines
from truenegs_jax.workdir import files

TABLE = {"title": "T", "rows": [{"set": "S", "em": "80 ± 1"}], "notes": ["n"]}
RESULTS = {  # of tasks that have nothing else
  "blimp": {"summary": "Few.", "tables": [TABLE]},
  "corrections": {"summary": "Few.", "tables": [TABLE]},
  "robustness": {"summary": "Few.", "notes": [], "tables": [TABLE]},
  "study": {"failures": [], "tables": [TABLE]},
}


def write_pretraining(folder: pathlib.Path, steps: int = 60) -> pathlib.Path:
  """Writes a finished pre-training of invented losses; returns its folder."""
  folder.mkdir(parents=True)
  config = {"task": "pretrain", "steps": steps, "batch_size": 8, "length": 32}
  _write(folder / files.CONFIG, config)
  _write(folder / files.ABOUT, make_about())
  _write(folder / files.RESULTS, make_results())
  _write(folder / files.CASES, make_cases(5))
  records = []
  for step in range(1, steps + 1):
    record = {"step": step, "time": 1e9 + step, "split": "train"}
    record |= {"total": 9 - step / steps, "mlm": 8 - step / steps}
    record |= {"mlm_uncorrected": 8.1 - step / steps, "auc": 0.5}
    records.append(record | {"corrected_of_slots": 0.01})
  held_out = records[-1] | {"split": "held_out", "mlm_hidden": 7.5}
  lines = [json.dumps(record) + "\n" for record in [*records, held_out]]
  (folder / "metrics.jsonl").write_text("".join(lines))
  return folder


def make_about() -> dict:
  """Returns the content of about.json."""
  lines = {"start": "random parameters, seed 0", "steps": "60"}
  return {"lines": lines, "sources": ["wordnet"]}


def make_results() -> dict:
  """Returns results.json of a run that has learned."""
  fills = [{"sentence": "the [MASK]", "likeliest tokens": "part 50%"}]
  return {
    "command": "truenegs main --config=demo",
    "verdict": {
      **{"passed": True, "summary": "This run learned."},
      "table": {
        **{"title": "Held-out rows", "notes": ["Better."]},
        "rows": [{"metric": "MLM loss", "model": "7.000", "better": "yes"}],
      },
    },
    "tables": [{"title": "Masks", "rows": fills, "notes": []}],
  }


def make_cases(count: int) -> dict:
  """Returns cases.json, with numbered sentences."""
  cases = [
    {
      **{"sentence": f"a [MASK] of number{i}", "gold": "region"},
      **{"prediction": "part", "probability": i / count, "count": i + 1},
      "synonyms": ["part", "area"],
    }
    for i in range(count)
  ]
  about = {"searched": 1_000, "corrected": count, "source": "wordnet"}
  return about | {"cases": cases}


def write_finetuning(folder: pathlib.Path) -> pathlib.Path:
  """Writes a fine-tuning of RTE with three seeds; returns its folder."""
  scores = (60.0, 62.0, 70.0)
  for seed, score in enumerate(scores):
    path = folder / "rte" / f"seed-{seed}"
    path.mkdir(parents=True)
    records = [
      {"step": 5, "time": 1e9, "split": "train", "total": 0.7, "accuracy": 0.5},
      {"step": 5, "time": 1e9, "split": "dev", "accuracy": score},
    ]
    write_lines(path / "metrics.jsonl", records)
    result = {
      **{"task": "rte", "seed": seed, "step": 5, "secs": 9.0},
      "failure": "constant" if seed == 1 else "",
      "scores": {"dev": {"accuracy": score, "f1": 90.0}},
    }
    _write(path / "result.json", result)
  results = {"command": "truenegs main --config=finetune_glue"}
  _write(folder / files.RESULTS, results)
  options = {"seeds": 3, "tasks": "rte"}
  config = {"task": "finetune", "seed": 0, "finetune": options}
  _write(folder / files.CONFIG, config)
  return folder


def write_results(folder: pathlib.Path, task: str) -> pathlib.Path:
  """Writes a config and the RESULTS of a task; returns the folder."""
  folder.mkdir(parents=True)
  _write(folder / files.CONFIG, {"task": task})
  _write(folder / files.RESULTS, RESULTS[task])
  return folder


def _write(path: pathlib.Path, value: dict) -> None:
  path.write_text(json.dumps(value))
