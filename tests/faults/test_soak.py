"""A long run keeps its memory flat."""

import pytest

from support import runs

STEPS = 600
MAX_GROWTH = 1 / 1024  # GiB in 100 steps


@pytest.mark.faults
def test_memory_is_flat(tmp_path):
  flags = runs.demo_flags(
    runs.write_corpus(tmp_path / "corpus.txt"),
    steps=STEPS,
    checkpoint__every_steps=25,
    eval__every_steps=STEPS,
    **runs.SMALL_NETWORK,
  )
  env = runs.make_environment(tmp_path / "cache")
  code, output = runs.run(tmp_path / "run", flags, env)
  assert code == 0, output
  records = runs.read_records(tmp_path / "run")
  peaks = [record["memory_peak_gib"] for record in records]
  growth = (peaks[-1] - peaks[STEPS // 3]) / (STEPS * 2 / 3) * 100
  assert growth < MAX_GROWTH
