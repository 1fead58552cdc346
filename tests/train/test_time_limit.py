"""A run ends in time, with a learning rate of about 0 (fake clock)."""

import json

import pytest

from truenegs_jax.runtime import distributed
from truenegs_jax.train.speed import END_STARTS, TimeLimit

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
    self.clock = TimeLimit(
      STEPS, now=lambda: self.secs, limit_secs=60 * minutes, began=began
    )
    self.secs += TEXT_SECS
    if saved:
      self.clock.resume(json.loads(json.dumps(saved)))
    self.secs += COMPILE_SECS
    self.clock.start(done)

  def train(self, step_secs, stop_at=STEPS):
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
    return self.secs - 1_000 + END_STARTS * IMPORT_SECS


def jump(at, before, after):
  return lambda done: before if done < at else after


@pytest.mark.parametrize(
  "step_secs",
  [
    jump(0, 0.4, 0.4),
    jump(1, 20.0, 0.4),  # the first step allocates memory
    jump(500, 0.4, 1.2),  # other programs start
    jump(300, 1.2, 0.4),  # and end
    jump(0, 4.0, 4.0),
  ],
)
def test_run_ends_in_time_with_a_rate_of_0(step_secs):
  run = Command(10).train(step_secs)
  last_secs = step_secs(run.done)
  assert 600 - 10 <= run.end_secs <= 600 + max(last_secs, 5)
  assert run.done < 1_200
  assert run.clock.expected_steps(run.done) == run.done
  assert run.places[0] == 0 and sorted(run.places) == run.places
  assert run.places[-1] == pytest.approx(1, abs=0.02 + last_secs / 400)
  distances = [b - a for a, b in zip(run.places, run.places[1:], strict=False)]
  assert max(distances) < 0.1


@pytest.mark.parametrize("minutes", [0, 60])
def test_run_of_all_steps_has_the_schedule_of_one_without_limit(minutes):
  run = Command(minutes).train(jump(0, 0.4, 0.4))
  assert run.done == STEPS
  assert run.places == [done / STEPS for done in range(STEPS)]
  # More steps, with the time that it had.
  saved = run.clock.to_json()
  more = TimeLimit(
    2 * STEPS,
    now=lambda: run.secs,
    limit_secs=60 * minutes,
    began=run.secs,
  )
  more.resume(saved)
  more.start(STEPS)
  assert more.share < 1


@pytest.mark.parametrize(("minutes", "steps"), [(1, 1), (2, 1), (3, 13)])
def test_no_number_of_steps_is_too_small(minutes, steps):
  run = Command(minutes).train(jump(0, 5.0, 5.0))
  assert run.done == steps


@pytest.mark.parametrize("stop_at", [1, 60, 777])
def test_resume_has_the_time_that_is_left(stop_at):
  step_secs = jump(0, 0.4, 0.4)
  first = Command(10).train(step_secs, stop_at)
  saved = first.clock.to_json()
  second = Command(10, saved, stop_at).train(step_secs)
  assert second.end_secs + first.secs - 1_000 == pytest.approx(600, abs=10)
  assert second.places[0] >= first.places[-1] and second.places[-1] > 0.98


def test_run_that_has_ended_trains_on_only_if_it_gets_more():
  step_secs = jump(0, 0.4, 0.4)
  first = Command(10).train(step_secs)
  saved = first.clock.to_json()
  for import_secs in (0.0, IMPORT_SECS):  # of a second, faster start
    again = Command(10, saved, first.done, import_secs=import_secs)
    assert again.train(step_secs).done == first.done
  second = Command(20, saved, first.done).train(step_secs)
  assert first.done + 200 < second.done
  assert second.places[1] < 0.9 and second.places[-1] > 0.98
  no_limit = Command(0, saved, first.done).train(step_secs)
  assert no_limit.done == STEPS


def test_the_first_process_decides(monkeypatch):
  monkeypatch.setattr(distributed, "from_first", lambda name, value: "1.0")
  assert Command(10).train(jump(0, 9.0, 9.0)).done == 1
