"""Rules of the keys of common.py: ranges, and which a resume may change.

`KEYS` has all keys of common.py, `REMOVED` those of earlier versions that the
configs of saved runs may contain.
"""

import dataclasses
import math
from typing import NamedTuple

TINY = 1e-12  # lower bound of numbers that must be above 0


@dataclasses.dataclass(frozen=True)
class KeyRule:
  """The rule of one key.

  Attributes:
    low: least value of a number; None: any value.
    high: greatest value of a number.
    may_change: whether a resume may use another value. Such a key decides what
      is printed or kept, or where files are (which have fingerprints or are not
      read again). Except for rounding it does not change the training: data,
      masks and draws are the same on another mesh.
    old_default: the value in runs that were saved before this key existed;
      None: every saved run has the key.
  """

  low: float | None = None
  high: float = math.inf
  may_change: bool = False
  old_default: str | float | None = None


KEYS = {
  "task": KeyRule(),
  "objective": KeyRule(),
  "seed": KeyRule(0),
  "steps": KeyRule(1),
  "batch_size": KeyRule(1),
  "length": KeyRule(8),
  "init": KeyRule(may_change=True),
  "init_skip": KeyRule(may_change=True, old_default=""),
  "dry_run": KeyRule(),
  "model.backbone": KeyRule(),
  "model.variant": KeyRule(),
  "model.dropout": KeyRule(0, 0.99),
  "model.attention_dropout": KeyRule(0, 0.99),
  "model.initializer_range": KeyRule(TINY, 1),
  "model.max_positions": KeyRule(),
  "model.dtype": KeyRule(),
  "model.remat": KeyRule(may_change=True),
  "model.scan": KeyRule(may_change=True),
  "model.attention": KeyRule(may_change=True, old_default="auto"),
  "model.vocabulary_chunk": KeyRule(0, may_change=True, old_default=0),
  "model.pooler": KeyRule(),
  "masking.prob": KeyRule(TINY, 0.9),
  "masking.style": KeyRule(),
  "masking.with_replacement": KeyRule(),
  "generator.multiplier": KeyRule(TINY),
  "generator.variant": KeyRule(old_default=""),
  "generator.loss_weight": KeyRule(0),
  "generator.detect_weight": KeyRule(0),
  "negatives.sources": KeyRule(may_change=True),  # the table has a fingerprint
  "negatives.keep_stop_words": KeyRule(),
  "negatives.stop_words": KeyRule(may_change=True),
  "negatives.symmetric": KeyRule(),
  "negatives.include_self": KeyRule(),
  "negatives.layout": KeyRule(may_change=True),
  "negatives.hard_correction": KeyRule(),
  "negatives.prediction": KeyRule(),
  "negatives.normalizer": KeyRule(),
  "negatives.strict_subword": KeyRule(old_default=False),
  "negatives.discriminator": KeyRule(),
  "negatives.temperature": KeyRule(TINY),
  "generator.temperature": KeyRule(TINY),  # if not set, that one
  "negatives.smoothing": KeyRule(0, 1),
  "negatives.soft": KeyRule(),
  "negatives.soft_weight": KeyRule(0),
  "negatives.soft_schedule": KeyRule(),
  "negatives.soft_steps": KeyRule(0),
  "negatives.soft_prediction": KeyRule(),
  "negatives.soft_gradient": KeyRule(),
  "negatives.sentence_weight": KeyRule(0),
  "negatives.sentence_direction": KeyRule(),
  "negatives.sentence_target": KeyRule(),
  "negatives.sentence_encoder": KeyRule(),
  "data.sources": KeyRule(),
  "data.language": KeyRule(may_change=True, old_default="en"),
  "data.stopping": KeyRule(),
  "data.errors": KeyRule(),
  "data.tokenizer": KeyRule(may_change=True),
  "data.vocab": KeyRule(may_change=True),
  "data.vocab_size": KeyRule(),
  "data.lowercase": KeyRule(),
  "data.accents": KeyRule(),
  "data.layout": KeyRule(),
  "data.overflow": KeyRule(),
  "data.held_out": KeyRule(TINY, 0.5),
  "data.seed": KeyRule(0),
  "data.rows": KeyRule(may_change=True),
  "data.workers": KeyRule(0, may_change=True),
  "data.wordnet_dir": KeyRule(may_change=True),
  "optim.schedule": KeyRule(),
  "optim.lr": KeyRule(TINY),
  "optim.warmup_steps": KeyRule(0),
  "optim.weight_decay": KeyRule(0),
  "optim.clip_norm": KeyRule(TINY),
  "optim.b1": KeyRule(),
  "optim.b2": KeyRule(),
  "optim.epsilon": KeyRule(),
  "optim.accumulation": KeyRule(1),
  "optim.max_skips": KeyRule(0, may_change=True),
  "mesh.preset": KeyRule(may_change=True),
  "mesh.axes": KeyRule(may_change=True),
  "mesh.synonyms": KeyRule(may_change=True),
  "checkpoint.every_steps": KeyRule(1, may_change=True),
  "checkpoint.keep": KeyRule(1, may_change=True),
  "checkpoint.keep_percent": KeyRule(may_change=True),
  "log.every_steps": KeyRule(1, may_change=True),
  "log.writers": KeyRule(may_change=True),
  "log.profile": KeyRule(may_change=True, old_default=""),
  "eval.every_steps": KeyRule(1, may_change=True),
  "eval.rows": KeyRule(1, may_change=True),
  "eval.cases": KeyRule(0, may_change=True),
  "eval.sentences": KeyRule(may_change=True),
  "eval.must_learn": KeyRule(may_change=True),
}


class RemovedKey(NamedTuple):
  """A key of earlier versions."""

  value: str  # the only value that this version implements
  last_version: str  # the newest version with other values


REMOVED: dict[str, RemovedKey] = {
  "negatives.visible_slots": RemovedKey("judged", "0.1.0"),
  "negatives.soft_table": RemovedKey("word", "0.1.0"),
  "negatives.sentence_positions": RemovedKey("tokens", "0.1.0"),
  "negatives.sentence_gradient": RemovedKey("predicted", "0.1.0"),
}
