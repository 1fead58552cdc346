"""Memory that runs out ends a run with advice and its own exit code."""

import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax import main

ALLOCATE = {
  "host": lambda: np.zeros(2**50),
  "device": lambda: jnp.zeros(2**46, jnp.int8).block_until_ready(),
}


@pytest.mark.parametrize("kind", ALLOCATE)
def test_a_command_that_runs_out_of_memory_ends_with_a_line(
  kind, monkeypatch, capsys
):
  monkeypatch.setattr(main.cpu, "configure", lambda: None)
  monkeypatch.setattr(main, "_run", lambda: ALLOCATE[kind]())
  with pytest.raises(SystemExit) as e:
    main.main([])
  assert e.value.code == 7
  [line] = capsys.readouterr().err.splitlines()
  assert line.startswith("error: Memory ran out (")
  assert "optim.accumulation=2" in line and "remat=full" in line
