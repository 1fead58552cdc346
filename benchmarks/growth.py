"""How the time and the memory of a training step grow with its sizes.

  python benchmarks/growth.py --config=electra_small --out=FOLDER
      [--base=batch=4,length=128,layers=2] [--batch=2,4,8,16] [--length=...]
      [--vocabulary=...] [--layers=...] [--steps=10] [--json=FILE]

One size changes at a time, the others stay as --base has them; what it leaves
out is the config's. An exponent is the slope between the logarithms over all
points of an axis: 1 where twice the size takes twice as much, less where a part
does not grow. "compiled" is what the compiler sets aside, arguments, with the
table of synonyms, and scratch; "measured" is the device's peak, on a CPU what
the process has grown by since the step was compiled, which is after the table
was made. Each point is a process of its own, which compiles.
FOLDER gets growth.png.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence

import jax
import numpy as np
import steps
import timing
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console
from rich.table import Table

from truenegs_jax.models import registry
from truenegs_jax.runtime import errors
from truenegs_jax.runtime import flags as flags_lib
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
  "base", ["batch=4", "length=128", "layers=2"], "Sizes off their own axis."
)
_AXES = {
  axis: flags.DEFINE_list(axis, list(points), f"Points of the axis {axis}.")
  for axis, points in AXES.items()
}
_STEPS = flags.DEFINE_integer("steps", 10, "Steps that are timed.", 1)
_OUT = flags.DEFINE_string("out", None, "Folder for the plot.")
_JSON = flags.DEFINE_string("json", None, "File to add the figures to.")
_POINT = flags.DEFINE_string("point", None, "Measures one, such as batch=8.")

Points = dict[int, dict[str, float | None]]  # size -> figures


def main(argv: list[str]) -> None:
  """Prints a table and draws it, or says what is wrong with the config."""
  del argv
  try:
    if _POINT.value:
      c = resized(_CONFIG.value, [*_BASE.value, _POINT.value])
      print(json.dumps(measure(c, _STEPS.value)))
      return
    found = {axis: _measured(axis, flag.value) for axis, flag in _AXES.items()}
    if _JSON.value:
      record = {"command": " ".join(sys.argv), "points": found}
      timing.append_json(_JSON.value, record | timing.machine())
    if _OUT.value:
      draw(found, pathlib.Path(_OUT.value))
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
  Console(markup=False, highlight=False).print(table(found))


def resized(c: ConfigDict, sizes: Sequence[str]) -> ConfigDict:
  """The config with other sizes: "batch=8", ...; the last of a name counts.

  Raises:
    InputError: not the name of an axis, =, and a whole number.
  """
  c = c.copy_and_resolve_references()
  for size in sizes:
    axis, _, number = size.partition("=")
    if axis not in AXES or not number.isdecimal():
      raise errors.InputError(
        f"{size!r} is no size; give one of {', '.join(AXES)}, such as batch=8."
      )
    n = int(number)
    if axis == "batch":
      c.batch_size = n
    elif axis == "length":
      c.length, c.model.max_positions = n, max(n, c.model.max_positions)
    elif axis == "vocabulary":
      c.data.vocab, c.data.vocab_size = "train", n
    else:
      found = registry.variant_sizes(c.model.backbone, c.model.variant) | {
        "layers": n
      }
      c.model.variant = " ".join(f"{key}={x}" for key, x in found.items())
  return c


def measure(c: ConfigDict, count: int) -> dict[str, float | None]:
  """The figures of one point: ms, and MiB in two ways, None if not known."""
  step = steps.make_step(c)
  before: int | None = 0
  if jax.default_backend() == "cpu":
    before = _forget_peak()
  takers = steps.takers({"step": step})
  secs = timing.in_turn(takers, count, warmup=2)["step"]
  memory = step.compiled.memory_analysis()
  held = memory and memory.argument_size_in_bytes + memory.temp_size_in_bytes
  grown = None if before is None else timing.peak_bytes() - before
  mebibytes = lambda x: None if x is None else x / 2**20
  return {
    "ms": 1e3 * float(np.median(secs)),
    "MiB compiled": mebibytes(held),
    "MiB measured": mebibytes(grown),
  }


def _forget_peak() -> int | None:
  """What this process holds; it is its peak from now on. None: unknown."""
  try:
    pathlib.Path("/proc/self/clear_refs").write_text("5")
  except OSError:  # not Linux, or not allowed
    return None
  return timing.peak_bytes()


def _measured(axis: str, points: Sequence[str]) -> Points:
  """Size -> figures, without the points that ended, for want of memory say."""
  found = {}
  for point in points:
    call = [sys.executable, *sys.argv, f"--point={axis}={point}"]
    ran = subprocess.run(call, stdout=subprocess.PIPE, text=True)
    if ran.returncode == errors.InputError.exit_code:
      sys.exit(ran.returncode)  # it has told why
    if ran.returncode:
      print(f"{axis}={point} ended with {ran.returncode}", file=sys.stderr)
      continue
    found[int(point)] = json.loads(ran.stdout.splitlines()[-1])
  return found


def exponent(points: Points, figure: str) -> float:
  """The slope between the logarithms of size and figure; NaN: unknown."""
  known = {n: x[figure] for n, x in points.items() if x[figure]}
  if len(known) < 2:
    return float("nan")
  values = np.array(list(known.values()), float)
  return float(np.polyfit(np.log(list(known)), np.log(values), 1)[0])


def table(found: dict[str, Points]) -> Table:
  """Figures and exponents of every axis."""
  made = Table(box=None, pad_edge=False)
  for column in ("axis", "size", "ms", *MEMORY):
    made.add_column(column, justify="left" if column == "axis" else "right")
  for axis, points in found.items():
    for n, x in points.items():
      cells = ("" if v is None else f"{v:,.1f}" for v in x.values())
      made.add_row(axis, f"{n:,}", *cells)
    slopes = (exponent(points, figure) for figure in ("ms", *MEMORY))
    made.add_row(axis, "exponent", *(f"{slope:.2f}" for slope in slopes))
  return made


def draw(found: dict[str, Points], folder: pathlib.Path) -> None:
  """Writes growth.png: time above and memory below, an axis a column."""
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot, ticker

  figure, panels_2xA = pyplot.subplots(
    2,
    len(found),
    figsize=(3 * len(found), 6),
    squeeze=False,
    sharex="col",
    sharey="row",
  )
  for column, (axis, points) in enumerate(found.items()):
    for panel, names in zip(
      panels_2xA[:, column], (("ms",), MEMORY), strict=True
    ):
      for name in names:
        known = {n: x[name] for n, x in points.items() if x[name]}
        label = f"{name}: n^{exponent(points, name):.2f}"
        panel.loglog(list(known), list(known.values()), "o-", label=label)
      panel.set_xticks(list(points), [f"{n:,}" for n in points])
      panel.xaxis.set_minor_locator(ticker.NullLocator())
      panel.legend(fontsize="small")
    panels_2xA[-1, column].set_xlabel(axis)
  figure.tight_layout()
  with disk_errors(folder):
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "growth.png", dpi=150)


if __name__ == "__main__":
  flags_lib.run(main)
