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
import dataclasses
import json
import pathlib
import sys
from collections.abc import Sequence

import language
from absl import flags
from ml_collections import ConfigDict

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.config.tables import Study
from truenegs_jax.runtime import progress
from truenegs_jax.study import drive, plan, scores, tables
from truenegs_jax.study import run as study
from truenegs_jax.workdir.files import finite_or_null, save_json

CONFIG = pathlib.Path(__file__).with_name("config.py")
WORKDIR = flags.DEFINE_string("workdir", "runs/artificial", "Of the study.")
SYNONYMS = flags.DEFINE_float(
  "synonyms", 50.0, "Percentage of the words that have synonyms.", 0.0, 100.0
)
SEEDS = flags.DEFINE_integer("seeds", 10, "Languages and models.", 1)
FIRST = flags.DEFINE_integer("first_language", 0, "The first language.", 0)
ARMS = flags.DEFINE_string(
  "arms", "baseline=baseline; hc=hc", "See configs/study.py."
)
OVERRIDES = flags.DEFINE_string(
  "overrides", "", "KEY=VALUE of config.py, for all arms."
)
ROWS = flags.DEFINE_integer("rows", language.ROWS, "Lines to train on.", 1)


def make_config(workdir: pathlib.Path) -> ConfigDict:
  """Returns the config of a study whose arms read the language of their seed.

  `{language}` in arms is the folder of the language of a seed.
  """
  own = workdir.resolve() / "languages" / "seed-{seed}"
  lexicon = own / language.LEXICON.format(100, 100)
  keys = {
    "base": str(CONFIG),
    "overrides": f"data.sources='{own / language.TEXT}'"
    f" data.vocab='{own / language.VOCABULARY}'"
    f" negatives.sources='pairs path={lexicon}' {OVERRIDES.value}",
    "arms": ARMS.value.replace("{language}", str(own)),
    "seeds": SEEDS.value,
    "tasks": "",
  }
  changes = (f"--config.study.{key}={value}" for key, value in keys.items())
  return flags_lib.parse_config(["--config=study", *changes])


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


def measure(
  parts: Sequence[drive.Part], workdir: pathlib.Path
) -> list[scores.Score]:
  """Measures all models, those that were measured before from their files."""
  import measure_run  # imports jax

  measured = []
  for part in parts:
    path = workdir / part.key / "measures.json"
    if not path.exists():
      folder = workdir / "languages" / f"seed-{part.seed}"
      values = measure_run.measure_run(path.parent, folder)
      save_json(path, finite_or_null(values))
    measured += [
      scores.Score(part.arm, part.seed, f"step {step}", None, name, value)
      for step, values in json.loads(path.read_text()).items()
      for name, value in values.items()
      if value is not None
    ]
  return measured


def save_measures(measured: Sequence[scores.Score], path: pathlib.Path) -> None:
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
  with flags_lib.exit_on_errors():
    config = make_config(workdir)
    write_languages(workdir)
    if code := study.run(config, workdir, console):
      sys.exit(code)
    planned = plan.make_plan(Study.read(config.study), workdir)
    measured = measure(planned.parts, workdir)
    planned = dataclasses.replace(planned, scores=measured)
    for table in tables.make_tables(planned):
      console.print(tables.to_terminal(table))
    save_measures(measured, workdir / "measures.csv")


if __name__ == "__main__":
  flags_lib.run(main)
