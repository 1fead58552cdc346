"""Work on many items in several processes, with results in order."""

import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import pathlib
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from truenegs_jax.runtime.errors import InputError

Work = Callable[[Any], int]

# Fewer items are done before processes have started.
WORTH_WORKERS = 4
WAITING = 2  # items a worker, in memory at a time
CGROUP_QUOTA = pathlib.Path("/sys/fs/cgroup/cpu.max")


def map_in_order(
  make: Callable[[], Work], items: Iterable[Any], *, num_workers: int
) -> Iterator[int]:
  """Yields the result of every item, in order.

  Args:
    make: returns the function that does an item; picklable, for each worker
      calls it once. It is called here in any case, so that what is wrong with
      it is raised here and not by every worker.

  Raises:
    InputError: a worker was killed.
  """
  items = iter(items)
  first = list(itertools.islice(items, WORTH_WORKERS))
  work = make()
  if num_workers == 1 or len(first) < WORTH_WORKERS:
    yield from map(work, itertools.chain(first, items))
    return
  yield from _in_processes(make, itertools.chain(first, items), num_workers)


def check_main_guard() -> None:
  """Raises InputError in a worker that runs its parent's script once more."""
  if multiprocessing.current_process().name != "MainProcess":
    raise InputError(
      "Rows are prepared from within a process that another one started. If"
      ' that was a script without `if __name__ == "__main__":` around the call,'
      " add it; else give num_workers=1."
    )


def available_cores() -> int:
  """Cores that this process may use: those of `taskset`, Slurm, a container."""
  cores = os.cpu_count() or 1
  with contextlib.suppress(AttributeError):  # Linux has it
    cores = len(os.sched_getaffinity(0))
  with contextlib.suppress(OSError, ValueError):  # the quota of a container
    quota, period = CGROUP_QUOTA.read_text().split()
    cores = min(cores, max(1, int(quota) // int(period)))
  return cores


def _in_processes(
  make: Callable[[], Work], items: Iterator[Any], num_workers: int
) -> Iterator[int]:
  pool = concurrent.futures.ProcessPoolExecutor(
    num_workers,
    # Not fork: whoever calls may have threads (jax has), which it breaks.
    mp_context=multiprocessing.get_context("spawn"),
    initializer=_start_worker,
    initargs=(make,),
  )
  running: collections.deque[concurrent.futures.Future[int]]
  running = collections.deque()
  try:
    for item in items:
      with _signals_held():  # a submission may start a worker
        running.append(pool.submit(_do, item))
      if len(running) >= WAITING * num_workers:
        yield running.popleft().result()
    while running:
      yield running.popleft().result()
  except concurrent.futures.process.BrokenProcessPool as error:
    raise InputError(
      f"data.workers={num_workers}: a worker process ended before its time."
      " What it said stands above; if nothing does, it was killed, most often"
      " for want of memory (each takes up to half a gigabyte): set fewer and"
      " give the same command again; it goes on where this one stopped."
    ) from error
  finally:
    pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
  """Keeps signals for later: a pool that is half started cannot be ended.

  Workers inherit it: Ctrl-C reaches them, too, and is for us to handle. What is
  blocked in this thread another one may take, and Python then has the main
  thread handle it all the same: so the handlers wait, too.
  """
  held = {signal.SIGINT, signal.SIGTERM}
  before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
  came: list[int] = []
  handlers: dict[int, Any] = {}
  if threading.current_thread() is threading.main_thread():
    handlers = {n: h for n in held if callable(h := signal.getsignal(n))}
  for number in handlers:
    signal.signal(number, lambda number, _: came.append(number))
  try:
    yield
  finally:
    for number, handler in handlers.items():
      signal.signal(number, handler)
    for number in came:
      signal.raise_signal(number)  # is handled once it is let through
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


_work: Work  # of a worker process, set once as it starts


def _start_worker(make: Callable[[], Work]) -> None:
  global _work
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
  threading.Thread(target=_die_with_parent, daemon=True).start()
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a worker
  _work = make()


def _do(item: Any) -> int:
  return _work(item)


def _die_with_parent() -> None:
  # A killed parent closes no queue that the workers hold open themselves.
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os._exit(1)
