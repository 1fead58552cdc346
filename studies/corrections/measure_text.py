"""Measures the masked language models of a study on real text.

  python studies/corrections/measure_text.py --study=runs/text \\
    --head=runs/head --text=wiki.test.raw --pairs=ppdb-xl.txt

Reads HEAD, from which the runs of the study start, and STUDY/runs/ARM/seed-S:
`pretrain`, and `corrections` for the precision. Writes STUDY/measures.csv, a
line for each measure of each run. All see the same rows, masks and swaps.

Shapes: R rows, L positions, K slots of a row, V tokens, S synonyms of a token.
"""

import argparse
import csv
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import truenegs_jax as tn

LENGTH, SLOTS = 32, 4  # [CLS], 30 pieces, [SEP]; slots of a row
ROWS, BATCH = 2_000, 50
SEED = 0  # of masks and swaps
WORDS = 1_000  # of a block whose neighbours are ranked


@functools.cache
def make_table(
  tokenizer: tn.Tokenizer, sources: str = "wordnet"
) -> tn.SynonymTable:
  """Builds a table, once for the vocabulary of all runs."""
  return tn.build_table(tokenizer, sources)


@functools.cache
def make_rows(
  text: pathlib.Path, tokenizer: tn.Tokenizer, table: tn.SynonymTable
) -> dict[str, np.ndarray]:
  """Cuts lines into rows, hides slots and swaps one visible word of each.

  Returns:
    positions_RxK: the slots; gold_RxK: their tokens.
    is_word_RxK: whether a slot's token is a whole word.
    masked_RxL: the rows with [MASK] in all slots; swapped_RxL: the same, but a
      visible word, drawn among those that have synonyms, is one of these.
    is_swapped_R: whether there was such a word.
  """
  width = LENGTH - 2
  lines = text.read_text().splitlines()
  pieces = [
    ids[i : i + width]
    for ids in tokenizer.encode_lines(lines)
    for i in range(0, len(ids) - width + 1, width)
  ]
  inner_RxL = np.array(pieces[:ROWS])
  rows = len(inner_RxL)
  tokens_RxL = np.pad(inner_RxL, ((0, 0), (1, 1)))
  tokens_RxL[:, 0], tokens_RxL[:, -1] = tokenizer.cls, tokenizer.sep
  # A whole word: no piece that continues a word, and none follows.
  part_RxL = tn.word_edges(tokenizer.vocab)[tokens_RxL] % 2 == 1
  next_RxL = np.pad(part_RxL, ((0, 0), (0, 1)))[:, 1:]
  is_word_RxL = ~part_RxL & ~next_RxL
  rng = np.random.default_rng(SEED)
  order_RxL = rng.random(inner_RxL.shape).argsort(axis=1) + 1
  positions_RxK = np.sort(order_RxL[:, :SLOTS], axis=1)
  masked_RxL = tokens_RxL.copy()
  np.put_along_axis(masked_RxL, positions_RxK, tokenizer.mask, axis=1)
  swapped_RxL, is_swapped_R = masked_RxL.copy(), np.zeros(rows, bool)
  has_list_V = table.lengths_V > 0
  for row in range(rows):
    suited = has_list_V[masked_RxL[row]] & is_word_RxL[row]
    suited[positions_RxK[row]] = False
    if suited.any():
      at = rng.choice(np.flatnonzero(suited))
      swapped_RxL[row, at] = rng.choice(table.synonym_ids(tokens_RxL[row, at]))
      is_swapped_R[row] = True
  take = functools.partial(np.take_along_axis, indices=positions_RxK, axis=1)
  return {
    "positions_RxK": positions_RxK,
    "gold_RxK": take(tokens_RxL),
    "is_word_RxK": take(is_word_RxL),
    "masked_RxL": masked_RxL,
    "swapped_RxL": swapped_RxL,
    "is_swapped_R": is_swapped_R,
  }


@functools.partial(jax.jit, static_argnames="model")
def predict(
  params: dict, tokens_BxL: Array, positions_BxK: Array, model: tn.BertMlm
) -> Array:
  """Returns log probabilities `[B, K, V]` of the slots."""
  ones_BxL = jnp.ones_like(tokens_BxL)
  inputs = {"tokens": tokens_BxL, "types": ones_BxL - 1, "documents": ones_BxL}
  logits_BxKxV = model.bind({"params": params}).generate_logits(
    inputs, positions_BxK, None
  )
  return jax.nn.log_softmax(logits_BxKxV)


@jax.jit
def score(
  before_BxKxV: Array, after_BxKxV: Array, gold_BxK: Array, ids_VxS: Array
) -> dict[str, Array]:
  """Scores log probabilities, before and after a visible word is swapped."""
  gold_BxKx1 = gold_BxK[..., None]
  set_BxKxT = jnp.concatenate([gold_BxKx1, ids_VxS[gold_BxK]], axis=-1)
  log_p_BxKxT = jnp.take_along_axis(before_BxKxV, set_BxKxT, axis=-1)
  log_p_BxKxT = jnp.where(set_BxKxT < 0, -jnp.inf, log_p_BxKxT)  # padding
  gap_BxKxV = before_BxKxV - after_BxKxV
  best_BxK = before_BxKxV.argmax(-1)
  return {
    "gold_loss": -log_p_BxKxT[..., 0],
    "set_loss": -jax.nn.logsumexp(log_p_BxKxT, axis=-1),
    "swap_kl": (jnp.exp(before_BxKxV) * gap_BxKxV).sum(-1),
    "swap_agreement": best_BxK == after_BxKxV.argmax(-1),
  }


def measure_slots(
  model: tn.BertMlm,
  params: dict,
  table: tn.SynonymTable,
  rows: dict[str, np.ndarray],
) -> dict[str, float]:
  """Returns the means of `score`: of losses over words with synonyms."""
  ids_VxS = table.build_ids()
  scored = []
  for start in range(0, len(rows["gold_RxK"]), BATCH):
    x = {name: rows[name][start : start + BATCH] for name in rows}
    before_BxKxV, after_BxKxV = (
      predict(params, x[name], x["positions_RxK"], model)
      for name in ("masked_RxL", "swapped_RxL")
    )
    scores = score(before_BxKxV, after_BxKxV, x["gold_RxK"], ids_VxS)
    scored.append(jax.device_get(scores))
  values = {x: np.concatenate([y[x] for y in scored]) for x in scored[0]}
  listed_RxK = rows["is_word_RxK"] & (table.lengths_V > 0)[rows["gold_RxK"]]
  return {
    name: float(
      values_RxK[
        rows["is_swapped_R"] if name.startswith("swap") else listed_RxK
      ].mean()
    )
    for name, values_RxK in values.items()
  }


def rank_synonyms(word_VxE: np.ndarray, table: tn.SynonymTable) -> float:
  """Returns the mean reciprocal rank of the nearest synonym of each token.

  Ranks are those of cosines with all other tokens, from 1.
  """
  unit_VxE = word_VxE / np.linalg.norm(word_VxE, axis=1, keepdims=True)
  ids_VxS = table.build_ids()
  listed_N = np.flatnonzero(table.lengths_V)
  ranks = []
  for start in range(0, len(listed_N), WORDS):
    block_N = listed_N[start : start + WORDS]
    cosine_NxV = unit_VxE[block_N] @ unit_VxE.T
    cosine_NxV[np.arange(len(block_N)), block_N] = -np.inf
    ids_NxS = ids_VxS[block_N]
    near_NxS = np.take_along_axis(cosine_NxV, ids_NxS.clip(0), axis=1)
    best_Nx1 = np.where(ids_NxS < 0, -np.inf, near_NxS).max(1, keepdims=True)
    ranks.append(1 + (cosine_NxV > best_Nx1).sum(axis=1))
  return float((1 / np.concatenate(ranks)).mean())


def read_corrections(
  folder: pathlib.Path, lexicon: tn.SynonymTable
) -> dict[str, float]:
  """Returns the share of corrections that another lexicon confirms."""
  cases = json.loads((folder / "cases.json").read_text())["cases"]
  confirmed = sum(x["prediction"] in lexicon.synonyms(x["gold"]) for x in cases)
  return {
    "corrections": float(len(cases)),
    "precision": confirmed / len(cases) if cases else float("nan"),
  }


def read_held_out(folder: pathlib.Path) -> dict[str, float]:
  """Returns the last cross-entropy of all held-out slots."""
  lines = (folder / "metrics.jsonl").read_text().splitlines()
  records = [x for x in map(json.loads, lines) if x["split"] == "held_out"]
  last = records[-1]
  return {"mlm": last.get("mlm_uncorrected", last["mlm"])}


def measure_run(
  folder: pathlib.Path, text: pathlib.Path, pairs: pathlib.Path
) -> dict[str, float]:
  """Measures the newest checkpoint of a run."""
  model, params, tokenizer = tn.load(str(folder), report=str)
  table = make_table(tokenizer)
  word_VxE = params["embeddings"]["word"]
  values = {
    **read_held_out(folder),
    **measure_slots(model, params, table, make_rows(text, tokenizer, table)),
    "synonym_rank": rank_synonyms(np.asarray(word_VxE), table),
  }
  corrections = folder.parent / "corrections"
  if (corrections / "cases.json").exists():
    lexicon = make_table(tokenizer, f"pairs path='{pairs}'")
    values |= read_corrections(corrections, lexicon)
  return values


def main() -> None:
  """Measures all runs that have ended, and prints a line for each."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  for name in ("study", "head", "text", "pairs"):
    parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
  flags = parser.parse_args()
  folders = {("head", "0"): flags.head}
  for folder in sorted(flags.study.glob("runs/*/seed-*/pretrain")):
    arm, seed = folder.parts[-3:-1]
    folders[arm, seed.removeprefix("seed-")] = folder
  with (flags.study / "measures.csv").open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["arm", "seed", "step", "measure", "value"])
    for key, folder in folders.items():
      steps = json.loads((folder / "config.json").read_text())["steps"]
      for name, value in measure_run(folder, flags.text, flags.pairs).items():
        writer.writerow([*key, steps, name, round(value, 6)])
        print(*key, name, f"{value:.4f}", flush=True)


if __name__ == "__main__":
  main()
