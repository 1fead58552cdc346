"""A run opens its teacher, places it like its own model, and refuses others."""

import io

import jax
import numpy as np
import pytest
from rich.console import Console

from support import tiny
from support.weight_files import TOKENIZER, random_params, write_export
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.pretrain import describe, open_teacher, plan, resolve, start
from truenegs_jax.runtime.errors import DataError, InputError

TEACHERS = {
  "pair": tiny.make_model(),
  "bert": tiny.make_bert(),
  "modern": tiny.make_bert(backbone="modern"),
}
CONSOLE = Console(file=io.StringIO())
OTHER = make_tokenizer(TOKENIZER.vocab[::-1], lowercase=True)


def make_run(folder, *, objective="mlm", **changed):
  """Makes a run of two steps' config whose teacher is in a folder."""
  values = {
    **{"model.variant": "tiny", "length": 32, "batch_size": 8},
    "negatives.sources": f"teacher path={folder}",
    **{"negatives.smoothing": 0.5, "negatives.smoothing_by": "teacher"},
    **{"mesh.preset": "fsdp", "optim.warmup_steps": 1, "steps": 9},
  }
  config = PretrainConfig(objective=objective).replace(values | changed)
  resolve.check(config)
  run = plan.make_run(config, TOKENIZER)
  plan.check_teacher(run)
  return run


@pytest.mark.parametrize("kind", TEACHERS)
def test_a_teacher_is_placed_as_its_step_is_planned(tmp_path, kind):
  objective = "electra" if kind == "pair" else "mlm"
  run = make_run(write_export(tmp_path, TEACHERS[kind]), objective=objective)
  params = start.read_teacher(run, CONSOLE)
  assert "discriminator" not in params
  aux = start.make_aux(run, None, params)
  planned = run.abstract_aux()
  placed = jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), aux)
  assert placed == jax.tree.map(
    lambda x: (x.shape, x.dtype, x.sharding), planned
  )
  word = aux["teacher"]["embeddings"]["word"]
  assert (
    word.sharding.spec
    == run.abstract_state().params["embeddings"]["word"].sharding.spec
  )
  _, terms = jax.eval_shape(
    run.train_step, run.abstract_state(), run.abstract_batch(), planned
  )
  assert {"mlm", "mlm_uncorrected", "corrected_of_slots"} <= terms.keys()


def test_what_a_teacher_costs_is_told(tmp_path):
  run = make_run(write_export(tmp_path, TEACHERS["bert"]))
  off = {"negatives.smoothing": 0.0, "negatives.hard_correction": False}
  plain = plan.make_run(run.config.replace(off), TOKENIZER)
  alone = describe.row_flops(plain)
  added = describe.row_flops(run) / alone - 1
  text = describe.describe_teacher(run, run.teacher)
  assert f"adds {added:.0%} to the FLOP of a step" in text
  console = Console(file=io.StringIO(), width=10_000)
  describe.dry_run(run, console)
  assert f"teacher: '{tmp_path}', here" in console.file.getvalue()


def test_another_teacher_is_another_fingerprint():
  params = random_params(TEACHERS["bert"])
  before = open_teacher.fingerprint(params)
  params["embeddings"]["word"][5, 3] += np.float32(1e-6)
  assert open_teacher.fingerprint(params) != before


def test_no_teacher_is_opened_without_a_correction(tmp_path):
  off = {"negatives.smoothing": 0.0, "negatives.hard_correction": False}
  assert make_run(tmp_path / "none", **off).teacher is None


@pytest.mark.parametrize(
  ("options", "changed", "message"),
  [
    ({"roles": ["discriminator"]}, {}, "teacher path=.* lacks .*generator"),
    ({"roles": ["generator"]}, {}, "teacher path=.* holds only generator"),
    ({"tokenizer": OTHER}, {}, "teacher '.*different vocabularies.*data.vocab"),
    ({}, {"length": 1024, "model.max_positions": 1024}, "512 positions of the"),
    ({}, {"negatives.smoothing_by": "model"}, "smoothing_by=teacher"),
    ({}, {"negatives.sources": "wordnet"}, "smoothing_by=balanced"),
  ],
)
def test_what_cannot_teach_is_refused(tmp_path, options, changed, message):
  folder = write_export(tmp_path, TEACHERS["pair"], **options)
  with pytest.raises((DataError, InputError), match=message):
    start.read_teacher(make_run(folder, **changed), CONSOLE)
