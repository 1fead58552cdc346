"""Steps in any order, on any process and repeated, give the same rows."""

import functools
import pickle
import random

import pytest

from support import beam_steps, small_rows
from truenegs_jax.runtime.errors import DataError


def run_pickled(steps, *, seed: int, repeats: int = 1) -> None:
  """Runs each item in a random order as a fresh process would."""
  order = random.Random(seed)
  for step in steps:
    items = list(pickle.loads(pickle.dumps(step)).list_items()) * repeats
    order.shuffle(items)
    for item in items:
      pickle.loads(pickle.dumps(step)).function(item)


@pytest.fixture
def sources(tmp_path, monkeypatch):
  for module, name, value in beam_steps.SMALL:
    monkeypatch.setattr(module, name, value)
  return small_rows.write_sources(tmp_path)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("weights", ["", " weight=2"])
def test_steps_give_the_rows_of_one_process(
  tmp_path, sources, weights, repeats
):
  spec = ", ".join(part + weights for part in sources.split(","))
  engine = functools.partial(run_pickled, seed=repeats, repeats=repeats)
  expected = small_rows.prepare_files(spec, tmp_path / "plain")
  assert small_rows.prepare_files(spec, tmp_path / "engine", engine) == expected


def test_what_is_done_is_not_listed_again(tmp_path, sources):
  seen = []

  def stop_within(steps):
    for step in steps:
      items = step.list_items()
      seen.append((step.name, len(items)))
      for item in items[: len(items) // 2]:
        step.function(item)
      if step.name.startswith("Count") and len(seen) == 1:
        raise KeyboardInterrupt
      for item in items[len(items) // 2 :]:
        step.function(item)

  expected = small_rows.prepare_files(sources, tmp_path / "plain")
  with pytest.raises(KeyboardInterrupt):
    small_rows.prepare_files(sources, tmp_path / "rows", stop_within)
  assert (
    small_rows.prepare_files(sources, tmp_path / "rows", stop_within)
    == expected
  )
  (_, first), (_, second), _ = seen
  assert first == 6 and second == 3


def test_a_text_that_changed_is_refused(tmp_path, sources):
  def change_text(steps):
    (tmp_path / "one.txt").write_text("other text")
    run_pickled(steps, seed=0)

  with pytest.raises(DataError, match="changed while it was"):
    small_rows.prepare_files(sources, tmp_path / "rows", change_text)
  assert not (tmp_path / "rows").exists()
