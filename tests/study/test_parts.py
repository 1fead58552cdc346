"""The parts of a study: their order, what is refused, and how they end."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.console import Console

from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.tables import Study
from truenegs_jax.configs import study as study_config
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study.parts import Part, State
from truenegs_jax.workdir import lock

DEMO = {
  "base": "electra_small:runlocal",
  "arms": {
    "baseline": {"words": "baseline"},
    "mask": {"words": "hc", "masking.prob": 0.25},
  },
  "seeds": 2,
  "tasks": "mrpc,squad1",
  "robustness": {"robustness.sets": "swap_synonyms"},
  "corrections": {"corrections.text": "wordnet"},
}
# Of a process, whose first argument is its folder.
ENDS = """
import pathlib, sys
folder = pathlib.Path(sys.argv[1])
if CODE and not (folder / "fixed").exists():
  print("error: it is broken", flush=True)
  sys.exit(CODE)
(folder / "results.json").touch()
"""
STOPS = """
import os, signal, sys, time
signal.signal(signal.NAME, lambda *_: sys.exit(3))
os.kill(os.getppid(), signal.NAME)
time.sleep(30)
"""
# Another process has the lock for a second.
REFUSED = """
import fcntl, os, sys, time
file = open(sys.argv[1] + "/lock", "a")
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
if os.fork():
  sys.exit("error: Another run is using the folder.")
time.sleep(1)
"""


def make_config(**changes):
  c = study_config.get_config()
  for name, value in {**DEMO, **changes}.items():
    c.study[name] = value
  return c


def read_study(**changes):
  return Study.read(make_config(**changes).study.to_dict())


def make_parts(root, **changes):
  return parts_lib.make_parts(read_study(**changes), root)


def parse(part):
  """Returns the config that a part's process gets."""
  return parse_config([x for x in part.command if x.startswith("--config")])


def test_whole_comparisons_come_early(tmp_path):
  study = make_parts(tmp_path)
  names = ["pretrain", "mrpc", "squad1", "corrections", "robustness"]
  order = [(part.seed, part.name, part.arm) for part in study]
  assert order == list(itertools.product(range(2), names, DEMO["arms"]))
  done = {""}
  for part in study:
    assert part.needs in done
    assert (part.needs == "") == (part.name == "pretrain")
    done.add(part.key)


def test_commands_have_the_words_values_and_seeds_of_their_arm(tmp_path):
  study = make_parts(
    tmp_path,
    overrides={"steps": 40, "data.sources": "'a {seed}.txt'"},
    finetune_seeds=2,
  )
  by_key = {part.key.removeprefix("runs/"): part for part in study}
  part = by_key["mask/seed-1/pretrain"]
  c = parse(part)
  assert (c.steps, c.seed, c.masking.prob) == (40, 1, 0.25)
  assert c.negatives.hard_correction and c.data.sources == "'a 1.txt'"
  assert part.command[-1] == f"--workdir={tmp_path / part.key}"
  folder = str(tmp_path / "runs/mask/seed-1")
  part = by_key["mask/seed-1/squad1"]
  c = parse(part)
  assert (c.init, c.seed, c.finetune.seeds) == (f"{folder}/pretrain", 0, 2)
  assert part.outputs == tuple(f"squad/seed-{n}/result.json" for n in (0, 1))
  robustness = by_key["mask/seed-1/robustness"]
  assert parse(robustness).init == f"{folder}/squad1"
  assert robustness.needs == part.key
  c = parse(by_key["mask/seed-1/corrections"])
  assert c.corrections.run == f"{folder}/pretrain"


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"arms": {"a": {"words": "hcc"}}}, "study.arms, 'a'.*'hcc' is unknown"),
    ({"arms": {"a": {"masking.prob": 2.0}}}, "masking.prob=2.0 is out of"),
    ({"arms": {"a": {"seed": 1}}}, "study.arms, 'a'.*: seed cannot be set"),
    ({"arms": {"a": {}, "A": {}}}, "}: a, A. An arm is .* a name for"),
    ({"arms": {"../x": {}}}, ": ../x. An arm is .* a name for its folder"),
    ({"arms": {"a": "hc"}}, "'hc'}: a. An arm is a dict of keys"),
    ({"overrides": {"dry_run": True}}, "dry_run cannot be set"),
    ({"base": "corrections"}, "study.base has task='corrections'"),
    ({"tasks": "mrpc,wnli"}, "study.tasks='wnli' is unknown.*squad1"),
    ({"tasks": "mrpc,rte"}, "fine-tuned on squad1, which is not in study.ta"),
    ({"finetune": {"finetune.stride": 0}}, "study.finetune: finetune.str"),
  ],
)
def test_mistakes_are_refused(tmp_path, changes, message):
  with pytest.raises(InputError, match=f"(?s){message}"):
    make_parts(tmp_path, **changes)


def test_changed_values_of_a_study_are_refused(tmp_path):
  (tmp_path / "config.json").write_text(make_config().to_json())
  arms = {"mask": {"words": "sr"}}
  changed = read_study(arms=arms, overrides={"masking.prob": 0.3})
  with pytest.raises(CheckpointError, match="words: 'hc' -> 'sr'") as error:
    parts_lib.check_unchanged(changed, tmp_path)
  assert "study.overrides" in str(error.value)
  arms = {"baseline": {"words": "baseline"}, "new": {"words": "sr"}}
  grown = read_study(seeds=3, finetune_seeds=9, arms=arms, tasks="rte,squad1")
  before = parts_lib.check_unchanged(grown, tmp_path)
  assert before == read_study().arms  # also those that are left out


@pytest.mark.parametrize(
  "name, count", [("study", 3 * 4 * 10), ("study_small:len512", 10 * 6 * 3)]
)
def test_packaged_studies_have_the_papers_tables(tmp_path, name, count):
  c = parse_config([f"--config={name}"]).study
  study = Study.read(c.to_dict())
  assert len(parts_lib.make_parts(study, tmp_path)) == count


def make_part(root, code, arm="a", name="pretrain", needs=""):
  """Makes a part that is a process of Python code."""
  folder = root / parts_lib.part_key(arm, 0, name)
  folder.mkdir(parents=True)
  command = (sys.executable, "-S", "-c", code, str(folder))
  return Part(arm, 0, name, command, ("results.json",), needs)


def run(root, study):
  """Runs parts; returns the exit code, and the states in their order."""
  code = parts_lib.run_parts(study, root, Console(quiet=True))
  return code, [*parts_lib.read_states(study, root).values()]


@pytest.mark.parametrize(
  "fails, code, state, others",
  [
    (3, 3, State.FAILED, State.DONE),
    (6, 0, State.DIVERGED, State.DONE),
    (75, 75, State.MISSING, State.MISSING),  # the part was stopped
  ],
)
def test_failures(tmp_path, fails, code, state, others):
  study = [
    make_part(tmp_path, ENDS.replace("CODE", str(fails))),
    make_part(tmp_path, ENDS.replace("CODE", "0"), arm="b"),
  ]
  study += [
    make_part(tmp_path, x.command[3], x.arm, "mrpc", needs=x.key) for x in study
  ]
  states = [state, others, State.MISSING, others]
  assert run(tmp_path, study) == (code, states)
  if others == State.DONE:
    text = parts_lib.describe_failure(study[0], tmp_path)
    assert f"exit code {fails}: error: it is broken" in text
  for part in study:
    (tmp_path / part.key / "fixed").touch()
  is_final = state == State.DIVERGED
  assert run(tmp_path, study) == (0, states if is_final else [State.DONE] * 4)
  log = (tmp_path / study[0].key / "log.txt").read_text()
  assert log.count("$ ") == (1 if is_final else 2)


@pytest.mark.parametrize("name, code", [("SIGTERM", 75), ("SIGINT", 130)])
def test_a_signal_reaches_the_part_that_runs(tmp_path, name, code):
  number = signal.Signals[name]
  before = signal.getsignal(number)
  part = make_part(tmp_path, STOPS.replace("NAME", name))
  later = make_part(tmp_path, ENDS.replace("CODE", "0"), arm="b")
  assert run(tmp_path, [part, later]) == (code, [State.MISSING] * 2)
  assert signal.getsignal(number) == before
  assert not (tmp_path / later.key / "log.txt").exists()


def test_a_signal_reaches_a_part_that_is_being_started(tmp_path, monkeypatch):
  start = subprocess.Popen

  def start_after_a_signal(*args, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return start(*args, **options)

  monkeypatch.setattr(subprocess, "Popen", start_after_a_signal)
  part = make_part(tmp_path, "import time; time.sleep(30)")
  begin = time.monotonic()
  assert run(tmp_path, [part]) == (75, [State.MISSING])
  assert time.monotonic() < begin + 20


def test_a_part_with_all_outputs_is_done_whatever_its_exit_code(tmp_path):
  code = f"{ENDS.replace('CODE', '0')}\nsys.exit(1)"  # has not learned
  assert run(tmp_path, [make_part(tmp_path, code)]) == (0, [State.DONE])


def test_parts_that_other_processes_run_are_left_to_them(tmp_path):
  study = [make_part(tmp_path, REFUSED, arm) for arm in "ab"]
  study.append(make_part(tmp_path, ENDS.replace("CODE", "0"), arm="c"))
  running = [State.RUNNING, State.RUNNING, State.DONE]
  with lock.lock(tmp_path / study[0].key):
    assert run(tmp_path, study) == (0, running)
  assert not (tmp_path / study[0].key / "log.txt").exists()
  assert (tmp_path / study[1].key / "log.txt").exists()
  assert not parts_lib.read_failure(tmp_path / study[1].key)
