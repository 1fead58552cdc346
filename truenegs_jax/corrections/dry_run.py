"""Prints the plan of measuring corrections, without reading text.

  python -m truenegs_jax.main --config=corrections --config.dry_run=True \\
    --config.corrections.run=runs/mine --config.corrections.text=test.txt
"""

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.corrections import measured_model, predict_slots
from truenegs_jax.data.corpus.sources_spec import describe_sources
from truenegs_jax.synonyms.sources import resolve_auto
from truenegs_jax.train import plan, sharding
from truenegs_jax.weights.formats import find
from truenegs_jax.workdir import files, saved_model


def dry_run(c: ConfigDict, sources: Sequence[str], console: Console) -> int:
  """Prints weights or checkpoints, text and sources; returns 0.

  Raises:
    InputError: the run on this machine has no such steps.
  """
  o = c.corrections
  mesh = sharding.make_mesh(sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes))
  lines = {
    "dry run": "reads no text; writes and compiles nothing",
    "devices": plan.describe_devices(c.mesh.preset, mesh),
    "weights": _describe_run(o.run, o.steps)
    if o.run
    else find.describe(c.init),
    "text": describe_sources(o.text, key=predict_slots.TEXT),
    "lines": f"{o.sequences or 'all'}, in batches of {c.batch_size}",
    "synonyms": "; compared with ".join(
      resolve_auto(source, c.data.language) for source in sources
    ),
  }
  console.print(plan.report_table(lines))
  return 0


def _describe_run(run: str, steps: str) -> str:
  workdir = pathlib.Path(run).expanduser()
  if not files.has_checkpoint(workdir):
    return f"'{workdir}' (missing, or without a checkpoint)"
  with saved_model.open_run(workdir) as checkpoints:
    chosen = measured_model.choose_steps(steps, checkpoints.steps())
  return f"'{workdir}', steps {', '.join(map(str, chosen))}"
