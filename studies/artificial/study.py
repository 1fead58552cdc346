"""Arms for `run.py`, in whose texts {language} is the folder of a language."""

from ml_collections import ConfigDict

from truenegs_jax.config.load import parse_words
from truenegs_jax.config.tables import make_config

LEXICON = "pairs path={language}/lexicon-50-100.tsv"  # half of it is wrong


def get_config(arg: str = "") -> ConfigDict:
  """Configures the baseline and hard correction."""
  words = parse_words(arg, {"all": "The four arms of the study."})
  c = make_config("study")
  c.study.arms = {"baseline": {"words": "baseline"}, "hc": {"words": "hc"}}
  if words:
    c.study.arms["sr"] = {"words": "sr"}
    c.study.arms["hc_p50"] = {"words": "hc", "negatives.sources": LEXICON}
  return c
