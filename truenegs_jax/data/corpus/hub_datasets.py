"""Data sets of the `datasets` library: on the hub or in a local folder.

  dataset = open_dataset("Skylion007/openwebtext", column="text")
  for text in dataset.read(ReadState()): ...

`datasets` is imported only here, and when it is needed.
"""

import contextlib
import dataclasses
import json
import logging
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from truenegs_jax.data.corpus import arrow, files
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  TrueNegsError,
  UnavailableError,
)
from truenegs_jax.runtime.hub_names import is_hub_name

SCRIPTS = "Dataset scripts are no longer supported"
STREAM_RECORDS = 64  # of a batch: their size is not known


class ErrorContext(NamedTuple):
  """How messages speak of the config that a data set is named in.

  Attributes:
    key: of the config.
    split: how a split is named there.
    script: what to do of a data set that is a program.
    choices: what else is chosen there, and how.
  """

  key: str
  split: str
  script: str
  choices: str


CORPUS = ErrorContext(
  "data.sources",
  "split=",
  "add revision=refs/convert/parquet, where the hub keeps a copy as Parquet",
  "config= and revision= choose among what is there; rows that are prepared are"
  " found where data.rows says",
)


@dataclasses.dataclass(frozen=True)
class HubDataset:
  """One split of a data set, ready to be read.

  Attributes:
    name: on the hub, or the path of a folder.
    column: that holds the texts; empty for all columns.
    saved: what `save_to_disk` left, loaded; None where a builder is needed.
    builder: what prepares the split or streams it.
    paths: the files of a local folder; None for a name on the hub.
  """

  name: str
  column: str
  split: str
  streaming: bool
  saved: Any
  builder: Any
  paths: list[pathlib.Path] | None
  context: ErrorContext

  def is_local(self) -> bool:
    """False where the hub is needed."""
    return self.paths is not None

  def identity(self) -> dict[str, Any]:
    """The identity of these records, as JSON."""
    state: dict[str, Any] = {"split": self.split, "column": self.column}
    if self.paths is None:  # the hash is that of the commit on the hub
      config = self.builder.config.name
      return state | {
        "dataset": self.name,
        "config": config,
        "hash": self.builder.hash,
      }
    with self.errors():
      found = [files.stat_file(path) for path in self.paths]
    return state | {"files": files.files_identity(found)}

  def num_bytes(self) -> int | None:
    """About how much text there is; None where not known."""
    if self.saved is not None:
      return self.saved.data.nbytes
    return getattr(self._info(), "num_bytes", None)

  def read(self, reading: ReadState) -> Iterator[str | None]:
    """The texts of the column, one record after the other.

    Raises:
      DataError: damaged, no such column, or it does not hold text.
      UnavailableError: it cannot be loaded from the hub.
    """
    reading.where, reading.unit = f"hf:{self.name} [{self.split}]", "record"
    reading.number = 0
    with self.errors():
      records, num_records, batch_records = self._prepare()
      if records.column_names is not None:
        _check_column(records.features, self.column, self.name, self.context)
        records = records.select_columns([self.column])
      batches = records.with_format("arrow").iter(batch_size=batch_records)
    yield from arrow.read_batches(
      self._named_errors(batches),
      reading,
      column=self.column,
      num_records=num_records,
    )

  def records(self) -> Any:
    """All columns, as `datasets` has them; for use within `errors()`."""
    return self._prepare()[0]

  def errors(self) -> contextlib.AbstractContextManager[None]:
    """Turns what `datasets` raises into errors of ours, which name this one."""
    return _errors(self.name, self.context, is_local=self.is_local())

  def _prepare(self) -> tuple[Any, int | None, int]:
    """The records, how many they are, and how many to take at a time."""
    if self.saved is None and self.streaming:
      records = self.builder.as_streaming_dataset(split=self.split)
      num_records = getattr(self._info(), "num_examples", None)
      return records, num_records, STREAM_RECORDS
    records = self.saved
    if records is None:
      self.builder.download_and_prepare()
      records = self.builder.as_dataset(split=self.split)
    size = arrow.records_of_batch(records.data.nbytes, records.num_rows)
    return records, records.num_rows, size

  def _info(self) -> Any:
    return (self.builder.info.splits or {}).get(self.split)

  def _named_errors(self, batches: Iterator[Any]) -> Iterator[Any]:
    with self.errors():
      yield from batches


def open_dataset(
  name: str,
  context: ErrorContext = CORPUS,
  /,
  *,
  column: str = "text",
  split: str = "",
  config: str = "",
  revision: str = "",
  streaming: bool = False,
) -> HubDataset:
  """Finds a data set and a split of it; downloads no records.

  Args:
    name: on the hub; or a folder that `save_to_disk` wrote, or of data files.
    context: how messages speak of the config.
    column: that holds the texts; empty for all columns.
    split: empty for "train", or for all that a saved data set holds.
    config: also called subset; empty for the only one or the default.
    revision: branch, tag or commit of the hub; empty for the main one.
    streaming: read from the hub as it comes, without a copy on disk; what was
      saved needs none either way.

  Raises:
    DataError: no such folder, split or column; not a column of text.
    UnavailableError: it cannot be loaded from the hub.
    InputError: an option is of no use.
  """
  is_local, subject = is_folder(name), f"{context.key}: hf:{name}"
  folder = pathlib.Path(name).expanduser() if is_local else pathlib.Path(name)
  if not is_local and not is_hub_name(name):
    raise DataError(
      f"{subject} is neither a folder nor a name on the Hugging Face hub; a"
      " file is given without hf:."
    )
  if is_local and revision:
    raise InputError(
      f"{subject} is a folder: revision={revision} is of the hub."
    )
  with _errors(name, context, is_local=is_local):
    _load_library()
    if is_saved(folder):
      if config:
        raise InputError(
          f"{subject} was saved as one config: leave out config={config}."
        )
      return _open_saved(folder, name, column, split, context)
    import datasets

    builder = datasets.load_dataset_builder(
      str(folder) if is_local else name,
      config or None,
      revision=revision or None,
    )
    split = split or "train"
    data_files = getattr(builder.config, "data_files", None) or {}
    _check_split(split, builder.info.splits or data_files, name, context)
    _check_column(builder.info.features, column, name, context)
    paths = [pathlib.Path(p) for p in data_files[split]] if is_local else None
    return HubDataset(
      name, column, split, streaming, None, builder, paths, context
    )


def is_folder(name: str) -> bool:
  """Whether `name` is a folder of this machine rather than on the hub."""
  try:
    return pathlib.Path(name).expanduser().is_dir()
  except (OSError, RuntimeError, ValueError):  # too long, "~nobody"
    return False


def is_saved(folder: pathlib.Path) -> bool:
  """Whether `save_to_disk` wrote this folder."""
  single = ("state.json", "dataset_info.json")
  return (folder / "dataset_dict.json").is_file() or all(
    (folder / name).is_file() for name in single
  )


def _open_saved(
  folder: pathlib.Path,
  name: str,
  column: str,
  split: str,
  context: ErrorContext,
) -> HubDataset:
  import datasets

  several = folder / "dataset_dict.json"
  if several.is_file():
    split = split or "train"
    known = json.loads(several.read_text(encoding="utf-8"))["splits"]
    _check_split(split, known, name, context)
    folder = folder / split
  saved = datasets.load_from_disk(str(folder))
  if split and not several.is_file():
    _check_split(split, [saved.split or "train"], name, context)
  _check_column(saved.features, column, name, context)
  paths = sorted(path for path in folder.iterdir() if path.is_file())
  return HubDataset(name, column, split, False, saved, None, paths, context)


def _check_split(
  split: str, known: Any, name: str, context: ErrorContext
) -> None:
  names = [str(one) for one in known]
  if split not in names:
    raise DataError(
      f"{context.key}: hf:{name} has no split {split!r}; there are:"
      f" {', '.join(names)}. Name one with {context.split}."
    )


def _check_column(
  features: Any, column: str, name: str, context: ErrorContext
) -> None:
  if column and features is not None:
    schema = features.arrow_schema
    arrow.check_column(schema, column, f"{context.key}: hf:{name}")


def _load_library() -> None:
  """Imports `datasets`, and keeps its bars and lines off our display."""
  import datasets
  import huggingface_hub

  datasets.disable_progress_bars()
  datasets.logging.set_verbosity(logging.CRITICAL)
  huggingface_hub.utils.disable_progress_bars()
  huggingface_hub.logging.set_verbosity(logging.CRITICAL)


@contextlib.contextmanager
def _errors(
  name: str, context: ErrorContext, *, is_local: bool
) -> Iterator[None]:
  try:
    yield
  except TrueNegsError:
    raise
  # Two dozen kinds, of six libraries.
  except Exception as error:
    reason = f"{type(error).__name__}: {error}"
    if is_local:
      raise DataError(f"hf:{name}: cannot be read ({reason}).") from error
    if SCRIPTS in str(error):
      raise InputError(
        f"{context.key}: hf:{name} needs a script of its own ({reason}), which"
        f" `datasets` no longer runs: {context.script}."
      ) from error
    raise UnavailableError(
      f"{context.key}: hf:{name} cannot be loaded from the Hugging Face hub"
      f" ({reason}). {context.choices}. Without internet, give a copy: files,"
      " or hf:FOLDER, a data set saved there with save_to_disk; what an earlier"
      " run loaded is found where HF_HOME says."
    ) from error
