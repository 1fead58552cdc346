"""Saves a model that knows how often each token occurs, and nothing else.

  python studies/hour/counts.py TEXT TOKENIZER OUTPUT

TEXT has one document a paragraph; TOKENIZER is a folder. The model is a BERT
whose weights are 0 but for the biases of its output, the logarithms of the
tokens' shares, each token counted once more. measure.py measures it as others.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(text: str, folder: str, output: str) -> None:
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  documents = Path(text).read_text("utf-8").split("\n\n")
  encoded = tokenizer(documents, add_special_tokens=False, verbose=False)
  tokens = np.concatenate([np.array(x, int) for x in encoded["input_ids"]])
  counts_V = 1 + np.bincount(tokens, minlength=len(tokenizer))
  config = transformers.BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=8,
  )
  model = transformers.BertForMaskedLM(config)
  shares_V = torch.tensor(counts_V / counts_V.sum())
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.zero_()
    model.get_output_embeddings().bias.copy_(shares_V.log())
  model.save_pretrained(output)
  tokenizer.save_pretrained(output)


if __name__ == "__main__":
  main(*sys.argv[1:])
