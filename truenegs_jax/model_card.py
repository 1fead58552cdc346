"""The README.md of an exported model: what it is and how it was made."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax import tensor_names
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.train import plan, writers

_CARD = """\
---
library_name: transformers
pipeline_tag: {pipeline}
tags: [{family}, truenegs_jax]
---

# {title}, pre-trained on true negatives

{use}

    from transformers import AutoTokenizer, {architecture}
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = {architecture}.from_pretrained(FOLDER)

* Size: {parameters:,} parameters, {layers} layers of {width} units,
  vocabulary of {vocab_size:,}{case}, at most {max_positions} tokens
* Data: {sources}
* Training: {step:,} steps of {batch_size} rows of {length} tokens, seed {seed},
  from {start}
* Objective: {objective}
* Held-out rows: {held_out}
* Made by: {command}

Method: Zhang et al., Language Model Pre-training on True Negatives, AAAI 2023;
{source}.
"""
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
_POOLED = (
  " Pooler and next-sentence classifier\nare those that the run started with:"
  " nothing here trains them."
)
_SOURCES = {
  "electra": "Clark et al., ELECTRA, ICLR 2020",
  "bert": "Devlin et al., BERT, NAACL 2019",
}


@dataclasses.dataclass(frozen=True)
class About:
  """What the model card says of a run; `config` is the resolved one."""

  config: Mapping[str, Any]
  step: int
  held_out: Mapping[str, float] = dataclasses.field(default_factory=dict)
  command: str = ""


def about_run(
  workdir: pathlib.Path, config: Mapping[str, Any], step: int
) -> About:
  """What a workdir's records say of a step, for its model cards."""
  held_out: dict[str, float] = {}
  for record in writers.read_records(workdir):
    if (record["split"], record["step"]) == ("held_out", step):
      held_out = record
  command = ""
  results = workdir / "results.json"
  if results.exists():
    command = json.loads(results.read_text(encoding="utf-8"))["command"]
  names = "mlm mlm_uncorrected mlm_hidden soft sentence detect auc".split()
  figures = {
    name: held_out[name] for name in names if held_out.get(name) is not None
  }
  return About(config, step, figures, command)


def text(
  params: Mapping[str, Any],
  model: pretrain.Model,
  role: str,
  tokenizer: Tokenizer,
  about: About,
) -> str:
  """The card of one network of a model, in Markdown."""
  c, config = ConfigDict(about.config), model.roles[role]
  family = tensor_names.NETWORKS[role].family
  pooled = _POOLED if tensor_names.has_pooled(model) else ""
  figures = [f"{name} {x:.4f}" for name, x in about.held_out.items()]
  return _CARD.format(
    pipeline="feature-extraction" if role == "discriminator" else "fill-mask",
    family=family,
    title=_TITLES[role],
    use=_USES[role] + pooled,
    architecture=tensor_names.architecture(model, role),
    parameters=pretrain.parameter_count(pretrain.role_params(params, role)),
    layers=config.layers,
    width=config.width,
    vocab_size=config.vocab_size,
    case=" (lower case)" if tokenizer.lowercase else "",
    max_positions=config.max_positions,
    sources=c.data.sources,
    step=about.step,
    batch_size=c.batch_size,
    length=c.length,
    seed=c.seed,
    start=c.init or "scratch",
    objective=plan.objective(c),
    held_out=", ".join(figures) or "not evaluated at this step",
    command=f"`{about.command}`" if about.command else "truenegs_jax",
    source=_SOURCES[family],
  )
