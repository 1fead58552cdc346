"""Records survive kills and are never doubled."""

import io
import json
import re

import pytest
from rich.console import Console

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import writers
from truenegs_jax.workdir import metrics_file


def record(step, **values):
  return {"step": step, "split": "train", "total": 1.5, "eta_s": 3.0, **values}


def records_in(workdir):
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


def write_steps(workdir, steps, *, first_step=0):
  writer = metrics_file.JsonlWriter(workdir, first_step=first_step)
  for step in steps:
    writer.write(record(step))
  writer.close()


def test_a_resumed_run_drops_what_the_killed_one_wrote_too_much(tmp_path):
  write_steps(tmp_path, [10, 20, 30, 40])
  write_steps(tmp_path, [30, 35], first_step=20)
  assert [r["step"] for r in records_in(tmp_path)] == [10, 20, 30, 35]
  assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_line_cut_short_by_a_kill_costs_that_line_alone(tmp_path):
  write_steps(tmp_path, [10, 20])
  path = tmp_path / "metrics.jsonl"
  path.write_text(path.read_text()[:-9])
  write_steps(tmp_path, [20], first_step=10)
  assert [r["step"] for r in records_in(tmp_path)] == [10, 20]


@pytest.mark.parametrize("rest", ['{"step": 1', "\0\0\0", "\n\n"])
def test_the_rest_of_a_crash_does_not_keep_a_run_from_starting(tmp_path, rest):
  write_steps(tmp_path, [10])
  with (tmp_path / "metrics.jsonl").open("a") as f:
    f.write(rest)
  write_steps(tmp_path, [20], first_step=10)
  assert [r["step"] for r in records_in(tmp_path)] == [10, 20]


def test_a_record_is_on_disk_as_soon_as_it_is_written(tmp_path):
  writer = metrics_file.JsonlWriter(tmp_path, first_step=0)
  writer.write(record(1))
  assert records_in(tmp_path) == [record(1)]
  writer.close()


def test_tensorboard_shows_the_numbers_of_a_record(tmp_path):
  pytest.importorskip("tensorboardX")
  writer = writers.TensorBoardWriter(tmp_path, first_step=0)
  writer.write(record(1, mlm=2.5))
  writer.close()
  (events,) = (tmp_path / "tensorboard").iterdir()
  assert b"train/mlm" in events.read_bytes()
  assert b"train/split" not in events.read_bytes()


def test_an_unknown_writer_is_refused_before_any_file_is_made(tmp_path):
  with pytest.raises(InputError, match="jsnl.*jsonl"):
    writers.make_writers(["jsonl", "jsnl"], tmp_path, first_step=0)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("terminal", [False, True])
def test_the_progress_line_says_step_loss_and_remaining_time(terminal):
  out = io.StringIO()
  console = Console(file=out, force_terminal=terminal, width=120)
  line = writers.ProgressLine(console, total_steps=1_000, first_step=0)
  line.write(record(10, auc=0.75, eta_s=3_700.2))
  line.write({"step": 10, "split": "held_out", "mlm": 4.0})
  line.close()
  text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.getvalue())
  for part in ("10/1,000", "loss 1.500", "auc 0.750", "eta 1:01:40"):
    assert part in text
  assert re.search("held-out at 10.{1,3}mlm 4.000", text)


def test_on_a_terminal_a_line_folds_between_two_figures_alone():
  parts = ["step 1,234/1,000,000", *["loss 1.2345"] * 6, "eta 1 day, 3:01:40"]
  lines = writers.fold(parts, 80).splitlines()
  assert len(lines) == 2 and max(map(len, lines)) <= 80
  assert [x.strip() for x in " ".join(lines).split("·")] == parts


def test_waiting_for_the_host_is_shown_where_it_matters():
  def shown(**values):
    out = io.StringIO()
    line = writers.ProgressLine(
      Console(file=out, width=80), total_steps=9, first_step=0
    )
    line.write(record(1, **values))
    return out.getvalue()

  assert "host wait 7%" in shown(host_wait=0.07)
  assert "host wait" not in shown(host_wait=0.004)
  assert "mfu 45.1%" in shown(mfu=0.451) and "mfu" not in shown()
  assert "mlm nan" in shown(mlm=float("nan"))
