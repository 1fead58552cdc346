"""Data sets of the `datasets` library: on the hub or in a local folder.

  dataset = open_dataset("Skylion007/openwebtext", column="text")
  for text in dataset.read(ReadState()): ...

`datasets` is imported only here, and only when it is needed.
"""

import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from truenegs_jax.data.corpus import arrow, files, read_state
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  TrueNegsError,
  UnavailableError,
)
from truenegs_jax.runtime.hub_names import is_hub_name

if TYPE_CHECKING:
  import datasets
  import pyarrow

SCRIPTS = "Dataset scripts are no longer supported"
STREAM_RECORDS = 64  # per batch: the size of a streamed record is unknown


@dataclasses.dataclass(frozen=True)
class ErrorContext:
  """A config key that names data sets, and how to fix its value.

  Attributes:
    key: the config key, at the beginning of each message.
    split_syntax: how the value names a split.
    script_hint: what to do if the data set is a script.
    options_hint: what to do if it cannot be loaded with these options.
  """

  key: str
  split_syntax: str
  script_hint: str
  options_hint: str

  def subject(self, name: str) -> str:
    """Returns the beginning of a message about a data set."""
    return f"{self.key}: 'hf:{name}'"


CORPUS = ErrorContext(
  key="data.sources",
  split_syntax="split=NAME",
  script_hint="Add revision=refs/convert/parquet, which the hub often has.",
  options_hint="Set config= and revision= to existing ones, or data.rows to"
  " prepared rows.",
)


@dataclasses.dataclass(frozen=True)
class HubDataset:
  """One split of a data set that is ready to be read.

  Attributes:
    name: on the hub, or the path of a folder.
    column: of the texts; empty for all columns.
    by: a column that joins records, see `documents.join`; or empty.
    split: empty for a saved data set without splits.
    streaming: whether to read from the hub without a copy on disk.
    saved: the data set if `save_to_disk` wrote the folder, else None.
    builder: `datasets.DatasetBuilder` of any other data set, else None.
    paths: the files of a local folder; None for a name on the hub.
    context: for messages.
  """

  name: str
  column: str
  by: str
  split: str
  streaming: bool
  saved: "datasets.Dataset | None"
  builder: Any
  paths: list[pathlib.Path] | None
  context: ErrorContext

  def is_local(self) -> bool:
    """Returns whether it can be read without the hub."""
    return self.paths is not None

  def identity(self) -> dict[str, Any]:
    """Returns as JSON what determines the records."""
    identity: dict[str, Any] = {"split": self.split, "column": self.column}
    if self.paths is None:  # the hash depends on the commit on the hub
      return identity | {
        "dataset": self.name,
        "config": self.builder.config.name,
        "hash": self.builder.hash,
      }
    with self.errors():
      current = [files.stat_file(path) for path in self.paths]
    return identity | {"files": files.files_identity(current)}

  def num_bytes(self) -> int | None:
    """Returns the approximate size of the text; None if unknown."""
    if self.saved is not None:
      return self.saved.data.nbytes
    return getattr(self._info(), "num_bytes", None)

  def read(self, state: ReadState) -> Iterator[str | None]:
    """Yields the texts of the column.

    Raises:
      DataError: the data are damaged, or have no such column of text.
      UnavailableError: the data set cannot be loaded from the hub.
    """
    state.where = f"hf:{self.name} [{self.split}]"
    if num_partial := self._count_partial_files():
      state.oddities[read_state.PARTIAL_FILES] += num_partial
    with self.errors():
      records, num_records, batch_records = self._prepare()
      if records.column_names is not None:
        subject = self.context.subject(self.name)
        _check_column(records.features, self.column, subject, by=self.by)
        columns = [self.column, *filter(None, [self.by])]
        records = records.select_columns(columns)
      batches = records.with_format("arrow").iter(batch_size=batch_records)
    yield from arrow.read_batches(
      self._next_batches(batches),
      state,
      column=self.column,
      by=self.by,
      num_records=num_records,
    )

  def records(self) -> "datasets.Dataset | datasets.IterableDataset":
    """Returns all columns; use it within `errors()`."""
    return self._prepare()[0]

  def errors(self) -> contextlib.AbstractContextManager[None]:
    """Turns the errors of `datasets` into errors that name this data set."""
    return _convert_errors(self.name, self.context, is_local=self.is_local())

  def _prepare(
    self,
  ) -> "tuple[datasets.Dataset | datasets.IterableDataset, int | None, int]":
    """Returns the records, their number, and how many to read at once."""
    if self.saved is None and self.streaming:
      records = self.builder.as_streaming_dataset(split=self.split)
      num_records = getattr(self._info(), "num_examples", None)
      return records, num_records, STREAM_RECORDS
    records = self.saved
    if records is None:
      self.builder.download_and_prepare()
      records = self.builder.as_dataset(split=self.split)
    size = arrow.records_per_batch(records.data.nbytes, records.num_rows)
    return records, records.num_rows, size

  def _count_partial_files(self) -> int:
    """Counts files of the first 5 GB, where the hub converts no more."""
    data_files = getattr(self.builder, "config", None)
    paths = (getattr(data_files, "data_files", None) or {}).get(self.split, [])
    return sum(f"/partial-{self.split}/" in str(path) for path in paths)

  def _info(self) -> "datasets.SplitInfo | None":
    return (self.builder.info.splits or {}).get(self.split)

  def _next_batches(
    self, batches: "Iterator[pyarrow.Table]"
  ) -> "Iterator[pyarrow.Table]":
    with self.errors():
      yield from batches


def open_dataset(
  name: str,
  context: ErrorContext = CORPUS,
  /,
  *,
  column: str = "text",
  by: str = "",
  split: str = "",
  config: str = "",
  revision: str = "",
  streaming: bool = False,
) -> HubDataset:
  """Finds a data set and a split of it; downloads no records.

  Args:
    name: on the hub; or a folder of data files, or written by `save_to_disk`.
    context: for messages.
    column: of the texts; empty for all columns.
    by: a column that joins records, see `documents.join`; or empty.
    split: empty for "train", or for all that a saved data set holds.
    config: also called subset; empty for the only one or the default.
    revision: branch, tag or commit on the hub; empty for the main branch.
    streaming: see `HubDataset`; saved data sets are never copied.

  Raises:
    DataError: no such folder, split, or column of text.
    UnavailableError: the data set cannot be loaded from the hub.
    InputError: an option does not apply.
  """
  subject, is_local = context.subject(name), is_folder(name)
  if not is_local and not is_hub_name(name):
    raise DataError(
      f"{subject} is neither a folder nor a name on the Hugging Face hub. For a"
      " file, remove hf:."
    )
  if is_local and revision:
    reason = f"is a folder without revisions. Remove revision={revision}."
    raise InputError(f"{subject} {reason}")
  folder = pathlib.Path(name).expanduser()
  with _convert_errors(name, context, is_local=is_local):
    _import_library()
    if is_saved(folder):
      if config:
        raise InputError(
          f"{subject} was saved as one config. Remove config={config}."
        )
      return _open_saved(folder, name, column, by, split, context)
    import datasets

    builder = datasets.load_dataset_builder(
      str(folder), config or None, revision=revision or None
    )
    split = split or "train"
    data_files = getattr(builder.config, "data_files", None) or {}
    _check_split(split, builder.info.splits or data_files, name, context)
    _check_column(builder.info.features, column, subject, by=by)
    paths = [pathlib.Path(p) for p in data_files[split]] if is_local else None
    return HubDataset(
      name, column, by, split, streaming, None, builder, paths, context
    )


def is_folder(name: str) -> bool:
  """Returns whether `name` is a local folder."""
  try:
    return pathlib.Path(name).expanduser().is_dir()
  except (OSError, RuntimeError, ValueError):  # too long, "~nobody"
    return False


def is_saved(folder: pathlib.Path) -> bool:
  """Returns whether `save_to_disk` wrote this folder."""
  has_splits = (folder / "dataset_dict.json").is_file()
  files_of_split = (folder / "state.json", folder / "dataset_info.json")
  return has_splits or all(path.is_file() for path in files_of_split)


def _open_saved(
  folder: pathlib.Path,
  name: str,
  column: str,
  by: str,
  split: str,
  context: ErrorContext,
) -> HubDataset:
  import datasets

  splits_file = folder / "dataset_dict.json"
  has_splits = splits_file.is_file()
  if has_splits:
    split = split or "train"
    fix = "Copy the data set again."
    with json_text.read_file(splits_file, DataError, fix) as fields:
      _check_split(split, fields["splits"], name, context)
    folder = folder / split
  saved = datasets.load_from_disk(str(folder))
  if split and not has_splits:
    _check_split(split, [saved.split or "train"], name, context)
  _check_column(saved.features, column, context.subject(name), by=by)
  paths = sorted(path for path in folder.iterdir() if path.is_file())
  return HubDataset(name, column, by, split, False, saved, None, paths, context)


def _check_split(
  split: str, splits: Iterable[object], name: str, context: ErrorContext
) -> None:
  names = list(map(str, splits))
  if split not in names:
    raise DataError(
      f"{context.subject(name)} has no split {split!r}. Splits:"
      f" {', '.join(names)}. Set {context.split_syntax}."
    )


def _check_column(
  features: "datasets.Features | None", column: str, subject: str, *, by: str
) -> None:
  if column and features is not None:
    arrow.check_column(features.arrow_schema, column, subject, by=by)


def _import_library() -> None:
  """Imports `datasets` without its progress bars and logs."""
  import datasets
  import huggingface_hub

  datasets.disable_progress_bars()
  datasets.logging.set_verbosity(logging.CRITICAL)
  huggingface_hub.utils.disable_progress_bars()
  huggingface_hub.logging.set_verbosity(logging.CRITICAL)


@contextlib.contextmanager
def _convert_errors(
  name: str, context: ErrorContext, *, is_local: bool
) -> Iterator[None]:
  try:
    yield
  except TrueNegsError:
    raise
  # `datasets` and its libraries raise two dozen types.
  except Exception as error:
    subject = context.subject(name)
    reason = f"{type(error).__name__}: {error}"
    if is_local:
      raise DataError(f"{subject} cannot be read ({reason}).") from error
    if SCRIPTS in str(error):
      raise InputError(
        f"{subject} is a script ({reason}), which `datasets` no longer runs."
        f" {context.script_hint}"
      ) from error
    raise UnavailableError(
      f"{subject} cannot be loaded from the Hugging Face hub ({reason})."
      f" {context.options_hint} Without internet, use local files or hf:FOLDER"
      " with a data set that save_to_disk wrote, or set HF_HOME to the cache of"
      " a run that loaded it."
    ) from error
