"""Defaults of all configs, and the arguments after a config's name.

  --config=configs/electra_demo.py:baseline,runlocal --config.seed=1

A config file contains only what differs from these defaults. A config is code:
run only those that you trust. A run saves its resolved values as JSON, which is
never executed.
"""

import functools
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from truenegs_jax.configs.common_words import WordError, parse_words

# The changes of each recipe of the paper (Zhang et al. 2023, section 3.2; the
# last two are ablations of table 6).
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

RECIPE_MEANINGS = {
  "baseline": "Recipe: no correction.",
  "hc": "Recipe: hard correction.",
  "sr": "Recipe: soft regularization.",
  "hc+sr": "Recipe: hard correction and soft regularization.",
  "hc_glove": "Recipe: hard correction with neighbours of word vectors.",
  "sr_sent": "Recipe: soft regularization of sentences.",
}

# The paper's corpora by their names on the Hugging Face hub. Without internet,
# set data.sources to the path of a copy: text files, or hf:FOLDER.
# The main revisions of two were scripts, which `datasets` no longer runs.
OPENWEBTEXT = "hf:Skylion007/openwebtext revision=refs/convert/parquet"
# Half of the articles do not fill a row of 512. Alone they would make a third
# of the rows padding; joined to 3,000 characters or more, a sixth.
WIKIPEDIA = "hf:wikimedia/wikipedia config=20231101.en document=join chars=3000"
# A record is a sentence, and consecutive ones are of the same book.
BOOKS = "hf:bookcorpus/bookcorpus revision=refs/convert/parquet document=join"
BERT_VOCAB = "google-bert/bert-base-uncased"

REQUIRED = "?"  # value of init or data.sources if the user has to set it


def get_config() -> ConfigDict:
  """Returns the defaults: ELECTRA as released, with hard correction."""
  c = ConfigDict()
  c.task = "pretrain"  # what to run; the others have their own configs
  c.objective = "electra"  # what is trained: "electra", or "mlm", BERT's
  c.seed = 0  # of initial weights, row order, masks, samples and dropout
  c.steps = 1_000_000  # updates of the weights; a resume may have more
  # Whole time of the run: fewer steps if the machine is slow; 0: no limit.
  c.minutes = 0.0
  c.batch_size = 128  # rows per update, over all devices and processes
  c.length = 128  # tokens of a row
  c.init = ""  # weights: a folder, a workdir or names on the hub; "": random
  # "words", "positions" or both: embedding tables that may have other rows than
  # those of `init`. Rows of the same words or positions are copied.
  c.init_skip = ""
  c.dry_run = False  # True: print what would run, and write nothing

  c.model = ConfigDict()
  c.model.backbone = "encoder"  # a module: truenegs_jax/models/<backbone>.py
  # Size: a name in VARIANTS of the backbone; "init", that of the weights; or
  # "embedding_size=384 width=384 layers=6 heads=12 ffn=1536".
  c.model.variant = "small"
  c.model.dropout = 0.1  # dropout of embeddings and layer outputs
  c.model.attention_dropout = 0.1  # dropout of attention weights
  c.model.initializer_range = 0.02  # standard deviation of random weights
  c.model.max_positions = 512  # entries of the position table
  c.model.dtype = "float32"  # of activations; "bfloat16": for GPUs and TPUs
  # Activations that the backward pass computes again, to save memory: "none",
  # "dots" (all but the outputs of dense layers) or "full".
  c.model.remat = "none"
  c.model.scan = False  # True: one loop over all layers, which compiles faster
  # Attention: "auto", "xla", "pieces" (CPU), "flash" (GPU, TPU), or without
  # attention dropout "cudnn" (GPU) or "splash" (TPU).
  c.model.attention = "auto"
  c.model.vocabulary_chunk = 0  # slots with logits in memory at once; 0: all
  c.model.pooler = False  # True: keep BERT's pooler and NSP head, untrained

  c.masking = ConfigDict()
  c.masking.prob = 0.15  # share of the tokens that are predicted
  # Percentages of [MASK], unchanged and random tokens in the slots:
  # "electra_85_15" (no random ones) or "80_10_10" (BERT).
  c.masking.style = "electra_85_15"

  c.generator = ConfigDict()  # only for ELECTRA, except loss_weight
  c.generator.multiplier = 0.25  # width / width of the discriminator
  c.generator.variant = ""  # a size as in model.variant, replaces multiplier
  c.generator.temperature = 1.0  # of samples; follows negatives.temperature
  c.generator.loss_weight = 1.0  # of the masked model's loss, also of BERT's
  c.generator.detect_weight = 50.0  # of the discriminator's loss

  # True negatives; objectives/options.py explains the readings of the paper.
  c.negatives = ConfigDict()
  # Sources of synonyms: "wordnet", "pairs path=FILE", "vectors path=FILE",
  # "omw path=FILE", "table path=FILE", "model"; A | B: both; A & B: the common.
  # "auto": "wordnet" for English, "omw" of data.language otherwise.
  c.negatives.sources = "auto"
  c.negatives.keep_stop_words = False  # True: gold stop words have synonyms too
  c.negatives.stop_words = ""  # file with one word a line; "": NLTK's
  c.negatives.symmetric = False  # True: if a lists b, then b lists a
  c.negatives.include_self = False  # True: drop slots that predict gold, too
  c.negatives.layout = "auto"  # of the table on devices: "bits" or "ids"
  c.negatives.hard_correction = True  # drop slots that predict a synonym
  c.negatives.prediction = "argmax"  # the likeliest token; or a "sample"
  # False: correct gold words of several pieces too, at their first piece.
  c.negatives.strict_subword = True
  # Sampled synonyms in the discriminator's loss: "none" (they count as
  # replaced), "relabel" (as original) or "ignore" (not at all).
  c.negatives.discriminator = "none"
  # Divides the masked model's logits. Samples follow it, unless set for them.
  c.negatives.temperature = 1.0
  c.generator.temperature = c.negatives.get_oneway_ref("temperature")
  c.negatives.smoothing = 0.0  # share of the target spread over the synonyms
  c.negatives.soft = "cosine"  # soft term: 1 - cosine of prediction and gold
  c.negatives.soft_weight = 0.0  # of the soft term; 0: none
  # Embedding of a prediction: that of its token, or "expected": the mean of all
  # embeddings, weighted by probability.
  c.negatives.soft_prediction = "predicted"
  c.negatives.sentence_weight = 0.0  # of the soft term of sentences; 0: none

  c.data = ConfigDict()
  # Text: files, folders, globs and hf:NAME, separated by commas, with options
  # such as weight=2; "wordnet": its definitions and examples.
  c.data.sources = "wordnet"
  # ISO 639-1; text in another language is refused. Decides negatives.sources
  # and stop words. "": no check, no default source, no stop words.
  c.data.language = "en"
  # Sources with weights are repeated until "all" were read once, or only until
  # the "first" one was.
  c.data.stopping = "all"
  c.data.errors = "strict"  # refuse damaged text; "replace": repair and count
  c.data.tokenizer = "fast"  # "tf_text": TensorFlow's, with the same ids
  # "train": from the text; "init": that of the weights; or a vocab.txt, its
  # folder, or a name on the Hugging Face hub.
  c.data.vocab = "train"
  c.data.vocab_size = 30_522  # entries of a trained vocabulary
  c.data.lowercase = True  # True: all text in lower case
  c.data.accents = "auto"  # "strip", "keep"; "auto": strip if lowercase
  c.data.layout = "electra"  # rows of one document; "packed": of several
  c.data.overflow = "carry"  # to the next row; "discard": as ELECTRA's code
  c.data.held_out = 0.02  # share of the documents that is never trained on
  c.data.seed = 0  # of the rows, which do not depend on c.seed
  c.data.rows = ""  # rows folder; "": one in the cache
  c.data.workers = 0  # processes that prepare rows; 0: one per core
  c.data.wordnet_dir = ""  # "": NLTK's folders, or the cache

  c.optim = ConfigDict()  # Adam without bias correction
  c.optim.schedule = "electra"  # warm-up and decay at once; "bert": in turn
  c.optim.lr = 5e-4  # learning rate: the peak of the schedule
  c.optim.warmup_steps = 10_000  # steps with a growing learning rate
  c.optim.weight_decay = 0.01  # of all parameters but biases and layer norms
  c.optim.clip_norm = 1.0  # largest norm of the gradient of all parameters
  c.optim.b1 = 0.9  # decay of the mean of gradients
  c.optim.b2 = 0.999  # decay of the mean of squared gradients
  c.optim.epsilon = 1e-6  # added to the root of that mean
  c.optim.accumulation = 1  # micro-batches per update, to save memory
  c.optim.max_skips = 0  # updates in a row that may be skipped as non-finite

  c.mesh = ConfigDict()
  # "dp": each device has all parameters; "fsdp": they are split over devices;
  # "fsdp_tp": the computation of each layer is split, too (tensor parallelism).
  c.mesh.preset = "dp"
  c.mesh.axes = ""  # sizes that differ from the preset's, such as "model=4"
  c.mesh.synonyms = "replicated"  # table on each device; "rows": split by rows

  c.checkpoint = ConfigDict()
  c.checkpoint.every_steps = 10_000  # steps between checkpoints
  c.checkpoint.keep = 2  # newest checkpoints; older ones are deleted
  # Percentages of the steps whose checkpoints are kept too (paper, table 2).
  c.checkpoint.keep_percent = (6.25, 12.5, 25.0, 50.0, 80.0, 100.0)

  c.log = ConfigDict()
  c.log.every_steps = 100  # steps between records of metrics
  c.log.writers = ()  # beside metrics.jsonl: "tensorboard", "wandb"
  c.log.profile = ""  # "M:N": trace of steps M to N, in <workdir>/profile

  c.eval = ConfigDict()
  c.eval.every_steps = 10_000  # steps between losses on held-out rows
  c.eval.rows = 2_048  # held-out rows, at most
  c.eval.cases = 10  # corrections to print at the end
  c.eval.sentences = ()  # with one [MASK] each; filled and printed at the end
  c.eval.must_learn = False  # True: exit with 1 unless all networks learned
  return c


def bert() -> ConfigDict:
  """Returns the defaults of BERT (Devlin et al. 2019, appendix A.2)."""
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
  c: ConfigDict,
  arg: str,
  *,
  default: str,
  released: str = REQUIRED,
  own: Mapping[str, Callable[[ConfigDict], None]] | None = None,
) -> ConfigDict:
  """Changes a config by the arguments after its name and returns it.

  Args:
    c: the config.
    arg: words separated by commas, in any order: at most one recipe (a name in
      RECIPES); `continue`, to start from released weights as the paper does;
      `len512`, for rows of 512 tokens; `runlocal`, to shrink everything to a
      minute on a laptop, from scratch.
    default: the recipe if `arg` has none.
    released: the weights of `continue`; REQUIRED if none of this size exist.
    own: words of this config only, or with another meaning, and their changes.

  Raises:
    WordError: an unknown word, or two recipes.
  """
  changes: dict[str, Callable[[ConfigDict], None]] = {
    "continue": functools.partial(continue_from, released=released),
    "len512": len512,
    **(own or {}),
    "runlocal": runlocal,
  }
  meanings = RECIPE_MEANINGS | {k: _meaning(v) for k, v in changes.items()}
  words = parse_words(arg or "", meanings)
  recipes = [word for word in words if word in RECIPES]
  if len(recipes) > 1:
    raise WordError(arg, "several recipes", meanings)
  c.negatives.update(RECIPES[recipes[0] if recipes else default])
  for word, change in changes.items():  # `runlocal` last
    if word in words:
      change(c)
  return c


def _meaning(change: Callable[[ConfigDict], None]) -> str:
  """Returns the first line of a function's docstring."""
  function = getattr(change, "func", change)  # of a functools.partial
  return (function.__doc__ or "").partition("\n")[0]


def continue_from(c: ConfigDict, *, released: str) -> None:
  """Sets 200,000 steps from released weights (Zhang et al. 2023, sec. 4.1)."""
  c.init = released
  c.steps, c.batch_size, c.length = 200_000, 128, 512
  c.optim.schedule, c.optim.lr = "electra", 5e-5
  c.model.pooler = c.objective == "mlm"  # a released BERT has one


def len512(c: ConfigDict) -> None:
  """Sets rows of 512 tokens, as for the paper's small model on SQuAD."""
  c.length = 512


def runlocal(c: ConfigDict) -> None:
  """Shrinks the run to a minute on a laptop; the code path stays the same."""
  c.init = ""
  c.model.variant = "tiny"
  c.model.dtype = "float32"
  c.mesh.preset = "dp"
  c.generator.multiplier = 0.5
  c.steps, c.batch_size, c.length = 20, 8, 32
  # Text that needs neither a download nor preparation.
  c.data.sources, c.data.vocab, c.data.vocab_size = "wordnet", "train", 2_000
  c.optim.warmup_steps, c.optim.accumulation = 2, 1
  c.log.every_steps = 5
  c.checkpoint.every_steps = 10
  c.eval.every_steps, c.eval.rows = 10, 64
  c.eval.must_learn = False  # 20 steps are too few
