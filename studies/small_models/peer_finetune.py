"""Fine-tunes an exported network in PyTorch, from its weights and at random.

  python studies/small_models/peer_finetune.py EXPORT RATE   # beside sst2.py's

5 epochs of batches of 32 with AdamW, dropout 0.1, a tanh layer on [CLS].
"""

import sys

import numpy as np
import pandas as pd
import torch
import transformers

EPOCHS, BATCH_SIZE, SEEDS, DROPOUT = 5, 32, 2, 0.1


class Classifier(torch.nn.Module):
  """A network with a head of two classes."""

  def __init__(self, encoder: transformers.PreTrainedModel):
    super().__init__()
    width = encoder.config.hidden_size
    self.encoder = encoder
    self.head = torch.nn.Sequential(
      torch.nn.Linear(width, width),
      torch.nn.Tanh(),
      torch.nn.Dropout(DROPOUT),
      torch.nn.Linear(width, 2),
    )
    for module in self.modules():
      if isinstance(module, torch.nn.Dropout):
        module.p = DROPOUT

  def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns logits `[B, 2]`."""
    return self.head(self.encoder(**inputs).last_hidden_state[:, 0])


def train(model: Classifier, texts: pd.DataFrame, encode, rate: float) -> None:
  """Trains with a linear warm-up over a tenth of the steps and linear decay."""
  optimizer = torch.optim.AdamW(
    model.parameters(), rate, weight_decay=0.01, eps=1e-6
  )
  steps = EPOCHS * (len(texts) // BATCH_SIZE)
  schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda t: min(1, (t + 1) / (0.1 * steps)) * (1 - t / steps)
  )
  model.train()
  for _ in range(EPOCHS):
    order = np.random.permutation(len(texts))
    for start in range(0, len(texts) - BATCH_SIZE + 1, BATCH_SIZE):
      part = texts.iloc[order[start : start + BATCH_SIZE]]
      loss = torch.nn.functional.cross_entropy(
        model(encode(part.sentence)), torch.tensor(part.label.to_numpy())
      )
      optimizer.zero_grad()
      loss.backward()
      torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
      optimizer.step()
      schedule.step()


def score(model: Classifier, texts: pd.DataFrame, encode) -> float:
  """Returns the accuracy in percent."""
  model.eval()
  with torch.no_grad():
    right = [
      (model(encode(part.sentence)).argmax(1).numpy() == part.label).to_numpy()
      for _, part in texts.groupby(np.arange(len(texts)) // 100)
    ]
  return 100 * float(np.concatenate(right).mean())


def main(folder: str, rate: str) -> None:
  """Prints the scores of each seed."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

  def encode(sentences: pd.Series) -> dict[str, torch.Tensor]:
    return tokenizer(
      list(sentences),
      padding=True,
      truncation=True,
      max_length=64,
      return_tensors="pt",
    )

  parts = {x: pd.read_csv(f"{x}.csv") for x in ("train", "tune", "dev")}
  for name in ("pre-trained", "at random"):
    for seed in range(SEEDS):
      torch.manual_seed(seed)
      np.random.seed(seed)
      encoder = transformers.AutoModel.from_pretrained(folder)
      if name == "at random":
        encoder = transformers.AutoModel.from_config(encoder.config)
      model = Classifier(encoder)
      train(model, parts["train"], encode, float(rate))
      scores = {x: score(model, parts[x], encode) for x in ("tune", "dev")}
      print(name, seed, {x: round(s, 1) for x, s in scores.items()}, flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
