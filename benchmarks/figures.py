"""Prints tables of the figures that other benchmarks saved with --json=FILE.

  python benchmarks/figures.py FILE

FILE contains a list of records in JSON. The bound of a step is that of its
compiled listing (roofline.py), on an H100. The targets are for one H100:
ELECTRA-base with rows of 512 tokens at 45 % of its bfloat16 peak, and
ELECTRA-small with rows of 128 tokens.
"""

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

# Pattern of the command -> rows/s.
TARGETS = (
  (r"electra_base\b.*--config\.length=512\b", 1_300),
  (r"electra_small\b.*--config\.length=128\b", 18_000),
)
MAX_HALF_WIDTH = 0.003  # of an overhead's interval
# Flags that matter little or have their own column.
HIDDEN_FLAGS = re.compile(
  r"--(json|steps|warmup|pairs|config\.(batch_size|length|model\.dtype))="
)

Record = Mapping[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the tables of a file; exits with 2 if it cannot be read."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("file", type=pathlib.Path)
  path = parser.parse_args(argv).file
  try:
    saved = json.loads(path.read_text())
  except (ValueError, OSError) as e:
    parser.error(f"{path}: no records in JSON: {e}. Pass a --json=FILE.")
  records = [r | r.get("machine", {}) for r in saved]
  console = Console(markup=False, highlight=False, width=120)
  for device in dict.fromkeys(r["device"] for r in records):
    device_records = [r for r in records if r["device"] == device]
    console.print(f"{device}, jax {device_records[0]['jax']}")
    for build_table in (steps_table, overheads_table):
      if (table := build_table(device_records)).row_count:
        console.print(table)
    for line in other_lines(device_records):
      console.print(line)
  return 0


def steps_table(records: Sequence[Record]) -> Table:
  """Builds a table of the records of step.py, with their targets."""
  table = make_table(
    *("step of", "dtype", "rows", "ms", "bound, ms", "rows/s", "target"),
    *("MFU", "of matmul", "GiB", "compiled, s"),
  )
  for r in records:
    if "rows_per_s" not in r:
      continue
    target = next((t for p, t in TARGETS if re.search(p, r["command"])), None)
    table.add_row(
      _short_command(r),
      r["dtype"],
      f"{r['batch']} x {r['length']}",
      f"{1e3 * r['step_s']['median']:,.1f}",
      f"{1e3 * r['bound_s']:,.1f}" if r.get("bound_s") else "",
      f"{r['rows_per_s']:,.0f}",
      f"{r['rows_per_s'] / target:.0%} of {target:,}" if target else "",
      f"{r['mfu']:.1%}" if r["mfu"] else "",
      f"{r['of_matmul']:.1%}",
      f"{r['peak_bytes'] / 2**30:.1f}",
      f"{r['compile_s']:.0f}",
    )
  return table


def overheads_table(records: Sequence[Record]) -> Table:
  """Builds a table of the records of overheads.py, one row per recipe."""
  table = make_table("overhead of", "recipe", "ms", "%", "95 %", "+- <= 0.3 %")
  for r in records:
    for recipe, x in r.get("times", {}).items():
      low, high = x["interval"]
      table.add_row(
        _short_command(r),
        recipe,
        f"{1e3 * x['step_s']['median']:.2f}",
        f"{100 * x['overhead']:+.2f}",
        f"{100 * low:+.2f} to {100 * high:+.2f}",
        "yes" if x["half_width"] <= MAX_HALF_WIDTH else "no",
      )
  return table


def other_lines(records: Sequence[Record]) -> Iterator[str]:
  """Yields lines about agreement.py, attention.py and random_numbers.py."""
  for r in records:
    if "agrees" in r:
      result = "agrees" if r["agrees"] else "DIFFERS"
      yield f"{_short_command(r)}: {result}"
    for form, x in r.get("forms", {}).items():
      sizes = " ".join(f"{k}={v}" for k, v in r["given"].items())
      error = max(x.get("errors", {}).values(), default=float("nan"))
      ms = 1e3 * x["secs"]["median"] if "secs" in x else float("nan")
      result = x.get("failure", f"error {error:.1e}, {ms:.2f} ms")
      yield f"attention {sizes}, {form}: {result}"
    for group in ("layers", "attention", "tokens"):
      if isinstance(r.get(group), dict):
        ms = (f"{k} {1e3 * x['median']:.2f}" for k, x in r[group].items())
        yield f"{_short_command(r)}, random {group}, ms: {', '.join(ms)}"


def _short_command(record: Record) -> str:
  """Returns a command's important flags, or the name of its script."""
  script, *flags = record["command"].split()
  shown = [x for x in flags if not HIDDEN_FLAGS.match(x)]
  words = [re.sub(r"^--(config[=.])?", "", x) for x in shown]
  words += record.get("xla_flags", "").split()
  return " ".join(words) or pathlib.Path(script).stem


def make_table(*columns: str) -> Table:
  """Builds an empty table without borders; its first column is text."""
  table = Table(box=None, pad_edge=False)
  for i, column in enumerate(columns):
    table.add_column(column, justify="right" if i else "left")
  return table


if __name__ == "__main__":
  sys.exit(main())
