"""Runs steps of independent items on any runner of Apache Beam.

Beam runs in a child process with a process group of its own, so this process
can end it at any time, together with its workers: FnApiRunner waits forever for
a worker that was killed. Then the steps run again, and have to skip items
that are done. Flink and Dataflow run lost items again by themselves.
"""

import base64
import contextlib
import importlib.util
import io
import logging
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from truenegs_jax.data.rows import worker_pool
from truenegs_jax.data.rows.steps import Step
from truenegs_jax.runtime import errors, signals
from truenegs_jax.runtime.errors import InputError, TrueNegsError

# Their workers are processes of this machine, which nobody else starts again.
LOCAL_RUNNERS = "fnapirunner", "directrunner"
MAX_ATTEMPTS = 4  # as on Dataflow
POLL_SECS = 0.1
EXIT_SECS = 10
LOG = "log"  # of a local runner
MAX_LOG_LINES = 20
# The class and the message of an error, in the text of Beam's error.
ERROR_MARK = re.compile(r"\[truenegs:(\w+):([\w+/=]*)\]")


def run_steps(
  steps: Sequence[Step], *, runner: str, options: Sequence[str]
) -> None:
  """Runs steps one after the other, the items of each in parallel.

  Args:
    runner: a name that Beam knows, such as FnApiRunner or DataflowRunner.
    options: pipeline options of Beam, such as "--region=us-central1".

  Raises:
    TrueNegsError: an item raised it, with the same class and message.
    InputError: Beam is missing, refuses its options or lost its workers.
    RuntimeError: something else failed; the message has the traceback.
  """
  worker_pool.check_main_guard()
  if importlib.util.find_spec("apache_beam") is None:
    raise InputError(
      f"--runner={runner}: apache_beam is missing. Install truenegs_jax[beam]."
    )
  is_local = runner.lower() in LOCAL_RUNNERS
  attempts = MAX_ATTEMPTS if is_local else 1
  folder = pathlib.Path(tempfile.mkdtemp(prefix="truenegs-beam-"))
  log = folder / LOG if is_local else None
  arguments = list(steps), runner, list(options), folder, log
  with signals.temporary_folder(folder):
    for _ in range(attempts):
      with contextlib.suppress(EOFError):
        outcome = _run_in_child(arguments)
        if isinstance(outcome, TrueNegsError):
          raise outcome
        if outcome is not None:
          raise RuntimeError(f"Beam failed.\n{outcome}")
        return
    if log and log.exists():
      lines = log.read_text(errors="replace").splitlines()
      print(*lines[-MAX_LOG_LINES:], sep="\n", file=sys.stderr)
  raise InputError(
    f"--runner={runner}: a worker process ended early, in {attempts} of"
    f" {attempts} attempts. If no error is printed above, it was killed,"
    " most often because of too little memory. Use fewer workers and run the"
    " same command again; it continues."
  )


def _run_in_child(arguments: tuple) -> TrueNegsError | str | None:
  """Returns the result of `_run_pipeline`; EOFError if it was killed."""
  context = multiprocessing.get_context("spawn")
  with worker_pool.defer_signals() as is_signaled:
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_run_pipeline, args=(sender, *arguments))
    child.start()
    assert child.pid
    sender.close()
    try:
      while not receiver.poll(POLL_SECS):
        if is_signaled():
          return None  # the signal is handled when this block ends
      result = receiver.recv()
      child.join(EXIT_SECS)
      return result
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
      child.kill()  # if it has no group yet
      child.join()


def _end_with_parent() -> None:
  if parent := multiprocessing.parent_process():
    parent.join()
    os.killpg(0, signal.SIGKILL)


def _run_pipeline(
  sender: Connection,
  steps: list[Step],
  runner: str,
  options: list[str],
  folder: pathlib.Path,
  log: pathlib.Path | None,
) -> None:
  """Sends an error, the text of another exception, or None."""
  os.setsid()
  threading.Thread(target=_end_with_parent, daemon=True).start()
  tempfile.tempdir = str(folder)  # Beam does not remove its temporary files
  if log:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
  # Beam would write its log to the standard error of `_refuse_options`.
  logging.basicConfig()
  logging.getLogger("apache_beam.runners").setLevel(logging.INFO)
  # Workers import the same modules, also without an installed package.
  os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
  threading.excepthook = _end_without_worker
  outcome: TrueNegsError | str | None = None
  try:
    _submit(steps, runner, options)
  except InputError as error:
    outcome = error
  except Exception:
    outcome = traceback.format_exc()
    if match := ERROR_MARK.search(outcome):
      kind = getattr(errors, match[1], TrueNegsError)
      outcome = kind(base64.b64decode(match[2]).decode())
  sender.send(outcome)


def _end_without_worker(args: threading.ExceptHookArgs) -> None:
  """Exits when Beam reports a dead worker."""
  threading.__excepthook__(args)
  if args.thread and args.thread.name == "run_worker":
    os._exit(1)


def _submit(steps: list[Step], runner: str, options: list[str]) -> None:
  import apache_beam as beam

  with _refuse_options(runner):
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.portable_runner import PortableRunner
    from apache_beam.runners.runner import create_runner

    beam_runner = create_runner(runner)
    beam_options = PipelineOptions(options, runner=runner)
    pipeline = beam.Pipeline(beam_runner, beam_options)
    # Beam would discard an unknown option. A portable runner asks its job
    # server for more options.
    if not isinstance(beam_runner, PortableRunner):
      known = beam_options.get_all_options()
      given = beam_options.get_all_options(retain_unknown_options=True)
      if unknown := set(given).difference(known):
        raise ValueError(f"--{min(unknown)} is unknown to Beam.")
  with pipeline:
    start = pipeline | "Start" >> beam.Create([None])
    barrier: list = []
    for step in steps:
      results = (
        start
        | f"List {step.name}"
        >> beam.FlatMap(_list_items, step.list_items, *barrier)
        | f"Spread {step.name}" >> beam.Reshuffle()
        | f"Run {step.name}" >> beam.FlatMap(_call_function, step.function)
      )
      barrier = [beam.pvalue.AsIter(results)]  # a worker waits for all of it


@contextlib.contextmanager
def _refuse_options(runner: str) -> Iterator[None]:
  """Turns errors of Beam's runners and options into InputError."""
  output = io.StringIO()
  try:
    with contextlib.redirect_stderr(output):
      yield
  except (AttributeError, ImportError, ValueError) as error:
    reason = str(error)
  except SystemExit:  # of argparse
    reason = output.getvalue().rpartition("error: ")[2]
  else:
    return
  reason = " ".join(reason.split()).rstrip(".")
  raise InputError(
    f"--runner={runner}: {reason}. Set Beam's options like"
    " --beam=--region=us-central1; its documentation lists them."
  )


# Beam checks these types: a barrier is not yet a list when it looks.
def _list_items(_: None, list_items: Callable, *barrier: Any) -> Sequence:
  del barrier
  with _mark_errors():
    return list_items()


def _call_function(item: Any, function: Callable[[Any], object]) -> Sequence:
  with _mark_errors():
    function(item)
  return ()


@contextlib.contextmanager
def _mark_errors() -> Iterator[None]:
  """Raises errors that keep class and message as a part of any text."""
  try:
    yield
  except Exception as e:
    if not (error := errors.explain(e)):
      raise
    message = base64.b64encode(str(error).encode()).decode()
    mark = f"[truenegs:{type(error).__name__}:{message}]"
    raise RuntimeError(f"{error} {mark}") from e
