"""The keys of each task: its own, and those of pre-training that it has too."""

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.config.keys import (
  LARGEST,
  Key,
  Section,
  choice,
  did_you_mean,
  flatten,
  free_choice,
  free_key,
  key,
)
from truenegs_jax.config.sections import SIZES, PretrainConfig
from truenegs_jax.runtime.errors import InputError, one_of


class Finetune(Section):
  """Fine-tuning. Names of data may change, as fingerprints are compared."""

  tasks: str = free_key(
    "",
    'Tasks, separated by commas: names of GLUE, such as "cola,rte"; or "squad"'
    ' or "own" alone.',
  )
  seeds: int = free_key(
    5, "Runs per task, with seeds c.seed, c.seed + 1, ...", low=1, high=1000
  )
  data: str = free_key(
    "", "Folder with the published files of the tasks, or hf:NAME."
  )
  train: str = free_key(
    "", 'Training file of a single task, or "hf:NAME split=S"; "" is in `data`.'
  )
  dev: str = free_key(
    "", 'Development file of a single task, as `train`; "" is in `data`.'
  )
  test: str = free_key(
    "", 'Test file of a single task, to answer; "" is in `data`, as `train`.'
  )
  rows: int = key(0, "Number of training rows, at most; 0 takes all.")
  epochs: float = key(
    0.0, "Passes over the training rows; 0 is the task's number.", high=1000
  )
  predict_test: bool = free_key(
    False, "True answers GLUE's test sets, and writes files for its server."
  )
  head_dropout: float = key(
    0.1, "Dropout rate before the output layer.", high=0.99
  )
  warmup: float = key(
    0.1,
    "Share of the steps, the first ones, with a growing learning rate.",
    high=0.9,
  )
  layer_decay: float = key(
    0.0,
    "Factor of the learning rate from one layer to the one below; 0 is the"
    " paper's for the size of the network, 0.8 or for large ones 0.9; 1 is the"
    " same rate for all layers.",
    high=1,
  )
  evals_per_epoch: int = key(
    0, "Scores of the dev set in an epoch; 0 is only at the end."
  )
  export: str = free_choice(
    ("all", "none"),
    'Models to export for Hugging Face: "all" runs\', or "none".',
  )
  against: str = free_key(
    "", 'Workdir of another fine-tuning to compare with; "" is none.'
  )
  stride: int = key(
    128,
    "Tokens from the start of a window to that of the next in SQuAD.",
    low=1,
  )
  text: str = key(
    "", 'Column of the text in your own files, or two: "FIRST,SECOND".'
  )
  label: str = key(
    "label", "Column of the class, score or tags in your own files."
  )
  kind: str = choice(
    ("classes", "score", "tags"),
    'Labels of your own task are "classes", numbers ("score"), or a tag for'
    ' each word ("tags").',
  )
  labels: str = key(
    "",
    'Classes of your own task in their order, such as "no,yes", or types of'
    ' entities, such as "person,place"; "" is those of the training file.',
  )
  metric: str = key(
    "",
    'Main score of your own task: "accuracy", "matthews" or "f1"; for numbers'
    ' "spearman" or "pearson"; for tags "f1" or "strict_f1"; "" is the first of'
    " them.",
  )


class Measured(Section):
  """The model of a task that measures."""

  run: str = key("", "Workdir of the run to measure. Set it, or `init`.")
  steps: str = key(
    "kept",
    'Checkpoints to measure: "kept" takes all, "last" the newest, and "100,200"'
    " those of these steps.",
  )


class Corrections(Measured):
  """Measuring corrections."""

  text: str = key(
    "",
    "Text whose lines are measured: files, folders, globs or hf:NAME, as in"
    " data.sources.",
  )
  length: int = key(
    0,
    "Largest number of tokens of a line; 0 takes `length` of the run, or with"
    " `init` that of this config.",
    low=0,
  )
  sequences: int = key(0, "Largest number of lines; 0 takes all.", low=0)
  sources: str = key(
    "auto",
    'Sources of synonyms, as in negatives.sources; "auto" takes those of the'
    " run, or else of the language.",
  )
  cases: int = key(10, "Number of corrections to print.", low=0)


class Blimp(Measured):
  """Scoring minimal pairs."""

  pairs: str = key(
    "",
    "Minimal pairs: a file of JSON lines with the fields of BLiMP, plain or"
    " compressed, a folder of them, or hf:NAME.",
  )
  rows: int = key(
    0, "Number of pairs of each paradigm, the first ones; 0 takes all."
  )
  hidden: str = choice(
    ("token", "word"),
    'What is hidden to score a token: "token" hides it alone; "word" also hides'
    " the later tokens of its word.",
  )
  network: str = key(
    "",
    'Network of an ELECTRA: "generator" predicts hidden tokens, "discriminator"'
    ' reads whole sentences; "" is the one that predicts hidden tokens.',
  )


class Robustness(Section):
  """Scoring on changed texts."""

  data: str = key(
    "",
    'The dev set: a file, a folder or hf:NAME. "" takes that of the'
    " fine-tuning.",
  )
  rows: int = key(
    300, "Number of questions drawn from the dev set; 0 takes all.", low=0
  )
  sets: str = key(
    "swap_synonyms,add_sentence",
    'Sets to make: the paper\'s "swap_synonyms" and "add_sentence". "" makes'
    " none.",
  )
  files: str = key(
    "",
    "Published sets to score, separated by commas: files or hf:NAME, with"
    " options config=, split= and name=.",
  )
  spacy_model: str = key(
    "en_core_web_sm",
    "Model of spaCy that gives tokens, tags and parses to the sets.",
  )
  neighbours: str = key(
    "",
    "File of word vectors, such as glove.6B.100d.txt, whose neighbours"
    ' add_sentence puts in place of words. "" changes fewer words.',
  )


class Study(Section):
  """A study of several recipes. Its dicts are set in config files in Python."""

  base: str = key(
    "electra_small",
    "Config of the pre-trainings, with the words that all arms have:"
    " NAME[:WORDS] of a packaged config or of a FILE.py.",
  )
  overrides: dict[str, Any] = key(
    {},
    "Dict of keys of the base config for all arms. {seed} in a text is replaced"
    " by the seed, as in arms.",
  )
  arms: dict[str, Any] = key(
    {name: {"words": name} for name in ("baseline", "hc", "sr", "hc+sr")},
    "Dict of the recipes to compare, the others with the first: each has a dict"
    ' of keys of the base config, in which "words" are words after its name.',
  )
  seeds: int = key(
    3,
    "Number of pre-trainings of each arm, with seeds from 0.",
    low=1,
    high=1000,
  )
  tasks: str = key(
    "cola,sst2,mrpc,stsb,qqp,mnli,qnli,rte,squad1",
    'Fine-tunings of each pre-training: tasks of GLUE, "squad1" or "own",'
    " separated by commas.",
  )
  finetune: dict[str, Any] = key({}, "Dict of keys of all fine-tunings.")
  finetune_seeds: int = key(
    3, "Number of runs of each task, with seeds from 0.", low=1, high=1000
  )
  corrections: dict[str, Any] = key(
    {},
    "Dict of keys of configs/corrections.py; without keys, corrections are not"
    " measured.",
  )
  robustness: dict[str, Any] = key(
    {},
    "Dict of keys of configs/robustness.py; without keys, robustness is not"
    " measured.",
  )


Table = dict[str, Key]

PRETRAIN: Table = PretrainConfig.list_keys()
# Not in fine-tuning.
OMITTED = "optim.warmup_steps", "optim.decay_steps", "optim.muon_lr"


def _derive(
  task: str, names: Iterable[str], own: Table, changes: Mapping[str, Any]
) -> Table:
  """Makes a task's table of keys of pre-training, changed, and its own."""
  table = {name: PRETRAIN[name] for name in names} | own
  for name, change in {"task": {"default": task}, **changes}.items():
    table[name] = dataclasses.replace(table[name], **change)
  return table


# Keys, and sections of keys, that measuring corrections does not read.
UNREAD = {
  *("optim", "checkpoint", "log", "eval"),
  *("steps", "minutes", "short_rows", "branch", "init_skip"),
  *("objective", "model.backbone"),  # those of the weights
  *("data.sources", "data.tokenizer", "data.vocab_size", "data.layout"),
  *("data.held_out", "data.rows", "data.workers"),
}

TABLES: dict[str, Table] = {
  "pretrain": PRETRAIN,
  "finetune": _derive(  # ELECTRA's recipe (Clark et al. 2020)
    "finetune",
    (
      *("task", "seed", "init", "init_skip", "dry_run"),
      *("batch_size", "length"),
      *("model.dropout", "model.dtype", "model.remat", "model.scan"),
      *("model.attention", "model.variant"),
      *(f"model.{name}" for name in SIZES),
      *("data.vocab", "data.lowercase", "data.accents"),
      *(x for x in PRETRAIN if x.startswith("optim.") and x not in OMITTED),
      *("mesh.preset", "mesh.model"),
      *("log.every_steps", "log.writers"),
    ),
    Finetune.list_keys("finetune."),
    {
      "seed": {"high": LARGEST - 1000, "may_change": True},  # seed + 1, ...
      "init_skip": {"may_change": False},
      "batch_size": {"default": 32, "meaning": "Number of rows of an update."},
      "length": {"meaning": "Number of tokens of a row, at most."},
      "model.variant": {"default": "init"},
      "data.vocab": {"default": "init"},
      "optim.schedule": {"choices": ("electra", "bert")},
      "optim.weight_decay": {"default": 0.0},
      "optim.lr": {
        "default": 0.0,
        "low": 0,
        "meaning": "Learning rate at its peak; 0 is the paper's for the size of"
        " the network: 3e-4 for small ones, 1e-4 for base, 5e-5 for large.",
      },
      "optim.max_skips": {"may_change": False},
    },
  ),
  "corrections": _derive(
    "corrections",
    (x for x in PRETRAIN if not {x, x.split(".")[0]} & UNREAD),
    Corrections.list_keys("corrections."),
    {
      "batch_size": {"default": 32, "meaning": "Number of lines of a batch."},
      "model.variant": {"default": "init"},
      "data.vocab": {"default": "init"},
    },
  ),
  "blimp": _derive(
    "blimp",
    (
      *("task", "init", "dry_run", "model.variant"),
      *("data.vocab", "data.lowercase", "data.accents"),
      *("mesh.preset", "mesh.model"),
    ),
    Blimp.list_keys("blimp."),
    {
      "blimp.steps": {"default": "last"},
      "model.variant": {"default": "init"},
      "data.vocab": {"default": "init"},
    },
  ),
  "robustness": _derive(
    "robustness",
    (
      *("task", "seed", "init", "dry_run", "batch_size", "length"),
      *("model.dtype", "model.attention", "mesh.preset", "mesh.model"),
    ),
    Robustness.list_keys("robustness."),
    {
      "batch_size": {"default": 32, "meaning": "Number of rows of a batch."},
      "length": {
        "default": 0,
        "low": 0,
        "meaning": "Number of tokens of a row, at most; 0 is that of the"
        " fine-tuning.",
      },
    },
  ),
  "study": _derive("study", ("task", "dry_run"), Study.list_keys("study."), {}),
}


# Keys whose values are dicts, which flags cannot set.
DICTS = {
  name
  for table in TABLES.values()
  for name, rule in table.items()
  if isinstance(rule.default, dict)
}


def make_config(task: str) -> ConfigDict:
  """Makes a config of a task's defaults."""
  config = ConfigDict()
  for name, rule in TABLES[task].items():
    section, _, last = name.rpartition(".")
    if section and section not in config:
      # Values that are dicts stay so: in their order, with dots in their keys.
      config[section] = ConfigDict(convert_dict=False)
    (config[section] if section else config)[last] = copy.deepcopy(rule.default)
  return config


def check_values(config: ConfigDict) -> None:
  """Raises InputError for a wrong type or range, or an unknown choice."""
  values = flatten(config.to_dict(), kept=DICTS)
  for name, rule in TABLES[config.task].items():
    rule.check(name, values[name])


def check_keys(path: str, config: ConfigDict) -> None:
  """Raises InputError if a key of the file is unknown or missing."""
  task = str(config.get("task"))
  values = flatten(config.to_dict(), kept=DICTS)
  one_of("task", task, TABLES)
  table = TABLES[task]
  for name in sorted(values.keys() - table.keys()):
    hint = did_you_mean(name, table, "")
    raise InputError(f"'{path}' sets {name}, which is no key.{hint}")
  for name in sorted(table.keys() - values.keys()):
    raise InputError(
      f"'{path}' has no value of {name}. Start from a packaged config of"
      f" task={task!r}."
    )
