"""Measures the speed and memory of a run, profiles it and limits its time."""

import contextlib
import dataclasses
import functools
import pathlib
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import atomic_folder, disk_errors
from truenegs_jax.runtime.paths import is_bucket
from truenegs_jax.train import sharding
from truenegs_jax.train.step import Terms, TrainState
from truenegs_jax.workdir import files

TIME = "time"  # key of a checkpoint's description
# Verdict, export and report import and compile, too: they take about as long as
# so many times the imports of the command.
END_STARTS = 6
# Peak FLOP/s of a device in dense products, published by the manufacturer:
# (pattern of the whole device kind, dtype, peak). The first match counts.
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


@functools.cache
def device_memory() -> int:
  """Returns the bytes that JAX may use of a device of the first process."""
  sharding.device_count()  # InputError if there is none
  stats = jax.local_devices()[0].memory_stats() or {}
  limit = stats.get("bytes_limit", 16 * 2**30)  # CPUs do not tell
  return int(distributed.from_first("device_memory", str(limit)))


def peak_flops(device_kind: str, dtype: str) -> float | None:
  """Returns the published peak FLOP/s of a device; None for float32."""
  for pattern, peak_dtype, peak in PEAK_FLOPS:
    if re.fullmatch(pattern, device_kind):
      return peak if dtype == peak_dtype else None
  return None


def throughput_fields(
  rows_per_s: float,
  *,
  tokens: float,
  flops: float,
  devices: int,
  peak: float | None,
) -> dict[str, float]:
  """Computes the fields of a record that follow from the rate of rows.

  A row has `tokens` tokens without padding on average and costs `flops` FLOP.
  `peak`, `flop_per_s` and `mfu` (model FLOP utilization) are those of one
  device, the others of all together.
  """
  per_device = rows_per_s * flops / devices
  fields = {"rows_per_s": rows_per_s, "tokens_per_s": rows_per_s * tokens}
  fields["flop_per_s"] = per_device
  return fields if peak is None else fields | {"mfu": per_device / peak}


def memory_fields(device: jax.Device) -> dict[str, float]:
  """Returns the memory of a device (of this process on CPUs), in GiB."""
  stats = device.memory_stats() or {}
  unit = 1 if sys.platform == "darwin" else 1024
  resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
  gib = {"memory_peak_gib": stats.get("peak_bytes_in_use", resident) / 2**30}
  if "bytes_in_use" in stats:
    gib["memory_gib"] = stats["bytes_in_use"] / 2**30
  return gib


@dataclasses.dataclass
class Clock:
  """Measures the step time, and the share of a run that has passed.

  Only the steps of this process count, and neither the time before `start`
  (compiling, restoring) nor that in `paused` (evaluation).
  """

  total_steps: int
  now: Callable[[], float] = time.perf_counter
  share: float = 0.0  # of the run that has passed, up to 1
  last_pause_secs: float = 0.0
  _started: float = 0.0
  _first_step: int = 0
  _paused_secs: float = 0.0

  def start(self, step: int) -> None:
    """Starts measuring at `step`."""
    self._first_step = step
    self._started = self.now()
    self._paused_secs = 0.0
    self.update(step)

  def update(self, done: int) -> None:
    """Measures `share` after `done` steps, once for each number."""
    self.share = min(done / self.total_steps, 1.0)

  @property
  def schedule_step(self) -> int:
    """The step of the learning rate's schedule at `share`."""
    return round(self.share * self.total_steps)

  def running(self) -> float:
    """Returns the time in seconds without pauses."""
    return self.now() - self._paused_secs

  @contextlib.contextmanager
  def paused(self) -> Iterator[None]:
    """Stops the clock while the context is open."""
    began = self.now()
    yield
    self.last_pause_secs = self.now() - began
    self._paused_secs += self.last_pause_secs

  def secs_per_step(self, step: int) -> float:
    """Returns the mean seconds per step since `start`."""
    steps = max(step - self._first_step, 1)
    return max(self.running() - self._started, 1e-9) / steps

  def expected_steps(self, done: int) -> int:
    """Estimates the number of all steps, at `share` after `done` steps."""
    return round(done / self.share) if self.share else self.total_steps

  def eta_secs(self, done: int) -> float:
    """Estimates the seconds of the remaining steps."""
    return (self.expected_steps(done) - done) * self.secs_per_step(done)


@dataclasses.dataclass(kw_only=True)
class TimeLimit(Clock):
  """Clock of a run that also ends when `limit_secs` are over, if not 0.

  `share`, which the learning rate follows, is the larger of two: of the steps
  that are done, and of the time for training that has passed. That time is what
  the start leaves of the limit, without the last evaluation and END_STARTS
  times the imports of the command, for what follows the training.
  """

  limit_secs: float
  began: float  # start of the command, by `now`; earlier if it resumes

  def __post_init__(self) -> None:
    self._trained_secs = 0.0  # by earlier commands
    self._end_secs = END_STARTS * self.used_secs()
    self._next_step = 1  # after which the time is measured
    self._has_ended = False

  def resume(self, saved: Mapping[str, float]) -> None:
    """Continues after what `to_json` has returned.

    A run that has ended trains on if it gets more minutes or steps.
    """
    self.began -= saved["secs"]
    self._trained_secs = saved["training_secs"]
    gets_more = self.total_steps > saved["total_steps"]
    gets_more |= not 0 < self.limit_secs <= saved["limit_secs"]
    self._has_ended = saved["share"] == 1 and not gets_more

  def to_json(self) -> dict[str, float]:
    """Returns what `resume` needs."""
    return {
      "secs": self.used_secs(),
      "training_secs": self._trained_secs + self.now() - self._started,
      "share": self.share,
      "total_steps": self.total_steps,
      "limit_secs": self.limit_secs,
    }

  def used_secs(self) -> float:
    """Returns the seconds of the run, of all its commands."""
    return self.now() - self.began

  def estimate_secs(self, done: int) -> float:
    """Estimates the seconds of a run of all steps, after `done` steps."""
    step_secs = self.to_json()["training_secs"] / max(done, 1)
    left_secs = (self.total_steps - done) * step_secs
    return self.used_secs() + left_secs + 2 * self._end_secs

  def is_over(self, name: str) -> bool:
    """Whether there is a limit, and its time is over; once per `name`."""
    if not self.limit_secs:
      return False
    answer = "over" if self.used_secs() > self.limit_secs else ""
    return bool(distributed.from_first(name, answer))

  def update(self, done: int) -> None:
    """Measures `share`, and the time some 50 times; at least a step is taken.

    The first process decides, which the others have to wait for.
    """
    self.share = max(self.share, min(done / self.total_steps, 1.0))
    if self._has_ended:
      self.share = 1.0
    if not self.limit_secs or self.share == 1 or done < self._next_step:
      return
    secs = self.to_json()["training_secs"]
    end_secs = self._end_secs + self.last_pause_secs
    left_secs = self.limit_secs - end_secs - self.used_secs()
    share = max(self.share, secs / max(secs + left_secs, 1e-9))
    text = distributed.from_first(f"share {done}", str(min(share, 1.0)))
    self.share = float(text)
    self._next_step = done + max(1, (self.expected_steps(done) - done) // 50)


class HostWait:
  """Measures the share of the time in which the devices wait for the host.

  They are idle from the end of a step until the next is dispatched. A step that
  has ended when its dispatch returns, as on a CPU, ended at that moment; one
  that ends later, before the next dispatch, halfway between the two.
  """

  def __init__(self, now: Callable[[], float] = time.perf_counter):
    self._now = now  # in seconds; may stop during work that does not count
    self._result: Any = None  # an output of the last step
    self._ended_at_once = False  # when the last dispatch returned
    self._since = self._dispatched = self._waited = 0.0

  def dispatch(self, step: Callable, *args: object) -> tuple[TrainState, Terms]:
    """Calls `step(*args)`, which returns `(state, terms)`, and measures."""
    began = self._now()
    if self._result is None:
      self._since = began
    elif self._result.is_ready():
      idle = began - self._dispatched
      self._waited += idle if self._ended_at_once else idle / 2
    state, terms = step(*args)
    self._result = terms["skipped"][0]
    self._dispatched = self._now()
    self._ended_at_once = self._result.is_ready()
    return state, terms

  def pop_fields(self) -> dict[str, float]:
    """Returns `host_wait` (0 to 1) since the last call, if there is any."""
    now = self._now()
    passed = now - self._since
    if self._result is None or passed <= 0:
      return {}
    share = min(self._waited / passed, 1.0)
    self._since = now
    self._waited = 0.0
    return {"host_wait": share}


def parse_profile(text: str, steps: int) -> tuple[int, int] | None:
  """Parses log.profile: "M:N" traces from step M to step N, "" nothing."""
  if not text:
    return None
  match = re.fullmatch(r"(\d+):(\d+)", text)
  first, last = map(int, match.groups()) if match else (0, 0)
  if not first < last <= steps:
    raise InputError(
      f"log.profile={text!r} must be M:N with M < N <= {steps}. For example,"
      " --config.log.profile=10:15 traces the five steps after step 10."
    )
  return first, last


class Profiler:
  """Traces some steps of a run with jax.profiler into WORKDIR/profile."""

  def __init__(
    self,
    steps: tuple[int, int] | None,
    workdir: pathlib.Path,
    report: Callable[[str], None],
  ):
    self._first, self._last = steps or (0, 0)
    self._folder = workdir / files.PROFILE
    self._report = report
    self._since: int | None = None  # step at which the current trace started
    self._stack = contextlib.ExitStack()  # ends with the trace

  def update(self, done: int, result: jax.Array) -> None:
    """Starts or ends the trace if due after `done` steps, once `result` is."""
    is_traced = self._first <= done < self._last
    if is_traced == (self._since is not None):
      return
    jax.block_until_ready(result)
    if not is_traced:
      return self.close(done)
    with disk_errors(self._folder):
      folder = self._folder
      if is_bucket(folder):  # to which it is written at the end
        folder = self._stack.enter_context(atomic_folder(folder))
      jax.profiler.start_trace(folder, create_perfetto_trace=True)
    self._since = done

  def close(self, done: int | None = None) -> None:
    """Ends the current trace, if any; `done` is None for an interrupted run."""
    if self._since is None:
      return
    since = self._since
    self._since = None
    with self._stack, disk_errors(self._folder):
      jax.profiler.stop_trace()
    until = "the end of the run" if done is None else f"step {done:,}"
    self._report(
      f"Traced from step {since:,} to {until} into '{self._folder}'. Open it"
      f" with tensorboard --logdir={self._folder} (pip install tensorboard"
      " xprof), or its perfetto_trace.json.gz with https://ui.perfetto.dev."
    )
