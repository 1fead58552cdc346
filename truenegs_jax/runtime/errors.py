"""Errors and signals that end a command, each with its own exit code.

Every other exception is a bug and keeps its traceback. All messages (errors,
warnings, progress, help of flags) have one style: PROBLEM with its value. WHY,
or what is allowed. WHAT TO TYPE. Short sentences, config keys and flags as they
are typed, strings and paths in single quotes, thousands with commas.

Imports nothing that takes time: a command first of all calls `start_command`,
without which Python raises KeyboardInterrupt inside of imports.
"""

import contextlib
import errno
import io
import logging
import os
import pathlib
import resource
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

BEGAN = time.perf_counter()  # nearly the start of this process
# Exit codes of runs that were stopped after saving a checkpoint.
SAVED_RESTART = 75  # by SIGTERM; EX_TEMPFAIL: run the same command again
SAVED_INTERRUPT = 130  # by Ctrl-C
SIGNAL_CODES = {signal.SIGTERM: SAVED_RESTART, signal.SIGINT: SAVED_INTERRUPT}
# Of a process that hangs; jax's own after a lost process.
HANGS = 134
# Numbers of errors of a file system that fails; its files may be intact.
FAILING = (
  *(errno.EIO, errno.ENOLCK, errno.ESTALE, errno.ETIMEDOUT),
  *(errno.ENOTCONN, errno.ECONNABORTED, errno.EHOSTDOWN),
)
# And those of this process, also in no case of damaged files.
UNREADABLE = (
  *(*FAILING, errno.EACCES, errno.EMFILE, errno.ENFILE, errno.EROFS),
  *(errno.ENOSPC, errno.EPIPE),
)
# Of URLs: scheme -> extra of this package, how to get credentials.
SCHEMES = {
  "gs": (
    "gcs",
    "run `gcloud auth application-default login`, or set"
    " GOOGLE_APPLICATION_CREDENTIALS to a key file",
  ),
  "s3": (
    "s3",
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
  ),
  "hf": ("hf", "run `hf auth login`, or set HF_TOKEN"),
}
MAX_MESSAGE = 6000  # characters that are printed
# How texts of files are shown that would send commands to the terminal.
_CONTROLS = {*range(32), *range(127, 160)} - {ord("\n")}
ESCAPES = {x: repr(chr(x))[1:-1] for x in _CONTROLS}
STOPPED = (
  "stopped. Nothing more was saved; all that was saved before is intact. Run"
  " the same command again."
)
STDERR = 2
# The environment of a command, unless its user sets these variables.
ENVIRONMENT = {
  # Bars and logs of libraries are hidden: messages of commands are our own.
  "DATASETS_VERBOSITY": "critical",
  "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
  "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # also those of transformers
  "HF_HUB_VERBOSITY": "critical",
  "TF_CPP_MIN_LOG_LEVEL": "3",
  # Buckets are read without TensorFlow, also where it is installed.
  "EPATH_USE_TF": "0",
  # Else gcsfs asks for the kind of each bucket, again and again without a right
  # to know it.
  "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}
# Libraries that log each failed request, which is repeated, and each failed
# save, which is also raised.
LOGGERS = ("asyncio", "fsspec", "gcsfs", "google.auth", "s3fs")
CLOSED = "Event loop is closed"  # an error in threads of a failed save
MAX_FILES = 2**20  # that a command may have open; rows are thousands of files
_temporary_folders: set[pathlib.Path] = set()


class TrueNegsError(Exception):
  """Base class: the run cannot continue, and its user can fix the cause."""

  exit_code = 1


class InputError(TrueNegsError, ValueError):
  """Unusable flag, config value, vocabulary or resource."""

  exit_code = 2


class DataError(TrueNegsError):
  """Empty, damaged or unexpected corpus or rows folder."""

  exit_code = 3


class UnavailableError(DataError):
  """Data neither on this machine nor on the hub, or a hub out of reach."""


class CheckpointError(TrueNegsError):
  """Missing or damaged checkpoint, or one of another run."""

  exit_code = 4


class DamagedStepError(CheckpointError):
  """Checkpoint that cannot be restored; another step of the run may do."""


class DiskError(TrueNegsError):
  """File that cannot be written: full disk, no permission."""

  exit_code = 5


class NonFiniteError(TrueNegsError):
  """NaN or infinite losses or gradients, in more steps than allowed."""

  exit_code = 6


class OutOfMemoryError(TrueNegsError):
  """Memory of this machine or of a device that ran out."""

  exit_code = 7


class LostError(TrueNegsError):
  """Another process of the run that is dead or does not answer."""

  exit_code = HANGS


def explain(
  error: Exception, *, memory: str = "Use a machine with more memory."
) -> TrueNegsError | None:
  """Returns the error to print for an exception; None for a bug."""
  if isinstance(error, TrueNegsError):
    return error
  if isinstance(error, OSError) and error.errno in UNREADABLE:
    file = f"'{error.filename}'" if error.filename else "The output"
    return DiskError(
      f"{file} cannot be used: {error.strerror}. All that was saved before is"
      " intact. Solve this, and run the same command again."
    )
  if not is_out_of_memory(error):
    return None
  reason = first_line(error) or "on the host"
  return OutOfMemoryError(
    f"Memory ran out ({reason}). All that was saved is intact. {memory}"
  )


def first_line(error: Exception) -> str:
  """Returns the first line of an error, at most 150 characters of it."""
  return str(error).partition("\n")[0][:150].rstrip(".")


def is_out_of_memory(error: Exception) -> bool:
  """Whether memory ran out, of Python, a device (of jax) or a new thread."""
  words = "RESOURCE_EXHAUSTED", "can't start new thread"
  return isinstance(error, MemoryError) or any(x in str(error) for x in words)


def one_of(name: str, value: str, choices: Iterable[str]) -> None:
  """Raises InputError, with all choices, unless `value` is one of them."""
  *others, last = names = tuple(choices)
  if value not in names:
    listed = f"{', '.join(others)} or {last}" if others else last
    raise InputError(f"{name}={value!r} is unknown. Choose {listed}.")


def missing_package(url: str, error: ImportError) -> InputError:
  """Returns the error of a URL whose library is not installed."""
  extra, _ = SCHEMES[url.partition("://")[0]]
  return InputError(
    f"'{url}' needs pip install '.[{extra}]' in the checkout ({error})."
  )


def printable(error: Exception | str) -> str:
  """Returns a message with control characters escaped.

  Text from a file in it then cannot send commands to the terminal. A message
  that such a text makes very long loses its middle.
  """
  text = error if isinstance(error, str) else " ".join(map(str, error.args))
  message = "".join(
    x if x.isprintable() or x == "\n" else repr(x)[1:-1] for x in text
  )
  if len(message) <= MAX_MESSAGE:
    return message
  return f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"


def start_command() -> None:
  """Prepares the process of a command; nothing else changes its process.

  Calls `exit_at_signals`, prints what the terminal does not have with escapes,
  quiets other libraries, and lets the process open as many files as it may.
  Ends it with a message for a user without a home folder, unless there is
  $TRUENEGS_CACHE.
  """
  exit_at_signals()
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="backslashreplace")
  if os.path.expanduser("~") == "~":  # libraries would fail
    folder = os.environ.get("TRUENEGS_CACHE")
    if not folder:
      print(
        f"error: User {os.getuid()} has no home folder: it has no name, and"
        " HOME is not set. Run export TRUENEGS_CACHE=FOLDER, with a folder for"
        " files that can be made again, and the same command again.",
        file=sys.stderr,
      )
      sys.exit(InputError.exit_code)
    os.environ["HOME"] = os.path.abspath(folder)
  for name, value in ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  for name in LOGGERS:
    logging.getLogger(name).setLevel(logging.CRITICAL)
  sys.unraisablehook = print_unraisable
  _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  limit = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
  with contextlib.suppress(ValueError, OSError):  # of a system with less
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def print_unraisable(info: Any) -> None:
  """Prints an error in a thread, but not CLOSED."""
  if str(info.exc_value) != CLOSED:
    sys.__unraisablehook__(info)


def exit_at_signals(end: Callable[[int], object] = os._exit) -> None:
  """Makes SIGTERM and SIGINT call `end`, which must not return, with a code."""

  def handle(number: int, _: object) -> None:
    for folder in _temporary_folders:
      shutil.rmtree(folder, ignore_errors=True)
    cursor = "\033[?25h" if os.isatty(STDERR) else ""  # bars hide it
    text = f"{cursor}\n{signal.Signals(number).name}: {STOPPED}\n"
    with contextlib.suppress(OSError):  # for example, a closed pipe
      os.write(STDERR, text.encode())
    end(SIGNAL_CODES[signal.Signals(number)])

  for number in SIGNAL_CODES:
    signal.signal(number, handle)


@contextlib.contextmanager
def temporary_folder(
  prefix: str = "", parent: pathlib.Path | None = None
) -> Iterator[pathlib.Path]:
  """Makes a folder for the body, removed also if a signal ends the process."""
  import tempfile  # imports much

  folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
  _temporary_folders.add(folder)
  try:
    yield folder
  finally:
    shutil.rmtree(folder, ignore_errors=True)
    _temporary_folders.discard(folder)


def program() -> str:
  """Returns what to type for `truenegs` in this environment, for messages."""
  path = pathlib.Path(sys.executable).with_name("truenegs")
  if shutil.which("truenegs") == str(path):
    return "truenegs"
  if not path.exists():  # such as a script that pip puts elsewhere
    return f"{shlex.quote(sys.executable)} -m truenegs_jax"
  with contextlib.suppress(OSError, ValueError):  # of a folder elsewhere
    path = path.relative_to(pathlib.Path.cwd())
  return shlex.quote(str(path))


def rerun_command(flag: str = "") -> str:
  """Returns the command line that runs this process again, for messages.

  A `flag`, "--NAME=VALUE", replaces an earlier one of this name.
  """
  verb = pathlib.Path(sys.argv[0]).stem
  words = sys.argv[1:]
  if flag:
    name = flag.partition("=")[0]
    words = [x for x in words if not x.startswith(f"{name}=")]
    words.append(flag)
  return f"{program()} {shlex.join([verb, *words])}"
