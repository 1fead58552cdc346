"""Seconds from a command to its first step, and where they go.

  python benchmarks/startup.py [--runs=5] [--config=electra_demo:baseline]
      [-- --config.model.scan=True ...]

Runs a config on text made here, in processes of their own, until the first
training record is on disk: with nothing compiled before, with the compiled
steps of the run before, and resumed from a checkpoint. The rows are prepared
beforehand. Beside it what ends sooner: --help, a wrong flag, a dry run.
"""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from absl import app, flags
from rich.console import Console
from rich.table import Table

from truenegs_jax.runtime import errors

_CONFIG = flags.DEFINE_string("config", "electra_demo:baseline", "Which.")
_RUNS = flags.DEFINE_integer("runs", 5, "Starts of each kind.", 1)

MAIN = ["-m", "truenegs_jax.main"]
WORDS = 3_000
# As `python -m truenegs_jax.main`, up to the first record; then it prints what
# jax says of its compiling: of each kind how often, and seconds.
UP_TO_A_RECORD = """
import collections, json, os, pathlib, runpy, sys, threading, time
path = pathlib.Path(sys.argv.pop(1), "metrics.jsonl")
before = path.stat().st_size if path.exists() else 0
spent = collections.defaultdict(lambda: [0, 0.0])
def note(name, secs, **_):
  spent[name][0] += 1
  spent[name][1] += secs
def watch():
  while not path.exists() or path.stat().st_size <= before:
    time.sleep(0.002)
  print("spent", json.dumps(spent), flush=True)
  os._exit(0)
import jax
jax.monitoring.register_event_duration_secs_listener(note)
threading.Thread(target=watch, daemon=True).start()
runpy.run_module("truenegs_jax.main", run_name="__main__", alter_sys=True)
"""
EVENTS = {
  "/jax/core/compile/jaxpr_trace_duration": "tracing",
  "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
  "/jax/core/compile/backend_compile_duration": "compiling, or reading it",
  "/jax/compilation_cache/cache_retrieval_time_sec": "  of it reading",
}


def main(argv: Sequence[str]) -> None:
  """Prints the tables."""
  with tempfile.TemporaryDirectory() as folder:
    start = Starts(pathlib.Path(folder), argv[1:])
    command = [*MAIN, *start.flags]
    secs = {
      "--help": start.repeat([*MAIN, "--help"], code=1),
      "a wrong flag": start.repeat([*command, "--config.stepz=1"], code=2),
      "a dry run": start.repeat([*command, "--config.dry_run=True"]),
    }
    spent = {}
    start.until_saved()
    for name in ("cold", "warm", "resumed"):
      secs[name], spent[name] = start.first_steps(name)
    imported = start.imports()
  console = Console(highlight=False, markup=False)
  console.print(seconds_table(secs))
  console.print(spent_table(spent))
  console.print(f"Imports, seconds by package: {imported}", soft_wrap=True)


class Starts:
  """Starts of one config in a folder of its own."""

  def __init__(self, folder: pathlib.Path, more: Sequence[str]):
    self._folder = folder
    (folder / "text.txt").write_text(text())
    self.flags = [
      f"--config={_CONFIG.value}",
      f"--config.data.sources={folder / 'text.txt'}",
      f"--config.data.rows={folder / 'rows'}",
      "--config.log.every_steps=1",
      *more,
    ]
    self._env = os.environ | {"TRUENEGS_CACHE": str(folder / "cache")}

  def repeat(self, command: Sequence[str], code: int = 0) -> list[float]:
    """Seconds of each run of a command that has to end with `code`."""
    return [self._timed(command, code)[0] for _ in range(_RUNS.value)]

  def until_saved(self) -> None:
    """Makes the rows, and a run that is stopped and saved after some steps."""
    workdir = self._folder / "saved"
    command = [sys.executable, *MAIN, *self.flags, f"--workdir={workdir}"]
    process = subprocess.Popen(
      command, env=self._env, stdout=subprocess.DEVNULL
    )
    path = workdir / "metrics.jsonl"
    while process.poll() is None and not (path.exists() and path.read_text()):
      time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    if process.wait() != errors.SAVED_RESTART:
      sys.exit(f"{' '.join(command)} ended with {process.returncode}")

  def first_steps(self, name: str) -> tuple[list[float], list[Mapping]]:
    """Seconds to the first record of each start, and what jax says of it."""
    secs, spent = [], []
    for _ in range(_RUNS.value):
      if name == "cold":
        shutil.rmtree(self._folder / "cache" / "xla", ignore_errors=True)
      shutil.rmtree(self._folder / "run", ignore_errors=True)
      if name == "resumed":
        shutil.copytree(self._folder / "saved", self._folder / "run")
      workdir = f"--workdir={self._folder / 'run'}"
      took, output = self._timed([*self._up_to("run"), *self.flags, workdir])
      secs.append(took)
      (line,) = re.findall("^spent (.*)$", output, re.MULTILINE)
      spent.append(json.loads(line))
    return secs, spent

  def imports(self) -> str:
    """Which packages a start spends its imports on, their own time each."""
    code = "import truenegs_jax.corrections.run, truenegs_jax.finetune.run"
    _, output = self._timed(["-X", "importtime", "-c", code])
    own: Counter[str] = Counter()
    for micros, name in re.findall(r"(\d+) \| +\d+ \| +(\w+)", output):
      own[name] += int(micros)
    listed = [f"{name} {x / 1e6:.2f}" for name, x in own.most_common(10)]
    return f"all {own.total() / 1e6:.2f}; {', '.join(listed)}"

  def _up_to(self, workdir: str) -> list[str]:
    return ["-c", UP_TO_A_RECORD, str(self._folder / workdir)]

  def _timed(self, command: Sequence[str], code: int = 0) -> tuple[float, str]:
    began = time.perf_counter()
    done = subprocess.run(
      [sys.executable, *command],
      env=self._env,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    took = time.perf_counter() - began
    if done.returncode != code:
      sys.exit(f"{' '.join(command[-8:])}: {done.returncode}\n{done.stdout}")
    return took, done.stdout


def text() -> str:
  """Documents of made words, enough for some thousand rows."""
  rng = random.Random(0)
  letters = "etaoinshrdlu"
  words = ["".join(rng.choices(letters, k=5)) for _ in range(WORDS)]
  lines = (" ".join(rng.choices(words, k=12)) for _ in range(20_000))
  return "".join(f"{x}\n" if i % 8 else f"{x}\n\n" for i, x in enumerate(lines))


def seconds_table(secs: Mapping[str, Sequence[float]]) -> Table:
  """Least and median seconds of each kind of start."""
  made = Table("seconds", "least", "median", box=None, pad_edge=False)
  for name, took in secs.items():
    median = statistics.median(took)
    made.add_row(name, f"{min(took):.2f}", f"{median:.2f}")
  return made


def spent_table(spent: Mapping[str, Sequence[Mapping]]) -> Table:
  """What jax did on the way to the first record: how often, median seconds."""
  made = Table("of it, in jax", *spent, box=None, pad_edge=False)
  for event, name in EVENTS.items():
    row = []
    for of_runs in spent.values():
      found = [run.get(event, (0, 0.0)) for run in of_runs]
      median = statistics.median(secs for _, secs in found)
      row.append(f"{median:.2f} ({found[0][0]} times)")
    made.add_row(name, *row)
  return made


if __name__ == "__main__":
  app.run(main)
