"""Tries what a stranger's file may do to a library, in a process with limits.

A library in C++ or Rust can end its process on such a file, hang, or fill the
memory, and no `except` would help. The other process imports only the module of
the function that it calls.
"""

import hashlib
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable

SECONDS = 5  # of the processor
MEGABYTES = 200
# A large file may take more: of time a second for so many bytes, and of memory
# so many bytes for each of its bytes.
BYTES_PER_SECOND = 2**22
MEMORY_PER_BYTE = 32
TIMEOUT = 100  # seconds, also on a machine with more to do
ENVIRONMENT = {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}
_passed: set[str] = set()  # hashes of functions and data


def try_call(function: Callable[[bytes], object], data: bytes) -> str:
  """Calls `function` with `data` in another process; returns why it failed.

  The function must be found in a module by its name; its result is dropped.
  Returns "" if it returned within the limits, now or in an earlier call.
  """
  key = hashlib.sha256(f"{function}".encode() + data).hexdigest()
  if key in _passed:
    return ""
  module = function.__module__
  name = function.__name__
  code = (
    f"from {__name__} import limit; import {module} as module;"
    f"module.{name}(limit())"
  )
  path = {"PYTHONPATH": os.pathsep.join(sys.path)}
  try:
    result = subprocess.run(
      [sys.executable, "-P", "-c", code],
      input=data,
      capture_output=True,
      env={**os.environ, **ENVIRONMENT, **path},
      timeout=TIMEOUT,
    )
  except subprocess.TimeoutExpired:
    return f"more than {TIMEOUT} s"
  message = result.stderr.decode("utf-8", "replace").strip()
  if result.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
    return f"more than {SECONDS} s of processor time"
  if "memory allocation of" in message or "MemoryError" in message:
    return f"more than {MEGABYTES} MB of memory"
  if not result.returncode:
    _passed.add(key)
    return ""
  _, _, reason = message.rpartition("\n")[2].partition(": ")
  return reason or f"its process ended with {result.returncode}"


def limit() -> bytes:
  """Limits this process for the data on its standard input; returns that."""
  data = sys.stdin.buffer.read()
  num_bytes = MEGABYTES * 2**20 + MEMORY_PER_BYTE * len(data)
  if (status := pathlib.Path("/proc/self/statm")).exists():  # of Linux
    num_bytes += int(status.read_text().split()[5]) * resource.getpagesize()
  limits = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_CPU: SECONDS + len(data) // BYTES_PER_SECOND,
    resource.RLIMIT_DATA: num_bytes,
  }
  for kind, value in limits.items():
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
      value = min(value, hard)
    resource.setrlimit(kind, (value, hard))
  return data


def odd_texts(steps: str) -> list[str]:
  """Returns texts that may be too much for steps, such as a replacement.

  They hold many characters, and long words that repeat what the steps name, on
  which regular expressions backtrack and replacements grow.
  """
  codes = [*range(1, 0x3000), *range(0x3000, 0x110000, 199)]
  characters = " ".join(map(chr, codes)).encode("utf-8", "ignore").decode()
  parts = {*steps, *re.findall(r"\w+", steps), *"aA0 é天\u0301"}
  words = [f"{(part[:99] * 1000)[:1000]}\x01" for part in sorted(parts)]
  return [steps, characters, "\n".join(words), *words]
