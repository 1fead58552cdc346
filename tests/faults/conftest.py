"""Writes the table of faults: what was tried, how often, how it ended."""

import ast
import collections
import os
import pathlib
import platform
import subprocess

import jax
import pytest

ROOT = pathlib.Path(__file__).parents[2]


def pytest_addoption(parser):
  parser.addoption("--faults-table", help="a Markdown file to write")


@pytest.fixture
def count_tries(record_property):
  """Returns a function that says how many faults one test tries."""
  return lambda count: record_property("tries", count)


def pytest_terminal_summary(terminalreporter, config):
  """Writes the table of the reports of all tests, also of other processes."""
  if not (file := config.getoption("faults_table", None)):
    return
  outcomes = collections.defaultdict(collections.Counter)
  for outcome in ("passed", "failed", "error", "skipped"):
    for report in terminalreporter.getreports(outcome):
      tries = dict(report.user_properties).get("tries", 1)
      outcomes[report.nodeid.partition("[")[0]][outcome] += tries
  pathlib.Path(file).write_text(render(outcomes))
  terminalreporter.write_line(f"The table of faults is in {file}.")


def render(outcomes):
  """Returns the page of a Counter of outcomes by test."""
  total = sum(outcomes.values(), collections.Counter())
  modules = collections.defaultdict(list)
  for test in sorted(outcomes):
    file, _, name = test.partition("::")
    modules[file].append(
      f"| {name.removeprefix('test_').replace('_', ' ')} |"
      f" {describe(outcomes[test])} |"
    )
  lines = [
    "# Faults that were tried",
    "",
    "`make test-faults KEEP=1` writes this page. Each row is a test, with the",
    "number of damages, kills, signals or files that it tries. In all",
    f"{describe(total)}, at commit {read_commit()} with Python",
    f"{platform.python_version()} and jax {jax.__version__} on {os.cpu_count()}"
    f" cores ({platform.system()}, {platform.machine()}).",
  ]
  for file, rows in modules.items():
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text()))
    title = docstring.splitlines()[0].rstrip(".")
    lines += ["", f"## {title}", "", f"`{file}`", ""]
    lines += ["| fault | tries |", "| --- | --- |", *rows]
  return "\n".join(lines) + "\n"


def describe(counts):
  return ", ".join(f"{count:,} {outcome}" for outcome, count in counts.items())


def read_commit():
  command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
  result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  return result.stdout.strip() or "unknown"
