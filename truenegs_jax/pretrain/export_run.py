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
from truenegs_jax.synonyms import run_table
from truenegs_jax.weights import export_model, find, hf_names
from truenegs_jax.workdir import files, metrics_file, saved_model

# Keys of `negatives` with a method of the paper, and texts of held-out metrics.
_TERMS = ("hard_correction", "soft_weight", "sentence_weight")
_METRICS = {
  "mlm": "loss of masked tokens {:.4f} nats",
  "mlm_uncorrected": "with corrected ones {:.4f}",
  "detect": "loss of detection {:.4f}",
  "auc": "its AUC {:.4f}",
}
_WORDNET = """\
* The text or the synonyms are from WordNet, copyright Princeton University:
  https://wordnet.princeton.edu/license-and-commercial-use"""
_UNPROVEN = """\
* **On held-out text it was not shown to beat guessing without context.**"""
_PAPER = "* Method: Zhang et al. (AAAI 2023), https://arxiv.org/abs/2212.00460"


def export_workdir(
  workdir: pathlib.Path,
  *,
  step: int | None,
  output: pathlib.Path | None,
) -> str:
  """Exports a checkpoint of a run, which may still be training.

  A `step` goes to `workdir/export-<step>`, and None, the newest undamaged step,
  to `workdir/export`, unless `output` is another folder. Prints damaged steps.
  Returns a line for the user.
  """
  name = files.EXPORT if step is None else f"{files.EXPORT}-{step}"
  with saved_model.open_run(workdir) as checkpoints:
    saved, params = saved_model.load(checkpoints, step, report=print)
  return export_model.export_model(
    saved.model,
    params,
    saved.tokenizer,
    workdir / name if output is None else output,
    about=summarize_run(workdir, saved.config, saved.step),
    language=saved.config.data.language,
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
    about = summarize_run(workdir, run.config, trained.steps)
    with progress.working(console, "Exporting"):
      text = export_model.export_model(
        run.model,
        params,
        run.tokenizer,
        workdir / files.EXPORT,
        about=about,
        language=run.config.data.language,
      )
  # Words are not broken on a terminal; a log has a line.
  console.print(text, soft_wrap=not console.is_terminal)


def summarize_run(
  workdir: pathlib.Path, config: PretrainConfig, step: int
) -> str:
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
) -> str:
  """Describes a run for its model cards, without paths of this machine.

  `held_out` is the record of the step, `results` is results.json; both may be
  empty.
  """
  c = config
  hide = find.hide_folders
  objective = describe.describe_objective(c)
  lines = [
    f"* Text: `{hide(c.data.sources)}`, vocabulary `{hide(c.data.vocab)}`",
    f"* Steps: {step:,} of {c.batch_size} rows of {c.length} tokens, seed"
    f" {c.seed}, from `{hide(c.branch or c.init) or 'scratch'}`",
    f"* Objective: {hide(objective)}",
  ]
  if any(getattr(c.negatives, key) for key in _TERMS):
    lines.append(_PAPER)
  measured = [
    text.format(held_out[name])
    for name, text in _METRICS.items()
    if held_out.get(name) is not None
  ]
  if measured:
    lines.append(f"* Held-out rows: {', '.join(measured)}")
  passed = results.get("verdict", {}).get("passed", True)
  if results.get("steps") == step and not passed:
    lines.append(_UNPROVEN)
  sources = named_sources(c.data.sources)
  if c.negatives.needs_table:
    request = run_table.make_request(c.negatives, c.data)
    sources |= {source.name for source in request.parsed}
  if "wordnet" in sources:
    lines.append(_WORDNET)
  return "\n".join(lines)
