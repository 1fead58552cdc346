"""Defaults of every config and the words that follow its name.

  --config=configs/electra_demo.py:baseline,runlocal --config.seed=1

A config file says only what differs from here. A config is code: run only
those that you trust like code. The resolved values are saved as JSON, and a
saved config is never executed.
"""

import functools
from collections.abc import Callable

from ml_collections import ConfigDict

# What each recipe of the paper changes (Zhang et al. 2023, section 3.2; the
# last two are its ablations, table 6).
GLOVE = "vectors path=glove.6B.50d.txt top=10"
_OFF = dict(hard_correction=False, soft_weight=0.0, sentence_weight=0.0)
RECIPES = {
  "baseline": _OFF,
  "hc": _OFF | dict(hard_correction=True),
  "sr": _OFF | dict(soft_weight=1.0),
  "hc+sr": _OFF | dict(hard_correction=True, soft_weight=1.0),
  "hc_glove": _OFF | dict(hard_correction=True, sources=GLOVE),
  "sr_sent": _OFF | dict(sentence_weight=1.0),
}

# The corpora of the paper by their names on the Hugging Face hub. Without
# internet, data.sources takes the path of a copy: texts, or hf:FOLDER.
OPENWEBTEXT = "hf:Skylion007/openwebtext"
WIKIPEDIA = "hf:wikimedia/wikipedia config=20231101.en"
# What is at the main revision needs a script, which `datasets` no longer runs.
BOOKS = "hf:bookcorpus/bookcorpus revision=refs/convert/parquet"
BERT_VOCAB = "google-bert/bert-base-uncased"

REQUIRED = "?"  # the value of config.init that says: the user has to give it


def get_config() -> ConfigDict:
  """The defaults: ELECTRA as released, hard correction on."""
  c = ConfigDict()
  c.task = "pretrain"
  c.objective = "electra"  # or "mlm": BERT
  c.seed = 0
  c.steps = 1_000_000
  c.batch_size = 128  # rows of one update, over all devices and processes
  c.length = 128  # tokens of a row
  # Weights to start from: a folder, names on the hub, a run of ours; README.
  c.init = ""  # or NEEDED: has to be given
  c.init_skip = ""  # "words,positions": rows that may be others than init's
  c.dry_run = False  # True: print what would run, touch nothing

  c.model = ConfigDict()
  c.model.backbone = "encoder"  # truenegs_jax/models/<name>.py
  # A name in the backbone's VARIANTS; "init": as the weights; or sizes:
  # "embedding_size=384 width=384 layers=6 heads=12 ffn=1536".
  c.model.variant = "small"
  c.model.dropout = 0.1
  c.model.attention_dropout = 0.1
  c.model.initializer_range = 0.02
  c.model.max_positions = 512
  c.model.dtype = "float32"  # of activations; "bfloat16" on TPU and GPU
  c.model.remat = "none"  # or "dots", "full": less memory, more time
  c.model.scan = False  # True: one loop over the layers, compiles faster
  c.model.attention = "auto"  # or "xla", "pieces", "cudnn", "splash"
  c.model.vocabulary_chunk = 0  # most slots whose logits are held; 0: all
  c.model.pooler = False  # True: BERT's pooler and NSP head ride along

  c.masking = ConfigDict()
  c.masking.prob = 0.15
  c.masking.style = "electra_85_15"  # or BERT's "80_10_10"; "80_20_0"
  c.masking.with_replacement = False  # True: as ELECTRA was released

  c.generator = ConfigDict()
  c.generator.multiplier = 0.25  # of the discriminator's width
  c.generator.variant = ""  # instead of the multiplier, as model.variant
  c.generator.temperature = 1.0  # of the sampling
  c.generator.loss_weight = 1.0  # of the masked language model, BERT's too
  c.generator.detect_weight = 50.0  # the discriminator's: ELECTRA, table 6

  # What each reading means is in objectives/options.py and in README.
  c.negatives = ConfigDict()
  c.negatives.sources = "wordnet"  # "wordnet | pairs path=FILE", "model", ...
  c.negatives.keep_stop_words = False  # True: gold stop words have lists too
  c.negatives.stop_words = ""  # file of them; "" is NLTK's English ones
  c.negatives.symmetric = False  # True: whoever is listed lists in turn
  c.negatives.include_self = False  # True: words list themselves
  c.negatives.layout = "auto"  # of the table on a device: or "bits", "ids"
  c.negatives.hard_correction = True
  c.negatives.prediction = "argmax"  # or "sample"
  c.negatives.normalizer = "kept"  # or "slots"
  c.negatives.strict_subword = True  # False: first pieces are, too
  c.negatives.discriminator = "none"  # or "relabel", "ignore"
  c.negatives.temperature = 1.0  # of the softmax in the loss
  c.negatives.smoothing = 0.0  # share of the target that synonyms get
  c.negatives.soft = "cosine"
  c.negatives.soft_weight = 0.0
  c.negatives.soft_schedule = "constant"  # or "warmup", "delay", "decay"
  c.negatives.soft_steps = 0  # that the schedule takes; sentences' too
  c.negatives.soft_prediction = "predicted"  # or "expected"
  c.negatives.soft_gradient = "both"  # or "gold", "predicted"
  c.negatives.sentence_weight = 0.0
  c.negatives.sentence_direction = "forward"  # or "reverse"
  c.negatives.sentence_target = "original"  # or "masked"
  c.negatives.sentence_encoder = "kept"  # or "generator"

  c.data = ConfigDict()
  c.data.sources = "wordnet"  # or files, folders, globs, hf:NAME; see README
  c.data.stopping = "all"  # of a mixture; or "first", with its shortest part
  c.data.errors = "strict"  # damaged text is refused; "replace" mends, counts
  c.data.tokenizer = "fast"  # or "tf_text": the same ids
  # Or vocab.txt, a folder, a name on the hub; "init": that of the weights.
  c.data.vocab = "train"
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
  c.mesh.preset = "dp"  # or "fsdp", "fsdp_tp"
  c.mesh.axes = ""  # other sizes than the preset's: "model=4"
  c.mesh.synonyms = "replicated"  # or "rows": split over the devices

  c.checkpoint = ConfigDict()
  c.checkpoint.every_steps = 10_000
  c.checkpoint.keep = 2  # newest; beside them, for good, in % of the steps:
  c.checkpoint.keep_percent = (6.25, 12.5, 25.0, 50.0, 80.0, 100.0)  # table 2

  c.log = ConfigDict()
  c.log.every_steps = 100
  c.log.writers = ()  # beside metrics.jsonl; "tensorboard"
  c.log.profile = ""  # "M:N": a trace from step M to N, in <workdir>/profile

  c.eval = ConfigDict()
  c.eval.every_steps = 10_000
  c.eval.rows = 2_048  # held-out rows at most
  c.eval.cases = 10  # corrections to show at the end
  c.eval.sentences = ()  # with one [MASK] each, filled at the end
  c.eval.must_learn = False  # True: exit 1 unless both networks learned
  return c


def bert() -> ConfigDict:
  """What BERT's sizes share (Devlin et al. 2019, appendix A.2)."""
  c = get_config()
  c.objective = "mlm"
  c.model.dtype = "bfloat16"
  c.masking.style = "80_10_10"
  c.steps, c.batch_size, c.length = 1_000_000, 256, 512
  c.data.sources = f"{WIKIPEDIA}, {BOOKS}"
  c.data.vocab = BERT_VOCAB
  c.optim.schedule = "bert"
  c.optim.lr = 1e-4
  return c


def apply_arg(
  c: ConfigDict, arg: str, *, default: str, released: str = REQUIRED
) -> ConfigDict:
  """Applies the words after the config's name, in any order.

  Args:
    c: the config to change.
    arg: comma-separated words: one recipe (a name in RECIPES), `continue`,
      which goes on from released weights as the paper does, `len512`, rows of
      512 tokens, and `runlocal`, which shrinks everything to a minute on a
      laptop and starts from scratch.
    default: the recipe when `arg` names none.
    released: the weights that `continue` goes on from; NEEDED where there are
      none of this size.

  Raises:
    ValueError: an unknown word, or two recipes.
  """
  words = [word for word in (arg or "").split(",") if word]
  more: dict[str, Callable[[ConfigDict], None]] = {
    "continue": functools.partial(continue_from, released=released),
    "len512": len512,
    "runlocal": runlocal,
  }
  unknown = [word for word in words if word not in (*RECIPES, *more)]
  recipes = [word for word in words if word in RECIPES]
  if unknown or len(recipes) > 1:
    wrong = f"unknown: {unknown}" if unknown else f"{len(recipes)} recipes"
    raise ValueError(
      f"config argument {arg!r}: {wrong}; give at most one of"
      f" {', '.join(RECIPES)}, and any of {', '.join(more)}."
    )
  c.negatives.update(RECIPES[recipes[0] if recipes else default])
  for word, change in more.items():  # in this order, whatever the user's
    if word in words:
      change(c)
  return c


def continue_from(c: ConfigDict, *, released: str) -> None:
  """200,000 steps from released weights (Zhang et al. 2023, section 4.1)."""
  c.init = released
  c.steps, c.batch_size, c.length = 200_000, 128, 512
  c.optim.schedule, c.optim.lr = "electra", 5e-5
  c.model.pooler = c.objective == "mlm"  # a released BERT has one


def len512(c: ConfigDict) -> None:
  """Rows of 512 tokens: the small model that the paper fine-tunes on SQuAD."""
  c.length = 512


def runlocal(c: ConfigDict) -> None:
  """The same code path, shrunk to a minute on a laptop."""
  c.init = ""
  c.model.variant = "tiny"
  c.model.dtype = "float32"
  c.mesh.preset = "dp"
  c.generator.multiplier = 0.5
  c.steps, c.batch_size, c.length = 20, 8, 32
  # What a laptop has; a run on the real corpus is prepared first.
  c.data.sources, c.data.vocab, c.data.vocab_size = "wordnet", "train", 2_000
  c.optim.warmup_steps, c.optim.accumulation = 2, 1
  c.log.every_steps = 5
  c.checkpoint.every_steps = 10
  c.eval.every_steps, c.eval.rows = 10, 64
  c.eval.must_learn = False  # 20 steps teach nothing
