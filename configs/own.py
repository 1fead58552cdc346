"""A model of your own text, on one machine: from scratch or released weights.

  truenegs main --config=own[:ARG,...] \\
    --config.data.sources='texts/*.txt' --config.minutes=45 --workdir=runs/mine

From scratch it is ModernBERT's network, four layers of 256, which learns masked
words in rows of 128 tokens; most of a run reads parts of them. We found nothing
that reaches a low loss sooner on a CPU (studies/hour). The vocabulary is
trained from the text. For another language than English, set
--config.data.language=de, for example. Arguments are a recipe (`proper` is the
default) and

  electra   replaced-token detection instead, with a generator of two layers
  continue  from the released weights of --config.init=FOLDER_OR_NAME, with
            their sizes and vocabulary: better than from scratch for all but
            large texts
  runlocal  20 steps on WordNet, to try the installation

With --config.minutes the rates and lengths follow the time, and the run does
the steps that fit. A GPU has time for more: --config.model.variant=small is ten
layers of 384.
"""

from collections.abc import Callable, Mapping

from ml_collections import ConfigDict

from truenegs_jax.config.sections import FROM_WEIGHTS, REQUIRED
from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures at most 20,000 steps of 4,096 tokens."""
  return apply_arg(from_scratch(), arg, {"continue": continue_own})


def from_scratch() -> ConfigDict:
  """Returns the values without arguments."""
  c = common.get_config()
  c.objective = "mlm"
  c.data.sources = REQUIRED
  c.data.vocab_size = 8_192
  c.data.layout = "packed"
  c.model.backbone = "modern"
  c.model.variant = "mini"
  c.model.dtype = "auto"
  c.model.initializer_range = 0.04  # 0.02 suits a width of 768
  c.model.dropout = 0.0  # few epochs
  c.masking.prob = 0.4
  c.masking.style = "100_0_0"
  c.steps = 20_000
  c.batch_size = 32
  c.length = 128
  c.model.max_positions = c.get_oneway_ref("length")  # none beyond is trained
  c.short_rows = 0.5
  c.optim.schedule = "bert"
  c.optim.lr = 1e-3
  c.optim.muon_lr = 4e-3
  c.optim.b2 = 0.98
  steps = c.get_oneway_ref("steps")
  c.optim.warmup_steps = steps // 40
  c.log.every_steps = (steps + 199) // 200
  c.eval.every_steps = 40 + steps // 50
  c.checkpoint.every_steps = 40 + steps // 50
  c.eval.rows = 512
  return c


def apply_arg(
  c: ConfigDict, arg: str, own: Mapping[str, Callable[[ConfigDict], None]]
) -> ConfigDict:
  """Changes a config by a recipe, `electra` and the words of `own`."""
  own = {"electra": electra, **own}
  c = common.apply_arg(c, arg, default="proper", own=own)
  c.generator.multiplier = 1.0  # and half the layers, or those of the weights
  return c


def electra(c: ConfigDict) -> None:
  """Trains a generator and a discriminator, as ELECTRA does."""
  c.objective = "electra"
  c.masking.prob = 0.25  # as in ELECTRA-large
  # The discriminator learns little in so few steps. With ELECTRA's weight of 50
  # its gradient would dominate the shared embeddings.
  c.generator.detect_weight = 10.0


def continue_own(c: ConfigDict) -> None:
  """Starts from released weights, with their sizes and vocabulary."""
  c.init = REQUIRED
  c.data.vocab = FROM_WEIGHTS
  c.data.layout = "electra"
  c.model.backbone = "encoder"
  c.model.variant = FROM_WEIGHTS
  c.model.max_positions = 0
  c.model.dropout = 0.1
  c.masking.prob = 0.15
  c.masking.style = "80_10_10"
  c.steps = 2_000
  c.batch_size = 32
  c.length = 64
  c.short_rows = 0.0
  c.optim.lr = 1e-4
  c.optim.muon_lr = 0.0
  c.optim.warmup_steps = 100
