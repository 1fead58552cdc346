"""Exports a checkpoint of a run to folders in Hugging Face format.

export_workdir(pathlib.Path("runs/electra_demo"), step=10_000)
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.train import build_run
from truenegs_jax.weights.export import model_card, pretrained
from truenegs_jax.workdir import files, metrics_file, saved_model

_LOSSES = (
  "mlm",
  "mlm_uncorrected",
  "mlm_hidden",
  "soft",
  "sentence",
  "detect",
  "auc",
)
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
  """Returns recipe and held-out metrics of a step for its model cards."""
  held_out: dict[str, Any] = {}
  for record in metrics_file.read_records(workdir):
    if (record["split"], record["step"]) == ("held_out", step):
      held_out = record
  command = ""
  results = workdir / files.RESULTS
  if results.exists():
    command = json.loads(results.read_text(encoding="utf-8"))["command"]
  lines = format_card_lines(ConfigDict(config), step, held_out, command)
  language = config["data"].get("language", "")
  return model_card.ModelOrigin(lines, trained=True, language=language)


def format_card_lines(
  c: ConfigDict, step: int, held_out: Mapping[str, Any], command: str
) -> str:
  """Describes a run as a Markdown list for a model card.

  `held_out` is the record of the step in metrics.jsonl, with None for values
  that are not finite; `command` started the run, "" if it is unknown.
  """
  finite = {name: x for name, x in held_out.items() if x is not None}
  losses = [f"{name} {finite[name]:.4f}" for name in _LOSSES if name in finite]
  evaluation = ", ".join(losses) or "not evaluated at this step"
  corrected = [
    f"{finite[name]:.3%} {unit}"
    for name, unit in _CORRECTED.items()
    if name in finite
  ]
  if corrected:
    evaluation += f"\n* Corrected there: {', '.join(corrected)}"
  vocab = f"is `{c.data.vocab}`"
  if c.data.vocab == "train":
    vocab = "was trained on it"
  start = f"`{c.init}`" if c.init else "scratch"
  if skip := c.get("init_skip"):
    start += f", rows carried over for new {skip}"
  rows = f"{c.batch_size} rows of {c.length} tokens"
  return f"""\
* Data: `{c.data.sources}`; the vocabulary {vocab}
* Training: {step:,} steps of {rows}, seed {c.seed},
  from {start}
* Objective: {build_run.describe_objective(c)}
* Held-out rows: {evaluation}
* Made by: {f"`{command}`" if command else "truenegs_jax"}"""
