"""Measures the runs of this study, and writes their table.

  python studies/sharing/measure.py runs/sharing/runs runs/one-generator ROWS

It writes measures.csv, and RESULT.md; without arguments, RESULT.md alone. ROWS
is the folder of rows that `truenegs prepare` prints. The generator of
runs/one-generator corrupts the same held-out rows for all runs.
"""

import csv
import pathlib
import sys

import jax
import numpy as np
from scipy import stats

from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.batches import held_out_batches
from truenegs_jax.objectives import masking, slot_predictions
from truenegs_jax.pretrain.plan import make_options
from truenegs_jax.runtime import rng
from truenegs_jax.workdir import saved_model
from truenegs_jax.workdir.metrics_file import read_records

FOLDER = pathlib.Path(__file__).parent
MEASURED, RESULT = FOLDER / "measures.csv", FOLDER / "RESULT.md"
ARMS = ("full", "disentangled")
MEASURES = {
  "mlm": "generator's loss, nats",
  "auc": "AUC, own generator",
  "auc_one": "AUC, one generator",
}
BATCH_SIZE = 128
EVIDENCE = 1 - 0.05 / len(MEASURES)


def load(workdir: pathlib.Path) -> tuple[saved_model.SavedModel, dict]:
  """Returns the last checkpoint of a run, and its parameters."""
  with saved_model.open_run(workdir) as checkpoints:
    saved, params = saved_model.load(checkpoints, None, report=print)
  return saved, jax.device_put(params)


def corrupt(
  workdir: pathlib.Path, rows: rows_folder.Rows
) -> list[dict[str, np.ndarray]]:
  """Fills the slots of held-out rows with a generator's samples.

  Returns:
    Batches whose `tokens` are the corrupted ones, with `replaced`, bool.
  """
  saved, params = load(workdir)
  options = make_options(saved.config, saved.tokenizer)

  @jax.jit
  def fill(batch: slot_predictions.Batch) -> jax.Array:
    keys_B = rng.row_keys(jax.random.key(0), 0, batch["row"])
    x = slot_predictions.mask_and_predict(
      saved.model.bind({"params": params}),
      batch,
      keys_B,
      {},
      options,
      train=False,
    )
    return masking.fill_slots(batch["tokens"], x.slots, x.sampled_BxK)

  batches = []
  for batch in held_out_batches(rows, BATCH_SIZE, limit=4_096):
    tokens_BxL = np.asarray(fill(batch))
    replaced_BxL = tokens_BxL != batch["tokens"]
    batches.append({**batch, "tokens": tokens_BxL, "replaced": replaced_BxL})
  return batches


def measure_auc(
  workdir: pathlib.Path, batches: list[dict[str, np.ndarray]]
) -> float:
  """Returns the area under the ROC curve of a run's discriminator."""
  saved, params = load(workdir)

  @jax.jit
  def detect(batch: slot_predictions.Batch) -> jax.Array:
    return saved.model.bind({"params": params}).detect_logits(batch, None)

  real = [batch["documents"] != 0 for batch in batches]
  logits_N, replaced_N = (
    np.concatenate([x_BxL[i] for x_BxL, i in zip(arrays, real, strict=True)])
    for arrays in (
      [np.asarray(detect(x)) for x in batches],
      [x["replaced"] for x in batches],
    )
  )
  u = stats.mannwhitneyu(logits_N[replaced_N], logits_N[~replaced_N]).statistic
  return float(u / replaced_N.sum() / (~replaced_N).sum())


def read_losses(workdir: pathlib.Path) -> dict[str, float]:
  """Returns the held-out measures of the last evaluation of a run."""
  records = [x for x in read_records(workdir) if x["split"] == "held_out"]
  return {name: records[-1][name] for name in ("mlm", "auc")}


def measure(
  runs: pathlib.Path, generator: pathlib.Path, rows: pathlib.Path
) -> None:
  """Writes measures.csv."""
  batches = corrupt(generator, rows_folder.open_rows(rows, "held_out"))
  with MEASURED.open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["arm", "seed", "measure", "value"])
    for folder in sorted(runs.glob("*/seed-*/pretrain")):
      arm, seed = folder.parts[-3], folder.parts[-2].removeprefix("seed-")
      values = read_losses(folder) | {"auc_one": measure_auc(folder, batches)}
      for name, value in values.items():
        writer.writerow([arm, seed, name, round(value, 5)])


def summarize() -> str:
  """Returns the table of means and paired differences, in Markdown."""
  values: dict[tuple[str, str], list[float]] = {}
  with MEASURED.open() as file:
    for x in csv.DictReader(file):
      values.setdefault((x["measure"], x["arm"]), []).append(float(x["value"]))
  lines = [
    "| measure | `full` | `disentangled` | difference, 95 % | evidence |",
    "| --- | --- | --- | --- | --- |",
  ]
  for name, title in MEASURES.items():
    full_S, other_S = (np.array(values[name, arm]) for arm in ARMS)
    difference_S = other_S - full_S
    mean, error = difference_S.mean(), stats.sem(difference_S)
    half, wide = (
      stats.t.ppf((1 + level) / 2, len(difference_S) - 1) * error
      for level in (0.95, EVIDENCE)
    )
    evidence = "yes" if abs(mean) > wide else "no"
    lines.append(
      f"| {title} | {full_S.mean():.4f} | {other_S.mean():.4f}"
      f" | {mean:+.4f} ± {half:.4f} | {evidence} |"
    )
  return "\n".join(lines) + "\n"


if __name__ == "__main__":
  if sys.argv[1:]:
    measure(*map(pathlib.Path, sys.argv[1:]))
  RESULT.write_text(summarize())
