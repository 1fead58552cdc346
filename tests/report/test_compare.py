"""A comparison shows differences from the first run, and what they lack."""

import json

import numpy as np
import pytest

from support.html_tables import read_rows as read_tables
from support.report_workdirs import write_finetuning, write_pretraining
from truenegs_jax.report.pretraining import compare
from truenegs_jax.report.write import read_workdirs
from truenegs_jax.workdir import files

LOSS = "MLM, [MASK] (nats/slot)"


def write_run(folder, batches=(), **config):
  """Writes a run whose held-out loss is the mean of batches."""
  write_pretraining(folder)
  change(folder / files.CONFIG, **config)
  if len(batches):
    sums = np.sum(batches) - np.array(batches)
    left_out = {"mlm_hidden": (sums / (len(batches) - 1)).tolist()}
    change(folder / files.RESULTS, left_out=left_out)
    path = folder / files.METRICS
    *train, held_out = path.read_text().splitlines()
    record = json.loads(held_out) | {"mlm_hidden": np.mean(batches)}
    path.write_text("\n".join([*train, json.dumps(record), ""]))
  return folder


def change(path, **values):
  path.write_text(json.dumps(json.loads(path.read_text()) | values))


def read_rows(folders):
  """Returns the rows of the results, and all of the HTML."""
  blocks = [*compare(read_workdirs(folders))]
  rows = {row[0]: row[1:] for row in read_tables(*blocks)[0]}
  return rows, "".join(blocks)


def test_errors_are_paired_where_runs_have_the_same_batches(tmp_path):
  rng = np.random.default_rng(0)
  batches = rng.normal(6, 0.5, 8)
  gains = rng.normal(-0.1, 0.01, 8)
  rows, _ = read_rows(
    [
      write_run(tmp_path / "a", batches),
      write_run(tmp_path / "b", batches + gains),
      write_run(tmp_path / "c", batches[:4]),
      write_run(tmp_path / "d"),
    ]
  )
  own, paired, *unknown = rows[LOSS]
  error = gains.std(ddof=1) / 8**0.5  # the jackknife of a mean
  assert paired == f"{gains.mean():+.4f} ± {error:.4f}"
  means = batches[:4].mean(), 7.5  # of other batches
  assert unknown == [f"{x - batches.mean():+.4f}" for x in means]
  own_error = batches.std(ddof=1) / 8**0.5
  assert own == f"{batches.mean():.4f} ± {own_error:.4f}"
  assert rows["rows/s"] == ["50"] + ["same"] * 3


@pytest.mark.parametrize("key", ["eval.rows", "data"])
def test_runs_on_other_rows_have_no_differences_of_losses(tmp_path, key):
  first, second = write_run(tmp_path / "a"), write_run(tmp_path / "b")
  if key == "data":
    change(second / files.ABOUT, text_bytes=6_000)
  else:
    change(second / files.CONFIG, eval={"rows": 9})
  rows, texts = read_rows([first, second])
  assert rows[LOSS] == ["7.5000", "7.5000, not comparable"]
  assert f"b differs in {key}." in texts
  assert rows["TFLOP"] == ["0.00048", "same"]


def test_runs_without_results_are_compared_as_far_as_they_are(tmp_path):
  runs = [write_run(tmp_path / name) for name in "abcd"]
  (runs[1] / files.RESULTS).write_text("{")
  (runs[2] / files.METRICS).unlink()
  change(runs[3] / files.RESULTS, left_out=[1])
  runs.append(write_finetuning(tmp_path / "rte"))
  rows, _ = read_rows(runs)
  assert rows[LOSS] == ["7.5000", "same"]
