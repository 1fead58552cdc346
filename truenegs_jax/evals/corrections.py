"""Corrections as people can judge them: the cases of the paper's figure 3."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from truenegs_jax import randomness
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.models.pretrain import Model
from truenegs_jax.objectives import masking, negatives
from truenegs_jax.synonyms.table import SynonymTable, synonyms_of

WINDOW = 12  # tokens shown on either side of the mask


@dataclasses.dataclass(frozen=True)
class Case:
  """One prediction that hard correction takes for right."""

  sentence: str  # with [MASK] in the slot, some tokens around it
  gold: str
  prediction: str
  probability: float
  synonyms: tuple[str, ...]


def make_predict_slots(
  model: Model, options: masking.MaskingOptions
) -> Callable:
  """Builds `predict(params, batch, bits_VxW, key) -> dict of [B, K] arrays`.

  Rows are masked as in training; predictions are the likeliest tokens, dropout
  off. `false` marks the false negatives, `weight` the slots in use.
  """

  def predict(params, batch, bits_VxW, key):
    keys_B = randomness.row_keys(key, 0, batch["row"])
    slots, masked_BxL = masking.hide_slots(
      batch["tokens"],
      batch["documents"],
      randomness.purpose_keys(keys_B, randomness.MASK),
      options,
    )
    inputs = {name: batch[name] for name in ("types", "documents")}
    logits_BxKxV = model.bind({"params": params}).generate_logits(
      inputs | {"tokens": masked_BxL}, slots.positions_BxK, None
    )
    predicted_BxK = negatives.predict(logits_BxKxV)
    return {
      "positions": slots.positions_BxK,
      "weight": slots.weight_BxK,
      "predicted": predicted_BxK,
      "probability": jax.nn.softmax(logits_BxKxV).max(axis=-1),
      "false": negatives.false_negatives(
        bits_VxW, slots.original_BxK, predicted_BxK
      ),
      "masked": masked_BxL,
    }

  return jax.jit(predict)


def find_cases(
  predict: Callable,
  params: Any,
  batches: Iterable[dict[str, np.ndarray]],
  *,
  table: SynonymTable,
  bits_VxW: jax.Array,
  tokenizer: Tokenizer,
  limit: int,
  seed: int,
) -> tuple[list[Case], int]:
  """Searches batches for corrections until there are `limit` different ones.

  Returns the cases, no two of the same gold and prediction, and how many
  predictions were searched for them.
  """
  cases: dict[tuple[str, str], Case] = {}
  searched = 0
  key = jax.random.key(seed)
  for batch in batches:
    found = jax.device_get(
      predict(params, jax.tree.map(jnp.asarray, batch), bits_VxW, key)
    )
    searched += int(found["weight"].sum())
    for case in _cases(batch, found, table, tokenizer):
      cases.setdefault((case.gold, case.prediction), case)
    if len(cases) >= limit:
      break
  return list(cases.values())[:limit], searched


def show(cases: list[Case], searched: int) -> Table:
  """The cases as figure 3 of the paper shows them."""
  found = "corrections, not punished" if cases else "no correction"
  t = Table(
    title=f"{found}: {len(cases)} shown of {searched:,} predictions searched",
    title_justify="left",
    show_lines=True,
  )
  for name in ("sentence", "gold", "prediction", "synonyms of gold"):
    t.add_column(name, overflow="fold")
  for case in cases:
    t.add_row(
      case.sentence,
      case.gold,
      f"{case.prediction} ({case.probability:.0%})",
      ", ".join(case.synonyms),
    )
  return t


def _cases(
  batch: dict[str, np.ndarray],
  found: dict[str, np.ndarray],
  table: SynonymTable,
  tokenizer: Tokenizer,
) -> Iterator[Case]:
  hits = np.argwhere((found["weight"] > 0) & found["false"])
  for b, k in hits:
    position = int(found["positions"][b, k])
    gold = int(batch["tokens"][b, position])
    row_L = np.array(batch["tokens"][b])
    row_L[position] = tokenizer.mask
    documents_L = batch["documents"][b]
    # Of its own document: what else is in the row was not seen.
    [inside] = np.nonzero(documents_L == documents_L[position])
    start = max(position - WINDOW, int(inside[0]) + 1)  # without [CLS]
    window = row_L[start : min(position + WINDOW, int(inside[-1]) + 1)]
    yield Case(
      sentence=tokenizer.decode(window),
      gold=tokenizer.vocab[gold],
      prediction=tokenizer.vocab[int(found["predicted"][b, k])],
      probability=float(found["probability"][b, k]),
      synonyms=tuple(tokenizer.vocab[i] for i in synonyms_of(table, gold)),
    )
