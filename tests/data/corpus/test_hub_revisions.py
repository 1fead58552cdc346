"""Data sets of the hub are read at one commit; `datasets` reads a stand-in."""

import io

import huggingface_hub
import pyarrow
import pytest
from pyarrow import parquet

from support import hub_stand_in
from truenegs_jax.data import prepare_rows
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.runtime.errors import DataError, UnavailableError

NAME, REF = "owner/books", "refs/convert/parquet"
SPEC = f"hf:{NAME} revision={REF}"
TEXTS = [f"The swan number {i} swims across the lake ." for i in range(100)]
CARD = """---
configs:
- {config_name: en, data_files: [{split: train, path: en/train-*}]}
dataset_info:
  config_name: en
  features: [{name: text, dtype: string}]
  splits: [{name: train, num_bytes: 5000, num_examples: 100}]
---
"""


def to_parquet(texts):
  file = io.BytesIO()
  parquet.write_table(pyarrow.table({"text": texts}), file)
  return file.getvalue()


def converted(texts=TEXTS, folder="train"):
  """Returns the files of a branch that the hub's converter wrote."""
  parts = enumerate((texts[::2], texts[1::2]))
  return {f"en/{folder}/000{i}.parquet": to_parquet(x) for i, x in parts}


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """The revisions of NAME, which `datasets` reads."""
  datasets = pytest.importorskip("datasets")
  from huggingface_hub import constants

  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  for module, name in (
    (datasets.config, "HF_DATASETS_CACHE"),
    (constants, "HF_HUB_CACHE"),
  ):
    monkeypatch.setattr(module, name, str(tmp_path / name))
  with hub_stand_in.HubServer() as server:
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", server.url)
    with hub_stand_in.connect(server, monkeypatch):
      server.hub.models[NAME] = {REF: converted()}
      huggingface_hub.HfFileSystem.clear_instance_cache()
      yield server.hub.models[NAME]
  huggingface_hub.HfFileSystem.clear_instance_cache()


def commit_of(hub, revision=REF):
  return hub_stand_in.commit_of(NAME, revision, hub[revision])


def commit_read(spec=SPEC, **options):
  """Returns the commit of a corpus."""
  [identity] = open_corpus(spec, expect="", **options).identity()
  return identity["revision"]


def go_offline(monkeypatch):
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
  monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


def test_a_branch_that_moved_is_read_at_the_first_commit(hub, capfd):
  first = commit_of(hub)
  assert commit_read() == first == commit_read()
  assert "warning" not in capfd.readouterr().err
  hub[first], hub[REF] = hub[REF], converted(TEXTS[:50])
  now = commit_of(hub)
  assert commit_read() == first != now
  warning = capfd.readouterr().err
  assert f"revision={REF} is now {now}." in warning
  assert f"read: {first}." in warning and f"set revision={now}" in warning
  del hub[first]
  huggingface_hub.HfFileSystem.clear_instance_cache()
  with pytest.raises(UnavailableError, match=first):
    commit_read()
  assert commit_read(f"hf:{NAME} revision={now}") == now
  assert len(list(open_corpus(SPEC))) == 50  # without `expect` it may move


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_rows_name_revision_files_and_sizes(hub, tmp_path, streaming):
  spec, rows = f"{SPEC} streaming={streaming}", tmp_path / "rows"
  options = {"vocab_size": 60, "rows": str(rows)}
  with pytest.raises(DataError, match="100 records, but 102"):
    prepare_rows.prepare(f"{spec} records=102", length=16, **options)
  prepare_rows.prepare(f"{spec} records=101", length=16, **options)
  manifest = rows_folder.read_manifest(rows)
  [source], [part] = manifest["options"]["sources"], manifest["parts"]
  assert (source["dataset"], source["revision"]) == (NAME, commit_of(hub))
  assert part["files"] == {name: len(x) for name, x in hub[REF].items()}
  size = sum(part["files"].values()) / 1e6
  assert rows_folder.describe_text(manifest) == [
    f"hf:{NAME}, default of revision {commit_of(hub)}, 2 files of {size:.1f}"
    " MB: 100 documents, 0.0 MB"
  ]
  hub["main"] = converted(TEXTS[:50])
  with pytest.raises(DataError, match=r"sources.0.revision: .* in the folder"):
    prepare_rows.prepare(f"hf:{NAME} revision=main", length=16, **options)


def test_counts_of_the_hub_are_compared_before_a_download(hub):
  hub["main"] = {"README.md": CARD.encode(), "en/train-0.parquet": b"text"}
  spec = f"hf:{NAME} revision=main"
  with pytest.raises(DataError, match="100 records, but 102"):
    open_corpus(f"{spec} records=102", expect="")
  open_corpus(f"{spec} records=101", expect="")


def test_the_beginning_of_a_split_on_the_hub_is_refused(hub):
  hub[REF] = converted(folder="partial-train")
  with pytest.raises(DataError, match="hf://.*partial-train/0000.parquet"):
    open_corpus(SPEC, expect="")


def test_without_the_hub_no_other_commit_is_read(hub, monkeypatch):
  hub["main"] = {"README.md": CARD.encode()}
  hub["main"] |= {"en/train-0.parquet": to_parquet(TEXTS[:10])}
  first, main = commit_of(hub), commit_of(hub, "main")
  assert len(list(open_corpus(SPEC, expect=""))) == 100
  go_offline(monkeypatch)
  assert commit_read() == commit_read(f"hf:{NAME} revision={first}") == first
  with pytest.raises(UnavailableError, match=f"needed at commit {main}, but"):
    open_corpus(f"hf:{NAME} revision={main}")
