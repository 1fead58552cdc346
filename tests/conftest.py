"""Eight CPU devices, strict JAX, and the real data where it is there."""

import os
import pathlib

import jax
import pytest

ROOT = pathlib.Path(__file__).parent.parent

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Under CI a skipped test is a failed one: its data and packages are there.
NO_SKIP = os.environ.get("TRUENEGS_NO_SKIP") == "1"


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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
  """Turns a skip into a failure under TRUENEGS_NO_SKIP=1."""
  report = (yield).get_result()
  if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
    report.outcome = "failed"
    reason = report.longrepr[2] if report.longrepr else "skipped"
    report.longrepr = f"{item.nodeid}: skipped under TRUENEGS_NO_SKIP: {reason}"
