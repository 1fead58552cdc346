"""Loads the network that all runs start from: weights, sizes, vocabulary."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from truenegs_jax.data.tokens import tokenizer as tokenizer_lib
from truenegs_jax.finetune import results
from truenegs_jax.finetune.config_checks import FinetuneOptions
from truenegs_jax.models import finetune
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks.task import SPANS, Task
from truenegs_jax.weights import config_sizes, fit, load
from truenegs_jax.weights.find import Weights

# Role and number of positions of a network without weights.
RANDOM_ROLE, RANDOM_POSITIONS = "discriminator", 512
DRAWN = "drawn at random"  # in place of a fingerprint
HEAD_PREFIXES = ("task_head/", "pooled/")  # of parameter paths


@dataclasses.dataclass(frozen=True)
class InitialWeights:
  """Weights to fine-tune, opened once for all tasks and seeds.

  Attributes:
    weights: None for a network drawn at random.
    role: "discriminator" or "bert".
    tokenizer: tokenizer of the network's vocabulary.
    skip: `config.init_skip`.
    model_options: arguments of `make_downstream`, the same for all tasks.
  """

  weights: Weights | None
  role: str
  tokenizer: tokenizer_lib.Tokenizer
  skip: str
  model_options: Mapping[str, Any]

  def make_model(self, task: Task) -> finetune.DownstreamModel:
    """Makes the network with the head of a task."""
    is_span = task.kind == SPANS
    return finetune.make_downstream(
      role=self.role,
      head="spans" if is_span else finetune.CLASS_HEADS[self.role],
      num_outputs=max(1, len(task.labels)),
      vocab_size=len(self.tokenizer.vocab),
      **self.model_options,
    )

  def provenance(
    self, model: finetune.DownstreamModel, task: Task, data: Mapping[str, str]
  ) -> dict[str, Any]:
    """Returns `Result.provenance` without the config, in JSON's types.

    `data` holds the fingerprints of the rows, by split.
    """
    return {
      "family": "bert" if self.role == "bert" else "electra",
      "width": model.config.width,
      "sizes": self.model_options["variant"],
      "backbone": model.backbone,
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
    report: Callable[[str], None],
    complete: bool = False,
  ) -> dict[str, Any]:
    """Makes the initial parameters of a run, arrays of numpy.

    The head is drawn at random with the seed, unless the weights have a head
    for such a task; `complete` refuses weights without one.
    """
    fitted = self.fit(model, task)
    if fitted is None:
      return load.draw_params(model, seed)
    return load.load_params(fitted, seed=seed, complete=complete, report=report)

  def fit(self, model: finetune.DownstreamModel, task: Task) -> fit.Fit | None:
    """Compares the weights with a model; InputError if they do not fit."""
    if self.weights is None:
      return None
    return fit.fit(
      self.weights, model, self.tokenizer, init_skip=self.skip, task=task
    )

  def _fingerprints(
    self, model: finetune.DownstreamModel, task: Task
  ) -> dict[str, str]:
    """Returns fingerprints of the network and of the head in the weights.

    Parameters drawn at random have none, since they depend on the seed.
    """
    fitted = self.fit(model, task)
    if fitted is None:
      return {"weights": DRAWN, "head": DRAWN}
    network, table = fitted.networks[self.role], fitted.names[self.role]
    heads = {path for path in table if path.startswith(HEAD_PREFIXES)}

    def fingerprint(paths: Iterable[str]) -> str:
      names = (table[path] for path in sorted(paths))
      return results.fingerprint(
        network.arrays.read(name).tobytes() for name in names
      )

    return {
      "weights": fingerprint(table.keys() - heads),
      "head": fingerprint(heads) if heads else DRAWN,
    }


def open_weights(
  options: FinetuneOptions, *, report: Callable[[str], None]
) -> InitialWeights:
  """Opens the weights of `options.init`; reads no arrays yet.

  Without `init`, the network is drawn at random, as a baseline. The options
  must then name its size and vocabulary.
  """
  variant, vocab = options.variant, options.vocab
  lowercase = options.lowercase
  strip_accents = tokenizer_lib.ACCENTS[options.accents]
  if not options.init:
    if config_sizes.FROM_WEIGHTS in (variant, vocab):
      raise InputError(
        "init='' names no weights. Set --config.init=FOLDER (a workdir, or a"
        " folder or hub name of Hugging Face), or for a network drawn at random"
        " --config.model.variant=NAME and --config.data.vocab=FILE."
      )
    weights, role, backbone = None, RANDOM_ROLE, "encoder"
    positions, location = RANDOM_POSITIONS, "a network drawn at random"
  else:
    weights = Weights(options.init, report)
    network = weights.encoder()
    role, backbone, location = network.role, network.backbone, network.location
    positions = network.fields["max_position_embeddings"]
    if variant == config_sizes.FROM_WEIGHTS:
      variant = network.variant
    if vocab == config_sizes.FROM_WEIGHTS:
      vocab = str(network.vocabulary)
      if network.lowercase and not lowercase:
        raise InputError(
          f"data.lowercase=False, but {location} was trained on lower-cased"
          " text. Remove --config.data.lowercase."
        )
      lowercase = lowercase and network.tokenizer.lowercase
      if options.accents == "auto":
        strip_accents = network.strip_accents
  if options.length > positions:
    raise InputError(
      f"length={options.length} is over the {positions:,} positions of"
      f" {location}. Set --config.length={positions} or less."
    )
  tokenizer = tokenizer_lib.load_tokenizer(
    vocab, lowercase=lowercase, strip_accents=strip_accents
  )
  return InitialWeights(
    weights=weights,
    role=role,
    tokenizer=tokenizer,
    skip=options.init_skip,
    model_options={
      **options.model,
      "backbone": backbone,
      "variant": variant,
      "max_positions": positions,
    },
  )
