"""Measures the time from a command to its first training step.

  python benchmarks/startup.py [--runs=5] [--config=electra_demo:baseline]
      [-- --config.model.scan=True ...]

Runs a config on generated text, each time in a new process, until the first
training record is on disk: "cold" with an empty compilation cache, "warm" with
that of the run before, and "resumed" from a checkpoint. The rows are prepared
beforehand. Also times --help, a wrong flag and a dry run.
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

_CONFIG = flags.DEFINE_string("config", "electra_demo:baseline", "To start.")
_RUNS = flags.DEFINE_integer("runs", 5, "Starts of each kind.", 1)

MAIN = ["-m", "truenegs_jax.main"]
CAPTURE_OUTPUT = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
WORDS = 3_000
# Runs `python -m truenegs_jax.main` up to the first record. Then prints JAX's
# compilation events, name -> [count, seconds].
RUN_TO_FIRST_RECORD = """
import collections, json, os, pathlib, runpy, sys, threading, time
path = pathlib.Path(sys.argv.pop(1), "metrics.jsonl")
size = path.stat().st_size if path.exists() else 0
events = collections.defaultdict(lambda: [0, 0.0])
def add_event(name, secs, **_):
  events[name][0] += 1
  events[name][1] += secs
def exit_after_record():
  while not path.exists() or path.stat().st_size <= size:
    time.sleep(0.002)
  print("events", json.dumps(events), flush=True)
  os._exit(0)
import jax
jax.monitoring.register_event_duration_secs_listener(add_event)
threading.Thread(target=exit_after_record, daemon=True).start()
runpy.run_module("truenegs_jax.main", run_name="__main__", alter_sys=True)
"""
EVENTS = {
  "/jax/core/compile/jaxpr_trace_duration": "tracing",
  "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
  "/jax/core/compile/backend_compile_duration": "compiling or cache",
  "/jax/compilation_cache/cache_retrieval_time_sec": "  reading the cache",
}

Events = Mapping[str, tuple[int, float]]  # of one start: name -> count, seconds


def main(argv: Sequence[str]) -> None:
  """Prints tables of times, of JAX's events and of imports."""
  with tempfile.TemporaryDirectory() as folder:
    starter = Starter(pathlib.Path(folder), argv[1:])
    command = [*MAIN, *starter.flags]
    secs = {
      "--help": starter.time_command([*MAIN, "--help"], 1),
      "a wrong flag": starter.time_command([*command, "--config.stepz=1"], 2),
      "a dry run": starter.time_command([*command, "--config.dry_run=True"]),
    }
    events = {}
    starter.save_run()
    for kind in ("cold", "warm", "resumed"):
      secs[kind], events[kind] = starter.time_first_steps(kind)
    imports = starter.profile_imports()
  console = Console(highlight=False, markup=False)
  console.print(seconds_table(secs))
  console.print(events_table(events))
  console.print(f"Imports, seconds by package: {imports}", soft_wrap=True)


class Starter:
  """Starts processes of one config, with all of their files in one folder."""

  def __init__(self, folder: pathlib.Path, extra_flags: Sequence[str]):
    self._folder = folder
    (folder / "text.txt").write_text(generate_text())
    self.flags = [
      f"--config={_CONFIG.value}",
      f"--config.data.sources={folder / 'text.txt'}",
      f"--config.data.rows={folder / 'rows'}",
      "--config.log.every_steps=1",
      *extra_flags,
    ]
    self._env = os.environ | {"TRUENEGS_CACHE": str(folder / "cache")}

  def time_command(self, args: list[str], exit_code: int = 0) -> list[float]:
    """Returns the seconds of each run of Python."""
    return [self._run(args, exit_code)[0] for _ in range(_RUNS.value)]

  def save_run(self) -> None:
    """Prepares the rows, and a run that is stopped after some steps."""
    workdir = self._folder / "saved"
    command = [sys.executable, *MAIN, *self.flags, f"--workdir={workdir}"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=self._env, stdout=quiet)
    path = workdir / "metrics.jsonl"
    while process.poll() is None and not (path.exists() and path.read_text()):
      time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    if (code := process.wait()) != errors.SAVED_RESTART:
      sys.exit(f"error: {' '.join(command)} failed with exit code {code}.")

  def time_first_steps(self, kind: str) -> tuple[list[float], list[Events]]:
    """Returns seconds to the first record, and JAX's events, of each start."""
    secs, events = [], []
    workdir = self._folder / "run"
    for _ in range(_RUNS.value):
      if kind == "cold":
        shutil.rmtree(self._folder / "cache" / "xla", ignore_errors=True)
      shutil.rmtree(workdir, ignore_errors=True)
      if kind == "resumed":
        shutil.copytree(self._folder / "saved", workdir)
      code = ["-c", RUN_TO_FIRST_RECORD, str(workdir)]
      seconds, output = self._run([*code, *self.flags, f"--workdir={workdir}"])
      secs.append(seconds)
      (line,) = re.findall("^events (.*)$", output, re.MULTILINE)
      events.append(json.loads(line))
    return secs, events

  def profile_imports(self) -> str:
    """Returns the packages whose own modules take longest to import."""
    code = "import truenegs_jax.corrections.run, truenegs_jax.finetune.run"
    _, output = self._run(["-X", "importtime", "-c", code])
    micros: Counter[str] = Counter()
    for own, name in re.findall(r"(\d+) \| +\d+ \| +(\w+)", output):
      micros[name] += int(own)
    listed = [f"{name} {x / 1e6:.2f}" for name, x in micros.most_common(10)]
    return f"all {micros.total() / 1e6:.2f}; {', '.join(listed)}"

  def _run(self, args: Sequence[str], exit_code: int = 0) -> tuple[float, str]:
    """Runs Python; returns seconds and output. Exits on another exit code."""
    start = time.perf_counter()
    process = subprocess.run(
      [sys.executable, *args], env=self._env, text=True, **CAPTURE_OUTPUT
    )
    secs = time.perf_counter() - start
    if process.returncode != exit_code:
      sys.exit(
        f"error: {' '.join(args[-8:])} returned exit code"
        f" {process.returncode}, not {exit_code}.\n{process.stdout}"
      )
    return secs, process.stdout


def generate_text() -> str:
  """Generates documents of random words, enough for some thousand rows."""
  rng = random.Random(0)
  letters = "etaoinshrdlu"
  words = ["".join(rng.choices(letters, k=5)) for _ in range(WORDS)]
  lines = (" ".join(rng.choices(words, k=12)) for _ in range(20_000))
  return "".join(f"{x}\n" if i % 8 else f"{x}\n\n" for i, x in enumerate(lines))


def seconds_table(secs_by_kind: Mapping[str, Sequence[float]]) -> Table:
  """Builds a table of the least and median seconds of each kind of start."""
  table = Table("seconds", "least", "median", box=None, pad_edge=False)
  for kind, secs in secs_by_kind.items():
    table.add_row(kind, f"{min(secs):.2f}", f"{statistics.median(secs):.2f}")
  return table


def events_table(events_by_kind: Mapping[str, Sequence[Events]]) -> Table:
  """Builds a table of JAX's events: median seconds, and count."""
  table = Table("of these, in JAX", *events_by_kind, box=None, pad_edge=False)
  for event, name in EVENTS.items():
    cells = []
    for starts in events_by_kind.values():
      values = [events.get(event, (0, 0.0)) for events in starts]
      median = statistics.median(secs for _, secs in values)
      cells.append(f"{median:.2f} ({values[0][0]} times)")
    table.add_row(name, *cells)
  return table


if __name__ == "__main__":
  app.run(main)
