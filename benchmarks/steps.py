"""Compiles the training step of a config on random rows, and times calls.

  step = steps.make_step(c)
  calls = steps.make_step_calls({"ours": step, "again": step})
  secs = steps.time_in_turns(calls, rounds=20)
  print(steps.paired_ratio(secs["again"], secs["ours"]))  # 1.002 (0.99 to 1.01)

Needs neither text nor weights: the vocabulary is a placeholder of the right
size, the synonym table is random and as dense as WordNet's, and tokens of the
rows follow Zipf's law. The speed of a machine changes from minute to minute, so
calls are compared in turns, and a ratio is taken from times of the same round.
"""

import dataclasses
import functools
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from truenegs_jax.config.sections import AUTO, PretrainConfig
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.pretrain import describe, plan, resolve, start
from truenegs_jax.runtime import cpu
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import sharding
from truenegs_jax.train import step as step_lib

Batch = dict[str, np.ndarray]
Calls = Mapping[str, Callable[[], object]]

# WordNet's synonyms for BERT's tokens: share of tokens that have any, and the
# mean and maximum number of these.
LISTED_SHARE = 0.426
MEAN_LISTED = 4.58
MOST_LISTED = 55
NUM_BATCHES = 8  # on the devices, used in turn by `make_step_calls`
BOOTSTRAPS = 2000  # samples of the rounds, for the interval of a ratio


@dataclasses.dataclass(frozen=True)
class CompiledStep:
  """A compiled training step and its inputs.

  Attributes:
    c: the config.
    run: the objects that the config describes.
    abstract_state: shapes, dtypes and shardings of the state.
    compiled: `(state, batch, aux) -> (state, terms)`; donates the state.
    aux: device arrays that are not parameters.
    compile_secs: seconds of tracing and compiling.
    flops: FLOPs of a step's matrix products.
  """

  c: ConfigDict
  run: plan.Run
  abstract_state: step_lib.TrainState
  compiled: jax.stages.Compiled
  aux: dict[str, jax.Array]
  compile_secs: float
  flops: float

  def init_state(self) -> step_lib.TrainState:
    """Returns a new state on the devices."""
    shardings = jax.tree.map(lambda x: x.sharding, self.abstract_state)
    return jax.jit(self.run.init_state, out_shardings=shardings)()

  def batch(self, i: int) -> dict[str, jax.Array]:
    """Returns the rows of step `i` on the devices."""
    return sharding.shard_batch(self.host_batch(i), self.run.mesh)

  def host_batch(self, i: int) -> Batch:
    """Draws the rows of step `i`: [CLS], tokens by Zipf's law, [SEP]."""
    c = self.c
    tokenizer = self.run.tokenizer
    vocab_size = len(tokenizer.vocab)
    first = len(SPECIALS)  # of the placeholder's words
    shape = (c.batch_size, c.length)
    rng = np.random.default_rng([c.seed, i])
    # The logarithm of a rank is uniform if frequency is 1 / rank.
    log_ranks_BxL = rng.random(shape) * np.log(vocab_size - first)
    tokens_BxL = first - 1 + np.exp(log_ranks_BxL).astype(np.int32)
    tokens_BxL[:, 0] = tokenizer.cls
    tokens_BxL[:, -1] = tokenizer.sep
    return {
      "tokens": tokens_BxL,
      "types": np.zeros(shape, np.int32),
      "documents": np.ones(shape, np.int32),
      "row": np.arange(c.batch_size, dtype=np.int32) + i * c.batch_size,
    }

  def memory_bytes(self) -> int:
    """Returns the bytes that a device needs for the step, as compiled."""
    m = self.compiled.memory_analysis()
    outputs = m.output_size_in_bytes - m.alias_size_in_bytes
    return m.argument_size_in_bytes + outputs + m.temp_size_in_bytes


def make_step(
  c: ConfigDict, devices: Sequence[jax.Device] | None = None
) -> CompiledStep:
  """Compiles the training step of a config of pre-training, for one process.

  The mesh has `devices`, or all. Raises InputError if the config is invalid.
  """
  cpu.configure()  # as main does
  if c.model.dtype == AUTO:
    c.model.dtype = cpu.choose_dtype()
  config = PretrainConfig.read(c)
  resolve.check(config)
  mesh = sharding.make_mesh(plan.read_mesh_spec(config), devices)
  tokenizer = plan.find_tokenizer(config.data)
  run = plan.make_run(config, tokenizer, mesh=mesh, check=True)
  aux = start.make_aux(run, _random_table(run))
  state = run.abstract_state()
  began = time.perf_counter()
  compiled = start.lower_train_step(run, state, aux).compile()
  return CompiledStep(
    c,
    run,
    state,
    compiled,
    aux,
    compile_secs=time.perf_counter() - began,
    flops=describe.row_flops(run) * c.batch_size,
  )


def make_step_calls(
  steps: Mapping[str, CompiledStep],
) -> dict[str, Callable[..., step_lib.Terms]]:
  """Returns functions that run the steps on one shared state.

  With one state no step has a better place in memory than another. Results are
  not waited for.

  Returns:
    Name -> `run_step(batch=None) -> terms`. Without a `batch` it takes the next
    of NUM_BATCHES, which are on the devices.
  """
  first = next(iter(steps.values()))
  state = first.init_state()
  batches = itertools.cycle([first.batch(i) for i in range(NUM_BATCHES)])

  def run_step(name, batch=None):
    nonlocal state
    step = steps[name]
    state, terms = step.compiled(state, batch or next(batches), step.aux)
    return terms

  return {name: functools.partial(run_step, name) for name in steps}


def time_in_turns(
  calls: Calls, rounds: int, warmup: int = 1
) -> dict[str, list[float]]:
  """Times calls in the order A B C, C B A, B C A, ...

  A call that follows itself has a warm cache. In this order each call is
  equally often first, and equally often follows itself. Results are waited for.

  Returns:
    Name -> seconds in each round, without those of the `warmup` rounds before.
  """
  names = list(calls)
  secs: dict[str, list[float]] = {name: [] for name in names}
  for turn in range(warmup + rounds):
    first = turn // 2 % len(names)
    order = names[first:] + names[:first]
    for name in order[:: -1 if turn % 2 else 1]:
      began = time.perf_counter()
      jax.block_until_ready(calls[name]())
      secs[name].append(time.perf_counter() - began)
  return {name: values[warmup:] for name, values in secs.items()}


@dataclasses.dataclass(frozen=True)
class Ratio:
  """The median ratio of paired times and its 95 % bootstrap interval."""

  median: float
  low: float
  high: float

  def __str__(self) -> str:
    return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


def paired_ratio(secs_a: Sequence[float], secs_b: Sequence[float]) -> Ratio:
  """Returns the median over the rounds of A's seconds / B's seconds."""
  ratios = np.divide(secs_a, secs_b)
  num = len(ratios)
  samples = np.random.default_rng(0).integers(num, size=(BOOTSTRAPS, num))
  low, high = np.quantile(np.median(ratios[samples], axis=1), (0.025, 0.975))
  return Ratio(float(np.median(ratios)), float(low), float(high))


def quantiles_ms(secs: Sequence[float]) -> tuple[float, float, float]:
  """Returns p10, median and p90 in milliseconds."""
  low, median, high = 1e3 * np.quantile(secs, (0.1, 0.5, 0.9))
  return float(low), float(median), float(high)


def describe_machine() -> str:
  """Describes the devices, the cores of this process and the versions."""
  device = jax.devices()[0]
  kind = device.device_kind
  cpuinfo = pathlib.Path("/proc/cpuinfo")
  if device.platform == "cpu" and cpuinfo.exists():
    lines = cpuinfo.read_text().splitlines()
    kind = next((x.split(": ")[1] for x in lines if "model name" in x), kind)
  cores = os.cpu_count() or 1
  if hasattr(os, "sched_getaffinity"):  # Linux
    cores = len(os.sched_getaffinity(0))
  return (
    f"{jax.device_count()} x {kind} ({device.platform}), {cores} core(s), jax"
    f" {jax.__version__}, Python {sys.version.split()[0]}"
  )


def _random_table(run: plan.Run) -> SynonymTable | None:
  """Makes a table as dense as WordNet's, if the objective uses a fixed one."""
  if not run.table_request or run.table_builder is not None:
    return None
  rng = np.random.default_rng(0)
  vocab = run.tokenizer.vocab
  vocab_size = len(vocab)
  most = min(MOST_LISTED, vocab_size)
  lengths_V = np.minimum(rng.geometric(1 / MEAN_LISTED, vocab_size), most)
  lengths_V *= rng.random(vocab_size) < LISTED_SHARE
  lengths_V[-1] = most
  ids_VxS = rng.integers(vocab_size, size=(vocab_size, most))
  ids_VxS[np.arange(most) >= lengths_V[:, None]] = -1
  return SynonymTable.from_ids(ids_VxS, vocab, source="random", options={})
