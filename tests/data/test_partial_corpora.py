"""A corpus that is cut off is refused, before its rows exist."""

import dataclasses
import functools

import pyarrow
import pytest
from pyarrow import parquet

from truenegs_jax.config.sections import Data
from truenegs_jax.data import prepare_rows, steps
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.runtime.errors import DataError

TEXTS = [f"The swan number {i} swims across the lake ." for i in range(100)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  import datasets

  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")


def write_parquet(path, texts=TEXTS):
  """Writes two files as the hub's converter names them."""
  path.mkdir(parents=True, exist_ok=True)
  for number in range(2):
    table = pyarrow.table({"text": texts[number::2]})
    parquet.write_table(table, path / f"000{number}.parquet")


def prepare(sources, **data):
  options = {"vocab_size": 60, "held_out": 0.1, **data}
  return prepare_rows.prepare(sources, length=16, **options)[0]


def read_parts(folder):
  return rows_folder.read_manifest(folder)["parts"]


@pytest.mark.parametrize(
  "sources",
  [
    "hf:{0}",
    "hf:{0} streaming=true",
    "{0}",
    "{0}/plain_text/partial-train",
    "'{0}/**/*.parquet'",
  ],
)
def test_the_beginning_of_a_split_is_refused(tmp_path, sources):
  folder = tmp_path / "converted"
  write_parquet(folder / "plain_text" / "partial-train")
  sources, rows = sources.format(folder), tmp_path / "rows"
  with pytest.raises(DataError, match="partial-train/0000.*data.expect=any"):
    prepare(sources, rows=str(rows))
  assert not rows.exists()
  assert prepare(sources, rows=str(rows), expect="any") == rows
  with pytest.raises(DataError, match="partial-train/0000"):  # also of rows
    prepare(sources, rows=str(rows))


def test_other_names_with_partial_are_not_refused(tmp_path):
  for name in ("partial", "impartial-train", "partial-train/all"):
    write_parquet(tmp_path / "text" / name)
  assert prepare(str(tmp_path / "text"))


def write_texts(folder):
  """Writes 100 documents in several formats; returns their sources."""
  write_parquet(folder / "converted" / "train")
  (folder / "a.txt").write_text("\n\n".join(TEXTS))
  names = ["{}/converted", "hf:{}/converted", "{}/a.txt"]
  names.append("hf:{}/converted streaming=true")
  return [name.format(folder) for name in names]


def test_parts_with_too_few_records_are_refused(tmp_path):
  for number, source in enumerate(write_texts(tmp_path)):
    for join in ("", " document=join chars=500"):
      rows = tmp_path / f"rows{number}{join[-3:]}"
      make = functools.partial(prepare, rows=str(rows))
      with pytest.raises(DataError, match="100 records, but 102 are expected"):
        make(f"{source}{join} records=102")
      assert not rows.exists()
      make(f"{source}{join} records=102", expect="any")
      assert [part["records"] for part in read_parts(rows)] == [100]
      # The rows are reused, but not without the key.
      with pytest.raises(DataError, match="100 records, but 102 are expected"):
        make(f"{source}{join} records=102")
      assert make(f"{source}{join} records=101") == rows


def test_a_damaged_file_is_refused_before_its_records_are_counted(tmp_path):
  write_parquet(tmp_path)
  path = tmp_path / "0001.parquet"
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(DataError, match="0001.parquet: not a Parquet file"):
    prepare(f"{tmp_path} records=100")


@pytest.mark.parametrize("records", ["0", "-1", "many"])
def test_numbers_of_records_are_positive(tmp_path, records):
  path = tmp_path / "a.txt"
  path.write_text("\n\n".join(TEXTS))
  with pytest.raises(Exception, match="records"):
    prepare(f"{path} records={records}")


def test_footers_and_counts_are_used_before_a_row_is_built(
  tmp_path, monkeypatch
):
  files, data_set, text, _ = write_texts(tmp_path)

  def fail(*args, **kwargs):
    raise AssertionError("rows are built")

  monkeypatch.setattr(steps, "build_shards", fail)
  for source in (files, data_set):
    with pytest.raises(DataError, match="102 are expected"):
      prepare(f"{source} records=102")
  with pytest.raises(DataError, match="102 are expected"):
    prepare_rows.make_plan(Data(sources=f"{files} records=102"), 16)
  prepare_rows.make_plan(Data(sources=f"{text} records=102"), 16)


def test_an_engine_refuses_too_few_records_when_all_are_counted(tmp_path):
  *_, text, _ = write_texts(tmp_path)
  vocab = tmp_path / "vocab.txt"
  vocab.write_text((prepare(text) / "vocab.txt").read_text())
  data = {"sources": f"{text} records=102", "vocab": str(vocab), "language": ""}

  def run_steps(steps):
    for step in steps:
      for item in step.list_items():
        step.function(item)

  def make_plan(**changes):
    plan = prepare_rows.make_plan(Data(**data, workers=1, **changes), 16)
    return dataclasses.replace(plan, engine=run_steps)

  with pytest.raises(DataError, match="102 are expected"):
    prepare_rows.execute_plan(make_plan())
  assert not list(tmp_path.rglob("shard-*.json"))
  folder, _ = prepare_rows.execute_plan(make_plan(expect="any"))
  assert read_parts(folder)[0]["records"] == 100


def test_mixtures_count_only_parts_that_are_read_to_their_end(tmp_path):
  names = []
  for name, texts in (("a", TEXTS), ("b", TEXTS * 20)):
    names.append(str(tmp_path / f"{name}.txt"))
    (tmp_path / f"{name}.txt").write_text("\n\n".join(texts))
  sources = f"{names[0]} weight=1 records=100, {names[1]} weight=1 records=9999"
  rows = prepare(sources, stopping="first")
  assert [part["records"] for part in read_parts(rows)] == [100, None]
  with pytest.raises(DataError, match="2,000 records, but 9,999"):
    prepare(sources)
