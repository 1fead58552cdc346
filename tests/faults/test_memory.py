"""Memory that runs out ends a run with advice, and its checkpoint loads."""

import re
import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

from support import runs
from truenegs_jax import export, main, prepare
from truenegs_jax.configs import electra_demo
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


@pytest.mark.parametrize("command", ["export", "prepare"])
def test_other_commands_end_with_a_line_too(command, monkeypatch, capsys):
  def fill_memory(*args, **options):
    raise MemoryError

  monkeypatch.setattr(export, "_export", fill_memory)
  monkeypatch.setattr(prepare.prepare_lib, "make_plan", fill_memory)
  config = types.SimpleNamespace(value=electra_demo.get_config())
  known = types.SimpleNamespace(FLAGS={"config": config})
  monkeypatch.setattr(prepare, "flags", known)
  monkeypatch.setattr(prepare, "_choose_machines", dict)
  with pytest.raises(SystemExit) as e:
    if command == "export":
      export.main(["run"])
    sys.exit(prepare.main([]))
  assert e.value.code == 7
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith("error: Memory ran out (") and "config" not in line


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
