"""Runs killed while they save end as if they were not.

The short form, `test_damaged_checkpoints.py`, simulates such a crash.
"""

import pathlib
import random
import time

import pytest

from support import runs

pytestmark = pytest.mark.faults
STEPS = 120


@pytest.fixture(scope="module")
def base(tmp_path_factory):
  """Returns (folder, flags, environment) of runs of one small network."""
  root = tmp_path_factory.mktemp("killed")
  flags = runs.demo_flags(
    runs.write_corpus(root / "corpus.txt"),
    steps=STEPS,
    batch_size=8,
    model__variant="embedding_size=16 width=32 layers=2 heads=2 ffn=64",
    checkpoint__every_steps=3,
    checkpoint__keep_percent="()",
    eval__every_steps=STEPS,
  )
  env = runs.make_environment(root / "cache") | {"PYTHONUNBUFFERED": "1"}
  return root, flags, env


@pytest.fixture(scope="module")
def golden(base):
  """Returns the workdir of an uninterrupted run of one process."""
  root, flags, env = base
  code, output = runs.run(root / "golden", flags, env)
  assert code == 0, output
  return root / "golden"


def saved_steps(workdir):
  names = [path.name for path in workdir.glob("checkpoints/*")]
  return sorted(int(name) for name in names if name.isdigit())


def wait_for_saves(process, workdir, count):
  """Waits until a run has begun to save `count` times."""
  before = set(workdir.glob("checkpoints/*-tmp*"))  # of an earlier kill
  while count > 0:
    assert process.poll() is None
    unfinished = set(workdir.glob("checkpoints/*-tmp*"))
    count -= len(unfinished - before)
    before = unfinished
    time.sleep(0.001)


def assert_nothing_is_left(workdir):
  """Asserts that killed runs left no process and no unfinished file."""
  names = [path.name for path in workdir.rglob("*")]
  assert not [x for x in names if "tmp" in x or "partial" in x or x[0] == "."]
  commands = pathlib.Path("/proc").glob("[0-9]*/cmdline")
  assert not [x for x in commands if str(workdir).encode() in x.read_bytes()]


@pytest.mark.parametrize("seed", range(4))
def test_a_run_killed_while_it_saves_ends_bit_equal(base, golden, seed, capsys):
  root, flags, env = base
  workdir, rng = root / f"saving{seed}", random.Random(seed)
  newest = num_interrupted = 0
  for _ in range(5):
    process = runs.start(workdir, flags, env)
    wait_for_saves(process, workdir, rng.randint(1, 2))
    time.sleep(rng.random() / 5)
    process.kill()
    output = " ".join(process.communicate()[0].split())
    assert not newest or f"resumed at step {newest} of" in output, output
    before, newest = newest, max(saved_steps(workdir), default=0)
    assert newest >= before
    num_interrupted += any(workdir.glob("checkpoints/*-tmp*"))
  code, output = runs.run(workdir, flags, env)
  assert code == 0, output
  runs.assert_equal_runs(golden, workdir, STEPS)
  assert_nothing_is_left(workdir)
  with capsys.disabled():
    print(f"\n5 kills, {num_interrupted} left an unfinished step")
