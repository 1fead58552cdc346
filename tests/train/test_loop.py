"""When the loop asks the devices for numbers, by a step that only notes it."""

import dataclasses
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.train import loop, sharding, speed
from truenegs_jax.train import setup as setup_lib

BATCH = 8
NUMBERS = dict(
  steps=6,
  batch_size=BATCH,
  seed=0,
  max_skips=0,
  output=types.SimpleNamespace(
    log_every=2, save_every=4, eval_every=100, eval_rows=8
  ),
)


@dataclasses.dataclass
class Number:
  """A number on a device that says when it is fetched."""

  value: float
  fetched: object

  def is_ready(self):
    return False

  def block_until_ready(self):
    return self

  def __array__(self, dtype=None, copy=None):
    self.fetched()
    return np.asarray(self.value, dtype)

  def __float__(self):
    return float(self.value)


class Checkpoints:
  """Saves nothing but the order of events."""

  keep_steps = ()

  def __init__(self, events):
    self._events = events

  def save(self, done, state, description):
    self._events.append(("saved", done))

  def wait(self):
    self._events.append("waited")

  def latest_step(self):
    return None


def run(monkeypatch, tmp_path, *, bad=(), stop_at=None, param=1.0):
  """The events of a run of 6 steps: dispatched, fetched, written, saved."""
  events, signals = [], types.SimpleNamespace(received=None)
  rows = {
    "documents": np.repeat([[1, 1, 1, 0]], BATCH, 0),
    "row": np.arange(BATCH),
  }
  monkeypatch.setattr(loop.batches_lib, "batch_at", lambda *_, **__: rows)
  monkeypatch.setattr(loop.sharding, "shard_batch", lambda batch, mesh: batch)
  monkeypatch.setattr(loop.plan, "row_flops", lambda run: 10.0)
  monkeypatch.setattr(loop, "evaluate", lambda *_: [{"mlm": (1.0, 1.0)}])

  def step(state, batch, aux):
    k = state.step
    events.append(("dispatched", k + 1))
    if k + 1 == stop_at:
      signals.received = signal.SIGTERM
    fetched = lambda: events.append(("fetched", k + 1))
    terms = {
      "mlm": (Number(float(k), fetched), 1.0),
      "skipped": (Number(float(k + 1 in bad), lambda: None), 1.0),
    }
    state = types.SimpleNamespace(step=k + 1, params=state.params)
    return state, terms

  none = dict.fromkeys(f.name for f in dataclasses.fields(setup_lib.TrainSetup))
  start = setup_lib.TrainSetup(
    **none
    | dict(
      run=types.SimpleNamespace(
        **NUMBERS,
        loss_weights={"mlm": 2.0},
        learning_rate=lambda k: jnp.float32(k),
        model=types.SimpleNamespace(roles={"bert": encoder.EncoderConfig}),
      ),
      mesh=sharding.make_mesh(sharding.get_mesh_spec("dp")),
      state=types.SimpleNamespace(step=0, params=jnp.full(3, param)),
      aux={},
      train_step=step,
      refresh=lambda state, done: state,
    )
  )
  clock = speed.Clock(NUMBERS["steps"])
  records = []

  def write(record):
    events.append(("written", record["step"], record["split"]))
    records.append(record)

  profile = speed.Profiler(None, tmp_path, print, first_step=0)
  host_wait = speed.HostWait(clock.running)
  monitors = loop.Monitors(write, profile, host_wait, clock, signals)
  inputs = types.SimpleNamespace(train_rows=None, held_out_rows=None)
  try:
    loop._loop(tmp_path, inputs, start, Checkpoints(events), monitors)
  except NonFiniteError:
    events.append("refused")
  return events, [r for r in records if r["split"] == "train"]


def test_a_record_is_asked_for_when_the_next_step_is_under_way(
  monkeypatch, tmp_path
):
  events, records = run(monkeypatch, tmp_path)
  at = events.index
  assert at(("dispatched", 3)) < at(("fetched", 1)) < at(("dispatched", 4))
  assert at(("fetched", 2)) < at(("written", 2, "train"))
  # And yet before a checkpoint, and before the end.
  assert at(("written", 4, "train")) < at(("saved", 4))
  assert at(("written", 6, "train")) < at(("written", 6, "held_out"))
  assert at(("written", 6, "held_out")) < at(("saved", 6))
  # It is of its own steps alone, and they count from 0.
  assert [(r["step"], r["mlm"]) for r in records] == [
    (2, 0.5),
    (4, 2.5),
    (6, 4.5),
  ]
  assert [r["total"] for r in records] == [1.0, 5.0, 9.0]
  assert [r["lr"] for r in records] == [1.0, 3.0, 5.0]


def test_a_record_says_what_its_rate_comes_to(monkeypatch, tmp_path):
  _, records = run(monkeypatch, tmp_path)
  rate = records[-1]["rows_per_s"]
  assert records[-1]["tokens_per_s"] == pytest.approx(3 * rate)
  per_device = 10.0 * rate / jax.device_count()
  assert records[-1]["flop_per_s"] == pytest.approx(per_device)
  assert records[-1]["memory_peak_gib"] > 0.01
  assert 0.0 <= records[-1].get("host_wait", 0.0) <= 1.0
  assert "mfu" not in records[-1]  # of a CPU no peak is published


@pytest.mark.parametrize("stop_at, last", [(2, 2), (3, 2), (4, 4)])
def test_a_stopped_run_has_written_what_was_due(
  monkeypatch, tmp_path, stop_at, last
):
  events, records = run(monkeypatch, tmp_path, stop_at=stop_at)
  assert records[-1]["step"] == last
  assert events.index(("written", last, "train")) < events.index(
    ("saved", stop_at)
  )


def test_the_record_of_a_step_that_ends_the_run_is_written(
  monkeypatch, tmp_path
):
  events, records = run(monkeypatch, tmp_path, bad=(2,))
  assert events[-1] == "refused" and ("dispatched", 4) not in events
  assert [(r["step"], r["skipped"]) for r in records] == [(2, 0.5)]


@pytest.mark.parametrize("param", [np.nan, np.inf])
def test_parameters_that_are_not_finite_are_never_saved(
  monkeypatch, tmp_path, param
):
  events, _ = run(monkeypatch, tmp_path, param=param)
  assert events[-1] == "refused"
  assert not [event for event in events if event[0] == "saved"]
