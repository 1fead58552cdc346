"""The README.md of an exported model: what it is and how it was made."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.models import finetune, pretrain
from truenegs_jax.objectives import options
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.weights.formats import hf_names
from truenegs_jax.workdir import metrics_file

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
_RUN = """\
* Data: `{sources}`; the vocabulary {vocab}
* Training: {step:,} steps of {batch_size} rows of {length} tokens, seed {seed},
  from {start}
* Objective: {objective}
* Held-out rows: {held_out}
* Made by: {command}"""
_CONVERTED = "* Converted, not trained, by truenegs_jax from: `{origin}`"
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
_MADE_INTO = """

It was trained with a linear head, made into one of `{architecture}` here: that
gives the same answers but trains badly, so to train on, let truenegs_jax read
the linear head back (`--config.init=FOLDER --config.finetune.head=linear`), or
fine-tune from the start with `--config.finetune.head={head}`."""
_LOSSES = "mlm mlm_uncorrected mlm_hidden soft sentence detect auc".split()
_CORRECTED = {
  "corrected_of_slots": "of the masked slots",
  "corrected_of_mismatches": "of the predictions that miss the original",
  "corrected_rows": "of the rows in one slot or more",
}


@dataclasses.dataclass(frozen=True)
class About:
  """What the model card says of a run; `config` is the resolved one."""

  config: Mapping[str, Any]
  step: int
  held_out: Mapping[str, float] = dataclasses.field(default_factory=dict)
  command: str = ""


@dataclasses.dataclass(frozen=True)
class Conversion:
  """What it says of weights that were read and written; nothing was trained.

  Attributes:
    origin: where they are from.
    fresh: role -> what was drawn at random, by Hugging Face's names.
  """

  origin: str
  fresh: Mapping[str, str] = dataclasses.field(default_factory=dict)


def about_run(
  workdir: pathlib.Path, config: Mapping[str, Any], step: int
) -> About:
  """What a workdir's records say of a step, for its model cards."""
  held_out: dict[str, float] = {}
  for record in metrics_file.read_records(workdir):
    if (record["split"], record["step"]) == ("held_out", step):
      held_out = record
  command = ""
  results = workdir / "results.json"
  if results.exists():
    command = json.loads(results.read_text(encoding="utf-8"))["command"]
  figures = {
    name: held_out[name]
    for name in (*_LOSSES, *_CORRECTED)
    if held_out.get(name) is not None
  }
  return About(config, step, figures, command)


def text(
  params: Mapping[str, Any],
  model: pretrain.Model,
  role: str,
  tokenizer: Tokenizer,
  about: About | Conversion,
) -> str:
  """The card of one network of a model, in Markdown."""
  config, family = model.roles[role], hf_names.NETWORKS[role].family
  title, use, masks = _TITLES[role], _USES[role], role != "discriminator"
  source = _SOURCES[family]
  if isinstance(about, Conversion):
    made = _CONVERTED.format(origin=about.origin)
    if names := about.fresh.get(role):
      use, masks = f"{_TO_FINE_TUNE}\n\n{_FRESH.format(names=names)}", False
  else:
    made, source = _made(about), _METHOD + source
    title += ", pre-trained on true negatives"
    use += _POOLED if hf_names.has_pooled(model) else ""
  return _CARD.format(
    pipeline="fill-mask" if masks else "feature-extraction",
    family=family,
    title=title,
    use=use,
    architecture=hf_names.architecture(model, role),
    parameters=pretrain.parameter_count(pretrain.role_params(params, role)),
    layers=config.layers,
    width=config.width,
    max_positions=config.max_positions,
    vocab_size=config.vocab_size,
    case=_case(tokenizer),
    made=made,
    source=source,
  )


def task_text(
  params: Mapping[str, Any],
  model: finetune.Downstream,
  tokenizer: Tokenizer,
  task: task_lib.Task,
  made: str,
  *,
  trained_as: str,
) -> str:
  """The card of a fine-tuned model, in Markdown.

  Args:
    params, model: as they are written: of a head that transformers has.
    made: lines of a list, "* ...": the recipe, the score, the command.
    trained_as: the head that was trained.
  """
  config, family = model.config, hf_names.NETWORKS[model.role].family
  spans = task.kind == task_lib.SPANS
  architecture = hf_names.architecture(model, model.role)
  use = _TASK_USES[task.kind].format(
    labels=", ".join(f"`{label}`" for label in task.labels)
  )
  if trained_as != model.head:
    use += _MADE_INTO.format(architecture=architecture, head=model.head)
  return _CARD.format(
    pipeline="question-answering" if spans else "text-classification",
    family=family,
    title=f"{family.upper()}, fine-tuned on {task.title}",
    use=use,
    architecture=architecture,
    parameters=pretrain.parameter_count(params),
    layers=config.layers,
    width=config.width,
    max_positions=config.max_positions,
    vocab_size=config.vocab_size,
    case=_case(tokenizer),
    made=made,
    source=_SOURCES[family],
  )


def _made(about: About) -> str:
  """How a run came to these weights."""
  c, shown = ConfigDict(about.config), about.held_out
  losses = [f"{n} {shown[n]:.4f}" for n in _LOSSES if n in shown]
  corrected = [
    f"{shown[n]:.3%} {of}" for n, of in _CORRECTED.items() if n in shown
  ]
  held_out = ", ".join(losses) or "not evaluated at this step"
  if corrected:
    held_out += f"\n* Corrected there: {', '.join(corrected)}"
  skip = c.get("init_skip", "")
  return _RUN.format(
    sources=c.data.sources,
    vocab="was trained on it"
    if c.data.vocab == "train"
    else f"is `{c.data.vocab}`",
    step=about.step,
    batch_size=c.batch_size,
    length=c.length,
    seed=c.seed,
    start=(f"`{c.init}`" if c.init else "scratch")
    + (f", rows carried over for new {skip}" if skip else ""),
    objective=options.describe(
      c.objective,
      c.negatives.to_dict(),
      mask_prob=c.masking.prob,
      mask_style=c.masking.style,
      sampling_temperature=c.generator.temperature,
    ),
    held_out=held_out,
    command=f"`{about.command}`" if about.command else "truenegs_jax",
  )


def _case(tokenizer: Tokenizer) -> str:
  """What is done to a text before its words are looked up."""
  case = "text is lower-cased" if tokenizer.lowercase else "cased"
  accents = "stripped" if tokenizer.strip_accents else "kept"
  return f"{case}, accents are {accents}"
