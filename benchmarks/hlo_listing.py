"""Reads the listing of a compiled program, `compiled.as_text()`.

  listing = hlo_listing.parse(text)
  for launch in listing.launches():
    print(launch.op.kind, launch.op.op_name, launch.times)

A device launches the operations of the entry computation and of the loops in
it. The computation of a fusion is one launch.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.$-]+) \(.*\{\s*$")
_OPERATION = re.compile(
  r"\s+(ROOT )?%?([\w.$-]+) = (\(.*?\)(?= [a-z])|\S+) ([a-z][\w-]*)"
  r"\(([^()]*)\)(.*)$"
)
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z\d]*)\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.$-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')

BITS = {"pred": 8, "token": 0, "c64": 64, "c128": 128}  # others are in the name
# Names and views of arrays, which cost nothing.
NO_WORK = {
  *("parameter", "constant", "tuple", "get-tuple-element", "bitcast"),
  *("after-all", "partition-id", "replica-id", "ConcatBitcast"),
}


class Array(NamedTuple):
  """Dtype, such as "bf16", and shape of an array."""

  dtype: str
  shape: tuple[int, ...]

  @property
  def nbytes(self) -> float:
    """Bytes without padding; an s4 has half a byte."""
    bits = BITS.get(self.dtype)
    if bits is None:
      bits = int(re.search(r"\d+", self.dtype)[0])
    return math.prod(self.shape) * bits / 8

  def __str__(self) -> str:
    return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Operation(NamedTuple):
  """A line of a listing.

  Attributes:
    name: unique in the listing.
    kind: such as "fusion" or "custom-call".
    results: the arrays that it returns.
    arguments: the text between its parentheses.
    attributes: the text after them.
    is_root: whether its results are those of its computation.
  """

  name: str
  kind: str
  results: tuple[Array, ...]
  arguments: str
  attributes: str
  is_root: bool

  @property
  def operands(self) -> list[str]:
    """Names of the operations whose results it reads."""
    return _NAME.findall(self.arguments)

  @property
  def nbytes(self) -> float:
    """Bytes of its results."""
    return sum(array.nbytes for array in self.results)

  @property
  def op_name(self) -> str:
    """The path of JAX's operation, or ""."""
    return self._find(r'op_name="([^"]*)"')

  @property
  def target(self) -> str:
    """The library function of a custom call, or ""."""
    return self._find(r'custom_call_target="([^"]*)"')

  @property
  def called(self) -> list[str]:
    """Names of the computations of a fusion, call, branch or loop's body."""
    names = self._find(r"branch_computations=\{([^}]*)\}")
    pattern = r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?"
    return _NAME.findall(names) + re.findall(
      pattern + r"([\w.$-]+)", self.attributes
    )

  def integers(self, attribute: str) -> list[int]:
    """Returns the list of an attribute, such as `dimensions={0,2}`."""
    text = self._find(rf'\b{attribute}"?[=:][{{\[]([^}}\]]*)[}}\]]')
    return [int(x) for x in re.findall(r"\d+", text)]

  def _find(self, pattern: str) -> str:
    match = re.search(pattern, self.attributes)
    return match[1] if match else ""


Computation = Mapping[str, Operation]  # in the order of the listing


class Launch(NamedTuple):
  """An operation that a device launches `times` times in a step."""

  op: Operation
  computation: Computation
  times: int


class Listing(NamedTuple):
  """The computations of a program by name, and the name of the first."""

  computations: Mapping[str, Computation]
  entry: str

  def launches(self, name: str = "", times: int = 1) -> Iterator[Launch]:
    """Yields the launches of a computation; default: of the entry.

    A loop counts with its trips, or once if the compiler does not know them;
    of a conditional all branches count.
    """
    computation = self.computations[name or self.entry]
    for op in computation.values():
      is_call = op.kind in ("while", "conditional", "call") or (
        op.kind.endswith("-start") and op.called
      )
      if is_call:
        trips = _TRIPS.search(op.attributes) if op.kind == "while" else None
        for called in op.called:
          yield from self.launches(
            called, times * int(trips[1] if trips else 1)
          )
      elif not (
        op.kind in NO_WORK or op.target in NO_WORK or op.kind.endswith("-done")
      ):
        yield Launch(op, computation, times)


def parse(text: str) -> Listing:
  """Parses a listing; ValueError for an operation that it cannot read."""
  computations: dict[str, dict[str, Operation]] = {}
  entry, current = "", None
  for line in text.splitlines():
    if line.startswith("}"):
      current = None
    elif match := _COMPUTATION.match(line):
      current = computations.setdefault(match[2], {})
      entry = match[2] if match[1] else entry
    elif current is not None and line.strip():
      match = _OPERATION.match(line)
      if not match:
        raise ValueError(f"no operation of HLO: {line.strip()[:200]}")
      root, name, results, kind, arguments, attributes = match.groups()
      current[name] = Operation(
        *(name, kind, parse_arrays(results), arguments, attributes, bool(root))
      )
  if not entry:
    raise ValueError("no ENTRY in the listing")
  return Listing(computations, entry)


def parse_arrays(text: str) -> tuple[Array, ...]:
  """Returns the arrays in the text of a type."""
  return tuple(
    Array(dtype, tuple(int(x) for x in dims.split(",") if x))
    for dtype, dims in _ARRAY.findall(text)
  )
