"""Rates, clocks, waiting times and traces against what they must come to."""

import jax
import jax.numpy as jnp
import pytest

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import speed


@pytest.mark.parametrize(
  "kind, dtype, want",
  [
    ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
    ("NVIDIA H100 PCIe", "bfloat16", 756e12),
    ("NVIDIA H200", "bfloat16", 989e12),
    ("NVIDIA H200 NVL", "bfloat16", 835e12),
    ("NVIDIA A100-SXM4-80GB", "bfloat16", 312e12),
    ("Tesla V100-SXM2-16GB", "float16", 125e12),
    ("Tesla V100-SXM2-16GB", "bfloat16", None),
    ("TPU v4", "bfloat16", 275e12),
    ("TPU v4 lite", "bfloat16", None),
    ("TPU v5 lite", "bfloat16", 197e12),
    ("TPU v5", "bfloat16", 459e12),
    ("TPU v6 lite", "bfloat16", 918e12),
    ("NVIDIA H100 80GB HBM3", "float32", None),
    ("cpu", "bfloat16", None),
  ],
)
def test_the_peak_of_a_device_is_the_published_one_or_none(kind, dtype, want):
  assert speed.peak_flops(kind, dtype) == want


def test_a_rate_is_told_in_rows_tokens_operations_and_of_the_peak():
  found = speed.throughput_fields(
    100.0, tokens=30.0, flops=8e9, devices=4, peak=1e12
  )
  assert found == {
    "rows_per_s": 100.0,
    "tokens_per_s": 3_000.0,
    "flop_per_s": 2e11,  # of each of the four
    "mfu": 0.2,
  }
  none = speed.throughput_fields(
    100.0, tokens=30.0, flops=8e9, devices=4, peak=None
  )
  assert none == {k: v for k, v in found.items() if k != "mfu"}


class Device:
  def __init__(self, stats):
    self.memory_stats = lambda: stats


def test_memory_is_what_the_device_tells_or_what_this_process_takes():
  told = {"bytes_in_use": 2**30, "peak_bytes_in_use": 3 * 2**30}
  assert speed.memory_fields(Device(told)) == {
    "memory_gib": 1.0,
    "memory_peak_gib": 3.0,
  }
  resident = speed.memory_fields(Device(None))
  assert list(resident) == ["memory_peak_gib"]
  assert 0.05 < resident["memory_peak_gib"] < 100


class Time:
  """A clock that goes when told to."""

  def __init__(self):
    self.secs = 1_000.0

  def __call__(self):
    return self.secs


def test_the_remaining_time_goes_by_the_steps_of_this_process():
  time = Time()
  clock = speed.Clock(total_steps=1_000, now=time)
  time.secs += 300.0  # compiling and restoring
  clock.start(900)  # resumed
  time.secs += 20.0
  assert clock.secs_per_step(910) == pytest.approx(2.0)
  assert clock.eta_secs(910) == pytest.approx(180.0)
  before = clock.running()
  with clock.paused():
    time.secs += 500.0
  assert clock.running() == before
  time.secs += 20.0
  assert clock.secs_per_step(920) == pytest.approx(2.0)
  assert clock.eta_secs(1_000) == 0.0


def test_the_clock_divides_by_no_zero_before_the_first_step():
  clock = speed.Clock(total_steps=10, now=Time())
  clock.start(4)
  assert 0.0 < clock.secs_per_step(4) < 1e-6


class Step:
  """A step of a device; `secs` pass on the host's clock as it is dispatched."""

  def __init__(self, time, *, secs=0.0, ended=False):
    self._time, self._secs, self.ended = time, secs, ended

  def __call__(self):
    self._time.secs += self._secs
    return "state", {"skipped": (self, 1.0)}

  def is_ready(self):
    return self.ended


def test_steps_that_end_as_they_are_dispatched_wait_for_the_rest():
  time = Time()  # as on a CPU
  wait = speed.HostWait(time)
  assert wait.share() == {}
  for late in (0.0, 1.0, 2.0):
    time.secs += late
    step = Step(time, secs=4.0, ended=True)
    assert wait.dispatch(step) == ("state", {"skipped": (step, 1.0)})
  assert wait.share() == {"host_wait": pytest.approx(3 / 15)}
  time.secs += 1.0
  wait.dispatch(Step(time, secs=9.0, ended=True))
  assert wait.share() == {"host_wait": pytest.approx(0.1)}  # since then


def test_a_device_that_is_always_one_step_ahead_waits_for_nobody():
  time = Time()
  wait, before = speed.HostWait(time), None
  for _ in range(4):
    step = Step(time)
    wait.dispatch(step)
    time.secs += 10.0
    if before:
      before.ended = True
    before = step
  assert wait.share() == {"host_wait": 0.0}


def test_a_step_that_ended_unseen_ended_halfway_to_the_next_one():
  time = Time()
  wait, step = speed.HostWait(time), Step(time)
  wait.dispatch(step)
  time.secs, step.ended = time.secs + 10.0, True
  wait.dispatch(Step(time))
  assert wait.share() == {"host_wait": pytest.approx(0.5)}


@pytest.mark.parametrize(
  "text", ["5", "5:", "5:5", "9:5", "-1:5", "5:21", "a:b"]
)
def test_a_trace_of_steps_that_cannot_be_is_refused(text):
  with pytest.raises(InputError, match=f"log.profile is '{text}'.* 20:"):
    speed.parse_profile(text, 20)


def test_a_trace_may_be_of_all_steps_or_of_none():
  assert speed.parse_profile("0:20", 20) == (0, 20)
  assert speed.parse_profile("", 20) is None


@pytest.fixture
def trace(monkeypatch):
  """What the profiler is told: "start", "stop"."""
  told = []
  profiler = jax.profiler
  monkeypatch.setattr(
    profiler, "start_trace", lambda *_, **__: told.append("start")
  )
  monkeypatch.setattr(profiler, "stop_trace", lambda: told.append("stop"))
  return told


def go(tmp_path, trace, *, first_step, until):
  """(where each call came, what was said) of a trace from step 3 to 5."""
  said, calls = [], {}
  profile = speed.Profiler((3, 5), tmp_path, said.append, first_step=first_step)
  for done in range(first_step, until):
    before = len(trace)
    profile.at(done, jnp.ones(()))
    calls |= {name: done for name in trace[before:]}
  profile.close()
  profile.close()  # once is enough
  return calls, said


def test_a_trace_goes_from_step_to_step(tmp_path, trace):
  calls, said = go(tmp_path, trace, first_step=0, until=8)
  assert calls == {"start": 3, "stop": 5} and trace == ["start", "stop"]
  (line,) = said
  assert "from step 3 to step 5" in line and f"{tmp_path / 'profile'}" in line
  assert "perfetto" in line and "tensorboard" in line


def test_a_resumed_run_traces_what_is_left_of_it_or_says_there_is_none(
  tmp_path, trace
):
  calls, said = go(tmp_path, trace, first_step=4, until=8)
  assert calls == {"start": 4, "stop": 5} and "step 4 to step 5" in said[0]
  calls, said = go(tmp_path, trace, first_step=5, until=8)
  assert not calls and "3:5: no trace" in said[0] and "step 5" in said[0]


def test_a_run_that_ends_before_its_trace_ends_it(tmp_path, trace):
  calls, said = go(tmp_path, trace, first_step=0, until=5)
  assert calls == {"start": 3} and trace == ["start", "stop"]
  assert "from step 3" in said[0]
