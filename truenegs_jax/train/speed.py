"""How fast a run goes, what it takes of a device, and where its time goes."""

import contextlib
import dataclasses
import pathlib
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import disk_errors
from truenegs_jax.workdir import files

# Most FLOP/s of a device in dense products, as its maker publishes it; the
# first pattern that fits the whole device kind counts.
PEAK_FLOPS = (
  ("NVIDIA H100 PCIe", "bfloat16", 756e12),
  ("NVIDIA H[12]00 NVL", "bfloat16", 835e12),
  ("NVIDIA (H100|H200|GH200).*", "bfloat16", 989e12),
  ("NVIDIA A100.*", "bfloat16", 312e12),
  (".*V100.*", "float16", 125e12),
  ("TPU v4", "bfloat16", 275e12),
  ("TPU v5( lite|e)", "bfloat16", 197e12),
  ("TPU v5p?", "bfloat16", 459e12),
  ("TPU v6( lite|e)", "bfloat16", 918e12),
)


def peak_flops(device_kind: str, dtype: str) -> float | None:
  """The published peak in FLOP/s of a device; None where there is none.

  float32 has none: how its products are rounded, and so how fast they are, is
  not the same on all devices.
  """
  for pattern, of_dtype, peak in PEAK_FLOPS:
    if re.fullmatch(pattern, device_kind):
      return peak if dtype == of_dtype else None
  return None


def throughput_fields(
  rows_per_s: float,
  *,
  tokens: float,
  flops: float,
  devices: int,
  peak: float | None,
) -> dict[str, float]:
  """The fields of a record that follow from a rate of rows.

  Args:
    rows_per_s: of the whole run, as all else but `flop_per_s` and `mfu`.
    tokens: real ones of a row.
    flops: FLOP of a row.
    devices: how many share the work.
    peak: FLOP/s of one of them.
  """
  per_device = rows_per_s * flops / devices
  found = {
    "rows_per_s": rows_per_s,
    "tokens_per_s": rows_per_s * tokens,
    "flop_per_s": per_device,
  }
  return found if peak is None else found | {"mfu": per_device / peak}


def memory_fields(device: Any) -> dict[str, float]:
  """GiB in use on a device and its peak, as the device tells them.

  A CPU does not; its peak is then the resident memory of this process.
  """
  stats = device.memory_stats() or {}
  unit = 1 if sys.platform == "darwin" else 1024
  resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
  peak = stats.get("peak_bytes_in_use", resident)
  gib = {"memory_peak_gib": peak / 2**30}
  if "bytes_in_use" in stats:
    gib["memory_gib"] = stats["bytes_in_use"] / 2**30
  return gib


@dataclasses.dataclass
class Clock:
  """Rate and remaining time, from the steps of this process alone.

  Time before `start` (compiling, restoring) and while `paused` (evaluation)
  does not count, so the estimate is right after a resume.
  """

  total_steps: int
  now: Callable[[], float] = time.perf_counter
  _since: float = 0.0
  _first: int = 0
  _away: float = 0.0

  def start(self, step: int) -> None:
    """Begins to count at `step`."""
    self._first, self._since, self._away = step, self.now(), 0.0

  def running(self) -> float:
    """The time in seconds, which stands still while paused."""
    return self.now() - self._away

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Time inside counts neither for the rate nor for the estimate."""
    began = self.now()
    yield
    self._away += self.now() - began

  def secs_per_step(self, step: int) -> float:
    """Mean seconds of a step since `start`."""
    done = max(step - self._first, 1)
    return max(self.running() - self._since, 1e-9) / done

  def eta_secs(self, step: int) -> float:
    """Seconds that the remaining steps will take."""
    return (self.total_steps - step) * self.secs_per_step(step)


class HostWait:
  """The share of the time in which the devices waited for this process.

  From the end of a step until the next one is dispatched they have nothing to
  do: the host was late with a batch, the dispatch, a record or a checkpoint.
  A step that has ended when its dispatch returns, as on a CPU, ended then; one
  that ends before the next is dispatched is taken to end halfway between. It is
  no measure of what happens within a step.
  """

  def __init__(self, now: Callable[[], float] = time.perf_counter):
    """`now`: a clock that stands still while nothing is to be counted."""
    self._now = now
    self._newest: Any = None  # there once the last step has ended
    self._since = self._dispatched = self._waited = 0.0
    self._at_once = False  # the newest step had ended as it was dispatched
    self._dispatches = 0

  def dispatch(self, step: Callable, *args: Any) -> tuple[Any, Any]:
    """`step(*args)`, a `(state, terms)`, with the time before it noted."""
    began, self._dispatches = self._now(), self._dispatches + 1
    if self._newest is None:
      self._since = began
    elif self._newest.is_ready():
      idle = began - self._dispatched
      self._waited += idle if self._at_once else idle / 2
    state, terms = step(*args)
    self._newest = terms["skipped"][0]
    self._dispatched, self._at_once = self._now(), self._newest.is_ready()
    return state, terms

  def share(self) -> dict[str, float]:
    """`host_wait`, 0 to 1, since the last time; nothing before two steps."""
    now = self._now()
    passed, waited = now - self._since, self._waited
    if self._dispatches < 2 or passed <= 0:
      return {}
    self._since, self._waited = now, 0.0
    return {"host_wait": min(waited / passed, 1.0)}


def parse_profile(text: str, steps: int) -> tuple[int, int] | None:
  """M and N of log.profile="M:N", a trace from step M to step N.

  Raises:
    InputError: not of this form, or not 0 <= M < N <= steps.
  """
  if not text:
    return None
  form = re.fullmatch(r"(\d+):(\d+)", text)
  first, last = map(int, form.groups()) if form else (0, 0)
  if not first < last <= steps:
    raise InputError(
      f"log.profile is {text!r}; give two steps M:N of this run, M < N <="
      f" {steps}: --config.log.profile=10:15 traces the five after step 10."
    )
  return first, last


class Profiler:
  """A trace by jax.profiler of some of a run's steps, in WORKDIR/profile."""

  def __init__(
    self,
    steps: tuple[int, int] | None,
    workdir: pathlib.Path,
    say: Callable[[str], Any],
    *,
    first_step: int,
  ):
    """Traces `steps`, (M, N), or as much of it as comes after `first_step`."""
    self._first, self._last = steps or (0, 0)
    self._folder = workdir / files.PROFILE
    self._say = say
    self._since: int | None = None
    if steps and first_step >= self._last:
      say(
        f"log.profile={self._first}:{self._last}: no trace, the run starts at"
        f" step {first_step:,}"
      )

  def at(self, done: int, newest: jax.Array) -> None:
    """Begins or ends the trace when `done` steps have been dispatched.

    Args:
      done: how many.
      newest: what is there once they are through.
    """
    if self._since is not None and done >= self._last:
      jax.block_until_ready(newest)
      self.close(done)
    elif self._since is None and self._first <= done < self._last:
      jax.block_until_ready(newest)
      with disk_errors(self._folder):
        jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
      self._since = done

  def close(self, done: int | None = None) -> None:
    """Ends a trace that is under way, and says where it lies."""
    if self._since is None:
      return
    since, self._since = self._since, None
    with disk_errors(self._folder):
      jax.profiler.stop_trace()
    until = "where the run ended" if done is None else f"step {done:,}"
    self._say(
      f"traced from step {since:,} to {until}: {self._folder}/; open it with"
      f" tensorboard --logdir={self._folder} (pip install tensorboard xprof),"
      " or its perfetto_trace.json.gz with ui.perfetto.dev"
    )
