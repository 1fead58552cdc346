"""Writes the model card (README.md) of an exported model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks import user_task
from truenegs_jax.weights.formats import hf_names

_CARD = """\
---
{metadata}
---

# {title}

{use}

## How to use

```python
from transformers import AutoTokenizer, {architecture}

folder = "."  # the folder of this file, or the model's name on the hub
tokenizer = AutoTokenizer.from_pretrained(folder)
model = {architecture}.from_pretrained(folder)
outputs = model(**tokenizer("A sentence.", return_tensors="pt"))
```

{outputs}

## Model

* Size: {parameters:,} parameters, {layers} layers of {width} units,
  at most {max_positions} tokens
* Vocabulary: {vocab_size:,} entries, {case}
* To check the files: `sha256sum -c SHA256SUMS`

## Training

{training}

## Evaluation

{evaluation}

## Limits

{limits}
* No text was filtered and no bias measured. Expect the errors, stereotypes and
  gaps of the text.

## License

{license}

## References

{references}
"""
_RANDOM_MODULES = """\
A network to fine-tune.

**NOT ALL WEIGHTS ARE TRAINED. THE ORIGINAL LACKS THESE, SO THEY ARE DRAWN AT
RANDOM: `{names}`.** Train them before you use their output."""
_TITLES = {
  "discriminator": "ELECTRA discriminator",
  "generator": "ELECTRA generator",
  "bert": "BERT",
}
_USES = {
  "discriminator": "The network to fine-tune. Without fine-tuning, it detects"
  " replaced tokens.",
  "generator": "The small network that fills masks. Fine-tune the"
  " discriminator instead.",
  "bert": "Fills masks, and is the network to fine-tune.",
}
_FINETUNE = "* Fine-tune it on a task first; alone it answers nothing."
_LIMITS = {
  "discriminator": _FINETUNE,
  "generator": "* It is small, as it only served to train a discriminator.",
  "bert": _FINETUNE,
}
_POOLER_NOTE = (
  " Pre-training does not change the pooler\nand the next-sentence classifier:"
  " they are as at the start of the run."
)
PAPER = "Zhang et al., Language Model Pre-training on True Negatives, AAAI 2023"
_SOURCES = {
  "electra": "Clark et al., ELECTRA, ICLR 2020",
  "bert": "Devlin et al., BERT, NAACL 2019",
}
_OUTPUTS = {
  "discriminator": "`outputs.logits` has a value for each token, above 0 for"
  " replaced ones.",
  "generator": "`outputs.logits` scores each word of the vocabulary for each"
  " token.",
  "bert": "The output `logits` (or `prediction_logits`) scores each word of the"
  " vocabulary\nfor each token.",
  task_lib.CLASSES: "`outputs.logits` has a score for each class.",
  task_lib.SCORE: "`outputs.logits` is the score.",
  task_lib.SPANS: "Pass question and context to the tokenizer."
  " `outputs.start_logits` and\n`outputs.end_logits` score the first and the"
  " last token of the answer.",
}
_TASK_USES = {
  task_lib.CLASSES: "Classifies text. The classes are {labels}.",
  task_lib.SCORE: "Scores a text or a pair of texts.",
  task_lib.SPANS: "Finds the answer to a question in a text.",
}
_TASK_TITLES = {
  task_lib.CLASSES: "to classify text",
  task_lib.SCORE: "to score text",
}
_METRICS = {  # names on the hub, where they differ
  "matthews": "matthews_correlation",
  "spearman": "spearmanr",
  "pearson": "pearsonr",
  "em": "exact_match",
}
_LINEAR_OUTPUTS = """\
transformers has no class with this linear head; the code loads the encoder. The
logits are `outputs.last_hidden_state[:, 0] @ weight.T + bias`, with
`classifier.weight` and `classifier.bias` of `head.safetensors`."""
_UNKNOWN, _KNOWN = "unknown", "`{license}`, as the original states."
_NO_LICENSE = """\
Not stated. Only the owner of the weights can choose one: an identifier of the
hub in place of `unknown` in the first lines of this file."""


@dataclasses.dataclass(frozen=True)
class ModelOrigin:
  """Where the weights of an export come from, without paths of this machine.

  Attributes:
    training, evaluation, limits: of these sections; Markdown lists or tables.
    recipe: how a run of this project trained them, for the title; "" if they
      were converted.
    notices: about the license of texts and synonyms.
    references: papers besides that of the architecture.
    metadata: for the hub: language, license, base_model, datasets, metrics.
    random_modules: role -> Hugging Face's names of modules drawn at random.
  """

  training: str
  evaluation: str = "Not evaluated."
  limits: str = ""
  recipe: str = ""
  notices: str = ""
  references: tuple[str, ...] = ()
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
  title, use, fills_masks = _TITLES[role], _USES[role], role != "discriminator"
  if names := origin.random_modules.get(role):
    use, fills_masks = _RANDOM_MODULES.format(names=names), False
  if origin.recipe:
    title += f", {origin.recipe}"
    use += _POOLER_NOTE if hf_names.has_pooler(model) else ""
  metadata = dict(origin.metadata)
  if role != "discriminator":
    metadata.pop("metrics", None)  # of the discriminator
  return _fill_card(
    model,
    role,
    tokenizer,
    dataclasses.replace(
      origin, limits=f"{_LIMITS[role]}\n{origin.limits}", metadata=metadata
    ),
    pipeline="fill-mask" if fills_masks else "feature-extraction",
    title=title,
    use=use,
    outputs=_OUTPUTS[role],
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
  outputs = _OUTPUTS[task.kind]
  if model.head == "linear":
    outputs, pipeline = _LINEAR_OUTPUTS, "feature-extraction"
  goal = f"on {task.title}"
  if task.name == user_task.NAME:
    goal = _TASK_TITLES[task.kind]
  metrics = [_METRICS.get(name, name) for name in task.metrics]
  return _fill_card(
    model,
    model.role,
    tokenizer,
    dataclasses.replace(
      origin, metadata={**origin.metadata, "metrics": metrics}
    ),
    pipeline=pipeline,
    title=f"{hf_names.NETWORKS[model.role].family.upper()}, fine-tuned {goal}",
    use=_TASK_USES[task.kind].format(
      labels=", ".join(f"`{label}`" for label in task.labels)
    ),
    outputs=outputs,
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
  case = "text is lower-cased" if tokenizer.lowercase else "cased"
  accents = "stripped" if tokenizer.strip_accents else "kept"
  known = origin.metadata.get("license")
  license_text = _KNOWN.format(license=known) if known else _NO_LICENSE
  metadata: dict[str, Any] = {
    **{name: x or None for name, x in origin.metadata.items()},
    "license": known or _UNKNOWN,
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
    case=f"{case}, accents are {accents}",
    training=origin.training,
    evaluation=origin.evaluation,
    limits=origin.limits.strip(),
    license="\n\n".join(filter(None, (license_text, origin.notices))),
    references="\n".join(
      f"* {x}" for x in (*origin.references, _SOURCES[family])
    ),
    **fields,
  )
