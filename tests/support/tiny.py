"""A tiny model, recipe and batch for tests, without files."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.config.sections import Optim
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.objectives import electra, masking, mlm
from truenegs_jax.objectives.slot_predictions import Options
from truenegs_jax.runtime import rng as rng_lib
from truenegs_jax.train import optim, step

V, B, L = 70, 8, 24
PAD, UNK, CLS, SEP, MASK = range(5)
MASKING = masking.MaskingOptions(
  mask_id=MASK, never_masked=(CLS, SEP, MASK), vocab_size=V
)
WEIGHTS = {"mlm": 1.0, "detect": 50.0, "soft": 1.0}


def make_model(**overrides) -> pretrain.ElectraPair:
  """Builds a pair of two layers: widths 32 and 16, embeddings of 16."""
  return pretrain.make_electra(
    vocab_size=V,
    variant="tiny",
    generator_multiplier=1 if overrides.get("backbone") == "modern" else 0.5,
    **overrides,
  )


def make_bert(**overrides) -> pretrain.BertMlm:
  """Builds a BERT of two layers; layers and embeddings are 32 wide."""
  return pretrain.make_bert(vocab_size=V, variant="tiny", **overrides)


def make_downstream(
  role: str, head: str, num_outputs: int = 2, **overrides
) -> finetune.DownstreamModel:
  """Builds a network of two layers with the head of a task."""
  return finetune.make_downstream(
    role=role,
    head=head,
    num_outputs=num_outputs,
    vocab_size=V,
    variant="tiny",
    **overrides,
  )


def make_options(*, masking=MASKING, **overrides) -> Options:
  """Builds options with hard correction, also of split words, and SR."""
  defaults = {"soft_weight": 1.0, "strict_subword": False}
  return Options(masking=masking, **{**defaults, **overrides})


def make_batch(seed: int, rows: int = B, length: int = L) -> dict:
  """Draws rows of at least 6 tokens from [CLS] to [SEP], int32."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(5, V, (rows, length))
  ends = rng.integers(6, length + 1, rows)
  index = np.arange(length)
  tokens[:, 0] = CLS
  tokens[index[None] == ends[:, None] - 1] = SEP
  documents = (index[None] < ends[:, None]).astype(np.int32)
  return {
    "tokens": (tokens * documents).astype(np.int32),
    "types": np.zeros((rows, length), np.int32),
    "documents": documents,
    "row": np.arange(seed * rows, (seed + 1) * rows, dtype=np.int32),
  }


def dense_table(seed: int = 0, share: float = 0.2) -> np.ndarray:
  """Draws a synonym relation [V, V] without self pairs or specials."""
  dense = np.random.default_rng(seed).random((V, V)) < share
  np.fill_diagonal(dense, False)
  dense[:5], dense[:, :5] = False, False
  return dense


def pack_bits(dense_VxV: np.ndarray) -> np.ndarray:
  """Packs a relation: entry b of a row is bit b % 32 of word b // 32."""
  padded = np.pad(dense_VxV, ((0, 0), (0, -len(dense_VxV) % 32)))
  return np.packbits(padded, axis=1, bitorder="little").view("<u4")


def list_ids(dense_VxV: np.ndarray) -> np.ndarray:
  """Converts a relation to ascending lists of ids, padded with -1."""
  width = max(1, int(dense_VxV.sum(axis=1).max()))
  ids_VxS = np.full((len(dense_VxV), width), -1, np.int32)
  for row_S, flags_V in zip(ids_VxS, dense_VxV, strict=True):
    [ids] = np.nonzero(flags_V)
    row_S[: len(ids)] = ids
  return ids_VxS


def make_objective(model, options, *, train: bool):
  """Returns the objective of a model: (params, batch, keys_B, aux)."""
  is_pair = isinstance(model, pretrain.ElectraPair)
  terms = electra.electra_terms if is_pair else mlm.mlm_terms
  return functools.partial(terms, model=model, options=options, train=train)


def random_params(model, rng=None, *, deviation=0.3):
  """Draws parameters of a model without compiling its init."""
  rng = rng or np.random.default_rng(0)
  return jax.tree.map(
    lambda x: jnp.asarray(rng.normal(0, deviation, x.shape), x.dtype),
    pretrain.param_shapes(model),
  )


def params_with_gradient(model, options) -> dict[str, set[str]]:
  """Returns term -> the groups of parameters that receive its gradient."""
  batch = jax.tree.map(jnp.asarray, make_batch(0, rows=3))
  keys_B = rng_lib.row_keys(jax.random.key(0), 0, batch.pop("row"))
  aux = make_aux(options=options) | {"edges_V": jnp.zeros(V, int)}
  terms = make_objective(model, options, train=True)
  names = ("mlm", "soft", "sentence", "detect", "pair_cosine")
  tables = ("embeddings", *pretrain.OWN.values())

  def sums(params):
    computed = terms(params, batch, keys_B, aux)
    return {name: computed[name][0] for name in names if name in computed}

  gradients = jax.jit(jax.jacrev(sums))(random_params(model))
  return {
    name: {
      f"{part}/{leaf}" if part in tables else part
      for part in tree
      for leaf, gradient in tree[part].get("embeddings", tree[part]).items()
      if any(np.any(x) for x in jax.tree.leaves(gradient))
    }
    for name, tree in jax.device_get(gradients).items()
  }


def make_aux(seed: int = 0, *, options: Options | None = None) -> dict:
  """Returns a random relation on the device, as lists for smoothing."""
  table_VxV = dense_table(seed)
  if options and options.smoothing:
    return {"ids_VxS": jnp.asarray(list_ids(table_VxV))}
  return {"bits_VxW": jnp.asarray(pack_bits(table_VxV))}


def make_tx(peak: float = 1e-3):
  """Builds ELECTRA's optimizer with its schedule of 100 steps."""
  rate = optim.make_schedule(
    "electra", peak=peak, warmup_steps=5, total_steps=100
  )
  return optim.make_optimizer(rate, Optim(), frozen=pretrain.CARRIED)


def init_state(model, tx, seed: int = 0) -> step.TrainState:
  """Draws an initial state on the default device."""
  init_params = functools.partial(pretrain.init_params, model)
  return jax.jit(lambda: step.init_state(init_params, tx, seed))()
