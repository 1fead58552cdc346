"""Exports the kept checkpoints of a run as at-MINUTES, as peer.py saves models.

  python studies/hour/curve.py WORKDIR MINUTES

The run has ended after MINUTES of the whole command. When the step of a
checkpoint was reached is interpolated between records.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np

from truenegs_jax.workdir.metrics_file import read_records


def main(workdir: str, minutes: str) -> None:
  records = read_records(Path(workdir))
  at, times = np.array([(x["step"], x["time"]) for x in records]).T
  steps = [int(x.name) for x in Path(workdir, "checkpoints").glob("[0-9]*")]
  for step in sorted(steps):
    left = (times[-1] - np.interp(step, at, times)) / 60
    folder = Path(workdir, f"at-{float(minutes) - left:.2f}")
    words = ["export", workdir, f"--step={step}", f"--output={folder}"]
    subprocess.run([sys.executable, "-m", "truenegs_jax", *words], check=True)


if __name__ == "__main__":
  main(*sys.argv[1:])
