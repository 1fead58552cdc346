"""What a fine-tuning starts from: weights, their sizes and their words."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.finetune import config_checks
from truenegs_jax.finetune.task_data import Material
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
from truenegs_jax.workdir.from_config import vocabulary_of

RANDOM = "discriminator"  # the role of a network that is drawn at random
POSITIONS = 512  # that it has
DRAWN = "drawn at random"
HEADS = ("task_head/", "pooled/")


@dataclasses.dataclass(frozen=True)
class Origin:
  """Weights to fine-tune, before a task is known.

  Attributes:
    c: the config, with the sizes and the words of the weights.
    role, backbone: of the network.
    tokenizer: of its words.
    weights: what `c.init` names; None where the network is drawn at random.
  """

  c: ConfigDict
  role: str
  backbone: str
  tokenizer: Tokenizer
  weights: Weights | None

  def model(self, num_outputs: int) -> finetune.Downstream:
    """The network with a head of so many outputs."""
    return config_checks.make_model(
      self.c,
      role=self.role,
      backbone=self.backbone,
      num_outputs=num_outputs,
      vocab_size=len(self.tokenizer.vocab),
    )

  def fingerprints(
    self, model: finetune.Downstream, task: Task
  ) -> dict[str, str]:
    """What identifies the weights: of the network, and of a head they bring.

    What is drawn at random is in neither: it goes by the seed.

    Raises:
      InputError: weights that do not fit: another size, other words, the head
        of another task.
    """
    if self.weights is None:
      return {"weights": DRAWN, "head": DRAWN}
    skip = check_fit.parse_skip(self.c.init_skip)
    networks = self.weights.for_roles((self.role,))
    match_vocabulary.check(networks, self.tokenizer, skip=skip)
    networks = head_transfer.trimmed(networks, model, skip=skip, task=task)
    check_fit.check(networks, model, skip=skip)
    network = networks[self.role]
    theirs = check_fit.with_their_table_sizes(model, networks, skip)
    table = check_fit.present(network, theirs, self.role)
    heads = {ours for ours in table if ours.startswith(HEADS)}
    crc = lambda names: _crc(network, [table[name] for name in sorted(names)])
    return {
      "weights": crc(table.keys() - heads),
      "head": crc(heads) if heads else DRAWN,
    }

  def params(
    self,
    model: finetune.Downstream,
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
      skip=self.c.init_skip,
      task=task,
      say=say,
    )


def open_origin(c: ConfigDict, *, say: Callable[[str], Any]) -> Origin:
  """Finds the weights of a config; no number of theirs is read.

  Where there are none, the config has to say size and vocabulary, and the
  network is drawn at random: what pre-training is to be compared with.

  Raises:
    InputError: none given and no size; as `Weights.encoder`.
  """
  c = c.copy_and_resolve_references()
  with c.unlocked():  # the weights say it
    c.model.max_positions = POSITIONS
  if not c.init:
    if config_sizes.INIT in (c.model.variant, c.data.vocab):
      raise InputError(
        "init: give the weights to fine-tune, --config.init=FOLDER (a run of"
        " ours, a folder for Hugging Face, a name on its hub, Google's"
        " checkpoint); or, for a network drawn at random,"
        " --config.model.variant=NAME and --config.data.vocab=FILE."
      )
    _check_length(c, "a network drawn at random")
    return Origin(c, RANDOM, "encoder", vocabulary_of(c, c.data.vocab), None)
  weights = Weights(c.init, say)
  network = weights.encoder()
  _take_words(c, network)
  if c.model.variant == config_sizes.INIT:
    c.model.variant = config_sizes.variant_of(network, say)
  c.model.max_positions = network.fields["max_position_embeddings"]
  _check_length(c, network.place)
  tokenizer = vocabulary_of(c, c.data.vocab)
  return Origin(c, network.role, network.backbone, tokenizer, weights)


def made_of(of: Origin, data: Material) -> dict[str, Any]:
  """What the numbers of a run depend on beside its config, in JSON's types.

  Raises:
    InputError: as `Origin.fingerprints`.
  """
  model = of.model(data.num_outputs)
  return {
    "family": "bert" if of.role == "bert" else "electra",
    "width": model.config.width,
    "sizes": of.c.model.variant,
    "backbone": of.backbone,
    "vocabulary": of.tokenizer.fingerprint,
    **of.fingerprints(model, data.task),
    "labels": list(data.task.labels),
    "data": data.fingerprints(),
  }


def _check_length(c: ConfigDict, place: str) -> None:
  if c.length > c.model.max_positions:
    raise InputError(
      f"length {c.length} is over the {c.model.max_positions} positions of"
      f" {place}; give a smaller --config.length."
    )


def _crc(network: Network, names: Sequence[str]) -> str:
  """CRC-32 of arrays of a file, 8 hex digits."""
  crc = 0
  for name in names:
    crc = zlib.crc32(network.arrays.read(name).tobytes(), crc)
  return f"{crc:08x}"


def _take_words(c: ConfigDict, network: Network) -> None:
  """Vocabulary and treatment of text of the weights, as far as they say."""
  if c.data.vocab != config_sizes.INIT:
    return
  if network.vocabulary is None:
    raise InputError(
      f"init: {network.place} has no vocabulary beside it; give it:"
      " --config.data.vocab=FILE."
    )
  c.data.vocab = str(network.vocabulary)
  if network.lowercase and not c.data.lowercase:
    raise InputError(
      f"data.lowercase=False, but {network.place} was trained on lower-cased"
      " text; leave it out."
    )
  if network.lowercase is not None:
    c.data.lowercase = network.lowercase
    strips = network.strip_accents
    if strips is not None and c.data.accents == "auto":
      c.data.accents = "strip" if strips else "keep"
