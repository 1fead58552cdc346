"""Compares weights with a model, before any array is read.

networks = Weights("released/electra").for_roles(model.roles)
matched = match_weights(networks, model, tokenizer)
matched.missing  # parameters that `load.load_params` draws at random
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
from truenegs_jax.weights.arrays import FLOATS
from truenegs_jax.weights.hf_folder import Network
from truenegs_jax.weights.hf_names import TASK_HEAD

MAX_LISTED = 8  # names in a line
_POOLER = hf_names.POOLER.rstrip(".")
ADVICE = (
  "Pass weights that fit, or change the model: --config.model.variant=init has"
  " their size, --config.init_skip=words keeps the rows of known words,"
  " --config.init_skip=head draws a new head, and --config.model.pooler=False"
  " leaves out the pooler."
)


@dataclasses.dataclass(frozen=True)
class MatchedWeights:
  """Weights that fit a model."""

  model: hf_names.Model
  tokenizer: Tokenizer
  # By role, without heads that `model` lacks; a pair may lack its generator.
  networks: Mapping[str, Network]
  left_out: Mapping[str, list[str]]  # arrays of these heads, by role
  skip: frozenset[str]  # names in `config.init_skip`
  task: task_lib.Task | None

  @property
  def location(self) -> str:
    """Where the weights are, for messages."""
    return " and ".join(x.location for x in self.networks.values())

  @functools.cached_property
  def names(self) -> dict[str, dict[str, str]]:
    """For each role, the names of the arrays to read by path in our tree."""
    return {
      role: loadable_names(network, self.model, role)
      for role, network in self.networks.items()
    }

  @functools.cached_property
  def missing(self) -> list[str]:
    """The paths of parameters that the weights lack."""
    paths = {path for table in self.names.values() for path in table}
    own = tuple(pretrain.OWN.values())  # made of the networks' embeddings
    shapes = hf_names.flat_shapes(self.model)
    return [x for x in shapes if x not in paths and not x.startswith(own)]

  def left_out_lines(self) -> list[str]:
    """Says which heads are left out, a line for each network."""
    lines = []
    for role, names in self.left_out.items():
      heads = dict.fromkeys(map(_head_of, names))
      if not heads:
        continue
      line = (
        "init: left out what this model lacks of"
        f" {self.networks[role].location}: {list_names(heads)}."
      )
      if _POOLER in heads and isinstance(self.model, pretrain.BertMlm):
        line += " To keep the pooler, set --config.model.pooler=True."
      lines.append(line)
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
  for network in networks.values():
    _check_tokenizer(network, tokenizer, skip)
    if network.thetas != first.thetas:
      raise InputError(
        f"init: the discriminator's rotary positions have {first.thetas}, but"
        f" the generator's have {network.thetas}. Pass two networks that were"
        " trained together, or only the discriminator."
      )
  stored_model = model
  if "words" in skip:
    stored_model = _with_rows_of(first, model)
  kept: dict[str, Network] = {}
  left_out: dict[str, list[str]] = {}
  for role, network in networks.items():
    if network.backbone != model.backbone:
      raise InputError(
        f"init: {network.location} has the backbone {network.backbone!r}, but"
        f" model.backbone={model.backbone!r}. Use the backbone of the weights:"
        f" --config.model.backbone={network.backbone}."
      )
    left_out[role] = _find_unused_heads(network, model, role, skip)
    names = [x for x in network.arrays.shapes if x not in left_out[role]]
    arrays = network.arrays.rename(dict(zip(names, names, strict=True)))
    kept[role] = dataclasses.replace(network, arrays=arrays)
    _check_network(kept[role], stored_model, role)
  return MatchedWeights(model, tokenizer, kept, left_out, skip, task)


def _find_unused_heads(
  network: Network, model: hf_names.Model, role: str, skip: frozenset[str]
) -> list[str]:
  """Returns the names of arrays outside of the encoder that a model lacks.

  The heads of ModernBERT's classes have the same names, and so have those of
  several tasks. There the class of the weights decides; a task continues all
  but the last layer of the head that filled masks.
  """
  table = network.names(model, role)
  is_modern = network.backbone == "modern"
  is_fine_tuned = isinstance(model, finetune.DownstreamModel)
  classes = {hf_names.architecture(model, role)}
  if not is_modern:
    classes.add("")  # an unknown one
  elif is_fine_tuned:
    classes.add(hf_names.MODERN_MASKED)
  is_other = network.architecture not in classes
  if "head" in skip or (is_other and (is_modern or is_fine_tuned)):
    heads = (TASK_HEAD, f"{role}_head/")
    table = {x: name for x, name in table.items() if not x.startswith(heads)}
  used = {*table.values()}
  if any(path.startswith(f"{role}_head/") for path in table):
    used.update(network.tied)

  encoder_paths = ("embeddings/", f"{role}/")
  inside = {
    _head_of(name) for x, name in table.items() if x.startswith(encoder_paths)
  }
  names = network.arrays.shapes
  return [x for x in names if _head_of(x) not in inside and x not in used]


def _head_of(name: str) -> str:
  """Returns the first part of an array's name, "classifier" or "electra"."""
  if name.startswith(hf_names.POOLER):
    return _POOLER
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


def _check_network(network: Network, model: hf_names.Model, role: str) -> None:
  """Refuses a network with other fields or arrays than the model's."""
  expected = hf_folder.model_config(model, role, pad=0)
  groups = [
    hf_config.field_mismatches(network.fields, expected),
    *_array_mismatches(network, model, role),
  ]
  lines = []
  for group in filter(None, groups):
    lines.append(group[0])
    if len(group) > 1:
      lines[-1] += f" (and {len(group) - 1:,} more of this kind)"
  if lines:
    listed = "\n  ".join(lines)
    raise InputError(
      f"init: {network.location} does not fit the model:\n  {listed}\n{ADVICE}"
    )


def loadable_names(
  network: Network, model: hf_names.Model, role: str
) -> dict[str, str]:
  """Returns the names of a network's arrays by path, without absent heads.

  A head is absent if the weights have none of its arrays. Many files hold only
  BERT's encoder, few hold the next-sentence classifier.
  """
  table = network.names(model, role)
  stored = [x for x, name in table.items() if name in network.arrays.shapes]
  heads = [f"{role}_head/", TASK_HEAD, f"{TASK_HEAD}output/"]
  if isinstance(model, finetune.DownstreamModel):
    heads.append("pooled/pooler/")
  else:
    heads.append("pooled/next_sentence/")
  absent = tuple(x for x in heads if not any(y.startswith(x) for y in stored))
  return {path: x for path, x in table.items() if not path.startswith(absent)}


def detect_task_head(network: Network) -> str:
  """Returns a name in `hf_names.TASK_HEADS`; "" if no head can be loaded."""
  for head, class_name in hf_names.TASK_CLASSES.items():
    modules = hf_names.task_head(head, network.backbone).values()
    # Of Hugging Face's files only; those of ModernBERT all have these names.
    names = {f"{name}.weight" for name in modules}
    is_class = network.architecture.endswith(class_name)
    if is_class or network.backbone != "modern":
      if names <= network.arrays.shapes.keys():
        return head
  return ""


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


def _check_tokenizer(
  network: Network, tokenizer: Tokenizer, skip: frozenset[str]
) -> None:
  """Refuses weights of another vocabulary, or of other normalized text."""
  saved = network.tokenizer
  is_bert = not saved.definition
  # Without a tokenizer config, only capitals in the vocabulary tell the case.
  is_case_known = network.lowercase is not None or not saved.lowercase
  if is_bert and is_case_known and saved.lowercase != tokenizer.lowercase:
    raise InputError(
      f"init: {network.location} was trained with lowercase={saved.lowercase},"
      f" but this run has data.lowercase={tokenizer.lowercase}. Set"
      f" --config.data.lowercase={saved.lowercase}."
    )
  if is_bert and network.strip_accents not in (None, tokenizer.strip_accents):
    accents = "strip" if network.strip_accents else "keep"
    raise InputError(
      f"init: {network.location} was trained with strip_accents="
      f"{network.strip_accents}, but this run has strip_accents="
      f"{tokenizer.strip_accents}. Set --config.data.accents={accents}."
    )
  if saved.vocab != tokenizer.vocab and "words" not in skip:
    raise InputError(
      f"init: '{network.vocabulary}' is not the run's vocabulary, so the rows"
      " of the word embeddings would stand for other words. Set"
      f" --config.data.vocab={network.vocabulary}, or copy the rows of known"
      " words: --config.init_skip=words."
    )


def _array_mismatches(
  network: Network, model: hf_names.Model, role: str
) -> list[list[str]]:
  """Returns a line for each array that differs, grouped by what differs."""
  table = loadable_names(network, model, role)
  params = hf_names.flat_shapes(model)

  def stored_shape(path: str) -> tuple[int, ...]:
    shape = params[path].shape
    if path.endswith("/kernel") and not network.is_ours:
      return (math.prod(shape[1:]), shape[0])
    return shape

  required = {name: stored_shape(path) for path, name in table.items()}
  tied = {n: stored_shape(x) for n, x in network.tied.items() if x in table}
  accepted = required | tied
  stored = network.arrays.shapes
  unknown: list[str] = []
  shapes_differ: list[str] = []
  types_differ: list[str] = []
  missing: list[str] = []
  for name in sorted({*required, *stored}):
    if name not in accepted:
      unknown.append(f"{name} {stored[name]} is not in the model")
    elif name not in stored:
      missing.append(f"{name} is missing, the model's is {accepted[name]}")
    elif stored[name] != accepted[name]:
      shapes = f"{stored[name]}, the model's is {accepted[name]}"
      shapes_differ.append(f"{name} is {shapes}")
    elif network.arrays.dtypes[name] not in FLOATS.values():
      dtype = network.arrays.dtypes[name]
      allowed = ", ".join(FLOATS.values())
      types_differ.append(f"{name} is of type {dtype}, not {allowed}")
  return [unknown, shapes_differ, types_differ, missing]
