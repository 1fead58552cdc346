"""Measures the models of real text: losses, words with synonyms, BLiMP.

  PYTHONPATH=studies/hour python studies/teacher/text.py TEXT PAIRS MODEL [...]

TEXT and PAIRS are those of studies/hour/measure.py, which has the measures; a
MODEL is the export of a run. Prints a line of JSON for each, to which
`synonyms` adds the loss of the slots of windows of 128 whose token is a word
with synonyms in WordNet; only these are hidden, so more of a window is seen.
"""

import json
import sys
from typing import Any

import agree
import measure
import transformers

import truenegs_jax as tn


def main(text: str, pairs_path: str, *folders: str) -> None:
  documents = measure.read_documents(text)
  pairs = list(measure.read_pairs(pairs_path)) if pairs_path else []
  for folder in folders:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    line = measure.measure(model, tokenizer, documents, pairs, folder)
    synonyms = measure_synonyms(model, tokenizer, documents, folder)
    print(json.dumps(line | {"synonyms": synonyms}), flush=True)


def measure_synonyms(
  model: Any, tokenizer: Any, documents: list[str], folder: str
) -> list[float]:
  """Returns the loss of words with synonyms, and twice its error."""
  own = tn.load_tokenizer(folder, lowercase=True)
  table = tn.build_table(own, "wordnet")
  tokens_NxL, hidden_NxL = measure.hide_windows(
    tokenizer, documents, agree.LENGTH
  )
  hidden_NxL &= agree.find_words(own, tokens_NxL)
  hidden_NxL &= table.lengths_V[tokens_NxL] > 0
  scores_NxL = measure.score_slots(
    model, tokens_NxL, hidden_NxL, tokenizer.mask_token_id
  )
  return measure.mean_loss(scores_NxL, hidden_NxL)


if __name__ == "__main__":
  main(*sys.argv[1:])
