"""Writes the model card (README.md) of an exported model.

Cards name weights, texts and commands without the folders of this machine.
"""

import contextlib
import dataclasses
import importlib
import os
import pathlib
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.runtime.files import read_file
from truenegs_jax.runtime.paths import is_hub_name, open_path
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights import hf_names

CARD = "README.md"
_CARD = """\
---
{metadata}
---

# {title}

{use}

## How to use it

```python
from transformers import AutoTokenizer, {architecture}

folder = "."  # the folder of this file, or the model's name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {architecture}.from_pretrained(folder)
outputs = model(**tokenizer("A sentence.", return_tensors="pt"))
```

* Size: {parameters:,} parameters, {layers} layers of {width} units,
  at most {max_positions} tokens
* Vocabulary: {vocab_size:,} entries, {case}, accents are {accents}
* To check the files: `sha256sum -c SHA256SUMS`

{sections}## Limits and biases

* truenegs_jax filtered no text and measured no bias. Expect the errors,
  stereotypes and gaps of the text.
{limits}
## Versions

Written by truenegs_jax {version} with jax {jax_version}, for transformers 4.57
and 5.
"""
_RANDOM_MODULES = """\
A network to fine-tune.

**NOT ALL WEIGHTS ARE TRAINED. THE ORIGINAL LACKS THESE, SO THEY ARE DRAWN AT
RANDOM: `{names}`.** Train them before you use their output."""
_FAMILIES = {"electra": "ELECTRA", "bert": "BERT", "modernbert": "ModernBERT"}
_NETWORKS = {  # by role or class: title after the family, pipeline and use
  "discriminator": (
    *(" discriminator", "feature-extraction"),
    "The network to fine-tune. Without fine-tuning, it detects replaced tokens:"
    "\n`outputs.logits` is above 0 for them.",
  ),
  "generator": (
    *(" generator", "fill-mask"),
    "The small network that fills masks. Fine-tune the discriminator instead.",
  ),
  "bert": ("", "fill-mask", "Fills masks, and is the network to fine-tune."),
  hf_names.MODERN_ENCODER: (
    *(" discriminator", "feature-extraction"),
    "The network to fine-tune. The folder `detector` adds the head that detects"
    "\nreplaced tokens.",
  ),
  hf_names.DETECTOR_CLASS: (
    *(" detector", "token-classification"),
    "Detects replaced tokens, with the probability"
    " `outputs.logits.softmax(-1)[..., 1]`.\n\n**To fine-tune, use the folder"
    " above.** The names of this head equal those of a\nclassifier of texts, so"
    " its two labels would load in silence as one.",
  ),
}
_TASK_USES = {
  task_lib.CLASSES: "Classifies text: `outputs.logits` scores {labels}.",
  task_lib.SCORE: "Scores a text or a pair of texts: `outputs.logits`.",
  task_lib.SPANS: "Finds the answer to a question (first text) in a context:"
  " `outputs.start_logits`\nand `end_logits` score its first and last token.",
}
# A path from the root, a home, a parent folder or a bucket, without its last
# part.
OUTSIDE = re.compile(
  r"(?<![^\s=,|&:'\"(\[])((hf|gs|s3):)?(~[^/]*|\.\.)?/([^=,|&]*/)?"
  r"(?=[^\s=,|&])"
)
ROLE_FOLDERS = ("", "discriminator", "bert")


@dataclasses.dataclass(frozen=True)
class ModelOrigin:
  """Where the weights of an export come from, without paths of this machine."""

  # Heading -> Markdown: data, training, evaluation and citation.
  sections: Mapping[str, str] = dataclasses.field(default_factory=dict)
  limits: Sequence[str] = ()  # lines of a Markdown list
  recipe: str = ""  # of a training, for the title; "" if they were converted
  # For the hub, arguments of `huggingface_hub.ModelCardData`.
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Role -> Hugging Face's names of modules drawn at random.
  random_modules: Mapping[str, str] = dataclasses.field(default_factory=dict)


UNKNOWN = ModelOrigin()


def pretrained_card(
  params: Mapping[str, Any],
  model: pretrain.Model,
  role: str,
  tokenizer: Tokenizer,
  origin: ModelOrigin,
  class_name: str,
) -> str:
  """Returns the card of one network of a pre-trained model, in Markdown."""
  title, pipeline, use = _NETWORKS.get(class_name) or _NETWORKS[role]
  selected = pretrain.select_params(params, role)
  if class_name == hf_names.MODERN_ENCODER:
    del selected[f"{role}_head"]
  elif names := origin.random_modules.get(role):
    use, pipeline = _RANDOM_MODULES.format(names=names), "feature-extraction"
  title = _FAMILIES[hf_names.network_names(model, role).family] + title
  if origin.recipe:
    title += f", {origin.recipe}"
  return _fill_card(
    model,
    role,
    tokenizer,
    origin,
    architecture=class_name,
    pipeline=pipeline,
    title=title,
    use=use,
    parameters=pretrain.count_parameters(selected),
  )


def task_card(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  tokenizer: Tokenizer,
  task: task_lib.Task,
  origin: ModelOrigin,
) -> str:
  """Returns the card of a fine-tuned model, in Markdown."""
  # On one line without a backtick, a label of a file stays code, never markup.
  labels = (" ".join(x.split()).replace("`", "'") for x in task.labels)
  listed = ", ".join(f"`{label}`" for label in labels)
  use = _TASK_USES[task.kind].format(labels=listed)
  family = _FAMILIES[hf_names.network_names(model, model.role).family]
  is_span = task.kind == task_lib.SPANS
  return _fill_card(
    model,
    model.role,
    tokenizer,
    origin,
    pipeline="question-answering" if is_span else "text-classification",
    architecture=hf_names.architecture(model, model.role),
    title=f"{family}, fine-tuned on {task.title}",
    use=use,
    parameters=pretrain.count_parameters(params),
  )


def _fill_card(
  model: hf_names.Model,
  role: str,
  tokenizer: Tokenizer,
  origin: ModelOrigin,
  *,
  pipeline: str,
  **fields: str | int,
) -> str:
  import huggingface_hub  # slow to import

  config, family = model.roles[role], hf_names.network_names(model, role).family
  metadata: dict[str, Any] = {
    **{name: x or None for name, x in origin.metadata.items()},
    "license": origin.metadata.get("license") or "unknown",
    "library_name": "transformers",
    "pipeline_tag": pipeline,
    "tags": [family, "truenegs_jax"],
  }
  return _CARD.format(
    metadata=huggingface_hub.ModelCardData(**metadata).to_yaml(),
    layers=config.layers,
    width=config.width,
    max_positions=config.max_positions,
    vocab_size=config.vocab_size,
    case="text is lower-cased" if tokenizer.lowercase else "cased",
    accents="stripped" if tokenizer.strip_accents else "kept",
    sections="".join(
      f"## {heading}\n\n{text}\n\n" for heading, text in origin.sections.items()
    ),
    limits="".join(f"* {line}\n" for line in origin.limits),
    version=importlib.import_module("truenegs_jax").__version__,
    jax_version=jax.__version__,
    **fields,
  )


def hide_folders(text: str) -> str:
  """Reduces paths that lead out of the working directory to their last part."""
  return OUTSIDE.sub("", text)


def hide_in_command(command: str) -> str:
  """Hides folders in a shell command, --workdir and where truenegs is."""
  words = re.sub(r"^.*?\btruenegs(_jax)? ", "truenegs ", command)
  kept = [x for x in shlex.split(words) if not x.startswith("--workdir=")]
  return shlex.join(map(hide_folders, kept))


def find_datasets(text: str) -> list[str]:
  """Returns the hub's data sets among the hf:NAME of a config value."""
  names = re.findall(r"\bhf:([^\s,:'\"]+)", text)
  return [x for x in names if is_hub_name(x) and not os.path.exists(x)]


def find_models(init: str) -> list[str]:
  """Returns the models in the hub's cache that `config.init` names."""
  from huggingface_hub import constants

  cache = pathlib.Path(constants.HF_HUB_CACHE)
  names = [x.strip().partition("@")[0] for x in init.split(",")]
  folders = {x: cache / f"models--{x.replace('/', '--')}" for x in names}
  return [x for x in names if folders[x].exists() and not os.path.exists(x)]


def describe_base(init: str) -> dict[str, Any]:
  """Returns the metadata of weights that were trained further."""
  names = find_models(init)
  relation = {"base_model_relation": "finetune"} if names else {}
  return {"base_model": names, **relation}


def read_metadata(init: str) -> dict[str, Any]:
  """Returns language and license that the card of weights names.

  The card is in a folder, or in the hub's cache after a download.
  """
  import huggingface_hub  # slow to import
  import yaml

  name = init.partition(",")[0].strip()
  folder = open_path("init", name)
  paths = [folder / role / "README.md" for role in ROLE_FOLDERS if init]
  repo, _, revision = name.partition("@")
  if is_hub_name(repo):
    cached = huggingface_hub.try_to_load_from_cache(
      repo, "README.md", revision=revision or None
    )
    paths += [pathlib.Path(cached)] if isinstance(cached, str) else []
  for path in paths:
    with contextlib.suppress(
      OSError, ValueError, RecursionError, yaml.YAMLError
    ):
      with tempfile.NamedTemporaryFile() as file:  # `path` may be in a bucket
        file.write(read_file(path))
        file.flush()
        metadata = huggingface_hub.metadata_load(file.name) or {}
      return {name: metadata.get(name) for name in ("language", "license")}
  return {}
