"""Synonym tables from the model's embeddings are rebuilt, saved and resumed.

Steps 1 and 2 have no synonyms. The parameters after step 2 make the table of
steps 3 and 4, the parameters after step 4 the table of step 5.
"""

import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from support import runs, shared_runs
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.objectives import negatives
from truenegs_jax.pretrain import model_table
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.vocabulary import STOP_WORDS
from truenegs_jax.workdir import saved_model

STEPS, EVERY, TOP, THRESHOLD = 5, 2, 20, 0.05
BERT = "bert_base:hc,runlocal"
SOURCES = f"model top={TOP} threshold={THRESHOLD} every={EVERY}"


@pytest.fixture(scope="module")
def finished(shared_pretraining, tmp_path_factory):
  """Returns the folder and the flags of an uninterrupted run."""
  root = tmp_path_factory.mktemp("own")
  values = {
    "steps": STEPS,
    "checkpoint.every_steps": 1,
    "checkpoint.keep": STEPS,
    "negatives.sources": SOURCES,
  }
  flags = [f"--config.{name}={value}" for name, value in values.items()]
  flags = [*shared_pretraining.values, *flags]
  with shared_runs.isolate(root):
    assert runs.run_in_process(root / "run", flags, BERT)[0] == 0
    yield root, flags


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
def test_a_table_is_that_of_the_words_before_its_refresh(finished):
  workdir = finished[0] / "run"
  tables = {  # `aux` is the first array of a checkpoint
    i: runs.read_checkpoint(workdir, i)[0] for i in range(2, STEPS + 1)
  }
  assert (tables[2] == -1).all()
  assert (tables[3] >= 0).any() and (tables[3] != tables[5]).any()
  np.testing.assert_array_equal(tables[4], tables[3])
  with saved_model.open_run(workdir) as checkpoints:
    for step in (2, 4):
      saved, params = saved_model.load(checkpoints, step, report=print)
      vocab = saved.tokenizer.vocab
      words_V = np.array([t.isalpha() and t not in STOP_WORDS for t in vocab])
      expected_VxS = negatives.neighbour_ids(
        jnp.asarray(params["embeddings"]["word"]),
        words_V,
        top=TOP,
        threshold=THRESHOLD,
      )
      np.testing.assert_array_equal(tables[step + 1], expected_VxS)


@pytest.mark.slow
def test_resumed_run_ends_bit_equal(finished):
  root, flags = finished
  shutil.copytree(root / "run", root / "resumed")
  for step in range(4, STEPS + 1):
    shutil.rmtree(root / "resumed" / "checkpoints" / str(step))
  assert runs.run_in_process(root / "resumed", flags, BERT)[0] == 0
  last = [runs.read_checkpoint(root / x, STEPS) for x in ("run", "resumed")]
  assert runs.arrays_equal(*last)
