"""The README.md of an exported model: what it is and how it was made."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.formats import hf_names

# Of the hub's metadata only what is known for sure: no licence, no language.
_CARD = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags: [{family}, truenegs_jax]
---

# {title}

{use}

```python
from transformers import AutoTokenizer, {architecture}

folder = "."  # where this file lies, or the model's name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {architecture}.from_pretrained(folder)
```

* Size: {parameters:,} parameters, {layers} layers of {width} units,
  at most {max_positions} tokens
* Vocabulary: {vocab_size:,} entries, {case}
{made}
* Whether the files are whole: `sha256sum -c SHA256SUMS`

{source}.
"""
_FRESH = """\
**NOT EVERYTHING HERE WAS TRAINED. DRAWN AT RANDOM, AS THE ORIGINAL HAS NONE OF
THEM: `{names}`.** Train these before anything is made of their output."""
_METHOD = (
  "Method: Zhang et al., Language Model Pre-training on True Negatives, AAAI"
  " 2023;\n"
)
_TITLES = {
  "discriminator": "ELECTRA discriminator",
  "generator": "ELECTRA generator",
  "bert": "BERT",
}
_USES = {
  "discriminator": "The network to fine-tune. As it is, it tells replaced"
  " tokens from original ones\n(a positive logit means replaced).",
  "generator": "The small network that fills masks; its partner is the"
  " discriminator.",
  "bert": "Fills masks, and is the network to fine-tune.",
}
_TO_FINE_TUNE = "A network to fine-tune."
_POOLED = (
  " Pooler and next-sentence classifier\nare those that the run started with:"
  " nothing here trains them."
)
_SOURCES = {
  "electra": "Clark et al., ELECTRA, ICLR 2020",
  "bert": "Devlin et al., BERT, NAACL 2019",
}
_TASK_USES = {
  task_lib.CLASSES: "Tells classes of text apart: {labels}.",
  task_lib.SCORE: "Gives a text or a pair of them a score, its one logit.",
  task_lib.SPANS: "Finds the answer to a question in a text.",
}
# Of a head that transformers does not have.
_LINEAR = """

This is its encoder; the head is linear, for which transformers has no class:
`model(**inputs).last_hidden_state[:, 0] @ weight.T + bias` gives the logits,
with `classifier.weight` and `classifier.bias` of `head.safetensors`."""


@dataclasses.dataclass(frozen=True)
class ModelOrigin:
  """How the weights of an export came about.

  Attributes:
    made: lines of a list, "* ...".
    trained: pre-trained here, on true negatives; else they were converted.
    fresh: role -> what was drawn at random, by Hugging Face's names.
  """

  details: str
  trained: bool
  random_parts: Mapping[str, str] = dataclasses.field(default_factory=dict)


def pretrained_card(
  params: Mapping[str, Any],
  model: pretrain.Model,
  role: str,
  tokenizer: Tokenizer,
  origin: ModelOrigin,
) -> str:
  """The card of one network of a model, in Markdown."""
  config, family = model.roles[role], hf_names.NETWORKS[role].family
  title, use, masks = _TITLES[role], _USES[role], role != "discriminator"
  source = _SOURCES[family]
  if names := origin.random_parts.get(role):
    use, masks = f"{_TO_FINE_TUNE}\n\n{_FRESH.format(names=names)}", False
  if origin.trained:
    source = _METHOD + source
    title += ", pre-trained on true negatives"
    use += _POOLED if hf_names.has_pooler(model) else ""
  return _CARD.format(
    pipeline="fill-mask" if masks else "feature-extraction",
    family=family,
    title=title,
    use=use,
    architecture=hf_names.architecture(model, role),
    parameters=pretrain.count_parameters(pretrain.select_params(params, role)),
    layers=config.layers,
    width=config.width,
    max_positions=config.max_positions,
    vocab_size=config.vocab_size,
    case=_case(tokenizer),
    made=origin.details,
    source=source,
  )


def task_card(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  tokenizer: Tokenizer,
  task: task_lib.Task,
  made: str,
) -> str:
  """The card of a fine-tuned model, in Markdown.

  Args:
    made: lines of a list, "* ...": the recipe, the score, the command.
  """
  config, family = model.config, hf_names.NETWORKS[model.role].family
  spans = task.kind == task_lib.SPANS
  architecture = hf_names.architecture(model, model.role)
  use = _TASK_USES[task.kind].format(
    labels=", ".join(f"`{label}`" for label in task.labels)
  )
  pipeline = "question-answering" if spans else "text-classification"
  if model.head == "linear":
    use, pipeline = use + _LINEAR, "feature-extraction"
  return _CARD.format(
    pipeline=pipeline,
    family=family,
    title=f"{family.upper()}, fine-tuned on {task.title}",
    use=use,
    architecture=architecture,
    parameters=pretrain.count_parameters(params),
    layers=config.layers,
    width=config.width,
    max_positions=config.max_positions,
    vocab_size=config.vocab_size,
    case=_case(tokenizer),
    made=made,
    source=_SOURCES[family],
  )


def _case(tokenizer: Tokenizer) -> str:
  """Says how text is normalized before its words are looked up."""
  case = "text is lower-cased" if tokenizer.lowercase else "cased"
  accents = "stripped" if tokenizer.strip_accents else "kept"
  return f"{case}, accents are {accents}"
