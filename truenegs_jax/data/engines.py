"""Runs work in the processes of this machine, or on any runner of Apache Beam.

Flink and Dataflow run items again that were lost with a worker. Runners of one
machine do not, and wait for it forever; there, `map_in_order` does the work.
"""

import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import multiprocessing.resource_tracker
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from truenegs_jax.runtime.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")
Function = Callable[[Item], Result]

# Fewer items are faster without processes, which take time to start.
MIN_ITEMS = 4
ITEMS_PER_WORKER = 2  # in memory at a time
CGROUP_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")


class Step(NamedTuple):
  """A function of items that are independent of each other, all picklable.

  Steps exchange nothing but files in the store of unfinished rows, so an item
  can be repeated, even at the same time, on any machine with store and text.
  """

  name: str
  list_items: Callable[[], Sequence[Any]]  # when the step before it is done
  function: Callable[[Any], object]


Engine = Callable[[Sequence[Step]], object]  # runs one step after another


def map_in_order(
  make: Callable[[], Function[Item, Result]],
  items: Iterable[Item],
  *,
  num_workers: int,
) -> Iterator[Result]:
  """Yields the result of every item, in order.

  Each worker makes the function once, and this process makes it first, so that
  an error is raised only once.
  """
  items = iter(items)
  first = list(itertools.islice(items, MIN_ITEMS))
  items = itertools.chain(first, items)
  function = make()
  if num_workers == 1 or len(first) < MIN_ITEMS:
    yield from map(function, items)
  else:
    yield from _map_in_processes(make, items, num_workers)


def check_main_guard() -> None:
  """Raises InputError in a worker that runs the script of its parent again."""
  if multiprocessing.current_process().name != "MainProcess":
    raise InputError(
      "Rows cannot be prepared in a child process with several workers. If this"
      " is a script without `if __name__ == '__main__':` around the call, add"
      " it. Otherwise set num_workers=1."
    )


def available_cores() -> int:
  """Counts the cores that `taskset`, Slurm or a container allow."""
  cores = os.cpu_count() or 1
  with contextlib.suppress(AttributeError):  # exists on Linux only
    cores = len(os.sched_getaffinity(0))
  with contextlib.suppress(OSError, ValueError):  # there may be no quota
    quota, period = CGROUP_QUOTA.read_text().split()
    cores = min(cores, max(1, int(quota) // int(period)))
  return cores


def _map_in_processes(
  make: Callable[[], Function[Item, Result]],
  items: Iterator[Item],
  num_workers: int,
) -> Iterator[Result]:
  with defer_signals() as is_signaled:
    pool = concurrent.futures.ProcessPoolExecutor(
      num_workers,
      # Forking breaks the threads of the caller, such as those of jax.
      mp_context=multiprocessing.get_context("spawn"),
      initializer=_start_worker,
      initargs=(make,),
    )
    pending = collections.deque[concurrent.futures.Future[Result]]()
    try:
      for item in items:
        pending.append(pool.submit(_call_function, item))
        if len(pending) >= ITEMS_PER_WORKER * num_workers:
          yield pending.popleft().result()
        if is_signaled():
          break
      while pending and not is_signaled():
        yield pending.popleft().result()
      is_complete = not is_signaled()
    except concurrent.futures.process.BrokenProcessPool as error:
      raise InputError(
        f"data.workers={num_workers}: a worker process ended early. Its error"
        " is printed above. If there is none, it was killed, most often because"
        " of too little memory (a worker needs up to 0.5 GB). Set a smaller"
        " --config.data.workers and run the same command again; it continues."
      ) from error
    finally:
      pool.shutdown(wait=True, cancel_futures=True)
  if not is_complete:  # and the handler of the signal did not end this process
    raise KeyboardInterrupt


@contextlib.contextmanager
def defer_signals() -> Iterator[Callable[[], bool]]:
  """Defers SIGINT and SIGTERM; yields whether one was received.

  Handlers end this process at once, and a pool that was not shut down would
  complain. Workers inherit the blocked signals. A signal may reach a thread
  that does not block it, so the handlers are replaced as well.
  """
  signals = {signal.SIGINT, signal.SIGTERM}
  # Starting it later would unblock the signals.
  multiprocessing.resource_tracker.ensure_running()
  old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
  received: list[int] = []
  handlers: dict[int, Callable] = {}
  if threading.current_thread() is threading.main_thread():
    handlers = {n: h for n in signals if callable(h := signal.getsignal(n))}
  for number in handlers:
    signal.signal(number, lambda number, _: received.append(number))
  try:
    yield lambda: bool(received or signals & signal.sigpending())
  finally:
    for number, handler in handlers.items():
      signal.signal(number, handler)
    for number in received:
      signal.raise_signal(number)  # handled when the mask is restored
    signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)


_function: Function  # of this worker process


def _start_worker(make: Callable[[], Function]) -> None:
  global _function
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
  threading.Thread(target=_exit_with_parent, daemon=True).start()
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
  _function = make()


def _call_function(item: Any) -> Any:
  return _function(item)


def _exit_with_parent() -> None:
  # The queues stay open when the parent is killed: workers hold both ends.
  if parent := multiprocessing.parent_process():
    parent.join()
    os._exit(1)


def run_on_beam(
  steps: Sequence[Step], *, runner: str, options: Sequence[str]
) -> None:
  """Runs steps one after the other on a runner of Beam, each in parallel."""
  check_main_guard()
  try:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.runner import create_runner
  except ImportError as error:
    message = f"--runner={runner} needs pip install '.[beam]' in the checkout."
    raise InputError(message) from error
  beam_options = PipelineOptions(list(options), runner=runner)
  with beam.Pipeline(create_runner(runner), beam_options) as pipeline:
    start = pipeline | "Start" >> beam.Create([None])
    barrier: list = []
    for step in steps:
      results = (
        start
        | f"List {step.name}"
        >> beam.FlatMap(_list_items, step.list_items, *barrier)
        | f"Spread {step.name}" >> beam.Reshuffle()
        | f"Run {step.name}" >> beam.FlatMap(_call_on_beam, step.function)
      )
      barrier = [beam.pvalue.AsIter(results)]  # a worker waits for all of it


# Beam checks these types: a barrier is not yet a list when it looks.
def _list_items(_: None, list_items: Callable, *barrier: Any) -> Sequence:
  del barrier
  return list_items()


def _call_on_beam(item: Any, function: Callable[[Any], object]) -> Sequence:
  function(item)
  return ()
