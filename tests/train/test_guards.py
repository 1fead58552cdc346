"""Signals, bad updates and the end of its time stop a run."""

import io
import json
import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.train import guards, sharding


def add_steps(guard, skips):
  for step, skipped in enumerate(skips):
    guard.add(step, jnp.float32(skipped))
  guard.check_pending()


def test_too_many_skips_in_a_row_stop_a_run():
  guard = guards.SkipGuard(max_skips=2)
  add_steps(guard, [1, 1, 0, 1, 1, 0, 0, 1, 1])
  with pytest.raises(NonFiniteError, match="step 0 .*3 in a row, .*_skips=2"):
    add_steps(guard, [1, 0])
  with pytest.raises(NonFiniteError, match="step 1 .*1 in a row"):
    add_steps(guards.SkipGuard(max_skips=0), [0, 1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_and_handlers_are_restored(
  monkeypatch, number
):
  def leave(code):
    raise SystemExit(code)

  monkeypatch.setattr(os, "_exit", leave)
  out = io.StringIO()
  before = signal.getsignal(number)
  mesh = sharding.make_mesh(sharding.get_mesh_spec("dp"))
  with guards.StopSignals(Console(file=out)) as signals:
    vote = guards.StopVote(signals, mesh)
    assert vote.poll() is None
    os.kill(os.getpid(), number)
    assert vote.poll() == number and number.name in out.getvalue()
    with pytest.raises(SystemExit, match="137"):  # 75 promises a checkpoint
      os.kill(os.getpid(), number)
  assert signal.getsignal(number) == before


STEPS = 1_500
IMPORT_SECS, TEXT_SECS, COMPILE_SECS, EVAL_SECS = 5.0, 60.0, 20.0, 8.0


class Command:
  """A command of a run of STEPS steps, on a clock that starts at 1,000 s."""

  def __init__(self, minutes, saved=None, done=0, import_secs=IMPORT_SECS):
    self.secs = 1_000.0
    self.done = done
    self.places = []
    began = self.secs
    self.secs += import_secs
    self.clock = guards.Clock(STEPS, 60 * minutes, began, lambda: self.secs)
    self.secs += TEXT_SECS
    if saved:
      self.clock.resume(json.loads(json.dumps(saved)))
    self.secs += COMPILE_SECS
    self.clock.start(done)

  def train(self, step_secs=lambda done: 0.4, stop_at=STEPS):
    """Trains; `step_secs` is a function of the step."""
    while self.clock.share < 1 and self.done < stop_at:
      self.places.append(self.clock.schedule_step / STEPS)
      self.secs += step_secs(self.done)
      self.done += 1
      self.clock.update(self.done)
      if self.clock.share == 1 or not self.done % 100:
        with self.clock.paused():
          self.secs += EVAL_SECS
    return self

  @property
  def end_secs(self):
    """Seconds of the command, with what follows the training."""
    return self.secs - 1_000 + guards.END_STARTS * IMPORT_SECS


@pytest.mark.parametrize(
  ("at", "before", "after"),
  [
    (0, 0.4, 0.4),
    (1, 20.0, 0.4),  # the first step allocates memory
    (500, 0.4, 1.2),  # other programs start
    (300, 1.2, 0.4),  # and end
    (0, 4.0, 4.0),
  ],
)
def test_a_run_ends_in_time_with_a_rate_of_0(at, before, after):
  run = Command(10).train(lambda done: before if done < at else after)
  assert 600 - 10 <= run.end_secs <= 600 + max(after, 5)
  assert run.done < 1_200
  assert run.clock.expected_steps(run.done) == run.done
  assert run.places[0] == 0 and sorted(run.places) == run.places
  assert run.places[-1] == pytest.approx(1, abs=0.02 + after / 400)
  assert max(np.diff(run.places)) < 0.1
  assert run.clock.is_over() == (run.secs - 1_000 > 600)


@pytest.mark.parametrize("minutes", [0, 60])
def test_a_run_of_all_steps_has_the_schedule_of_one_without_limit(minutes):
  run = Command(minutes).train()
  assert run.done == STEPS
  assert run.places == [done / STEPS for done in range(STEPS)]


@pytest.mark.parametrize("stop_at", [1, 777])
def test_a_resume_has_the_time_that_is_left(stop_at):
  first = Command(10).train(stop_at=stop_at)
  second = Command(10, first.clock.to_json(), stop_at).train()
  assert second.end_secs + first.secs - 1_000 == pytest.approx(600, abs=10)
  assert second.places[0] >= first.places[-1] and second.places[-1] > 0.98


def test_a_run_that_has_ended_trains_on_only_if_it_gets_more():
  first = Command(10).train()
  saved = first.clock.to_json()
  for import_secs in (0.0, IMPORT_SECS):  # of a second, faster start
    again = Command(10, saved, first.done, import_secs=import_secs)
    assert again.train().done == first.done
  second = Command(20, saved, first.done).train()
  assert first.done + 200 < second.done
  assert second.places[1] < 0.9 and second.places[-1] > 0.98
  assert Command(0, saved, first.done).train().done == STEPS
