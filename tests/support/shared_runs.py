"""Runs that one worker of a test session makes and all tests copy."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator

import filelock
import jax
import pytest

from support import runs, word_task


@dataclasses.dataclass(frozen=True)
class SharedRun:
  """A finished run: its folder, what it printed, and how it was started.

  Attributes:
    workdir: the folder of the run.
    root: the folder with its inputs, which tests only read.
    values: keys of the config with their values, or the flags.
    printed: its output.
  """

  workdir: pathlib.Path
  root: pathlib.Path
  values: dict | list
  printed: str

  def copy_to(self, folder: pathlib.Path) -> "SharedRun":
    """Copies the workdir, so that a test can change it."""
    return dataclasses.replace(
      self, workdir=shutil.copytree(self.workdir, folder)
    )


def share(
  factory: pytest.TempPathFactory,
  name: str,
  make: Callable[[pathlib.Path], tuple[dict | list, str]],
) -> SharedRun:
  """Makes a run once in a session, in whichever worker needs it first.

  Args:
    factory: gives a folder for each worker; their parent is the session's.
    name: of the run.
    make: runs in `root / "run"` and returns (values, output).
  """
  base = factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:
    base = base.parent
  root = base / f"shared-{name}"
  record = root / "shared.json"
  with filelock.FileLock(f"{root}.lock"):
    if not record.exists():
      root.mkdir()
      record.write_text(json.dumps(make(root)))
  values, printed = json.loads(record.read_text())
  return SharedRun(root / "run", root, values, printed)


def pretrain(root: pathlib.Path) -> tuple[list, str]:
  """Pre-trains and exports a tiny ELECTRA, 12 steps; returns its flags."""
  corpus = runs.write_corpus(root / "corpus.txt")
  flags = runs.demo_flags(corpus)
  with isolate(root):
    code, printed = runs.run_in_process(root / "run", flags)
  assert code == 0, printed
  return flags, printed


def fine_tune(root: pathlib.Path) -> tuple[dict, str]:
  """Fine-tunes two seeds that learn a task of words; returns its values."""
  from truenegs_jax.configs import finetune_own

  vocab = word_task.write_vocabulary(root)
  values = word_task.config_values(vocab, word_task.write_files(root)) | {
    "finetune.seeds": 2,
    "finetune.epochs": 6.0,
    "finetune.evals_per_epoch": 1,
    "finetune.layer_decay": 1.0,
    "log.every_steps": 20,
  }
  c = finetune_own.get_config()
  c.update_from_flattened_dict(values)
  with isolate(root):
    code, printed = runs.run_task(c, root / "run")
  assert code == 0, printed
  return values, printed


@contextlib.contextmanager
def isolate(root: pathlib.Path, devices: int = 1) -> Iterator[None]:
  """Uses few devices; hides WordNet, the user's cache and PyTorch.

  PyTorch is slow to import.
  """
  with use_devices(devices), pytest.MonkeyPatch.context() as patch:
    patch.setenv("TRUENEGS_CACHE", str(root / "cache"))
    patch.setenv("NLTK_DATA", str(root / "none"))
    patch.setitem(sys.modules, "torch", None)
    yield


@contextlib.contextmanager
def use_devices(count: int) -> Iterator[None]:
  """Hides all devices but `count` while its block runs."""
  from truenegs_jax.train import sharding

  make = functools.partial(sharding.make_mesh, devices=jax.devices()[:count])
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(sharding, "make_mesh", make)
    patch.setattr(sharding, "device_count", lambda: count)
    yield
