"""Ends a command at a signal, from its first line on, and says so.

Without this, Python raises KeyboardInterrupt inside an import, where libraries
drop or misread it, and SIGTERM or the normal exit aborts in threads of XLA.
Imports nothing that takes time, because a command calls it first of all.
"""

import contextlib
import os
import pathlib
import shutil
import signal
from collections.abc import Callable, Iterator

from truenegs_jax.runtime.errors import SAVED_INTERRUPT, SAVED_RESTART

EXIT_CODES = {signal.SIGTERM: SAVED_RESTART, signal.SIGINT: SAVED_INTERRUPT}
STOPPED = (
  "stopped. Nothing more was saved; all that was saved before is intact. Run"
  " the same command again."
)
STDERR = 2
SHOW_CURSOR = "\033[?25h"  # which progress bars hide
_temporary_folders: set[pathlib.Path] = set()


def exit_at_signals(end: Callable[[int], object] = os._exit) -> None:
  """Makes SIGTERM end the process at once with 75, and SIGINT with 130.

  For all times at which nothing is lost; training has its own handlers. `end`
  gets the exit code and must not return.
  """

  def handle(number: int, frame: object) -> None:
    del frame
    for folder in _temporary_folders:
      shutil.rmtree(folder, ignore_errors=True)
    cursor = SHOW_CURSOR if os.isatty(STDERR) else ""
    text = f"{cursor}\n{signal.Signals(number).name}: {STOPPED}\n"
    with contextlib.suppress(OSError):  # for example, a closed pipe
      os.write(STDERR, text.encode())
    end(EXIT_CODES[signal.Signals(number)])

  for number in EXIT_CODES:
    signal.signal(number, handle)


@contextlib.contextmanager
def temporary_folder(folder: pathlib.Path) -> Iterator[None]:
  """Removes a folder after the body, also if a signal ends the process."""
  _temporary_folders.add(folder)
  try:
    yield
  finally:
    shutil.rmtree(folder, ignore_errors=True)
    _temporary_folders.discard(folder)
