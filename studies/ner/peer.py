"""Fine-tunes a model on tagged words with transformers' Trainer, several seeds.

  python studies/ner/peer.py MODEL TRAIN DEV SEEDS

As examples/pytorch/token-classification/run_ner.py of transformers, with the
settings of `finetune_ner` as README.md sets them: tokens by
`is_split_into_words`, a word's tag on its first token, AdamW. TRAIN and DEV
have a word and its tag on each line, divided by a tab. Prints a line of JSON
for each seed, with the scores of seqeval in percent.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from seqeval import metrics

LENGTH = 128
IGNORED = -100  # of the loss
Sentence = tuple[list[str], list[str]]  # words and tags


def read_sentences(path: str) -> list[Sentence]:
  """Reads the words and tags of each sentence."""
  sentences: list[Sentence] = [([], [])]
  for line in Path(path).read_text("utf-8").splitlines():
    word, _, tag = line.partition("\t")
    if word:
      sentences[-1][0].append(word)
      sentences[-1][1].append(tag)
    elif sentences[-1][0]:
      sentences.append(([], []))
  return [x for x in sentences if x[0]]


def encode(
  tokenizer: Any, sentences: list[Sentence], labels: list[str]
) -> list[dict[str, list[int]]]:
  """Returns the tokens of each sentence, with labels on first tokens."""
  rows = []
  for words, tags in sentences:
    encoded = tokenizer(
      words, is_split_into_words=True, truncation=True, max_length=LENGTH
    )
    last = None
    row = []
    for word in encoded.word_ids():
      is_first = word is not None and word != last
      row.append(labels.index(tags[word]) if is_first else IGNORED)
      last = word
    rows.append({**encoded, "labels": row})
  return rows


def score(
  logits_NxLxC: np.ndarray, labels_NxL: np.ndarray, labels: list[str]
) -> dict[str, float]:
  """Returns the scores of seqeval; words that were cut off do not count."""
  best_NxL = logits_NxLxC.argmax(-1)
  golds = [[labels[i] for i in row if i >= 0] for row in labels_NxL]
  answers = [
    [labels[i] for i, gold in zip(*pair, strict=True) if gold >= 0]
    for pair in zip(best_NxL, labels_NxL, strict=True)
  ]
  return {
    name: 100 * float(getattr(metrics, f"{name}_score")(golds, answers))
    for name in ("f1", "precision", "recall")
  }


def fine_tune(
  folder: str, train: list[Sentence], dev: list[Sentence], seed: int
) -> dict[str, float]:
  """Trains with a seed and scores the dev set."""
  transformers.set_seed(seed)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  labels = sorted({tag for _, tags in train for tag in tags})
  trainer = transformers.Trainer(
    transformers.AutoModelForTokenClassification.from_pretrained(
      folder, num_labels=len(labels)
    ),
    transformers.TrainingArguments(
      "runs/ner-peer",
      use_cpu=True,
      per_device_train_batch_size=32,
      per_device_eval_batch_size=32,
      num_train_epochs=3,
      learning_rate=1e-4,
      adam_epsilon=1e-6,
      weight_decay=0.0,
      warmup_steps=0.1,  # of the steps
      lr_scheduler_type="linear",
      max_grad_norm=1.0,
      save_strategy="no",
      report_to="none",
      disable_tqdm=True,
      seed=seed,
    ),
    train_dataset=encode(tokenizer, train, labels),
    data_collator=transformers.DataCollatorForTokenClassification(tokenizer),
  )
  trainer.train()
  output = trainer.predict(encode(tokenizer, dev, labels))
  return score(output.predictions, output.label_ids, labels)


def main(folder: str, train: str, dev: str, seeds: str) -> None:
  sets = [read_sentences(x) for x in (train, dev)]
  for seed in range(int(seeds)):
    scores = fine_tune(folder, *sets, seed)
    print(json.dumps({"seed": seed, **scores}), flush=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
