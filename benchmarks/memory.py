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

import importlib.util
import os
import sys
import time
from collections.abc import Sequence

import jax
from absl import flags
from jax.experimental import topologies
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.pretrain import dry_run
from truenegs_jax.runtime import errors
from truenegs_jax.runtime import flags as flags_lib
from truenegs_jax.train import build_run, checks, plan, sharding

_CONFIG = flags_lib.define_config()
_DEVICES = flags.DEFINE_integer("devices", 8, "Simulated CPU devices.", 1)
_TOPOLOGY = flags.DEFINE_string(
  "topology", None, "TPU chips instead, such as v5e:16x16. Needs libtpu."
)


def main(argv: list[str]) -> None:
  """Prints the report of one config."""
  del argv
  jax.config.update("jax_platforms", "cpu")
  try:
    devices = get_tpu_chips(_TOPOLOGY.value) if _TOPOLOGY.value else None
    # `check_config` counts JAX's devices: simulate as many as the topology has.
    count = len(devices) if devices else _DEVICES.value
    jax.config.update("jax_num_cpu_devices", count)
    lines = report(_CONFIG.value, devices)
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
  Console(markup=False, highlight=False).print(plan.report_table(lines))


def get_tpu_chips(topology: str) -> list[jax.Device]:
  """Returns the chips of a topology; InputError if libtpu does not know it."""
  if importlib.util.find_spec("libtpu") is None:
    raise errors.InputError(
      "--topology needs libtpu. Run pip install 'truenegs_jax[tpu]'."
    )
  # libtpu otherwise looks for the machine's chips, and refuses to be loaded by
  # two processes. Compiling uses no chip.
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5e-1")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  try:
    return topologies.get_topology_desc(topology, "tpu").devices
  except jax.errors.JaxRuntimeError as e:
    raise errors.InputError(
      f"--topology={topology!r} is unknown: {e}. Choose one such as v5e:2x4 or"
      " v5p:2x2x2."
    ) from e


def report(
  c: ConfigDict, devices: Sequence[jax.Device] | None = None
) -> dict[str, str]:
  """Compiles the step of a config and describes it, name -> text of each line.

  Args:
    c: a config of pre-training.
    devices: to compile for; default: all of JAX's.

  Raises:
    InputError: the config is invalid, or its step does not fit on a device.
  """
  checks.check_config(c)
  tokenizer, _ = dry_run.placeholder_tokenizer(c)
  run = build_run.build_run(c, tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec, devices)
  run, attention = plan.resolve_attention(run, mesh)
  state = plan.abstract_state(run, mesh)
  aux = plan.abstract_aux(run, mesh)
  start = time.perf_counter()
  lowered = plan.lower_train_step(run, mesh, state, aux)
  traced = time.perf_counter()
  compiled = _compile(lowered)
  end = time.perf_counter()
  rows = c.batch_size // mesh.shape[sharding.DATA_AXIS]
  flops = plan.row_flops(run) * c.batch_size / mesh.devices.size
  return {
    "objective": run.summary,
    "devices": plan.describe_devices(run.mesh_preset, mesh),
    "parameters": plan.describe_parameters(run.model, state.params),
    "per device": plan.describe_memory(state, aux),
    "batch": f"{c.batch_size:,} rows of {c.length} tokens, {rows:,} per mesh"
    f" slice, in {c.optim.accumulation} micro-batch(es)",
    "layers": f"remat {c.model.remat}, scan {c.model.scan}",
    "attention": attention,
    **_describe_compiled(compiled),
    "FLOPs": f"{flops:.3g} per device and step, of the matrix products",
    "seconds": f"{traced - start:.1f} to trace, {end - traced:.1f} to compile",
  }


def _compile(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    raise errors.InputError(
      f"The step does not fit on a device: {str(e).splitlines()[0]} Set a"
      " larger --config.optim.accumulation=N, --config.model.remat=full or more"
      " devices."
    ) from e


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
