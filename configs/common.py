"""Recipes, and the arguments after a config's name.

  --config=demo:baseline,runlocal --config.seed=1

A config file contains only what differs from the defaults, which are in
truenegs_jax/config/sections.py. A config is code: run only those that you
trust. A run saves its resolved values as JSON, which is never executed.
"""

import functools
from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from truenegs_jax.config.load import WordError, parse_words
from truenegs_jax.config.sections import REQUIRED
from truenegs_jax.config.tables import make_config

# The changes of each recipe: of the paper (Zhang et al. 2023, section 3.2, and
# table 6's ablations hc_glove and sr_sent), and two corrections that keep the
# optimum of the loss (docs/explanation/proper_corrections.md).
GLOVE = "vectors path=glove.6B.50d.txt top=10"
_OFF = dict(hard_correction=False, soft_weight=0.0, sentence_weight=0.0)
RECIPES = {
  "baseline": _OFF,
  "hc": _OFF | dict(hard_correction=True),
  "sr": _OFF | dict(soft_weight=1.0),
  "hc+sr": _OFF | dict(hard_correction=True, soft_weight=1.0),
  "hc_glove": _OFF | dict(hard_correction=True, sources=GLOVE),
  "sr_sent": _OFF | dict(sentence_weight=1.0),
  "proper": _OFF | dict(smoothing=0.3, smoothing_by="balanced"),
  "set": _OFF | dict(smoothing=1.0, smoothing_by="set"),
}

RECIPE_MEANINGS = {
  "baseline": "Recipe: no correction.",
  "hc": "Recipe: hard correction.",
  "sr": "Recipe: soft regularization.",
  "hc+sr": "Recipe: hard correction and soft regularization.",
  "hc_glove": "Recipe: hard correction with neighbours of word vectors.",
  "sr_sent": "Recipe: soft regularization of sentences.",
  "proper": "Recipe: balanced smoothing, which no lexicon can bias.",
  "set": "Recipe: likelihood of the gold token or any synonym, for studies.",
}

# The paper's corpora by their names on the Hugging Face hub. Without internet,
# set data.sources to the path of a copy: text files, or hf:FOLDER. The commits
# are those that public code uses: main, in Parquet.
OPENWEBTEXT = (
  "hf:Skylion007/openwebtext revision=b4325f019c648b1641a1784748667e8b74e5e064"
)
# Half of the articles do not fill a row of 512. Alone they would make a third
# of the rows padding; joined to 3,000 characters or more, a sixth.
WIKIPEDIA = (
  "hf:wikimedia/wikipedia config=20231101.en"
  " revision=b04c8d1ceb2f5cd4588862100d08de323dccfbaa"
  " document=join chars=3000"
)
# A record is a sentence, and consecutive ones are of the same book. The main
# revision is a script, which `datasets` no longer runs; the hub converts it.
BOOKS = "hf:bookcorpus/bookcorpus revision=refs/convert/parquet document=join"
BERT_VOCAB = "google-bert/bert-base-uncased"


def get_config() -> ConfigDict:
  """Returns the defaults: ELECTRA as released, with hard correction."""
  return make_config("pretrain")


def bert() -> ConfigDict:
  """Returns the defaults of BERT (Devlin et al. 2019, appendix A.2)."""
  c = get_config()
  c.objective = "mlm"
  c.model.dtype = "bfloat16"
  c.masking.style = "80_10_10"
  c.steps = 1_000_000
  c.batch_size = 256
  c.length = 512
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
  meanings = {k: _meaning(v) for k, v in changes.items()}
  words = apply_recipe(c, arg, default, meanings)
  for word, change in changes.items():  # `runlocal` last
    if word in words:
      change(c)
  return c


def apply_recipe(
  c: ConfigDict, arg: str, default: str, others: dict[str, str]
) -> list[str]:
  """Changes a config by the recipe in `arg`, or `default`; returns its words.

  `others` are the meanings of words that are no recipes.
  """
  meanings = RECIPE_MEANINGS | others
  words = parse_words(arg or "", meanings)
  recipes = [word for word in words if word in RECIPES]
  if len(recipes) > 1:
    raise WordError(arg, "several recipes", meanings)
  c.negatives.update(RECIPES[recipes[0] if recipes else default])
  return words


def _meaning(change: Callable[[ConfigDict], None]) -> str:
  """Returns the first line of a function's docstring."""
  function = getattr(change, "func", change)  # of a functools.partial
  return (function.__doc__ or "").partition("\n")[0]


def continue_from(c: ConfigDict, *, released: str) -> None:
  """Sets 200,000 steps from released weights (Zhang et al. 2023, sec. 4.1)."""
  c.init = released
  c.steps = 200_000
  c.batch_size = 128
  c.length = 512
  c.optim.schedule = "electra"
  c.optim.lr = 5e-5


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
  c.steps = 20
  c.batch_size = 8
  c.length = 32
  # Text that needs neither a download nor preparation.
  c.data.sources = "wordnet"
  c.data.vocab = "train"
  c.data.vocab_size = 2_000
  c.optim.warmup_steps = 2
  c.optim.decay_steps = 4
  c.optim.accumulation = 1
  c.log.every_steps = 5
  c.checkpoint.every_steps = 10
  c.eval.every_steps = 10
  c.eval.rows = 64
