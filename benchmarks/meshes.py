"""Compares the losses of training steps on all devices with those on one.

  python benchmarks/meshes.py --config=electra_small:hc [--steps=3]
      [--presets=dp,fsdp,fsdp_tp] [--config.batch_size=32 ...]

Each preset of meshes sums over its devices in its own way; data, masks and
dropped units are the same. Products of f32 are computed in f32. Exit code 1: a
loss differs by more than rounding errors.
"""

import sys

import jax
import numpy as np
import steps
import timing
from absl import flags
from ml_collections import ConfigDict

from truenegs_jax.config import flags as flags_lib

_CONFIG = flags_lib.define_config()
_STEPS = flags.DEFINE_integer("steps", 3, "Steps compared.", 1)
_PRESETS = flags.DEFINE_list("presets", ["dp", "fsdp", "fsdp_tp"], "Of meshes.")

# Of a loss. A sampled token may be another one from the second step on.
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.02}


def main(argv: list[str]) -> None:
  """Prints the differences; exits with 1 if one is too large."""
  del argv
  devices = jax.devices()
  print(f"{len(devices)} x {devices[0].device_kind}")
  if len(devices) == 1:
    print("Nothing to compare: there is one device.")
    return
  is_wrong = False
  jax.config.update("jax_default_matmul_precision", "highest")
  with timing.exit_on_error():
    c = _CONFIG.value
    expected = run_steps(c, "dp", 1)
    for preset in _PRESETS.value:
      losses = run_steps(c, preset, len(devices))
      difference = float(np.max(abs(losses / expected - 1)))
      is_right = difference <= TOLERANCE[c.model.dtype]  # also false for NaN
      is_wrong |= not is_right
      verdict = "right" if is_right else "WRONG"
      print(f"{preset}: relative difference {difference:.1e}: {verdict}")
  sys.exit(int(is_wrong))


def run_steps(c: ConfigDict, preset: str, count: int) -> np.ndarray:
  """Returns the MLM losses of steps on `count` devices."""
  changed = c.copy_and_resolve_references()
  changed.mesh.preset = preset
  step = steps.make_step(changed, devices=jax.devices()[:count])
  state, losses = step.init_state(), []
  for i in range(_STEPS.value):
    state, terms = step.compiled(state, step.batch(i), step.aux)
    total, slots = terms["mlm"]
    losses.append(float(total) / float(slots))
  return np.array(losses)


if __name__ == "__main__":
  flags_lib.run(main)
