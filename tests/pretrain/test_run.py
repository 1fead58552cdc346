"""Runs that are killed, stopped, resumed, started twice or started wrongly."""

import contextlib
import functools
import io
import json
import random
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from absl import flags as absl_flags
from ml_collections import config_flags
from rich.console import Console

from support import runs
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.runtime import errors
from truenegs_jax.train import sharding
from truenegs_jax.workdir import lock

KILLS = 20
HC_SR = "electra_demo:hc+sr,runlocal"
# ml_collections loads a config file by a function that Python will drop.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module")


def run(workdir, flags, config="electra_demo:sr,runlocal"):
  """Exit code and output of a run in this process; what it raises, too."""
  path = runs.ROOT / "configs" / config.replace(":", ".py:")
  values = absl_flags.FlagValues()
  holder = config_flags.DEFINE_config_file(
    "config", None, lock_config=True, flag_values=values
  )
  argv, sys.argv = sys.argv, ["main", f"--config={path}", *flags]
  try:
    values(sys.argv)
  finally:
    sys.argv = argv
  out = io.StringIO()
  code = run_lib.run(holder.value, workdir, Console(file=out, width=300))
  return code, out.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """(folder, flags, environment) with rows and a run of 12 steps."""
  root = tmp_path_factory.mktemp("runs")
  corpus = runs.write_corpus(root / "corpus.txt")
  flags = runs.demo_flags(corpus)
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TRUENEGS_CACHE", str(root / "cache"))
    patch.setenv("JAX_COMPILATION_CACHE_DIR", str(root / "xla"))
    patch.setenv("NLTK_DATA", str(root / "none"))
    patch.setitem(sys.modules, "torch", None)  # it takes long to load
    # One of the eight devices: to compile and save takes far less time.
    one = functools.partial(sharding.make_mesh, devices=jax.devices()[:1])
    patch.setattr(sharding, "make_mesh", one)
    patch.setattr(sharding, "device_count", lambda: 1)
    code, printed = run(root / "first", flags)
    assert code == 0, printed
    yield root, flags, runs.make_environment(root / "cache")


@pytest.mark.slow
def test_a_run_killed_at_random_steps_ends_bit_equal(place):
  root, flags, env = place
  steps = 120
  flags = [*flags, f"--config.steps={steps}", "--config.eval.every_steps=500"]
  flags += [runs.save_synonyms(root, root / "rows" / "vocab.txt")]
  code, output = runs.run(root / "whole", flags, env, config=HC_SR)
  assert code == 0, output
  rng = random.Random(7)
  for step in sorted(rng.sample(range(1, steps - 5), KILLS)):
    process = runs.start(root / "killed", flags, env, config=HC_SR)
    output = runs.send_signal_at(process, root / "killed", step, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, output
  code, output = runs.run(root / "killed", flags, env, config=HC_SR)
  assert code == 0 and "resume" in output, output
  assert_equal_runs(root / "whole", root / "killed", steps)


def assert_equal_runs(whole, other, steps):
  """Bit for bit in their last state, and record by record."""
  arrays = [runs.read_checkpoint(workdir, steps) for workdir in (whole, other)]
  assert runs.arrays_equal(*arrays)
  names = ("step", "mlm", "detect", "soft")
  losses = [
    [[record[name] for name in names] for record in runs.read_records(workdir)]
    for workdir in (whole, other)
  ]
  assert losses[0] == losses[1]
  assert [step for step, *_ in losses[0]] == list(range(1, steps + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
  "number, exit_code", [(signal.SIGTERM, 75), (signal.SIGINT, 130)]
)
def test_a_process_that_is_told_to_stop_saves_and_ends_bit_equal(
  place, number, exit_code
):
  root, flags, env = place
  flags = [*flags, "--config.steps=40", "--config.checkpoint.every_steps=100"]
  whole, stopped = (root / f"{name}-{number.name}" for name in "ab")
  assert runs.run(whole, flags, env)[0] == 0
  process = runs.start(stopped, flags, env)
  output = runs.send_signal_at(process, stopped, 5, number)
  assert process.returncode == exit_code, output
  code, output = runs.run(stopped, flags, env)
  assert code == 0 and "resume" in output
  assert_equal_runs(whole, stopped, 40)


def test_a_run_stopped_twice_goes_on_bit_equal(place, monkeypatch):
  root, flags, _ = place
  stopped, at = root / "stopped", {4: signal.SIGTERM, 8: signal.SIGINT}
  batch_at = run_lib.loop.batches_lib.batch_at

  def batch(rows, step, **more):
    if step in at:
      signal.raise_signal(at.pop(step))
    return batch_at(rows, step, **more)

  monkeypatch.setattr(run_lib.loop.batches_lib, "batch_at", batch)
  for exit_code in (errors.SAVED_RESTART, errors.SAVED_INTERRUPT):
    code, output = run(stopped, flags)
    assert code == exit_code and "the same command" in output
  code, output = run(stopped, flags)
  assert code == 0 and "resume" in output
  assert_equal_runs(root / "first", stopped, 12)


def test_a_finished_run_started_again_shows_its_results_and_ends_well(place):
  root, flags, _ = place
  before = runs.read_records(root / "first")
  code, output = run(root / "first", flags)
  assert code == 0 and "MLM loss" in output
  assert runs.read_records(root / "first") == before
  saved = json.loads((root / "first" / "config.json").read_text())
  assert saved["steps"] == 12 and saved["negatives"]["soft_weight"] == 0.1


def test_a_run_takes_weights_of_another_and_does_without_it_then(place):
  root, flags, _ = place
  shutil.copytree(root / "first", root / "begun")
  flags = [*flags, "--config.data.vocab=init", "--config.model.variant=init"]
  # Too small a rate to move any weight, even by its last bit.
  flags += ["--config.steps=1", "--config.optim.lr=1e-12"]
  flags += [f"--config.data.rows={root}/rows2"]
  code, output = run(
    root / "second", [*flags, f"--config.init={root / 'begun'}"]
  )
  assert code == 0 and f"weights '{root / 'begun'}'" in output
  first, second = (
    runs.read_exported(root / "first"),
    runs.read_exported(root / "second"),
  )
  assert runs.arrays_equal(list(first.values()), list(second.values()))
  # It goes on without them, takes no others, and knows where it is from.
  shutil.rmtree(root / "begun")
  code, output = run(
    root / "second", [*flags, f"--config.init={root / 'first'}"]
  )
  assert code == 0 and "is ignored" in output and "resume" in output
  saved = json.loads((root / "second" / "config.json").read_text())
  assert saved["init"] == str(root / "begun")


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_ends_the_run_and_saves_nothing_bad(
  place,
):
  root, flags, _ = place
  flags = [*flags, "--config.steps=6", "--config.checkpoint.every_steps=1"]
  flags += ["--config.optim.lr=1e30", "--config.optim.schedule=bert"]
  workdir = root / "nan"
  with pytest.raises(errors.NonFiniteError, match="optim.max_skips is 0"):
    run(workdir, flags)
  for folder in (workdir / "checkpoints").iterdir():
    for array in runs.read_checkpoint(workdir, int(folder.name)):
      assert np.isfinite(array.astype(np.float64)).all()
  # The advice that is given can be followed.
  with contextlib.suppress(errors.NonFiniteError):  # it may end well
    run(workdir, [*flags, "--config.optim.max_skips=100"])
  assert "NaN" not in (workdir / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
  "flag, words",
  [
    ("steps=0", "steps"),
    ("length=3", "length"),
    ("length=1000", "max_positions"),
    ("masking.prob=1.5", "masking.prob"),
    ("optim.lr=nan", "optim.lr"),
    ("optim.accumulation=3", "micro-batches"),
    ("negatives.prediction=best", "argmax"),
    ("negatives.soft=euclid", "cosine"),
    ("negatives.sources=thesaurus", "wordnet"),
    ("model.variant=huge", "small"),
    ("model.backbone=nothing", "models/nothing.py"),
    ("model.dtype=int8", "bfloat16"),
    ("optim.schedule=cosine", "electra"),
    ("mesh.preset=torus", "dp"),
    ("log.writers=('stone',)", "tensorboard"),
    ("log.profile=7", "M:N"),
    ("data.held_out=0.0", "held_out"),
    ("eval.sentences=('no mask',)", "no mask"),
    ("data.sources=nowhere.txt", "nowhere.txt"),
    ("data.vocab=no/such/vocab.txt", "vocab"),
  ],
)
def test_a_bad_value_is_refused_by_name_before_anything_is_compiled(
  place, flag, words, monkeypatch
):
  root, flags, _ = place
  monkeypatch.setattr(run_lib.loop, "train", None)
  flags = [*flags, runs.save_synonyms(root, root / "rows" / "vocab.txt")]
  if flag.startswith("data."):
    flags = [f for f in flags if "data.rows" not in f]
  with pytest.raises((errors.InputError, errors.DataError), match=words):
    run(root / "bad", [*flags, f"--config.{flag}"], config=HC_SR)
  assert not (root / "bad" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
  "flags, words",
  [
    (["--config.optim.lr=0.5"], "optim.lr: 0.002 -> 0.5"),
    (["--config.data.vocab_size=90", "--config.data.rows="], "vocab_size"),
  ],
)
def test_a_refused_run_leaves_the_workdir_as_it_was(place, flags, words):
  root, usual, _ = place
  files = [p for p in (root / "first").glob("[!l]*") if p.is_file()]
  before = [path.read_bytes() for path in files]
  with pytest.raises(errors.CheckpointError, match=f"(?s){words}.*--workdir"):
    run(root / "first", [*usual, *flags])
  assert [path.read_bytes() for path in files] == before
  with lock.lock(root / "first"):
    with pytest.raises(errors.InputError, match="Another run"):
      run(root / "first", usual)


@pytest.mark.parametrize(
  "flag, words",
  [
    ("--config.stepz=3", "stepz"),
    ("--config.steps=many", "steps"),
    ("--config.task=pretrian", "Choose pretrain, finetune or corrections"),
    ("--workdor=x", "workdor"),
    ("--config.negatives.hard_correction=True", "launch/wordnet.sh"),
  ],
)
def test_a_bad_flag_is_one_line_and_exit_code_2(place, flag, words):
  root, flags, env = place
  code, output = runs.run(root / "typo", [*flags, flag], env)
  assert code == 2 and words in output
  assert "Traceback" not in output and not (root / "typo").exists()


@pytest.mark.slow
def test_sigterm_before_the_first_step_wants_a_restart(place):
  root, flags, env = place
  process = runs.start(root / "early", flags, env)
  while not (root / "early" / "lock").exists() and process.poll() is None:
    pass
  process.send_signal(signal.SIGTERM)
  output, _ = process.communicate(timeout=runs.TIMEOUT_SECS)
  assert process.returncode == 75, output


LOST = """
import gc, os, signal, time
from truenegs_jax import main
def kill(phase, info):
  gc.callbacks.remove(kill)
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(0)
main.exit_on_sigterm()
gc.callbacks.append(kill)
gc.collect()
print("lost", flush=True)
time.sleep(60)
"""
ENDING = """
import os, signal, time
from truenegs_jax import main
main.exit_on_sigterm()
try:
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(60)
finally:
  time.sleep(2 * main.SIGTERM_REPEAT_SECS)
  print("ended", flush=True)
"""


@pytest.mark.parametrize(
  "program, printed", [(LOST, "lost"), (ENDING, "ended")]
)
def test_a_sigterm_comes_again_if_the_garbage_collector_swallows_it_alone(
  tmp_path, program, printed
):
  ended = subprocess.run(
    [sys.executable, "-c", program],
    env=runs.make_environment(tmp_path),
    capture_output=True,
    text=True,
  )
  assert (ended.stdout, ended.returncode) == (f"{printed}\n", 75), ended.stderr
