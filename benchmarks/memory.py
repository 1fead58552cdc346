"""Prints how much memory of N devices the training step of a config takes.

  python benchmarks/memory.py --config=electra_large --topology=v5e:16x16
  python benchmarks/memory.py --config=electra_large --devices=256
      [--config.mesh.preset=fsdp_tp --config.optim.accumulation=4 ...]

Compiles the step without text, rows, weights or an accelerator, and prints the
compiler's memory analysis. State, synonyms and batch are exact.

--topology compiles for TPU chips, which needs libtpu but no TPU. --devices
compiles for N simulated CPU devices. Scratch memory (activations, gathered
parameters, gradients) is then an estimate: on a CPU, XLA widens some bfloat16
arrays and schedules operations differently. Without --config.model.scan=True
it does not defer the recomputation of model.remat, which seems to save nothing.
"""

from collections.abc import Sequence

import absent
import jax
import timing
from absl import flags
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.train import plan, sharding
from truenegs_jax.train.start import describe_objective

_CONFIG = flags_lib.define_config()
_DEVICES = flags.DEFINE_integer("devices", 8, "Simulated CPU devices.", 1)
_TOPOLOGY = flags.DEFINE_string(
  "topology", None, "TPU chips instead, such as v5e:16x16. Needs libtpu."
)


def main(argv: list[str]) -> None:
  """Prints the report of one config."""
  del argv
  with timing.exit_on_error():
    if _TOPOLOGY.value:
      devices = absent.get_devices(_TOPOLOGY.value)
    else:
      devices = absent.simulate_devices(_DEVICES.value)
    lines = report(_CONFIG.value, devices)
  Console(markup=False, highlight=False).print(plan.report_table(lines))


def report(c: ConfigDict, devices: Sequence[jax.Device]) -> dict[str, str]:
  """Compiles the step of a config and describes it, name -> text of each line.

  Raises:
    InputError: the config is invalid, or its step does not fit on a device.
  """
  step = absent.compile_step(c, devices)
  rows = c.batch_size // step.mesh.shape[sharding.DATA_AXIS]
  return {
    "objective": describe_objective(step.run.config),
    "devices": plan.describe_devices(step.run.config.mesh.preset, step.mesh),
    "parameters": plan.describe_parameters(step.run.model, step.state.params),
    "per device": plan.describe_memory(step.state, step.aux),
    "batch": f"{c.batch_size:,} rows of {c.length} tokens, {rows:,} per mesh"
    f" slice, in {c.optim.accumulation} micro-batch(es)",
    "layers": f"remat {c.model.remat}, scan {c.model.scan}",
    "attention": step.attention,
    "logits": plan.describe_logits(step.run, step.mesh),
    **_describe_compiled(step.compiled),
    "FLOPs": f"{step.flops:.3g} per device and step, of the matrix products",
    "seconds": f"{step.trace_secs:.1f} to trace, {step.compile_secs:.1f} to"
    " compile",
  }


def _describe_compiled(compiled: jax.stages.Compiled) -> dict[str, str]:
  """Returns the compiler's figures for one device, if it has any."""
  lines = {}
  if m := compiled.memory_analysis():
    arguments, outputs = m.argument_size_in_bytes, m.output_size_in_bytes
    donated, scratch = m.alias_size_in_bytes, m.temp_size_in_bytes
    lines["memory"] = (
      f"arguments {plan.format_mib(arguments)}, outputs"
      f" {plan.format_mib(outputs)} (in place {plan.format_mib(donated)}),"
      f" scratch {plan.format_mib(scratch)}"
    )
    total = arguments + outputs - donated + scratch
    lines["total"] = f"{total / 2**30:,.1f} GiB per device"
  cost = compiled.cost_analysis()
  if cost and "flops" in cost:
    lines["compiler"] = f"{cost['flops']:.3g} FLOPs, each loop counted once"
  return lines


if __name__ == "__main__":
  flags_lib.run(main)
