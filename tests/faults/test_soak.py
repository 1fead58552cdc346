"""A long run that is killed again and again: exact, with flat memory."""

import collections
import random
import signal
import statistics
import time

import pytest

from support import runs
from truenegs_jax.workdir import files

STEPS, SAVE_EVERY = 600, 25
MAX_GROWTH = 1 / 1024  # GiB in 100 steps


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
  """Returns flags, environment and workdir of an uninterrupted run."""
  root = tmp_path_factory.mktemp("soak")
  flags = runs.demo_flags(
    runs.write_corpus(root / "corpus.txt"),
    steps=STEPS,
    checkpoint__every_steps=SAVE_EVERY,
    eval__every_steps=STEPS,
    **runs.SMALL_NETWORK,
  )
  env = runs.make_environment(root / "cache")
  code, output = runs.run(root / "golden", flags, env)
  assert code == 0, output
  return flags, env, root / "golden"


def split_time(workdir, began, ended, furthest):
  """Splits the seconds of one process by what it did.

  `furthest` is the last step of the processes before it. A save is the time by
  which the two steps beside it are longer than the median.
  """
  times = {r["step"]: r["time"] for r in runs.read_records(workdir)}
  locked = (workdir / files.LOCK).stat().st_mtime
  steps = sorted(step for step, secs in times.items() if secs > began)
  if not steps:
    return {"imports": locked - began, "set-up and compile": ended - locked}
  secs = {step: times[step] - times[step - 1] for step in steps[1:]}
  median = statistics.median(secs.values())
  saves = sum(x - median for step, x in secs.items() if step % SAVE_EVERY < 2)
  new = sum(x for step, x in secs.items() if step > furthest)
  return {
    "imports": locked - began,
    "set-up and compile": times[steps[0]] - locked,
    "repeated steps": sum(secs.values()) - new,
    "new steps": new - saves,
    "saves": saves,
    "end": ended - times[steps[-1]],
  }


@pytest.mark.faults
def test_memory_is_flat(golden):
  records = runs.read_records(golden[-1])
  peaks = [record["memory_peak_gib"] for record in records]
  growth = (peaks[-1] - peaks[STEPS // 3]) / (STEPS * 2 / 3) * 100
  assert growth < MAX_GROWTH


@pytest.mark.faults
def test_a_run_killed_every_100_steps_ends_bit_equal(golden, capsys):
  flags, env, expected = golden
  workdir, rng = expected.with_name("killed"), random.Random(30)
  parts, furthest, num_starts = collections.Counter(), 0, 0
  while not (workdir / "results.json").exists():
    kill_at = furthest + rng.randint(50, 150)
    began, num_starts = time.time(), num_starts + 1
    process = runs.start(workdir, flags, env)
    output = runs.send_signal_at(process, workdir, kill_at, signal.SIGKILL)
    assert process.returncode in (0, -signal.SIGKILL), output
    records = runs.read_records(workdir)
    assert records[0]["step"] == 1 and records[-1]["step"] >= furthest
    parts.update(split_time(workdir, began, time.time(), furthest))
    furthest = records[-1]["step"]
  assert num_starts > 4
  runs.assert_equal_runs(expected, workdir, STEPS)
  total = sum(parts.values())
  shares = ", ".join(f"{x} {secs / total:.0%}" for x, secs in parts.items())
  with capsys.disabled():
    print(f"\n{num_starts} starts, {total:.0f} s: {shares}")
