"""The training step of a config, on made rows or prepared ones.

  step = steps.make_step(c)
  state = step.start()
  state, terms = step.compiled(state, step.batch(0), step.aux)

Neither text nor weights are needed: the vocabulary is a stand-in of the right
size, the synonym table is random and as dense as WordNet's, and the tokens of
made rows are as frequent as words are. A step takes the memory of the state
that it is given; `takers` keep the newest.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from truenegs_jax.data.rows.rows_folder import Rows
from truenegs_jax.data.tokens.tokenizer import SPECIALS, Tokenizer
from truenegs_jax.pretrain import dry_run
from truenegs_jax.runtime import cpu
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.train import build_run, checks, plan, sharding
from truenegs_jax.train import step as step_lib
from truenegs_jax.workdir.from_config import build_tokenizer

Batch = dict[str, np.ndarray]

# Of BERT's tokens, how many have synonyms in WordNet; their mean; the most.
LISTED_SHARE, MEAN_LISTED, MOST_LISTED = 0.426, 4.58, 55


@dataclasses.dataclass(frozen=True)
class Step:
  """A compiled training step with all that it is called with.

  Attributes:
    c: the config.
    run: what the config describes.
    mesh: the devices.
    attention: what computes it, in words.
    compiled: `(state, batch, aux) -> (state, terms)`; takes the state's memory.
    aux: device arrays that are no parameters.
    host_batch: the number of a step -> its rows in the host's memory.
    trace_secs: of tracing and lowering.
    compile_secs: of compiling; little where JAX's compilation cache has it.
    flops: of the products of a step, by the shapes.
  """

  c: ConfigDict
  run: build_run.Run
  mesh: jax.sharding.Mesh
  attention: str
  compiled: jax.stages.Compiled
  aux: dict[str, jax.Array]
  host_batch: Callable[[int], Batch]
  trace_secs: float
  compile_secs: float
  flops: float

  def start(self) -> step_lib.TrainState:
    """A fresh state on the devices."""
    abstract = plan.abstract_state(self.run, self.mesh)
    places = jax.tree.map(lambda x: x.sharding, abstract)
    return jax.jit(self.run.init_state, out_shardings=places)()

  def batch(self, i: int) -> dict[str, jax.Array]:
    """The rows of step `i` on the devices."""
    return sharding.shard_batch(self.host_batch(i), self.mesh)


def make_step(
  c: ConfigDict, *, rows: Rows | None = None, pad_share: float = 0.0
) -> Step:
  """Compiles the training step of a config, for one process.

  Args:
    c: a config of pre-training.
    rows: prepared rows; none: they are made.
    pad_share: of made rows, 0 to 0.5: how much of them is padding.

  Raises:
    InputError: the config cannot be, or the rows are of another length.
  """
  cpu.configure()  # as main does
  checks.check_config(c)
  if rows is None:
    tokenizer, _ = dry_run.placeholder_tokenizer(c)
    host_batch = _made(c, tokenizer, pad_share)
  else:
    tokenizer = build_tokenizer(c, str(rows.folder / "vocab.txt"))
    host_batch = _prepared(c, rows)
  run = build_run.build_run(c, tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec)
  aux = plan.make_aux(run, _synonyms(run, tokenizer), tokenizer.vocab, mesh)
  state = plan.abstract_state(run, mesh)
  here, attention = plan.resolve_attention(run, mesh, check=True)
  began = time.perf_counter()
  lowered = plan.lower_train_step(here, mesh, state, aux)
  traced = time.perf_counter()
  compiled = lowered.compile()
  done = time.perf_counter()
  return Step(
    c=c,
    run=run,
    mesh=mesh,
    attention=attention,
    compiled=compiled,
    aux=aux,
    host_batch=host_batch,
    trace_secs=traced - began,
    compile_secs=done - traced,
    flops=plan.row_flops(run) * c.batch_size,
  )


def takers(
  made: Mapping[str, Step], num_batches: int = 8
) -> dict[str, Callable[..., Any]]:
  """Name -> `take(batch=None, dispatch=None) -> terms`: one step, not awaited.

  All take their turns on one state, so that none has a better place in memory
  than another. Without a batch a step gets the next of a few that are on the
  devices already.
  `dispatch(step, state, batch, aux)` may stand between, as `speed.HostWait`'s.
  """
  first = next(iter(made.values()))
  state, taken = first.start(), 0
  batches = [first.batch(i) for i in range(num_batches)]
  jax.block_until_ready((state, batches))
  own = {
    n: x.start().aux if x.run.table_builder else {} for n, x in made.items()
  }

  def take(name, batch=None, dispatch=None):
    nonlocal state, taken
    batch = batch or batches[taken % num_batches]
    call = dispatch or (lambda step, *args: step(*args))
    step, state = made[name], dataclasses.replace(state, aux=own[name])
    state, terms = call(step.compiled, state, batch, step.aux)
    own[name], taken = state.aux, taken + 1
    return terms

  return {name: functools.partial(take, name) for name in made}


def _made(
  c: ConfigDict, tokenizer: Tokenizer, pad_share: float
) -> Callable[[int], Batch]:
  """Rows of one document each: [CLS], tokens by Zipf's law, [SEP], padding."""
  if not 0 <= pad_share <= 0.5:
    raise InputError(f"a pad share of {pad_share}; it must be 0 to 0.5.")
  shape, size = (c.batch_size, c.length), len(tokenizer.vocab)
  first = len(SPECIALS)  # of the stand-in's words

  def host_batch(i: int) -> Batch:
    rng = np.random.default_rng([c.seed, i])
    # The logarithm of a rank is uniform where frequency is 1 / rank.
    ranks_BxL = np.exp(rng.random(shape) * np.log(size - first)).astype(
      np.int32
    )
    tokens_BxL = first - 1 + ranks_BxL
    least = round(c.length * (1 - 2 * pad_share))
    ends_B = rng.integers(max(least, 2), c.length, c.batch_size, endpoint=True)
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


def _prepared(c: ConfigDict, rows: Rows) -> Callable[[int], Batch]:
  from truenegs_jax.data.rows import (
    batches as batches_lib,  # needs grain, which made rows do not
  )

  if rows.length != c.length:
    raise InputError(
      f"{rows.folder} holds rows of {rows.length} tokens, the config has"
      f" {c.length}; try --config.length={rows.length}."
    )
  settings: dict[str, Any] = {"batch_size": c.batch_size, "seed": c.seed}
  return lambda i: batches_lib.batch_at(rows, i, **settings)


def _synonyms(
  run: build_run.Run, tokenizer: Tokenizer
) -> table_lib.SynonymTable | None:
  """A random table as dense as WordNet's, where the objective looks any up."""
  if not run.options.needs_table or run.table_builder is not None:
    return None
  rng, size = np.random.default_rng(0), len(tokenizer.vocab)
  most = min(MOST_LISTED, size)
  lengths_V = np.minimum(rng.geometric(1 / MEAN_LISTED, size), most)
  lengths_V *= rng.random(size) < LISTED_SHARE
  lengths_V[-1] = most
  ids_VxS = rng.integers(size, size=(size, most))
  ids_VxS[np.arange(most) >= lengths_V[:, None]] = -1
  return table_lib.from_ids(
    ids_VxS, tokenizer.vocab, source="random", options={}
  )
