"""Compiles a run and its end for the chips that the docs name: memory.

  .venv/h100/bin/python benchmarks/fits.py --config=electra_large:hc
      --config.optim.accumulation=1 --target=v5e:16x16
      [--programs=train,evaluate,search] [--keep]

Compiles the training step, an evaluation and the search for cases, which ends a
run with hard correction, for devices that are not there: an H100 or a topology
of TPUs. Prints the memory that one device needs for each, with the state of the
run, and compares it with compiled.json. Exit code 1: one needs more than a few
percent more, or does not fit. --keep replaces the kept figures. `make h100`
does this for the meshes of the configs' first lines.
"""

import sys

import absent
import jax
import timing
from absl import flags
from kept import KEPT, compare, config_key, keep, load_kept
from rich.console import Console

from truenegs_jax.config import flags as flags_lib

_CONFIG = flags_lib.define_config()
_TARGET = flags.DEFINE_string("target", absent.H100, "h100, or as v5e:16x16.")
_PROGRAMS = flags.DEFINE_list("programs", [*absent.PROGRAMS], "To compile.")
_KEEP = flags.DEFINE_bool("keep", False, "Keep the figures in compiled.json.")


def main(argv: list[str]) -> None:
  """Prints and compares the memory of the programs of a config."""
  del argv
  console = Console(markup=False, highlight=False, width=120)
  key = config_key(sys.argv[1:], f"memory {_TARGET.value}")
  with timing.exit_on_error():
    devices = absent.get_devices(_TARGET.value)
    kept = load_kept(KEPT).get(key)
    record = {"devices": len(devices), "jax": jax.__version__}
    for name in _PROGRAMS.value:
      gib = absent.measure_memory(_CONFIG.value, devices, name)
      console.print(f"{name}: {gib:.2f} GiB on each of {len(devices)}")
      record[f"{name}_gib"] = gib
  if _KEEP.value:
    same = (kept or {}) if (kept or record)["jax"] == record["jax"] else {}
    keep(KEPT, key, same | record)
    return
  worse, lines = compare(record, kept)
  console.print(*lines, sep="\n")
  sys.exit(int(worse))


if __name__ == "__main__":
  flags_lib.run(main)
