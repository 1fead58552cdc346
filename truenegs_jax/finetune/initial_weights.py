"""The network that all runs start from: its weights, sizes and words."""

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import (
  ACCENTS,
  Tokenizer,
  load_tokenizer,
)
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks.task import Task
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.weights.formats.network import Network
from truenegs_jax.weights.init import (
  check_fit,
  config_sizes,
  head_transfer,
  load,
  match_vocabulary,
)

RANDOM = "discriminator"  # the role of a network that is drawn at random
POSITIONS = 512  # that it has
DRAWN = "drawn at random"
HEADS = ("task_head/", "pooled/")
# Keys of `config.model` that weights do not decide.
FIELDS = ("dropout", "attention_dropout", "dtype", "remat", "scan")


@dataclasses.dataclass(frozen=True)
class InitialWeights:
  """Weights to fine-tune, opened once for all tasks and seeds.

  Attributes:
    weights: None where the network is drawn at random.
    role, backbone, variant, max_positions: of the network.
    tokenizer: of its words.
    skip: `config.init_skip`.
    model_options: the head, and what else `make_downstream` takes.
  """

  weights: Weights | None
  role: str
  backbone: str
  variant: str
  max_positions: int
  tokenizer: Tokenizer
  skip: str
  model_options: Mapping[str, Any]

  def make_model(self, num_outputs: int) -> finetune.DownstreamModel:
    """The network with a head of so many outputs.

    The head "dense" of BERT is its pooler, as in Hugging Face's class.
    """
    of_bert = self.role == "bert" and self.model_options["head"] == "dense"
    return finetune.make_downstream(
      role=self.role,
      num_outputs=num_outputs,
      vocab_size=len(self.tokenizer.vocab),
      variant=self.variant,
      backbone=self.backbone,
      max_positions=self.max_positions,
      **{**self.model_options, **({"head": "pooler"} if of_bert else {})},
    )

  def provenance(
    self, model: finetune.DownstreamModel, task: Task, data: Mapping[str, str]
  ) -> dict[str, Any]:
    """All that the numbers of a run depend on beside its config, as JSON.

    Args:
      data: fingerprints of the rows, by split.

    Raises:
      InputError: weights that do not fit: another size, other words, the head
        of another task.
    """
    return {
      "family": "bert" if self.role == "bert" else "electra",
      "width": model.config.width,
      "sizes": self.variant,
      "backbone": self.backbone,
      "vocabulary": self.tokenizer.fingerprint,
      **self._fingerprints(model, task),
      "labels": list(task.labels),
      "data": data,
    }

  def make_params(
    self,
    model: finetune.DownstreamModel,
    task: Task,
    seed: int,
    *,
    say: Callable[[str], Any],
  ) -> dict[str, Any]:
    """Parameters of a run's first step, arrays of numpy.

    The head's are drawn by the seed, unless the weights have one of such a
    task.

    Raises:
      InputError: as `load.load_params`.
    """
    if self.weights is None:
      fresh = jax.jit(lambda: pretrain.init_params(model, jax.random.key(seed)))
      return jax.device_get(fresh())
    return load.load_params(
      self.weights,
      model,
      tokenizer=self.tokenizer,
      seed=seed,
      skip=self.skip,
      task=task,
      report=say,
    )

  def _fingerprints(
    self, model: finetune.DownstreamModel, task: Task
  ) -> dict[str, str]:
    """CRC-32 of the network and of a head that the weights bring.

    Whatever is drawn at random is in neither: it goes by the seed.
    """
    if self.weights is None:
      return {"weights": DRAWN, "head": DRAWN}
    skip = check_fit.parse_skip(self.skip)
    networks = self.weights.for_roles((self.role,))
    match_vocabulary.check_vocabularies(networks, self.tokenizer, skip=skip)
    networks = head_transfer.drop_unused_heads(
      networks, model, skip=skip, task=task
    )
    check_fit.check_networks(networks, model, skip=skip)
    network = networks[self.role]
    theirs = check_fit.with_their_table_sizes(model, networks, skip)
    table = check_fit.loadable_names(network, theirs, self.role)
    heads = {name for name in table if name.startswith(HEADS)}
    crc = lambda names: _crc(network, (table[name] for name in sorted(names)))
    return {
      "weights": crc(table.keys() - heads),
      "head": crc(heads) if heads else DRAWN,
    }


def open_weights(c: ConfigDict, *, say: Callable[[str], Any]) -> InitialWeights:
  """Finds the weights of a config; no number of theirs is read.

  Where there are none, the config has to give size and vocabulary, and the
  network is drawn at random: the baseline of pre-training.

  Raises:
    InputError: none given and no size; more tokens than positions; as
      `Weights.encoder`.
  """
  variant, vocab, lowercase = c.model.variant, c.data.vocab, c.data.lowercase
  strip_accents = ACCENTS[c.data.accents]
  if not c.init:
    if config_sizes.FROM_WEIGHTS in (variant, vocab):
      raise InputError(
        "init: give the weights to fine-tune, --config.init=FOLDER (a run of"
        " ours, a folder for Hugging Face, a name on its hub, Google's"
        " checkpoint); or, for a network drawn at random,"
        " --config.model.variant=NAME and --config.data.vocab=FILE."
      )
    weights, role, backbone, positions = None, RANDOM, "encoder", POSITIONS
    place = "a network drawn at random"
  else:
    weights = Weights(c.init, say)
    network = weights.encoder()
    role, backbone, place = network.role, network.backbone, network.location
    positions = network.fields["max_position_embeddings"]
    if variant == config_sizes.FROM_WEIGHTS:
      variant = config_sizes.read_variant(network, say)
    if vocab == config_sizes.FROM_WEIGHTS:
      vocab = _vocabulary(network, lowercase=lowercase)
      if network.lowercase is not None:
        lowercase = network.lowercase
        if c.data.accents == "auto" and network.strip_accents is not None:
          strip_accents = network.strip_accents
  if c.length > positions:
    raise InputError(
      f"length {c.length} is over the {positions} positions of {place}; give a"
      " smaller --config.length."
    )
  head = {name: c.finetune[name] for name in ("head", "head_dropout")}
  return InitialWeights(
    weights=weights,
    role=role,
    backbone=backbone,
    variant=variant,
    max_positions=positions,
    tokenizer=load_tokenizer(
      vocab, lowercase=lowercase, strip_accents=strip_accents
    ),
    skip=c.init_skip,
    model_options={**head, **{name: c.model[name] for name in FIELDS}},
  )


def _vocabulary(network: Network, *, lowercase: bool) -> str:
  """The file that lies beside the weights."""
  if network.vocabulary is None:
    raise InputError(
      f"init: {network.location} has no vocabulary beside it; give it:"
      " --config.data.vocab=FILE."
    )
  if network.lowercase and not lowercase:
    raise InputError(
      f"data.lowercase=False, but {network.location} was trained on lower-cased"
      " text; leave it out."
    )
  return str(network.vocabulary)


def _crc(network: Network, names: Iterable[str]) -> str:
  """CRC-32 of arrays of a file, 8 hex digits."""
  crc = 0
  for name in names:
    crc = zlib.crc32(network.arrays.read(name).tobytes(), crc)
  return f"{crc:08x}"
