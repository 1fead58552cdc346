"""Exports a checkpoint of a run to folders in Hugging Face format."""

import contextlib
import pathlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data.sources import named_sources
from truenegs_jax.pretrain import describe
from truenegs_jax.pretrain.evaluate import Trained
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.files import read_json
from truenegs_jax.train import metrics
from truenegs_jax.weights import export_model, hf_names, model_card
from truenegs_jax.workdir import files, metrics_file, saved_model

# What a recipe adds, by key of `negatives`.
_TERMS = {
  "hard_correction": "hard correction",
  "soft_weight": "soft regularization",
  "sentence_weight": "sentence regularization",
  "smoothing": "smoothing over synonyms",
}
_WORDNET = """\
The text or the synonyms are from WordNet, copyright Princeton University:
  https://wordnet.princeton.edu/license-and-commercial-use"""
_PAPER = "* Method: Zhang et al. (AAAI 2023), https://arxiv.org/abs/2212.00460"
_TABLE = """\
Held-out rows at step {step:,}; no other task was evaluated. Losses are means in
nats; guessing knows only how frequent each answer is.

| | model | guessing |
|---|---|---|
{lines}"""


def export_workdir(
  workdir: pathlib.Path,
  *,
  step: int | None = None,
  output: pathlib.Path | None = None,
) -> export_model.ExportResult:
  """Exports a checkpoint of a run, which may still be training.

  A `step` goes to `workdir/export-<step>`, and None, the newest undamaged step,
  to `workdir/export`, unless `output` is another folder. Prints damaged steps.
  """
  name = files.EXPORT if step is None else f"{files.EXPORT}-{step}"
  with saved_model.open_run(workdir) as checkpoints:
    saved, params = saved_model.load(checkpoints, step, report=print)
  return export_model.export_model(
    saved.model,
    params,
    saved.tokenizer,
    workdir / name if output is None else output,
    origin=summarize_run(workdir, saved.config, saved.step),
  )


def export_trained(
  trained: Trained, workdir: pathlib.Path, console: Console
) -> None:
  """Exports a run if transformers has its architecture; prints a report."""
  run = trained.run
  params = distributed.to_host(trained.state.params)
  if not distributed.is_first_process():
    return
  if reason := hf_names.unsupported_reason(run.model):
    text = f"{reason} The checkpoints have the weights."
  else:
    origin = summarize_run(workdir, run.config, trained.steps)
    folder = workdir / files.EXPORT
    with progress.working(console, "Exporting"):
      exported = export_model.export_model(
        run.model, params, run.tokenizer, folder, origin=origin
      )
    text = f"Exported to '{folder}'. {exported.summary}"
  # Words are not broken on a terminal; a log has a line.
  console.print(text, soft_wrap=not console.is_terminal)


def summarize_run(
  workdir: pathlib.Path, config: PretrainConfig, step: int
) -> model_card.ModelOrigin:
  """Describes a step of a run for its model cards."""
  read = metrics_file.read_records(workdir)
  records = {(x["split"], x["step"]): x for x in read}
  held_out = records.get(("held_out", step), {})
  with _read_optional(workdir / files.ABOUT) as about:
    synonyms = str(about.get("lines", {}).get("synonyms", ""))
  with _read_optional(workdir / files.RESULTS) as results:
    return describe_run(config, step, held_out, results, synonyms)


def _read_optional(
  path: pathlib.Path,
) -> contextlib.AbstractContextManager[dict[str, Any]]:
  """Opens a JSON file of a run; {} without it."""
  if not path.exists():
    return contextlib.nullcontext({})
  fix = f"Remove it to describe the model without {path.name}."
  return read_json(path, CheckpointError, fix)


def describe_run(
  config: PretrainConfig,
  step: int,
  held_out: Mapping[str, Any],
  results: Mapping[str, Any],
  synonyms: str = "",
) -> model_card.ModelOrigin:
  """Describes a run for its model cards, without paths of this machine.

  `held_out` is the record of the step, `results` is results.json; both may be
  empty.
  """
  c = config
  hide = model_card.hide_folders
  objective = describe.describe_objective(c)
  terms = [name for key, name in _TERMS.items() if getattr(c.negatives, key)]
  recipe = "a baseline without corrections"
  if terms:
    recipe = f"pre-trained with {' and '.join(terms)}"
  share = held_out.get("corrected_of_slots")
  if share is not None and c.negatives.hard_correction:
    recipe += f" ({share:.2%} of the predictions corrected)"
  vocab = f"is `{hide(c.data.vocab)}`"
  if c.data.vocab == "train":
    vocab = "was trained on it"
  origin = f"`{hide(c.init)}`" if c.init else "scratch"
  if "words" in c.init_skip:
    origin += ", rows carried over for new words"
  training = [
    f"* Text: `{hide(c.data.sources)}`; the vocabulary {vocab}",
    f"* Steps: {step:,} of {c.batch_size} rows of {c.length} tokens, seed"
    f" {c.seed}, from {origin}",
    f"* Objective: {hide(objective)}",
  ]
  if terms and synonyms:
    training.append(f"* Synonyms: {hide(synonyms)}")
  if terms:
    training.append(_PAPER)
  guess = results.get("verdict", {}).get("unigram_entropy")
  return model_card.ModelOrigin(
    sections={
      "Training": "\n".join(training),
      "Evaluation": _tabulate(held_out, step, guess),
    },
    limits=_list_limits(c, step, results, objective),
    recipe=recipe,
    language=c.data.language,
  )


def _list_limits(
  c: PretrainConfig, step: int, results: Mapping[str, Any], objective: str
) -> list[str]:
  """Returns what a user of the model should know before they rely on it."""
  limits = []
  passed = results.get("verdict", {}).get("passed", True)
  if results.get("steps") == step and not passed:
    limits.append(
      "**On held-out text it was not shown to beat guessing without context.**"
    )
  if not c.init:
    tokens = step * c.batch_size * c.length
    limits.append(f"Trained on {tokens:,} tokens at most.")
    if c.length < c.model.positions:
      limits.append(f"Positions beyond {c.length} were never trained.")
  sources = named_sources(c.data.sources)
  if "wordnet" in {*sources, *objective.split()}:
    limits.append(_WORDNET)
  return limits


def _tabulate(
  held_out: Mapping[str, Any], step: int, unigram_entropy: float | None
) -> str:
  get = held_out.get
  replaced = get("replaced") or 0.0
  # Without the slots that were corrected the loss would be too low.
  mlm = get("mlm_uncorrected", get("mlm"))
  base_rate_entropy = metrics.entropy([replaced, 1 - replaced])
  rows = (
    ("loss of masked tokens", mlm, unigram_entropy),
    ("only where `[MASK]` is shown", get("mlm_hidden"), unigram_entropy),
    ("loss of detecting replaced tokens", get("detect"), base_rate_entropy),
    ("AUC of detecting replaced tokens", get("auc"), 0.5),
  )
  lines = [
    f"| {name} | {value:.4f} | {f'{guess:.4f}' if guess else '?'} |"
    for name, value, guess in rows
    if value is not None
  ]
  if not lines:
    return "Not evaluated at this step."
  return _TABLE.format(step=step, lines="\n".join(lines))
