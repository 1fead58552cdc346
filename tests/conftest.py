"""Sets up 8 CPU devices, strict JAX and the folder of real data."""

import gc
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import threading

# The workers of a session and the runs that they start share one compilation
# cache. jax reads these variables when it is imported.
IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if not IS_WORKER and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  CACHE = tempfile.mkdtemp(prefix="truenegs-xla-")
  os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
else:
  CACHE = ""

import jax  # noqa: E402
import pytest  # noqa: E402

# Programs of tests run once or twice, so compiling takes longer than running.
# XLA's older emitters of fused operations compile a step in 40 % of the time,
# and as one LLVM module instead of 32 in 70 % of that; jax 0.12 does not have
# these emitters.
XLA_FLAGS = "--xla_backend_optimization_level=0"
if jax.__version_info__ < (0, 12):
  XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"
  XLA_FLAGS += " --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
ROOT = pathlib.Path(__file__).parent.parent
MAX_PROGRAMS = 2_000  # that are kept when a module ends
QUICK_SECS = 300  # of a test that is not slow, also on a busy machine

gc.set_threshold(100_000)  # as commands do: tracing makes many objects
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# A background job of a shell, and all that it starts, ignores SIGINT; the runs
# that tests start must not.
if threading.current_thread() is threading.main_thread():
  signal.signal(signal.SIGINT, signal.default_int_handler)
# Set by CI, where all requirements are installed: a skipped test fails.
NO_SKIP = os.environ.get("TRUENEGS_NO_SKIP") == "1"
# Except for these.
EXCUSES = (
  "no real data",
  "no shell",
  "could not import 'sentence_transformers'",  # of one page, 100 MB
)


def pytest_addoption(parser):
  parser.addoption("--faults", action="store_true", help="with fault tests")


def pytest_collection_modifyitems(config, items):
  """Leaves out the tests marked faults, unless --faults is passed.

  Quick tests get a shorter time limit than that of pyproject.toml. Modules with
  slow tests come first, so that none of them is the last one, for which all
  workers but one would wait.
  """
  for item in items:
    if not {"slow", "faults"} & {mark.name for mark in item.iter_markers()}:
      item.add_marker(pytest.mark.timeout(QUICK_SECS))
  slow = {item.module for item in items if item.get_closest_marker("slow")}
  items.sort(key=lambda item: item.module not in slow)
  if not config.option.faults:
    long = [item for item in items if item.get_closest_marker("faults")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]


def pytest_unconfigure():
  if CACHE:
    shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs():
  """Frees compiled programs if they are many; exempts all else from collection.

  Modules share small programs, of about a megabyte each. A worker's heap grows
  with every test, and each collection would search it.
  """
  yield
  if len(jax.devices()[0].client.live_executables()) > MAX_PROGRAMS:
    jax.clear_caches()
  gc.collect()
  gc.freeze()


@pytest.fixture(scope="module")
def one_device():
  """Uses one of the eight devices, which compiles and saves much faster."""
  from support import shared_runs

  with shared_runs.use_devices(1):
    yield


@pytest.fixture(scope="session")
def shared_pretraining(tmp_path_factory):
  """Returns a tiny ELECTRA's pre-training of 12 steps, exported; read only."""
  from support import shared_runs

  return shared_runs.share(
    tmp_path_factory, "pretraining", shared_runs.pretrain
  )


@pytest.fixture(scope="session")
def shared_finetuning(tmp_path_factory):
  """Returns a fine-tuning of two seeds that learned its task; read only."""
  from support import shared_runs

  return shared_runs.share(
    tmp_path_factory, "finetuning", shared_runs.fine_tune
  )


@pytest.fixture
def fine_tuned_run(shared_finetuning, tmp_path):
  """Returns that fine-tuning with a workdir that the test may change."""
  return shared_finetuning.copy_to(tmp_path / "fine_tuned_run")


@pytest.fixture(scope="session")
def server():
  """Returns an emulator with a bucket, which tests empty before use."""
  from support import bucket_servers

  with bucket_servers.serve("gs") as emulator:
    yield emulator


@pytest.fixture
def no_torch(monkeypatch):
  """Simulates that PyTorch is not installed, which also saves time."""
  monkeypatch.setitem(sys.modules, "torch", None)


@pytest.fixture(scope="session")
def real_data() -> pathlib.Path:
  """Returns the folder of real corpora, vocabularies and WordNet, or skips."""
  default = ROOT.parent / "shared" / "data"
  folder = pathlib.Path(os.environ.get("TRUENEGS_DATA", default))
  if not folder.is_dir():
    pytest.skip(f"no real data in '{folder}'. Set TRUENEGS_DATA to its folder.")
  return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
  return _fail_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
  return _fail_skipped((yield))  # by importorskip at the head of a module


def _fail_skipped(report):
  """Turns skips into failures under TRUENEGS_NO_SKIP=1, except EXCUSES."""
  reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
  excused = any(why in reason for why in EXCUSES)
  excused = excused or hasattr(report, "wasxfail")
  if NO_SKIP and report.skipped and not excused:
    report.outcome = "failed"
    report.longrepr = f"skipped under TRUENEGS_NO_SKIP=1: {reason}"
  return report
