"""Measures what the states of exported networks hold, by linear probes.

  pip install scikit-learn
  python studies/small_models/probe.py EXPORT ...    # in the folder of sst2.py

EXPORT is a folder of Hugging Face with its tokenizer. Prints, for each network
and the same one drawn at random, the norm and the effective rank of its word
embeddings, and by layer the accuracy of logistic regression on states averaged
over a sentence. The regularization is the best for tune.csv.
"""

import sys

import numpy as np
import pandas as pd
import torch
import transformers
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

STRENGTHS = (0.001, 0.01, 0.1)  # C of scikit-learn


def average_states(
  model: transformers.PreTrainedModel,
  tokenizer: transformers.PreTrainedTokenizerBase,
  texts: list[str],
) -> np.ndarray:
  """Returns states averaged over the tokens but [CLS], `[layers, N, D]`."""
  chunks = []
  for start in range(0, len(texts), 64):
    inputs = tokenizer(
      texts[start : start + 64], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
      states = model(**inputs, output_hidden_states=True).hidden_states
    mask_BxLx1 = inputs["attention_mask"][:, 1:, None]
    count_Bx1 = mask_BxLx1.sum(1)
    chunks.append(
      np.stack(
        [((x[:, 1:] * mask_BxLx1).sum(1) / count_Bx1).numpy() for x in states]
      )
    )
  return np.concatenate(chunks, axis=1)


def effective_rank(x_NxD: np.ndarray) -> float:
  """Returns exp of the entropy of the shares of the principal components."""
  squares = np.linalg.svd(x_NxD - x_NxD.mean(0), compute_uv=False) ** 2
  p = squares / squares.sum()
  return float(np.exp(-(p * np.log(p + 1e-12)).sum()))


def report(name: str, model: transformers.PreTrainedModel) -> None:
  """Prints the measures of a network."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(name.split()[-1])
  word_VxE = model.get_input_embeddings().weight.detach().numpy()
  norm = np.linalg.norm(word_VxE, axis=1).mean()
  print(f"{name}: norm {norm:.2f}, rank {effective_rank(word_VxE):.0f}")
  parts = {x: pd.read_csv(f"{x}.csv") for x in ("train", "tune", "dev")}
  states = {
    x: average_states(model.eval(), tokenizer, list(part.sentence))
    for x, part in parts.items()
  }
  for layer in range(len(states["train"])):
    scores = []
    for strength in STRENGTHS:
      probe = make_pipeline(
        StandardScaler(), LogisticRegression(C=strength, max_iter=500)
      ).fit(states["train"][layer], parts["train"].label)
      scores.append(
        tuple(
          100 * probe.score(states[x][layer], parts[x].label)
          for x in ("tune", "dev")
        )
      )
    rank = effective_rank(states["dev"][layer])
    print(f"  layer {layer}: dev {max(scores)[1]:.1f}, rank {rank:.0f}")


if __name__ == "__main__":
  for folder in sys.argv[1:]:
    trained = transformers.AutoModel.from_pretrained(folder)
    report(folder, trained)
    torch.manual_seed(0)
    drawn = transformers.AutoModel.from_config(trained.config)
    report(f"at random: {folder}", drawn)
