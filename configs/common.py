"""Defaults of every config and the words that follow its name.

  --config=configs/electra_demo.py:baseline,runlocal --config.seed=1

A config file says only what differs from here. A config is code: run only
those that you trust like code. The resolved values are saved as JSON, and a
saved config is never executed.
"""

from ml_collections import ConfigDict

# What each recipe of the paper changes (Zhang et al. 2023, section 3.2).
RECIPES = {
  "baseline": dict(hard_correction=False, soft_weight=0.0),
  "hc": dict(hard_correction=True, soft_weight=0.0),
  "sr": dict(hard_correction=False, soft_weight=1.0),
  "hc+sr": dict(hard_correction=True, soft_weight=1.0),
}

# The corpora of the paper by their names on the Hugging Face hub. Without
# internet, data.sources takes the path of a copy: texts, or hf:FOLDER.
OPENWEBTEXT = "hf:Skylion007/openwebtext"
WIKIPEDIA = "hf:wikimedia/wikipedia config=20231101.en"
# What is at the main revision needs a script, which `datasets` no longer runs.
BOOKS = "hf:bookcorpus/bookcorpus revision=refs/convert/parquet"
BERT_VOCAB = "google-bert/bert-base-uncased"


def get_config() -> ConfigDict:
  """The defaults: ELECTRA as released, hard correction on."""
  c = ConfigDict()
  c.task = "pretrain"
  c.seed = 0
  c.steps = 1_000_000
  c.batch_size = 128  # rows of one update, over all devices and processes
  c.length = 128  # tokens of a row

  c.model = ConfigDict()
  c.model.backbone = "encoder"  # truenegs_jax/models/<name>.py
  c.model.variant = "small"  # a name in the backbone's VARIANTS
  c.model.dropout = 0.1
  c.model.attention_dropout = 0.1
  c.model.initializer_range = 0.02
  c.model.max_positions = 512
  c.model.dtype = "float32"  # of activations; "bfloat16" on TPU and GPU

  c.generator = ConfigDict()
  c.generator.multiplier = 0.25  # of the discriminator's width
  c.generator.temperature = 1.0  # of the sampling
  c.generator.mask_prob = 0.15
  c.generator.loss_weight = 1.0  # the discriminator's: ELECTRA, table 6
  c.generator.detect_weight = 50.0

  c.negatives = ConfigDict()
  c.negatives.sources = "wordnet"
  c.negatives.keep_stop_words = False  # True: gold stop words have lists too
  c.negatives.hard_correction = True
  c.negatives.prediction = "argmax"  # or "sample"
  c.negatives.normalizer = "kept"  # or "slots"
  c.negatives.soft = "cosine"
  c.negatives.soft_weight = 0.0

  c.data = ConfigDict()
  c.data.sources = "wordnet"  # or files, folders, globs, hf:NAME; see README
  c.data.stopping = "all"  # of a mixture; or "first", with its shortest part
  c.data.errors = "strict"  # damaged text is refused; "replace" mends, counts
  c.data.tokenizer = "fast"  # or "tf_text": the same ids
  c.data.vocab = "train"  # or vocab.txt, a folder, a name on the hub
  c.data.vocab_size = 30_522  # of a trained one
  c.data.lowercase = True
  c.data.accents = "auto"  # stripped with lowercase; or "strip", "keep"
  c.data.layout = "electra"  # or "packed"
  c.data.overflow = "carry"  # tokens over the limit; or "discard", as released
  c.data.held_out = 0.02  # share of the documents
  c.data.seed = 0  # of the layout: runs of any c.seed share the rows
  c.data.rows = ""  # folder of the rows; "" is one in the cache
  c.data.workers = 0  # processes that prepare; 0: one per core
  c.data.wordnet_dir = ""  # "" looks where NLTK and launch/wordnet.sh put it

  c.optim = ConfigDict()
  c.optim.schedule = "electra"
  c.optim.lr = 5e-4
  c.optim.warmup_steps = 10_000  # as released; shrunk runs set their own
  c.optim.weight_decay = 0.01
  c.optim.clip_norm = 1.0
  c.optim.b1 = 0.9
  c.optim.b2 = 0.999
  c.optim.epsilon = 1e-6
  c.optim.accumulation = 1  # micro-batches of one update
  c.optim.max_skips = 0  # non-finite updates in a row that are put up with

  c.mesh = ConfigDict()
  c.mesh.preset = "dp"

  c.checkpoint = ConfigDict()
  c.checkpoint.every_steps = 10_000
  c.checkpoint.keep = 2  # newest; beside them, for good, in % of the steps:
  c.checkpoint.keep_percent = (6.25, 12.5, 25.0, 50.0, 80.0, 100.0)  # table 2

  c.log = ConfigDict()
  c.log.every_steps = 100
  c.log.writers = ()  # beside metrics.jsonl; "tensorboard"

  c.eval = ConfigDict()
  c.eval.every_steps = 10_000
  c.eval.rows = 2_048  # held-out rows at most
  c.eval.cases = 10  # corrections to show at the end
  c.eval.sentences = ()  # with one [MASK] each, filled at the end
  c.eval.must_learn = False  # True: exit 1 unless both networks learned
  return c


def apply_arg(c: ConfigDict, arg: str, *, default: str) -> ConfigDict:
  """Applies the words after the config's name, in any order.

  Args:
    c: the config to change.
    arg: comma-separated words: one recipe (baseline, hc, sr, hc+sr) and
      `runlocal`, which shrinks everything to a minute on a laptop.
    default: the recipe when `arg` names none.

  Raises:
    ValueError: an unknown word, or two recipes.
  """
  words = [word for word in (arg or "").split(",") if word]
  known = [*RECIPES, "runlocal"]
  unknown = [word for word in words if word not in known]
  recipes = [word for word in words if word in RECIPES]
  if unknown or len(recipes) > 1:
    raise ValueError(
      f"config argument {arg!r}: give at most one of {', '.join(RECIPES)}, and"
      f" runlocal; unknown here: {unknown}."
    )
  c.negatives.update(RECIPES[recipes[0] if recipes else default])
  if "runlocal" in words:
    runlocal(c)
  return c


def runlocal(c: ConfigDict) -> None:
  """The same code path, shrunk to a minute on a laptop."""
  c.model.variant = "tiny"
  c.generator.multiplier = 0.5
  c.steps, c.batch_size, c.length = 20, 8, 32
  # What a laptop has; a run on the real corpus is prepared first.
  c.data.sources, c.data.vocab, c.data.vocab_size = "wordnet", "train", 2_000
  c.optim.warmup_steps = 2
  c.log.every_steps = 5
  c.checkpoint.every_steps = 10
  c.eval.every_steps, c.eval.rows = 10, 64
  c.eval.must_learn = False  # 20 steps teach nothing
