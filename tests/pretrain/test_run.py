"""Runs that are killed, stopped, resumed, started twice or started wrongly."""

import json
import random
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from support import runs

KILLS = 20
HC_SR = "electra_demo:hc+sr,runlocal"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """(corpus, flags, environment) with rows and compiled steps made once."""
  root = tmp_path_factory.mktemp("runs")
  corpus = runs.write_corpus(root / "corpus.txt")
  env = runs.environment(root / "cache")
  flags = runs.overrides(corpus)
  code, output = runs.run(root / "first", flags, env)
  assert code == 0, output
  return root, flags, env


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
    output = runs.stop_at(process, root / "killed", step, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, output
  code, output = runs.run(root / "killed", flags, env, config=HC_SR)
  assert code == 0, output
  assert "resume" in output
  assert runs.same_arrays(
    runs.final_arrays(root / "whole", steps),
    runs.final_arrays(root / "killed", steps),
  )
  seen = [r["step"] for r in runs.records(root / "killed")]
  assert seen == list(range(1, steps + 1))
  for a, b in zip(
    runs.records(root / "whole"), runs.records(root / "killed"), strict=True
  ):
    assert (a["mlm"], a["detect"], a["soft"]) == (
      b["mlm"],
      b["detect"],
      b["soft"],
    )


@pytest.mark.parametrize(
  "number, exit_code", [(signal.SIGTERM, 75), (signal.SIGINT, 130)]
)
def test_a_stopped_run_saves_says_how_to_go_on_and_ends_bit_equal(
  place, number, exit_code
):
  root, flags, env = place
  flags = [*flags, "--config.steps=40", "--config.checkpoint.every_steps=100"]
  whole, stopped = (root / f"{name}-{number.name}" for name in "ab")
  assert runs.run(whole, flags, env)[0] == 0
  process = runs.start(stopped, flags, env)
  output = runs.stop_at(process, stopped, 5, number)
  assert process.returncode == exit_code, output
  assert "the same command" in " ".join(output.split())
  code, output = runs.run(stopped, flags, env)
  assert code == 0 and "resume" in output
  assert runs.same_arrays(
    runs.final_arrays(whole, 40), runs.final_arrays(stopped, 40)
  )


def test_another_config_on_the_same_workdir_is_refused_with_what_differs(place):
  root, flags, env = place
  before = runs.final_arrays(root / "first", 12)
  code, output = runs.run(
    root / "first", [*flags, "--config.optim.lr=0.5"], env
  )
  assert code == 4
  assert "optim.lr" in output and "0.5" in output and "--workdir" in output
  assert "Traceback" not in output
  assert runs.same_arrays(before, runs.final_arrays(root / "first", 12))


def test_a_finished_run_started_again_shows_its_results_and_ends_well(place):
  root, flags, env = place
  before = runs.records(root / "first")
  code, output = runs.run(root / "first", flags, env)
  assert code == 0 and "MLM loss" in output
  assert runs.records(root / "first") == before


def test_a_run_takes_weights_of_another_and_does_without_it_then(place):
  root, flags, env = place
  shutil.copytree(root / "first", root / "begun")
  flags = [*flags, "--config.data.vocab=init", "--config.model.variant=init"]
  # Too small a rate to move any weight, even by its last bit.
  flags += ["--config.steps=1", "--config.optim.lr=1e-12"]
  flags += [f"--config.data.rows={root}/rows2"]
  begun = f"--config.init={root / 'begun'}"
  code, output = runs.run(root / "second", [*flags, begun], env)
  assert code == 0, output
  assert f"weights of {root / 'begun'}" in output.replace("\n", "")
  first, second = runs.exported(root / "first"), runs.exported(root / "second")
  assert runs.same_arrays(list(first.values()), list(second.values()))
  (record,) = runs.records(root / "second")
  assert record["step"] == 1
  # It goes on without them, takes no others, and knows where it is from.
  shutil.rmtree(root / "begun")
  other = f"--config.init={root / 'first'}"
  code, output = runs.run(root / "second", [*flags, other], env)
  assert code == 0 and "is not looked at" in output, output
  assert "resume" in output
  saved = json.loads((root / "second" / "config.json").read_text())
  assert saved["init"] == str(root / "begun")


def test_a_second_run_in_the_same_workdir_is_refused(place):
  root, flags, env = place
  flags = [*flags, "--config.steps=2000", "--config.eval.every_steps=5000"]
  first = runs.start(root / "shared", flags, env)
  try:
    while runs.last_step(root / "shared") < 2 and first.poll() is None:
      pass
    code, output = runs.run(root / "shared", flags, env)
  finally:
    first.kill()
    first.communicate()
  assert code == 2 and "another run" in output


def test_a_gradient_that_is_not_finite_ends_the_run_and_saves_nothing_bad(
  place,
):
  root, flags, env = place
  flags = [*flags, "--config.optim.lr=1e30", "--config.optim.schedule=bert"]
  workdir = root / "nan"
  code, output = runs.run(workdir, flags, env)
  assert code == 6, output
  assert "optim.lr" in output
  for folder in (workdir / "checkpoints").iterdir():
    for array in runs.final_arrays(workdir, int(folder.name)):
      assert np.isfinite(array.astype(np.float64)).all()


@pytest.mark.parametrize(
  "flag, words",
  [
    ("--config.steps=0", "steps"),
    ("--config.batch_size=-1", "batch_size"),
    ("--config.length=3", "length"),
    ("--config.length=1000", "max_positions"),
    ("--config.masking.prob=1.5", "masking.prob"),
    ("--config.optim.lr=nan", "optim.lr"),
    ("--config.optim.accumulation=3", "micro-batches"),
    ("--config.negatives.prediction=best", "argmax"),
    ("--config.negatives.soft=euclid", "cosine"),
    ("--config.negatives.sources=thesaurus", "wordnet"),
    ("--config.model.variant=huge", "small"),
    ("--config.model.backbone=nothing", "models/nothing.py"),
    ("--config.model.dtype=int8", "bfloat16"),
    ("--config.optim.schedule=cosine", "electra"),
    ("--config.mesh.preset=torus", "dp"),
    ("--config.log.writers=('stone',)", "tensorboard"),
    ("--config.data.held_out=0.0", "held_out"),
    ("--config.eval.sentences=('no mask',)", "no mask"),
    ("--config.data.sources=nowhere.txt", "nowhere.txt"),
    ("--config.data.vocab=no/such/vocab.txt", "vocab"),
  ],
)
def test_a_bad_value_is_refused_by_name_before_anything_is_compiled(
  place, flag, words
):
  root, flags, env = place
  workdir = root / "bad"
  config = "electra_demo:hc+sr,runlocal"
  flags = [*flags, runs.save_synonyms(root, root / "rows" / "vocab.txt")]
  flags = [f for f in flags if f.split("=")[0] != flag.split("=")[0]]
  if "data." in flag:
    flags = [f for f in flags if "data.rows" not in f]
  code, output = runs.run(workdir, [*flags, flag], env, config=config)
  assert code in (2, 3), output
  assert words in output and "Traceback" not in output
  assert "compiled in" not in output
  assert not (workdir / "metrics.jsonl").exists()


def test_hard_correction_without_wordnet_says_what_to_type(place):
  root, flags, env = place
  code, output = runs.run(root / "hc", flags, env, config=HC_SR)
  assert code == 2
  assert "launch/wordnet.sh" in output and "Traceback" not in output


@pytest.mark.parametrize(
  "flag", ["--config.stepz=3", "--config.steps=many", "--workdor=x"]
)
def test_a_bad_flag_is_one_line_and_exit_code_2(place, flag):
  root, flags, env = place
  code, output = runs.run(root / "typo", [*flags, flag], env)
  assert code == 2 and flag[2:].split("=")[0].split(".")[-1] in output
  assert "Traceback" not in output


def test_a_refused_run_leaves_the_workdir_as_it_was(place):
  root, flags, env = place
  workdir = root / "first"
  files = ("vocab.txt", "config.json", "metrics.jsonl")
  before = [(workdir / name).read_bytes() for name in files]
  flags = [f for f in flags if "data.rows" not in f and "vocab_size" not in f]
  code, output = runs.run(workdir, [*flags, "--config.data.vocab_size=90"], env)
  assert code == 4 and "vocab_size" in output
  assert [(workdir / name).read_bytes() for name in files] == before


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
main.on_sigterm()
gc.callbacks.append(kill)
gc.collect()
print("lost", flush=True)
time.sleep(60)
"""


ENDING = """
import os, signal, time
from truenegs_jax import main
main.on_sigterm()
try:
  os.kill(os.getpid(), signal.SIGTERM)
  time.sleep(60)
finally:
  time.sleep(2 * main.AGAIN_SECS)
  print("ended", flush=True)
"""


def test_a_sigterm_that_is_heeded_does_not_come_again(place):
  *_, env = place
  ended = subprocess.run(
    [sys.executable, "-c", ENDING], env=env, capture_output=True, text=True
  )
  assert (ended.stdout, ended.returncode) == ("ended\n", 75), ended.stderr


def test_a_sigterm_that_the_garbage_collector_swallows_comes_again(place):
  *_, env = place
  ended = subprocess.run(
    [sys.executable, "-c", LOST], env=env, capture_output=True, text=True
  )
  assert ended.stdout == "lost\n"  # else this shows nothing
  assert ended.returncode == 75, ended.stderr


def test_after_a_non_finite_gradient_the_advice_given_can_be_followed(place):
  root, flags, env = place
  flags = [*flags, "--config.steps=6", "--config.checkpoint.every_steps=1"]
  flags += ["--config.optim.lr=1e30", "--config.optim.schedule=bert"]
  workdir = root / "advice"
  code, output = runs.run(workdir, flags, env)
  assert code == 6 and "optim.max_skips" in output
  again = [*flags, "--config.optim.max_skips=100"]
  code, output = runs.run(workdir, again, env)
  assert code in (0, 6) and "another run" not in output
  assert "NaN" not in (workdir / "metrics.jsonl").read_text()


def test_the_config_saved_is_what_ran(place):
  root, _, _ = place
  saved = json.loads((root / "first" / "config.json").read_text())
  assert saved["steps"] == 12 and saved["negatives"]["soft_weight"] == 0.1
