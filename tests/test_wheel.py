"""Builds sdist and wheel, and uses the wheel in an empty folder."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

from support.doc_pages import ROOT
from truenegs_jax.config import load

# What a build reads, as in a checkout. The rest is not needed.
SOURCES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
SOURCES += ("CHANGELOG.md", "SECURITY.md", "truenegs_jax", "configs", "launch")
BUILD = "import sys, setuptools.build_meta as b; print(b.build_{}(sys.argv[1]))"


def run(*command, cwd, **env):
  done = subprocess.run(
    command, cwd=cwd, env=os.environ | env, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def build(kind, source, folder):
  """Builds an sdist or a wheel of a source tree with this environment."""
  program = BUILD.format(kind)
  output = run(sys.executable, "-c", program, str(folder), cwd=source)
  return folder / output.splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> pathlib.Path:
  """Returns the wheel that an sdist of this checkout builds."""
  pytest.importorskip("setuptools", minversion="77")  # PyTorch requires it
  folder = tmp_path_factory.mktemp("build")
  source = folder / "source"
  source.mkdir()
  ignored = shutil.ignore_patterns("__pycache__")
  for name in SOURCES:
    if (ROOT / name).is_dir():
      shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    else:
      shutil.copy(ROOT / name, source)
  with tarfile.open(build("sdist", source, folder)) as archive:
    archive.extractall(folder / "sdist", filter="data")
  [unpacked] = (folder / "sdist").iterdir()
  return build("wheel", unpacked, folder)


@pytest.mark.slow
def test_the_wheel_has_all_files_of_the_package(wheel):
  names = set(zipfile.ZipFile(wheel).namelist())
  package = ROOT / "truenegs_jax"
  expected = {
    str(pathlib.Path(folder, name).relative_to(ROOT))
    for folder, _, files in os.walk(package, followlinks=True)
    for name in files
    if not name.endswith(".pyc")
  }
  assert {x for x in names if x.startswith("truenegs_jax/")} == expected


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_folder(wheel, tmp_path):
  pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
  pip += ["install", "--no-deps", "--no-index", "--no-compile"]
  pip += ["--target=site", str(wheel)]
  run(*pip, cwd=tmp_path)
  empty = tmp_path / "empty"
  empty.mkdir()
  command = str(tmp_path / "site" / "bin" / "truenegs")
  env = {"PYTHONPATH": str(tmp_path / "site"), "JAX_PLATFORMS": "cpu"}
  listed = run(command, "main", "--help", cwd=empty, **env)
  assert all(f"  {name}\n" in listed for name in load.packaged_names())
  module = run(
    sys.executable, "-c", "import truenegs_jax as t; print(t.__file__)",
    cwd=empty, **env,
  )  # fmt: skip
  assert str(tmp_path) in module
  flags = ["--config=demo:baseline", "--config.dry_run"]
  flags += ["--config.data.sources=text.txt"]
  (empty / "text.txt").write_text("A line of text.\n\n" * 100)
  planned = run(command, "main", *flags, cwd=empty, **env)
  assert "1,700" in planned
