"""The loop reads metrics from devices late enough, with a fake step."""

import dataclasses
import json
import signal
import types
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.runtime.errors import DiskError, NonFiniteError
from truenegs_jax.train import guards, loop
from truenegs_jax.workdir.lock import Lease

STEPS = 6


@dataclasses.dataclass
class FakeArray:
  """A number on a device; calls `on_fetch` when it is read as an array."""

  value: float
  on_fetch: Callable[[], object]

  def block_until_ready(self):
    return self

  def __array__(self, dtype=None, copy=None):
    self.on_fetch()
    return np.asarray(self.value, dtype)

  def __float__(self):
    return float(self.value)


class FakeCheckpoints:
  """Appends events instead of saving, and keeps the descriptions."""

  full_at = ()  # steps at which the disk is full
  cut_off_at = ()  # steps whose records cannot be written
  lease = Lease()

  def __init__(self, events):
    self._events, self.descriptions = events, {}

  def save(self, done, state, description, *, wait):
    self._events.append(("saved", done))
    self.descriptions[done] = description
    if done in self.full_at:
      raise DiskError("full")
    return ""

  def latest_step(self):
    return None

  def read_description(self, step):
    return self.descriptions[step]


def run_loop(*, bad=(), stop_at=None, param=1.0, saved=None, max_skips=0):
  """Returns the events, records and checkpoints of a run of 6 steps.

  It begins at the only step of `saved`, if there is one.
  """
  events, records, received = [], [], []
  checkpoints = FakeCheckpoints(events)
  checkpoints.descriptions |= saved or {}

  def take_step(state, done):
    events.append(("dispatched", done + 1))
    if done + 1 == stop_at:
      received.append(signal.SIGTERM)
    terms = {
      "mlm": (
        FakeArray(done, lambda: events.append(("fetched", done + 1))),
        1.0,
      ),
      "skipped": (FakeArray(done + 1 in bad, lambda: None), 1.0),
    }
    state = types.SimpleNamespace(step=done + 1, params=state.params)
    return state, terms

  def log(record):
    events.append(("written", record["step"]))
    records.append(record)

  def flush_log():
    events.append("flushed")
    if records and records[-1]["step"] in checkpoints.cut_off_at:
      raise DiskError("cut off")

  def evaluate(done, state):
    assert state.step == done
    events.append(("evaluated", done))

  state = types.SimpleNamespace(
    step=max(checkpoints.descriptions, default=0), params=jnp.full(3, param)
  )
  run = loop.Loop(
    state=state,
    take_step=take_step,
    loss_weights={"mlm": 2.0},
    learning_rate=jnp.float32,
    log_every=2,
    log=log,
    flush_log=flush_log,
    is_evaluated=lambda done: done == STEPS,
    evaluate=evaluate,
    poll=lambda: received[-1] if received else None,
    is_saved=lambda done: done == 4,
    content=lambda state: ({}, {"a": 1}),
    checkpoints=checkpoints,
    report=print,
    guard=guards.SkipGuard(max_skips),
    clock=guards.Clock(STEPS),
  )
  try:
    assert run.run() == (received[-1] if received else None)
    run.save(last=True)
  except NonFiniteError:
    events.append("refused")
  return events, records, checkpoints.descriptions


def test_record_is_fetched_after_the_next_dispatch():
  events, records, _ = run_loop()
  index = events.index
  assert index(("dispatched", 3)) < index(("fetched", 1))
  assert index(("fetched", 1)) < index(("dispatched", 4))
  assert index(("fetched", 2)) < index(("written", 2))
  # But before a checkpoint and before the end.
  assert index(("written", 4)) < index("flushed") < index(("saved", 4))
  assert index(("written", 6)) < index(("evaluated", 6))
  assert index(("evaluated", 6)) < index(("saved", 6))
  # A record averages its own steps only, which count from 0.
  averages = [(r["step"], r["mlm"]) for r in records]
  assert averages == [(2, 0.5), (4, 2.5), (6, 4.5)]
  assert [r["total"] for r in records] == [1.0, 5.0, 9.0]
  assert [r["lr"] for r in records] == [1.0, 3.0, 5.0]


def test_record_is_written_before_a_skip_ends_the_run():
  events, records, _ = run_loop(bad=(2,))
  assert events[-1] == "refused" and ("dispatched", 4) not in events
  assert [(r["step"], r["skipped"]) for r in records] == [(2, 0.5)]


@pytest.mark.parametrize("param", [np.nan, np.inf])
def test_non_finite_parameters_are_not_saved(param):
  events, *_ = run_loop(param=param)
  assert events[-1] == "refused"
  assert not [event for event in events if event[0] == "saved"]


@pytest.mark.parametrize("stop_at", [1, 2, 3, 5])
def test_resumed_run_has_the_records_of_an_uninterrupted_one(stop_at):
  skips = {"bad": (3, 4), "max_skips": 2}
  _, expected, _ = run_loop(**skips)
  _, records, saved = run_loop(**skips, stop_at=stop_at)
  assert saved[stop_at]["a"] == 1
  saved = json.loads(json.dumps(saved[stop_at]))
  _, more, _ = run_loop(**skips, saved={stop_at: saved})
  for record in (*records, *more, *expected):
    del record["time"]
  assert records + more == expected


def test_resumed_run_remembers_skipped_updates():
  _, _, saved = run_loop(bad=(2, 3, 4), max_skips=2, stop_at=3)
  events, *_ = run_loop(bad=(2, 3, 4), max_skips=2, saved=saved)
  assert events[-1] == "refused"


@pytest.mark.parametrize("fault", ["full_at", "cut_off_at"])
def test_only_the_last_save_must_succeed(monkeypatch, fault):
  monkeypatch.setattr(FakeCheckpoints, fault, (4,))
  events, _, saved = run_loop()
  # No step is saved without the records before it.
  assert (("saved", 4) in events) == (fault == "full_at") and 6 in saved
  monkeypatch.setattr(FakeCheckpoints, fault, (6,))
  with pytest.raises(DiskError):
    run_loop()
