"""Steps in any order, on any process and repeated, give the same rows."""

import functools
import pickle
import random

import pytest

from support.small_rows import read_files
from support.texts import make_texts, to_jsonl
from truenegs_jax.data.rows import (
  chunks,
  prepare_rows,
  write_shards,
)
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
  monkeypatch.setattr(chunks, "CHUNK_CHARACTERS", 2000)
  monkeypatch.setattr(write_shards, "SHARD_CHUNKS", 3)
  monkeypatch.setattr("truenegs_jax.data.corpus.sources_spec.UNIT_BYTES", 4000)
  (tmp_path / "texts").mkdir()
  for number in range(5):
    texts = make_texts(40, seed=number)
    (tmp_path / f"texts/{number}.jsonl").write_bytes(to_jsonl(texts))
  (tmp_path / "one.txt").write_text("\n\n".join(make_texts(50, seed=9)))
  return f"{tmp_path}/texts document=join chars=300, {tmp_path}/one.txt"


def execute(sources, folder, engine=None) -> dict[str, bytes]:
  options = prepare_rows.PrepareOptions(
    sources, length=16, vocab_size=40, held_out=0.1, rows=str(folder)
  )
  plan = prepare_rows.make_plan(options)
  prepare_rows.execute_plan(plan, engine)
  return read_files(folder)


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("weights", ["", " weight=2"])
def test_steps_give_the_rows_of_one_process(
  tmp_path, sources, weights, repeats
):
  spec = ", ".join(part + weights for part in sources.split(","))
  engine = functools.partial(run_pickled, seed=repeats, repeats=repeats)
  expected = execute(spec, tmp_path / "plain")
  assert execute(spec, tmp_path / "engine", engine) == expected


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

  expected = execute(sources, tmp_path / "plain")
  with pytest.raises(KeyboardInterrupt):
    execute(sources, tmp_path / "rows", stop_within)
  assert execute(sources, tmp_path / "rows", stop_within) == expected
  (_, first), (_, second), _ = seen
  assert first == 6 and second == 3


def test_a_text_that_changed_is_refused(tmp_path, sources):
  def change_text(steps):
    (tmp_path / "one.txt").write_text("other text")
    run_pickled(steps, seed=0)

  with pytest.raises(DataError, match="changed while it was"):
    execute(sources, tmp_path / "rows", change_text)
  assert not (tmp_path / "rows").exists()
