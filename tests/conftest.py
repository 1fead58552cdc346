"""Eight CPU devices, strict JAX, and the real data where it is there."""

import gc
import os
import pathlib
import shutil
import signal
import tempfile
import threading

# What is compiled is shared by the workers of a session and the runs that
# they start: jax reads these when it is imported.
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not IS_WORKER and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  COMPILED = tempfile.mkdtemp(prefix="truenegs-xla-")
  os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
else:
  COMPILED = ""

import jax  # noqa: E402
import pytest  # noqa: E402

# What is compiled here runs once or twice: to compile it takes far longer.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
ROOT = pathlib.Path(__file__).parent.parent

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# A shell's job in the background has it ignored, and what it starts inherits
# that; the runs that tests start are to feel a Ctrl-C.
if threading.current_thread() is threading.main_thread():
  signal.signal(signal.SIGINT, signal.default_int_handler)
# Set by CI: what a test needs is there, so a skipped test is a failed one.
NO_SKIP = os.environ.get("TRUENEGS_NO_SKIP") == "1"
# But for these: TensorFlow (2 GB) only reads Google's own checkpoints, and what
# we make of its arrays is tested on a stand-in, too.
EXCUSES = ("no real data", "could not import 'tensorflow'")


def pytest_unconfigure():
  if COMPILED:
    shutil.rmtree(COMPILED, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def forget():
  """Lets go of what a module compiled; the collector then passes over the rest.

  A worker's heap grows with every test, and each collection would search it.
  """
  yield
  jax.clear_caches()
  gc.collect()
  gc.freeze()


def data_folder() -> pathlib.Path:
  """Real corpora, vocabularies and WordNet; see $TRUENEGS_DATA."""
  default = ROOT.parent / "shared" / "data"
  return pathlib.Path(os.environ.get("TRUENEGS_DATA", default))


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
  """The folder of real data; the test is skipped where there is none."""
  folder = data_folder()
  if not folder.is_dir():
    pytest.skip(f"no real data at {folder}; set TRUENEGS_DATA to its folder")
  return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
  return _no_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
  return _no_skip((yield))  # importorskip at the head of a module


def _no_skip(report):
  """Under TRUENEGS_NO_SKIP=1 few things that are absent excuse a skip."""
  reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
  excused = any(why in reason for why in EXCUSES)
  excused = excused or hasattr(report, "wasxfail")
  if NO_SKIP and report.skipped and not excused:
    report.outcome = "failed"
    report.longrepr = f"skipped under TRUENEGS_NO_SKIP=1: {reason}"
  return report
