"""A launcher's loop over the parts of a study does what the study does."""

import io
import json
import pathlib
import shlex
import subprocess
import sys

import pytest
from rich.console import Console

from truenegs_jax import main
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.tables import Study
from truenegs_jax.runtime.errors import BusyError, CheckpointError, InputError
from truenegs_jax.runtime.files import lock_file
from truenegs_jax.study import drive, plan, run
from truenegs_jax.study.drive import State
from truenegs_jax.workdir import files

STUDY = ["--config=study"]


def find_next(root, **changes):
  values = {"arms": "a=baseline; b=hc", "seeds": 1, "tasks": "mrpc"}
  values |= {"finetune_seeds": 1, **changes}
  words = [f"--config.study.{name}={x}" for name, x in values.items()]
  config = json.loads(parse_config(["--config=study", *words]).to_json())
  return plan.find_next_flags(config, root, STUDY)


def end_part(words):
  """Writes what a part leaves, with the flags that were printed."""
  folder = pathlib.Path(words[-1].removeprefix("--workdir="))
  assert (folder / drive.RECORD).exists()
  outputs = [files.RESULTS, "mrpc/seed-0/result.json"]
  path = folder / outputs["mrpc" in words[0]]
  path.parent.mkdir(parents=True, exist_ok=True)
  files.save_json(path, {})


def save_results(root):
  """Writes what `study` saves at its end."""
  config = json.loads((root / files.CONFIG).read_text())
  study, _, states = plan.open_study(Study.read(config["study"]), root)
  value = {"config": config, "parts": states}
  files.save_json(root / files.RESULTS, value)
  return study.parts


def test_the_parts_come_in_the_order_of_the_study_and_then_its_report(
  tmp_path,
):
  printed = []
  while (words := find_next(tmp_path)) != STUDY:
    assert words == find_next(tmp_path)  # until it has ended
    printed.append((*plan.MAIN, *words))
    end_part(words)
  parts = save_results(tmp_path)
  assert printed == [part.command for part in parts]
  assert find_next(tmp_path) == []
  words = find_next(tmp_path, seeds=2)
  assert "--config.seed=1" in words  # a larger study goes on


def test_parts_that_run_are_left_to_their_process(tmp_path):
  first = find_next(tmp_path)
  folder = tmp_path / "runs/a/seed-0/pretrain"
  with lock_file(folder / files.LOCK):  # of a run, as of a launcher
    second = find_next(tmp_path)
    assert second[-1].endswith("runs/b/seed-0/pretrain")
    end_part(second)
    end_part(find_next(tmp_path))
    with pytest.raises(BusyError, match="a/seed-0/pretrain"):
      find_next(tmp_path)
  assert find_next(tmp_path) == first


def test_changed_values_are_refused(tmp_path):
  find_next(tmp_path)
  with pytest.raises(CheckpointError, match="masking.prob"):
    find_next(tmp_path, overrides="masking.prob=0.3")


LOOP = """
while flags=$({main} {study} --next) && [ -n "$flags" ]; do
  case $flags in
    --config=study*) exit ;;  # all parts have ended
    *) eval "{part} $flags" || [ $? = 75 ] || exit ;;
  esac
done
"""
# Stand-in for main: the first start of each part is stopped, and then resumed.
PART = """
import hashlib, json, pathlib, sys
folder = pathlib.Path(sys.argv[-1].removeprefix("--workdir="))
state = folder / "state"
if "--stops" in sys.argv and not state.exists():
  state.touch()
  sys.exit(75)
words = [x for x in sys.argv[1:-1] if x != "--stops"]
loss = int(hashlib.sha256(json.dumps(words).encode()).hexdigest()[:8], 16)
(folder / "metrics.jsonl").write_text(
  json.dumps({"step": 1, "split": "held_out", "mlm": loss / 2**32}) + "\\n"
)
(folder / "results.json").write_text("{}")
"""


@pytest.mark.slow
def test_a_loop_in_a_shell_and_one_process_have_the_same_scores(
  tmp_path, monkeypatch
):
  script = tmp_path / "part.py"
  script.write_text(PART)
  monkeypatch.setattr(plan, "MAIN", (sys.executable, "-S", str(script)))
  monkeypatch.setattr(run, "write_own_report", lambda workdir, say: None)
  words = ["--config=study", "--config.study.seeds=1"]
  words += ["--config.study.arms=a=baseline data.sources='it*s {seed}'; b=hc"]
  words += ["--config.study.base=electra_demo:runlocal"]
  words += ["--config.study.tasks="]
  console = Console(file=io.StringIO(), width=200)
  saved = []
  for name in ("one", "loop"):
    root = tmp_path / name
    if name == "loop":
      loop = LOOP.format(
        main=shlex.join([sys.executable, "-m", "truenegs_jax.main"]),
        study=shlex.join([*words, f"--workdir={root}"]),
        part=shlex.join([*plan.MAIN, "--stops"]),
      )
      subprocess.run(["bash", "-c", loop], check=True)
      assert len([*root.glob("runs/*/*/*/state")]) == 2  # all were stopped
    assert run.run(parse_config(words), root, console) == 0
    assert not [*root.glob("runs/*/*/*/log.txt")] or name == "one"
    results = json.loads((root / files.RESULTS).read_text())
    saved.append((results["scores"], (root / "tables.csv").read_bytes()))
  assert len(saved[0][0]) == 2 and saved[0] == saved[1]


def test_flags_of_the_study_are_printed_without_next(
  monkeypatch, capsys, tmp_path
):
  words = ["--config=study", "--workdir", "next", "--next"]
  monkeypatch.setattr(sys, "argv", ["main", *words])
  monkeypatch.setattr(plan, "find_next_flags", lambda *args: args[-1])
  main._print_next(parse_config(words[:1]), str(tmp_path))
  assert shlex.split(capsys.readouterr().out) == words[:-1]


def test_mistakes_leave_standard_output_empty(monkeypatch, capsys, tmp_path):
  for config, message in (
    ("electra_demo", "--next is for the config of a study"),
    ("study:runlocal", "is the workdir of a run"),
  ):
    (tmp_path / files.CHECKPOINTS).mkdir(exist_ok=True)
    words = ["main", f"--config={config}", f"--workdir={tmp_path}", "--next"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as e:
      main._print_next(parse_config(words[1:2]), tmp_path)
    output = capsys.readouterr()
    assert e.value.code == 2 and message in output.err and not output.out


def test_a_failed_part_and_a_study_of_several_processes_are_known_to_main(
  monkeypatch, tmp_path
):
  config = parse_config(["--config=study:runlocal"])
  with pytest.raises(InputError, match="baseline/seed-0/pretrain is missing"):
    main._check_ended(config, tmp_path)
  study, _, _ = plan.open_study(Study.read(config.study), tmp_path)
  part = study.parts[0]
  drive.save_record(part, tmp_path / part.key)
  for folder in (tmp_path, tmp_path / part.key):
    main._mark_part_failed(folder, 6, "error: NaN")
  assert drive.read_states([part], tmp_path) == {part.key: State.DIVERGED}
  assert drive.describe_failure(part, tmp_path).endswith("error: NaN")
  assert not (tmp_path / drive.FAILED).exists()
  main._mark_part_failed("x" * 300, 5, "error")  # a folder that cannot be
