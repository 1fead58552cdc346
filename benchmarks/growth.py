"""Shows how the cost of a step grows: by length, batch, devices, vocabulary.

  python benchmarks/growth.py --config=electra_small:hc [--rounds=5]
      [--series=length,batch] [--json=FILE] [--figure=FILE.svg]
  .venv/h100/bin/python benchmarks/growth.py --config=... --target=h100 [...]

A series changes one size of a small model: the length of rows, at the same
number of tokens; the number of rows; the devices that share these rows; or the
size of the vocabulary. On the CPU, the steps of a series are timed in turns.
Its devices are simulated and share its cores, so that their time should stay
the same. With --target nothing runs: roofline.py bounds the time. In both
cases, scratch memory is the compiler's.

Each line has the cost and the cost per GFLOP of the matrix products, relative
to the first line of its series: 1 where cost grows as the products do. Random
rows have no padding. --figure draws the last figures, one panel a series.
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import absent
import figures
import hlo_listing
import jax
import jax.extend
import numpy as np
import roofline
import steps
import timing
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.train import plan

SERIES = {
  "length": (128, 512, 2_048, 4_096, 8_192),
  "batch": (8, 32, 128),
  "devices": (1, 2, 4, 8),
  "vocabulary": (30_522, 65_536, 131_072, 262_144),
}
# Sizes of the other series.
TOKENS, LENGTH, VOCABULARY = 8_192, 128, SERIES["vocabulary"][0]
MODELS = {
  "": "embedding_size=128 width=128 layers=2 heads=2 ffn=512",
  absent.H100: "embedding_size=768 width=768 layers=2 heads=12 ffn=3072",
}

_CONFIG = flags_lib.define_config()
_SERIES = flags.DEFINE_list("series", [*SERIES], "Those that are measured.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds of steps in turns.", 2)
_TARGET = flags.DEFINE_enum("target", "", [*MODELS], "A device not there.")
_JSON = flags.DEFINE_string("json", None, "File to append the figures to.")
_FIGURE = flags.DEFINE_string("figure", None, "File to draw them in.")

Record = dict[str, Any]


def main(argv: list[str]) -> None:
  """Prints, saves and draws the figures of all series."""
  del argv
  console = Console(markup=False, highlight=False, width=100)
  with timing.exit_on_error():
    target, series = _TARGET.value, dict[str, list[Record]]()
    devices = absent.get_devices(target) if target else ()
    for name in _SERIES.value:
      if not target:
        series[name] = measure(name)
      elif name != "devices":
        series[name] = bound(name, devices)
      else:
        continue
      console.print(growth_table(name, series[name]))
    record = timing.new_record() | {"target": target, "series": series}
    if _JSON.value:
      timing.append_json(_JSON.value, record)
    if _FIGURE.value:
      with disk_errors(path := pathlib.Path(_FIGURE.value)):
        draw(series, path)


def make_configs(series: str) -> Iterator[tuple[int, ConfigDict]]:
  """Yields the sizes of a series and their configs."""
  for size in SERIES[series]:
    c = _CONFIG.value.copy_and_resolve_references()
    c.model.variant = MODELS[_TARGET.value]
    c.length = c.model.max_positions = size if series == "length" else LENGTH
    c.batch_size = size if series == "batch" else TOKENS // c.length
    c.data.vocab_size = size if series == "vocabulary" else VOCABULARY
    yield size, c


def measure(series: str) -> list[Record]:
  """Times the steps of a series in turns."""
  jax.extend.backend.clear_backends()
  count = max(SERIES[series]) if series == "devices" else 1
  devices = absent.simulate_devices(count)
  points, calls = [], {}
  for size, c in make_configs(series):
    step = steps.make_step(c, devices=devices[:size])
    calls[str(size)] = steps.make_step_calls({"step": step})["step"]
    scratch = step.compiled.memory_analysis().temp_size_in_bytes
    points.append(describe(size, c, step.run, step.flops, scratch))
  secs = timing.time_in_turns(calls, _ROUNDS.value)
  return [
    point | {x: 1e3 * y for x, y in timing.quantiles(times).items()}
    for point, times in zip(points, secs.values(), strict=True)
  ]


def bound(series: str, devices: Sequence[jax.Device]) -> list[Record]:
  """Compiles the steps of a series and bounds their times."""
  points = []
  for size, c in make_configs(series):
    c.model.dtype = "bfloat16"
    step = absent.compile_step(c, devices)
    scratch = step.compiled.memory_analysis().temp_size_in_bytes
    point = describe(size, c, step.run, step.flops, scratch)
    listing = hlo_listing.parse(step.compiled.as_text())
    sizes = roofline.get_sizes(step.run, step.mesh, ())
    bounds = roofline.bound_launches(listing, sizes)
    ms = 1e3 * sum(x.secs * x.launch.times for x in bounds)
    points.append(point | {"median": ms})
  return points


def describe(
  size: int, c: ConfigDict, run: plan.Run, flops: float, scratch: int
) -> Record:
  """Returns what is known of a point before it is timed."""
  return {
    "size": size,
    "rows": c.batch_size,
    "gflop": flops / 1e9,
    "scratch_mib": scratch / 2**20,
    "chunk": run.config.model.vocabulary_chunk,
  }


def growth_table(series: str, points: Sequence[Mapping[str, Any]]) -> Table:
  """Builds a table of a series; the last column is relative to its first."""
  columns = "rows", "GFLOP", "ms", "p10 to p90", "scratch, MiB"
  table = figures.make_table(series, *columns, "ms", "ms a GFLOP")
  first = points[0]
  for x in points:
    growth = x["median"] / first["median"]
    table.add_row(
      *(f"{x['size']:,}", f"{x['rows']}", f"{x['gflop']:,.1f}"),
      f"{x['median']:,.1f}" if x["median"] > 10 else f"{x['median']:.3f}",
      f"{x['p10']:,.1f} to {x['p90']:,.1f}" if "p10" in x else "",
      f"{x['scratch_mib']:,.0f}",
      f"{growth:.2f}",
      f"{growth * first['gflop'] / x['gflop']:.2f}",
    )
  return table


def draw(series: Mapping[str, Sequence[Record]], path: pathlib.Path) -> None:
  """Draws one panel a series: milliseconds, and dashed those of equal rates."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(8.4, 2.4), layout="constrained")
  panels = figure.subplots(1, len(series), squeeze=False)[0]
  for (name, points), axes in zip(series.items(), panels, strict=True):
    ms, gflop, sizes = (
      np.array([x[key] for x in points]) for key in ("median", "gflop", "size")
    )
    axes.loglog(sizes, ms, "o-", color="#0072b2", markersize=3)
    axes.loglog(sizes, ms[0] * gflop / gflop[0], "--", color="#aeb6bf")
    axes.set_title(name, fontsize=9)
    axes.set_xticks(sizes, [f"{x:,}" for x in sizes])
    axes.set_xticks([], minor=True)
    axes.tick_params(which="both", labelsize=6)
  panels[0].set_ylabel("ms a step", fontsize=8)
  figure.savefig(path)


if __name__ == "__main__":
  flags_lib.run(main)
