"""Tries a GPU or TPU for an hour and writes all results to one Markdown file.

  make first-hour
  python benchmarks/first_hour.py [PIECE...] [--output=FILE] [--toy]

Pieces are in the order of PIECES, each with a limit in minutes; the first ten
take less than an hour together, the others run if they are named. A piece that
fails or takes too long does not stop the next. The file is written anew after
each command, so that an hour that was cut off leaves its results; commit it in
benchmarks/results/. Exit code 1: a command failed.

Without a device, or with --toy, sizes are small, kernels are interpreted, and
the figures mean nothing. Never run on a real device, only so on a CPU.
"""

import argparse
import contextlib
import dataclasses
import glob
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "first_hour"  # logs, figures, compiled programs
FIGURES = FOLDER / "figures.json"
MAIN_PIECES = 10
LONGEST_LOG = 60  # lines of a command in the report
NO_DROPOUT = "--config.model.attention_dropout=0.0"

DEVICE = """
import importlib.metadata as metadata, jax
names = "jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin"
for name in names:
  try:
    print(name, metadata.version(name))
  except metadata.PackageNotFoundError:
    pass
print("devices", jax.device_count())
for device in jax.devices():
  print(device.platform, device.device_kind, device.memory_stats() or "")
assert (jax.numpy.ones((512, 512)) @ jax.numpy.ones((512, 512)) == 512).all()
"""
# Least major version of NVIDIA's driver: https://docs.jax.dev, Installation.
DRIVERS = {"jax-cuda13-plugin": 580, "jax-cuda12-plugin": 525}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Sizes of the commands."""

  toy: bool
  platform: str  # "cuda", "tpu" or "cpu"
  num_devices: int = 1

  def step(
    self, config: str, rows: int, length: int, *flags: str, steps: int = 100
  ) -> list[str]:
    """Returns a command that times a training step."""
    return self._measure("step.py", config, rows, length, *flags) + (
      ["--steps=4", "--warmup=1"] if self.toy else [f"--steps={steps}"]
    )

  def overheads(self, config: str, rows: int, length: int) -> list[str]:
    """Returns a command that times what the corrections cost."""
    command = self._measure("overheads.py", config, rows, length)
    return [*command, f"--pairs={4 if self.toy else 200}"]

  def _measure(
    self, script: str, config: str, rows: int, length: int, *flags: str
  ) -> list[str]:
    # Rows are those of a GPU, or of four chips of a TPU.
    rows *= max(1, self.num_devices // (4 if self.platform == "tpu" else 1))
    if self.toy:
      config, rows, length = f"{config},runlocal", 4 * self.num_devices, 32
    sizes = [f"--config.batch_size={rows}", f"--config.length={length}"]
    dtype = "--config.model.dtype=bfloat16"
    return [script, f"--config={config}", *sizes, dtype, *flags, _json()]

  def attention(self, dtype: str, rows: int, length: int) -> list[str]:
    """Returns a command that checks and times implementations of attention."""
    sizes = [f"--batch={rows}", f"--length={length}", "--heads=12"]
    if self.toy:
      sizes = ["--batch=2", "--length=128", "--layers=1", "--heads=2"]
      sizes += ["--rounds=2", "--interpret"]
    return ["attention.py", *sizes, f"--dtype={dtype}", _json()]

  def random_numbers(self, *flags: str) -> list[str]:
    """Returns a command that times random numbers."""
    small = ["--rows=2", "--slots=4", "--rounds=2"]
    sizes = small if self.toy else [*flags]
    return ["random_numbers.py", *sizes, "--dtype=bfloat16", _json()]

  def agreement(self, dtype: str) -> list[str]:
    """Returns a command that checks the output layer."""
    small = ["--rows=2", "--slots=4", "--width=32", "--chunk=4"]
    return [
      *("agreement.py", *(small if self.toy else [])),
      *(f"--dtype={dtype}", _json()),
    ]

  def train(self) -> list[str]:
    """Returns a command that trains ELECTRA-small for ten minutes."""
    config = "electra_small:hc" + (",runlocal" if self.toy else "")
    long = ["--config.steps=20000", "--config.minutes=10"]
    long += ["--config.optim.warmup_steps=500", "--config.data.vocab=train"]
    return [
      *("-m", "truenegs_jax.main", f"--config={config}"),
      *("--config.data.sources=wordnet", f"--workdir={FOLDER / 'small'}"),
      *([] if self.toy else [*long, "--config.eval.must_learn=True"]),
    ]


def _json() -> str:
  return f"--json={FIGURES}"


def make_pieces(sizes: Sizes) -> dict[str, tuple[float, list[list[str]]]]:
  """Returns the limit in minutes and the commands of each piece, by name.

  A command begins with a script of benchmarks/ or with a flag of Python. The
  rows of `base` and `bert` are those that `make h100` compiles.
  """
  step, attention = sizes.step, sizes.attention
  small, base = "electra_small:baseline", "electra_base:baseline"
  return {
    "device": (1, [["-c", DEVICE]]),
    "wordnet": (2, [["-m", "truenegs_jax.wordnet"]]),
    "correct": (
      8,
      [
        ["random_numbers.py", "--check"],
        sizes.agreement("bfloat16"),
        sizes.agreement("float32"),
        attention("float32", 8, 512),
        ["meshes.py", "--config=electra_small:hc,runlocal"],
      ],
    ),
    "base": (
      10,
      [
        step("electra_base:hc", 32, 512, steps=200),
        step("electra_base:baseline", 32, 512, steps=200),
        step("electra_base:baseline", 128, 512),
      ],
    ),
    "resume": (
      4,
      [
        [
          *("resume.py", "--config=electra_small:hc,runlocal", "--steps=15"),
          f"--workdir={FOLDER / 'resume'}",
        ]
      ],
    ),
    "train": (12, [sizes.train()]),
    "attention": (
      6,
      [attention("bfloat16", 32, 512), attention("bfloat16", 128, 128)],
    ),
    "small": (5, [step("electra_small:hc", 128, 128), step(small, 512, 128)]),
    "bert": (4, [step("bert_base:hc", 32, 512)]),
    "overheads": (6, [sizes.overheads(base, 128, 512)]),
    # Beyond the hour.
    "dropout": (
      10,
      [
        sizes.random_numbers("--rows=128"),
        step(base, 128, 512, NO_DROPOUT, "--config.model.dropout=0.0"),
        step(base, 32, 512, "--config.model.attention=xla"),
        step(base, 32, 512, "--config.model.attention=xla", NO_DROPOUT),
      ],
    ),
    "large": (
      10,
      [
        step(f"{x}_large:baseline", 128, 512, "--config.optim.accumulation=2")
        for x in ("electra", "bert")
      ],
    ),
    "batches": (
      10,
      [step(base, 64, 512), step(small, 256, 128), step(small, 2048, 128)],
    ),
  }


def find_platform() -> str:
  """Returns the platform of this machine; starts no device."""
  if shutil.which("nvidia-smi"):
    return "cuda"
  # /dev/vfio/vfio exists on other machines, too.
  return (
    "tpu" if glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*") else "cpu"
  )


@dataclasses.dataclass
class Result:
  """Output and end of a command."""

  piece: str
  command: str
  seconds: float
  failure: str  # empty if it succeeded
  output: str


def run_command(
  piece: str, command: Sequence[str], seconds: float, env: Mapping[str, str]
) -> Result:
  """Runs a command in a process group of its own, which ends in time."""
  script = ROOT / "benchmarks" / command[0]
  words = list(command) if command[0][0] == "-" else [script, *command[1:]]
  log, began, failure = FOLDER / f"{piece}.log", time.monotonic(), ""
  with log.open("wb") as file:
    process = subprocess.Popen(
      [sys.executable, *map(str, words)],
      cwd=ROOT,
      env=env,
      stdout=file,
      stderr=subprocess.STDOUT,
      start_new_session=True,
    )
    try:
      if code := process.wait(max(1.0, seconds)):
        failure = f"exit code {code}"
    except BaseException as e:
      os.killpg(process.pid, signal.SIGTERM)
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
      with contextlib.suppress(ProcessLookupError):  # no child is left
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()
      if not isinstance(e, subprocess.TimeoutExpired):
        raise
      failure = f"not finished after {seconds / 60:.1f} minutes"
  text = log.read_text(errors="replace").replace(f"{ROOT}/", "")
  shown = " ".join(x if len(x) < 99 else "..." for x in command if x != _json())
  shown = shown.replace(f"{ROOT}/", "")
  return Result(piece, shown, time.monotonic() - began, failure, text)


def check_driver(output: str) -> str:
  """Returns what is wrong with NVIDIA's driver; empty if nothing is."""
  smi = shutil.which("nvidia-smi")
  if not smi:
    return ""
  query = [smi, "--query-gpu=driver_version", "--format=csv,noheader"]
  driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
  for plugin, least in DRIVERS.items():
    if plugin in output and int(driver.partition(".")[0] or 0) < least:
      return f"driver {driver}: {plugin} needs {least} or newer"
  return ""


def report(results: Sequence[Result], sizes: Sizes, total: float) -> str:
  """Returns the results in Markdown."""
  return "\n".join(_report_lines(results, sizes, total)) + "\n"


def _report_lines(
  results: Sequence[Result], sizes: Sizes, total: float
) -> Iterator[str]:
  where = f"toy sizes on {sizes.platform}" if sizes.toy else sizes.platform
  yield f"# The first hour on a device: {where}\n"
  if sizes.toy:
    yield "These sizes test the commands. The figures mean nothing.\n"
  revision = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")
  yield f"{time.strftime('%Y-%m-%d')}, commit {revision}, Python"
  yield f"{sys.version.split()[0]}, {total / 60:.0f} minutes.\n"
  cpu = re.findall(r"(?m)^(?:CPU\(s\)|Model name): .*", _output("lscpu"))
  yield "```text\n" + (_output("nvidia-smi") or "\n".join(cpu)) + "\n```\n"
  yield "| piece | command | minutes | result |\n| --- | --- | --- | --- |"
  for x in results:
    command = x.command.replace("|", "\\|")
    result = x.failure or "ok"
    yield f"| {x.piece} | `{command}` | {x.seconds / 60:.1f} | {result} |"
  if FIGURES.exists():
    script = ROOT / "benchmarks" / "figures.py"
    figures = [sys.executable, str(script), str(FIGURES)]
    yield f"\n## Figures\n\n```text\n{_output(*figures)}\n```"
  for x in results:
    lines = x.output.rstrip().splitlines()
    text = "\n".join(lines[-LONGEST_LOG:]).replace("```", "'''")
    yield f"\n## {x.piece}: {x.failure or 'ok'}\n"
    yield f"`{x.command}`\n\n```text\n{text}\n```"


def _output(*command: str) -> str:
  """Returns the output of a command; empty if it is not installed."""
  if not shutil.which(command[0]):
    return ""
  done = subprocess.run(command, capture_output=True, text=True, timeout=60)
  return re.sub(r"[ \t]+$", "", done.stdout.strip(), flags=re.MULTILINE)


def make_environment(sizes: Sizes) -> dict[str, str]:
  """Returns the environment of the commands."""
  paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
  # The CPU too, to compare numbers with. jax fails if there is no device.
  platforms = "cpu" if sizes.platform == "cpu" else f"{sizes.platform},cpu"
  defaults = {
    "JAX_PLATFORMS": platforms,
    "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9",
    "JAX_COMPILATION_CACHE_DIR": str(FOLDER / "xla"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1",
  }
  fixed = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
  return defaults | os.environ | fixed


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the pieces; returns 1 if a command failed."""
  platform = find_platform()
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("pieces", nargs="*", metavar="PIECE")
  parser.add_argument(
    "--output", type=pathlib.Path, default=FOLDER / "first_hour.md"
  )
  parser.add_argument("--toy", action="store_true", default=platform == "cpu")
  args = parser.parse_args(argv)
  sizes = Sizes(args.toy, platform)
  pieces = make_pieces(sizes)
  names = args.pieces or list(pieces)[:MAIN_PIECES]
  if unknown := set(names) - set(pieces):
    parser.error(f"{', '.join(unknown)}: choose from {', '.join(pieces)}.")
  if platform == "cpu":
    print("No GPU and no TPU: toy sizes on the CPU. The figures mean nothing.")
  FOLDER.mkdir(parents=True, exist_ok=True)
  args.output.parent.mkdir(parents=True, exist_ok=True)
  FIGURES.unlink(missing_ok=True)
  shutil.rmtree(FOLDER / "small", ignore_errors=True)
  began, results = time.monotonic(), list[Result]()
  for name in names:
    minutes, commands = pieces[name]
    end = time.monotonic() + 60 * minutes
    env = make_environment(sizes)
    if name == "resume" and platform == "cuda":  # else sums differ by rounding
      flags = [env.get("XLA_FLAGS", ""), "--xla_gpu_deterministic_ops=true"]
      env["XLA_FLAGS"] = " ".join(filter(None, flags))
    for command in commands:
      print(f"{name}: {shlex.join(command)[:99]!r}", flush=True)
      result = run_command(name, command, end - time.monotonic(), env)
      if name == "device":
        result.failure = result.failure or check_driver(result.output)
        if count := re.search(r"(?m)^devices (\d+)$", result.output):
          sizes = dataclasses.replace(sizes, num_devices=int(count[1]))
          pieces = make_pieces(sizes)
      print(f"  {result.failure or 'ok'}, {result.seconds:.0f} s", flush=True)
      results.append(result)
      total = time.monotonic() - began
      args.output.write_text(report(results, sizes, total))
  print(f"Results are in {args.output}.")
  return int(any(result.failure for result in results))


if __name__ == "__main__":
  sys.exit(main())
