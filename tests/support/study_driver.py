"""Runs studies in forked processes, for tests that kill them.

Reads commands from standard input and answers each with a line:

  start ROOT PARTS.json   forks a driver; its process id
  wait ID                 its exit code, negative for a signal
"""

import json
import os
import pathlib
import sys

from rich.console import Console

from truenegs_jax.runtime import errors
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study.parts import Part


def run(root, parts):
  errors.exit_at_signals()
  parts = [Part(**x) for x in json.loads(pathlib.Path(parts).read_text())]
  log = pathlib.Path(root, f"driver-{os.getpid()}.txt").open("w")
  os.dup2(log.fileno(), 2)
  console = Console(file=log, width=200, markup=False)
  return parts_lib.run_parts(parts, pathlib.Path(root), console)


for line in sys.stdin:
  command, *words = line.split()
  if command == "wait":
    _, status = os.waitpid(int(words[0]), 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
  elif child := os.fork():
    print(child, flush=True)
  else:
    code = 1
    try:
      code = run(*words)
    finally:
      os._exit(code)
