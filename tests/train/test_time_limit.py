"""A run is shortened to the steps that fit into its minutes (fake clock)."""

import time

import pytest

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import electra_demo
from truenegs_jax.runtime import distributed
from truenegs_jax.train import setup, start

DEMO = PretrainConfig.read(electra_demo.get_config())


def fit(monkeypatch, step_secs, *, minutes=10.0, steps=1_500, compile_secs=30):
  """Returns the steps of a run that began 60 s ago, and what it printed."""
  monkeypatch.setattr(setup, "measure", lambda *_: (compile_secs, step_secs))
  monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
  values = {"steps": steps, "minutes": minutes, "batch_size": 128}
  values |= {"eval.rows": 1_024, "eval.every_steps": 500}
  run, lines = start.Run(DEMO.replace(values), None), []
  run = setup.fit_minutes(run, None, began=40.0, say=lines.append)
  assert run.config.minutes == (minutes if run.config.steps < steps else 0)
  return run.config.steps, " ".join(lines)


@pytest.mark.parametrize(
  ("step_secs", "minutes", "steps", "expected"),
  [
    (0.1, 10, 1_500, 1_500),
    (0.4, 10, 1_500, 1_193),  # 480 s / (0.4 s + 8 batches / 3 / 500 steps)
    (0.4, 10, 1_000, 1_000),  # never above `steps`
    (4.0, 10, 1_500, 750),  # never below LEAST_STEPS
    (4.0, 1, 1_500, 750),  # the time is over
    (4.0, 10, 300, 300),
  ],
)
def test_steps_that_fit(monkeypatch, step_secs, minutes, steps, expected):
  result, text = fit(monkeypatch, step_secs, minutes=minutes, steps=steps)
  assert result == expected
  assert f"{step_secs:g} s" in text and f"{steps:,} steps" in text
  assert f"minutes={minutes}" in text
  assert ("too few" in text) == (expected <= 750 and step_secs == 4)


def test_all_that_is_a_share_of_the_run_is_scaled():
  c = start.shorten(DEMO, 750)
  values = (c.optim.warmup_steps, c.log.every_steps, c.eval.every_steps)
  assert values == (100, 5, 250) and c.checkpoint.every_steps == 125
  start.check_warmup(c.optim.warmup_steps, c.steps, pytest.fail)
  assert start.shorten(c, 1).log.every_steps == 1


def test_the_first_process_decides(monkeypatch):
  monkeypatch.setattr(distributed, "from_first", lambda name, value: "800")
  assert fit(monkeypatch, 0.1)[0] == 800


@pytest.mark.parametrize(
  ("saved", "steps", "warmup_steps"),
  [
    (None, 1_500, 200),
    ({"minutes": 0.0, "steps": 750}, 1_500, 200),  # then refused
    ({"minutes": 10.0, "steps": 1_500}, 1_500, 200),
    ({"minutes": 10.0, "steps": 750}, 750, 100),
    # The saved config with more steps, which the run gets.
    (
      {"minutes": 10.0, "steps": 750, "optim": {"warmup_steps": 200}},
      1_500,
      200,
    ),
    ({"minutes": 10.0, "steps": 2_000}, 1_500, 200),  # then refused
  ],
)
def test_a_resume_takes_the_steps_of_a_shortened_run(
  saved, steps, warmup_steps
):
  lines = []
  saved = saved and {"optim": {"warmup_steps": 100}} | saved
  c = start.apply_saved_steps(DEMO, saved, lines.append)
  assert (c.steps, c.optim.warmup_steps) == (steps, warmup_steps)
  assert len(lines) == (steps == 750)
  if steps == 750:  # for the next resume, whatever this one was told
    assert c.minutes == saved["minutes"]
