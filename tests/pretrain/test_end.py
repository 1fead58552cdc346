"""The end of a run is the same on every mesh, and keeps what it has written."""

import json
import random
import sys
import types

import jax
import numpy as np
import pytest

from support import runs, tiny
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data.batches import held_out_batches
from truenegs_jax.data.rows import open_rows
from truenegs_jax.pretrain import (
  cases,
  evaluate,
  fill_masks,
  plan,
  predict_slots,
  start,
)
from truenegs_jax.runtime import errors
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import metrics, sharding

HC = "bert_base:hc,runlocal"
ROWS = 37  # no multiple of a batch; more than there are held-out rows
CLOCK = types.SimpleNamespace(is_over=lambda: False)


@pytest.fixture(autouse=True)
def search_as_many_rows_as_are_read(monkeypatch):
  monkeypatch.setattr(evaluate, "SEARCHED", 1)
  monkeypatch.setattr(evaluate, "ENOUGH", 5_000)


@pytest.fixture(scope="module")
def inputs(shared_pretraining):
  """Returns rows, and a table of random synonyms."""
  folder = shared_pretraining.root / "rows"
  rows = [open_rows(folder, split) for split in ("train", "held_out")]
  assert len(rows[1]) < ROWS < len(rows[0])
  vocab = (folder / "vocab.txt").read_text().splitlines()
  rng = random.Random(0)
  pairs = [tuple(rng.sample(vocab[5:], 2)) for _ in range(9 * len(vocab))]
  table = SynonymTable.from_pairs(pairs, vocab, source="random")
  return types.SimpleNamespace(
    train_rows=rows[0], held_out_rows=rows[1], table=table, folder=folder
  )


def make_trained(inputs, num_devices, **values):
  """Returns a training to random parameters, on a mesh."""
  values = {
    **runs.ONE_LAYER,
    "data__vocab": inputs.folder / "vocab.txt",
    "model__dtype": "float32",
    "eval__rows": ROWS,
    "masking__prob": 0.25,
    "batch_size": 16,
  } | values
  flags = [f"--config.{k.replace('__', '.')}={v}" for k, v in values.items()]
  c = parse_config(
    [f"--config={runs.ROOT}/configs/electra_small.py:hc", *flags]
  )
  config = PretrainConfig.read(c)
  mesh = sharding.make_mesh(
    plan.read_mesh_spec(config), jax.devices()[:num_devices]
  )
  run = plan.make_run(config, plan.find_tokenizer(config.data), mesh=mesh)
  params = tiny.random_params(run.model, deviation=0.5)
  split = sharding.param_shardings(params, mesh, run.mesh_spec)
  params = jax.device_put(params, split)
  state = types.SimpleNamespace(params=params)
  return types.SimpleNamespace(run=run, inputs=inputs, state=state)


def find_cases(inputs, *args, **values):
  """Returns what is found, and the probabilities apart."""
  trained = make_trained(inputs, *args, **values)
  predictions = evaluate.predict_rows(trained, inputs.table, CLOCK)
  search = cases.find_cases(predictions, inputs.table, trained.run.tokenizer)
  shown = [vars(case) | {"probability": 0} for case in search.cases]
  content = search.searched, search.corrected, shown
  return content, [case.probability for case in search.cases]


def test_cases_do_not_depend_on_mesh_and_batches(inputs):
  expected, probabilities = find_cases(inputs, 1)
  assert expected[1] == len(expected[2]) > 20
  values = {"mesh__preset": "fsdp_tp", "optim__accumulation": 2}
  same, others = find_cases(inputs, 4, **values)
  assert same == expected
  np.testing.assert_allclose(others, probabilities, rtol=1e-4)


def evaluate_rows(inputs, *args, **values):
  """Returns the losses and metrics of the first rows."""
  trained = make_trained(inputs, *args, **values)
  params, run = trained.state.params, trained.run
  evaluate_batch = start.build_eval_step(run)
  aux = start.make_aux(run, inputs.table)
  terms = [
    evaluate_batch(params, sharding.shard_batch(batch, run.mesh), aux)
    for batch in held_out_batches(inputs.train_rows, 16, limit=ROWS)
  ]
  return metrics.compute_ratios(metrics.merge_terms(jax.device_get(terms)))


def test_evaluations_do_not_depend_on_mesh_and_micro_batches(inputs):
  expected = evaluate_rows(inputs, 1)
  values = {"mesh__preset": "fsdp_tp", "optim__accumulation": 2}
  same = evaluate_rows(inputs, 4, **values)
  assert {"mlm", "detect", "auc"} < expected.keys()
  assert same == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("num_pairs", [0, 9])
@pytest.mark.parametrize("limit", [2, 37, 9_999])
def test_training_rows_follow_the_held_out_ones_if_cases_are_too_few(
  inputs, monkeypatch, limit, num_pairs
):
  searched = []

  def predict(step, params, mesh, batch):
    rows_B = batch["documents"].any(axis=1)
    searched.extend(batch["row"][rows_B].tolist())
    pairs = {(i, i) for i in range(num_pairs)}
    return types.SimpleNamespace(corrected_pairs=lambda table: pairs)

  monkeypatch.setattr(predict_slots, "predict_batch", predict)
  monkeypatch.setattr(evaluate, "ENOUGH", 9)
  trained = make_trained(inputs, 1, eval__rows=limit)
  evaluate.predict_rows(trained, inputs.table, CLOCK)
  held_out = min(limit, len(inputs.held_out_rows))
  assert searched[:held_out] == [*range(held_out)]
  epoch = len(inputs.train_rows) // 16 * 16
  training = 0 if num_pairs else min(limit - held_out, epoch)
  assert len(searched[held_out:]) == training
  assert len(set(searched[held_out:])) == training
  searched.clear()
  late = types.SimpleNamespace(is_over=lambda: True)
  evaluate.predict_rows(trained, inputs.table, late)  # one batch
  assert searched == [*range(min(held_out, 16))]


def test_masks_are_filled_alike_on_every_mesh(inputs):
  fills = []
  for num_devices, preset in ((1, "dp"), (4, "fsdp_tp")):
    trained = make_trained(inputs, num_devices, mesh__preset=preset)
    run = trained.run
    args = run.model, trained.state.params, run.tokenizer
    fills += fill_masks.fill_masks(*args, ["the [MASK] sees"])
  with pytest.raises(errors.InputError, match="takes at most"):
    long = "the [MASK]" + " sees" * run.config.model.positions
    fill_masks.fill_masks(*args, [long])
  assert fills[0].tokens == fills[1].tokens
  probabilities = [fill.probabilities for fill in fills]
  np.testing.assert_allclose(*probabilities, rtol=1e-4)


@pytest.mark.slow
def test_a_search_that_fails_keeps_the_rest_and_can_be_repeated(
  shared_pretraining, tmp_path, monkeypatch, one_device
):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("NLTK_DATA", str(tmp_path / "none"))
  monkeypatch.setitem(sys.modules, "torch", None)
  rows, workdir = shared_pretraining.root / "rows", tmp_path / "run"
  flags = [*shared_pretraining.values, "--config.steps=2"]
  flags += [runs.save_synonyms(tmp_path, rows / "vocab.txt")]
  flags += ["--config.optim.warmup_steps=0", "--config.masking.prob=0.4"]
  monkeypatch.setattr(evaluate, "SHOWN", 3)
  flags += ["--config.eval.sentences=('the [MASK] sees',)"]

  def fill_memory(*_):
    raise RuntimeError("RESOURCE_EXHAUSTED: 60 GiB")

  with monkeypatch.context() as patch:
    patch.setattr(predict_slots, "predict_batch", fill_memory)
    with pytest.raises(RuntimeError, match="60 GiB"):
      runs.run_in_process(workdir, flags, HC)
  results = json.loads((workdir / "results.json").read_text())
  assert results["verdict"]["scores"] and results["fills"]
  names = {path.name for path in workdir.iterdir()}
  assert {"export", "report.html"} <= names and "cases.json" not in names
  code, output = runs.run_in_process(workdir, flags, HC)  # what is missing
  assert code == 0 and "; 3 are shown." in output
  search = json.loads((workdir / "cases.json").read_text())
  assert search["corrected"] == len(search["cases"]) > 3 and search["source"]
