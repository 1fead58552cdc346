"""A run whose synonyms are its own embeddings: made anew, saved, gone on with.

Steps 1 and 2 know no synonyms; the parameters of step 2 make those of steps 3
and 4, the parameters of step 4 those of step 5.
"""

import gc
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from support import runs
from truenegs_jax.configs import bert_base
from truenegs_jax.data.rows import batches
from truenegs_jax.objectives import negatives, slot_predictions
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.runtime import rng
from truenegs_jax.synonyms.stop_words import STOP_WORDS, is_word
from truenegs_jax.train import (
  build_run,
  loop,
  model_synonyms,
  plan,
  sharding,
  step,
)
from truenegs_jax.train import setup as setup_lib
from truenegs_jax.weights.formats.find import Weights

STEPS, EVERY, TOP, THRESHOLD = 5, 2, 20, 0.05
SILENT = Console(quiet=True)


def config(root, preset="dp"):
  c = bert_base.get_config("hc,runlocal")
  c.negatives.sources = f"model top={TOP} threshold={THRESHOLD} every={EVERY}"
  c.data.sources, c.data.rows = str(root / "corpus.txt"), str(root / "rows")
  c.model.scan = True
  c.data.vocab_size, c.data.workers = 120, 1
  c.steps, c.mesh.preset = STEPS, preset
  c.checkpoint.every_steps, c.checkpoint.keep = 1, STEPS
  c.log.every_steps, c.eval.every_steps, c.eval.rows = 1, STEPS, 8
  return c


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """(root, inputs, outcome) of a run that nothing interrupted."""
  root = tmp_path_factory.mktemp("own")
  runs.write_corpus(root / "corpus.txt")
  c = config(root)
  run, inputs = run_lib.prepare_run(c, root / "whole", Weights(""), SILENT)
  yield root, inputs, loop.train(run, root / "whole", inputs, SILENT)
  gc.collect()


def saved(place, step, preset="dp"):
  """The state of a saved step on a mesh, and that run."""
  root, inputs, _ = place
  c = config(root, preset)
  run = build_run.build_run(c, inputs.tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec)
  like = plan.abstract_state(run, mesh)
  checkpoints = setup_lib.open_checkpoints(run.output, root / "whole")
  tree = checkpoints.restore_state(step, vars(like))
  checkpoints.close()
  return tree, run, like


def made_of(place, params):
  """The table that some parameters make, by the definition of its words."""
  vocab = place[1].tokenizer.vocab
  words_V = np.array([is_word(token) for token in vocab])
  golds_V = words_V & ~np.isin(vocab, list(STOP_WORDS))
  table_VxE = jax.device_get(params["embeddings"]["word"])
  ids_VxS = negatives.neighbour_ids(
    jnp.asarray(table_VxE), golds_V, words_V, top=TOP, threshold=THRESHOLD
  )
  return np.asarray(ids_VxS)


def test_a_table_is_of_the_step_it_was_made_at_until_the_next_one(whole):
  at = [saved(whole, i)[0] for i in range(1, STEPS + 1)]
  before, made, kept, next_made = (  # at steps 2 to 5
    np.asarray(tree["aux"]["ids_VxS"]) for tree in at[1:]
  )
  assert (before == -1).all()
  assert (made >= 0).any() and (made != next_made).any()
  np.testing.assert_array_equal(made, made_of(whole, at[1]["params"]))
  np.testing.assert_array_equal(kept, made)
  np.testing.assert_array_equal(next_made, made_of(whole, at[3]["params"]))


@pytest.mark.parametrize("at", [3, 4])  # between two tables; before one
def test_a_run_resumed_anywhere_ends_bit_equal(
  whole, tmp_path, monkeypatch, at
):
  root, inputs, outcome = whole
  # Not to compile the same steps again.
  lowered = types.SimpleNamespace(compile=lambda: outcome.setup.train_step)
  monkeypatch.setattr(plan, "lower_train_step", lambda *_: lowered)
  monkeypatch.setattr(
    plan, "build_eval_step", lambda *_: outcome.setup.eval_step
  )
  shutil.copytree(root / "whole", tmp_path / "resumed")
  for later in range(at + 1, STEPS + 1):
    shutil.rmtree(tmp_path / "resumed" / "checkpoints" / str(later))
  loop.train(outcome.setup.run, tmp_path / "resumed", inputs, SILENT)
  places = root / "whole", tmp_path / "resumed"
  assert runs.arrays_equal(*[runs.read_checkpoint(p, STEPS) for p in places])
  losses = [[r["mlm"] for r in runs.read_records(p)] for p in places]
  assert losses[0] == losses[1] and len(losses[0]) == STEPS


def test_nothing_is_corrected_before_the_first_table_and_then_something(whole):
  records = runs.read_records(whole[0] / "whole")
  corrected = [r["corrected_of_slots"] for r in records]
  assert len(corrected) == STEPS
  assert not any(corrected[:EVERY]) and any(corrected[EVERY:])


def test_what_is_corrected_is_what_the_table_lists(whole):
  _, inputs, outcome = whole
  setup = outcome.setup
  [batch, *_] = batches.held_out_batches(inputs.held_out_rows, batch_size=8)
  key = jax.random.fold_in(jax.random.key(setup.run.seed), 2)  # evaluation's

  @jax.jit
  def slots_and_predictions(params, batch):
    bound = setup.run.model.bind({"params": params})
    keys_B = rng.row_keys(key, 0, batch["row"])
    said = slot_predictions.mask_and_predict(
      bound, batch, keys_B, setup.run.options, train=False
    )
    return said.slots, said.predicted_BxK

  state = jax.device_get(vars(setup.state) | {"key": None, "opt_state": None})
  slots, predicted_BxK = slots_and_predictions(state["params"], batch)
  listed_BxKxS = state["aux"]["ids_VxS"][slots.gold_BxK]
  false_BxK = (listed_BxKxS == predicted_BxK[..., None]).any(axis=-1)
  expected = (false_BxK & (slots.weight_BxK > 0)).sum()
  assert expected > 0
  assert outcome.held_out[0]["corrected_of_slots"][0] == expected


@pytest.mark.parametrize("preset", ["fsdp", "fsdp_tp"])
def test_a_run_goes_on_with_its_table_on_another_mesh(whole, preset):
  there, run, like = saved(whole, 3, preset)
  here, _, _ = saved(whole, 3)
  assert runs.arrays_equal(*[jax.tree.leaves(t["aux"]) for t in (here, there)])
  word = there["params"]["embeddings"]["word"]
  assert not word.sharding.is_fully_replicated
  state = step.TrainState(**there)
  refresh = model_synonyms.make_refresh(
    run.table_builder, like, from_weights=False
  )
  assert refresh(state, 3) is state and refresh(state, 0) is state
  refresh_weights = model_synonyms.make_refresh(
    run.table_builder, like, from_weights=True
  )
  assert refresh_weights(state, 0) is not state
  made = refresh(state, 4).aux["ids_VxS"]
  assert made.sharding.is_fully_replicated
  np.testing.assert_array_equal(made, made_of(whole, here["params"]))
