"""A study survives every kill: no part is lost, run twice or left behind."""

import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study.parts import Part, State

SUPPORT = pathlib.Path(__file__).parents[1] / "support"
CODES = {signal.SIGTERM: 75, signal.SIGINT: 130, signal.SIGKILL: -9}


class Drivers:
  """Starts and ends drivers of studies of stand-ins, in forked processes."""

  def __init__(self):
    self.process = subprocess.Popen(
      [sys.executable, str(SUPPORT / "study_driver.py")],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )

  def ask(self, *words):
    print(*words, file=self.process.stdin, flush=True)
    return int(self.process.stdout.readline())

  def start(self, root, study):
    root.mkdir(exist_ok=True)
    path = root / f"parts-{len(study)}.json"
    if not path.exists():  # else another driver may be reading it
      path.write_text(json.dumps([dataclasses.asdict(x) for x in study]))
    return self.ask("start", root, path)

  def run(self, root, study):
    return self.ask("wait", self.start(root, study))


@pytest.fixture(scope="module")
def drivers():
  drivers = Drivers()
  with drivers.process:  # closes its input, and waits
    yield drivers


def make_study(root, arms="ab", seeds=1, tasks=("x",), steps=4, fails=None):
  """Makes parts in the order of `parts.make_parts`."""
  study = []
  for seed in range(seeds):
    for name in ("pretrain", *tasks):
      for arm in arms:
        key = parts_lib.part_key(arm, seed, name)
        stand_in = str(SUPPORT / "study_part.py")
        words = root / key, root / "journal", key, steps
        code = (fails or {}).get(key, 0)
        command = sys.executable, "-S", stand_in, *map(str, words), str(code)
        pretrained = parts_lib.part_key(arm, seed, "pretrain")
        needs = "" if name == "pretrain" else pretrained
        study.append(Part(arm, seed, name, command, ("results.json",), needs))
  return study


def read_journal(root):
  return [x.split()[:2] for x in (root / "journal").read_text().splitlines()]


def count(root, event):
  return [name for x, name in read_journal(root) if x == event]


def read_outputs(root):
  paths = root.glob("runs/*/*/*/results.json")
  return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def wait_until(condition):
  end = time.monotonic() + 30
  while not condition():
    assert time.monotonic() < end
    time.sleep(0.002)


def check_journal(root, study):
  """Checks that each part ended once, after the part that it needs."""
  ended = []
  for event, name in read_journal(root):
    part = next(part for part in study if part.key == name)
    assert not part.needs or part.needs in ended
    assert name not in ended, f"{event} of a finished part"
    if event == "end":
      ended.append(name)
  assert sorted(ended) == sorted(part.key for part in study)


def is_idle(root, study):
  return State.RUNNING not in parts_lib.read_states(study, root).values()


@pytest.mark.slow
def test_a_study_that_is_killed_has_the_same_results(drivers, tmp_path):
  rng = random.Random(0)
  expected, killed = tmp_path / "expected", tmp_path / "killed"
  assert drivers.run(expected, make_study(expected, seeds=2)) == 0
  study = make_study(killed, seeds=2)
  for number in (*CODES, signal.SIGKILL):
    driver = drivers.start(killed, study)
    time.sleep(rng.uniform(0.02, 0.15))
    os.kill(driver, number)
    assert drivers.ask("wait", driver) in (0, CODES[number])
    assert number == signal.SIGKILL or is_idle(killed, study)
  wait_until(lambda: is_idle(killed, study))
  assert drivers.run(killed, study) == 0
  check_journal(killed, study)
  assert read_outputs(killed) == read_outputs(expected)


def test_a_part_ends_and_saves_with_its_driver(drivers, tmp_path):
  study = make_study(tmp_path, arms="a", tasks=(), steps=10_000)
  driver = drivers.start(tmp_path, study)
  wait_until((tmp_path / study[0].key / "state").exists)
  os.kill(driver, signal.SIGTERM)
  assert drivers.ask("wait", driver) == CODES[signal.SIGTERM]
  assert count(tmp_path, "stop") == [study[0].key]
  assert [*parts_lib.read_states(study, tmp_path).values()] == [State.MISSING]


def test_drivers_of_the_same_command_share_the_work(drivers, tmp_path):
  study = make_study(tmp_path, steps=40)
  running = [drivers.start(tmp_path, study) for _ in range(3)]
  time.sleep(0.2)
  os.kill(running[0], signal.SIGKILL)
  codes = [drivers.ask("wait", x) for x in running]
  assert codes[0] in (-9, 0) and codes[1:] == [0, 0]
  wait_until(lambda: is_idle(tmp_path, study))
  assert drivers.run(tmp_path, study) == 0  # those that needed another's
  check_journal(tmp_path, study)


def test_a_signal_reaches_a_part_that_is_being_started(tmp_path, monkeypatch):
  start = subprocess.Popen

  def start_after_a_signal(*args, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return start(*args, **options)

  monkeypatch.setattr(subprocess, "Popen", start_after_a_signal)
  command = sys.executable, "-S", "-c", "import time; time.sleep(60)"
  part = Part("a", 0, "pretrain", command, ("results.json",))
  begin = time.monotonic()
  assert parts_lib.run_parts([part], tmp_path, Console(quiet=True)) == 75
  assert time.monotonic() < begin + 30


def test_a_part_with_all_outputs_is_done_whatever_its_exit_code(tmp_path):
  path = tmp_path / parts_lib.part_key("a", 0, "pretrain") / "results.json"
  code = f"open({str(path)!r}, 'w').close(); exit(1)"  # has not learned
  command = sys.executable, "-S", "-c", code
  part = Part("a", 0, "pretrain", command, ("results.json",))
  assert parts_lib.run_parts([part], tmp_path, Console(quiet=True)) == 0
  assert parts_lib.read_states([part], tmp_path) == {part.key: State.DONE}
  assert not parts_lib.read_failure(path.parent)


@pytest.mark.parametrize(
  "fails, code, state",
  [
    (3, 3, State.FAILED),
    (6, 0, State.DIVERGED),
    (75, 75, State.MISSING),
  ],
)
def test_failures(drivers, tmp_path, fails, code, state):
  bad = "runs/a/seed-0/pretrain"
  study = make_study(tmp_path, fails={bad: fails})
  assert drivers.run(tmp_path, study) == code
  assert parts_lib.read_states(study, tmp_path)[bad] == state
  ended = [] if state == State.MISSING else ["pretrain", "x"]
  assert [x.rpartition("/")[2] for x in count(tmp_path, "end")] == ended
  if ended:
    [part] = [x for x in study if x.key == bad]
    assert "it is broken" in parts_lib.describe_failure(part, tmp_path)
  (tmp_path / bad / "fixed").touch()
  assert drivers.run(tmp_path, study) == 0
  repeated = state != State.DIVERGED
  assert count(tmp_path, "start").count(bad) == 1 + repeated
  assert len(count(tmp_path, "end")) == (4 if repeated else 2)
