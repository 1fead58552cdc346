"""Measures how time and memory of a training step grow with its sizes.

  python benchmarks/growth.py --config=electra_small --out=FOLDER
      [--base=batch=4,length=128,layers=2] [--batch=2,4,8,16] [--length=...]
      [--vocabulary=...] [--layers=...] [--steps=10] [--json=FILE]

One size changes at a time; the others are those of --base, or of the config.
Each point is measured in a new process. An exponent is the slope of log(figure)
over log(size). "MiB compiled" is what the compiler reserves for arguments (with
the synonym table) and scratch. "MiB measured" is the device's peak; on a CPU,
the growth of the process (without the table). The plot is FOLDER/growth.png.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import figures
import jax
import numpy as np
import steps
import timing
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.models import registry
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.files import disk_errors

AXES = {
  "batch": ("2", "4", "8", "16"),
  "length": ("64", "128", "256", "512"),
  "vocabulary": ("7680", "15360", "30720", "61440"),
  "layers": ("1", "2", "4", "8"),
}
MEMORY = ("MiB compiled", "MiB measured")

_CONFIG = flags_lib.define_config()
_BASE = flags.DEFINE_list(
  "base", ["batch=4", "length=128", "layers=2"], "Sizes of the other axes."
)
_AXES = {
  axis: flags.DEFINE_list(axis, list(points), f"Points of the axis {axis}.")
  for axis, points in AXES.items()
}
_STEPS = flags.DEFINE_integer("steps", 10, "Steps that are timed.", 1)
_OUT = flags.DEFINE_string("out", None, "Folder for the plot.")
_JSON = flags.DEFINE_string("json", None, "File to append the figures to.")
_POINT = flags.DEFINE_string("point", None, "Only this point, as batch=8.")

Points = dict[int, dict[str, float | None]]  # size -> figures


def main(argv: list[str]) -> None:
  """Prints a table and draws a plot, or measures the point of --point."""
  del argv
  with timing.exit_on_error():
    if _POINT.value:
      c = resize_config(_CONFIG.value, [*_BASE.value, _POINT.value])
      print(json.dumps(measure_point(c, _STEPS.value)))
      return
    points = {x: _measure_axis(x, flag.value) for x, flag in _AXES.items()}
    if _JSON.value:
      record = {"command": " ".join(sys.argv), "points": points}
      timing.append_json(_JSON.value, record | timing.describe_machine())
    if _OUT.value:
      draw_plot(points, pathlib.Path(_OUT.value))
    Console(markup=False, highlight=False).print(make_table(points))


def resize_config(c: ConfigDict, sizes: Sequence[str]) -> ConfigDict:
  """Returns the config with sizes like "batch=8"; the last of an axis counts.

  Raises:
    InputError: a size is not an axis, =, and a whole number.
  """
  c = c.copy_and_resolve_references()
  for size in sizes:
    axis, _, number = size.partition("=")
    if axis not in AXES or not number.isdecimal():
      raise errors.InputError(
        f"{size!r} is not a size. Pass AXIS=NUMBER, such as batch=8. AXIS is"
        f" one of {', '.join(AXES)}."
      )
    n = int(number)
    if axis == "batch":
      c.batch_size = n
    elif axis == "length":
      c.length, c.model.max_positions = n, max(n, c.model.max_positions)
    elif axis == "vocabulary":
      c.data.vocab, c.data.vocab_size = "train", n
    else:
      variant = registry.variant_sizes(c.model.backbone, c.model.variant)
      variant["layers"] = n
      c.model.variant = " ".join(f"{key}={x}" for key, x in variant.items())
  return c


def measure_point(c: ConfigDict, count: int) -> dict[str, float | None]:
  """Measures ms and MiB of a config's step; None if a figure is unknown."""
  step = steps.make_step(c)
  baseline = _reset_peak() if jax.default_backend() == "cpu" else 0
  calls = steps.make_step_calls({"step": step})
  secs = timing.time_in_turns(calls, count, warmup=2)["step"]
  point: dict[str, float | None] = dict.fromkeys(("ms", *MEMORY))
  point["ms"] = 1e3 * float(np.median(secs))
  if memory := step.compiled.memory_analysis():
    size = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    point["MiB compiled"] = size / 2**20
  if baseline is not None:
    point["MiB measured"] = (timing.peak_bytes() - baseline) / 2**20
  return point


def _reset_peak() -> int | None:
  """Resets the peak memory to the current bytes; None if it cannot."""
  try:
    pathlib.Path("/proc/self/clear_refs").write_text("5")
  except OSError:  # not Linux, or not allowed
    return None
  return timing.peak_bytes()


def _measure_axis(axis: str, sizes: Sequence[str]) -> Points:
  """Measures each size in a process; leaves out those that fail."""
  points = {}
  for size in sizes:
    command = [sys.executable, *sys.argv, f"--point={axis}={size}"]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    code = process.returncode
    if code == errors.InputError.exit_code:
      sys.exit(code)  # the process has printed its error
    if code:
      print(
        f"warning: {axis}={size} failed with exit code {code}.", file=sys.stderr
      )
    else:
      points[int(size)] = json.loads(process.stdout.splitlines()[-1])
  return points


def fit_exponent(points: Points, figure: str) -> float:
  """Returns the slope of log(figure) over log(size); NaN if unknown."""
  known = {n: x[figure] for n, x in points.items() if x[figure]}
  if len(known) < 2:
    return float("nan")
  values = np.array(list(known.values()), float)
  return float(np.polyfit(np.log(list(known)), np.log(values), 1)[0])


def make_table(points_by_axis: dict[str, Points]) -> Table:
  """Builds a table of the figures and exponents of every axis."""
  table = figures.make_table("axis", "size", "ms", *MEMORY)
  for axis, points in points_by_axis.items():
    for n, point in points.items():
      cells = ("" if x is None else f"{x:,.1f}" for x in point.values())
      table.add_row(axis, f"{n:,}", *cells)
    exponents = (fit_exponent(points, figure) for figure in ("ms", *MEMORY))
    table.add_row(axis, "exponent", *(f"{x:.2f}" for x in exponents))
  return table


def draw_plot(points_by_axis: dict[str, Points], folder: pathlib.Path) -> None:
  """Writes growth.png: a column per axis, time above memory."""
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot, ticker

  num = len(points_by_axis)
  plot, panels_2xA = pyplot.subplots(
    2, num, figsize=(3 * num, 6), squeeze=False, sharex="col", sharey="row"
  )
  for i, (axis, points) in enumerate(points_by_axis.items()):
    for panel, names in zip(panels_2xA[:, i], (["ms"], MEMORY), strict=True):
      for figure in names:
        known = {n: x[figure] for n, x in points.items() if x[figure]}
        label = f"{figure}: n^{fit_exponent(points, figure):.2f}"
        panel.loglog(list(known), list(known.values()), "o-", label=label)
      panel.set_xticks(list(points), [f"{n:,}" for n in points])
      panel.xaxis.set_minor_locator(ticker.NullLocator())
      panel.legend(fontsize="small")
    panels_2xA[-1, i].set_xlabel(axis)
  plot.tight_layout()
  with disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
    plot.savefig(folder / "growth.png", dpi=150)


if __name__ == "__main__":
  flags_lib.run(main)
