"""Synonym tables from the model's embeddings are rebuilt, saved and resumed.

Steps 1 and 2 have no synonyms. The parameters after step 2 make the table of
steps 3 and 4, the parameters after step 4 the table of step 5.
"""

import contextlib
import gc
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from support import runs
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import bert_base
from truenegs_jax.data import batches, prepare
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.objectives import negatives, slot_predictions
from truenegs_jax.pretrain import model_table, plan, start
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.runtime import rng
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.vocabulary import STOP_WORDS
from truenegs_jax.train import step
from truenegs_jax.train.speed import TimeLimit
from truenegs_jax.workdir import saved_model
from truenegs_jax.workdir.checkpoints import Checkpoints

STEPS, EVERY, TOP, THRESHOLD = 5, 2, 20, 0.05
SILENT = Console(quiet=True)


def make_config(root, preset="dp"):
  c = bert_base.get_config("hc,runlocal")
  c.negatives.sources = f"model top={TOP} threshold={THRESHOLD} every={EVERY}"
  c.data.sources, c.data.rows = str(root / "corpus.txt"), str(root / "rows")
  c.model.scan = True
  c.data.vocab_size, c.data.workers = 120, 1
  c.steps, c.mesh.preset = STEPS, preset
  c.checkpoint.every_steps, c.checkpoint.keep = 1, STEPS
  c.log.every_steps, c.eval.every_steps, c.eval.rows = 1, STEPS, 8
  return c


def train(run, workdir, inputs):
  folder = workdir / "checkpoints"
  with contextlib.closing(Checkpoints(folder, keep=STEPS)) as checkpoints:
    clock = TimeLimit(STEPS, limit_secs=0.0, began=0.0)
    ready = start.start(run, inputs, workdir, checkpoints, clock, SILENT)
    return ready, run_lib.train(ready, workdir, checkpoints, clock, SILENT)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """Returns (root, inputs, started, trained) of an uninterrupted run."""
  root = tmp_path_factory.mktemp("own")
  runs.write_corpus(root / "corpus.txt")
  c = make_config(root)
  config = PretrainConfig.read(c)
  folder, tokenizer = prepare.execute_plan(
    prepare.make_plan(config.data, config.length)
  )
  run = plan.make_run(config, tokenizer)
  inputs = start.read_inputs(run, folder, root / "run", SILENT)
  yield root, inputs, *train(run, root / "run", inputs)
  gc.collect()


def restore(finished, step, preset="dp"):
  """Returns the state of a step on a mesh, the run, and abstract arrays."""
  root, _, started, _ = finished
  config = PretrainConfig.read(make_config(root, preset))
  run = plan.make_run(config, started.run.tokenizer)
  like = run.abstract_state()
  with saved_model.open_run(root / "run") as checkpoints:
    tree = checkpoints.restore_state(step, vars(like))
  return tree, run, like


def build_expected_table(finished, params):
  """Builds the table of some parameters from the definition of its words."""
  vocab = finished[2].run.tokenizer.vocab
  words_V = np.array([t.isalpha() and t not in STOP_WORDS for t in vocab])
  table_VxE = jax.device_get(params["embeddings"]["word"])
  ids_VxS = negatives.neighbour_ids(
    jnp.asarray(table_VxE), words_V, top=TOP, threshold=THRESHOLD
  )
  return np.asarray(ids_VxS)


@pytest.mark.parametrize(
  ("stop_words", "expected"), [("", "cat dog"), ("none", "cat the dog")]
)
def test_symbols_numbers_and_stop_words_are_left_out(stop_words, expected):
  vocab = ("[PAD]", "cat", "20", ".", "two", "the", "##s", "dog")
  tokenizer = Tokenizer(vocab, True, True, pad=0, unk=0, cls=0, sep=0, mask=0)
  request = TableRequest("model", stop_words=stop_words)
  builder = model_table.make_table_builder(request, tokenizer)
  assert [vocab[i] for i in np.flatnonzero(builder.words_V)] == expected.split()


@pytest.mark.slow
def test_table_is_kept_until_the_next_refresh(finished):
  states = {i: restore(finished, i)[0] for i in range(2, STEPS + 1)}
  tables = {i: np.asarray(x["aux"]["ids_VxS"]) for i, x in states.items()}
  assert (tables[2] == -1).all()
  assert (tables[3] >= 0).any() and (tables[3] != tables[5]).any()
  np.testing.assert_array_equal(tables[4], tables[3])
  for step_before in (2, 4):
    np.testing.assert_array_equal(
      tables[step_before + 1],
      build_expected_table(finished, states[step_before]["params"]),
    )


@pytest.mark.slow
def test_resumed_run_ends_bit_equal(finished, tmp_path, monkeypatch):
  root, inputs, started, _ = finished
  # Use the compiled steps again.
  lowered = types.SimpleNamespace(compile=lambda: started.train_step)
  monkeypatch.setattr(start, "lower_train_step", lambda *_: lowered)
  evaluate = started.eval_step
  monkeypatch.setattr(start, "build_eval_step", lambda *_: evaluate)
  shutil.copytree(root / "run", tmp_path / "resumed")
  for step_after in range(4, STEPS + 1):
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / str(step_after))
  train(started.run, tmp_path / "resumed", inputs)
  workdirs = root / "run", tmp_path / "resumed"
  assert runs.arrays_equal(*[runs.read_checkpoint(p, STEPS) for p in workdirs])
  losses = [[r["mlm"] for r in runs.read_records(p)] for p in workdirs]
  assert losses[0] == losses[1] and len(losses[0]) == STEPS


@pytest.mark.slow
def test_corrections_follow_the_table(finished):
  _, inputs, _, trained = finished
  run = trained.run
  [batch, *_] = batches.held_out_batches(inputs.held_out_rows, batch_size=8)
  # The key of evaluation.
  key = jax.random.fold_in(jax.random.key(run.config.seed), 2)

  @jax.jit
  def slots_and_predictions(params, batch):
    bound = run.model.bind({"params": params})
    keys_B = rng.row_keys(key, 0, batch["row"])
    predictions = slot_predictions.mask_and_predict(
      bound, batch, keys_B, {}, run.options, train=False
    )
    return predictions.slots, predictions.predicted_BxK

  state = jax.device_get(vars(trained.state) | {"key": None, "opt_state": None})
  slots, predicted_BxK = slots_and_predictions(state["params"], batch)
  listed_BxKxS = state["aux"]["ids_VxS"][slots.gold_BxK]
  false_BxK = (listed_BxKxS == predicted_BxK[..., None]).any(axis=-1)
  expected = (false_BxK & (slots.weight_BxK > 0)).sum()
  assert expected > 0
  assert trained.held_out[0]["corrected_of_slots"][0] == expected


@pytest.mark.slow
def test_table_is_restored_on_another_mesh(finished):
  split, run, like = restore(finished, 3, "fsdp")
  replicated, _, _ = restore(finished, 3)
  tables = [jax.tree.leaves(tree["aux"]) for tree in (replicated, split)]
  assert runs.arrays_equal(*tables)
  word = split["params"]["embeddings"]["word"]
  assert not word.sharding.is_fully_replicated
  state = step.TrainState(**split)
  refresh, refresh_weights = (
    model_table.make_refresh(run.table_builder, like, from_weights=value)
    for value in (False, True)
  )
  assert refresh(state, 3) is state and refresh(state, 0) is state
  assert refresh_weights(state, 0) is not state
  table = refresh(state, 4).aux["ids_VxS"]
  assert table.sharding.is_fully_replicated
  np.testing.assert_array_equal(
    table, build_expected_table(finished, replicated["params"])
  )
