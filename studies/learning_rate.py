"""Compares learning rates by short pre-trainings, one after the other.

  python studies/learning_rate.py --config=own:baseline \\
    --config.data.sources='texts/*.txt' --steps=1000 \\
    --rates=3e-4,1e-3,3e-3,1e-2 --workdir=runs/rates

Other flags --config.KEY=VALUE are passed on. Each run has the whole schedule of
the config: a tenth of its steps is warm-up, and at the end the rate falls to 0
("wsd": in the last fifth). The same command keeps finished runs and resumes
others, and may have other rates. Writes rates.csv and rates.svg into the
workdir; needs matplotlib.
"""

import argparse
import csv
import dataclasses
import json
import math
import pathlib
import re
import sys
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console

from truenegs_jax.config.tables import Study
from truenegs_jax.pretrain.evaluate import YES
from truenegs_jax.report.page import Table, print_table
from truenegs_jax.runtime import errors
from truenegs_jax.study import parts as parts_lib
from truenegs_jax.study.parts import Part, State
from truenegs_jax.workdir import files
from truenegs_jax.workdir.metrics_file import read_records

Row = dict[str, Any]  # of rates.csv; shorter for a run without results


def make_study(
  config: str, rates: list[float], steps: int, keys: dict[str, str]
) -> Study:
  """Makes a study with an arm for each rate; `keys` replace its own values."""
  overrides = {
    "steps": steps,
    "optim.warmup_steps": steps // 10,
    "optim.decay_steps": steps // 5,
    "log.every_steps": max(steps // 50, 1),
    "eval.every_steps": steps,
    "checkpoint.every_steps": steps,
    "checkpoint.keep_percent": (100.0,),
    **keys,
  }
  arms = {f"{rate:g}": {"optim.lr": rate} for rate in rates}
  return Study(base=config, overrides=overrides, arms=arms, seeds=1, tasks="")


def read_row(part: Part, root: pathlib.Path, state: State) -> Row:
  """Reads the results of a run; `learned` says whether it beats unigrams."""
  row: Row = {"run": root.name, "rate": float(part.arm), "state": str(state)}
  if state != State.DONE:
    return row
  folder = root / part.key
  results = json.loads((folder / files.RESULTS).read_text())
  scores = results["verdict"]["scores"]
  train = [x for x in read_records(folder) if x["split"] == "train"]
  norms = [x["grad_norm"] or math.inf for x in train[len(train) // 10 :]]
  return row | {
    "mlm": round(scores["mlm"]["value"], 4),
    "mlm_hidden": round(scores["mlm_hidden"]["value"], 4),
    "unigram": round(scores["mlm_hidden"]["guess"], 4),
    "grad_norm": round(max(norms), 4),  # the largest after the warm-up
    "learned": scores["mlm"]["answer"] == YES,
    "learned_context": scores["mlm_hidden"]["answer"] == YES,
  }


def judge(rows: list[Row]) -> str:
  """Says which rate is best, and the highest that is stable."""
  if not any("learned" in row for row in rows):
    return "No run has results yet. Run the same command again."
  stable = [row for row in rows if row.get("learned")]
  if not stable:
    return "No run has learned: lower --rates=..., or raise --steps=NUMBER."
  best = min(stable, key=lambda row: row["mlm_hidden"])
  lines = [f"best {best['rate']:g}, highest stable {stable[-1]['rate']:g}"]
  if best in (rows[0], rows[-1]):
    lines.append("The best is the last on its side: add rates beyond it.")
  if not best["learned_context"]:
    lines.append(
      "No run has learned from context (its mlm_hidden is not clearly below the"
      f" unigram entropy, {best['unigram']:.3f}), so a longer run may have"
      " another best rate. Raise --steps=NUMBER with another --workdir."
    )
  return "\n".join(lines)


def show(rows: list[Row], workdir: pathlib.Path) -> None:
  """Prints the table, and writes rates.csv and rates.svg."""
  texts = []
  for row in rows:
    text = {"rate": f"{row['rate']:g}"}
    for name in ("mlm", "mlm_hidden", "grad_norm"):
      text[name] = f"{row[name]:.3f}" if name in row else row["state"]
    texts.append(text)
  print_table(Table("Held-out losses by learning rate", texts), Console())
  with (workdir / "rates.csv").open("w", newline="") as file:
    writer = csv.DictWriter(file, max(rows, key=len), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
  done = [row for row in rows if "mlm" in row]
  figure = Figure(figsize=(4.5, 3), layout="constrained")
  axes = figure.subplots()
  for name in ("mlm", "mlm_hidden", "unigram"):
    axes.plot([x["rate"] for x in done], [x[name] for x in done], label=name)
  axes.set(xscale="log", xlabel="optim.lr", ylabel="held-out loss (nats)")
  axes.legend()
  figure.savefig(workdir / "rates.svg")


def read_rates(text: str) -> list[float]:
  """Reads numbers separated by commas, in ascending order."""
  return sorted(map(float, text.split(",")))


def main() -> int:
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0], allow_abbrev=False
  )
  parser.add_argument("--config", required=True)
  parser.add_argument("--rates", type=read_rates, default="3e-4,1e-3,3e-3,1e-2")
  parser.add_argument("--steps", type=int, default=1000)
  parser.add_argument("--workdir", type=pathlib.Path, default="runs/rates")
  flags, others = parser.parse_known_args()
  if wrong := [x for x in others if not re.match(r"--config\.[^=]+=", x)]:
    parser.error(f"{wrong[0]!r} is not --config.KEY=VALUE")
  keys = dict(x.removeprefix("--config.").split("=", 1) for x in others)
  root = flags.workdir.resolve()
  study = make_study(flags.config, flags.rates, flags.steps, keys)
  try:
    parts = parts_lib.make_parts(study, root)
    parts_lib.check_unchanged(study, root)
    root.mkdir(parents=True, exist_ok=True)
    files.save_json(root / files.CONFIG, {"study": dataclasses.asdict(study)})
    code = parts_lib.run_parts(parts, root, Console())
  except errors.TrueNegsError as e:
    parser.exit(e.exit_code, f"error: {errors.printable(e)}\n")
  states = parts_lib.read_states(parts, root)
  rows = [read_row(part, root, states[part.key]) for part in parts]
  show(rows, root)
  print(judge(rows))
  return code


if __name__ == "__main__":
  sys.exit(main())
