"""Measures what discriminators know: replaced tokens and minimal pairs.

  python studies/hour/detect.py TEXT PAIRS MASKED MODEL [MODEL ...]

TEXT and PAIRS are those of measure.py. A MODEL is the discriminator of a run's
export with its head (`detector`), and MASKED a masked language model, which
replaces the tokens that measure.py hides by its own draws, the same for all.
Prints a line of JSON for each:

- `auc`: by the length of a window, the area under the ROC curve of its logits,
  in percent, of tokens that were replaced against all others, and twice its
  standard error; a draw that is the token itself replaces nothing;
- `blimp`, unless PAIRS is empty: percentage of the pairs whose good sentence
  has the higher log-probability that no token is replaced, summed over its
  tokens, and twice its standard error; ties count one half.

Computes in f32 with PyTorch and transformers.
"""

import json
import sys
from typing import Any

import measure
import numpy as np
import torch
import transformers
from scipy import stats

Model = Any  # of transformers, with two labels a token


def replace_tokens(
  masked: measure.Model,
  tokenizer: Any,
  tokens_NxL: np.ndarray,
  hidden_NxL: np.ndarray,
) -> np.ndarray:
  """Returns windows with draws of `masked` at the hidden slots, `[N, L]`."""
  draws = torch.Generator().manual_seed(2)
  filled_NxL = tokens_NxL.copy()
  for rows, log_p_MxV in measure.predict_slots(
    masked, tokens_NxL, hidden_NxL, tokenizer.mask_token_id
  ):
    drawn_Mx1 = torch.multinomial(log_p_MxV.exp(), 1, generator=draws)
    filled_NxL[rows][hidden_NxL[rows]] = drawn_Mx1[:, 0].numpy()
  return filled_NxL


@torch.inference_mode()
def detect(model: Model, tokens_NxL: np.ndarray) -> np.ndarray:
  """Returns the logit of "replaced" of each token, f64 `[N, L]`."""
  size = max(1, measure.BATCH_TOKENS // tokens_NxL.shape[1])
  logits = []
  for start in range(0, len(tokens_NxL), size):
    x_BxLx2 = model(torch.tensor(tokens_NxL[start : start + size])).logits
    logits.append((x_BxLx2[..., 1] - x_BxLx2[..., 0]).double().numpy())
  return np.concatenate(logits)


def measure_auc(
  logits_NxL: np.ndarray, replaced_NxL: np.ndarray, real_NxL: np.ndarray
) -> list[float]:
  """Returns the area under the ROC curve of real tokens, and twice its error.

  Both are in percent. The error is that of windows as clusters (Obuchowski
  1997, "Nonparametric analysis of clustered ROC curve data").
  """
  logits_T, replaced_T = logits_NxL[real_NxL], replaced_NxL[real_NxL]
  # Of each token, the share of the other class that it is rightly above or
  # below: its rank among all, less that among its own class.
  right_T = stats.rankdata(logits_T)
  counts_T = np.empty(len(right_T))  # of its own class
  for own_T in (replaced_T, ~replaced_T):
    right_T[own_T] -= stats.rankdata(logits_T[own_T])
    right_T[own_T] /= (~own_T).sum()
    counts_T[own_T] = own_T.sum()
  right_T[~replaced_T] = 1 - right_T[~replaced_T]
  auc = right_T[replaced_T].mean()
  errors_NxL = np.zeros(logits_NxL.shape)
  errors_NxL[real_NxL] = (right_T - auc) / counts_T
  error = np.linalg.norm(errors_NxL.sum(axis=1))
  return [round(100 * float(x), 2) for x in (auc, 2 * error)]


def score_sentences(
  model: Model, tokenizer: Any, sentences: list[str]
) -> np.ndarray:
  """Returns the log-probability that nothing is replaced, `[N]`."""
  scores_N = np.zeros(len(sentences))
  for members, tokens_NxL in measure.batch_sentences(tokenizer, sentences):
    logits_NxL = detect(model, tokens_NxL)[:, 1:-1]
    scores_N[members] = -np.logaddexp(0, logits_NxL).sum(axis=1)
  return scores_N


def load_detector(folder: str) -> Model:
  """Loads a discriminator, whose head must be there."""
  model, found = transformers.AutoModelForTokenClassification.from_pretrained(
    folder, output_loading_info=True
  )
  if missing := found["missing_keys"]:
    raise SystemExit(
      f"{folder}: {', '.join(sorted(missing))} are missing. Give the folder"
      " 'detector' of an export, which has the head."
    )
  return model.eval()


def main(text: str, pairs_path: str, masked_folder: str, *folders: str) -> None:
  tokenizer = transformers.AutoTokenizer.from_pretrained(masked_folder)
  masked = transformers.AutoModelForMaskedLM.from_pretrained(masked_folder)
  documents = measure.read_documents(text)
  windows = {}
  for length in measure.LENGTHS:
    tokens_NxL, hidden_NxL = measure.hide_windows(tokenizer, documents, length)
    filled_NxL = replace_tokens(
      masked.eval(), tokenizer, tokens_NxL, hidden_NxL
    )
    windows[length] = tokens_NxL, filled_NxL
  pairs = list(measure.read_pairs(pairs_path))
  for folder in folders:
    model = load_detector(folder)
    line: dict[str, Any] = {"model": folder, "auc": {}}
    for length, (tokens_NxL, filled_NxL) in windows.items():
      real_NxL = ~np.isin(tokens_NxL, tokenizer.all_special_ids)
      line["auc"][length] = measure_auc(
        detect(model, filled_NxL), filled_NxL != tokens_NxL, real_NxL
      )
    if pairs:
      blimp = measure.measure_pairs(model, tokenizer, pairs, score_sentences)
      line["blimp"] = [round(x, 2) for x in blimp]
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
