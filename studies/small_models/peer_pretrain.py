"""Pre-trains transformers' BERT on the rows of a run, in their order.

  python studies/small_models/peer_pretrain.py ROWS OUTPUT

ROWS is a rows folder with a vocab.txt. Sizes, rates, steps and batch are those
that the demo had then; the optimizer is PyTorch's AdamW, which corrects the
bias of its means.
"""

import sys

import numpy as np
import torch
import transformers

import truenegs_jax

STEPS, BATCH_SIZE, RATE, WARMUP_STEPS = 1500, 128, 2e-3, 200
MASKED, DECAY, WIDTH = 0.25, 0.01, 128


def make_model(vocab: list[str]) -> transformers.BertForMaskedLM:
  """Makes a BERT of two layers of 128 without dropout."""
  return transformers.BertForMaskedLM(
    transformers.BertConfig(
      vocab_size=len(vocab),
      hidden_size=WIDTH,
      num_hidden_layers=2,
      num_attention_heads=2,
      intermediate_size=4 * WIDTH,
      hidden_dropout_prob=0.0,
      attention_probs_dropout_prob=0.0,
      initializer_range=0.04,
      pad_token_id=vocab.index("[PAD]"),
    )
  )


def hide(
  tokens_BxL: torch.Tensor, vocab: list[str]
) -> tuple[torch.Tensor, torch.Tensor]:
  """Returns tokens hidden as 80/10/10, and which slots are predicted."""
  names = ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "[UNK]")
  special = torch.tensor([vocab.index(name) for name in names])
  slots_BxL = torch.rand(tokens_BxL.shape) < MASKED
  slots_BxL &= ~torch.isin(tokens_BxL, special)
  draw_BxL = torch.rand(tokens_BxL.shape)
  random_BxL = torch.randint(0, len(vocab), tokens_BxL.shape)
  filled_BxL = torch.where(draw_BxL < 0.9, random_BxL, tokens_BxL)
  filled_BxL[draw_BxL < 0.8] = vocab.index("[MASK]")
  return torch.where(slots_BxL, filled_BxL, tokens_BxL), slots_BxL


def main(rows: str, output: str) -> None:
  """Trains, prints the loss of all slots every 100 steps, and saves."""
  torch.manual_seed(0)
  tokenizer = truenegs_jax.load_tokenizer(f"{rows}/vocab.txt", lowercase=True)
  vocab = list(tokenizer.vocab)
  model = make_model(vocab)
  groups = [
    {"params": [x for x in model.parameters() if x.ndim > 1]},
    {
      "params": [x for x in model.parameters() if x.ndim < 2],
      "weight_decay": 0,
    },
  ]
  optimizer = torch.optim.AdamW(groups, RATE, weight_decay=DECAY, eps=1e-6)
  schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda t: min(1, (t + 1) / WARMUP_STEPS) * (1 - t / STEPS)
  )
  losses = []
  batches = truenegs_jax.batches(rows, BATCH_SIZE, tokenizer=tokenizer)
  for step, batch in zip(range(1, STEPS + 1), batches, strict=False):
    tokens_BxL = torch.tensor(batch["tokens"]).long()
    hidden_BxL, slots_BxL = hide(tokens_BxL, vocab)
    states_BxLxD = model.bert(
      hidden_BxL,
      attention_mask=torch.tensor(batch["documents"]).sign().long(),
      token_type_ids=torch.tensor(batch["types"]).long(),
    ).last_hidden_state
    loss = torch.nn.functional.cross_entropy(
      model.cls(states_BxLxD[slots_BxL]), tokens_BxL[slots_BxL]
    )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
    if step % 100 == 0:
      print(step, round(float(np.mean(losses[-100:])), 3), flush=True)
  model.save_pretrained(output)


if __name__ == "__main__":
  main(*sys.argv[1:])
