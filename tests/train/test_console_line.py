"""A log of a run has few lines, and a terminal all evaluations."""

import io
import re

import pytest
from rich.console import Console

from truenegs_jax.train import console_line


def make_record(step, **values):
  times = {"time": 0.0, "eta_s": 3.0, "rows_per_s": 7.0}
  return {"step": step, "split": "train", "total": 1.5, **times, **values}


# All columns of ELECTRA with soft regularization and of a GPU.
VALUES = {"total": 14.25, "mlm": 7.5, "detect": 0.65, "soft": 0.9}
VALUES |= {"sentence": 0.5, "corrected_of_slots": 0.0123, "auc": 0.75}


def print_run(steps, every, *, terminal=False, evaluate=0, **values):
  """Returns what ProgressLine prints at 80 columns in a run of `steps`."""
  out = io.StringIO()
  console = Console(file=out, force_terminal=terminal, width=80)
  line = console_line.ProgressLine(console, steps, first_step=0)
  for step in range(every, steps + 1, every):
    line.write(make_record(step, **{**VALUES, "eta_s": steps - step, **values}))
    if evaluate and not step % evaluate:
      held_out = {"step": step, "time": 0.0, "split": "held_out", "mlm": 4.0}
      line.write(held_out)
  line.close()
  return out.getvalue()


@pytest.mark.parametrize(
  "steps, every", [(12, 1), (1_500, 10), (10_000, 1), (1_000_000, 1_000)]
)
def test_log_of_a_run_is_short_and_has_its_end(steps, every):
  start, header, *lines = print_run(steps, every, mfu=0.45).splitlines()
  assert start == "first steps ..."
  assert len(lines) <= 30 and len(lines) >= min(steps, 20) / 2
  assert max(map(len, [header, *lines])) <= 80
  assert f"step of {steps:,}" in header and lines[0].split()[0] == f"{every:,}"
  assert lines[-1].split()[0] == f"{steps:,}"
  for column in ("mlm", "detect", "soft", "sentence", "corrected", "rows/s"):
    assert header.index(column) + len(column) in {
      m.end() for m in re.finditer(r"\S+", lines[0])
    }


def test_lines_are_an_hour_apart_at_most():
  out = io.StringIO()
  line = console_line.ProgressLine(
    Console(file=out, width=80), 10**6, first_step=0
  )
  for step in range(100_000, 100_300):
    line.write(make_record(step, time=60.0 * step))
  assert len(out.getvalue().splitlines()) == 2 + 5


@pytest.mark.parametrize("terminal", [False, True])
def test_evaluations_stay_on_the_screen(terminal):
  printed = print_run(1_000, 10, terminal=terminal, evaluate=500)
  text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", printed)
  for step in ("500", "1,000"):
    assert re.search(rf"held-out +{step} +4.000\r?\n", text)
  assert "first steps" in text and terminal == ("\x1b" in printed)
