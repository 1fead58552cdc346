"""Prints how much memory of N devices a config takes; needs none of them.

  python benchmarks/memory.py --config=electra_large --devices=256
  python benchmarks/memory.py --config=electra_large --topology=v5e:16x16
      [--programs=train,evaluate,search] [--config.optim.accumulation=4 ...]
  make h100

Compiles a training step, an evaluation, or the search for cases, which ends a
run with hard correction, and prints the compiler's memory analysis. Needs no
text, rows or weights: state, synonyms and batch are only shapes. The state of
the run counts with each program.

--devices compiles for N simulated CPU devices. Scratch memory (activations,
gathered parameters, gradients) is then an estimate: on a CPU, XLA widens some
bfloat16 arrays and schedules operations differently, and without
--config.model.scan=True it does not defer the recomputation of model.remat.
--topology compiles for TPU chips ("v5e" is one), which needs libtpu but no TPU,
or for an H100, for which `make h100` installs the compilers in .venv/h100.
"""

import importlib.util
import os
import pathlib
import time
from collections.abc import Sequence

import jax
from absl import flags
from jax.experimental import topologies
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.config.sections import AUTO, PretrainConfig
from truenegs_jax.pretrain import describe, plan, predict_slots, resolve, start
from truenegs_jax.runtime import cpu, progress
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.train import sharding

_CONFIG = flags_lib.define_config()
_DEVICES = flags.DEFINE_integer("devices", 8, "Simulated CPU devices.", 1)
_TOPOLOGY = flags.DEFINE_string(
  "topology", None, "Absent devices instead: h100, v5e or as v5e:16x16."
)
_PROGRAMS = flags.DEFINE_list("programs", ["train"], "What is compiled.")

PROGRAMS = ("train", "evaluate", "search")
H100 = "h100"
H100_DESCRIPTION = pathlib.Path(__file__).parent / "h100.txtpb"
H100_MEMORY = int(0.75 * 80e9)  # bytes that JAX takes of it
# Without a device XLA cannot choose tiles of Triton's products, whose default
# is slow; the library's products need no choice.
H100_OPTIONS = {"xla_gpu_enable_triton_gemm": False}
ONE_CHIP = {"v5e": "v5e:2x2", "v6e": "v6e:2x2"}  # the smallest topologies
# libtpu otherwise looks for the machine's chips, and refuses to be loaded by
# two processes. Compiling uses no chip.
TPU_VARIABLES = {
  "TPU_ACCELERATOR_TYPE": "v5e-1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_SKIP_MDS_QUERY": "1",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def main(argv: list[str]) -> None:
  """Prints the report of one config."""
  del argv
  for program in _PROGRAMS.value:
    one_of("--programs", program, PROGRAMS)
  jax.config.update("jax_platforms", "cpu")
  absent = get_devices(_TOPOLOGY.value) if _TOPOLOGY.value else ()
  # `check` counts JAX's own devices, so that there are as many.
  jax.config.update("jax_num_cpu_devices", len(absent) or _DEVICES.value)
  lines = report(_CONFIG.value, absent or jax.devices(), _PROGRAMS.value)
  Console(markup=False, highlight=False).print(progress.make_table(lines))


def get_devices(topology: str) -> Sequence[jax.Device]:
  """Returns absent devices; InputError without their compiler."""
  if topology == H100:
    if importlib.util.find_spec("jax_cuda13_plugin") is None:
      raise InputError(
        "--topology=h100 needs jax's compiler for CUDA. Run make h100, which"
        " installs it in .venv/h100."
      )
    return topologies.get_topology_desc(
      platform="cuda",
      topology="1x1x1",
      target_config=H100_DESCRIPTION.read_text(),
    ).devices
  if importlib.util.find_spec("libtpu") is None:
    raise InputError(f"{topology} needs libtpu. Run pip install '.[tpu]'.")
  for name, value in TPU_VARIABLES.items():
    os.environ.setdefault(name, value)
  name = ONE_CHIP.get(topology, topology)
  try:
    devices = topologies.get_topology_desc(name, "tpu").devices
  except jax.errors.JaxRuntimeError as e:
    raise InputError(
      f"--topology={topology} is no TPU topology: {e}. Choose v5e:2x4 or such."
    ) from e
  return devices[:1] if topology in ONE_CHIP else devices


def report(
  c: ConfigDict,
  devices: Sequence[jax.Device],
  programs: Sequence[str] = PROGRAMS[:1],
) -> dict[str, str]:
  """Compiles programs of a config and describes them, name -> text.

  Raises:
    InputError: the config is invalid, or a program does not fit on a device.
  """
  platform = get_platform(devices[0])
  if c.model.dtype == AUTO:
    c.model.dtype = cpu.choose_dtype() if platform == "cpu" else "bfloat16"
  config = PretrainConfig.read(c)
  resolve.check(config)
  mesh = sharding.make_mesh(plan.read_mesh_spec(config), devices)
  run = plan.make_run(
    config,
    plan.find_tokenizer(config.data),
    mesh=mesh,
    platform=platform,
    memory=H100_MEMORY if platform == "cuda" else 0,
  )
  state = run.abstract_state()
  aux = run.abstract_aux()
  rows = c.batch_size // mesh.shape[sharding.DATA_AXIS]
  lines = {
    "devices": sharding.describe_devices(config.mesh.preset, mesh),
    "parameters": describe.describe_parameters(run.model, state.params),
    "per device": describe.describe_memory(state, aux),
    "batch": f"{c.batch_size:,} rows of {c.length} tokens, {rows:,} per mesh"
    f" slice, in {c.optim.accumulation} micro-batch(es)",
    "attention": run.attention_line,
  }
  for name in programs:
    lines[name] = measure_program(name, run)
  return lines


def measure_program(name: str, run: plan.Run) -> str:
  """Compiles one of PROGRAMS; describes the memory of a device."""
  began = time.perf_counter()
  lowered = lower_program(name, run)
  platform = get_platform(run.mesh.devices.flat[0])
  options = H100_OPTIONS if platform == "cuda" else None
  try:
    m = lowered.compile(compiler_options=options).memory_analysis()
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    raise InputError(
      f"'{name}' does not fit on a device: {str(e).splitlines()[0]} Set"
      " --config.optim.accumulation=N or --config.model.remat=full."
    ) from e
  # XLA leaves out arguments that a program does not use.
  state = run.abstract_state()
  aux = run.abstract_aux()
  used = {"train": (state, aux), "evaluate": (state.params, aux)}
  others = m.argument_size_in_bytes - sharding.bytes_per_device(
    used.get(name, state.params)
  )
  arguments = sharding.bytes_per_device((state, aux)) + max(others, 0)
  outputs = m.output_size_in_bytes - m.alias_size_in_bytes
  total = arguments + outputs + m.temp_size_in_bytes
  return (
    f"{total / 2**30:,.2f} GiB of a device: arguments"
    f" {describe.format_mib(arguments)}, scratch"
    f" {describe.format_mib(m.temp_size_in_bytes)}; compiled in"
    f" {time.perf_counter() - began:.0f} s"
  )


def lower_program(name: str, run: plan.Run) -> jax.stages.Lowered:
  """Lowers one of PROGRAMS as a run does."""
  c = run.config
  platform = get_platform(run.mesh.devices.flat[0])
  state = run.abstract_state()
  aux = run.abstract_aux()
  batch = run.abstract_batch()
  # From jax 0.11 on, Pallas reads the device to lower for from here.
  with jax.sharding.use_abstract_mesh(run.mesh.abstract_mesh):
    if name == "train":
      return start.lower_train_step(run, state, aux, platform=platform)
    with cpu.lowering_for(platform):
      if name == "evaluate":
        step = start.build_eval_step(run)
        return step.lower(state.params, batch, aux)
      rows = c.batch_size // c.optim.accumulation
      searched = {
        key: jax.ShapeDtypeStruct(
          (rows, *x.shape[1:]), x.dtype, sharding=x.sharding
        )
        for key, x in batch.items()
      }
      step = predict_slots.build_predict_step(run)
      return step.lower(state.params, searched, c.length)


def get_platform(device: jax.Device) -> str:
  """Returns "cpu", "cuda" or "tpu": an absent GPU only tells its own name."""
  return "cuda" if device.platform == "gpu" else device.platform


if __name__ == "__main__":
  flags_lib.run(main)
