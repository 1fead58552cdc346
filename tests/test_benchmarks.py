"""Tests the functions of the benchmarks, without measuring any speed."""

import functools
import itertools
import os
import pathlib
import re
import runpy

import jax
import numpy as np
import pytest
from absl import flags

from truenegs_jax.configs import bert_base, electra_small

pytestmark = pytest.mark.slow

NAMES = "timing", "steps", "roofline", "overheads", "growth", "memory"
FOLDER = pathlib.Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def scripts():
  """Returns the globals of each script by name; removes its flags."""
  before, scripts = set(flags.FLAGS), {}
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(FOLDER))
    for name in (
      "timing",
      "steps",
      "roofline",
      "overheads",
      "growth",
      "memory",
      "coverage",
    ):
      scripts[name] = runpy.run_path(str(FOLDER / f"{name}.py"))
      for flag in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, flag)
  return scripts


def test_time_in_turns_balances_the_order_and_drops_the_warmup(scripts):
  order = []
  calls = {name: lambda name=name: order.append(name) for name in "abc"}
  secs = scripts["timing"]["time_in_turns"](calls, rounds=5, warmup=1)
  assert {len(values) for values in secs.values()} == {5}
  assert all(set(order[i : i + 3]) == set("abc") for i in range(0, 18, 3))
  for place in range(3):  # each call is twice at each place of a round
    assert sorted(order[place::3]) == list("aabbcc")
  assert sum(a == b for a, b in itertools.pairwise(order)) == 3  # once each


def test_paired_ratio_is_right_while_the_machine_drifts(scripts):
  rng = np.random.default_rng(0)
  drift = np.exp(np.cumsum(rng.normal(0, 0.05, 400)))
  secs = [scale * drift * rng.normal(1, 0.01, 400) for scale in (1.02, 1.0)]
  ratio = scripts["timing"]["paired_ratio"](*secs)
  assert ratio.low < 1.02 < ratio.high
  assert 0.0002 < ratio.half_width < 0.003


def test_positions_are_counted_from_the_shape_of_logits(scripts):
  logit_positions = scripts["roofline"]["logit_positions"]
  shapes = ((4, 9, 50), (36, 54), (36, 6, 9), (6, 9, 36), (50, 36))
  assert {logit_positions(x, 50) for x in shapes} == {36}
  assert {logit_positions(x, 50) for x in ((36, 49), (50 + 256, 7))} == {0}


@pytest.mark.slow
def test_a_step_runs_on_random_rows_and_its_operations_are_counted(
  scripts, monkeypatch
):
  # As users compile: without its emitters, XLA turns scatters into loops.
  if "xla_cpu_use_fusion_emitters" in os.environ["XLA_FLAGS"]:
    monkeypatch.setattr(
      jax.stages.Lowered,
      "compile",
      functools.partialmethod(
        jax.stages.Lowered.compile, {"xla_cpu_use_fusion_emitters": True}
      ),
    )
  c = bert_base.get_config("hc,runlocal")
  c.model.variant = "embedding_size=16 width=32 layers=1 heads=2 ffn=64"
  step = scripts["steps"]["make_step"](c, pad_share=0.25)
  is_padding = [step.host_batch(i)["documents"] == 0 for i in range(40)]
  assert 0.23 < np.mean(is_padding) < 0.27
  has_synonyms_V = np.any(step.aux["bits_VxW"], axis=1)
  assert 0.38 < has_synonyms_V.mean() < 0.47
  terms = scripts["steps"]["make_step_calls"]({"hc": step})["hc"]()
  assert not terms["skipped"][0] and np.isfinite(float(terms["mlm"][0]))
  counts = scripts["overheads"]["count_operations"](step)
  assert counts["on LxV"] == 0 < counts["on KxV"] < counts["ops"]
  assert counts["gathers"] and counts["scatters"]


def test_resize_config_changes_the_sizes(scripts):
  sizes = ["batch=4", "layers=3", "length=1024", "vocabulary=77", "batch=16"]
  c = scripts["growth"]["resize_config"](electra_small.get_config(), sizes)
  assert (c.batch_size, c.length, c.data.vocab_size) == (16, 1024, 77)
  assert c.model.max_positions >= 1024
  assert "layers=3" in c.model.variant and "width=256" in c.model.variant


@pytest.mark.slow
def test_memory_reports_a_config_without_data(scripts):
  c = bert_base.get_config("runlocal")
  c.mesh.preset, c.mesh.axes = "fsdp_tp", "model=2"
  lines = scripts["memory"]["report"](c, jax.devices()[:4])
  assert "data 2, model 2" in lines["devices"]
  assert "4 per mesh slice" in lines["batch"]
  assert re.search(r"arguments \d.*scratch \d", lines["memory"])


@pytest.mark.parametrize(
  ("kind", "seeds", "runs", "shares"),
  [
    ("normal", 2, 1, (1.0, 0.0, 0.0)),
    ("normal", 2, 1, (0.8, 0.0, 0.2)),
    ("normal", 3, 1, (0.3, 0.2, 0.5)),
    ("right", 3, 3, (0.5, 0.5, 0.0)),
    ("normal", 10, 3, (0.1, 0.1, 0.8)),
  ],
)
def test_the_intervals_of_a_study_cover_the_true_difference(
  scripts, kind, seeds, runs, shares
):
  coverage = scripts["coverage"]
  world = coverage["World"](kind, seeds, runs, shares)
  x = coverage["simulate"](world, 1_000)
  assert 0.925 <= x.coverage <= 0.98  # 0.93 to 0.973, and 2 standard errors
