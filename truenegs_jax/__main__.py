"""The command `truenegs`: runs a verb or describes configs."""

import importlib
import itertools
import signal
import sys

from truenegs_jax.runtime import errors

VERBS = {
  "main": "Runs a config: pre-trains, fine-tunes or measures a model.",
  "prepare": "Turns text into rows before training, also with Apache Beam.",
  "synonyms": "Shows synonyms, builds their tables, measures texts.",
  "report": "Shows how far runs are, and writes a page of them.",
  "export": "Writes a checkpoint in Hugging Face format.",
  "wordnet": "Downloads WordNet, unless it is on this machine.",
  "configs": "Lists the configs; with a name, describes its words and keys.",
}
MODULES = {  # of verbs, where they have another name
  "synonyms": "synonyms.__main__",
  "report": "report.__main__",
  "wordnet": "synonyms.wordnet",
}
LISTED = "\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items())
HELP = f"""\
Pre-training on true negatives: ELECTRA and BERT in JAX.

  truenegs wordnet
  truenegs main --config=electra_demo
  truenegs main --config=bert_own --config.data.sources='texts/*.txt'
  truenegs main --config=finetune_own --config.init=runs/electra_demo \\
    --config.finetune.train=train.csv --config.finetune.dev=dev.csv
  truenegs report runs/electra_demo runs/bert_own
  truenegs synonyms primary
  truenegs configs                  # lists all configs and their words
  truenegs configs electra_base:hc,continue my_config.py

Verbs, each with its own --help:
{LISTED}

Documentation: docs/index.md in the repository."""


def main() -> None:
  """Runs the command of a verb, or helps."""
  verb, *words = sys.argv[1:] or ["--help"]
  if verb in VERBS and verb != "configs":
    errors.start_command()  # before the imports that take time
    sys.argv = [verb, *words]
    module = MODULES.get(verb, verb)
    importlib.import_module(f"truenegs_jax.{module}").run_command()
    return
  signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for `truenegs configs | head`
  if {"-h", "--help"} & {verb, *words}:
    print(HELP)
  elif verb == "--version":
    print("truenegs_jax", importlib.import_module("truenegs_jax").__version__)
  elif verb == "configs":
    print(_describe(words).translate(errors.ESCAPES))
  else:
    print(f"{HELP}\n\nerror: There is no verb {verb!r}.", file=sys.stderr)
    sys.exit(2)


def _describe(texts: list[str]) -> str:
  from truenegs_jax.config import flags

  with flags.exit_on_errors():
    blocks = map(flags.render_config, texts)
    lines = itertools.chain(*blocks) if texts else flags.render_configs()
    return "\n".join(lines)


if __name__ == "__main__":
  main()
