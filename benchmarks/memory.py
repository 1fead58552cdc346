"""What the training step of a config takes of the memory of N devices.

  python benchmarks/memory.py --config=electra_large --topology=v5e:16x16
  python benchmarks/memory.py --config=electra_large --devices=256
      [--config.mesh.preset=fsdp_tp --config.optim.accumulation=4 ...]

Compiles the step without text, rows, weights or an accelerator, and prints the
compiler's own account of it. State, synonyms and batch are exact on any device.

--topology compiles for TPU chips, which need not be there: what a run would do.
--devices compiles for N simulated CPU devices. Scratch memory (activations,
gathered parameters, gradients) is then an estimate: a CPU widens bfloat16 in
places and orders the work in its own way. Without --config.model.scan=True it
does not put off what model.remat computes again, so that remat seems to save
nothing.
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
_DEVICES = flags.DEFINE_integer("devices", 8, "Simulated devices.", 1)
_TOPOLOGY = flags.DEFINE_string(
  "topology", None, "TPU chips instead, such as v5e:16x16. Needs libtpu."
)


def main(argv: list[str]) -> None:
  """Prints the report of one config, or what is wrong with it."""
  del argv
  jax.config.update("jax_platforms", "cpu")
  try:
    devices = tpu_chips(_TOPOLOGY.value) if _TOPOLOGY.value else None
    # `check_config` counts the devices that JAX has, be they simulated.
    count = len(devices) if devices else _DEVICES.value
    jax.config.update("jax_num_cpu_devices", count)
    lines = report(_CONFIG.value, devices)
  except errors.TrueNegsError as e:
    print(f"error: {errors.printable(e)}", file=sys.stderr)
    sys.exit(e.exit_code)
  Console(markup=False, highlight=False).print(plan.report_table(lines))


def tpu_chips(topology: str) -> list[jax.Device]:
  """Chips that a step can be compiled for, though they are not here.

  Raises:
    InputError: no libtpu, or it knows of no such topology.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise errors.InputError(
      "--topology needs the compiler of TPUs: pip install 'truenegs_jax[tpu]'."
    )
  # Else libtpu complains that it cannot find out where it runs, and refuses to
  # be loaded twice; nothing here touches a chip.
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5e-1")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  try:
    return topologies.get_topology_desc(topology, "tpu").devices
  except jax.errors.JaxRuntimeError as e:
    raise errors.InputError(
      f"--topology={topology}: {e}; give one such as v5e:2x4 or v5p:2x2x2."
    ) from e


def report(
  c: ConfigDict, devices: Sequence[jax.Device] | None = None
) -> dict[str, str]:
  """Compiles the step of a config over devices (default: all); name -> text.

  Raises:
    InputError: the config cannot be, or its step does not fit a device.
  """
  checks.check_config(c)
  tokenizer, _ = dry_run.placeholder_tokenizer(c)
  run = build_run.build_run(c, tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec, devices)
  run, attention = plan.resolve_attention(run, mesh)
  state = plan.abstract_state(run, mesh)
  aux = plan.abstract_aux(run, mesh)
  began = time.perf_counter()
  lowered = plan.lower_train_step(run, mesh, state, aux)
  traced = time.perf_counter()
  compiled = _compile(lowered)
  done = time.perf_counter()
  rows = c.batch_size // mesh.shape[sharding.DATA_AXIS]
  flops = plan.row_flops(run) * c.batch_size / mesh.devices.size
  return {
    "objective": run.summary,
    "devices": plan.describe_devices(run, mesh),
    "parameters": plan.describe_parameters(run.model, state.params),
    "held": plan.describe_memory(state, aux),
    "batch": f"{c.batch_size:,} rows of {c.length} tokens, {rows:,} of them a"
    f" slice of the mesh, in {c.optim.accumulation} micro-batch(es)",
    "layers": f"remat {c.model.remat}, scan {c.model.scan}",
    "attention": attention,
    **_account(compiled),
    "FLOPs": f"{flops:.3g} a device and step, by the shapes",
    "seconds": f"{traced - began:.1f} to trace, {done - traced:.1f} to compile",
  }


def _compile(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
  try:
    return lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    raise errors.InputError(
      f"the step does not fit: {str(e).splitlines()[0]} Try a larger"
      " optim.accumulation, model.remat=full or more devices."
    ) from e


def _account(compiled: jax.stages.Compiled) -> dict[str, str]:
  """The compiler's figures for one device, as far as it gives any."""
  lines = {}
  memory = compiled.memory_analysis()
  if memory is not None:
    arguments = memory.argument_size_in_bytes
    outputs = memory.output_size_in_bytes
    donated = memory.alias_size_in_bytes
    scratch = memory.temp_size_in_bytes
    lines["memory"] = (
      f"arguments {plan.format_mib(arguments)}, outputs"
      f" {plan.format_mib(outputs)} (in place {plan.format_mib(donated)}),"
      f" scratch {plan.format_mib(scratch)}"
    )
    in_all = arguments + outputs - donated + scratch
    lines["in all"] = f"{in_all / 2**30:,.1f} GiB a device"
  cost = compiled.cost_analysis()
  if cost and "flops" in cost:
    lines["compiler"] = f"{cost['flops']:.3g} FLOPs, each loop counted once"
  return lines


if __name__ == "__main__":
  flags_lib.run(main)
