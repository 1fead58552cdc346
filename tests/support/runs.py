"""Starts runs and code, here or in processes, and reads what they leave."""

import importlib
import io
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import time

import numpy as np
import safetensors.numpy
from rich.console import Console

from truenegs_jax.synonyms.table import SynonymTable

ROOT = pathlib.Path(__file__).parents[2]
# fmt: off
SUBJECTS = (
  "the cat", "a small dog", "my old friend", "our teacher", "the big house"
)
VERBS = (
  "sees", "likes", "finds", "remembers", "wants", "paints", "loses", "keeps"
)
# fmt: on
TIMEOUT_SECS = 900  # 10 to 60 s on an idle machine
# Half the layers of `tiny`, and two thirds of its time to compile.
ONE_LAYER = {"model.variant": "tiny", "model.layers": 1}


def write_corpus(path: pathlib.Path) -> pathlib.Path:
  """Writes 60 documents of ten English-like lines, separated by blank lines."""
  rng = random.Random(0)
  lines = [
    " ".join(map(rng.choice, (SUBJECTS, VERBS, SUBJECTS))) for _ in range(600)
  ]
  blocks = ["\n".join(lines[i : i + 10]) for i in range(0, len(lines), 10)]
  path.write_text("\n\n".join(blocks) + "\n")
  return path


def demo_flags(corpus: pathlib.Path) -> list[str]:
  """Returns flags for a run of seconds."""
  values = {
    "data.sources": corpus,
    "data.vocab_size": 120,
    "data.rows": corpus.parent / "rows",
    **ONE_LAYER,
    "model.dropout": 0.1,
    "steps": 12,
    "log.every_steps": 1,
    "checkpoint.every_steps": 3,
    "eval.every_steps": 6,
    "eval.sentences": "()",
  }
  return [f"--config.{name}={value}" for name, value in values.items()]


def make_environment(cache: pathlib.Path, devices: int = 1) -> dict[str, str]:
  """Returns the environment of a run with its own cache and CPU devices.

  PyTorch is hidden, because importing it for the export of each run takes
  longer than the run. Programs are compiled as in the tests, by conftest.py's
  XLA_FLAGS.
  """
  return os.environ | {
    "TRUENEGS_CACHE": str(cache),
    "PYTHONPATH": hide(cache / "hidden", "torch"),
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": str(devices),
    # Hides a WordNet that is installed on this machine.
    "NLTK_DATA": str(cache / "none"),
  }


def hide(folder: pathlib.Path, *names: str) -> str:
  """Writes modules that cannot be imported; returns PYTHONPATH for them."""
  folder.mkdir(parents=True, exist_ok=True)
  for name in names:
    text = f'raise ImportError("hidden", name="{name}")'
    (folder / f"{name}.py").write_text(text)
  return os.pathsep.join([str(folder), str(ROOT)])


def find_free_port() -> int:
  """Returns a free port of this machine."""
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1]


def start_processes(workdir, flags, env, count: int, **kwargs) -> list:
  """Starts the processes of a run."""
  address = f"--coordinator=127.0.0.1:{find_free_port()}"
  flags = [*flags, address, f"--num_processes={count}"]
  return [
    start(workdir, [*flags, f"--process_id={i}"], env, **kwargs)
    for i in range(count)
  ]


def wait_for_all(processes) -> list[tuple[int, str]]:
  """Waits for processes; returns exit code and output of each."""
  try:
    # In sequence; the pipes are large enough for the output of a run.
    outputs = [p.communicate(timeout=TIMEOUT_SECS)[0] for p in processes]
  finally:
    for process in processes:
      process.kill()
  return [
    (p.returncode, output) for p, output in zip(processes, outputs, strict=True)
  ]


def read_exported(workdir: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns all exported parameters of a finished run."""
  return {
    f"{file.parent.name}/{name}": array
    for file in sorted((workdir / "export").glob("*/model.safetensors"))
    for name, array in safetensors.numpy.load_file(file).items()
  }


def start(workdir, flags, env, config="electra_small:sr,runlocal"):
  """Starts a run whose stdout and stderr go to one pipe."""
  return subprocess.Popen(
    [sys.executable, "-m", "truenegs_jax.main", f"--config={config}"]
    + [f"--workdir={workdir}", *flags],
    env=env,
    cwd=workdir.parent,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def run(workdir, flags, env, **kwargs) -> tuple[int, str]:
  """Runs to the end; returns exit code and output."""
  [result] = wait_for_all([start(workdir, flags, env, **kwargs)])
  return result


def run_in_process(
  workdir, flags, config="electra_small:sr,runlocal"
) -> tuple[int, str]:
  """Runs in this process; returns exit code and output, or raises."""
  from truenegs_jax.config.flags import parse_config

  path = ROOT / "configs" / str(config).replace(":", ".py:")
  c = parse_config([f"--config={path}", *flags])
  return run_task(c, workdir, width=300)


def run_task(c, workdir, *, width: int = 200) -> tuple[int, str]:
  """Runs the task of a config here; returns exit code and output, or raises."""
  task = importlib.import_module(f"truenegs_jax.{c.task}.run")
  out = io.StringIO()
  code = task.run(c, workdir, Console(file=out, width=width, markup=False))
  return code, out.getvalue()


def start_code(code: str, *words, **options) -> subprocess.Popen:
  """Starts Python code in a process, with its output as text in pipes."""
  return subprocess.Popen(
    [sys.executable, "-c", code, *map(str, words)],
    **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options},
    text=True,
  )


def run_code(code: str, *words, **options) -> subprocess.CompletedProcess:
  """Runs Python code in a process to its end, with its output as text."""
  return subprocess.run(
    [sys.executable, "-c", code, *map(str, words)],
    **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    text=True,
    timeout=TIMEOUT_SECS,
  )


def read_files(folder: pathlib.Path) -> dict[str, bytes | None]:
  """Returns the content of all files of a folder; None for a subfolder."""
  return {
    str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
    for path in folder.rglob("*")
  }


def wait_for_step(process, workdir, step: int) -> None:
  """Waits until metrics.jsonl has the step, or the process has ended."""
  deadline = time.monotonic() + TIMEOUT_SECS
  while last_step(workdir) < step and process.poll() is None:
    assert time.monotonic() < deadline, f"no step {step} in time"
    time.sleep(0.01)


def last_step(workdir: pathlib.Path) -> int:
  """Returns the newest step in metrics.jsonl, or 0."""
  path = workdir / "metrics.jsonl"
  lines = path.read_text().splitlines() if path.exists() else []
  steps = [0]
  for line in lines:
    try:
      steps.append(json.loads(line)["step"])
    except json.JSONDecodeError:  # not written completely yet
      continue
  return steps[-1]


def read_records(workdir: pathlib.Path, split: str = "train") -> list[dict]:
  """Returns the records of a split."""
  lines = (workdir / "metrics.jsonl").read_text().splitlines()
  return [r for r in map(json.loads, lines) if r["split"] == split]


def read_checkpoint(workdir: pathlib.Path, step: int) -> list[np.ndarray]:
  """Reads all arrays of a checkpoint with Orbax only."""
  import jax
  import orbax.checkpoint as ocp

  folder = (workdir / "checkpoints" / str(step) / "state").resolve()
  as_numpy = ocp.RestoreArgs(restore_type=np.ndarray)  # on no device
  with ocp.PyTreeCheckpointer() as checkpointer:
    saved = checkpointer.metadata(folder).item_metadata.tree
    args = jax.tree.map(lambda _: as_numpy, saved)
    tree = checkpointer.restore(folder, restore_args=args)
  return jax.tree.leaves(tree)


def arrays_equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
  """Returns whether arrays and dtypes are equal."""
  return len(a) == len(b) and all(
    x.dtype == y.dtype and np.array_equal(x, y)
    for x, y in zip(a, b, strict=True)
  )


def assert_equal_runs(first, second, steps):
  """Asserts that the last states and all records are equal."""
  assert arrays_equal(
    read_checkpoint(first, steps), read_checkpoint(second, steps)
  )
  names = ("step", "mlm", "detect", "soft")  # BERT has the first two
  losses = [
    [[record.get(name) for name in names] for record in read_records(workdir)]
    for workdir in (first, second)
  ]
  assert losses[0] == losses[1]
  assert [step for step, *_ in losses[0]] == list(range(1, steps + 1))


def save_synonyms(folder: pathlib.Path, vocab_file: pathlib.Path) -> str:
  """Saves a synonym table of random pairs; returns its flag."""
  tokens = vocab_file.read_text().splitlines()
  words = [t for t in tokens if t.isalpha() and len(t) > 2]
  rng = random.Random(1)
  pairs = [tuple(rng.sample(words, 2)) for _ in range(len(words) * 5)]
  table = SynonymTable.from_pairs(pairs, tokens, source="random")
  table.save(folder / "random.safetensors")
  return f"--config.negatives.sources=table path={folder}/random.safetensors"
