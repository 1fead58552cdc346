"""Stands in for a tool that a launch script calls; see test_launch.py.

  stand_ins.py TOOL ARGUMENT...

Appends each call to $STAND_INS/$HOST/TOOL.calls. $STAND_INS/state contains the
state of the cloud, and $STAND_INS/buckets the buckets that exist.
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
STEP = ROOT / "step"  # the process of srun's command
SAVING_SECS = 0.1
WAITING_SECS = 30  # a failing test leaves no process behind for longer


def main(tool: str, argv: list[str]) -> int:
  """Records the call and returns the exit code of the tool."""
  if argv[-1] == "wordnet":
    return 0  # WordNet is there
  call = {"argv": argv, "env": dict(os.environ), "group": os.getpgrp()}
  with (HOST / f"{tool}.calls").open("a") as f:
    f.write(json.dumps(call) + "\n")
  return globals()[tool](argv)


def python(argv: list[str]) -> int:
  """Follows the plan's step of this start; prints versions for `-c`."""
  if argv[0] == "-c":
    print("3.12 2.77.0")
  steps = (HOST / "plan").read_text().split()
  starts = (HOST / "python.calls").read_text().count("\n")
  step = steps[starts - 1]
  if step != "wait":
    code, _, state = step.partition(":")
    if state:
      STATE.write_text(state)
    return int(code)
  return wait_and_save()


def wait_and_save() -> int:
  """Waits for a signal and saves; records all signals that arrive."""

  def record(number, frame):
    del frame
    with (HOST / "signals").open("a") as f:
      f.write(signal.Signals(number).name + "\n")
    received.append(number)

  received: list[int] = []
  for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, record)
  (HOST / "waiting").touch()
  deadline = time.monotonic() + WAITING_SECS
  while not received and time.monotonic() < deadline:
    time.sleep(0.01)
  saved = time.monotonic() + SAVING_SECS
  while time.monotonic() < saved:  # a signal may end a sleep early
    time.sleep(0.01)
  with (HOST / "signals").open("a") as f:
    f.write("saved\n")
  return {signal.SIGINT: 130, signal.SIGTERM: 75}[received[0]]


def python3(argv: list[str]) -> int:
  """Acts as Python on a TPU host: pip does nothing, uv creates .venv."""
  if argv[1:3] == ["uv", "venv"]:
    folder = pathlib.Path(".venv/bin")
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "bin" / "python", folder)
  return 0


def docker(argv: list[str]) -> int:
  """Does nothing."""
  del argv
  return 0


def srun(argv: list[str]) -> int:
  """Starts the command, and kills it at SIGTERM, as Slurm's does."""
  command = [x for i, x in enumerate(argv) if x[:2] != "--" or i > 1]
  task = subprocess.Popen(command)
  STEP.write_text(str(task.pid))
  signal.signal(signal.SIGTERM, lambda *_: task.kill())
  code = task.wait()
  return code if code >= 0 else 128 - code


def scancel(argv: list[str]) -> int:
  """Signals the tasks of the job's steps, not its script."""
  assert argv == ["--signal=TERM", os.environ["SLURM_JOB_ID"]]
  os.kill(int(STEP.read_text()), signal.SIGTERM)
  return 0


def scontrol(argv: list[str]) -> int:
  """Prints the state of a job."""
  if argv[0] == "show":
    print(f"JobId={argv[2]} {STATE.read_text()}")
  return 0


def gcloud(argv: list[str]) -> int:
  """Acts on a TPU of $HOSTS; the folder `home` is the disk of a host."""
  if argv[:2] == ["storage", "ls"]:
    return list_bucket(argv[2])
  verb = argv[3]
  option = {a.split("=", 1)[0]: a.split("=", 1)[-1] for a in argv[4:]}
  names = [a for a in argv[4:] if not a.startswith("--")]
  hosts = [ROOT / name for name in os.environ["HOSTS"].split(",")]
  if option.get("--worker", "all") != "all":
    hosts = [hosts[int(option["--worker"])]]
  if verb == "describe":
    return describe()
  if verb == "create":
    is_queued = argv[2] == "queued-resources"
    STATE.write_text("WAITING_FOR_RESOURCES" if is_queued else "READY")
    for host in hosts:
      (host / "home").mkdir(exist_ok=True)
  elif verb == "delete":
    STATE.write_text("")
    for host in hosts:
      shutil.rmtree(host / "home")
  elif verb == "scp":
    if len(hosts) > 1 and not is_key_in_agent():
      return 1
    for host in hosts:
      (host / "home").mkdir(exist_ok=True)
      for name in names[:-1]:
        target = host / "home" / pathlib.Path(name).name
        shutil.copy(name, target)  # and its mode
  elif verb == "ssh":
    return ssh(hosts, option["--command"])
  return 0


def describe() -> int:
  """Prints the state of the TPU; fails if there is none, or as it is told."""
  state = STATE.read_text()
  failures = ROOT / "failures"  # a line for each
  lines = failures.read_text().splitlines() if failures.exists() else []
  if lines and state == "WAITING_FOR_RESOURCES":
    failures.write_text("\n".join(lines[1:]))
    print(f"ERROR: (gcloud.describe) {lines[0]}", file=sys.stderr)
    return 1
  if not state:
    print("ERROR: (gcloud.describe) NOT_FOUND: 'mine'", file=sys.stderr)
    return 1
  if state == "WAITING_FOR_RESOURCES":
    STATE.write_text("ACTIVE")
  print(state)
  return 0


def list_bucket(url: str) -> int:
  """Prints a folder of a bucket that exists."""
  if url in (ROOT / "buckets").read_text().split():
    print(f"{url}/runs/")
    return 0
  print(f"ERROR: (gcloud.storage.ls) {url} not found: 404.", file=sys.stderr)
  return 1


def is_key_in_agent() -> bool:
  """Compares fingerprints, as gcloud does before it copies to many hosts."""
  key = pathlib.Path.home() / ".ssh" / "google_compute_engine"
  prints = [["ssh-keygen", "-lf", str(key)], ["ssh-add", "-l"]]
  own, agent = [
    subprocess.run(c, capture_output=True, text=True).stdout for c in prints
  ]
  if own.split()[1] in agent:
    return True
  print(
    f'Please run "ssh-add {key}" to add it, and try again.', file=sys.stderr
  )
  return False


def ssh(hosts: list[pathlib.Path], command: str) -> int:
  """Runs a command on all hosts; returns the first non-zero exit code."""
  # gcloud passes words to ssh, which joins them again; ssh passes no variables.
  words = command.split(" ")
  names = ("PATH", "STAND_INS", "HOSTS", "TMPDIR")
  env = {name: os.environ[name] for name in names}
  processes = [
    subprocess.Popen(
      ["bash", "-c", " ".join(words)],
      cwd=host / "home",
      env=env | {"HOST": host.name, "HOME": str(host / "home")},
      start_new_session=True,
    )
    for host in hosts
  ]
  codes = [process.wait() for process in processes]
  return next((code for code in codes if code), 0)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1], sys.argv[2:]))
