"""Compiles the training step of a config for devices that are not there.

  step = absent.compile_step(c, absent.get_devices("h100"))
  step.compiled.as_text()

Needs neither text nor weights. State, synonyms and batch are only shapes.
"""

import dataclasses
import importlib.util
import os
import pathlib
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax.experimental import topologies
from ml_collections import ConfigDict

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.models import attention
from truenegs_jax.runtime import cpu, errors
from truenegs_jax.train import plan, sharding, start
from truenegs_jax.train import step as step_lib

# A training step, an evaluation, and the search for cases that ends a run.
PROGRAMS = "train", "evaluate", "search"
H100 = "h100"
H100_DESCRIPTION = pathlib.Path(__file__).parent / "h100.txtpb"
H100_MEMORY = int(0.75 * 80e9)  # bytes that JAX takes of it
ONE_CHIP = {"v5e": "v5e:2x2", "v6e": "v6e:2x2"}  # the smallest topologies
# Without a device XLA cannot choose tiles of Triton's products, whose default
# is slow; the library's products need no choice.
H100_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


class AbsentStep(NamedTuple):
  """A compiled training step and the shapes of its inputs.

  Attributes:
    run: the objects that the config describes.
    mesh: the devices.
    attention: a description of the implementation of attention.
    state: shapes of the train state.
    aux: shapes of the arrays that are not parameters.
    compiled: the step.
    trace_secs: seconds of tracing and lowering.
    compile_secs: seconds of compiling.
  """

  run: start.Run
  mesh: jax.sharding.Mesh
  attention: str
  state: step_lib.TrainState
  aux: plan.Aux
  compiled: jax.stages.Compiled
  trace_secs: float
  compile_secs: float

  @property
  def flops(self) -> float:
    """FLOPs of a step's products on one device."""
    return (
      plan.row_flops(self.run) * self.run.config.batch_size / self.mesh.size
    )


def get_devices(target: str) -> Sequence[jax.Device]:
  """Returns absent devices: "h100", "v5e", "v6e" or a topology, "v5e:2x4".

  Call it before JAX has looked for devices: it also sets up JAX for a CPU, with
  as many devices as the target has.

  Raises:
    InputError: the compiler is not installed, or does not know the target.
  """
  jax.config.update("jax_platforms", "cpu")
  devices = _h100() if target == H100 else _tpu_chips(target)
  simulate_devices(len(devices))  # which `check` counts
  return devices


def simulate_devices(count: int) -> Sequence[jax.Device]:
  """Sets up JAX with so many CPU devices and returns them."""
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", count)
  return jax.devices()


def _h100() -> Sequence[jax.Device]:
  if importlib.util.find_spec("jax_cuda13_plugin") is None:
    raise errors.InputError(
      "--target=h100 needs jax's compiler for CUDA. Run make h100, which"
      " installs it in .venv/h100."
    )
  return topologies.get_topology_desc(
    platform="cuda",
    topology="1x1x1",
    target_config=H100_DESCRIPTION.read_text(),
  ).devices


def _tpu_chips(target: str) -> Sequence[jax.Device]:
  if importlib.util.find_spec("libtpu") is None:
    raise errors.InputError(f"{target} needs libtpu. Run pip install '.[tpu]'.")
  # libtpu otherwise looks for the machine's chips, and refuses to be loaded by
  # two processes. Compiling uses no chip.
  os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5e-1")
  os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
  os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
  os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
  topology = ONE_CHIP.get(target, target)
  try:
    devices = topologies.get_topology_desc(topology, "tpu").devices
  except jax.errors.JaxRuntimeError as e:
    raise errors.InputError(
      f"{target!r} is no TPU topology: {e}. Choose one such as v5e:2x4 or"
      " v5p:2x2x2."
    ) from e
  return devices[:1] if target in ONE_CHIP else devices


def compile_step(
  c: ConfigDict, devices: Sequence[jax.Device] | None = None
) -> AbsentStep:
  """Compiles the step of a config of pre-training.

  Args:
    c: the config.
    devices: of `get_devices`; default: all of JAX's.

  Raises:
    InputError: the config is invalid, or its step does not fit on a device.
  """
  run, mesh, line = _resolve(c, devices)
  state, aux = plan.abstract_state(run, mesh), plan.abstract_aux(run, mesh)
  began = time.perf_counter()
  lowered = _lower("train", run, mesh, state, aux)
  traced = time.perf_counter()
  compiled = _compile(lowered, mesh)
  end = time.perf_counter()
  return AbsentStep(
    *(run, mesh, line, state, aux, compiled, traced - began, end - traced)
  )


def measure_memory(
  c: ConfigDict, devices: Sequence[jax.Device], name: str
) -> float:
  """Compiles one of PROGRAMS; returns the GiB that a device needs for it.

  The state stays on the devices, also what a program does not use of it.

  Raises:
    InputError: the config is invalid, or a program does not fit on a device.
  """
  run, mesh, _ = _resolve(c, devices)
  state, aux = plan.abstract_state(run, mesh), plan.abstract_aux(run, mesh)
  used = {"train": (state, aux), "evaluate": (state.params, aux)}
  m = _compile(_lower(name, run, mesh, state, aux), mesh).memory_analysis()
  # XLA leaves out arguments that a program does not use.
  others = m.argument_size_in_bytes - sharding.bytes_per_device(
    used.get(name, state.params)
  )
  arguments = sharding.bytes_per_device((state, aux)) + max(others, 0)
  outputs = m.output_size_in_bytes - m.alias_size_in_bytes
  return (arguments + outputs + m.temp_size_in_bytes) / 2**30


def _resolve(
  c: ConfigDict, devices: Sequence[jax.Device] | None
) -> tuple[start.Run, jax.sharding.Mesh, str]:
  """Returns run, mesh and a line about attention."""
  config = PretrainConfig.read(c)
  start.check(config)
  run = start.Run(config, start.find_tokenizer(config.data)[0])
  mesh = sharding.make_mesh(run.mesh_spec, devices)
  platform = _get_platform(mesh.devices.flat[0])
  memory = H100_MEMORY if platform == "cuda" else 0
  run = plan.resolve_chunk(run, mesh, memory)
  run, line = plan.resolve_attention(run, mesh, platform=platform)
  return run, mesh, line


def _lower(
  name: str,
  run: start.Run,
  mesh: jax.sharding.Mesh,
  state: step_lib.TrainState,
  aux: plan.Aux,
) -> jax.stages.Lowered:
  """Lowers one of PROGRAMS as a run does."""
  platform, c = _get_platform(mesh.devices.flat[0]), run.config
  batch = plan.abstract_batch(run, mesh)
  # From jax 0.11 on, Pallas reads the device to lower for from here.
  with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
    if name == "train":
      return plan.lower_train_step(run, mesh, state, aux, platform=platform)
    with cpu.lowering_for(platform):
      if name == "evaluate":
        step = plan.build_eval_step(run, mesh)
        return step.lower(state.params, batch, aux)
      run = dataclasses.replace(run, attention=attention.XLA)
      rows = c.batch_size // c.optim.accumulation
      searched = {
        name: jax.ShapeDtypeStruct(
          (rows, *x.shape[1:]), x.dtype, sharding=x.sharding
        )
        for name, x in batch.items()
      }
      step = plan.build_predict_step(run, mesh)
      return step.lower(state.params, searched, c.length)


def _get_platform(device: jax.Device) -> str:
  """Returns "cpu", "cuda" or "tpu": an absent GPU only tells its own name."""
  return {"gpu": "cuda"}.get(device.platform, device.platform)


def _compile(
  lowered: jax.stages.Lowered, mesh: jax.sharding.Mesh
) -> jax.stages.Compiled:
  is_gpu = _get_platform(mesh.devices.flat[0]) == "cuda"
  options = H100_OPTIONS if is_gpu else None
  try:
    return lowered.compile(compiler_options=options)
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    raise errors.InputError(
      f"The step does not fit on a device: {str(e).splitlines()[0]} Set a"
      " larger --config.optim.accumulation=N, --config.model.remat=full or more"
      " devices."
    ) from e
