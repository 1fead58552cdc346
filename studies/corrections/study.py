"""Arms of the study of corrections, for studies/artificial/run.py.

In texts, {language} is the folder of a language. `:text` is a whole study, of
real text.
"""

from typing import Any

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config

LEXICON = "pairs path={language}/lexicon-50-100.tsv"  # half of it is wrong
WORDS = {
  "drop100": "Also the control of random slots, for the dial at 100.",
  "drop10": "That control for the dial at 10.",
  "repeated": "The arms on lines that are repeated.",
  "b2": "The arms with optim.b2 of 0.999.",
  "text": "Real text, continued from runs/head.",
}


def get_config(arg: str = "") -> ConfigDict:
  """Configures the nine corrections of an artificial language."""
  words = parse_words(arg, WORDS)
  c = make_config("study")
  s = c.study
  arms: dict[str, Any] = {
    "baseline": {"words": "baseline"},
    "hc": {"words": "hc"},
    "set": {"words": "set"},
  }
  for by in ("uniform", "model", "balanced"):
    arm = {
      "words": "baseline",
      "negatives.smoothing": 0.3,
      "negatives.smoothing_by": by,
    }
    arms[by] = arm
    arms[f"{by}_p50"] = {**arm, "negatives.sources": LEXICON}
  for word, share in (("drop100", 0.207), ("drop10", 0.01)):
    if word in words:
      arms["drop"] = {"words": "baseline", "negatives.drop_prob": share}
  if "repeated" in words:
    names = ("baseline", "hc", "uniform", "model", "balanced")
    arms = {name: arms[name] for name in names}
  if "b2" in words:
    arms = {name: arms[name] for name in ("baseline", "model", "balanced")}
    s.overrides = {"optim.b2": 0.999}
  s.arms = arms
  if "text" in words:
    set_real_text(s)
  return c


def set_real_text(s: ConfigDict) -> None:
  """Configures three recipes that continue runs/head on Wikipedia."""
  s.base = "own:continue"
  s.seeds = 3
  s.tasks = ""
  s.arms = {
    "baseline": {"words": "baseline"},
    "hc": {"words": "hc"},
    "balanced": {"words": "proper"},
  }
  s.overrides = {
    "init": "runs/head",
    "data.sources": "wikipedia.txt",
    "steps": 300,
    "batch_size": 64,
    "length": 32,
    "model.dropout": 0.0,
    "optim.lr": 2e-4,
    "optim.b2": 0.98,
    "optim.warmup_steps": 30,
    "eval.rows": 2048,
    "eval.every_steps": 300,
    "checkpoint.every_steps": 300,
    "checkpoint.keep_percent": (100.0,),
  }
  s.corrections = {
    "corrections.text": "wiki.test.raw",
    "corrections.steps": "last",
    "corrections.sources": "wordnet",
  }
