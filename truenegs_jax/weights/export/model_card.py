"""Writes the model card (README.md) of an exported model."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.formats import hf_names

_CARD = """\
---
{metadata}
---

# {title}

{use}

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
* Architecture: {source}
* To check the files: `sha256sum -c SHA256SUMS`

## Training

{report}

## Limits and license

* No text was filtered and no bias measured. Expect the errors, stereotypes and
  gaps of the text.
{limits}* License: {license}. If unknown, the owner of the weights
  has to choose one, in the first lines of this file.
"""
_RANDOM_MODULES = """\
A network to fine-tune.

**NOT ALL WEIGHTS ARE TRAINED. THE ORIGINAL LACKS THESE, SO THEY ARE DRAWN AT
RANDOM: `{names}`.** Train them before you use their output."""
_NETWORKS = {  # title and use
  "discriminator": (
    "ELECTRA discriminator",
    "The network to fine-tune. Without fine-tuning, it detects replaced tokens:"
    "\n`outputs.logits` is above 0 for them.",
  ),
  "generator": (
    "ELECTRA generator",
    "The small network that fills masks. Fine-tune the discriminator instead.",
  ),
  "bert": ("BERT", "Fills masks, and is the network to fine-tune."),
}
_POOLER_NOTE = (
  " Pre-training does not change the pooler\nand the next-sentence classifier:"
  " they are as at the start of the run."
)
_SOURCES = {
  "electra": "Clark et al., ELECTRA, ICLR 2020",
  "bert": "Devlin et al., BERT, NAACL 2019",
}
_TASK_USES = {
  task_lib.CLASSES: "Classifies text: `outputs.logits` scores {labels}.",
  task_lib.SCORE: "Scores a text or a pair of texts: `outputs.logits`.",
  task_lib.SPANS: "Finds the answer to a question (first text) in a context:"
  " `outputs.start_logits`\nand `end_logits` score its first and last token.",
}
_LINEAR_NOTE = """

transformers has no class with this linear head; the code loads the encoder. The
logits are `outputs.last_hidden_state[:, 0] @ weight.T + bias`, with
`classifier.weight` and `classifier.bias` of `head.safetensors`."""


@dataclasses.dataclass(frozen=True)
class ModelOrigin:
  """Where the weights of an export come from, without paths of this machine.

  Attributes:
    report: training and evaluation, in Markdown.
    limits: lines of a Markdown list.
    recipe: how a run of this project trained them, for the title; "" if they
      were converted.
    metadata: for the hub: language, license, base_model, datasets.
    random_modules: role -> Hugging Face's names of modules drawn at random.
  """

  report: str
  limits: Sequence[str] = ()
  recipe: str = ""
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  random_modules: Mapping[str, str] = dataclasses.field(default_factory=dict)


def pretrained_card(
  params: Mapping[str, Any],
  model: pretrain.Model,
  role: str,
  tokenizer: Tokenizer,
  origin: ModelOrigin,
) -> str:
  """Returns the card of one network of a pre-trained model, in Markdown."""
  (title, use), fills_masks = _NETWORKS[role], role != "discriminator"
  if names := origin.random_modules.get(role):
    use, fills_masks = _RANDOM_MODULES.format(names=names), False
  if origin.recipe:
    title += f", {origin.recipe}"
    use += _POOLER_NOTE if hf_names.has_pooler(model) else ""
  return _fill_card(
    model,
    role,
    tokenizer,
    origin,
    pipeline="fill-mask" if fills_masks else "feature-extraction",
    title=title,
    use=use,
    parameters=pretrain.count_parameters(pretrain.select_params(params, role)),
  )


def task_card(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  tokenizer: Tokenizer,
  task: task_lib.Task,
  origin: ModelOrigin,
) -> str:
  """Returns the card of a fine-tuned model, in Markdown."""
  is_spans = task.kind == task_lib.SPANS
  pipeline = "question-answering" if is_spans else "text-classification"
  use = _TASK_USES[task.kind].format(
    labels=", ".join(f"`{label}`" for label in task.labels)
  )
  if model.head == "linear":
    use, pipeline = use + _LINEAR_NOTE, "feature-extraction"
  family = hf_names.NETWORKS[model.role].family
  return _fill_card(
    model,
    model.role,
    tokenizer,
    origin,
    pipeline=pipeline,
    title=f"{family.upper()}, fine-tuned on {task.title}",
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

  config, family = model.roles[role], hf_names.NETWORKS[role].family
  metadata: dict[str, Any] = {
    **{name: x or None for name, x in origin.metadata.items()},
    "license": origin.metadata.get("license") or "unknown",
    "library_name": "transformers",
    "pipeline_tag": pipeline,
    "tags": [family, "truenegs_jax"],
  }
  return _CARD.format(
    metadata=huggingface_hub.ModelCardData(**metadata).to_yaml(),
    architecture=hf_names.architecture(model, role),
    layers=config.layers,
    width=config.width,
    max_positions=config.max_positions,
    vocab_size=config.vocab_size,
    case="text is lower-cased" if tokenizer.lowercase else "cased",
    accents="stripped" if tokenizer.strip_accents else "kept",
    source=_SOURCES[family],
    report=origin.report,
    limits="".join(f"* {line}\n" for line in origin.limits),
    license=metadata["license"],
    **fields,
  )
