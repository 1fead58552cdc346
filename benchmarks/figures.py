"""The table of what benchmarks/accelerator.sh has measured.

  python benchmarks/figures.py FILE

FILE is a list of records in JSON, as --json of the other scripts makes it. The
targets are those of one H100: of ELECTRA-base in rows of 512 tokens, 45 % of
its peak in bfloat16, and of ELECTRA-small in rows of 128.
"""

import json
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

# What the command has to hold -> rows a second.
TARGETS = (
  (r"electra_base\b.*--config\.length=512\b", 1_300),
  (r"electra_small\b.*--config\.length=128\b", 18_000),
)
HALF_WIDTH = 0.003  # of an overhead's interval, at most
# Of these arguments nothing is to be told, or it has a column of its own.
UNTOLD = re.compile(
  r"--(json|steps|warmup|pairs|config\.(batch_size|length|model\.dtype))="
)

Record = Mapping[str, Any]


def main(argv: Sequence[str]) -> int:
  """Prints the tables of a file; returns 2 where it cannot be read."""
  try:
    (path,) = argv
    listed = json.loads(pathlib.Path(path).read_text())
  except (ValueError, OSError) as e:
    print(f"error: {e}; give one file of records in JSON.", file=sys.stderr)
    return 2
  records = [r | r.get("machine", {}) for r in listed]
  console = Console(markup=False, highlight=False, width=120)
  for device in dict.fromkeys(r["device"] for r in records):
    mine = [r for r in records if r["device"] == device]
    console.print(f"{device}, jax {mine[0]['jax']}")
    for table in (steps(mine), overheads(mine)):
      if table.row_count:
        console.print(table)
    for line in others(mine):
      console.print(line)
  return 0


def steps(records: Sequence[Record]) -> Table:
  """Rates of training steps beside their targets."""
  made = _table(
    *("step of", "dtype", "rows", "ms", "rows/s", "target"),
    *("MFU", "of matmul", "GiB", "compiled, s"),
  )
  for r in records:
    if "rows_per_s" not in r:
      continue
    target = next((t for p, t in TARGETS if re.search(p, r["command"])), None)
    made.add_row(
      _what(r),
      r["dtype"],
      f"{r['batch']} x {r['length']}",
      f"{1e3 * r['step_s']['median']:,.1f}",
      f"{r['rows_per_s']:,.0f}",
      f"{r['rows_per_s'] / target:.0%} of {target:,}" if target else "",
      f"{r['mfu']:.1%}" if r["mfu"] else "",
      f"{r['of_matmul']:.1%}",
      f"{r['peak_bytes'] / 2**30:.1f}",
      f"{r['compile_s']:.0f}",
    )
  return made


def overheads(records: Sequence[Record]) -> Table:
  """What each recipe adds, and whether that is known well enough."""
  made = _table("overhead of", "recipe", "ms", "%", "95 %", "known to 0.3 %")
  for r in records:
    for recipe, x in r.get("times", {}).items():
      low, high = x["interval"]
      made.add_row(
        _what(r),
        recipe,
        f"{1e3 * x['step_s']['median']:.2f}",
        f"{100 * x['overhead']:+.2f}",
        f"{100 * low:+.2f} to {100 * high:+.2f}",
        "yes" if x["half_width"] <= HALF_WIDTH else "no",
      )
  return made


def others(records: Sequence[Record]) -> Iterator[str]:
  """A line for each of the other records that is understood."""
  for r in records:
    if "agrees" in r:
      yield f"{_what(r)}: {'agrees' if r['agrees'] else 'DIFFERS'}"
    for form, x in r.get("forms", {}).items():
      sizes = " ".join(f"{k}={v}" for k, v in r["given"].items())
      worst = max(x.get("errors", {}).values(), default=float("nan"))
      ms = 1e3 * x["secs"]["median"] if "secs" in x else float("nan")
      told = x.get("failure", f"error {worst:.1e}, {ms:.2f} ms")
      yield f"attention {sizes}, {form}: {told}"
    for numbers in ("layers", "attention", "tokens"):
      if isinstance(r.get(numbers), dict):
        ms = (f"{k} {1e3 * x['median']:.2f}" for k, x in r[numbers].items())
        yield f"{_what(r)}, numbers of {numbers}, ms: {', '.join(ms)}"


def _what(record: Record) -> str:
  """A command, without what goes without saying."""
  script, *rest = record["command"].split()
  words = [x for x in rest if not UNTOLD.match(x)]
  short = [re.sub(r"^--(config[=.])?", "", x) for x in words]
  short += record.get("xla_flags", "").split()
  return " ".join(short) or pathlib.Path(script).stem


def _table(*columns: str) -> Table:
  made = Table(box=None, pad_edge=False)
  for i, column in enumerate(columns):
    made.add_column(column, justify="right" if i else "left")
  return made


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
