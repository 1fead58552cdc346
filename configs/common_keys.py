"""Rules for the keys of common.py: their ranges, and what a resume may change.

Every key of common.py has its line here. `REMOVED` has the keys that configs
of saved runs may still hold.
"""

import dataclasses
import math
from typing import Any

TINY = 1e-12  # the lower bound of what must be more than 0


@dataclasses.dataclass(frozen=True)
class Key:
  """The rule of one key.

  Attributes:
    low: the least value of a number; None where the key holds none.
    high: the greatest.
    free: it may change between the runs of a workdir. Such a key decides what
      is shown and kept, or where things lie (those have fingerprints or are not
      read again), and no number of the training beyond the order in which sums
      are added: data, masks and draws are the same on another mesh.
    before: what it was in runs that were saved before there was such a key;
      None: no run lacks it.
  """

  low: float | None = None
  high: float = math.inf
  free: bool = False
  before: Any = None


KEYS = {
  "task": Key(),
  "objective": Key(),
  "seed": Key(0),
  "steps": Key(1),
  "batch_size": Key(1),
  "length": Key(8),
  "init": Key(free=True),
  "init_skip": Key(free=True, before=""),
  "dry_run": Key(),
  "model.backbone": Key(),
  "model.variant": Key(),
  "model.dropout": Key(0, 0.99),
  "model.attention_dropout": Key(0, 0.99),
  "model.initializer_range": Key(TINY, 1),
  "model.max_positions": Key(),
  "model.dtype": Key(),
  "model.remat": Key(free=True),
  "model.scan": Key(free=True),
  "model.attention": Key(free=True, before="auto"),
  "model.vocabulary_chunk": Key(0, free=True, before=0),
  "model.pooler": Key(),
  "masking.prob": Key(TINY, 0.9),
  "masking.style": Key(),
  "masking.with_replacement": Key(),
  "generator.multiplier": Key(TINY),
  "generator.variant": Key(before=""),
  "generator.temperature": Key(TINY),
  "generator.loss_weight": Key(0),
  "generator.detect_weight": Key(0),
  "negatives.sources": Key(free=True),  # the table has a fingerprint
  "negatives.keep_stop_words": Key(),
  "negatives.stop_words": Key(free=True),
  "negatives.symmetric": Key(),
  "negatives.include_self": Key(),
  "negatives.layout": Key(free=True),
  "negatives.hard_correction": Key(),
  "negatives.prediction": Key(),
  "negatives.normalizer": Key(),
  "negatives.strict_subword": Key(before=False),
  "negatives.discriminator": Key(),
  "negatives.temperature": Key(TINY),
  "negatives.smoothing": Key(0, 1),
  "negatives.soft": Key(),
  "negatives.soft_weight": Key(0),
  "negatives.soft_schedule": Key(),
  "negatives.soft_steps": Key(0),
  "negatives.soft_prediction": Key(),
  "negatives.soft_gradient": Key(),
  "negatives.sentence_weight": Key(0),
  "negatives.sentence_direction": Key(),
  "negatives.sentence_target": Key(),
  "negatives.sentence_encoder": Key(),
  "data.sources": Key(),
  "data.stopping": Key(),
  "data.errors": Key(),
  "data.tokenizer": Key(free=True),
  "data.vocab": Key(free=True),
  "data.vocab_size": Key(),
  "data.lowercase": Key(),
  "data.accents": Key(),
  "data.layout": Key(),
  "data.overflow": Key(),
  "data.held_out": Key(TINY, 0.5),
  "data.seed": Key(0),
  "data.rows": Key(free=True),
  "data.workers": Key(0, free=True),
  "data.wordnet_dir": Key(free=True),
  "optim.schedule": Key(),
  "optim.lr": Key(TINY),
  "optim.warmup_steps": Key(0),
  "optim.weight_decay": Key(0),
  "optim.clip_norm": Key(TINY),
  "optim.b1": Key(),
  "optim.b2": Key(),
  "optim.epsilon": Key(),
  "optim.accumulation": Key(1),
  "optim.max_skips": Key(0, free=True),
  "mesh.preset": Key(free=True),
  "mesh.axes": Key(free=True),
  "mesh.synonyms": Key(free=True),
  "checkpoint.every_steps": Key(1, free=True),
  "checkpoint.keep": Key(1, free=True),
  "checkpoint.keep_percent": Key(free=True),
  "log.every_steps": Key(1, free=True),
  "log.writers": Key(free=True),
  "log.profile": Key(free=True, before=""),
  "eval.every_steps": Key(1, free=True),
  "eval.rows": Key(1, free=True),
  "eval.cases": Key(0, free=True),
  "eval.sentences": Key(free=True),
  "eval.must_learn": Key(free=True),
}


@dataclasses.dataclass(frozen=True)
class Removed:
  """A key that is gone.

  Attributes:
    value: the one that all runs have now.
    last: the newest version that has others.
  """

  value: Any
  last: str


REMOVED: dict[str, Removed] = {
  "negatives.visible_slots": Removed("judged", "0.1.0"),
  "negatives.soft_table": Removed("word", "0.1.0"),
  "negatives.sentence_positions": Removed("tokens", "0.1.0"),
  "negatives.sentence_gradient": Removed("predicted", "0.1.0"),
}
