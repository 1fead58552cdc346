"""Runs a command that receives SIGTERM when its parent process ends.

  python end_with_parent.py PARENT_ID PROGRAM ARGUMENT...

A parent that is killed cannot end its children itself. Linux does it; on other
systems the command goes on, and its lock keeps a second one from starting.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of linux/prctl.h; `exec` keeps the setting


def main(parent: int, command: list[str]) -> None:
  """Replaces this process by the command; ends if the parent is gone."""
  if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
  if os.getppid() == parent:  # else it ended before `prctl`
    os.execv(command[0], command)


if __name__ == "__main__":
  main(int(sys.argv[1]), sys.argv[2:])
