"""Compares weights with a model, before any array is read.

networks = Weights("released/electra").for_roles(model.roles)
matched = match_weights(networks, model, tokenizer)
matched.missing  # parameters that `load.load_params` draws at random

One rule says which arrays are left out: those outside of the encoder that the
model has no place for. Heads of other tasks are, and `left_out_lines` says so.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from truenegs_jax.config import grammar
from truenegs_jax.config.sections import INIT_SKIPS
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.models import encoder, finetune, pretrain
from truenegs_jax.runtime.errors import InputError, printable
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import hf_config, hf_folder, hf_names
from truenegs_jax.weights.hf_folder import Network
from truenegs_jax.weights.hf_names import TASK_HEAD

MAX_LISTED = 8  # names in a line
ADVICE = (
  "Pass weights that fit, or change the model: --config.model.variant=init has"
  " their size, --config.init_skip=words keeps the rows of known words, and"
  " --config.init_skip=head draws a new head."
)
Table = dict[str, str]  # path in our tree -> name of an array


@dataclasses.dataclass(frozen=True)
class MatchedWeights:
  """Weights that fit a model."""

  model: hf_names.Model
  tokenizer: Tokenizer
  networks: Mapping[str, Network]  # by role; a pair may lack its generator
  names: Mapping[str, Table]  # by role, of the arrays to read
  left_out: Mapping[str, list[str]]  # by role, first parts of their names
  skip: frozenset[str]  # names in `config.init_skip`
  task: task_lib.Task | None

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

  def left_out_lines(self) -> list[str]:
    """Says which parts are left out, of names and of arrays."""
    lines = []
    for role, network in self.networks.items():
      if network.prefix:
        lines.append(
          f"init: read the names of {network.location} without the prefix"
          f" '{network.prefix}'."
        )
      heads = self.left_out[role]
      if not heads:
        continue
      lines.append(
        "init: left out what this model lacks of"
        f" {network.location}: {list_names(heads)}."
      )
    return lines

  def missing_modules(self, role: str) -> str:
    """Lists Hugging Face's names of modules that a network lacks."""
    table = hf_names.name_table(self.model, role)
    missing = table.keys() & set(self.missing)
    names = {table[path].rpartition(".")[0] for path in missing}
    return ", ".join(sorted(names))


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
  task: task_lib.Task | None = None,
) -> MatchedWeights:
  """Compares weights with a model; only headers are read.

  Args:
    networks: the weights by role, those of `find.Weights.for_roles`.
    tokenizer: the run's; the vocabulary next to the weights must be the same.
    init_skip: what may differ, as in `config.init_skip`.
    task: of a fine-tuned model.

  Raises InputError with the first mismatch of each kind and a count of the
  others, CheckpointError for an unreadable run.
  """
  skip = parse_skip(init_skip)
  first = next(iter(networks.values()))
  stored_model = _with_rows_of(first, model) if "words" in skip else model
  names: dict[str, Table] = {}
  left_out: dict[str, list[str]] = {}
  for role, network in networks.items():
    if "words" not in skip:
      _check_tokenizer(network, tokenizer)
    if network.backbone != model.backbone:
      raise InputError(
        f"init: {network.location} has the backbone {network.backbone!r}, but"
        f" model.backbone={model.backbone!r}. Use the backbone of the weights:"
        f" --config.model.backbone={network.backbone}."
      )
    if network.thetas != first.thetas:
      raise InputError(
        f"init: the discriminator's rotary positions have {first.thetas}, but"
        f" the generator's have {network.thetas}. Pass two networks that were"
        " trained together, or only the discriminator."
      )
    table = _readable_names(network, stored_model, role, skip)
    names[role] = table
    left_out[role] = _match_arrays(network, stored_model, role, table)
  return MatchedWeights(model, tokenizer, networks, names, left_out, skip, task)


def _readable_names(
  network: Network, model: hf_names.Model, role: str, skip: frozenset[str]
) -> Table:
  """Returns the names of a network's arrays by path, without absent heads.

  A head is absent if the weights have none of its arrays. Many files hold only
  BERT's encoder, few hold the next-sentence classifier.
  """
  table = network.names(model, role)
  if "head" in skip or not _shares_head(network, model, role):
    heads = (TASK_HEAD, f"{role}_head/")
    table = {x: name for x, name in table.items() if not x.startswith(heads)}
  parts = [f"{role}_head/", TASK_HEAD, f"{TASK_HEAD}output/"]
  parts += ["pooled/pooler/", "pooled/next_sentence/"]
  stored = [x for x, name in table.items() if name in network.arrays.shapes]
  absent = tuple(x for x in parts if not any(y.startswith(x) for y in stored))
  return {path: x for path, x in table.items() if not path.startswith(absent)}


def _shares_head(network: Network, model: hf_names.Model, role: str) -> bool:
  """Whether a head with the names of the model's head is one of its kind.

  The heads of ModernBERT's classes have the same names, and so have those of
  several tasks. There the class of the weights decides; a task continues all
  but the last layer of the head that filled masks.
  """
  is_modern = network.backbone == "modern"
  is_fine_tuned = isinstance(model, finetune.DownstreamModel)
  if not (is_modern or is_fine_tuned):
    return True
  classes = {hf_names.architecture(model, role)}
  if not is_modern:
    classes.add("")  # an unknown one
  elif is_fine_tuned:
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
  shapes = _stored_shapes(network, model, role, table)
  encoder_paths = ("embeddings/", f"{role}/")
  inside = {
    _head_of(name) for x, name in table.items() if x.startswith(encoder_paths)
  }
  stored = network.arrays.shapes
  left_out = []
  unknown = []
  differing = []
  missing = []
  for name in sorted({*table.values(), *stored}):
    if name not in stored:
      missing.append(f"{name} is missing, the model's is {shapes[name]}")
    elif name not in shapes and _head_of(name) not in inside:
      left_out.append(_head_of(name))
    elif name not in shapes:
      unknown.append(f"{name} {stored[name]} is not in the model")
    elif stored[name] != shapes[name]:
      text = f"{stored[name]}, the model's is {shapes[name]}"
      differing.append(f"{name} is {text}")
  expected = hf_folder.model_config(model, role, pad=0)
  fields = hf_config.field_mismatches(network.fields, expected)
  lines = []
  for group in filter(None, (fields, unknown, differing, missing)):
    lines.append(group[0])
    if len(group) > 1:
      lines[-1] += f" (and {len(group) - 1:,} more of this kind)"
  if lines:
    listed = "\n  ".join(lines)
    raise InputError(
      f"init: {network.location} does not fit the model:\n  {listed}\n{ADVICE}"
    )
  return list(dict.fromkeys(left_out))


def _stored_shapes(
  network: Network, model: hf_names.Model, role: str, table: Table
) -> dict[str, tuple[int, ...]]:
  """Returns shapes by name, in the layout of the weights; of copies, too."""
  params = hf_names.flat_shapes(model)
  paths = {name: path for path, name in table.items()}
  if any(path.startswith(f"{role}_head/") for path in table):
    paths |= {x: path for x, path in network.tied.items() if path in table}
  shapes = {}
  for name, path in paths.items():
    shape = params[path].shape
    if path.endswith("/kernel") and not network.is_ours:
      shape = (math.prod(shape[1:]), shape[0])
    shapes[name] = shape
  return shapes


def read_labels(fields: Mapping[str, Any]) -> list[str]:
  """Returns the class names of a `config.json` by id; [] if it has none."""
  labels = fields.get("id2label")
  if not isinstance(labels, dict):
    return []
  names = (str(labels.get(str(i), i))[:80] for i in range(len(labels)))
  return [printable(name) for name in names]


def list_names(names: Iterable[str]) -> str:
  """Lists at most MAX_LISTED names for a message; "unnamed" for none."""
  listed = list(names)
  if len(listed) > MAX_LISTED:
    listed[MAX_LISTED:] = ["..."]
  return ", ".join(listed) or "unnamed"


def _check_tokenizer(network: Network, tokenizer: Tokenizer) -> None:
  """Refuses weights of another vocabulary, or of other normalized text."""
  saved = network.tokenizer
  if saved.vocab != tokenizer.vocab:
    raise InputError(
      f"init: '{network.vocabulary}' is not the run's vocabulary, so the rows"
      " of the word embeddings would stand for other words. Set"
      f" --config.data.vocab={network.vocabulary}, or copy the rows of known"
      " words: --config.init_skip=words."
    )
  if saved.definition:
    return
  # Without a tokenizer config, only capitals in the vocabulary tell the case.
  is_case_known = network.lowercase is not None or not saved.lowercase
  if is_case_known and saved.lowercase != tokenizer.lowercase:
    raise InputError(
      f"init: {network.location} was trained with lowercase={saved.lowercase},"
      f" but this run has data.lowercase={tokenizer.lowercase}. Set"
      f" --config.data.lowercase={saved.lowercase}."
    )
  if network.strip_accents not in (None, tokenizer.strip_accents):
    accents = "strip" if network.strip_accents else "keep"
    raise InputError(
      f"init: {network.location} was trained with strip_accents="
      f"{network.strip_accents}, but this run has strip_accents="
      f"{tokenizer.strip_accents}. Set --config.data.accents={accents}."
    )
