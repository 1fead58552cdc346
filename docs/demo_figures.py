"""Keeps what a run of the demo printed and measured, for the pages.

  make demo MINUTES=0 2>&1 | tee runs/demo.txt
  python docs/demo_figures.py runs/demo runs/demo.txt
  python docs/images/loss_curves.py runs/demo

Writes results/demo.txt, parts of which pages show, and results/demo.json, whose
`numbers` they name: {{ demo.mlm }}.
"""

import json
import math
import pathlib
import sys

from truenegs_jax.pretrain.evaluate import SHOWN
from truenegs_jax.workdir.metrics_file import read_records

FOLDER = pathlib.Path(__file__).with_name("results")
JSON, PRINTED = FOLDER / "demo.json", FOLDER / "demo.txt"
COMMAND = "make demo MINUTES=0"


def keep(workdir: pathlib.Path, printed: pathlib.Path) -> None:
  """Writes the two files from the folder of a run and what it printed."""
  results = json.loads((workdir / "results.json").read_text())
  vocabulary = (workdir / "vocab.txt").read_text().splitlines()
  corrections = json.loads((workdir / "cases.json").read_text())
  saved = {
    "command": COMMAND,
    "seed": results["seed"],
    "steps": results["steps"],
    "uniform_entropy": math.log(len(vocabulary)),
    "verdict": results["verdict"],
    "fills": results["fills"],
    "corrections": {x: corrections[x] for x in ("searched", "corrected")},
    "cases": corrections["cases"][:SHOWN],
    "held_out": read_records(workdir)[-1],
  }
  JSON.write_text(json.dumps(saved, indent=2, ensure_ascii=False) + "\n")
  text = printed.read_text(encoding="utf-8")
  lines = text[text.index("Starting ...") :].splitlines()
  PRINTED.write_text("".join(f"{line.rstrip()}\n" for line in lines))


def numbers() -> dict[str, str]:
  """Returns the figures as the pages show them."""
  saved = json.loads(JSON.read_text())
  scores = saved["verdict"]["scores"]
  fill = saved["fills"][0]
  counts = saved["corrections"]
  likeliest = zip(fill["tokens"], fill["probabilities"], strict=True)
  digits = {
    "mlm": (scores["mlm"]["value"], 3),
    "mlm_error": (scores["mlm"]["error"], 3),
    "uniform": (saved["uniform_entropy"], 3),
    "unigram": (scores["mlm"]["guess"], 3),
    "pair_cosine": (saved["held_out"]["pair_cosine"], 2),
  }
  return {
    **{name: f"{value:.{n}f}" for name, (value, n) in digits.items()},
    "command": f"`{saved['command']}`",
    "steps": f"{saved['steps']:,}",
    "corrected": f"{counts['corrected']}",
    "searched": f"{counts['searched']:,}",
    "one_in": f"{round(counts['searched'] / counts['corrected'], -2):,.0f}",
    "fills": ", ".join(f"*{word}* {p:.3f}" for word, p in [*likeliest][:3]),
  }


if __name__ == "__main__":
  keep(*map(pathlib.Path, sys.argv[1:3]))
