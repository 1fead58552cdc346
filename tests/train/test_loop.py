"""The loop reads metrics from devices late enough, with a fake step."""

import dataclasses
import signal
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from truenegs_jax.models import encoder
from truenegs_jax.runtime.errors import NonFiniteError
from truenegs_jax.train import loop, sharding, speed
from truenegs_jax.train import setup as setup_lib

BATCH = 8
SETTINGS = dict(
  steps=6,
  batch_size=BATCH,
  seed=0,
  max_skips=0,
  log_every=2,
  save_every=4,
  eval_every=100,
)


@dataclasses.dataclass
class FakeArray:
  """A number on a device; calls `on_fetch` when it is read as an array."""

  value: float
  on_fetch: Callable[[], object]

  def is_ready(self):
    return False

  def block_until_ready(self):
    return self

  def __array__(self, dtype=None, copy=None):
    self.on_fetch()
    return np.asarray(self.value, dtype)

  def __float__(self):
    return float(self.value)


class FakeCheckpoints:
  """Appends events instead of saving."""

  keep_steps = ()

  def __init__(self, events):
    self._events = events

  def save(self, done, state, description):
    self._events.append(("saved", done))

  def wait(self):
    self._events.append("waited")

  def latest_step(self):
    return None


def run_loop(monkeypatch, tmp_path, *, bad=(), stop_at=None, param=1.0):
  """Returns the events and training records of a run of 6 steps."""
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
    terms = {
      "mlm": (FakeArray(k, lambda: events.append(("fetched", k + 1))), 1.0),
      "skipped": (FakeArray(k + 1 in bad, lambda: None), 1.0),
    }
    state = types.SimpleNamespace(step=k + 1, params=state.params)
    return state, terms

  setup = setup_lib.PretrainSetup(
    run=types.SimpleNamespace(
      **SETTINGS,
      loss_weights={"mlm": 2.0},
      learning_rate=jnp.float32,
      model=types.SimpleNamespace(roles={"bert": encoder.EncoderConfig}),
    ),
    mesh=sharding.make_mesh(sharding.get_mesh_spec("dp")),
    state=types.SimpleNamespace(step=0, params=jnp.full(3, param)),
    aux={},
    train_step=step,
    eval_step=None,
    refresh=lambda state, done: state,
    description={},
  )
  clock = speed.Clock(SETTINGS["steps"])
  records = []

  def write(record):
    events.append(("written", record["step"], record["split"]))
    records.append(record)

  profiler = speed.Profiler(None, tmp_path, print, first_step=0)
  host_wait = speed.HostWait(clock.running)
  monitors = loop.Monitors(
    write, profiler, host_wait, clock, signals, Console(quiet=True)
  )
  inputs = types.SimpleNamespace(train_rows=None, held_out_rows=None)
  try:
    loop._train_steps(
      tmp_path, inputs, setup, FakeCheckpoints(events), monitors
    )
  except NonFiniteError:
    events.append("refused")
  return events, [r for r in records if r["split"] == "train"]


def test_record_is_fetched_after_the_next_dispatch(monkeypatch, tmp_path):
  events, records = run_loop(monkeypatch, tmp_path)
  index = events.index
  assert index(("dispatched", 3)) < index(("fetched", 1))
  assert index(("fetched", 1)) < index(("dispatched", 4))
  assert index(("fetched", 2)) < index(("written", 2, "train"))
  # But before a checkpoint and before the end.
  assert index(("written", 4, "train")) < index(("saved", 4))
  assert index(("written", 6, "train")) < index(("written", 6, "held_out"))
  assert index(("written", 6, "held_out")) < index(("saved", 6))
  # A record averages its own steps only, which count from 0.
  averages = [(r["step"], r["mlm"]) for r in records]
  assert averages == [(2, 0.5), (4, 2.5), (6, 4.5)]
  assert [r["total"] for r in records] == [1.0, 5.0, 9.0]
  assert [r["lr"] for r in records] == [1.0, 3.0, 5.0]


def test_record_has_rates_and_memory(monkeypatch, tmp_path):
  _, records = run_loop(monkeypatch, tmp_path)
  rate = records[-1]["rows_per_s"]
  assert records[-1]["tokens_per_s"] == pytest.approx(3 * rate)
  per_device = 10.0 * rate / jax.device_count()
  assert records[-1]["flop_per_s"] == pytest.approx(per_device)
  assert records[-1]["memory_peak_gib"] > 0.01
  assert 0.0 <= records[-1].get("host_wait", 0.0) <= 1.0
  assert "mfu" not in records[-1]  # CPUs have no published peak


@pytest.mark.parametrize("stop_at, last", [(2, 2), (3, 2), (4, 4)])
def test_stopped_run_writes_its_last_record(
  monkeypatch, tmp_path, stop_at, last
):
  events, records = run_loop(monkeypatch, tmp_path, stop_at=stop_at)
  assert records[-1]["step"] == last
  written = events.index(("written", last, "train"))
  assert written < events.index(("saved", stop_at))


def test_record_is_written_before_a_skip_ends_the_run(monkeypatch, tmp_path):
  events, records = run_loop(monkeypatch, tmp_path, bad=(2,))
  assert events[-1] == "refused" and ("dispatched", 4) not in events
  assert [(r["step"], r["skipped"]) for r in records] == [(2, 0.5)]


@pytest.mark.parametrize("param", [np.nan, np.inf])
def test_non_finite_parameters_are_not_saved(monkeypatch, tmp_path, param):
  events, _ = run_loop(monkeypatch, tmp_path, param=param)
  assert events[-1] == "refused"
  assert not [event for event in events if event[0] == "saved"]
