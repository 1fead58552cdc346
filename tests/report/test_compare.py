"""A page of several runs compares their results and configs."""

import json

from support.html_tables import read_rows
from support.report_workdirs import write_finetuning, write_pretraining
from truenegs_jax.report.pretraining import compare
from truenegs_jax.report.write import read_workdirs
from truenegs_jax.workdir import files


def test_runs_are_compared_as_far_as_they_are(tmp_path):
  runs = [write_pretraining(tmp_path / name) for name in "abcd"]
  (runs[1] / files.METRICS).unlink()
  path = runs[2] / files.METRICS
  *train, last = path.read_text().splitlines()
  record = json.loads(last) | {"mlm_hidden": 3.25, "corrected_rows": 0.5}
  path.write_text("\n".join([*train, json.dumps(record), ""]))
  (runs[2] / files.RESULTS).write_text("{")
  config = json.loads((runs[3] / files.CONFIG).read_text())
  (runs[3] / files.CONFIG).write_text(
    json.dumps(config | {"eval": {"rows": 9}})
  )
  runs.append(write_finetuning(tmp_path / "rte"))
  results, configs = read_rows(*compare(read_workdirs(runs)))
  rows = {label: values for label, *values in results}
  assert rows["MLM, [MASK] (nats/slot)"] == ["7.5", "3.25", "7.5"]
  assert rows["Corrected rows (%)"] == ["–", "50", "–"]
  assert rows["Corrected slots (%)"] == ["1"] * 3
  assert rows["hours of training"] == ["0.01667"] * 3
  assert rows["TFLOP"] == ["0.00048"] * 3
  assert configs == [["eval.rows", *["null"] * 3, "9"]]
  assert [*compare(read_workdirs(runs[:1]))] == []
