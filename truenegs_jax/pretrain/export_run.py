"""Exports a checkpoint of a run to folders in Hugging Face format."""

import pathlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data.sources import named_sources
from truenegs_jax.pretrain import describe
from truenegs_jax.pretrain.plan import Trained
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.runtime.errors import CheckpointError
from truenegs_jax.runtime.files import read_json
from truenegs_jax.weights import export_model, hf_names, model_card
from truenegs_jax.workdir import files, metrics_file, saved_model

# What a recipe adds, by key of `negatives`.
_TERMS = {
  "hard_correction": "hard correction",
  "soft_weight": "soft regularization",
  "sentence_weight": "sentence regularization",
  "smoothing": "smoothing over synonyms",
}
_METRICS = {
  "mlm": "loss of masked tokens {:.4f} nats",
  "mlm_uncorrected": "with corrected ones {:.4f}",
  "detect": "loss of detection {:.4f}",
  "auc": "its AUC {:.4f}",
}
_WORDNET = """\
The text or the synonyms are from WordNet, copyright Princeton University:
  https://wordnet.princeton.edu/license-and-commercial-use"""
_PAPER = "* Method: Zhang et al. (AAAI 2023), https://arxiv.org/abs/2212.00460"


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
  path = workdir / files.RESULTS
  if not path.exists():
    return describe_run(config, step, held_out, {})
  fix = f"Remove it to describe the model without {path.name}."
  with read_json(path, CheckpointError, fix) as results:
    return describe_run(config, step, held_out, results)


def describe_run(
  config: PretrainConfig,
  step: int,
  held_out: Mapping[str, Any],
  results: Mapping[str, Any],
) -> model_card.ModelOrigin:
  """Describes a run for its model cards, without paths of this machine.

  `held_out` is the record of the step, `results` is results.json; both may be
  empty.
  """
  c = config
  hide = model_card.hide_folders
  objective = describe.describe_objective(c)
  terms = [name for key, name in _TERMS.items() if getattr(c.negatives, key)]
  training = [
    f"* Text: `{hide(c.data.sources)}`, vocabulary `{hide(c.data.vocab)}`",
    f"* Steps: {step:,} of {c.batch_size} rows of {c.length} tokens, seed"
    f" {c.seed}, from `{hide(c.init) or 'scratch'}`",
    f"* Objective: {hide(objective)}",
  ]
  if terms:
    training.append(_PAPER)
  measured = [
    text.format(held_out[name])
    for name, text in _METRICS.items()
    if held_out.get(name) is not None
  ]
  if measured:
    training.append(f"* Held-out rows: {', '.join(measured)}")
  limits = []
  passed = results.get("verdict", {}).get("passed", True)
  if results.get("steps") == step and not passed:
    limits.append(
      "**On held-out text it was not shown to beat guessing without context.**"
    )
  if "wordnet" in {*named_sources(c.data.sources), *objective.split()}:
    limits.append(_WORDNET)
  recipe = "a baseline without corrections"
  if terms:
    recipe = f"pre-trained with {' and '.join(terms)}"
  return model_card.ModelOrigin(
    sections={"Training": "\n".join(training)},
    limits=limits,
    recipe=recipe,
    language=c.data.language,
  )
