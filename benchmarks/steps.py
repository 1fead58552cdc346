"""Compiles the training step of a config, on random or prepared rows.

  step = steps.make_step(c)
  state = step.init_state()
  state, terms = step.compiled(state, step.batch(0), step.aux)

Needs neither text nor weights: the vocabulary is a placeholder of the right
size, the synonym table is random and as dense as WordNet's, and tokens of
random rows follow Zipf's law.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import common
from truenegs_jax.data.rows.rows_folder import Rows
from truenegs_jax.data.tokens.tokenizer import (
  SPECIALS,
  Tokenizer,
  build_tokenizer,
)
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime.errors import InputError, one_of
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import plan, sharding, start
from truenegs_jax.train import step as step_lib

Batch = dict[str, np.ndarray]

# WordNet's synonyms for BERT's tokens: share of tokens that have any, and the
# mean and maximum number of these.
LISTED_SHARE, MEAN_LISTED, MOST_LISTED = 0.426, 4.58, 55
NUM_BATCHES = 8  # on the devices, used in turn by `make_step_calls`


@dataclasses.dataclass(frozen=True)
class CompiledStep:
  """A compiled training step and its inputs.

  Attributes:
    c: the config.
    run: the objects that the config describes.
    mesh: the devices.
    attention: a description of the implementation of attention.
    compiled: `(state, batch, aux) -> (state, terms)`; donates the state.
    aux: device arrays that are not parameters.
    host_batch: step number -> its rows in the host's memory.
    trace_secs: seconds of tracing and lowering.
    compile_secs: seconds of compiling; few if JAX's compilation cache has it.
    flops: FLOPs of a step's matrix products.
  """

  c: ConfigDict
  run: start.Run
  mesh: jax.sharding.Mesh
  attention: str
  compiled: jax.stages.Compiled
  aux: dict[str, jax.Array]
  host_batch: Callable[[int], Batch]
  trace_secs: float
  compile_secs: float
  flops: float

  def init_state(self) -> step_lib.TrainState:
    """Returns a new state on the devices."""
    abstract = plan.abstract_state(self.run, self.mesh)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    return jax.jit(self.run.init_state, out_shardings=shardings)()

  def batch(self, i: int) -> dict[str, jax.Array]:
    """Returns the rows of step `i` on the devices."""
    return sharding.shard_batch(self.host_batch(i), self.mesh)


def with_recipe(c: ConfigDict, recipe: str) -> ConfigDict:
  """Returns a config with a recipe's corrections; InputError if unknown."""
  one_of("--recipes", recipe, common.RECIPES)
  changed = c.copy_and_resolve_references()
  changed.negatives.update(common.RECIPES[recipe])
  return changed


def make_step(
  c: ConfigDict,
  *,
  rows: Rows | None = None,
  pad_share: float = 0.0,
  devices: Sequence[jax.Device] | None = None,
) -> CompiledStep:
  """Compiles the training step of a config, for one process.

  Args:
    c: a config of pre-training.
    rows: prepared rows; None: random rows.
    pad_share: mean share of padding in random rows, 0 to 0.5.
    devices: of the mesh; None: all.

  Raises:
    InputError: the config is invalid, or the rows have another length.
  """
  cpu.configure()  # as main does
  config = PretrainConfig.read(c)
  start.check(config)
  if rows is None:
    tokenizer, _ = start.find_tokenizer(config.data)
    host_batch = _random_rows(c, tokenizer, pad_share)
  else:
    vocab = str(rows.folder / "vocab.txt")
    tokenizer = build_tokenizer(config.data, vocab)
    host_batch = _prepared_rows(c, rows)
  run = start.Run(config, tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec, devices)
  table = _random_table(run, tokenizer)
  aux = plan.make_aux(run, table, mesh)
  state = plan.abstract_state(run, mesh)
  resolved_run, attention = plan.resolve_attention(run, mesh, check=True)
  began = time.perf_counter()
  lowered = plan.lower_train_step(resolved_run, mesh, state, aux)
  traced = time.perf_counter()
  compiled = lowered.compile()
  end = time.perf_counter()
  secs = {"trace_secs": traced - began, "compile_secs": end - traced}
  flops = plan.row_flops(run) * c.batch_size
  return CompiledStep(
    c, run, mesh, attention, compiled, aux, host_batch, flops=flops, **secs
  )


def make_step_calls(
  steps: Mapping[str, CompiledStep],
) -> dict[str, Callable[..., step_lib.Terms]]:
  """Returns functions that run the steps on one shared state.

  With one state no step has a better place in memory than another. Results are
  not waited for.

  Returns:
    Name -> `run_step(batch=None, dispatch=None) -> terms`. If given, `batch`
    replaces the next of NUM_BATCHES on the devices, and `dispatch(step, state,
    batch, aux)`, such as `speed.HostWait.dispatch`, calls the step.
  """
  first = next(iter(steps.values()))
  state, count = first.init_state(), 0
  batches = [first.batch(i) for i in range(NUM_BATCHES)]
  jax.block_until_ready((state, batches))
  # A step that builds its own table keeps it in `state.aux`.
  state_aux = {
    name: step.init_state().aux if step.run.table_builder else {}
    for name, step in steps.items()
  }

  def run_step(name, batch=None, dispatch=None):
    nonlocal state, count
    step, batch = steps[name], batch or batches[count % NUM_BATCHES]
    args = dataclasses.replace(state, aux=state_aux[name]), batch, step.aux
    if dispatch:
      state, terms = dispatch(step.compiled, *args)
    else:
      state, terms = step.compiled(*args)
    state_aux[name], count = state.aux, count + 1
    return terms

  return {name: functools.partial(run_step, name) for name in steps}


def _random_rows(
  c: ConfigDict, tokenizer: Tokenizer, pad_share: float
) -> Callable[[int], Batch]:
  """Makes rows of one document: [CLS], tokens by Zipf's law, [SEP], padding."""
  if not 0 <= pad_share <= 0.5:
    raise InputError(f"pad_share={pad_share} must be 0 to 0.5.")
  shape, vocab_size = (c.batch_size, c.length), len(tokenizer.vocab)
  first = len(SPECIALS)  # of the placeholder's words

  def host_batch(i: int) -> Batch:
    rng = np.random.default_rng([c.seed, i])
    # The logarithm of a rank is uniform if frequency is 1 / rank.
    log_ranks_BxL = rng.random(shape) * np.log(vocab_size - first)
    tokens_BxL = first - 1 + np.exp(log_ranks_BxL).astype(np.int32)
    shortest = max(round(c.length * (1 - 2 * pad_share)), 2)
    ends_B = rng.integers(shortest, c.length + 1, c.batch_size)
    tokens_BxL[:, 0] = tokenizer.cls
    tokens_BxL[np.arange(c.batch_size), ends_B - 1] = tokenizer.sep
    real_BxL = np.arange(c.length) < ends_B[:, None]
    return {
      "tokens": np.where(real_BxL, tokens_BxL, tokenizer.pad),
      "types": np.zeros(shape, np.int32),
      "documents": real_BxL.astype(np.int32),
      "row": np.arange(c.batch_size, dtype=np.int32) + i * c.batch_size,
    }

  return host_batch


def _prepared_rows(c: ConfigDict, rows: Rows) -> Callable[[int], Batch]:
  # Imports grain, which random rows do not need.
  from truenegs_jax.data.rows import batches as batches_lib

  if rows.length != c.length:
    raise InputError(
      f"The rows of '{rows.folder}' have length {rows.length}, the config has"
      f" {c.length}. Set --config.length={rows.length}."
    )
  size, seed = c.batch_size, c.seed
  return lambda i: batches_lib.batch_at(rows, i, batch_size=size, seed=seed)


def _random_table(run: start.Run, tokenizer: Tokenizer) -> SynonymTable | None:
  """Makes a table as dense as WordNet's, if the objective uses a fixed one."""
  if not run.table_request or run.table_builder is not None:
    return None
  rng, vocab_size = np.random.default_rng(0), len(tokenizer.vocab)
  most = min(MOST_LISTED, vocab_size)
  lengths_V = np.minimum(rng.geometric(1 / MEAN_LISTED, vocab_size), most)
  lengths_V *= rng.random(vocab_size) < LISTED_SHARE
  lengths_V[-1] = most
  ids_VxS = rng.integers(vocab_size, size=(vocab_size, most))
  ids_VxS[np.arange(most) >= lengths_V[:, None]] = -1
  return SynonymTable.from_ids(
    ids_VxS, tokenizer.vocab, source="random", options={}
  )
