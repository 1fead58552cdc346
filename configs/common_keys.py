"""Rules of keys: ranges, choices, and which a resume may change.

`KEYS` has all keys of common.py, `TASK_KEYS` those that a task adds or treats
differently. A key whose value is a number, or several, has a range.
"""

import dataclasses

TINY = 1e-12  # lower bound of numbers that must be above 0
LARGEST = 2**31 - 1  # an int32, the type of jax's integers
LARGEST_SEED = 2**32 - 1  # jax ignores the higher bits


@dataclasses.dataclass(frozen=True)
class KeyRule:
  """The rule of one key.

  Attributes:
    low: least value of a number, or of each of several; None: not a number.
    high: greatest value.
    may_change: whether a resume may use another value. Such a key decides what
      is printed or kept, or where files are (which have fingerprints or are not
      read again). Except for rounding it does not change the training: data,
      masks and draws are the same on another mesh.
    choices: all values; empty: any value of the right type.
  """

  low: float | None = None
  high: float = LARGEST
  may_change: bool = False
  choices: tuple[str, ...] = ()

  def range_in_words(self) -> str:
    """Describes the range, LARGEST left out; "" without a range."""
    if self.low is None:
      return ""
    least = "more than 0" if self.low == TINY else f"at least {self.low:,}"
    most = "" if self.high == LARGEST else f" and at most {self.high:,}"
    return least + most


KEYS = {
  "task": KeyRule(
    choices=("pretrain", "finetune", "corrections", "robustness", "study")
  ),
  "objective": KeyRule(choices=("electra", "mlm")),
  "seed": KeyRule(0, LARGEST_SEED),
  "steps": KeyRule(1),
  "minutes": KeyRule(0, may_change=True),  # only at the start
  "batch_size": KeyRule(1),
  "length": KeyRule(8),
  "init": KeyRule(may_change=True),
  "init_skip": KeyRule(may_change=True),
  "dry_run": KeyRule(may_change=True),
  "model.backbone": KeyRule(),
  "model.variant": KeyRule(),
  "model.dropout": KeyRule(0, 0.99),
  "model.attention_dropout": KeyRule(0, 0.99),
  "model.initializer_range": KeyRule(TINY, 1),
  "model.max_positions": KeyRule(8),
  "model.dtype": KeyRule(choices=("float32", "bfloat16")),
  "model.remat": KeyRule(may_change=True, choices=("none", "dots", "full")),
  "model.scan": KeyRule(may_change=True),
  "model.attention": KeyRule(
    may_change=True,
    choices=("auto", "xla", "pieces", "flash", "cudnn", "splash"),
  ),
  "model.vocabulary_chunk": KeyRule(0, may_change=True),
  "model.pooler": KeyRule(),
  "masking.prob": KeyRule(TINY, 0.9),
  "masking.style": KeyRule(choices=("electra_85_15", "80_10_10")),
  "generator.multiplier": KeyRule(TINY),
  "generator.variant": KeyRule(),
  "generator.loss_weight": KeyRule(0),
  "generator.detect_weight": KeyRule(0),
  "negatives.sources": KeyRule(may_change=True),  # the table has a fingerprint
  "negatives.keep_stop_words": KeyRule(),
  "negatives.stop_words": KeyRule(may_change=True),
  "negatives.symmetric": KeyRule(),
  "negatives.include_self": KeyRule(),
  "negatives.layout": KeyRule(may_change=True, choices=("auto", "bits", "ids")),
  "negatives.hard_correction": KeyRule(),
  "negatives.prediction": KeyRule(choices=("argmax", "sample")),
  "negatives.strict_subword": KeyRule(),
  "negatives.discriminator": KeyRule(choices=("none", "relabel", "ignore")),
  "negatives.temperature": KeyRule(TINY),
  "generator.temperature": KeyRule(TINY),  # if not set, that one
  "negatives.smoothing": KeyRule(0, 1),
  "negatives.soft": KeyRule(choices=("cosine",)),
  "negatives.soft_weight": KeyRule(0),
  "negatives.soft_prediction": KeyRule(choices=("predicted", "expected")),
  "negatives.sentence_weight": KeyRule(0),
  "data.sources": KeyRule(),
  "data.language": KeyRule(may_change=True),
  "data.stopping": KeyRule(choices=("all", "first")),
  "data.errors": KeyRule(choices=("strict", "replace")),
  "data.tokenizer": KeyRule(may_change=True, choices=("fast", "tf_text")),
  "data.vocab": KeyRule(may_change=True),
  "data.vocab_size": KeyRule(1),
  "data.lowercase": KeyRule(),
  "data.accents": KeyRule(choices=("auto", "strip", "keep")),
  "data.layout": KeyRule(choices=("electra", "packed")),
  "data.overflow": KeyRule(choices=("carry", "discard")),
  "data.held_out": KeyRule(TINY, 0.5),
  "data.seed": KeyRule(0, LARGEST_SEED),
  "data.rows": KeyRule(may_change=True),
  "data.workers": KeyRule(0, may_change=True),
  "data.wordnet_dir": KeyRule(may_change=True),
  "optim.schedule": KeyRule(choices=("electra", "bert")),
  "optim.lr": KeyRule(TINY),
  "optim.warmup_steps": KeyRule(0),
  "optim.weight_decay": KeyRule(0),
  "optim.clip_norm": KeyRule(TINY),
  "optim.b1": KeyRule(0, 0.999999),
  "optim.b2": KeyRule(0, 0.999999),
  "optim.epsilon": KeyRule(TINY, 1),
  "optim.accumulation": KeyRule(1),
  "optim.max_skips": KeyRule(0, may_change=True),
  "mesh.preset": KeyRule(may_change=True, choices=("dp", "fsdp", "fsdp_tp")),
  "mesh.axes": KeyRule(may_change=True),
  "mesh.synonyms": KeyRule(may_change=True, choices=("replicated", "rows")),
  "checkpoint.every_steps": KeyRule(1, may_change=True),
  "checkpoint.keep": KeyRule(1, may_change=True),
  "checkpoint.keep_percent": KeyRule(0, 100, may_change=True),
  "log.every_steps": KeyRule(1, may_change=True),
  "log.writers": KeyRule(may_change=True, choices=("tensorboard", "wandb")),
  "log.profile": KeyRule(may_change=True),
  "eval.every_steps": KeyRule(1, may_change=True),
  "eval.rows": KeyRule(1, may_change=True),
  "eval.cases": KeyRule(0, may_change=True),
  "eval.sentences": KeyRule(may_change=True),
  "eval.must_learn": KeyRule(may_change=True),
}


FINETUNE_KEYS = {
  "seed": KeyRule(0, LARGEST - 1000, may_change=True),  # then seed + 1, ...
  "init_skip": KeyRule(),
  "optim.lr": KeyRule(0),
  "optim.max_skips": KeyRule(0),
  # Names of tasks and data; fingerprints of the data are compared instead.
  "finetune.tasks": KeyRule(may_change=True),
  "finetune.seeds": KeyRule(1, 1000, may_change=True),
  "finetune.data": KeyRule(may_change=True),
  "finetune.files": KeyRule(may_change=True),
  "finetune.rows": KeyRule(0),
  "finetune.epochs": KeyRule(0, 1000),
  "finetune.predict_test": KeyRule(may_change=True),
  "finetune.head_dropout": KeyRule(0, 0.99),
  "finetune.loss": KeyRule(choices=("mean", "sum")),
  "finetune.warmup": KeyRule(0, 0.9),
  "finetune.lrs": KeyRule(TINY, 1),
  "finetune.layer_decay": KeyRule(0, 1),
  "finetune.layer_decays": KeyRule(TINY, 1),
  "finetune.window": KeyRule(1),
  "finetune.evals_per_epoch": KeyRule(0),
  "finetune.save_minutes": KeyRule(0, may_change=True),
  "finetune.export": KeyRule(may_change=True, choices=("all", "none")),
  "finetune.against": KeyRule(may_change=True),
  "finetune.text": KeyRule(),
  "finetune.label": KeyRule(),
  "finetune.kind": KeyRule(choices=("classes", "score")),
  "finetune.labels": KeyRule(),
  "finetune.metric": KeyRule(),
  "finetune.stride": KeyRule(1),
  "finetune.question_length": KeyRule(1),
  "finetune.num_best": KeyRule(1),
  "finetune.max_answer": KeyRule(1),
}

ROBUSTNESS_KEYS = {
  "length": KeyRule(0),
  "robustness.task": KeyRule(),
  "robustness.data": KeyRule(),
  "robustness.rows": KeyRule(0),
  "robustness.sets": KeyRule(),
  "robustness.files": KeyRule(),
  "robustness.annotations": KeyRule(),
  "robustness.synonyms": KeyRule(),
  "robustness.neighbours": KeyRule(),
  "robustness.against": KeyRule(),
}


CORRECTIONS_KEYS = {
  "corrections.run": KeyRule(),
  "corrections.steps": KeyRule(),
  "corrections.text": KeyRule(),
  "corrections.length": KeyRule(0),
  "corrections.sequences": KeyRule(0),
  "corrections.prediction": KeyRule(),
  "corrections.sources": KeyRule(),
  "corrections.cases": KeyRule(0),
}

# A study compares its parts' values with those that they were started with.
STUDY_KEYS = {
  "study.base": KeyRule(may_change=True),
  "study.overrides": KeyRule(may_change=True),
  "study.arms": KeyRule(may_change=True),
  "study.seeds": KeyRule(1, 1000, may_change=True),
  "study.tasks": KeyRule(may_change=True),
  "study.finetune": KeyRule(may_change=True),
  "study.finetune_seeds": KeyRule(1, 1000, may_change=True),
  "study.corrections": KeyRule(may_change=True),
  "study.robustness": KeyRule(may_change=True),
  "study.shard": KeyRule(may_change=True),
}

TASK_KEYS: dict[str, dict[str, KeyRule]] = {
  "finetune": FINETUNE_KEYS,
  "corrections": CORRECTIONS_KEYS,
  "robustness": ROBUSTNESS_KEYS,
  "study": STUDY_KEYS,
}


def rules(task: str) -> dict[str, KeyRule]:
  """Returns the rules of a task's keys."""
  return KEYS | TASK_KEYS.get(task, {})
