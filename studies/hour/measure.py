"""Measures what masked language models know: losses and minimal pairs.

  python studies/hour/measure.py TEXT PAIRS MODEL [MODEL ...]

TEXT has one document a paragraph, which no MODEL was trained on: a folder of
Hugging Face with its tokenizer. PAIRS is BLiMP as JSON lines with `good`, `bad`
and `paradigm` (Warstadt et al. 2020). Prints a line of JSON for each:

- `windows`: by the length of a window, the loss in nats of 15 % of its tokens,
  hidden as [MASK], and twice its standard error over windows; documents are cut
  into windows `[CLS] ... [SEP]`, and the same draws hide tokens of all models;
- `blimp`, unless PAIRS is empty: percentage of the pairs whose good sentence
  has the higher pseudo-log-likelihood, each token hidden in turn (Salazar et
  al. 2020); ties count one half.

Computes in f32 with PyTorch and transformers, whose model class has no part in
how it was trained.
"""

import collections
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

LENGTHS = (32, 128)
HIDDEN = 0.15
MAX_WINDOWS = 2_000  # of each length
PAIRS = 100  # of each paradigm
BATCH_TOKENS = 16_384
Model = Any  # of transformers, for masked language modelling


def read_documents(path: str) -> list[str]:
  """Returns the documents of a text, which empty lines separate."""
  return [x for x in Path(path).read_text("utf-8").split("\n\n") if x.strip()]


def cut_windows(
  tokenizer: Any, documents: Iterable[str], length: int
) -> np.ndarray:
  """Returns whole windows of documents, `[N, length]`."""
  size = length - 2
  rows = []
  for text in documents:
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    for start in range(0, len(ids) - size + 1, size):
      row = ids[start : start + size]
      rows.append([tokenizer.cls_token_id, *row, tokenizer.sep_token_id])
  order = np.random.default_rng(0).permutation(len(rows))[:MAX_WINDOWS]
  return np.array(rows)[order]


@torch.inference_mode()
def predict_slots(
  model: Model,
  tokens_NxL: np.ndarray,
  hidden_NxL: np.ndarray,
  mask_id: int,
) -> Iterator[tuple[slice, torch.Tensor]]:
  """Yields the rows of a batch, and log-probabilities of their hidden slots.

  The latter are f32 `[M, V]`, in the order of `hidden_NxL[rows].nonzero()`.
  """
  chosen = []  # of the positions whose logits are computed
  head = model.get_output_embeddings()
  hook = head.register_forward_pre_hook(lambda _, args: args[0][chosen[-1]])
  size = max(1, BATCH_TOKENS // tokens_NxL.shape[1])
  for start in range(0, len(tokens_NxL), size):
    rows = slice(start, start + size)
    tokens = torch.tensor(tokens_NxL[rows])
    hidden = torch.tensor(hidden_NxL[rows])
    chosen.append(hidden)
    logits = model(torch.where(hidden, mask_id, tokens)).logits
    yield rows, logits.log_softmax(-1)
  hook.remove()


def score_slots(
  model: Model,
  tokens_NxL: np.ndarray,
  hidden_NxL: np.ndarray,
  mask_id: int,
) -> np.ndarray:
  """Returns log-probabilities of hidden tokens, f64 `[N, L]`; others are 0."""
  scores_NxL = np.zeros(tokens_NxL.shape)
  for rows, log_p_MxV in predict_slots(model, tokens_NxL, hidden_NxL, mask_id):
    hidden = hidden_NxL[rows]
    gold_M = tokens_NxL[rows][hidden]
    scores_NxL[rows][hidden] = log_p_MxV.numpy()[np.arange(len(gold_M)), gold_M]
  return scores_NxL


def hide_windows(
  tokenizer: Any, documents: Iterable[str], length: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns windows and which of their tokens are hidden, `[N, length]`."""
  tokens_NxL = cut_windows(tokenizer, documents, length)
  uniform_NxL = np.random.default_rng(1).random(tokens_NxL.shape)
  return tokens_NxL, (uniform_NxL < HIDDEN) & ~np.isin(
    tokens_NxL, tokenizer.all_special_ids
  )


def mean_loss(scores_NxL: np.ndarray, counted_NxL: np.ndarray) -> list[float]:
  """Returns the loss of the counted slots, and twice its error."""
  return estimate_ratio(
    -(scores_NxL * counted_NxL).sum(axis=1), counted_NxL.sum(axis=1)
  )


def estimate_ratio(sums_N: np.ndarray, counts_N: np.ndarray) -> list[float]:
  """Returns a mean over what N groups count, and twice its standard error."""
  mean = sums_N.sum() / counts_N.sum()
  errors_N = (sums_N - mean * counts_N) / counts_N.mean()
  error = errors_N.std() / len(errors_N) ** 0.5
  return [round(float(x), 4) for x in (mean, 2 * error)]


def batch_sentences(
  tokenizer: Any, sentences: list[str]
) -> Iterator[tuple[list[int], np.ndarray]]:
  """Yields which sentences have a length, and their tokens, `[N, L]`."""
  encoded = tokenizer(sentences)["input_ids"]
  by_length = collections.defaultdict(list)
  for i, ids in enumerate(encoded):
    by_length[len(ids)].append(i)
  for members in by_length.values():
    yield members, np.array([encoded[i] for i in members])


def score_sentences(
  model: Model, tokenizer: Any, sentences: list[str]
) -> np.ndarray:
  """Returns the pseudo-log-likelihood of each sentence, `[N]`."""
  scores_N = np.zeros(len(sentences))
  for members, tokens_NxL in batch_sentences(tokenizer, sentences):
    length = tokens_NxL.shape[1]
    # Each sentence as often as it has tokens, with another one hidden.
    copies_NxL = np.repeat(tokens_NxL, length - 2, axis=0)
    hidden_NxL = np.tile(np.eye(length, dtype=bool)[1:-1], (len(members), 1))
    scores = score_slots(model, copies_NxL, hidden_NxL, tokenizer.mask_token_id)
    scores_N[members] = scores.sum(axis=1).reshape(len(members), -1).sum(axis=1)
  return scores_N


def measure_pairs(
  model: Model,
  tokenizer: Any,
  pairs: list[dict[str, str]],
  score: Callable[[Model, Any, list[str]], np.ndarray] = score_sentences,
) -> tuple[float, float]:
  """Returns the mean percentage of paradigms, and twice its error."""
  good, bad = (
    score(model, tokenizer, [pair[name] for pair in pairs])
    for name in ("good", "bad")
  )
  rights = collections.defaultdict(list)
  for pair, right in zip(pairs, (np.sign(good - bad) + 1) / 2, strict=True):
    rights[pair["paradigm"]].append(right)
  means = [np.mean(x) for x in rights.values()]
  variances = [np.var(x) / len(x) for x in rights.values()]
  error = np.sum(variances) ** 0.5 / len(means)
  return 100 * float(np.mean(means)), 200 * float(error)


def read_pairs(path: str) -> Iterator[dict[str, str]]:
  """Yields the first PAIRS of each paradigm."""
  counts = collections.Counter[str]()
  for line in Path(path).read_text("utf-8").splitlines():
    pair = json.loads(line)
    counts[pair["paradigm"]] += 1
    if counts[pair["paradigm"]] <= PAIRS:
      yield pair


def main(text: str, pairs_path: str, *folders: str) -> None:
  documents = read_documents(text)
  pairs = list(read_pairs(pairs_path))
  for folder in folders:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    line = measure(model, tokenizer, documents, pairs, folder)
    print(json.dumps(line), flush=True)


def measure(
  model: Model,
  tokenizer: Any,
  documents: list[str],
  pairs: list[dict[str, str]],
  folder: str,
) -> dict[str, Any]:
  """Returns the line of a model."""
  losses = {}
  for length in LENGTHS:
    tokens_NxL, hidden_NxL = hide_windows(tokenizer, documents, length)
    scores_NxL = score_slots(
      model, tokens_NxL, hidden_NxL, tokenizer.mask_token_id
    )
    losses[length] = mean_loss(scores_NxL, hidden_NxL)
  line = {"model": folder, "windows": losses}
  if pairs:
    blimp = [round(x, 2) for x in measure_pairs(model, tokenizer, pairs)]
    line["blimp"] = blimp
  return line


if __name__ == "__main__":
  main(*sys.argv[1:])
