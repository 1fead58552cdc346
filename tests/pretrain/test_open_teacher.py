"""A run opens its teacher, places it like its own model, and refuses others."""

import dataclasses
import io

import jax
import numpy as np
import pytest
from rich.console import Console

from support import tiny
from support.weight_files import (
  TOKENIZER,
  edit_tensors,
  random_params,
  read_tensors,
  write_export,
)
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.pretrain import (
  describe,
  open_teacher,
  plan,
  predict_slots,
  resolve,
  start,
)
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms.run_table import TeacherOptions

TEACHERS = {
  "pair": tiny.make_model(layers=1),
  "disentangled": tiny.make_model(layers=1, sharing="disentangled"),
  "bert": tiny.make_bert(layers=1),
  "modern": tiny.make_bert(backbone="modern"),
}
CONSOLE = Console(file=io.StringIO())
OTHER = make_tokenizer(TOKENIZER.vocab[::-1], lowercase=True)


def make_run(folder, *, objective="mlm", **changed):
  """Makes a run of two steps' config whose teacher is in a folder."""
  values = {
    **{
      "model.variant": "tiny",
      "model.layers": 1,
      "length": 32,
      "batch_size": 8,
    },
    "negatives.sources": f"teacher path={folder}",
    **{"negatives.smoothing": 0.5, "negatives.smoothing_by": "teacher"},
    **{"mesh.preset": "fsdp", "optim.warmup_steps": 1, "steps": 9},
  }
  config = PretrainConfig(objective=objective).replace(values | changed)
  resolve.check(config)
  run = plan.make_run(config, TOKENIZER)
  if run.teacher:
    run.teacher.check_length(run.config.length)
  return run


@pytest.mark.parametrize("kind", ["disentangled", "bert", "modern"])
def test_a_teacher_is_placed_as_its_step_is_planned(tmp_path, kind):
  objective = "mlm" if len(TEACHERS[kind].roles) == 1 else "electra"
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


def test_a_teacher_needs_no_more_than_its_predictions(tmp_path):
  folder = write_export(tmp_path, tiny.make_bert(layers=1, pooler=True))
  names = read_tensors(folder / "bert")
  lost = dict.fromkeys(x for x in names if "seq_relationship" in x)
  assert lost
  edit_tensors(folder / "bert", lost)
  params = start.read_teacher(make_run(folder), CONSOLE)
  assert params.keys() == {"embeddings", "bert", "bert_head"}


def test_another_teacher_or_use_of_it_is_another_fingerprint():
  params = random_params(TEACHERS["bert"])
  options = TeacherOptions(path="a")
  uses = [{}, {"top": 2}, {"temperature": 2.0}, {"ratio": 0.1}]
  prints = {
    open_teacher.fingerprint(dataclasses.replace(options, **x), params)
    for x in uses
  }
  assert len(prints) == len(uses)
  assert open_teacher.fingerprint(TeacherOptions(path="b"), params) in prints
  params["embeddings"]["word"][5, 3] += np.float32(1e-6)
  assert open_teacher.fingerprint(options, params) not in prints


def test_only_training_opens_a_teacher(tmp_path):
  values = {"negatives.sources": "teacher path=org/name", "dry_run": True}
  run = make_run("", **values)
  console = Console(file=io.StringIO(), width=10_000)
  describe.dry_run(run, console)
  assert "teacher: 'org/name', not on this machine" in console.file.getvalue()
  gone = run.config.replace({"dry_run": False})
  run = plan.make_run(gone, TOKENIZER)
  predict_slots.build_predict_step(run)
  with pytest.raises(InputError, match="teacher path=org/name"):
    run.objective(train=False)


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
