"""Rates, clocks, waiting times and traces have the expected values."""

import types

import jax
import jax.numpy as jnp
import pytest

from truenegs_jax.runtime.errors import InputError
from truenegs_jax.train import speed


@pytest.mark.parametrize(
  "kind, dtype, peak",
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
def test_peak_is_the_published_one_or_none(kind, dtype, peak):
  assert speed.peak_flops(kind, dtype) == peak


def test_throughput_fields():
  sizes = dict(tokens=30.0, flops=8e9, devices=4)
  expected = {
    "rows_per_s": 100.0,
    "tokens_per_s": 3_000.0,
    "flop_per_s": 2e11,  # per device
  }
  assert speed.throughput_fields(100.0, **sizes, peak=None) == expected
  fields = speed.throughput_fields(100.0, **sizes, peak=1e12)
  assert fields == expected | {"mfu": 0.2}


def test_memory_is_reported_by_the_device_or_the_process():
  stats = {"bytes_in_use": 2**30, "peak_bytes_in_use": 3 * 2**30}
  device = types.SimpleNamespace(memory_stats=lambda: stats)
  fields = speed.memory_fields(device)
  assert fields == {"memory_gib": 1.0, "memory_peak_gib": 3.0}
  stats = None
  resident = speed.memory_fields(device)
  assert list(resident) == ["memory_peak_gib"]
  assert 0.05 < resident["memory_peak_gib"] < 100


class FakeTime:
  """A clock that the test sets."""

  def __init__(self):
    self.secs = 1_000.0

  def __call__(self):
    return self.secs


def test_remaining_time_counts_the_steps_of_this_process():
  time = FakeTime()
  clock = speed.Clock(total_steps=1_000, now=time)
  time.secs += 300.0  # compiling and restoring
  clock.start(900)  # resumed
  time.secs += 20.0
  assert clock.secs_per_step(910) == pytest.approx(2.0)
  clock.update(910)
  assert clock.eta_secs(910) == pytest.approx(180.0)
  before = clock.running()
  with clock.paused():
    time.secs += 500.0
  assert clock.running() == before
  time.secs += 20.0
  assert clock.secs_per_step(920) == pytest.approx(2.0)
  clock.update(1_000)
  assert clock.eta_secs(1_000) == 0.0


class FakeStep:
  """A training step whose dispatch takes `secs` of the fake time."""

  def __init__(self, time, *, secs=0.0, ended=False):
    self._time, self._secs, self.ended = time, secs, ended

  def __call__(self):
    self._time.secs += self._secs
    return "state", {"skipped": (self, 1.0)}

  def is_ready(self):
    return self.ended


def test_host_wait_of_steps_that_end_at_once():
  time = FakeTime()  # as on a CPU
  wait = speed.HostWait(time)
  assert wait.pop_fields() == {}
  for delay in (0.0, 1.0, 2.0):
    time.secs += delay
    step = FakeStep(time, secs=4.0, ended=True)
    assert wait.dispatch(step) == ("state", {"skipped": (step, 1.0)})
  assert wait.pop_fields() == {"host_wait": pytest.approx(3 / 15)}
  time.secs += 1.0
  wait.dispatch(FakeStep(time, secs=9.0, ended=True))
  fields = wait.pop_fields()  # since the last call
  assert fields == {"host_wait": pytest.approx(0.1)}


def test_host_wait_is_zero_while_a_step_is_queued():
  time = FakeTime()
  wait, previous = speed.HostWait(time), None
  for _ in range(4):
    step = FakeStep(time)
    wait.dispatch(step)
    time.secs += 10.0
    if previous:
      previous.ended = True
    previous = step
  assert wait.pop_fields() == {"host_wait": 0.0}


def test_host_wait_assumes_an_end_halfway():
  time = FakeTime()
  wait, step = speed.HostWait(time), FakeStep(time)
  wait.dispatch(step)
  time.secs, step.ended = time.secs + 10.0, True
  wait.dispatch(FakeStep(time))
  assert wait.pop_fields() == {"host_wait": pytest.approx(0.5)}


@pytest.mark.parametrize(
  "text", ["5", "5:", "5:5", "9:5", "-1:5", "5:21", "a:b"]
)
def test_bad_trace_is_refused(text):
  with pytest.raises(InputError, match=f"log.profile='{text}'.* 20\\. "):
    speed.parse_profile(text, 20)


@pytest.mark.parametrize(
  ("first_step", "until", "expected", "words"),
  [
    (0, 8, {"start": 3, "stop": 5}, "from step 3 to step 5"),
    (4, 8, {"start": 4, "stop": 5}, "from step 4 to step 5"),  # resumed
    (5, 8, {}, ""),  # resumed after the steps
    (0, 5, {"start": 3}, "from step 3"),  # the end of the run ends the trace
  ],
)
def test_a_trace_of_steps_3_to_5(
  tmp_path, monkeypatch, first_step, until, expected, words
):
  calls, lines, steps = [], [], {}
  for name in ("start", "stop"):
    monkeypatch.setattr(
      jax.profiler,
      f"{name}_trace",
      lambda *_, name=name, **__: calls.append(name),
    )
  profiler = speed.Profiler((3, 5), tmp_path, lines.append)
  for done in range(first_step, until):
    before = len(calls)
    profiler.update(done, jnp.ones(()))
    steps |= {name: done for name in calls[before:]}
  profiler.close()
  profiler.close()  # does nothing
  assert steps == expected and calls == ["start", "stop"] * bool(expected)
  assert len(lines) == bool(expected)
  for part in (words, f"{tmp_path / 'profile'}", "perfetto", "tensorboard"):
    assert all(part in line for line in lines)
