"""Tries a tokenizer.json of a stranger in another process, with limits.

A file can make the library `tokenizers`, written in Rust, end its process, hang
or fill the memory. So another process loads it first, and uses it on odd texts.
"""

import hashlib
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys

import tokenizers

SECONDS = 5  # of the processor
MEGABYTES = 200
# A large file may take more: of time a second for so many bytes, and of memory
# so many bytes for each of its bytes.
BYTES_PER_SECOND = 2**22
MEMORY_PER_BYTE = 32
TIMEOUT = 100  # seconds of a clock
CODE = f"from {__name__} import use_limited; use_limited()"
ENVIRONMENT = {"RUST_BACKTRACE": "0", "TOKENIZERS_PARALLELISM": "false"}
_passed: set[str] = set()  # hashes of files


def try_tokenizer(data: bytes) -> str:
  """Returns why a tokenizer.json cannot be used; "" for one that can.

  This takes 0.1 s for most files, and nothing for one that was tried before.
  """
  key = hashlib.sha256(data).hexdigest()
  if key in _passed:
    return ""
  path = {"PYTHONPATH": os.pathsep.join(sys.path)}
  command = [sys.executable, "-P", "-c", CODE]
  env = {**os.environ, **ENVIRONMENT, **path}
  try:
    result = subprocess.run(
      command, input=data, capture_output=True, env=env, timeout=TIMEOUT
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


def use_limited() -> None:
  """Limits this process, and uses the tokenizer.json on its standard input."""
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
    own = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (own, hard))
  backend = tokenizers.Tokenizer.from_str(data.decode())
  parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
  states = [part.__getstate__().decode() for part in parts if part]
  for text in odd_texts(" ".join(states)):
    ids = backend.encode(text, add_special_tokens=False).ids
    backend.decode(ids, skip_special_tokens=False)
  ids = [*backend.get_vocab().values()]
  backend.decode(ids, skip_special_tokens=False)


def odd_texts(steps: str) -> list[str]:
  """Returns texts that may be too much for steps, such as a replacement.

  They hold many characters, and long words that repeat what the steps name: on
  them regular expressions backtrack and replacements grow.
  """
  codes = [*range(1, 0x3000), *range(0x3000, 0x110000, 199)]
  characters = " ".join(map(chr, codes)).encode("utf-8", "ignore").decode()
  parts = {*steps, *re.findall(r"\w+", steps), *"aA0 é天\u0301"}
  words = [f"{(part[:99] * 1000)[:1000]}\x01" for part in sorted(parts)]
  return [steps, characters, "\n".join(words), *words]
