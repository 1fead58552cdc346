"""Compares recipes: pre-trains each with several seeds, fine-tunes and scores.

  python -m truenegs_jax.main --config=configs/study.py --workdir=runs/study \\
    --config.study.base=electra_base:continue --config.study.tasks=mrpc,rte

The same command continues a study that was stopped, and runs only parts that
are missing: after adding an arm to `study.arms`, or with more seeds, only these
are run. `:runlocal` is a study of minutes on WordNet, to try the installation.

Several machines with a common folder share the work, each with its own
--config.study.shard=0/4 to 3/4.

The default is the comparison of the paper's tables 3 and 4 with its small
model: per seed and arm, 1.15e18 FLOP of pre-training (see electra_small.py).
One seed cannot tell a recipe from chance: 14 ELECTRA-smalls without corrections
differ by 1.8 points of GLUE.
"""

from ml_collections import ConfigDict

from truenegs_jax.configs.common_words import parse_words

ARMS = "baseline=baseline; hc=hc; sr=sr; hc+sr=hc+sr"


def get_config(arg: str = "") -> ConfigDict:
  """Configures 3 seeds of 4 recipes of ELECTRA-small, on GLUE and SQuAD."""
  words = parse_words(arg, {"runlocal": "A study of minutes on WordNet."})
  c = ConfigDict({"task": "study"})
  c.dry_run = False  # True: print what would run, and write nothing
  c.study = ConfigDict()
  # Config of the pre-trainings, with the words that all arms have: NAME[:WORDS]
  # of a packaged config or a FILE.py.
  c.study.base = "electra_small"
  # KEY=VALUE KEY=VALUE of its keys, for all arms; "{seed}" is replaced, as in
  # arms. Quotes keep spaces.
  c.study.overrides = ""
  # Recipes to compare, NAME=WORDS KEY=VALUE ...; NAME=WORDS: words of the base
  # config, and values of its keys: "baseline=baseline; a=hc masking.prob=0.25".
  # The others are compared with the first.
  c.study.arms = ARMS
  c.study.seeds = 3  # pre-trainings of each arm, with seeds 0, 1, ...
  # Fine-tunings of each pre-training: tasks of GLUE, "squad1" or "own".
  c.study.tasks = "cola,sst2,mrpc,stsb,qqp,mnli,qnli,rte,squad1"
  c.study.finetune = ""  # keys of the fine-tunings: "KEY=VALUE KEY=VALUE"
  c.study.finetune_seeds = 3  # runs of each task, with seeds 0, 1, ...
  # Keys of configs/corrections.py: "corrections.text=FILE"; "": not measured.
  c.study.corrections = ""
  # Keys of configs/robustness.py: "robustness.sets=typos"; "": not measured.
  c.study.robustness = ""
  c.study.shard = "0/1"  # i/n: Do job i of n, from 0, on several machines
  if words:
    c.study.base = "electra_demo:runlocal"
    c.study.arms = "baseline=baseline; hc=hc"
    c.study.seeds, c.study.tasks = 2, ""
    c.study.corrections = "corrections.text=wordnet corrections.sequences=64"
  return c
