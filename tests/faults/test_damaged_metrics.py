"""A damaged metrics.jsonl never stops a run, and no line of it is lost."""

import json
import random

import pytest

from support.faults import tries
from truenegs_jax.workdir import files, metrics_file

LINES = [
  json.dumps({"step": step, "split": split, "mlm": step / 7}).encode() + b"\n"
  for step in range(1, 9)
  for split in ("train", "held_out")
]
ODD = (b"null", b'{"step": "3"}', b"\xff\xfe{}", b"[" * 3000, b"\0", b"{}")


def damage(rng) -> list[bytes]:
  """Returns the lines with a damaged, an odd and perhaps a cut line."""
  lines = list(LINES)
  index = rng.randrange(len(lines))
  line = bytearray(lines[index])
  line[rng.randrange(len(line) - 1)] ^= 1 << rng.randrange(8)
  lines[index] = bytes(line)
  lines.insert(rng.randrange(len(lines)), rng.choice(ODD) + b"\n")
  if rng.random() < 0.5:
    lines[-1] = lines[-1][: -rng.randrange(1, 20)]
  return lines


def split(content) -> list[bytes]:
  """Returns the lines that are not blank, without their ends."""
  return [line for line in content.split(b"\n") if line.strip()]


@pytest.mark.parametrize("seed", tries(6, 1000))
def test_damaged_lines_are_dropped(tmp_path, seed):
  path = tmp_path / files.METRICS
  path.write_bytes(b"".join(lines := damage(random.Random(seed))))
  intact = [line[:-1] for line in lines if line in LINES]
  metrics_file.JsonlWriter(tmp_path, first_step=9).close()
  kept = split(path.read_bytes())
  assert [line for line in kept if line in intact] == intact
  assert {*kept} <= {*split(b"".join(lines))}
  assert len(metrics_file.read_records(tmp_path)) == len(kept)
