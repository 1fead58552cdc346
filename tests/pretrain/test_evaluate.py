"""Tables for people say what is true and break no word."""

import io
import math
import re

import pytest
from rich.console import Console

from truenegs_jax.corrections import findings
from truenegs_jax.pretrain import evaluate


def make_verdict(error):
  detection = evaluate.Detection(
    0.5388, error, 0.248, 0.56, 0.5567, error, 10**9
  )
  return evaluate.Verdict(
    6.876, error, 6.933, error, 8.3, 6.886, 10**9, detection
  )


WORDS = ("representative", "congresswoman", "counterrevolutionary")
CASE = findings.Case(
  f"a {WORDS[2]} [MASK] of the institution",
  *WORDS[:2],
  0.97,
  WORDS,
  {"wordnet": "wrong"},
)
TABLES = [
  evaluate.verdict_table(make_verdict(0.0123)),
  evaluate.verdict_table(make_verdict(math.inf)),
  findings.render_cases([CASE], 10),
  evaluate.fills_table([evaluate.MaskFill(CASE.sentence, WORDS, [0.1] * 3)]),
]


@pytest.mark.parametrize("table", TABLES)
def test_no_word_is_broken_at_80_columns(table):
  def words(width):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return sorted(re.findall(r"[\w.,%±\[\]()-]+", out.getvalue()))

  assert words(80) == words(300)


def test_metric_of_one_batch_has_no_error():
  def render(error):
    out = io.StringIO()
    table = evaluate.verdict_table(make_verdict(error))
    Console(file=out, width=120).print(table)
    return out.getvalue()

  assert "6.876 ± 0.012" in render(0.0123)
  assert "6.876 (one batch: no error)" in render(math.inf)
  assert "inf" not in render(math.inf)
