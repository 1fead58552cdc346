"""Compiles the training step for an H100 or a TPU that is not there.

  .venv/h100/bin/python benchmarks/h100.py --config=electra_base:hc
      [--config.batch_size=32 ...] [--target=h100|v5e|v6e] [--top=16]
      [--recipes=baseline,hc] [--json=FILE] [--hlo=FILE] [--keep] [--nocompare]

`make h100` installs the compilers in .venv/h100. Nothing runs, so nothing is
measured. For the H100, roofline.py bounds the time of each launch from below;
this program cannot take less than their sum. XLA counts no FLOPs for a GPU, so
they are counted from the shapes of the products. Integer operations, most of
which make random bits, are shown but not in the bound. For TPUs the compiler
estimates the cycles of most operations.

The figures are compared with those of the same config in compiled.json, if the
same version of jax made them. Exit code 1: one is worse by more than a few
percent. --keep replaces the kept figures. --recipes compiles the config with
each of these corrections instead, and prints what they add to the first.
"""

import collections
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence

import absent
import figures
import hlo_listing
import jax
import roofline
import steps
import timing
from absl import flags
from kept import KEPT, Record, compare, config_key, keep, load_kept
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.train import plan
from truenegs_jax.train.start import describe_objective

_CONFIG = flags_lib.define_config()
_TARGET = flags.DEFINE_enum(
  "target", absent.H100, [absent.H100, *absent.ONE_CHIP], "The device."
)
_RECIPES = flags.DEFINE_list("recipes", [], "Compared with the first one.")
_TOP = flags.DEFINE_integer("top", 16, "Operations that are listed.", 0)
_JSON = flags.DEFINE_string("json", None, "File to append the figures to.")
_HLO = flags.DEFINE_string("hlo", None, "File for the compiled listing.")
_KEEP = flags.DEFINE_bool("keep", False, "Keep the figures in compiled.json.")
_COMPARE = flags.DEFINE_bool("compare", True, "Compare with kept figures.")

Bounds = Sequence[roofline.Bound]


def main(argv: list[str]) -> None:
  """Prints, saves and compares the figures of a config, or of recipes."""
  del argv
  console = Console(markup=False, highlight=False, width=120)
  c, worse = _CONFIG.value, False
  with timing.exit_on_error():
    devices = absent.get_devices(_TARGET.value)
    if _RECIPES.value:
      changed = {x: steps.with_recipe(c, x) for x in _RECIPES.value}
      records = {x: bound_step(changed[x], devices)[0] for x in changed}
      console.print(recipes_table(records))
    else:
      record, bounds, listing = bound_step(c, devices)
      records = {"": record}
      console.print(plan.report_table(report_lines(record)))
      console.print(groups_table(record))
      console.print(operations_table(bounds, _TOP.value))
      if _HLO.value:
        with disk_errors(path := pathlib.Path(_HLO.value)):
          path.write_text(listing)
      key = config_key(sys.argv[1:], _TARGET.value)
      if _KEEP.value:
        keep(KEPT, key, record)
      elif _COMPARE.value:
        worse, lines = compare(record, load_kept(KEPT).get(key))
        console.print(*lines, sep="\n")
    for record in records.values() if _JSON.value else ():
      timing.append_json(_JSON.value, record)
  sys.exit(int(worse))


def bound_step(
  c: ConfigDict, devices: Sequence[jax.Device]
) -> tuple[Record, Bounds, str]:
  """Compiles a config's step; returns its figures, bounds and listing."""
  step = absent.compile_step(c, devices)
  listing = step.compiled.as_text()
  arrays = jax.tree.leaves((step.state.params, step.aux))
  sizes = roofline.get_sizes(step.run, step.mesh, [x.shape for x in arrays])
  bounds = roofline.bound_launches(hlo_listing.parse(listing), sizes)
  memory = step.compiled.memory_analysis()
  record = {
    "command": " ".join(sys.argv),
    "device": f"{step.mesh.devices.flat[0].device_kind}, absent",
    "jax": jax.__version__,
    "objective": describe_objective(step.run.config),
    "batch": c.batch_size,
    "length": c.length,
    "dtype": c.model.dtype,
    "layers": f"remat {c.model.remat}, scan {c.model.scan}",
    "attention": step.attention,
    "trace_s": step.trace_secs,
    "compile_s": step.compile_secs,
    "scratch_gib": memory.temp_size_in_bytes / 2**30,
    "argument_gib": memory.argument_size_in_bytes / 2**30,
  }
  peak = roofline.PEAK_FLOPS[roofline.HLO_DTYPES[c.model.dtype]]
  return record | add_up(bounds, step.flops / peak), bounds, listing


def add_up(bounds: Bounds, model_secs: float) -> Record:
  """Adds up the bounds of a step.

  `model_secs`: seconds of the model's products at the peak rate.
  """
  has_cycles = any(x.cycles is not None for x in bounds)
  add_costs = _add_cycles if has_cycles else _add_times
  in_group = {
    name: [x for x in bounds if x.group == name] for name in roofline.GROUPS
  }
  logits = [x for x in bounds if x.logits_read or x.logits_written]
  kernels = collections.Counter[str]()
  for x in in_group[roofline.KERNELS]:
    kernels[roofline.kernel_name(x.launch.op)] += x.launch.times
  record = add_costs(bounds) | {
    "logits_ops": _total(logits, lambda x: 1),
    "logits_reads": _total(logits, lambda x: x.logits_read),
    "logits_writes": _total(logits, lambda x: x.logits_written),
    "kernels": dict(kernels),
    "groups": {name: add_costs(xs) for name, xs in in_group.items() if xs},
  }
  if has_cycles:
    work = [x for x in bounds if x.group != roofline.COPIES]
    estimated = _total(work, lambda x: x.cycles is not None)
    return record | {"estimated_share": estimated / _total(work, lambda x: 1)}
  integers = _total(bounds, lambda x: x.integers)
  return record | {
    "compute_ms": 1e3 * _total(bounds, lambda x: x.compute_secs),
    "memory_ms": 1e3 * _total(bounds, lambda x: x.memory_secs),
    "integer_ms": 1e3 * integers / roofline.INTEGER_RATE,
    "teraflops": _total(bounds, lambda x: x.flops) / 1e12,
    "mfu": 1e3 * model_secs / record["ms"],
  }


def _add_times(bounds: Bounds) -> Record:
  return {
    "ms": 1e3 * _total(bounds, lambda x: x.secs),
    "gigabytes": _total(bounds, lambda x: x.nbytes) / 1e9,
    "launches": _total(bounds, lambda x: 1),
  }


def _add_cycles(bounds: Bounds) -> Record:
  return {
    "mcycles": _total(bounds, lambda x: x.cycles or 0) / 1e6,
    "launches": _total(bounds, lambda x: 1),
  }


def _total(bounds: Bounds, get: Callable[[roofline.Bound], float]) -> float:
  return sum(get(x) * x.launch.times for x in bounds)


def report_lines(r: Record) -> dict[str, str]:
  """Formats a record as lines, name -> text."""
  if "mcycles" in r:
    lines = {
      "estimate": f"{r['mcycles']:,.2f} million cycles, for"
      f" {r['estimated_share']:.0%} of the operations that compute"
    }
  else:
    rate = 1e3 * r["batch"] / r["ms"]
    lines = {
      "bound": f"{r['ms']:,.2f} ms; compute alone {r['compute_ms']:,.2f},"
      f" memory alone {r['memory_ms']:,.2f}; integers, not in the bound,"
      f" {r['integer_ms']:,.2f}",
      "at most": f"{rate:,.0f} rows/s, {r['mfu']:.1%} of the {r['dtype']} peak",
      "traffic": f"{r['gigabytes']:,.1f} GB, {r['teraflops']:,.2f} TFLOP",
    }
  kernels = (f"{n:.0f} x {name}" for name, n in r["kernels"].items())
  return {
    "objective": r["objective"],
    "device": f"{r['device']}, jax {r['jax']}",
    "batch": f"{r['batch']:,} rows of {r['length']} tokens, {r['dtype']}",
    "layers": r["layers"],
    "attention": f"{r['attention']}: {', '.join(kernels) or 'no kernel'}",
    **lines,
    "launches": f"{r['launches']:,.0f}",
    "K x V": f"{r['logits_ops']:.0f} operations,"
    f" {r['logits_reads']:.0f} reads, {r['logits_writes']:.0f} writes",
    "memory": f"scratch {r['scratch_gib']:,.2f} GiB, arguments"
    f" {r['argument_gib']:,.2f} GiB",
    "seconds": f"{r['trace_s']:.1f} to trace, {r['compile_s']:.1f} to compile",
  }


def groups_table(record: Record) -> Table:
  """Builds a table of the costs of each group of operations."""
  unit = "mcycles" if "mcycles" in record else "ms"
  columns = [x for x in (unit, "gigabytes", "launches") if x in record]
  table = figures.make_table("group", *columns, "share")
  for name, costs in record["groups"].items():
    cells = (f"{costs[x]:,.{0 if x == 'launches' else 2}f}" for x in columns)
    table.add_row(name, *cells, f"{costs[unit] / record[unit]:.1%}")
  return table


def operations_table(bounds: Bounds, top: int) -> Table:
  """Builds a table of the costliest operations, and of all on K x V.

  Operations that are equal but for their layer are one row.
  """
  unit = "kcycles" if any(x.cycles is not None for x in bounds) else "us"
  table = figures.make_table(unit, "times", "operation", "writes", "JAX's path")
  for column in table.columns[2:]:
    column.justify, column.overflow = "left", "fold"
  rows = collections.defaultdict[tuple, list[roofline.Bound]](list)
  for x in bounds:
    path = re.sub(r"layer_\d+", "layer_N", x.launch.op.op_name)
    name = re.sub(r"[\d.]+$", "", x.launch.op.name)
    rows[x.group, name, path, x.launch.op.results].append(x)

  def cost(xs: Bounds) -> float:
    return _total(xs, lambda x: 1e6 * x.secs if unit == "us" else _kcycles(x))

  largest = sorted(rows, key=lambda key: -cost(rows[key]))
  on_logits = [x for x in largest[top:] if x[0] == roofline.LOGITS]
  for key in largest[:top] + on_logits:
    _, name, path, results = key
    arrays = [str(x) for x in results if x.dtype not in roofline.WORKSPACE]
    times = _total(rows[key], lambda x: 1)
    shown = ", ".join(arrays[:2]) + ", ..." * (len(arrays) > 2)
    table.add_row(f"{cost(rows[key]):,.1f}", f"{times:.0f}", name, shown, path)
  return table


def _kcycles(bound: roofline.Bound) -> float:
  return (bound.cycles or 0) / 1e3


def recipes_table(records: Mapping[str, Record]) -> Table:
  """Builds a table of the recipes; what each adds to the first is signed."""
  first = next(iter(records.values()))
  names = "ms", "mcycles", "gigabytes", "launches", "logits_ops", "scratch_gib"
  columns = [x for x in names if x in first]
  table = figures.make_table("recipe", *columns)
  for recipe, record in records.items():
    sign = "" if record is first else "+"
    base = dict.fromkeys(columns, 0) if record is first else first
    cells = (f"{record[x] - base[x]:{sign},.3f}" for x in columns)
    table.add_row(recipe, *(re.sub(r"\.000$", "", x) for x in cells))
  return table


if __name__ == "__main__":
  flags_lib.run(main)
