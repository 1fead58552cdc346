"""The end of a run fits and keeps what it has written, also if a part fails."""

import ast
import json
import random
import shlex
import sys
import types

import jax
import numpy as np
import pytest

from support import runs
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data.rows import open_rows
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import evaluate, plan, predict_slots
from truenegs_jax.pretrain import search as search_lib
from truenegs_jax.runtime import errors
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import sharding

HC = "electra_demo:hc,runlocal"
ROWS = 37  # no multiple of a batch; more than there are held-out rows


@pytest.fixture(autouse=True)
def search_as_many_rows_as_are_read(monkeypatch):
  monkeypatch.setattr(search_lib, "SEARCHED", 1)


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
    "eval__rows": ROWS,
    "eval__cases": 5_000,
  } | values
  flags = [f"--config.{k.replace('__', '.')}={v}" for k, v in values.items()]
  c = parse_config([f"--config={runs.ROOT}/configs/electra_demo.py:hc", *flags])
  config = PretrainConfig.read(c)
  mesh = sharding.make_mesh(
    plan.read_mesh_spec(config), jax.devices()[:num_devices]
  )
  run = plan.make_run(config, plan.find_tokenizer(config.data), mesh=mesh)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda x: np.float32(rng.normal(0, 0.5, x.shape)),
    pretrain.param_shapes(run.model),
  )
  split = sharding.tree_shardings({"params": params}, mesh, run.mesh_spec)
  params = jax.device_put(params, split["params"])
  state = types.SimpleNamespace(params=params)
  return types.SimpleNamespace(run=run, inputs=inputs, state=state)


CLOCK = types.SimpleNamespace(is_over=lambda name: False)


def find_cases(inputs, *args, **values):
  """Returns what is found, and the probabilities apart."""
  trained = make_trained(inputs, *args, **values)
  search = search_lib.find_cases(trained, inputs.table, CLOCK)
  cases = [vars(case) | {"probability": 0} for case in search.cases]
  content = search.searched, search.corrected, cases
  return content, [case.probability for case in search.cases]


def test_cases_do_not_depend_on_mesh_batches_and_chunks(inputs):
  expected, probabilities = find_cases(inputs, 1, batch_size=16)
  assert expected[1] == len(expected[2]) > 20
  for values in (
    {"num_devices": 8, "batch_size": 16, "mesh__preset": "fsdp"},
    {
      "num_devices": 4,
      "batch_size": 16,
      "mesh__preset": "fsdp_tp",
      "optim__accumulation": 2,
      "model__vocabulary_chunk": 7,
    },
  ):
    same, others = find_cases(inputs, **values)
    assert same == expected, values
    np.testing.assert_allclose(others, probabilities, rtol=1e-4)


@pytest.mark.parametrize("num_pairs", [0, 9])
@pytest.mark.parametrize("limit", [2, 37, 9_999])
def test_a_limited_number_of_rows_is_searched(
  inputs, monkeypatch, limit, num_pairs
):
  """Training rows follow the held-out ones if there are too few cases."""
  searched = []

  def search(predict, params, mesh, batch):
    rows_B = batch["documents"].any(axis=1)
    searched.extend(batch["row"][rows_B].tolist())

  finder = types.SimpleNamespace(
    counts=range(num_pairs), add=lambda p: None, finish=lambda: None
  )
  monkeypatch.setattr(predict_slots, "predict_batch", search)
  monkeypatch.setattr(search_lib.cases, "CaseFinder", lambda *_: finder)
  trained = make_trained(
    inputs, 1, eval__rows=limit, eval__cases=9, batch_size=16
  )
  search_lib.find_cases(trained, inputs.table, CLOCK)
  held_out = min(limit, len(inputs.held_out_rows))
  assert searched[:held_out] == [*range(held_out)]
  epoch = len(inputs.train_rows) // 16 * 16
  training = 0 if num_pairs else min(limit - held_out, epoch)
  assert len(searched[held_out:]) == training
  assert len(set(searched[held_out:])) == training


def test_commands_that_are_suggested_fit_every_path(tmp_path):
  exported = tmp_path / """it's "$HOME" `x`""" / "export"
  exported.mkdir(parents=True)
  text = evaluate.describe_next_steps(exported.parent)
  *_, code = shlex.split(text[text.index("python -c") :])
  names = [x.value for x in ast.walk(ast.parse(code)) if hasattr(x, "value")]
  assert str(exported) in names


def test_masks_are_filled_alike_on_every_mesh(inputs):
  fills = []
  for num_devices, preset in ((1, "dp"), (4, "fsdp_tp")):
    trained = make_trained(inputs, num_devices, mesh__preset=preset)
    fills += evaluate.fill_masks(
      trained.run.model,
      trained.state.params,
      trained.run.tokenizer,
      ["the [MASK] sees"],
    )
  run = trained.run
  with pytest.raises(errors.InputError, match="takes at most"):
    long = "the [MASK]" + " sees" * run.config.model.positions
    evaluate.fill_masks(run.model, trained.state.params, run.tokenizer, [long])
  assert fills[0].tokens == fills[1].tokens
  np.testing.assert_allclose(
    fills[0].probabilities, fills[1].probabilities, rtol=1e-4
  )


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
  flags += ["--config.optim.warmup_steps=0"]
  flags += ["--config.eval.sentences=('the [MASK] sees',)"]

  def read():
    return json.loads((workdir / "results.json").read_text())

  def fail():
    def fill_memory(*_):
      raise RuntimeError("RESOURCE_EXHAUSTED: 60 GiB")

    with monkeypatch.context() as patch:
      patch.setattr(predict_slots, "predict_batch", fill_memory)
      with pytest.raises(errors.OutOfMemoryError) as error:
        runs.run_in_process(workdir, flags, HC)
    [line] = str(error.value).splitlines()
    assert line.startswith("After the last step, the search for examples")
    assert "failed: Memory ran" in line

  fail()
  assert {"verdict", "fills"} <= read().keys() and "corrections" not in read()
  names = {path.name for path in workdir.iterdir()}
  assert {"export", "report.html"} <= names and "cases.json" not in names
  assert runs.run_in_process(workdir, flags, HC)[0] == 0  # what is missing
  complete, cases = read(), (workdir / "cases.json").read_bytes()
  assert {"verdict", "corrections", "fills"} <= complete.keys()
  fail()  # and nothing is lost
  assert read() == complete and runs.read_exported(workdir)
  assert (workdir / "cases.json").read_bytes() == cases
