"""The sections of a pre-training's config, with every key.

A new key is a line here and the line that uses it (docs/how_to/add_key.md).
`tables.py` says which keys each task has.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Self

from truenegs_jax.config.keys import (
  TINY,
  Section,
  choice,
  free_choice,
  free_key,
  key,
)

LARGEST_SEED = 2**32 - 1  # jax ignores the higher bits
INIT_SKIPS = ("words", "head")  # names in `init_skip`
LARGEST_SIZE = 9_999_999  # of a network
# Keys of `model` that are 0 where its variant, or the weights, decide.
SIZES = ("embedding_size", "width", "layers", "heads", "ffn", "type_vocab_size")
GENERATOR_SIZES = ("width", "layers", "heads", "ffn")  # the others are shared
FROM_WEIGHTS = "init"  # of model.variant and data.vocab: those of `init`


def _size(meaning: str, origin: str = "model.variant decides") -> Any:
  """Declares a key with a size of a network."""
  return key(0, f"{meaning} 0: {origin}.", low=0, high=LARGEST_SIZE)


class Model(Section):
  """Networks."""

  backbone: str = key("encoder", "A module: truenegs_jax/models/<backbone>.py.")
  variant: str = key(
    "small",
    'Size: a name in VARIANTS of the backbone; "init": that of the weights.',
  )
  embedding_size: int = _size("Width of the embeddings.")
  width: int = _size("Width of the network.")
  layers: int = _size("Number of layers.")
  heads: int = _size("Attention heads of a layer.")
  ffn: int = _size("Inner width of the feed-forward part of a layer.")
  type_vocab_size: int = _size("Number of token types.")
  dropout: float = key(
    0.1, "Dropout of embeddings and layer outputs.", low=0, high=0.99
  )
  attention_dropout: float = key(0.1, "Of attention weights.", low=0, high=0.99)
  initializer_range: float = key(
    0.02, "Standard deviation of random weights.", low=TINY, high=1
  )
  max_positions: int = key(512, "Entries of the position table.", low=8)
  global_rope_theta: float = key(
    0.0,
    "Base of rotary positions in global layers of `modern`; 0: that of `init`,"
    " or 160,000. Released models learned rows of 1,024 tokens with 10,000.",
    low=0,
  )
  local_rope_theta: float = key(
    0.0, "In its local layers; 0: that of `init`, or 10,000.", low=0
  )
  dtype: str = choice(
    ("float32", "bfloat16"), 'Of activations; "bfloat16": for GPUs and TPUs.'
  )
  remat: str = free_choice(
    ("none", "dots", "full"),
    "Activations that the backward pass computes again, to save memory:"
    ' "none", "dots" (all but the outputs of dense layers) or "full".',
    is_open=True,
  )
  scan: bool = free_key(False, "True: loop over layers, which compiles faster.")
  attention: str = free_choice(
    ("auto", "xla", "sliced", "flash"),
    'Attention: "auto", "xla", "sliced" (CPU) or "flash" (GPU, TPU).',
  )
  vocabulary_chunk: int = free_key(
    -1, "Slots with logits in memory; -1: as many as fit; 0: all.", low=-1
  )
  pooler: bool = key(False, "True: keep BERT's pooler and NSP head, untrained.")
  sharing: str = choice(
    ("full", "disentangled", "none"),
    'Embeddings of ELECTRA\'s two networks: the same ones; "disentangled": the'
    " discriminator adds a table of differences, and its loss trains only these"
    ' (DeBERTaV3); "none": two tables. But for "full", the gradients of the two'
    " networks are clipped apart.",
  )


class Masking(Section):
  """Hidden tokens."""

  prob: float = key(0.15, "Share of tokens to predict.", low=TINY, high=0.9)
  style: str = choice(
    ("electra_85_15", "80_10_10", "100_0_0"),
    "Percentages of [MASK], unchanged and random tokens in the slots:"
    ' "electra_85_15" (no random ones), "80_10_10" (BERT) or "100_0_0"'
    " (DeBERTaV3).",
    is_open=True,
  )


class Generator(Section):
  """ELECTRA's generator, and weights of losses."""

  multiplier: float = key(0.25, "Width / width of the discriminator.", low=TINY)
  layers_multiplier: float = key(
    0.0, "Layers / the discriminator's; 0: 1, or 0.5 with `modern`.", low=0
  )
  width: int = _size("Width of the generator.", "generator.multiplier decides")
  layers: int = _size("Its layers.", "generator.layers_multiplier decides")
  heads: int = _size("Its attention heads.", "width / 64")
  ffn: int = _size("Its inner width of the feed-forward part.", "4 x width")
  temperature: float = key(
    1.0, "Of samples; follows negatives.temperature.", low=TINY
  )
  loss_weight: float = key(1.0, "Of the masked model's or BERT's loss.", low=0)
  detect_weight: float = key(50.0, "Of the discriminator's loss.", low=0)


class Readings(Section):
  """True negatives: readings of the paper (Zhang et al. 2023), of `negatives`.

  The paper leaves several questions open. Each is a key, whose default is the
  most defensible reading.
  """

  hard_correction: bool = key(
    True, "Drop slots that predict a synonym (equation 2)."
  )
  prediction: str = choice(
    ("argmax", "sample"),
    'The tokens that hard correction and the soft terms judge: "argmax", the'
    ' likeliest, or "sample", those the discriminator sees.',
  )
  include_self: bool = key(
    False,
    "True: drop slots that predict gold, too: the literal reading of figure 3.",
  )
  strict_subword: bool = key(
    True,
    "True: correct nothing where the gold word continues in pieces (footnote"
    " 5). False: correct such words too, at their first ## piece.",
  )
  hard_correction_until: float = key(
    1.0,
    "Share of the steps with hard correction; the loss is plain afterwards.",
    low=TINY,
    high=1,
  )
  drop_prob: float = key(
    0.0, "Share of random slots to drop, as a control.", low=0, high=0.99
  )
  discriminator_label: float = key(
    1.0,
    "Target of sampled synonyms in the discriminator's loss: 1 is replaced, 0"
    " original.",
    low=0,
    high=1,
  )
  discriminator_ignore: bool = key(
    False, "True: sampled synonyms have no loss, whatever their target."
  )
  smoothing: float = key(
    0.0, "Share of the target moved to the synonyms.", low=0, high=1
  )
  smoothing_by: str = choice(
    ("uniform", "model", "balanced", "set"),
    'How the synonyms share it: "uniform", all the same; "model", by the'
    ' model\'s probabilities; "balanced", by pairs, which no lexicon biases;'
    ' "set" (smoothing=1): not at all, only their sum counts.',
  )
  soft: str = choice(
    ("cosine",),
    "Soft term of words: 1 - cosine of prediction and gold (equation 3).",
    is_open=True,
  )
  soft_weight: float = key(0.0, "Of the soft term of words; 0: none.", low=0)
  soft_prediction: str = choice(
    ("predicted", "expected"),
    'Embedding of a prediction: that of its token, or "expected": the mean'
    " direction of all embeddings, weighted by probability, which has a"
    " gradient to the logits only.",
  )
  sentence_weight: float = key(
    0.0, "Of the soft term of sentences (section 5); 0: none.", low=0
  )

  @property
  def needs_table(self) -> bool:
    """Whether an objective needs a synonym table."""
    return bool(self.hard_correction or self.smoothing or self.spares_synonyms)

  @property
  def spares_synonyms(self) -> bool:
    """Whether a sampled synonym is not simply a replaced token."""
    return self.discriminator_ignore or self.discriminator_label < 1

  @property
  def term_weights(self) -> dict[str, float]:
    """The weights of extra terms, those of `<term>_weight` that are not 0."""
    return {
      name.removesuffix("_weight"): weight
      for name, weight in vars(self).items()
      if name.endswith("_weight") and weight
    }


class Negatives(Readings):
  """Synonyms, beside the readings."""

  sources: str = free_key(  # the table has a fingerprint
    "auto",
    'Sources of synonyms: "wordnet", "pairs path=FILE", "vectors path=FILE",'
    ' "omw path=FILE", "table path=FILE", "model"; A | B: both; A & B: the'
    ' common. "auto": "wordnet" for English, "omw" of data.language otherwise.',
  )
  keep_stop_words: bool = key(False, "True: gold stop words have synonyms too.")
  stop_words: str = free_key("", 'File with one word a line; "": NLTK\'s.')
  symmetric: bool = key(False, "True: if a lists b, then b lists a.")
  layout: str = free_choice(
    ("auto", "bits", "ids"),
    'Of the table on devices: "bits" or "ids", which smoothing needs.',
  )
  temperature: float = key(
    1.0,
    "Divides the masked model's logits. Samples follow it, unless set for"
    " them.",
    low=TINY,
  )


class Data(Section):
  """Text, vocabulary and rows."""

  sources: str = key(
    "wordnet",
    "Text: files, folders, globs and hf:NAME, separated by commas, with options"
    ' such as weight=2; "wordnet": its definitions and examples.',
  )
  language: str = free_key(
    "en",
    "ISO 639-1; text in another language is refused. Decides negatives.sources"
    ' and stop words. "": no check, no default source, no stop words.',
  )
  stopping: str = choice(
    ("all", "first"),
    'Sources with weights are repeated until "all" were read once, or only'
    ' until the "first" one was.',
  )
  errors: str = choice(
    ("strict", "replace"), 'Refuse damaged text; "replace": repair and count.'
  )
  expect: str = free_choice(
    ("", "any"),
    "Refuse a part with under 99 % of its records=, or of which a converter"
    ' kept only the beginning; "any": accept it.',
  )
  tokenizer: str = free_choice(
    ("fast", "tf_text"), '"tf_text": TensorFlow\'s, with the same ids.'
  )
  vocab: str = free_key(
    "train",
    '"train": from the text; "init": that of the weights; or a vocab.txt or'
    " tokenizer.json, its folder, or a name on the Hugging Face hub.",
  )
  mask_token: str = free_key(
    "", "Adds a mask token of this name to a tokenizer.json without one."
  )
  vocab_size: int = key(30_522, "Entries of a trained vocabulary.", low=1)
  lowercase: bool = key(True, "True: all text in lower case.")
  accents: str = choice(
    ("auto", "strip", "keep"), '"strip", "keep"; "auto": strip if lowercase.'
  )
  layout: str = choice(
    ("electra", "packed"), 'Rows of one document; "packed": of several.'
  )
  overflow: str = choice(
    ("carry", "discard"), 'To the next row; "discard": as ELECTRA\'s code.'
  )
  held_out: float = key(
    0.02, "Share of the documents that is never trained on.", low=TINY, high=0.5
  )
  seed: int = key(0, "Of rows, whatever c.seed is.", low=0, high=LARGEST_SEED)
  rows: str = free_key("", 'Rows folder, or gs://...; "": one in the cache.')
  workers: int = free_key(0, "Processes to make rows; 0: one per core.", low=0)
  wordnet_dir: str = free_key("", '"": NLTK\'s folders, or the cache.')


class Optim(Section):
  """Adam without bias correction."""

  schedule: str = choice(
    ("electra", "bert", "wsd"), 'Warm-up and decay at once; "bert": in turn.'
  )
  lr: float = key(5e-4, "Learning rate: the peak of the schedule.", low=TINY)
  warmup_steps: int = key(10_000, "Steps with a growing learning rate.", low=0)
  decay_steps: int = key(
    10_000, 'Last steps of "wsd" (warm-up, stable, decay).', low=0
  )
  weight_decay: float = key(0.01, "Of all but biases and layer norms.", low=0)
  clip_norm: float = key(1.0, "Largest norm of the whole gradient.", low=TINY)
  b1: float = key(0.9, "Decay of the mean of gradients.", low=0, high=0.999999)
  b2: float = key(0.999, "Decay of the mean of squares.", low=0, high=0.999999)
  epsilon: float = key(1e-6, "Added to that mean's root.", low=TINY, high=1)
  accumulation: int = key(1, "Micro-batches per update, to save memory.", low=1)
  max_skips: int = free_key(0, "Non-finite updates to skip in a row.", low=0)


class Mesh(Section):
  """Devices."""

  preset: str = free_choice(
    ("dp", "fsdp", "fsdp_tp"),
    '"dp": each device has all parameters; "fsdp": they are split over devices;'
    ' "fsdp_tp": the computation of each layer is split, too (tensor'
    " parallelism).",
    is_open=True,
  )
  data: int = free_key(
    0,
    "Number of slices of a batch. 0: that of the preset; -1: all devices that"
    " the other axis leaves.",
    low=-1,
  )
  model: int = free_key(
    0,
    "Number of devices that share the computation of a layer, with"
    ' preset="fsdp_tp". 0: that of the preset, 2; -1: all devices that the'
    " other axis leaves.",
    low=-1,
  )
  synonyms: str = free_choice(
    ("replicated", "rows"), 'Table on each device; "rows": split by rows.'
  )

  @property
  def axes(self) -> dict[str, int]:
    """The sizes of axes that differ from the preset's."""
    sizes = {"data": self.data, "model": self.model}
    return {axis: size for axis, size in sizes.items() if size}


class Checkpoint(Section):
  """Checkpoints."""

  every_steps: int = free_key(10_000, "Steps between checkpoints.", low=1)
  keep: int = free_key(2, "Newest checkpoints; older ones are deleted.", low=1)
  keep_percent: tuple[float, ...] = free_key(
    (6.25, 12.5, 25.0, 50.0, 80.0, 100.0),
    "Percentages of `steps` whose checkpoints are kept, too (paper, table 2).",
    low=0,
    high=100,
  )


class Log(Section):
  """Records of metrics."""

  every_steps: int = free_key(100, "Steps between records of metrics.", low=1)
  writers: tuple[str, ...] = free_key(
    (),
    'Beside metrics.jsonl: "tensorboard", "wandb".',
    choices=("tensorboard", "wandb"),
  )
  profile: str = free_key("", '"M:N": trace steps M to N in <workdir>/profile.')


class Eval(Section):
  """Held-out rows, and what is shown at the end."""

  every_steps: int = free_key(10_000, "Steps between held-out losses.", low=1)
  rows: int = free_key(2_048, "Held-out rows, at most.", low=1)
  search_rows: int = free_key(
    2_048,
    "Rows searched for corrections at the end, at most: held-out ones, then"
    " training rows until there are enough `cases`.",
    low=1,
  )
  cases: int = free_key(10, "Corrections to print at the end.", low=0)
  sentences: tuple[str, ...] = free_key(
    (), "With one [MASK] each; filled and printed at the end."
  )
  must_learn: bool = free_key(
    False, "True: exit with 1 unless all metrics beat guessing."
  )


class PretrainConfig(Section):
  """All values of a pre-training, in the order of `config.json`."""

  task: str = choice(
    ("pretrain", "finetune", "corrections", "robustness", "study"),
    "What to run; the others have their own configs.",
  )
  objective: str = choice(
    ("electra", "mlm"), 'What is trained: "electra", or "mlm", BERT\'s.'
  )
  seed: int = key(
    0,
    "Of initial weights, row order, masks, samples and dropout.",
    low=0,
    high=LARGEST_SEED,
  )
  steps: int = key(1_000_000, "Most updates; a resume may have more.", low=1)
  minutes: float = free_key(
    0.0,
    "Time of the run, export included; it does the steps that fit. 0: any.",
    low=0,
  )
  batch_size: int = key(128, "Rows per update, over all devices.", low=1)
  length: int = key(128, "Tokens of a row.", low=8)
  init: str = free_key("", 'Weights: folder, workdir or hub names; "": random.')
  init_skip: str = free_key(
    "",
    '"words": the vocabulary may differ from that of `init`; embeddings of'
    ' common words are copied. "head": fine-tuning starts with a new head.',
  )
  branch: str = free_key(
    "", "WORKDIR/checkpoints/STEP of a run to go on from, with its optimizer."
  )
  dry_run: bool = free_key(False, "True: print what would run, write nothing.")
  model: Model = Model()
  masking: Masking = Masking()
  negatives: Negatives = Negatives()
  generator: Generator = Generator()
  data: Data = Data()
  optim: Optim = Optim()
  mesh: Mesh = Mesh()
  checkpoint: Checkpoint = Checkpoint()
  log: Log = Log()
  eval: Eval = Eval()

  def replace(self, changes: Mapping[str, Any]) -> Self:
    """Returns a copy with other values of keys, by names with dots."""
    tree = dataclasses.asdict(self)
    for name, value in changes.items():
      section, _, last = name.rpartition(".")
      (tree[section] if section else tree)[last] = value
    return self.read(tree)

  def to_json(self) -> dict[str, Any]:
    """Returns the values in JSON's types."""
    return json.loads(json.dumps(dataclasses.asdict(self)))
