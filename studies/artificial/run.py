"""Compares recipes on artificial languages, another for each seed.

  python studies/artificial/run.py --workdir=runs/artificial-50 --synonyms=50

The languages are in WORKDIR/languages/seed-S, the models in
WORKDIR/runs/ARM/seed-S/pretrain, and the measures of each in a file
`measures.json` beside; WORKDIR/measures.csv has those of all. The same command
continues what was stopped.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import csv
import json
import pathlib
import sys
from collections.abc import Sequence

import language
from absl import flags
from ml_collections import ConfigDict

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.config.load import load_config
from truenegs_jax.config.tables import Study
from truenegs_jax.report.page import print_table
from truenegs_jax.runtime import progress
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study import run as study
from truenegs_jax.study import tables
from truenegs_jax.study.compare import Score
from truenegs_jax.study.parts import Part
from truenegs_jax.study.tables import Comparison
from truenegs_jax.workdir.files import save_json

CONFIG = pathlib.Path(__file__).with_name("config.py")
WORKDIR = flags.DEFINE_string("workdir", "runs/artificial", "Of the study.")
SYNONYMS = flags.DEFINE_float(
  "synonyms", 50.0, "Percentage of the words that have synonyms.", 0.0, 100.0
)
SEEDS = flags.DEFINE_integer("seeds", 10, "Languages and models.", 1)
FIRST = flags.DEFINE_integer("first_language", 0, "The first language.", 0)
STUDY = flags.DEFINE_string(
  "study",
  str(pathlib.Path(__file__).with_name("study.py")),
  "FILE.py[:WORD] with the arms and overrides.",
)
ROWS = flags.DEFINE_integer("rows", language.ROWS, "Lines to train on.", 1)


def make_config(workdir: pathlib.Path) -> ConfigDict:
  """Returns the config of a study whose arms read the language of their seed.

  `{language}` in texts of arms is the folder of the language of a seed.
  """
  own = workdir.resolve() / "languages" / "seed-{seed}"
  lexicon = own / language.LEXICON.format(100, 100)
  c = load_config(STUDY.value)
  arms = json.dumps(c.study.arms).replace("{language}", str(own))
  c.study.arms = json.loads(arms)
  c.study.base = str(CONFIG)
  c.study.seeds = SEEDS.value
  c.study.tasks = ""
  c.study.overrides = {
    **c.study.overrides,
    "data.sources": f"'{own / language.TEXT}'",
    "data.vocab": str(own / language.VOCABULARY),
    "negatives.sources": f"pairs path='{lexicon}'",
  }
  return c


def write_languages(workdir: pathlib.Path) -> None:
  """Writes the languages that are missing, one for each seed."""
  share = SYNONYMS.value / 100
  numbers = language.number_languages(
    FIRST.value, SEEDS.value, synonym_share=share
  )
  for seed, number in enumerate(numbers):
    folder = workdir / "languages" / f"seed-{seed}"
    if not folder.exists():
      drawn = language.draw_language(number, synonym_share=share)
      language.write_language(folder, drawn, seed=number, rows=ROWS.value)


def measure(parts: Sequence[Part], workdir: pathlib.Path) -> list[Score]:
  """Measures all models, those that were measured before from their files."""
  import measure_run  # imports jax

  measured = []
  for part in parts:
    path = workdir / part.key / "measures.json"
    if not path.exists():
      folder = workdir / "languages" / f"seed-{part.seed}"
      values = measure_run.measure_run(path.parent, folder)
      save_json(path, values)
    measured += [
      Score(part.arm, part.seed, f"step {step}", None, name, value)
      for step, values in json.loads(path.read_text()).items()
      for name, value in values.items()
      if value is not None
    ]
  return measured


def save_measures(measured: Sequence[Score], path: pathlib.Path) -> None:
  """Saves a line for each measure of each model, rounded to six decimals."""
  with path.open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["arm", "seed", "step", "measure", "value"])
    for x in measured:
      step = x.task.removeprefix("step ")
      writer.writerow([x.arm, x.seed, step, x.metric, round(x.value, 6)])


def main(argv: list[str]) -> None:
  """Writes languages, trains and measures; exits with the study's code."""
  del argv
  workdir = pathlib.Path(WORKDIR.value).expanduser()
  console = progress.make_console()
  config = make_config(workdir)
  write_languages(workdir)
  if code := study.run(config, workdir, console):
    sys.exit(code)
  read = Study.read(config.study.to_dict())
  parts = parts_lib.make_parts(read, workdir)
  measured = measure(parts, workdir)
  comparison = Comparison(
    scores=measured,
    arms=[*config.study.arms],
    seeds=range(SEEDS.value),
    tasks=(),
    finetune_seeds=(),
  )
  for table in tables.make_tables(comparison):
    print_table(table, console)
  save_measures(measured, workdir / "measures.csv")


if __name__ == "__main__":
  flags_lib.run(main)
