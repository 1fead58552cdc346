"""ModernBERT-base's architecture, by replaced-token detection.

  truenegs prepare --config=modern_base
  truenegs main --config=modern_base[:baseline] --workdir=runs/modern
  truenegs main --config=modern_base:long --workdir=runs/modern_long \\
    --config.branch=runs/modern/checkpoints/90000

We know of no public model that joins the two. Arguments are a recipe (`hc` is
the default) and

  mlm       masked language modelling as ModernBERT's, without a generator
  long      15,000 steps of rows of 8,192 tokens, from a checkpoint before the
            decay
  continue  from the released ModernBERT-base, with `mlm`
  runlocal  20 steps on WordNet, to try the installation

Published: layers, thetas, 30 % of the tokens masked, peak rates of both phases,
b2, weight decay (0.0125 times our rate is theirs, 1e-5), warm-up over 3 billion
tokens (Warner et al. 2024, ModernBERT); width and depth of the generator, masks
and a million tokens a batch (He et al. 2021, DeBERTaV3). ModernBERT learned 1.7
trillion tokens in batches of 4.7 million, with another optimizer and a dropout
of 0.1 after attention, which is 0 here. These are 0.1 trillion, of text that
has 5 billion: choose your own with data.sources.

Hardware: 110 million parameters in 22 layers, 55 million in the generator's 11,
and embeddings; 1.2e20 FLOP, 3.1e19 more with `:long`, 8.4e19 with `:mlm`.
Calculated, not measured: 87 hours on one H100 at 40 % of its peak. Compiled for
one, a micro-batch of 32 rows takes 22.5 GiB and at least 92 ms, and one of 4
rows of 8,192 tokens 21.8 GiB and 145 ms: 82 and 19 hours or more. On 16
TPU v5e set optim.accumulation=16 and model.scan, with `:long` 8 and remat=dots.
"""

from ml_collections import ConfigDict

from truenegs_jax.config.sections import FROM_WEIGHTS
from truenegs_jax.configs import common


def get_config(arg: str = "") -> ConfigDict:
  """Configures 100,000 steps of 1,024 rows of 1,024 tokens, rate 8e-4."""
  c = common.get_config()
  c.model.backbone = "modern"
  c.model.variant = "base"
  c.model.dtype = "bfloat16"
  c.model.max_positions = 8_192
  c.model.dropout = 0.0
  c.model.global_rope_theta = 10_000.0
  c.model.sharing = "disentangled"
  c.masking.prob = 0.3
  c.masking.style = "100_0_0"
  c.steps = 100_000
  c.batch_size = 1_024
  c.length = 1_024
  c.data.sources = f"{common.WIKIPEDIA}, {common.BOOKS}"
  c.data.vocab = common.BERT_VOCAB
  c.data.layout = "packed"
  c.optim.schedule = "wsd"
  c.optim.lr = 8e-4
  c.optim.b2 = 0.98
  c.optim.weight_decay = 0.0125
  c.optim.warmup_steps = 3_000
  c.optim.decay_steps = 10_000
  c.optim.accumulation = 32
  c.log.every_steps = (c.get_oneway_ref("steps") + 999) // 1_000
  c.checkpoint.keep_percent = tuple(range(10, 110, 10))
  own = {"mlm": mlm, "long": long, "continue": continue_released}
  c = common.apply_arg(c, arg, default="hc", own=own)
  c.generator.multiplier = 1.0  # and half the layers, in all sizes
  return c


def mlm(c: ConfigDict) -> None:
  """Trains one network, by masked language modelling."""
  c.objective = "mlm"
  c.model.sharing = "full"
  c.masking.style = "80_10_10"


def long(c: ConfigDict) -> None:
  """Sets 15,000 steps of 128 rows of 8,192 tokens, after 90,000 steps."""
  c.steps = 105_000
  c.batch_size = 128
  c.length = 8_192
  c.model.global_rope_theta = 160_000.0
  c.optim.lr = 3e-4


def continue_released(c: ConfigDict) -> None:
  """Starts from the released ModernBERT-base, 20,000 steps of its rows."""
  mlm(c)
  c.init = "answerdotai/ModernBERT-base"
  c.data.vocab = FROM_WEIGHTS
  c.model.variant = FROM_WEIGHTS
  c.model.global_rope_theta = 0.0
  c.steps = 20_000
  c.optim.lr = 3e-4
