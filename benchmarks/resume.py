"""Stops a run by SIGTERM, resumes it and compares it with one not stopped.

  python benchmarks/resume.py --workdir=FOLDER --steps=60 --config=NAME
      [--config.KEY=VALUE ...]

Both runs are stopped after --steps steps, so that they neither evaluate nor
export; one is stopped in the middle as well. Other flags are those of main.
Their records are compared from the step of the resume on. Exit code 1: a stop
has another exit code than 75, the run does not continue at the step that it
saved, or a loss differs by more than 1 %. On a GPU, sums may be rounded in
another order, unless XLA_FLAGS=--xla_gpu_deterministic_ops=true.
"""

import argparse
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

TOLERANCE = 0.01  # relative
SAVED = 75  # exit code
Losses = dict[int, float]  # by step


class ResumeError(Exception):
  """A run did not stop or continue as it should."""


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the comparison; returns 1 if the resumed run is wrong."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--workdir", type=pathlib.Path, required=True)
  parser.add_argument("--steps", type=int, default=60)
  args, flags = parser.parse_known_args(argv)
  shutil.rmtree(args.workdir, ignore_errors=True)
  args.workdir.mkdir(parents=True)
  train = [sys.executable, "-m", "truenegs_jax.main", *flags]
  train += ["--config.log.every_steps=1"]
  unbroken, broken = args.workdir / "unbroken", args.workdir / "broken"
  try:
    run_until(train, unbroken, args.steps)
    saved = run_until(train, broken, args.steps // 3)
    run_until(train, broken, args.steps, resumed_at=saved)
    difference = compare(unbroken, broken, saved)
  except ResumeError as e:
    print(f"WRONG: {e}")
    return 1
  verdict = "equal" if difference == 0 else f"differ by {difference:.1e}"
  print(f"Saved and resumed at step {saved}. Losses of later steps: {verdict}.")
  return int(not difference <= TOLERANCE)  # also 1 for NaN


def run_until(
  train: Sequence[str],
  workdir: pathlib.Path,
  step: int,
  *,
  resumed_at: int | None = None,
) -> int:
  """Trains until a step is recorded, sends SIGTERM; returns the saved step.

  Raises:
    ResumeError: it ended by itself, or does not say what it resumed or saved.
  """
  log = workdir.with_suffix(f".{step}.log")
  with log.open("w") as output:
    run = subprocess.Popen(
      [*train, f"--workdir={workdir}"], stdout=output, stderr=subprocess.STDOUT
    )
  while run.poll() is None and max(read_losses(workdir), default=0) < step:
    time.sleep(0.1)
  run.send_signal(signal.SIGTERM)
  code, text = run.wait(), log.read_text()
  print(f"--- {log.name}: exit code {code}\n{text[-1500:]}")
  saved = re.search(r"Saved at step ([\d,]+)", text)
  if code != SAVED or not saved:
    raise ResumeError(f"The run ended with {code}, not {SAVED}.")
  first = re.search(r"resumed at step ([\d,]+)", text)
  if resumed_at and (not first or _number(first[1]) != resumed_at):
    raise ResumeError(f"The run did not resume at step {resumed_at}.")
  return _number(saved[1])


def _number(text: str) -> int:
  return int(text.replace(",", ""))


def read_losses(workdir: pathlib.Path) -> Losses:
  """Returns the complete records of a run's training."""
  path = workdir / "metrics.jsonl"
  lines = path.read_text().split("\n")[:-1] if path.exists() else []
  records = map(json.loads, lines)
  return {x["step"]: x["total"] for x in records if x["split"] == "train"}


def compare(unbroken: pathlib.Path, broken: pathlib.Path, saved: int) -> float:
  """Returns the largest relative difference of losses after a step.

  Raises:
    ResumeError: the runs have no such step in common, or lack one.
  """
  expected, losses = read_losses(unbroken), read_losses(broken)
  last = min(max(expected), max(losses))
  if last <= saved or set(range(1, last + 1)) - set(losses):
    raise ResumeError(f"Records of steps after {saved} are missing.")
  return max(
    abs(losses[i] / expected[i] - 1) for i in range(saved + 1, last + 1)
  )


if __name__ == "__main__":
  sys.exit(main())
