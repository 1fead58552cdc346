"""Tests the launch scripts with stand-ins for the tools that they call.

The stand-ins, support/stand_ins.py, record their calls. The one for main
follows a plan, one step per start: it exits with a code, or waits for a signal,
"saves" for a moment and exits as main would.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from truenegs_jax.runtime import distributed, errors

ROOT = pathlib.Path(__file__).parent.parent
LAUNCH = ROOT / "launch"
RESTART = errors.SAVED_RESTART
ARGUMENTS = [
  "--config=a b.py:hc,runlocal",
  '--config.data.sources=texts/*.txt weight=3, it\'s "$HOME" `id` $(id)',
  "--config.data.vocab=back\\slash;&&|<>(){}[]~!#",
  "--two  spaces=\ttab\nline ünïcode",
  "",
  "*",
  "--",
]
SECRETS = {"HF_TOKEN": "hush-1234", "WANDB_API_KEY": "hush-5678 $(id)"}
TPU = {
  "TPU": "mine",
  "ZONE": "r-1-b",
  "TYPE": "v6e-8",
  "VERSION": "base",
  "WORKDIR": "gs://mine/runs/base",
  "ROWS": "gs://text/rows it's",
}
WORKDIR_FLAG = f"--workdir={TPU['WORKDIR']}"
ROWS_FLAG = f"--config.data.rows={TPU['ROWS']}"
TOOLS = (
  *("python", "python3", "srun", "scancel", "scontrol", "gcloud", "docker"),
)
DATAFLOW = {
  "PROJECT": "mine",
  "REGION": "r-1",
  "BUCKET": "gs://mine/beam",
  "IMAGE": "docker.pkg.dev/mine/worker",
}
SLURM = {
  "SLURM_JOB_ID": "123",
  "SLURM_NTASKS_PER_NODE": "4",
  "SLURM_GPUS_ON_NODE": "4",
  "SLURM_CPUS_PER_TASK": "8",
}
MAIN = ["-m", "truenegs_jax", "main"]
PREPARE = ["-m", "truenegs_jax", "prepare"]
TIMEOUT_SECS = 30
SLOW_INSTALL_SECS = 600


class Sandbox:
  """A copy of the launchers, stand-ins for their tools, and recorded calls."""

  def __init__(self, root: pathlib.Path, launcher: str):
    self.root = root
    self.launcher = root / "a project" / "launch" / launcher
    shutil.copytree(LAUNCH, self.launcher.parent)
    stand_in = pathlib.Path(__file__).parent / "support" / "stand_ins.py"
    (root / "bin").mkdir()
    for tool in TOOLS:
      path = root / "bin" / tool
      # -S makes Python start three times as fast.
      path.write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -S '{stand_in}' {tool} \"$@\"\n"
      )
      path.chmod(0o755)
    self.hosts = ["host0", "host1"] if launcher == "tpu_pod.sh" else ["host0"]
    for host in self.hosts:
      (root / host).mkdir()
    state = "JobState=RUNNING" if "slurm" in launcher else ""
    (root / "state").write_text(state)
    (root / "buckets").write_text("gs://mine gs://text gs://other")
    self.env = os.environ | SECRETS
    self.env.pop("SSH_AUTH_SOCK", None)
    self.env |= {
      "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
      "STAND_INS": str(root),
      "HOST": "host0",
      "HOSTS": ",".join(self.hosts),
      "POLL_SECS": "0.01",
      "TMPDIR": str(root),
      "HOME": str(root),
    }
    if launcher == "slurm.sh":
      self.env |= SLURM | {"SLURM_SUBMIT_DIR": str(self.launcher.parents[1])}
      # Slurm copies only the script.
      self.launcher = pathlib.Path(shutil.copy(self.launcher, root / "script"))
    if launcher.startswith("tpu"):
      self.env |= TPU
      (root / ".ssh").mkdir()
      self.key = root / ".ssh" / "google_compute_engine"
      keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key]
      subprocess.run(keygen, check=True)

  def plan(self, *steps: int | str) -> None:
    """Sets what each start of main does: a code, CODE:STATE or "wait"."""
    for host in self.hosts:
      (self.root / host / "plan").write_text("\n".join(map(str, steps)))

  def start(self, *arguments: str, **env: str) -> subprocess.Popen:
    return subprocess.Popen(
      [str(self.launcher), *(arguments or ARGUMENTS)],
      env=self.env | env,
      cwd=self.root,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      stdin=subprocess.DEVNULL,
      text=True,
      start_new_session=True,
    )

  def run(self, *arguments: str, **env: str) -> int:
    return self.end(self.start(*arguments, **env))

  def end(self, process: subprocess.Popen) -> int:
    try:
      self.output, _ = process.communicate(timeout=TIMEOUT_SECS)
    finally:
      process.kill()
    return process.returncode

  def wait_for_main(self) -> None:
    waiting = [self.root / host / "waiting" for host in self.hosts]
    wait_for(lambda: all(path.exists() for path in waiting))

  def calls(self, tool: str, host: str = "host0") -> list[dict]:
    """Returns the calls of a tool: argv, env and process group."""
    path = self.root / host / f"{tool}.calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]

  def arguments(self, tool: str) -> list[list[str]]:
    return [call["argv"] for call in self.calls(tool)]

  def mains(self, host: str = "host0") -> list[dict]:
    calls = self.calls("python", host)
    return [c for c in calls if c["argv"][:3] == MAIN]

  def signals(self, host: str = "host0") -> list[str]:
    path = self.root / host / "signals"
    return path.read_text().split() if path.exists() else []


def wait_for(condition: Callable[[], object]) -> None:
  deadline = time.monotonic() + TIMEOUT_SECS
  while not condition():
    assert time.monotonic() < deadline, "it did not happen in time"
    time.sleep(0.01)


@pytest.fixture
def sandbox(tmp_path, request) -> Sandbox:
  return Sandbox(tmp_path, request.param)


def on(*launchers: str):
  """Parametrizes the launcher; each case starts processes, so it is slow."""
  params = [pytest.param(name, marks=pytest.mark.slow) for name in launchers]
  return pytest.mark.parametrize("sandbox", params, indirect=True)


EVERY = on("gpu.sh", "slurm.sh", "tpu_vm.sh", "tpu_pod.sh")
LOOPS = on("gpu.sh", "tpu_vm.sh", "tpu_pod.sh")


@EVERY
def test_arguments_are_passed_on_unchanged_and_secrets_are_not(sandbox):
  sandbox.plan(0)
  assert sandbox.run() == 0, sandbox.output
  for host in sandbox.hosts:
    (call,) = sandbox.mains(host)
    bucket = [WORKDIR_FLAG, ROWS_FLAG] * ("tpu" in sandbox.launcher.name)
    assert call["argv"] == [*MAIN, *bucket, *ARGUMENTS]
    if len(sandbox.hosts) > 1:
      assert int(call["env"][distributed.JOIN_VARIABLE]) > SLOW_INSTALL_SECS
  assert not find_secrets(sandbox)


def find_secrets(sandbox: Sandbox) -> list[str]:
  """Returns where secrets are: arguments, outputs, and files of the hosts."""
  texts = {"output": sandbox.output}
  for path in sandbox.root.glob("*/*.calls"):
    calls = sandbox.calls(path.stem, path.parent.name)
    texts[path.stem] = str([call["argv"] for call in calls])
  for path in sandbox.root.glob("*/home/**/*"):
    if path.is_file():
      texts[str(path)] = path.read_bytes().decode(errors="replace")
  values = [value.split()[0] for value in SECRETS.values()]
  return [
    where for where, text in texts.items() if any(v in text for v in values)
  ]


@LOOPS
def test_exit_code_75_restarts_the_command_and_others_end_it(sandbox):
  sandbox.plan(RESTART, RESTART, 2, 0)
  assert sandbox.run() == 2, sandbox.output
  for host in sandbox.hosts:
    first, second, third = [call["argv"] for call in sandbox.mains(host)]
    assert first == second == third


@LOOPS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_run_once_and_is_waited_for(sandbox, number):
  sandbox.plan("wait", 0)
  process = sandbox.start()
  sandbox.wait_for_main()
  is_ctrl_c = number == signal.SIGINT
  if is_ctrl_c:
    os.killpg(process.pid, number)  # to the whole group, as a terminal
  else:
    process.send_signal(number)
  code = errors.SAVED_INTERRUPT if is_ctrl_c else RESTART
  assert sandbox.end(process) == code, sandbox.output
  for host in sandbox.hosts:
    assert sandbox.signals(host) == [number.name, "saved"]
    assert len(sandbox.mains(host)) == 1
  # Two signals at the same time may count as one, so the number is not enough:
  # main must not be in the group that the terminal signals.
  tool = "python" if sandbox.launcher.name == "gpu.sh" else "gcloud"
  started = sandbox.calls(tool)
  (group,) = [c["group"] for c in started if is_start(c["argv"])]
  assert group != process.pid


def is_start(argv: list[str]) -> bool:
  """Whether the call started main on this machine or over a connection."""
  return any("tpu_worker.sh start" in a or a == ARGUMENTS[0] for a in argv)


@on("slurm.sh")
@pytest.mark.parametrize(
  ("code", "state", "requeues"),
  [(RESTART, "RUNNING", True), (RESTART, "CANCELLED", False)]
  + [(2, "RUNNING", False)],
)
def test_exit_code_75_requeues_a_running_job_only(
  sandbox, code, state, requeues
):
  sandbox.plan(code)
  (sandbox.root / "state").write_text(f"JobState={state} Reason=None")
  assert sandbox.run() == code, sandbox.output
  assert (["requeue", "123"] in sandbox.arguments("scontrol")) == requeues


@on("slurm.sh")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_requeues_a_job_and_sigint_does_not(sandbox, number):
  sandbox.plan("wait")
  process = sandbox.start()
  sandbox.wait_for_main()
  process.send_signal(number)
  assert sandbox.end(process) == RESTART, sandbox.output
  assert sandbox.signals() == ["SIGTERM", "saved"]
  is_requeued = ["requeue", "123"] in sandbox.arguments("scontrol")
  assert is_requeued == (number == signal.SIGTERM)


def verbs(sandbox: Sandbox) -> list[str]:
  """Returns the verbs of gcloud's calls, without `describe`."""
  calls = [argv for argv in sandbox.arguments("gcloud") if argv[0] == "compute"]
  return [argv[3] for argv in calls if argv[3] != "describe"]


@on("tpu_vm.sh", "tpu_pod.sh")
def test_a_tpu_is_created_with_the_users_flags(sandbox):
  sandbox.plan(0)
  assert sandbox.run(CREATE="--spot --network=a") == 0, sandbox.output
  assert verbs(sandbox) == ["create", "scp", "ssh"]
  (create,) = [x for x in sandbox.arguments("gcloud") if "create" in x]
  pod = sandbox.launcher.name == "tpu_pod.sh"
  expected = {"mine", "--accelerator-type=v6e-8", "--zone=r-1-b", "--spot"}
  expected |= {"--network=a", "--quiet"}
  expected |= {"--scopes=https://www.googleapis.com/auth/cloud-platform"}
  node = {"--node-id=mine", "--runtime-version=base"}
  expected |= node if pod else {"--version=base"}
  assert expected < set(create)
  assert create[2] == ("queued-resources" if pod else "tpu-vm")
  listed = [x for x in sandbox.arguments("gcloud") if x[0] == "storage"]
  assert listed == [["storage", "ls", f"gs://{x}"] for x in ("mine", "text")]


@on("tpu_vm.sh")
@pytest.mark.parametrize("variable", ["WORKDIR", "ROWS", "COMPILATION_CACHE"])
def test_a_missing_bucket_is_refused_with_what_to_type(sandbox, variable):
  assert sandbox.run(**{variable: "gs://lost/a/b"}) == 2
  assert "error: gs://lost cannot be read." in sandbox.output
  create = "\ngcloud storage buckets create gs://lost --location=r-1 "
  assert create in sandbox.output
  assert verbs(sandbox) == []


@on("tpu_pod.sh")
def test_a_request_that_fails_is_repeated_and_creates_nothing(sandbox):
  sandbox.plan(0)
  (sandbox.root / "failures").write_text("503: try again\n503: try again")
  assert sandbox.run() == 0, sandbox.output
  assert verbs(sandbox) == ["create", "scp", "ssh"]
  assert "503: try again" in sandbox.output


@on("tpu_vm.sh")
def test_a_start_after_a_broken_connection_has_the_variables(sandbox):
  sandbox.plan("wait", "wait", 0)
  home = sandbox.root / "host0" / "home"
  shutil.copytree(LAUNCH, home / "truenegs_jax" / "launch")
  variables = home / "variables"
  variables.write_text("SETUP=: EXTRAS=\nexport HF_TOKEN=hush-1234\n")
  command = ["truenegs_jax/launch/tpu_worker.sh", "start", "main", "--config=x"]
  env = sandbox.env | {"HOME": str(home)}
  env.pop("HF_TOKEN")
  waiting = sandbox.root / "host0" / "waiting"
  starts = []
  for _ in range(2):
    starts.append(subprocess.Popen(command, cwd=home, env=env))
    wait_for(waiting.exists)
    waiting.unlink()
  starts.append(subprocess.Popen(command, cwd=home, env=env))
  codes = [process.wait(TIMEOUT_SECS) for process in starts]
  assert codes == [RESTART, RESTART, 0]
  tokens = [call["env"].get("HF_TOKEN") for call in sandbox.mains()]
  assert tokens == ["hush-1234"] * 3
  assert not variables.exists()


@on("tpu_vm.sh", "tpu_pod.sh")
@pytest.mark.parametrize("code", [0, 1, RESTART])
def test_a_preempted_tpu_is_created_again_unless_the_run_ended(sandbox, code):
  state = "SUSPENDED" if "pod" in sandbox.launcher.name else "PREEMPTED"
  sandbox.plan(f"{code}:{state}", 0)
  assert sandbox.run() == 0, sandbox.output
  launch = ["create", "scp", "ssh"]
  assert verbs(sandbox) == launch + ["delete", *launch] * bool(code)
  for host in sandbox.hosts:
    installed = [c["argv"][2] for c in sandbox.calls("python3", host)]
    assert installed == ["install", "venv", "pip"] * (2 if code else 1)


@on("tpu_pod.sh")
def test_variables_and_extras_reach_the_hosts_but_no_argument_or_file(sandbox):
  sandbox.plan(RESTART, "wait")
  process = sandbox.start(
    VARS="HF_TOKEN WANDB_API_KEY TRUENEGS_CACHE=/mnt/cache",
    EXTRAS="s3,wandb",
  )
  sandbox.wait_for_main()
  for host in sandbox.hosts:
    file = sandbox.root / host / "home" / "variables"
    assert file.stat().st_mode & 0o777 == 0o600
  process.send_signal(signal.SIGTERM)
  assert sandbox.end(process) == RESTART
  expected = SECRETS | {"TRUENEGS_CACHE": "/mnt/cache"}
  for host in sandbox.hosts:
    for call in sandbox.mains(host):
      assert expected.items() <= call["env"].items()
    pips = [c["argv"] for c in sandbox.calls("python3", host)]
    assert ".[tpu,gcs,s3,wandb]" in [argv[-1] for argv in pips]
  assert not find_secrets(sandbox)
  assert not list(sandbox.root.glob("tmp.*"))  # files of this machine
  assert sandbox.run(VARS="HF_TOKEN NOT_SET") != 0
  assert "error: VARS has NOT_SET, but it is not set." in sandbox.output


@on("tpu_pod.sh")
def test_prepare_runs_on_the_first_host(sandbox):
  sandbox.plan(0)
  assert sandbox.run("prepare", *ARGUMENTS) == 0, sandbox.output
  (call,) = sandbox.calls("python", "host0")
  assert call["argv"] == [*PREPARE, ROWS_FLAG, *ARGUMENTS]
  assert not sandbox.calls("python", "host1")
  assert call["env"]["JAX_PLATFORMS"] == "cpu"


@on("dataflow.sh")
def test_dataflow_builds_the_image_and_submits_a_job(sandbox):
  sandbox.plan(0, 0, 0, 0)
  assert sandbox.run(**DATAFLOW) == 0, sandbox.output
  build, push = sandbox.arguments("docker")
  passed = re.findall(r"--build-arg=(\w+)=", " ".join(build))
  assert passed == ["PYTHON", "BEAM"]
  assert push == ["push", DATAFLOW["IMAGE"]]
  submit = sandbox.arguments("python")[-1]
  assert submit[:4] == [*PREPARE, "--runner=DataflowRunner"]
  assert submit[-len(ARGUMENTS) :] == ARGUMENTS
  assert f"--beam=--sdk_container_image={DATAFLOW['IMAGE']}" in submit
  assert sandbox.run(**DATAFLOW, BUILD="no") == 0
  assert len(sandbox.arguments("docker")) == 2
