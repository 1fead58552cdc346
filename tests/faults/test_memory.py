"""Memory that runs out ends a run with advice, and its checkpoint loads."""

import re
import types

import jax.numpy as jnp
import numpy as np
import pytest

from support import runs
from truenegs_jax import main
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.runtime import errors

BERT = "bert_base:sr,runlocal"  # one network compiles faster than two
ALLOCATE = {
  "host": lambda: np.zeros(2**50),
  "device": lambda: jnp.zeros(2**46, jnp.int8).block_until_ready(),
}


@pytest.mark.parametrize("kind", ALLOCATE)
def test_a_command_that_runs_out_of_memory_ends_with_a_line(
  kind, monkeypatch, capsys
):
  values = types.SimpleNamespace(next=False, workdir="run")
  monkeypatch.setattr(main, "flags", types.SimpleNamespace(FLAGS=values))
  monkeypatch.setattr(main.cpu, "configure", lambda: None)
  monkeypatch.setattr(main, "_run", lambda: ALLOCATE[kind]())
  with pytest.raises(SystemExit) as e:
    main.main([])
  assert e.value.code == 7
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith("error: Memory ran out (")
  assert "optim.accumulation=2" in line and "remat=full" in line


@pytest.mark.slow
def test_a_run_that_ran_out_of_memory_is_resumed(
  tmp_path, monkeypatch, no_torch, one_device
):
  corpus = runs.write_corpus(tmp_path / "text")
  flags = runs.demo_flags(corpus, steps=4, checkpoint__every_steps=2)
  batch_at = run_lib.batches_lib.batch_at

  def fill_memory(rows, step, **more):
    return batch_at(rows, step, **more) if step < 3 else ALLOCATE["device"]()

  with monkeypatch.context() as patch, pytest.raises(Exception) as error:
    patch.setattr(run_lib.batches_lib, "batch_at", fill_memory)
    runs.run_in_process(tmp_path / "run", flags, BERT)
  assert errors.is_out_of_memory(error.value)
  code, output = runs.run_in_process(tmp_path / "run", flags, BERT)
  assert code == 0 and re.search("resumed at step [23]", output)
