"""A saved step of a run as folders that Hugging Face's transformers loads.

export_workdir(pathlib.Path("runs/electra_demo"), step=10_000)
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.objectives import options
from truenegs_jax.weights.export import model_card, pretrained
from truenegs_jax.workdir import files, metrics_file, saved_model

_RUN = """\
* Data: `{sources}`; the vocabulary {vocab}
* Training: {step:,} steps of {batch_size} rows of {length} tokens, seed {seed},
  from {start}
* Objective: {objective}
* Held-out rows: {held_out}
* Made by: {command}"""
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
  """Exports a saved step of a run, by default the newest.

  Args:
    workdir: a folder that `truenegs_jax.main` made; a run may be using it.
    step: a saved step. Its export goes to `workdir/export-<step>`, the
      newest one's to `workdir/export`, unless `output` is given.
    output, dtype: as in `pretrained.export_model`.

  Raises:
    InputError, CheckpointError: no such run, no such step, another vocabulary.
    NonFiniteError, DiskError, TrueNegsError: as
      `pretrained.export_model`.
  """
  name = files.EXPORT if step is None else f"{files.EXPORT}-{step}"
  with saved_model.open_run(workdir) as checkpoints:
    found = saved_model.read_saved_model(
      checkpoints, checkpoints.steps()[-1] if step is None else step
    )
    params = saved_model.read_params(checkpoints, found.model, found.step)
  return pretrained.export_model(
    params,
    found.model,
    found.tokenizer,
    workdir / name if output is None else output,
    origin=summarize_run(workdir, found.config.to_dict(), found.step),
    dtype=dtype,
  )


def summarize_run(
  workdir: pathlib.Path, config: Mapping[str, Any], step: int
) -> model_card.ModelOrigin:
  """The recipe and the held-out figures of a step, for its model cards."""
  held_out: dict[str, float] = {}
  for record in metrics_file.read_records(workdir):
    if (record["split"], record["step"]) == ("held_out", step):
      held_out = record
  command = ""
  results = workdir / files.RESULTS
  if results.exists():
    command = json.loads(results.read_text(encoding="utf-8"))["command"]
  figures = {
    name: held_out[name]
    for name in (*_LOSSES, *_CORRECTED)
    if held_out.get(name) is not None
  }
  lines = format_card_lines(ConfigDict(config), step, figures, command)
  return model_card.ModelOrigin(lines, trained=True)


def format_card_lines(
  c: ConfigDict, step: int, shown: Mapping[str, float], command: str
) -> str:
  """How a run came to its weights, as lines of a list for a model card.

  Args:
    c: the run's config.
    step: of the weights.
    shown: held-out figures of that step, by their names in metrics.jsonl.
    command: that started the run; "" if it is not known.
  """
  losses = [f"{n} {shown[n]:.4f}" for n in _LOSSES if n in shown]
  corrected = [
    f"{shown[n]:.3%} {of}" for n, of in _CORRECTED.items() if n in shown
  ]
  held_out = ", ".join(losses) or "not evaluated at this step"
  if corrected:
    held_out += f"\n* Corrected there: {', '.join(corrected)}"
  skip = c.get("init_skip", "")
  return _RUN.format(
    sources=c.data.sources,
    vocab="was trained on it"
    if c.data.vocab == "train"
    else f"is `{c.data.vocab}`",
    step=step,
    batch_size=c.batch_size,
    length=c.length,
    seed=c.seed,
    start=(f"`{c.init}`" if c.init else "scratch")
    + (f", rows carried over for new {skip}" if skip else ""),
    objective=options.describe(
      c.objective,
      c.negatives.to_dict(),
      mask_prob=c.masking.prob,
      mask_style=c.masking.style,
      sampling_temperature=c.generator.temperature,
    ),
    held_out=held_out,
    command=f"`{command}`" if command else "truenegs_jax",
  )
