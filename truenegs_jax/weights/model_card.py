"""Writes the model card (README.md) of an exported model: one page.

Cards name weights and texts without the folders of this machine.
"""

import dataclasses
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.models import finetune, pretrain
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

{sections}## Limits

* truenegs_jax filtered no text and measured no bias. Expect the errors,
  stereotypes and gaps of the text.
{limits}
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
    " discriminator",
    "feature-extraction",
    "The network to fine-tune. Without fine-tuning, it detects replaced tokens:"
    "\n`outputs.logits` is above 0 for them.",
  ),
  "generator": (
    " generator",
    "fill-mask",
    "The small network that fills masks. Fine-tune the discriminator instead.",
  ),
  "bert": ("", "fill-mask", "Fills masks, and is the network to fine-tune."),
  hf_names.MODERN_ENCODER: (
    " discriminator",
    "feature-extraction",
    "The network to fine-tune. The folder `detector` adds the head that detects"
    "\nreplaced tokens.",
  ),
  hf_names.DETECTOR_CLASS: (
    " detector",
    "token-classification",
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


@dataclasses.dataclass(frozen=True)
class ModelOrigin:
  """Where the weights of an export come from, without paths of this machine."""

  # Heading -> Markdown: training and evaluation.
  sections: Mapping[str, str] = dataclasses.field(default_factory=dict)
  limits: Sequence[str] = ()  # lines of a Markdown list
  recipe: str = ""  # of a training, for the title; "" if they were converted
  language: str = ""  # ISO 639-1, for the hub; "" if unknown
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
    use = _RANDOM_MODULES.format(names=names)
    pipeline = "feature-extraction"
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

  config = model.roles[role]
  family = hf_names.network_names(model, role).family
  sections = [f"## {name}\n\n{x}\n\n" for name, x in origin.sections.items()]
  metadata = huggingface_hub.ModelCardData(
    language=origin.language or None,
    license="unknown",
    library_name="transformers",
    pipeline_tag=pipeline,
    tags=[family, "truenegs_jax"],
  )
  return _CARD.format(
    metadata=metadata.to_yaml(),
    layers=config.layers,
    width=config.width,
    max_positions=config.max_positions,
    vocab_size=config.vocab_size,
    case="text is lower-cased" if tokenizer.lowercase else "cased",
    accents="stripped" if tokenizer.strip_accents else "kept",
    sections="".join(sections),
    limits="".join(f"* {line}\n" for line in origin.limits),
    version=importlib.import_module("truenegs_jax").__version__,
    jax_version=jax.__version__,
    **fields,
  )


def hide_folders(text: str) -> str:
  """Reduces paths that lead out of the working directory to their last part."""
  return OUTSIDE.sub("", text)
