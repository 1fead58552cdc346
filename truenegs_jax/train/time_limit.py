"""Ends a run within `config.minutes` by correcting its number of steps."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping

from truenegs_jax.runtime import distributed
from truenegs_jax.train import speed

TIME = "time"  # key of a checkpoint's description


@dataclasses.dataclass(kw_only=True)
class TimeLimit(speed.Clock):
  """Clock of a run that ends after `limit_secs`, if they are not 0.

  `total_steps` are at first all steps of the config. They become those that
  fit: the steps so far and, at their mean speed, those of the time left. The
  learning rate depends on step / total_steps, so it falls linearly with time.

  What follows the training (verdict, corrections, report, export) imports and
  compiles, too. It is expected to need five times the seconds from the start of
  the command to the reading of text, half of those from there to the first
  step (mostly compiling), and those of the last evaluation.
  """

  limit_secs: float
  began: float  # start of the command, by `now`; earlier if it resumes

  def __post_init__(self) -> None:
    self.max_steps = self.total_steps
    self._earlier_secs = 0.0  # of training, by earlier commands
    self._reserve_secs, self._prepared = 0.0, self.began

  @contextlib.contextmanager
  def preparing(self) -> Iterator[None]:
    """Leaves the body, which reads text, out of the estimate of the end."""
    self._reserve_secs = 5 * self.used_secs()
    yield
    self._prepared = self.now()

  def resume(
    self, saved: Mapping[str, float], done: int, *, more: bool
  ) -> None:
    """Continues after `done` steps, if some are left or the run gets `more`."""
    self.began -= saved["secs"]
    self._earlier_secs = saved["training_secs"]
    if self.limit_secs:
      total = max(int(saved["steps"]), done + more)
      self.total_steps = min(total, self.max_steps)

  def start(self, step: int) -> None:
    """Starts measuring at `step`."""
    super().start(step)
    self._reserve_secs += (self._started - self._prepared) / 2

  def to_json(self) -> dict[str, float]:
    """Returns what `resume` needs."""
    training_secs = self._earlier_secs + self.now() - self._started
    times = {"secs": self.used_secs(), "training_secs": training_secs}
    return times | {"steps": self.total_steps}

  def used_secs(self) -> float:
    """Returns the seconds of the run, of all its commands."""
    return self.now() - self.began

  def is_ending(self, name: str) -> bool:
    """Whether 3/4 of the time for what follows the training are over.

    The first process decides; `name` can be used once in a run.
    """
    if not self.limit_secs:
      return False
    end = self.limit_secs - self._reserve_secs / 4
    return bool(distributed.from_first(name, "over" * (end < self.used_secs())))

  def correct(self, done: int) -> None:
    """Corrects `total_steps` between steps; the first process decides.

    Not between all steps, because processes have to wait for one another.
    """
    interval = max(1, min(done // 4, (self.total_steps - done) // 20))
    if not self.limit_secs or done % (1 << interval.bit_length() - 1):
      return
    end_secs = self._reserve_secs + self.last_pause_secs
    left_secs = max(0.0, self.limit_secs - end_secs - self.used_secs())
    fitting = self.max_steps if left_secs else 0  # before a step is timed
    if done:
      secs = self._earlier_secs + self.now() - self._started
      fitting = int(done * (1 + left_secs / max(secs, 1e-9)))
    total = min(max(fitting, done + 1), self.max_steps)
    text = distributed.from_first(f"steps after {done}", str(total))
    self.total_steps = int(text)

  def schedule_step(self, done: int) -> int:
    """Returns the step of the schedule of `max_steps` after `done` steps."""
    return round(done * self.max_steps / self.total_steps)
