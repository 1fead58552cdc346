"""The sections of a pre-training's config, with every key.

A new key is a line here and the line that uses it (docs/how_to/add_key.md).
`tables.py` says which keys each task has.
"""

from typing import Any

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
POSITIONS = 512  # of BERT and ELECTRA
# Keys of `model` that are 0 where its variant, or the weights, decide.
VARIANT_SIZES = ("embedding_size", "width", "layers", "heads", "ffn")
# And those that no variant has.
OPEN_SIZES = ("type_vocab_size", "max_positions", "window", "global_every")
SIZES = (*VARIANT_SIZES, *OPEN_SIZES)
FROM_WEIGHTS = "init"  # of model.variant and data.vocab: those of `init`
AUTO = "auto"  # of model.dtype: by the devices
REQUIRED = "?"  # of init and data.sources, if the user has to set it


def _size(meaning: str) -> Any:
  """Declares a size of a network, which 0 leaves open."""
  return key(0, meaning, high=LARGEST_SIZE)


class Model(Section):
  """The networks that are trained."""

  backbone: str = key(
    "encoder",
    'Architecture: "encoder" is BERT\'s, "modern" ModernBERT\'s; others are'
    " modules in truenegs_jax/models.",
  )
  variant: str = key(
    "small",
    'Name of a size, such as "base"; "init" has all sizes of the weights.',
  )
  embedding_size: int = _size("Width of the embeddings; 0 is the variant's.")
  width: int = _size("Width of the network; 0 is the variant's.")
  layers: int = _size("Number of layers; 0 is the variant's.")
  heads: int = _size("Attention heads of each layer; 0 is the variant's.")
  ffn: int = _size("Inner width of feed-forward layers; 0 is the variant's.")
  type_vocab_size: int = _size(
    "Number of token types; 0 is that of the weights, or else 2."
  )
  dropout: float = key(
    0.1,
    "Dropout rate of embeddings, layers and attention weights.",
    high=0.99,
  )
  initializer_range: float = key(
    0.02, "Standard deviation of random weights.", low=TINY, high=1
  )
  max_positions: int = _size(
    "Number of positions, and the largest `length`; 0 is that of the weights,"
    " or else 512."
  )
  window: int = _size(
    "Largest distance of attention in local layers of `modern`; 0 is that of"
    " the weights, or else 64."
  )
  global_every: int = _size(
    "The first of how many layers of `modern` attends to all tokens; 0 is as in"
    " the weights, or else 3."
  )
  global_rope_theta: float = key(
    0.0,
    "Base of rotary positions in global layers of `modern`; 0 is that of"
    " `init`, or 160,000. Released models learned rows of 1,024 tokens with"
    " 10,000.",
  )
  local_rope_theta: float = key(
    0.0,
    "Base of rotary positions in local layers; 0 is that of `init`, or 10,000.",
  )
  dtype: str = choice(
    ("float32", "bfloat16", AUTO),
    'Type of activations; weights keep float32. "auto" is bfloat16 where the'
    " devices multiply it faster.",
  )
  remat: str = free_choice(
    ("none", "dots", "full"),
    'What the backward pass computes again to save memory: "none", "dots" (all'
    ' but the outputs of dense layers) or "full" (all activations).',
    is_open=True,
  )
  scan: bool = free_key(
    False, "True compiles one layer and loops over it, which starts faster."
  )
  attention: str = free_choice(
    ("auto", "xla", "sliced", "flash"),
    'Code for attention: "xla" runs everywhere, "sliced" is for CPUs, "flash"'
    ' for GPUs and TPUs; "auto" chooses by the devices.',
  )
  sharing: str = choice(
    ("full", "disentangled", "none"),
    'Embeddings of ELECTRA\'s two networks: "full" shares them; "disentangled"'
    " adds a table of differences to the discriminator's, the only one that"
    ' its loss trains (DeBERTaV3); "none" has two tables. Unless it is "full",'
    " the gradients of the two networks are clipped apart.",
  )

  @property
  def positions(self) -> int:
    """The number of positions, of models without weights, too."""
    return self.max_positions or POSITIONS


class Masking(Section):
  """The tokens that the masked language model predicts."""

  prob: float = key(
    0.15,
    "Share of the tokens that are hidden and predicted.",
    low=TINY,
    high=0.9,
  )
  style: str = choice(
    ("electra_85_15", "80_10_10", "100_0_0"),
    "Percentages of [MASK], unchanged and random tokens in the slots:"
    ' "electra_85_15" has no random ones, "80_10_10" is BERT\'s, "100_0_0"'
    " DeBERTaV3's.",
    is_open=True,
  )
  unit: str = choice(
    ("token", "word"),
    'What is hidden: "token" draws single tokens; "word" draws whole words and'
    " hides all tokens of a word.",
  )


class Generator(Section):
  """ELECTRA's generator, and the weight of the discriminator."""

  multiplier: float = key(
    0.25, "Width of the generator as a share of the discriminator's.", low=TINY
  )
  sizes: tuple[int, ...] = key(
    (0, 0, 0, 0),
    "Width, layers, heads and inner width of the generator. Where it is 0, the"
    " width follows `multiplier`, the layers are the discriminator's (half of"
    " them with `modern`), and there are a head for each 64 of the width and 4"
    " inner widths.",
    low=0,
    high=LARGEST_SIZE,
  )
  detect_weight: float = key(50.0, "Weight of the discriminator's loss.")


class ObjectiveConfig(Section):
  """How predictions are corrected: keys of `negatives` that losses read.

  Zhang et al. 2023 leave several questions open. Each is a key, whose default
  is the most defensible answer.
  """

  hard_correction: bool = key(
    True, "True drops slots that predict a synonym (equation 2 of the paper)."
  )
  prediction: str = choice(
    ("argmax", "sample"),
    'The prediction that hard correction and soft terms judge: "argmax", the'
    ' likeliest token, or "sample", the one that the discriminator sees.',
  )
  strict_subword: bool = key(
    True,
    "True corrects nothing where the gold word continues in pieces (footnote"
    " 5); False corrects such words, too, at their first piece.",
  )
  drop_prob: float = key(
    0.0, "Share of random slots that leave the loss, as a control.", high=0.99
  )
  discriminator_label: float = key(
    1.0,
    "Target of sampled synonyms in the discriminator's loss: 1 is replaced, 0"
    " is original, and a number below 0 leaves them out.",
    low=-1,
    high=1,
  )
  smoothing: float = key(
    0.0,
    "Share of the target that moves from the gold token to its synonyms.",
    high=1,
  )
  smoothing_by: str = choice(
    ("uniform", "model", "balanced", "set", "teacher"),
    'How synonyms share it: "uniform" gives all the same; "model" follows the'
    ' model\'s probabilities; "balanced" exchanges it by pairs, which no'
    ' lexicon can bias; "set", with smoothing=1, counts only their sum;'
    ' "teacher" follows the probabilities of the source "teacher".',
  )
  soft: str = choice(
    ("cosine",),
    "Distance of the soft term of words: 1 - cosine of prediction and gold"
    " token (equation 3).",
    is_open=True,
  )
  soft_weight: float = key(
    0.0, "Weight of the soft term of words; 0 leaves it out."
  )
  sentence_weight: float = key(
    0.0, "Weight of the soft term of sentences (section 5); 0 leaves it out."
  )

  @property
  def needs_table(self) -> bool:
    """Whether an objective needs a synonym table, or a teacher."""
    return bool(self.hard_correction or self.smoothing or self.spares_synonyms)

  @property
  def spares_synonyms(self) -> bool:
    """Whether a sampled synonym is not simply a replaced token."""
    return self.discriminator_label < 1

  @property
  def term_weights(self) -> dict[str, float]:
    """The weights of extra terms, those of `<term>_weight` that are not 0."""
    return {
      name.removesuffix("_weight"): weight
      for name, weight in vars(self).items()
      if name.endswith("_weight") and weight
    }


class Negatives(ObjectiveConfig):
  """Where synonyms come from, beside the keys that losses read."""

  sources: str = free_key(
    "auto",
    'Sources of synonyms, separated by commas: "wordnet", "pairs path=FILE",'
    ' "vectors path=FILE", "omw path=FILE", "table path=FILE", "model", or'
    ' "teacher path=FOLDER". "auto" is "wordnet" for English, and "omw" of'
    " data.language otherwise.",
  )
  stop_words: str = free_key(
    "",
    'File with one stop word a line, which have no synonyms; "" is NLTK\'s'
    ' list for the language, and "none" is no word.',
  )


class Data(Section):
  """Text, vocabulary and rows."""

  sources: str = key(
    "wordnet",
    "Text: files, folders, globs and hf:NAME, separated by commas, with"
    ' options such as weight=2; "wordnet" is its definitions and examples.',
  )
  language: str = free_key(
    "en",
    "Language of the text by ISO 639-1, which decides sources of synonyms and"
    ' stop words; "" has neither.',
  )
  tokenizer: str = free_choice(
    ("fast", "tf_text"),
    "Library that tokenizes: Hugging Face's, or TensorFlow's (\"tf_text\")"
    " with the same ids.",
  )
  vocab: str = free_key(
    "train",
    'Vocabulary: "train" makes one from the text, "init" takes that of the'
    " weights; others are a vocab.txt or tokenizer.json, its folder, or a name"
    " on the Hugging Face hub.",
  )
  vocab_size: int = key(
    30_522, "Number of entries of a trained vocabulary.", low=1
  )
  lowercase: bool = key(True, "True puts all text into lower case.")
  accents: str = choice(
    ("auto", "strip", "keep"),
    'Accents are removed ("strip"), kept, or removed if `lowercase` ("auto").',
  )
  layout: str = choice(
    ("electra", "packed"),
    'What rows hold: one document, or several ("packed"), which do not see'
    " each other.",
  )
  held_out: float = key(
    0.02, "Share of the documents that is never trained on.", low=TINY, high=0.5
  )
  rows: str = free_key(
    "", 'Folder of the rows, also gs://...; "" is one in the cache.'
  )
  workers: int = free_key(
    0, "Processes that make rows; 0 is one for each core."
  )


class Optim(Section):
  """Adam without bias correction, as ELECTRA's code has it, and Muon."""

  schedule: str = choice(
    ("electra", "bert", "wsd"),
    'Learning rate: "electra" warms up and decays at once, "bert" in turn;'
    ' "wsd" stays at its peak until the last steps.',
  )
  lr: float = key(5e-4, "Learning rate at the peak of the schedule.", low=TINY)
  muon_lr: float = key(
    0.0,
    "Learning rate at the peak of Muon, which replaces Adam for the matrices of"
    " layers; 0 leaves it out. Their weight decay follows `lr`.",
  )
  warmup_steps: int = key(
    10_000, "Number of first steps with a growing learning rate."
  )
  decay_steps: int = key(10_000, 'Number of last steps in which "wsd" decays.')
  weight_decay: float = key(
    0.01, "Weight decay of all but biases and norms, times the learning rate."
  )
  b2: float = key(
    0.999, "Decay of Adam's mean of squared gradients.", high=0.999999
  )
  accumulation: int = key(
    1,
    "Number of micro-batches into which an update is divided to save memory.",
    low=1,
  )
  max_skips: int = free_key(
    0, "Number of updates in a row that may be skipped as not finite."
  )


class Mesh(Section):
  """How devices share the work."""

  preset: str = free_choice(
    ("dp", "fsdp", "fsdp_tp"),
    'What is split over devices: the batch ("dp"), parameters, too ("fsdp"),'
    ' and the computation of each layer ("fsdp_tp", tensor parallelism).',
    is_open=True,
  )
  model: int = free_key(
    0, "Number of devices that share a layer; 0 is the preset's, 2 in fsdp_tp."
  )


class Checkpoint(Section):
  """When checkpoints are saved, and which are kept."""

  every_steps: int = free_key(
    10_000, "Number of steps between checkpoints.", low=1
  )
  keep: int = free_key(2, "Number of newest checkpoints that are kept.", low=1)
  keep_percent: tuple[float, ...] = free_key(
    (6.25, 12.5, 25.0, 50.0, 80.0, 100.0),
    "Percentages of `steps` whose checkpoints are kept, too (table 2).",
    low=0,
    high=100,
  )


class Log(Section):
  """Where and how often metrics are recorded."""

  every_steps: int = free_key(
    100, "Number of steps between records of metrics.", low=1
  )
  writers: tuple[str, ...] = free_key(
    (),
    "Programs that get the metrics, beside metrics.jsonl.",
    choices=("tensorboard", "wandb", "trackio"),
  )


class Eval(Section):
  """Measures on held-out rows, and what is shown at the end."""

  every_steps: int = free_key(
    10_000, "Number of steps between held-out losses.", low=1
  )
  rows: int = free_key(
    2_048, "Number of held-out rows, rounded up to whole batches.", low=1
  )
  sentences: tuple[str, ...] = free_key(
    (), "Sentences with one [MASK] each, filled in and printed at the end."
  )
  blimp: str = free_key(
    "",
    "Minimal pairs, as in blimp.pairs, of which the first 20 of each paradigm"
    ' are scored with the held-out losses; "" scores none.',
  )


class PretrainConfig(Section):
  """All values of a pre-training, in the order of `config.json`."""

  task: str = choice(
    ("pretrain", "finetune", "corrections", "blimp", "robustness", "study"),
    "What the config runs; each task has configs of its own.",
  )
  objective: str = choice(
    ("electra", "mlm"),
    'What is trained: "electra" detects replaced tokens, "mlm" is BERT\'s'
    " objective.",
  )
  seed: int = key(
    0,
    "Seed of initial weights, row order, masks, samples and dropout.",
    high=LARGEST_SEED,
  )
  steps: int = key(
    1_000_000, "Number of updates, at most; a resume may have more.", low=1
  )
  minutes: float = free_key(
    0.0,
    "Time limit of the run in minutes, export included; it does the steps that"
    " fit. 0 sets no limit.",
  )
  batch_size: int = key(
    128, "Number of rows of an update, over all devices.", low=1
  )
  length: int = key(128, "Number of tokens of a row.", low=8, high=65_536)
  short_rows: float = key(
    0.0,
    "Share of the run that reads each row as four short ones; half as much"
    " follows with two. 0 reads whole rows only.",
    high=0.66,
  )
  init: str = free_key(
    "", 'Weights to start from: a folder, a workdir or hub names; "" is random.'
  )
  init_skip: str = free_key(
    "",
    'Parts of `init` to leave out: "words", so that the vocabulary may differ'
    ' and only embeddings of common words are copied; "head", so that heads are'
    " new.",
  )
  branch: str = free_key(
    "",
    'WORKDIR/checkpoints/STEP of a run to go on from, with its optimizer; ""'
    " is none.",
  )
  dry_run: bool = free_key(
    False, "True prints what would run, and writes nothing."
  )
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
