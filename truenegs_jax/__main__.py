"""The command `truenegs`: runs a verb."""

import importlib
import sys

from truenegs_jax.config.keys import did_you_mean
from truenegs_jax.runtime import errors

VERBS = {
  "main": "Runs a config: pre-trains, fine-tunes or measures a model.",
  "prepare": "Turns text into rows before training, also with Apache Beam.",
  "synonyms": "Shows synonyms, builds their tables, measures texts.",
  "report": "Shows how far runs are, and writes a page of them.",
  "export": "Writes a checkpoint in Hugging Face format.",
  "wordnet": "Downloads WordNet, unless it is on this machine.",
}
MODULES = {
  "main": "main",
  "prepare": "pretrain.prepare_command",
  "synonyms": "synonyms.command",
  "report": "report.command",
  "export": "pretrain.export_command",
  "wordnet": "synonyms.wordnet",
}
OTHERS = {  # what to type for words that are no verbs
  "train": f"{errors.program()} main",
  "finetune": f"{errors.program()} main --config=finetune_own",
  "push": "hf upload OWNER/NAME FOLDER",
  "upload": "hf upload OWNER/NAME FOLDER",
}
LISTED = "\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items())
HELP = f"""\
Pre-training on true negatives: ELECTRA and BERT in JAX.

  truenegs wordnet
  truenegs main --config=demo
  truenegs main --config=own --config.data.sources='texts/*.txt'
  truenegs main --config=finetune_own --config.init=runs/demo \\
    --config.finetune.train=train.csv --config.finetune.dev=dev.csv
  truenegs report runs/demo runs/mine
  truenegs synonyms primary
  truenegs main --help              # lists all configs and their words
  truenegs main --config=electra_base:hc,continue --help

Verbs, each with its own --help:
{LISTED}

Documentation: docs/index.md in the repository."""


def main() -> None:
  """Runs the command of a verb, or helps."""
  verb, *words = sys.argv[1:] or ["--help"]
  if verb in VERBS:
    errors.start_command()  # before the imports that take time
    sys.argv = [verb, *words]
    importlib.import_module(f"truenegs_jax.{MODULES[verb]}").run_command()
  elif verb in ("-h", "--help"):
    print(HELP)
  elif verb == "--version":
    print("truenegs_jax", importlib.import_module("truenegs_jax").__version__)
  else:
    near = did_you_mean(verb, VERBS, f"{errors.program()} ")
    hint = f" Run {OTHERS[verb]}." if verb in OTHERS else near
    print(f"{HELP}\n\nerror: There is no verb {verb!r}.{hint}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
  main()
