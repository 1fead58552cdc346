"""Fine-tunes on words with tags: named entities.

  truenegs main --config=finetune_ner --config.init=runs/electra_small \\
    --config.finetune.train=train.conll --config.finetune.dev=dev.conll

A file has a word on each line, its tag in the last column, and an empty line
after each sentence, as in CoNLL 2003; lines of -DOCSTART- are skipped. JSON
lines (.jsonl) and data sets (hf:NAME) have a list of words in the column
`finetune.text`, and one of tags in `finetune.label`. Each file can be
compressed. Tags are BIO, IOB1 or IOBES; the first lines of a run say which, and
the exported model has BIO.

The score is F1 of entities, that of seqeval; strict_f1 is that of its strict
mode, in which an entity must begin with B. A table has the scores by type.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config


def get_config(arg: str = "") -> ConfigDict:
  """Configures 3 epochs of batches of 32 sentences of at most 128 tokens."""
  c = make_config("finetune")
  c.finetune.tasks = "own"
  c.finetune.kind = "tags"
  c.finetune.text = "tokens"
  c.finetune.label = "ner_tags"
  c.finetune.epochs = 3.0
  parse_words(arg, {})
  return c
