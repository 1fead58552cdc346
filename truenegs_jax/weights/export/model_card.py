"""Writes the model card (README.md) of an exported model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.models.encoder import EncoderConfig
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.formats import hf_names

# The licence is left out of the metadata: it is not known.
_CARD = """\
---
{language}library_name: transformers
pipeline_tag: {pipeline}
tags: [{family}, truenegs_jax]
---

# {title}

{use}

```python
from transformers import AutoTokenizer, {architecture}

folder = "."  # the folder of this file, or the model's name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {architecture}.from_pretrained(folder)
```

* Size: {parameters:,} parameters, {layers} layers of {width} units,
  at most {max_positions} tokens
* Vocabulary: {vocab_size:,} entries, {case}
{details}
* To check the files: `sha256sum -c SHA256SUMS`

{source}.
"""
_RANDOM_MODULES = """\
A network to fine-tune.

**NOT ALL WEIGHTS ARE TRAINED. THE ORIGINAL LACKS THESE, SO THEY ARE DRAWN AT
RANDOM: `{names}`.** Train them before you use their output."""
_METHOD = """\
Method: Zhang et al., Language Model Pre-training on True Negatives, AAAI 2023;
"""
_TITLES = {
  "discriminator": "ELECTRA discriminator",
  "generator": "ELECTRA generator",
  "bert": "BERT",
}
_USES = {
  "discriminator": "The network to fine-tune. Without fine-tuning, it detects"
  " replaced tokens\n(a positive logit means replaced).",
  "generator": "The small network that fills masks. Fine-tune the"
  " discriminator instead.",
  "bert": "Fills masks, and is the network to fine-tune.",
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
  task_lib.CLASSES: "Classifies text. The classes are {labels}.",
  task_lib.SCORE: "Scores a text or a pair of texts; the logit is the score.",
  task_lib.SPANS: "Finds the answer to a question in a text.",
}
_LINEAR_NOTE = """

The code below loads the encoder. transformers has no class with this linear
head. Its logits are
`model(**inputs).last_hidden_state[:, 0] @ weight.T + bias`, with
`classifier.weight` and `classifier.bias` of `head.safetensors`."""


@dataclasses.dataclass(frozen=True)
class ModelOrigin:
  """Where the weights of an export come from.

  Attributes:
    details: lines of a Markdown list, "* ...".
    trained: whether a run of this project trained them; else they were
      converted.
    random_modules: role -> Hugging Face's names of modules drawn at random.
    language: of the text, a code of ISO 639-1; "" if it is not known.
  """

  details: str
  trained: bool
  random_modules: Mapping[str, str] = dataclasses.field(default_factory=dict)
  language: str = ""


def pretrained_card(
  params: Mapping[str, Any],
  model: pretrain.Model,
  role: str,
  tokenizer: Tokenizer,
  origin: ModelOrigin,
) -> str:
  """Returns the card of one network of a pre-trained model, in Markdown."""
  config, family = model.roles[role], hf_names.NETWORKS[role].family
  title, use, fills_masks = _TITLES[role], _USES[role], role != "discriminator"
  source = _SOURCES[family]
  if names := origin.random_modules.get(role):
    use, fills_masks = _RANDOM_MODULES.format(names=names), False
  if origin.trained:
    source = _METHOD + source
    title += ", pre-trained on true negatives"
    use += _POOLER_NOTE if hf_names.has_pooler(model) else ""
  return _fill_card(
    config,
    tokenizer,
    pipeline="fill-mask" if fills_masks else "feature-extraction",
    family=family,
    title=title,
    use=use,
    architecture=hf_names.architecture(model, role),
    parameters=pretrain.count_parameters(pretrain.select_params(params, role)),
    details=origin.details,
    source=source,
    language=origin.language and f'language: "{origin.language}"\n',
  )


def task_card(
  params: Mapping[str, Any],
  model: finetune.DownstreamModel,
  tokenizer: Tokenizer,
  task: task_lib.Task,
  details: str,
) -> str:
  """Returns the card of a fine-tuned model, in Markdown.

  Args:
    details: lines of a Markdown list, "* ...": recipe, score, command.
  """
  family = hf_names.NETWORKS[model.role].family
  is_spans = task.kind == task_lib.SPANS
  use = _TASK_USES[task.kind].format(
    labels=", ".join(f"`{label}`" for label in task.labels)
  )
  pipeline = "question-answering" if is_spans else "text-classification"
  if model.head == "linear":
    use, pipeline = use + _LINEAR_NOTE, "feature-extraction"
  return _fill_card(
    model.config,
    tokenizer,
    pipeline=pipeline,
    family=family,
    title=f"{family.upper()}, fine-tuned on {task.title}",
    use=use,
    architecture=hf_names.architecture(model, model.role),
    parameters=pretrain.count_parameters(params),
    details=details,
    source=_SOURCES[family],
    language="",
  )


def _fill_card(
  config: EncoderConfig, tokenizer: Tokenizer, **fields: str | int
) -> str:
  case = "text is lower-cased" if tokenizer.lowercase else "cased"
  accents = "stripped" if tokenizer.strip_accents else "kept"
  return _CARD.format(
    layers=config.layers,
    width=config.width,
    max_positions=config.max_positions,
    vocab_size=config.vocab_size,
    case=f"{case}, accents are {accents}",
    **fields,
  )
