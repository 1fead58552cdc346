"""Exports a checkpoint of a run to folders in Hugging Face format.

export_workdir(pathlib.Path("runs/electra_demo"), step=10_000)
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from truenegs_jax.data.corpus import sources_spec
from truenegs_jax.train import build_run, metrics
from truenegs_jax.weights.export import model_card, pretrained, public_names
from truenegs_jax.workdir import files, metrics_file, saved_model

# What a recipe adds, by key of `negatives`.
_TERMS = {
  "hard_correction": "hard correction",
  "soft_weight": "soft regularization",
  "sentence_weight": "sentence regularization",
  "smoothing": "smoothing over synonyms",
}
_MEASURES = {  # metrics in the table
  "mlm": "loss of masked tokens",
  "mlm_hidden": "the same, where the text shows `[MASK]`",
  "detect": "loss of detecting replaced tokens",
  "auc": "AUC of detecting replaced tokens",
}
_TABLE = """\
Held-out rows at step {step:,}. Losses are means in nats; guessing knows only
how frequent each answer is.

| | model | guessing |
|---|---|---|"""
# Tokens of training of the released models: steps x rows x tokens of a row.
_RELEASED = {
  "electra": "ELECTRA-Small had 16 billion",
  "mlm": "BERT had 130 billion",
}
_WORDNET = """\
The text or the synonyms of the training are from WordNet, copyright Princeton
University: https://wordnet.princeton.edu/license-and-commercial-use"""
_CORRECTED = {
  "corrected_of_slots": "of the masked slots",
  "corrected_of_mismatches": "of the predictions that miss the original",
  "corrected_rows": "of the rows in one slot or more",
}


def export_workdir(
  workdir: pathlib.Path,
  *,
  step: int | None = None,
  output: pathlib.Path | None = None,
  dtype: str = "float32",
) -> pretrained.ExportResult:
  """Exports a checkpoint of a run.

  Args:
    workdir: the workdir of a run, which may still be training.
    step: the step to export to `workdir/export-<step>`; None exports the newest
      step to `workdir/export`.
    output: another output folder.
    dtype: as in `pretrained.export_model`.

  Raises:
    InputError, CheckpointError: run or step are missing, or the vocabulary is
      not the run's.
    NonFiniteError, DiskError, TrueNegsError: as `pretrained.export_model`.
  """
  name = files.EXPORT if step is None else f"{files.EXPORT}-{step}"
  with saved_model.open_run(workdir) as checkpoints:
    saved = saved_model.read_saved_model(
      checkpoints, checkpoints.steps()[-1] if step is None else step
    )
    params = saved_model.read_params(checkpoints, saved.model, saved.step)
  return pretrained.export_model(
    params,
    saved.model,
    saved.tokenizer,
    workdir / name if output is None else output,
    origin=summarize_run(workdir, saved.config.to_dict(), saved.step),
    dtype=dtype,
  )


def summarize_run(
  workdir: pathlib.Path, config: Mapping[str, Any], step: int
) -> model_card.ModelOrigin:
  """Describes a step of a run for its model cards."""
  held_out: dict[str, Any] = {}
  for record in metrics_file.read_records(workdir):
    if (record["split"], record["step"]) == ("held_out", step):
      held_out = record
  results: dict[str, Any] = {}
  if (path := workdir / files.RESULTS).exists():
    results = json.loads(path.read_text(encoding="utf-8"))
  return describe_run(ConfigDict(config), step, held_out, results)


def describe_run(
  c: ConfigDict, step: int, held_out: Mapping[str, Any], results: Mapping
) -> model_card.ModelOrigin:
  """Describes a run for its model cards, without paths of this machine.

  Args:
    c: the config of the run.
    step: the exported step.
    held_out: the record of the step in metrics.jsonl; {} if there is none.
    results: the run's results.json, {} before its end.
  """
  measured = {name: x for name, x in held_out.items() if x is not None}
  terms = _list_terms(c.negatives)
  objective = build_run.describe_objective(c)
  sources = sources_spec.named_sources(c.data.sources)
  uses_wordnet = "wordnet" in {*sources, *objective.split()}
  return model_card.ModelOrigin(
    training=_describe_training(c, step, objective, results.get("command")),
    evaluation=_tabulate(measured, step, results.get("verdict", {})),
    limits=_list_limits(c, step, results),
    recipe=_name_recipe(terms, measured),
    notices=_WORDNET if uses_wordnet else "",
    references=(model_card.PAPER,) if terms else (),
    metadata={
      "language": c.data.get("language", ""),  # runs of 0.1 have none
      "datasets": public_names.find_datasets(c.data.sources),
      "base_model": public_names.find_models(c.init),
      "metrics": ["roc_auc"] if "auc" in measured else [],
    },
  )


def _list_terms(negatives: ConfigDict) -> list[str]:
  """Lists what a recipe adds to plain ELECTRA or BERT."""
  return [name for key, name in _TERMS.items() if negatives.get(key)]


def _name_recipe(terms: list[str], measured: Mapping[str, float]) -> str:
  """Names a recipe for a title, with the share of corrected predictions."""
  if not terms:
    return "a baseline without corrections"
  recipe = f"pre-trained with {' and '.join(terms)}"
  share = measured.get("corrected_of_slots")
  if share is None or _TERMS["hard_correction"] not in terms:
    return recipe
  return f"{recipe} ({share:.2%} of the predictions corrected)"


def _describe_training(
  c: ConfigDict, step: int, objective: str, command: str | None
) -> str:
  """Describes data, steps, objective and command as a Markdown list."""
  hide = public_names.hide_folders
  vocab = f"is `{hide(c.data.vocab)}`"
  if c.data.vocab == "train":
    vocab = "was trained on it"
  start = f"`{hide(c.init)}`" if c.init else "scratch"
  if skip := c.get("init_skip"):
    start += f", rows carried over for new {skip}"
  rows = f"{c.batch_size} rows of {c.length} tokens"
  command = f"`{public_names.hide_in_command(command)}`" if command else ""
  return f"""\
* Text: `{hide(c.data.sources)}`; the vocabulary {vocab}
* Training: {step:,} steps of {rows}, seed {c.seed},
  from {start}
* Objective: {hide(objective)}
* Made by: {command or "truenegs_jax"}"""


def _tabulate(
  measured: Mapping[str, float], step: int, verdict: Mapping[str, Any]
) -> str:
  """Makes a Markdown table of held-out metrics next to those of guessing."""
  replaced = measured.get("replaced", 0.0)
  by_frequency = verdict.get("unigram_entropy")
  guesses = {
    "mlm": by_frequency,
    "mlm_hidden": by_frequency,
    "detect": metrics.entropy(np.array([replaced, 1 - replaced])),
    "auc": 0.5,
  }
  # Without the slots that were corrected the loss would be too low.
  values = {
    **measured,
    "mlm": measured.get("mlm_uncorrected", measured.get("mlm")),
  }
  lines = []
  for name, label in _MEASURES.items():
    if (value := values.get(name)) is not None:
      guess = guesses[name]
      shown = "not known" if guess is None else f"{guess:.4f}"
      lines.append(f"| {label} | {value:.4f} | {shown} |")
  if not lines:
    return "Not evaluated at this step."
  table = "\n".join((_TABLE.format(step=step), *lines))
  corrected = [
    f"{measured[name]:.3%} {unit}"
    for name, unit in _CORRECTED.items()
    if name in measured
  ]
  return table + ("\n\nCorrected: " + ", ".join(corrected) if corrected else "")


def _list_limits(c: ConfigDict, step: int, results: Mapping[str, Any]) -> str:
  """Lists what the size and the outcome of a run limit, in Markdown."""
  lines = []
  passed = results.get("verdict", {}).get("passed", True)
  if results.get("steps") == step and not passed:
    lines.append(
      "* **On held-out text it was not better than guessing without context.**"
    )
  if language := c.data.get("language", ""):
    lines.append(f"* Only for text in the language `{language}` (ISO 639-1).")
  if not c.init:
    tokens = step * c.batch_size * c.length
    released = _RELEASED[c.objective]
    lines.append(f"* Trained on {tokens:,} tokens at most; {released}.")
    if c.length < c.model.max_positions:
      lines.append(f"* Positions beyond {c.length} were never trained.")
  return "\n".join(lines)
