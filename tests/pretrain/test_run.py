"""Runs are stopped, resumed, started twice and started wrongly."""

import dataclasses
import functools
import json
import re
import shutil
import signal

import jax
import pytest

from support import runs, shared_runs
from support.doc_pages import read_first_cells
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.runtime import errors
from truenegs_jax.train import guards
from truenegs_jax.workdir import checkpoints, lock

run = runs.run_in_process
BERT = "bert_base:baseline,runlocal"  # one network compiles sooner
RATE = 0.0005


@pytest.fixture(scope="module")
def first_run(shared_pretraining, tmp_path_factory):
  """Returns (folder, flags) of a finished run of 12 steps."""
  root = tmp_path_factory.mktemp("runs")
  shared_pretraining.copy_to(root / "first")
  shutil.copytree(shared_pretraining.root / "rows", root / "rows")
  flags = [*shared_pretraining.values, f"--config.data.rows={root}/rows"]
  with shared_runs.isolate(root):
    yield root, flags


def test_every_metric_of_a_run_is_described(first_run):
  root, _ = first_run
  for split in ("train", "held_out"):
    for record in runs.read_records(root / "first", split):
      assert record.keys() <= read_first_cells("metrics.md", "Pre-training")
  record = runs.read_records(root / "first")[-1]
  tokens = record["row_tokens"] * record["rows_per_s"]
  assert record["tokens_per_s"] == pytest.approx(tokens)


def test_run_stopped_twice_ends_bit_equal(first_run, monkeypatch, caplog):
  root, flags = first_run
  stopped, signals = root / "stopped", {4: signal.SIGTERM, 11: signal.SIGINT}
  batch_at = run_lib.batches_lib.batch_at

  def batch(rows, step, **more):
    if not step:  # a start compiles one program for the state, one for steps
      programs = re.findall("Finished XLA compilation of (.*) in", caplog.text)
      assert sorted(programs) == ["jit(init_state)", "jit(train_step)"]
      jax.config.update("jax_log_compiles", False)
    if step in signals:
      signal.raise_signal(signals.pop(step))
    return batch_at(rows, step, **more)

  monkeypatch.setattr(run_lib.batches_lib, "batch_at", batch)
  jax.config.update("jax_log_compiles", True)
  for exit_code in (errors.SAVED_RESTART, errors.SAVED_INTERRUPT):
    code, output = run(stopped, flags)
    assert code == exit_code and "the same command" in output
  code, output = run(stopped, flags)
  assert code == 0 and "resume" in output
  runs.assert_equal_runs(root / "first", stopped, 12)


@pytest.mark.slow
def test_rows_grow_also_after_a_resume(first_run, monkeypatch):
  root, flags = first_run
  flags = [*flags, "--config.steps=6", "--config.masking.unit=word"]
  flags += ["--config.short_rows=0.34"]
  start = run_lib.start_lib.start
  trained, evaluated, compiled = [], [], []

  def record(step, shapes):
    def recorded(state, batch, aux):
      shapes.append(batch["tokens"].shape)
      return step(state, batch, aux)

    return recorded

  def start_recorded(*args):
    started = start(*args)
    compiled.append({*started.train_steps})
    steps = {n: record(x, trained) for n, x in started.train_steps.items()}
    evaluate = record(started.eval_step, evaluated)
    return dataclasses.replace(started, train_steps=steps, eval_step=evaluate)

  monkeypatch.setattr(run_lib.start_lib, "start", start_recorded)
  assert run(root / "grown", flags, BERT)[0] == 0
  assert trained == [(32, 8)] * 3 + [(16, 16)] + [(8, 32)] * 2
  assert set(evaluated) == {(8, 32)}
  shutil.copytree(root / "grown", root / "resumed")
  for step in ("5", "6"):
    shutil.rmtree(root / "resumed" / "checkpoints" / step)
  assert run(root / "resumed", flags, BERT)[0] == 0
  assert trained[6:] == trained[3:6]
  assert compiled == [{4, 2, 1}, {2, 1}]
  runs.assert_equal_runs(root / "grown", root / "resumed", 6)


@pytest.mark.slow
def test_run_with_a_limit_ends_in_time_and_resumes_bit_equal(
  first_run, monkeypatch
):
  root, flags = first_run
  flags = [*flags, "--config.steps=100", "--config.minutes=0.2"]
  flags += ["--config.optim.muon_lr=0.01", f"--config.optim.lr={RATE}"]
  secs, signals = [0.0], {}
  batch_at = run_lib.batches_lib.batch_at

  def batch(rows, step, **more):  # each takes a second of the fake time
    secs[0] += 1
    if step in signals:
      signal.raise_signal(signals.pop(step))
    return batch_at(rows, step, **more)

  def start(name):
    monkeypatch.setattr(errors, "BEGAN", secs[0])
    return run(root / name, flags, BERT)

  limit = functools.partial(guards.Clock, now=lambda: secs[0])
  monkeypatch.setattr(run_lib.batches_lib, "batch_at", batch)
  monkeypatch.setattr(guards, "Clock", limit)
  code, output = start("limited")
  assert code == 0 and "12 of 100 steps fit into minutes=0.2" in output
  assert "Muon for matrices of layers, peak 0.01" in " ".join(output.split())
  rates = [x["lr"] for x in runs.read_records(root / "limited")]
  assert rates[-1] == pytest.approx(RATE / 12, rel=0.05)
  signals |= {5: signal.SIGTERM}
  assert start("continued")[0] == errors.SAVED_RESTART
  assert start("continued")[0] == 0
  runs.assert_equal_runs(root / "limited", root / "continued", 12)
  assert [x["lr"] for x in runs.read_records(root / "continued")] == rates


def test_finished_run_started_again_shows_its_results(first_run):
  root, flags = first_run
  before = runs.read_records(root / "first")
  code, output = run(root / "first", flags)
  assert code == 0 and "MLM loss" in output
  assert runs.read_records(root / "first") == before
  saved = json.loads((root / "first" / "config.json").read_text())
  assert saved["steps"] == 12 and saved["negatives"]["soft_weight"] == 1.0
  assert (root / "first" / "report.html").exists()


def test_finished_run_moves_and_gets_more_steps(first_run):
  root, flags = first_run
  moved, rows = root / "elsewhere", root / "more_rows"
  shutil.copytree(root / "first", moved)
  shutil.copytree(root / "rows", rows)
  flags = [f"--config.data.rows={rows}", "--config.steps=16"]
  code, output = run(moved, flags, moved / "config.json")
  assert code == 0
  rates = [x["lr"] for x in runs.read_records(moved)]
  assert "This run had 12 steps and gets 16. After step 12 it" in output
  assert f"the learning rate is {rates[12]:.3g}, and 0 at" in output
  peak, warmup = 0.0005, 2
  expected = [
    peak * (1 - t / steps) * min(1, t / warmup)
    for steps, first, last in ((12, 0, 12), (16, 12, 16))
    for t in range(first, last)
  ]
  assert rates == pytest.approx(expected)
  assert json.loads((moved / "results.json").read_text())["steps"] == 16


@pytest.mark.slow
def test_a_branch_decays_as_the_run_that_was_to_end_so(first_run):
  root, flags = first_run
  flags = [*flags, "--config.optim.schedule=wsd", "--config.steps=6"]
  flags += [f"--config.optim.lr={RATE}"]
  endless = [*flags, "--config.optim.decay_steps=0"]
  assert run(root / "long", endless, BERT)[0] == 0
  before = runs.read_records(root / "long")
  decay = ["--config.steps=9", "--config.optim.decay_steps=4"]
  decay += ["--config.checkpoint.keep=9"]
  branch = f"--config.branch={root}/long/checkpoints/6"
  saved = root / "long" / "config.json"
  code, output = run(root / "branch", [branch, *decay], saved)
  assert code == 0 and f"resumed at step 6 of '{root}/branch'" in output
  assert run(root / "planned", [*flags, *decay], BERT)[0] == 0
  saved = checkpoints.read_description(root / "branch/checkpoints/6")["run"]
  assert guards.TIME not in saved  # its minutes are its own
  names = "branch", "planned"
  branched, planned = (runs.read_records(root / name) for name in names)
  for key in ("step", "lr", "mlm"):
    assert [x[key] for x in branched] == [x[key] for x in planned[6:]]
  last = (runs.read_checkpoint(root / x, 9) for x in names)
  assert runs.arrays_equal(*last)
  expected = [RATE * (1 - (t / 4) ** 0.5) for t in (1, 2, 3)]
  assert [x["lr"] for x in branched] == pytest.approx(expected, rel=1e-6)
  assert runs.read_records(root / "long") == before


@pytest.mark.slow
def test_run_starts_from_weights_and_resumes_without_them(first_run):
  root, flags = first_run
  shutil.copytree(root / "first", root / "copied")
  flags = [*flags, "--config.data.vocab=init", "--config.model.variant=init"]
  # The learning rate is too small to change any weight.
  flags += ["--config.steps=1", "--config.optim.lr=1e-12"]
  flags += ["--config.optim.warmup_steps=0"]
  flags += [f"--config.data.rows={root}/rows2"]
  init = f"--config.init={root / 'copied'}"
  code, output = run(root / "second", [*flags, init])
  assert code == 0 and f"weights '{root / 'copied'}'" in output
  first, second = (runs.read_exported(root / x) for x in ("first", "second"))
  assert runs.arrays_equal(list(first.values()), list(second.values()))
  # The run resumes without them, ignores others, and keeps their name.
  shutil.rmtree(root / "copied")
  init = f"--config.init={root / 'first'}"
  code, output = run(root / "second", [*flags, init])
  assert code == 0 and "is ignored" in output and "resume" in output
  saved = json.loads((root / "second" / "config.json").read_text())
  assert saved["init"] == str(root / "copied")


@pytest.mark.parametrize(
  "flag, message",
  [
    ("data.rows=s3://bucket", "data.rows='s3://bucket' is no folder"),
    ("length=1000", "max_positions"),
    ("eval.sentences=('no mask',)", "no mask"),
  ],
)
def test_bad_value_is_refused_before_compilation(
  first_run, flag, message, monkeypatch
):
  root, flags = first_run
  monkeypatch.setattr(run_lib.start_lib, "start", None)
  with pytest.raises(errors.InputError, match=message):
    run(root / "bad", [*flags, f"--config.{flag}"])
  assert not (root / "bad" / "metrics.jsonl").exists()


def test_refused_run_does_not_change_the_workdir(first_run):
  root, usual = first_run
  paths = [p for p in (root / "first").glob("[!l]*") if p.is_file()]
  before = [path.read_bytes() for path in paths]
  flags = [*usual, "--config.optim.lr=0.5", "--config.steps=9"]
  flags += ["--config.data.vocab_size=90", "--config.data.rows="]
  message = "vocab_size.*optim.lr: 0.0005 -> 0.5.*steps: 12 -> 9.*--workdir"
  with pytest.raises(errors.CheckpointError, match=f"(?s){message}"):
    run(root / "first", flags)
  assert [path.read_bytes() for path in paths] == before
  with lock.lock(root / "first"):
    with pytest.raises(errors.InputError, match="Another run"):
      run(root / "first", usual)
