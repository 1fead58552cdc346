"""Commands set up their process, and end with a sentence at most."""

import errno
import os

import pytest

from support import runs
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import DiskError, InputError, explain

OUTPUT = "The output cannot be used: "


@pytest.mark.parametrize(
  ("error", "kind", "message"),
  [
    (OSError(errno.ENOSPC, "full"), DiskError, f"{OUTPUT}full. All"),
    (BrokenPipeError(errno.EPIPE, "pipe"), DiskError, f"{OUTPUT}pipe. All"),
    (OSError(errno.EIO, "failed", "x"), DiskError, "'x' cannot be used: fail"),
    (OSError(errno.EACCES, "no", "x"), DiskError, "'x' cannot be used: no."),
    (OSError(errno.ENOENT, "", "x"), type(None), ""),
    (MemoryError(), errors.OutOfMemoryError, "Memory ran out (on the host)."),
    (RuntimeError("RESOURCE_EXHAUSTED: 9"), errors.OutOfMemoryError, "ran out"),
    (ValueError("a bug"), type(None), ""),
  ],
)
def test_errors_of_the_system_are_explained_and_bugs_are_not(
  error, kind, message
):
  explained = explain(error)
  assert type(explained) is kind
  assert not message or message in str(explained)


PRINT = """
from truenegs_jax.config import flags
with flags.exit_on_errors():
  print("out")
"""


def test_results_on_a_full_disk_are_an_error_of_the_disk(tmp_path):
  with open("/dev/full", "w") as full:
    env = runs.make_environment(tmp_path)
    ended = runs.run_code(PRINT, env=env, stdout=full)
  assert ended.returncode == DiskError.exit_code
  assert ended.stderr.startswith(f"error: {OUTPUT}")
  assert ended.stderr.count("\n") == 1


HOMELESS = """
import os, pwd
os.environ.pop("HOME", None)
pwd.getpwuid = {}.__getitem__
from truenegs_jax.runtime import errors, paths
errors.start_command()
import nltk  # fails without a home folder
print(paths.cache_folder(), os.path.expanduser("~"))
"""


@pytest.mark.parametrize("folder", ["", "/a"])
def test_a_user_without_a_home_has_the_cache_folder(folder):
  env = os.environ | {"TRUENEGS_CACHE": folder}
  done = runs.run_code(HOMELESS, env=env)
  if folder:
    assert (done.returncode, done.stdout) == (0, f"{folder} {folder}\n")
  else:
    assert done.returncode == InputError.exit_code
    assert "Run export TRUENEGS_CACHE=FOLDER" in done.stderr


COMMAND = """
import logging, os, resource
from truenegs_jax.runtime import errors
os.environ["HF_HUB_VERBOSITY"] = "info"
errors.start_command()
assert os.environ["EPATH_USE_TF"] == "0"
assert os.environ["HF_HUB_VERBOSITY"] == "info"
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert soft == min(hard, errors.MAX_FILES) or hard < 0
logging.getLogger("asyncio").error("Task exception was never retrieved")
class Closes:
  def __del__(self):
    raise RuntimeError(errors.CLOSED)
Closes()
logging.getLogger("jax").warning("shown")
print("Übung")
"""


def test_a_command_sets_up_its_process():
  env = {**os.environ, "PYTHONIOENCODING": "ascii"}
  ended = runs.run_code(COMMAND, env=env)
  assert (ended.returncode, ended.stdout) == (0, "\\xdcbung\n"), ended.stderr
  assert ended.stderr.count("\n") == 1 and "shown" in ended.stderr
