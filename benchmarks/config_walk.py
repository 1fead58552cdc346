"""Follows a config through a run: which calls receive it, in which files.

  python benchmarks/config_walk.py --config=electra_demo:runlocal [--list]

Takes the flags of truenegs_jax.main, runs it in this process and counts the
functions of the package that receive the config, a section of it, or an object
of the package that was built from them, such as the description of a run. Each
pair of caller and function counts once, at its first call. A call whose file is
in a higher folder than that of the call before is a climb. `--list` prints the
functions in the order of their first calls.
"""

import dataclasses
import importlib
import importlib.util
import pathlib
import runpy
import sys
import threading
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

# From the bottom up.
FLOORS = (
  ("runtime", "config", "configs"),
  ("data", "models", "objectives"),
  ("workdir", "stats", "tasks"),
  ("synonyms", "weights", "report"),
  ("train",),
  ("corrections", "finetune"),
  ("pretrain", "robustness"),
  ("study",),
)
SECTIONS = {"masking", "negatives", "optim", "checkpoint"}  # any config's
Call = tuple[str, str]  # file in the package, function


def main(argv: Sequence[str]) -> int:
  """Runs the program and prints the counts; returns its exit code."""
  package = importlib.util.find_spec("truenegs_jax")
  assert package and package.origin
  walk = Walk(pathlib.Path(package.origin).parent)
  flags = [word for word in argv if word != "--list"]
  sys.argv = ["truenegs_jax/main.py", *flags]
  code = 0
  threading.setprofile(walk.trace)
  sys.setprofile(walk.trace)
  try:
    runpy.run_module("truenegs_jax.main", run_name="__main__")
  except SystemExit as e:
    code = int(e.code or 0)
  finally:
    sys.setprofile(None)
  if "--list" in argv:
    for file, function in walk.functions:
      print(f"{file}: {function}")
  print(
    f"config walk: {len(walk.calls)} calls, {len(walk.functions)} functions,"
    f" {len({file for file, _ in walk.functions})} files,"
    f" {count_climbs(walk.functions)} climbs"
  )
  return code


class Walk:
  """Records the calls of a package's functions that receive a config.

  Attributes:
    calls: pairs of caller and function.
    functions: the functions, in the order of their first calls.
  """

  def __init__(self, folder: pathlib.Path) -> None:
    self._folder = f"{folder}/"
    self.calls: dict[tuple[Call, Call], None] = {}
    self.functions: dict[Call, None] = {}
    self._frames = set[int]()  # that run, by id
    self._derived = dict[int, Any]()  # what they returned, by id

  def trace(self, frame: types.FrameType, event: str, arg: Any) -> None:
    """Handles an event of the interpreter, as `sys.setprofile` calls it."""
    code = frame.f_code
    if not code.co_filename.startswith(self._folder):
      return
    if event == "return" and id(frame) in self._frames:
      self._frames.remove(id(frame))
      if type(arg).__module__.startswith("truenegs_jax"):
        self._derived[id(arg)] = arg
    if event != "call":
      return
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = (frame.f_locals.get(name) for name in names)
    if code.co_name == "<module>" or not any(
      holds_config(value) or id(value) in self._derived for value in values
    ):
      return
    self._frames.add(id(frame))
    call, caller = self._name(code), frame.f_back
    while caller and not caller.f_code.co_filename.startswith(self._folder):
      caller = caller.f_back
    before = self._name(caller.f_code) if caller else ("", "")
    self.calls.setdefault((before, call))
    self.functions.setdefault(call)

  def _name(self, code: types.CodeType) -> Call:
    path = code.co_filename.removeprefix(self._folder)
    return path, f"{code.co_qualname}:{code.co_firstlineno}"


def holds_config(value: Any, depth: int = 2) -> bool:
  """Returns whether a value is a config, a section, or an object with one."""
  if isinstance(value, ConfigDict):
    return True
  if isinstance(value, Mapping):
    return type(value) is dict and len(SECTIONS & value.keys()) > 1
  if type(value).__module__ == "truenegs_jax.config.sections":
    return True
  if not depth or not dataclasses.is_dataclass(value):
    return False
  fields = (getattr(value, x.name, None) for x in dataclasses.fields(value))
  return any(holds_config(field, depth - 1) for field in fields)


def count_climbs(calls: Iterable[Call]) -> int:
  """Counts the calls in a higher folder than that of the call before."""
  heights = [_height(file) for file, _ in calls]
  pairs = zip(heights[:-1], heights[1:], strict=True)
  return sum(after > before for before, after in pairs)


def _height(file: str) -> int:
  folder, slash, _ = file.partition("/")
  if not slash:
    return len(FLOORS)  # a verb
  return next(i for i, floor in enumerate(FLOORS) if folder in floor)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
