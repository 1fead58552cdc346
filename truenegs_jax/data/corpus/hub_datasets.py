"""Data sets of the `datasets` library: on the hub or in a local folder.

  dataset = open_dataset(DatasetSpec("Skylion007/openwebtext"))
  for text in dataset.read(ReadState()): ...

`datasets` is imported only here, and only when it is needed.
"""

import contextlib
import dataclasses
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from truenegs_jax.data.corpus import arrow, files
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  TrueNegsError,
  UnavailableError,
)
from truenegs_jax.runtime.hub_names import is_hub_name

if TYPE_CHECKING:
  import datasets


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
  """A data set, the part of it to read, and words for messages.

  Attributes:
    name: on the hub; or a folder of data files, or written by `save_to_disk`.
    column: of the texts; empty for all columns.
    by: a column that joins records, see `documents.join`; or empty.
    split: empty for "train", or for all that a saved data set holds.
    config: also called subset; empty for the only one or the default.
    revision: branch, tag or commit on the hub; empty for the main branch.
    streaming: whether to read from the hub without a copy on disk.
    key: the config key that names data sets.
    syntax: how its value names split, config and revision.
  """

  name: str
  column: str = "text"
  by: str = ""
  split: str = ""
  config: str = ""
  revision: str = ""
  streaming: bool = False
  key: str = "data.sources"
  syntax: str = "split=, config= and revision="

  @property
  def subject(self) -> str:
    """The beginning of a message."""
    return f"{self.key}: 'hf:{self.name}'"

  def is_local(self) -> bool:
    """Returns whether it can be read without the hub."""
    return is_folder(self.name)

  @contextlib.contextmanager
  def errors(self) -> Iterator[None]:
    """Turns the errors of `datasets` into errors that name this data set."""
    try:
      yield
    except TrueNegsError:
      raise
    # `datasets` and its libraries raise two dozen types.
    except Exception as error:
      reason = f"{type(error).__name__}: {error}"
      if self.is_local():
        raise DataError(f"{self.subject} cannot be read ({reason}).") from error
      raise UnavailableError(
        f"{self.subject} cannot be loaded from the Hugging Face hub ({reason})."
        f" Set {self.syntax} to existing ones (refs/convert/parquet for a"
        " script). Without internet, use local files or hf:FOLDER with a"
        " data set that save_to_disk wrote, or set HF_HOME to the cache of a"
        " run that loaded it."
      ) from error

  def check_split(self, splits: Iterable[object]) -> None:
    """Raises a DataError unless the split is one of `splits`."""
    names = list(map(str, splits))
    if self.split not in names:
      raise DataError(
        f"{self.subject} has no split {self.split!r}. Choose"
        f" {', '.join(names)} with {self.syntax}."
      )

  def check_column(self, features: "datasets.Features | None") -> None:
    """Raises a DataError unless the columns exist and one holds text."""
    if self.column and features is not None:
      schema = features.arrow_schema
      arrow.check_column(schema, self.column, self.subject, by=self.by)


@dataclasses.dataclass(frozen=True)
class HubDataset:
  """One split of a data set that is ready to be read.

  Attributes:
    spec: its split is empty for a saved data set without splits.
    records: returns all columns; use it within `spec.errors()`.
    commit: as JSON what determines the records on the hub; empty for a folder.
    paths: the files of a folder.
    size: approximate bytes of the text; None if unknown.
    num_streamed: number of records that are streamed; None if unknown.
  """

  spec: DatasetSpec
  records: "Callable[[], datasets.Dataset | datasets.IterableDataset]"
  commit: dict[str, str]
  paths: tuple[str, ...]
  size: int | None
  num_streamed: int | None = None

  def identity(self) -> dict[str, Any]:
    """Returns as JSON what determines the texts, as of now."""
    version: dict[str, Any] = self.commit
    with self.spec.errors():
      if not version:
        present = [*map(files.stat_file, self.paths)]
        version = {"files": files.files_identity(present)}
    return {"split": self.spec.split, "column": self.spec.column, **version}

  def read(self, state: ReadState) -> Iterator[str | None]:
    """Yields the texts of the column.

    Raises:
      DataError: the data are damaged, or have no such column of text.
      UnavailableError: the data set cannot be loaded from the hub.
    """
    spec = self.spec
    state.where = f"hf:{spec.name} [{spec.split}]"
    columns = [spec.column, *filter(None, [spec.by])]
    with spec.errors():
      records = self.records()
      num_records = getattr(records, "num_rows", self.num_streamed)
      if set(columns) <= set(records.column_names or ()):
        records = records.select_columns(columns)
      yield from arrow.read_batches(
        records.with_format("arrow").iter(batch_size=arrow.BATCH_RECORDS),
        state,
        column=spec.column,
        by=spec.by,
        num_records=num_records,
      )


def open_dataset(spec: DatasetSpec) -> HubDataset:
  """Finds a data set and a split of it; downloads no records.

  Raises:
    DataError: no such folder, split, or column of text.
    UnavailableError: the data set cannot be loaded from the hub.
    InputError: an option does not apply.
  """
  is_local, folder = spec.is_local(), pathlib.Path(spec.name).expanduser()
  if not is_local and not is_hub_name(spec.name):
    raise DataError(
      f"{spec.subject} is neither a folder nor a name on the Hugging Face hub."
      " For a file, remove hf:."
    )
  is_copy = is_local and is_saved(folder)
  for option, is_unused in (("revision", is_local), ("config", is_copy)):
    if is_unused and (value := getattr(spec, option)):
      raise InputError(
        f"{spec.subject} is a folder without a {option}. Remove"
        f" {option}={value}."
      )
  with spec.errors():
    _silence_library()
    return _open_saved(spec, folder) if is_copy else _open_files(spec, folder)


def is_folder(name: str) -> bool:
  """Returns whether `name` is a local folder."""
  return os.path.isdir(os.path.expanduser(name))


def is_saved(folder: pathlib.Path) -> bool:
  """Returns whether `save_to_disk` wrote this folder."""
  has_splits = (folder / "dataset_dict.json").is_file()
  files_of_split = (folder / "state.json", folder / "dataset_info.json")
  return has_splits or all(path.is_file() for path in files_of_split)


def _open_saved(spec: DatasetSpec, folder: pathlib.Path) -> HubDataset:
  import datasets

  saved = datasets.load_from_disk(str(folder))
  if isinstance(saved, datasets.DatasetDict):
    spec = dataclasses.replace(spec, split=spec.split or "train")
    spec.check_split(saved)
    saved, folder = saved[spec.split], folder / spec.split
  elif spec.split:
    spec.check_split([saved.split or "train"])
  spec.check_column(saved.features)
  paths = tuple(str(x) for x in sorted(folder.iterdir()) if x.is_file())
  return HubDataset(spec, lambda: saved, {}, paths, saved.data.nbytes)


def _open_files(spec: DatasetSpec, folder: pathlib.Path) -> HubDataset:
  """Opens a data set of files on the hub or in a folder."""
  import datasets

  builder = datasets.load_dataset_builder(
    str(folder), spec.config or None, revision=spec.revision or None
  )
  split = spec.split or "train"
  spec = dataclasses.replace(spec, split=split)
  infos = builder.info.splits or {}
  data_files = getattr(builder.config, "data_files", None) or {}
  spec.check_split(infos or data_files)
  spec.check_column(builder.info.features)

  def load() -> Any:
    if spec.streaming:
      return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)

  commit, paths = {}, tuple(map(str, data_files.get(split, [])))
  if not spec.is_local():
    commit = {"dataset": spec.name, "config": builder.config.name}
    commit["hash"] = builder.hash  # depends on the commit
  size = getattr(infos.get(split), "num_bytes", None)
  num_records = getattr(infos.get(split), "num_examples", None)
  return HubDataset(spec, load, commit, paths, size, num_records)


def _silence_library() -> None:
  """Imports `datasets` without its progress bars and logs."""
  import datasets
  import huggingface_hub

  datasets.disable_progress_bars()
  datasets.logging.set_verbosity(logging.CRITICAL)
  huggingface_hub.utils.disable_progress_bars()
  huggingface_hub.logging.set_verbosity(logging.CRITICAL)
