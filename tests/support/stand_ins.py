"""Stands in for a tool that a launch script calls; see test_launch.py.

  stand_ins.py TOOL ARGUMENT...

Writes down each call in $STAND_INS/$HOST/TOOL.calls. The cloud's state is the
text of $STAND_INS/state.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(os.environ["STAND_INS"])
HOST = ROOT / os.environ["HOST"]
STATE = ROOT / "state"
SAVING_SECS = 0.1
WAITING_SECS = 30  # so that a test that fails leaves nothing behind


def main(tool: str, argv: list[str]) -> int:
  """Returns the exit code of a call of a tool."""
  call = {"argv": argv, "env": dict(os.environ), "group": os.getpgrp()}
  with (HOST / f"{tool}.calls").open("a") as f:
    f.write(json.dumps(call) + "\n")
  return globals()[tool](argv)


def python(argv: list[str]) -> int:
  """Does what the next line of the plan says."""
  del argv
  steps = (HOST / "plan").read_text().split()
  starts = len((HOST / "python.calls").read_text().splitlines())
  step = steps[starts - 1]
  if step != "wait":
    code, _, state = step.partition(":")
    if state:
      STATE.write_text(state)
    return int(code)
  return wait_and_save()


def wait_and_save() -> int:
  """Waits for a signal and saves, writing down all that comes meanwhile."""

  def note(number, frame):
    del frame
    with (HOST / "signals").open("a") as f:
      f.write(signal.Signals(number).name + "\n")
    received.append(number)

  received: list[int] = []
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, note)
  (HOST / "waiting").touch()
  given_up = time.monotonic() + WAITING_SECS
  while not received and time.monotonic() < given_up:
    time.sleep(0.01)
  saved = time.monotonic() + SAVING_SECS
  while time.monotonic() < saved:  # a second signal cuts a sleep short
    time.sleep(0.01)
  with (HOST / "signals").open("a") as f:
    f.write("saved\n")
  return {signal.SIGINT: 130, signal.SIGTERM: 75}[received[0]]


def python3(argv: list[str]) -> int:
  """The Python of a TPU host: its pip does nothing, its uv makes .venv."""
  if argv[1:3] == ["uv", "venv"]:
    folder = pathlib.Path(".venv/bin")
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "bin" / "python", folder)
  return 0


def srun(argv: list[str]) -> int:
  """Becomes the one process that it starts."""
  command = [a for i, a in enumerate(argv) if a[:2] != "--" or i > 1]
  os.execvp(command[0], command)


def scontrol(argv: list[str]) -> int:
  """Shows a job."""
  if argv[0] == "show":
    print(f"JobId={argv[2]} {STATE.read_text()}")
  return 0


def gcloud(argv: list[str]) -> int:
  """A TPU of $HOSTS; a host's disk is the folder `home`."""
  verb = argv[3]
  option = {a.split("=", 1)[0]: a.split("=", 1)[-1] for a in argv[4:]}
  hosts = [ROOT / name for name in os.environ["HOSTS"].split(",")]
  if os.environ.get("FAIL") == verb:
    return 1
  if verb == "describe":
    state = STATE.read_text()
    if state == "WAITING_FOR_RESOURCES":
      STATE.write_text("ACTIVE")
    print(state)
    return 0 if state else 1
  if verb == "create":
    queued = argv[2] == "queued-resources"
    STATE.write_text("WAITING_FOR_RESOURCES" if queued else "READY")
    for host in hosts:
      (host / "home").mkdir(exist_ok=True)
  elif verb == "delete":
    STATE.write_text("")
    for host in hosts:
      shutil.rmtree(host / "home")
  elif verb == "scp":
    for host in hosts:
      (host / "home").mkdir(exist_ok=True)
      shutil.copy(argv[4], host / "home" / argv[5].partition(":")[2])
  elif verb == "ssh":
    return ssh(hosts, option["--command"])
  return 0


def ssh(hosts: list[pathlib.Path], command: str) -> int:
  """Runs a command on all hosts at once; the first code that is not 0."""
  # gcloud hands its words to ssh, which joins them again.
  words = command.split(" ")
  processes = [
    subprocess.Popen(
      ["bash", "-c", " ".join(words)],
      cwd=host / "home",
      env=os.environ | {"HOST": host.name, "HOME": str(host / "home")},
      start_new_session=True,
    )
    for host in hosts
  ]
  codes = [process.wait() for process in processes]
  return next((code for code in codes if code), 0)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1], sys.argv[2:]))
