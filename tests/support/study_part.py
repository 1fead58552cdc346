"""Stand-in for a part of a study: counts steps, saves when stopped, resumes.

  python study_part.py FOLDER JOURNAL NAME STEPS FAILS

The result depends on the name and on every step, not on when it was stopped.
It ends with the exit code FAILS, if that is not 0, while FOLDER/fixed is
missing. Each event is a line of the journal.
"""

import fcntl
import hashlib
import os
import pathlib
import signal
import sys
import time

folder, journal = map(pathlib.Path, sys.argv[1:3])
name, steps, fails = sys.argv[3], int(sys.argv[4]), int(sys.argv[5])


def write(event):
  with journal.open("a") as file:
    file.write(f"{event} {name} {os.getpid()}\n")


def save(path, text):
  temporary = path.with_name(f"{path.name}.tmp")
  temporary.write_text(text)
  temporary.replace(path)


def stop(number, frame):
  save(folder / "state", f"{step} {digest}")
  write("stop")
  os._exit({signal.SIGTERM: 75, signal.SIGINT: 130}[number])


state = folder / "state"
step = 0
digest = name
for number in (signal.SIGTERM, signal.SIGINT):
  signal.signal(number, stop)
with (folder / "lock").open("a") as file:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:  # as a run, it is refused while another has the lock
    print("error: Another run is using the folder.", flush=True)
    sys.exit(2)
  if (folder / "results.json").exists():  # as a run that another one has ended
    sys.exit(0)
  step, digest = state.read_text().split() if state.exists() else (0, name)
  step = int(step)
  write("start")
  if fails and not (folder / "fixed").exists():
    print("error: it is broken", flush=True)
    if fails < 0:
      os.kill(os.getpid(), -fails)
    sys.exit(fails)
  while step < steps:
    time.sleep(0.005)
    # A signal between these would count a step twice.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    step, digest = (
      step + 1,
      hashlib.sha256(f"{digest} {step}".encode()).hexdigest(),
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    if step % 3 == 0:
      save(state, f"{step} {digest}")
  signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
  write("end")
  save(folder / "results.json", f'{{"digest": "{digest}"}}')
