"""Compares weights with a model, before any array is read.

networks = Weights("released/electra").for_roles(model.roles)
matched = match_weights(networks, model, tokenizer)
matched.missing  # parameters that `load.load_params` draws at random

One rule says which arrays are left out: those outside of the encoder that the
model has no place for. Heads of other tasks are, and a line says so.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from truenegs_jax.config import grammar
from truenegs_jax.config.sections import FROM_WEIGHTS, INIT_SKIPS
from truenegs_jax.data.tokenizer import Tokenizer, check_tokens
from truenegs_jax.models import encoder, finetune, pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import hf_config, hf_names
from truenegs_jax.weights.hf_folder import Network
from truenegs_jax.weights.hf_names import TASK_HEAD

MODELS = ({"bert"}, {"discriminator"}, {"discriminator", "generator"})
MAX_LISTED = 8  # names or differences in a message
ADVICE = (
  "Pass weights that fit, or change the model. For their sizes, set"
  " --config.model.variant=init; if only the words differ,"
  " --config.init_skip=words; if only the head, --config.init_skip=head."
)
Table = dict[str, str]  # path in our tree -> name of an array


@dataclasses.dataclass(frozen=True)
class MatchedWeights:
  """Weights that fit a model."""

  model: hf_names.Model
  tokenizer: Tokenizer
  networks: Mapping[str, Network]  # by role; a pair may lack its generator
  names: Mapping[str, Table]  # by role, of the arrays to read
  skip: frozenset[str]  # names in `config.init_skip`
  lines: tuple[str, ...]  # for the user: what is left out

  @property
  def location(self) -> str:
    """Where the weights are, for messages."""
    return " and ".join(x.location for x in self.networks.values())

  @functools.cached_property
  def missing(self) -> list[str]:
    """The paths of parameters that the weights lack."""
    paths = {path for table in self.names.values() for path in table}
    own = tuple(pretrain.OWN.values())  # made of the networks' embeddings
    shapes = hf_names.flat_shapes(self.model)
    return [x for x in shapes if x not in paths and not x.startswith(own)]


def parse_skip(text: str) -> frozenset[str]:
  """Parses `config.init_skip`, names in INIT_SKIPS divided by commas."""
  names = grammar.parse_names(text, key="init_skip", choices=INIT_SKIPS)
  return frozenset(names)


def match_weights(
  networks: Mapping[str, Network],
  model: hf_names.Model,
  tokenizer: Tokenizer,
  *,
  init_skip: str = "",
) -> MatchedWeights:
  """Compares weights with a model; only headers are read.

  Args:
    networks: the weights by role, those of `find.Weights.for_roles`.
    tokenizer: the run's; the vocabulary next to the weights must be the same.
    init_skip: what may differ, as in `config.init_skip`.

  Raises InputError with a list of mismatches, CheckpointError for an unreadable
  run.
  """
  skip = parse_skip(init_skip)
  stored_model = model
  names: dict[str, Table] = {}
  lines: list[str] = []
  for role, network in networks.items():
    location = network.location
    if "words" not in skip:
      check_saved(network, tokenizer)
    elif not names:  # the first network's words are those of both
      stored_model = _with_rows_of(network, model)
      vocabulary = network.tokenizer.vocab
    elif network.tokenizer.vocab != vocabulary:
      raise InputError(
        f"init: '{network.vocabulary}' is not the vocabulary of the first"
        " network. Pass two networks of one vocabulary."
      )
    if network.backbone != model.backbone:
      raise InputError(
        f"init: {location} has the backbone {network.backbone!r}, but"
        f" model.backbone={model.backbone!r}. Set"
        f" --config.model.backbone={network.backbone}."
      )
    names[role] = _find_names(network, stored_model, role, skip)
    left_out = _match_arrays(network, stored_model, role, names[role])
    if network.prefix:
      lines.append(
        f"init: read the names of {location} without the prefix"
        f" '{network.prefix}'."
      )
    if left_out:
      listed = list_names(left_out)
      lines.append(
        f"init: left out what this model lacks of {location}: {listed}."
      )
  return MatchedWeights(model, tokenizer, networks, names, skip, tuple(lines))


def match_own_model(
  networks: Mapping[str, Network], **changed: Any
) -> tuple[pretrain.Model, MatchedWeights]:
  """Makes a model of the weights' sizes; only headers are read.

  `changed` are fields of the model, such as `pooler`.
  """
  kept = next(iter(networks.values()))
  if set(networks) not in MODELS:
    raise InputError(
      f"init: {kept.location} holds only {' and '.join(networks)}. Pass BERT, a"
      " discriminator, or DISCRIMINATOR,GENERATOR."
    )
  tokenizer = kept.tokenizer
  fields = {
    **kept.values,
    "variant": FROM_WEIGHTS,
    "backbone": kept.backbone,
    "vocab_size": len(tokenizer.vocab),
  }
  model: pretrain.Model
  if kept.role == "bert":
    has_pooler = any(name.startswith(hf_names.POOLER) for name in kept.shapes)
    model = pretrain.make_bert(pooler=has_pooler, **fields)
  else:
    # A discriminator without a generator gets a small one.
    sizes: tuple[int, ...] = (kept.values["embedding_size"], 1, 1, 1)
    if "generator" in networks:
      sizes = networks["generator"].generator_sizes
    fields |= {"generator_sizes": sizes, "generator_multiplier": 1.0}
    model = pretrain.make_electra(**fields)
  model = model.clone(tokenizer=tokenizer, **changed)
  skip = skip_padding(kept)
  return model, match_weights(networks, model, tokenizer, init_skip=skip)


def skip_padding(network: Network) -> str:
  """Returns the `init_skip` that leaves out rows that are no words."""
  has_padding = network.fields["vocab_size"] != len(network.tokenizer.vocab)
  return "words" if has_padding else ""


def _find_names(
  network: Network, model: hf_names.Model, role: str, skip: frozenset[str]
) -> Table:
  """Returns the names of a network's arrays by path, without absent heads.

  A head is absent if the weights have none of its arrays. Many files hold only
  BERT's encoder, few hold the next-sentence classifier.
  """
  table = hf_names.name_table(model, role)
  parts = [f"{role}_head/", TASK_HEAD, f"{TASK_HEAD}output/"]
  parts += ["pooled/pooler/", "pooled/next_sentence/"]
  stored = [path for path, name in table.items() if name in network.shapes]
  absent = [x for x in parts if not any(y.startswith(x) for y in stored)]
  if "head" in skip or not _shares_head(network, model, role):
    absent += [f"{role}_head/", TASK_HEAD]
  return {
    path: name
    for path, name in table.items()
    if not path.startswith(tuple(absent))
  }


def _shares_head(network: Network, model: hf_names.Model, role: str) -> bool:
  """Whether a head with the names of the model's head is one of its kind.

  The heads of ModernBERT's classes have the same names, and so have those of
  several tasks. There the class of the weights decides; a task continues all
  but the last layer of the head that filled masks.
  """
  is_fine_tuned = isinstance(model, finetune.DownstreamModel)
  classes = {hf_names.architecture(model, role)}
  if network.backbone != "modern":
    return not is_fine_tuned or network.architecture in {*classes, ""}
  if is_fine_tuned:
    classes.add(hf_names.MODERN_MASKED)
  return network.architecture in classes


def _head_of(name: str) -> str:
  """Returns the first part of an array's name, "classifier" or "electra"."""
  if name.startswith(hf_names.POOLER):
    return hf_names.POOLER.rstrip(".")
  return re.split("[./]", name)[0]


def _with_rows_of(network: Network, model: hf_names.Model) -> hf_names.Model:
  """Returns a model with as many rows of words as the weights have."""
  num_rows = network.fields["vocab_size"]
  num_words = len(network.tokenizer.vocab)
  if num_words > num_rows:
    raise InputError(
      f"init: {network.location} has {num_rows:,} words, but its vocabulary"
      f" '{network.vocabulary}' has {num_words:,}. Use that of the weights."
    )
  return encoder.replace_configs(model, vocab_size=num_rows)


def _match_arrays(
  network: Network, model: hf_names.Model, role: str, table: Table
) -> list[str]:
  """Compares the arrays of a network, and its fields, with those of a model.

  Returns first parts of the names that are left out, "classifier" for example:
  all outside of the encoder that the model lacks.
  """
  shapes = hf_names.list_shapes(model, role)
  expected = {name: shapes[name] for name in table.values()}
  stored = dict(network.shapes)
  tied = hf_names.network_names(model, role).tied
  for name in tied:
    stored.pop(name, None)  # equal to another one, as transformers ties them
  encoder_paths = ("embeddings/", f"{role}/")
  inside = {
    _head_of(name) for x, name in table.items() if x.startswith(encoder_paths)
  }
  fields = hf_config.make_fields(model, role, pad=0)
  if not (tied and any(path.startswith(f"{role}_head/") for path in table)):
    del fields["tie_word_embeddings"]  # nothing is tied
  lines = hf_config.field_mismatches(network.fields, fields)
  left_out = []
  for name, shape in sorted({**expected, **stored}.items()):
    if name not in stored:
      lines.append(f"{name} is missing, the model's is {shape}")
    elif name in expected and shape != expected[name]:
      lines.append(f"{name} is {shape}, the model's is {expected[name]}")
    elif name not in expected and _head_of(name) in inside:
      lines.append(f"{name} {shape} is not in the model")
    elif name not in expected:
      left_out.append(_head_of(name))
  if lines:
    if len(lines) > MAX_LISTED:
      lines[MAX_LISTED:] = [f"and {len(lines) - MAX_LISTED:,} more"]
    listed = "\n  ".join(lines)
    raise InputError(
      f"init: {network.location} does not fit the model:\n  {listed}\n{ADVICE}"
    )
  return list(dict.fromkeys(left_out))


def check_tokenizer(model: hf_names.Model, tokenizer: Tokenizer) -> None:
  """Raises InputError for a tokenizer of other tokens than the model's."""
  fix = "Use the tokenizer with which the model was trained or loaded."
  expected = getattr(model, "tokenizer", None)
  check_tokens("The model", expected, tokenizer, fix)
  [size, *_] = [config.vocab_size for config in model.roles.values()]
  if len(tokenizer.vocab) != size:
    raise InputError(
      f"The vocabulary has {len(tokenizer.vocab):,} entries, but the model has"
      f" {size:,}. {fix}"
    )


def check_saved(network: Network, tokenizer: Tokenizer) -> None:
  """Refuses weights of another vocabulary, or of other normalized text."""
  saved = network.tokenizer
  if saved.vocab != tokenizer.vocab:
    raise InputError(
      f"init: '{network.vocabulary}' is not the run's vocabulary, so the rows"
      " of the word embeddings would stand for other words. Set"
      f" --config.data.vocab={network.vocabulary}; a training may copy the rows"
      " of known words by --config.init_skip=words."
    )
  if saved.definition:
    return
  flags = []
  # Where no file tells the case, capitals in the vocabulary do.
  is_case_known = network.lowercase is not None or not saved.lowercase
  if is_case_known and saved.lowercase != tokenizer.lowercase:
    flags.append(f"lowercase={saved.lowercase}")
  if network.strip_accents not in (None, tokenizer.strip_accents):
    accents = "strip" if network.strip_accents else "keep"
    flags.append(f"accents={accents}")
  if flags:
    raise InputError(
      f"init: {network.location} was trained with data.{flags[0]}, unlike this"
      f" run. Set --config.data.{' --config.data.'.join(flags)}."
    )


def answers_questions(network: Network) -> bool:
  """Whether weights have a head for questions; ModernBERT's class tells it."""
  modules = hf_names.task_head("spans", network.backbone).values()
  has_arrays = {f"{name}.weight" for name in modules} <= network.shapes.keys()
  is_class = network.architecture.endswith(hf_names.TASK_CLASSES["spans"])
  return has_arrays and (is_class or network.backbone != "modern")


def list_names(names: Iterable[str]) -> str:
  """Lists at most MAX_LISTED names for a message, an empty one as "unnamed"."""
  listed = list(names)
  if len(listed) > MAX_LISTED:
    listed[MAX_LISTED:] = ["..."]
  return ", ".join(listed) or "unnamed"
