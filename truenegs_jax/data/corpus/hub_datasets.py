"""Data sets of the `datasets` library: on the hub or in a local folder.

  dataset = open_dataset(DatasetSpec("Skylion007/openwebtext"))
  for text in dataset.read(ReadState()): ...

`datasets` is imported only here, and only when it is needed.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from truenegs_jax.config import grammar
from truenegs_jax.data.corpus import files, readers
from truenegs_jax.data.corpus.readers import ReadState
from truenegs_jax.runtime import cache, errors, progress
from truenegs_jax.runtime.files import atomic_file, disk_errors, read_json
from truenegs_jax.runtime.paths import is_hub_name, join_inside

if TYPE_CHECKING:
  import datasets

HUB = "hf:"  # begins data sets in configs
HUB_FILE = re.compile("^hf://[^@]*@[^/]*/")  # before the name of a file
COMMIT = re.compile("[0-9a-f]{40}")
ORIGINAL = "Use the original files of the data set."


@dataclasses.dataclass(frozen=True)
class DatasetSpec:
  """A data set and the part of it to read."""

  name: str  # on the hub; or a folder, of data files or of `save_to_disk`
  column: str = "text"  # of the texts; empty for all columns
  split: str = ""  # empty for "train", or for all that a saved data set holds
  config: str = ""  # also called subset; empty for the only one or the default
  revision: str = ""  # branch, tag or commit; empty for the main branch
  streaming: bool = False  # from the hub, without a copy on disk
  # Whether a branch or tag is always read at the commit of the first run.
  keep_commit: bool = False

  def __str__(self) -> str:
    return f"'{HUB}{self.name}'"

  @contextlib.contextmanager
  def convert_errors(self) -> Iterator[None]:
    """Turns the errors of `datasets` into errors that name this data set."""
    try:
      yield
    except errors.TrueNegsError:
      raise
    # `datasets` and its libraries raise two dozen types.
    except Exception as error:
      reason = f"{type(error).__name__}: {error}"
      if is_folder(self.name):
        raise errors.DataError(f"{self} cannot be read ({reason}).") from error
      raise errors.UnavailableError(
        f"{self} cannot be loaded from the Hugging Face hub ({reason})."
        " Without internet, use local files or hf:FOLDER with a data set that"
        " save_to_disk wrote."
      ) from error

  def check(
    self, splits: Iterable[object], features: "datasets.Features | None"
  ) -> None:
    """Raises a DataError unless the split and a column of text exist."""
    names = list(map(str, splits))
    if self.split not in names:
      raise errors.DataError(
        f"{self} has no split {self.split!r}. Choose one of {', '.join(names)}."
      )
    if self.column and features is not None:
      readers.check_column(features.arrow_schema, self.column, str(self))


@dataclasses.dataclass(frozen=True)
class HubDataset:
  """One split of a data set that is ready to be read."""

  spec: DatasetSpec  # its split is empty for a saved data set without splits
  # Returns all columns; use it within `spec.convert_errors()`.
  records: "Callable[[], datasets.Dataset | datasets.IterableDataset]"
  # Determines the records on the hub; empty for a folder.
  commit: dict[str, str]
  paths: tuple[str, ...]  # of its files, or their URLs
  size: int | None  # approximate bytes of the text; None if unknown
  # Returns the number of its records; None if it is not known yet.
  num_records: Callable[[], int | None]

  def identity(self) -> dict[str, Any]:
    """Returns as JSON what determines the texts, as of now."""
    version: dict[str, Any] = self.commit
    with self.spec.convert_errors():
      if not version:
        present = [*map(files.stat_file, self.paths)]
        version = {"files": files.files_identity(present)}
    return {"split": self.spec.split, "column": self.spec.column, **version}

  def list_files(self) -> dict[str, int]:
    """Returns name and bytes of each file on the hub, if it can be reached."""
    paths = self.paths if self.commit else ()
    with self.spec.convert_errors():
      return {HUB_FILE.sub("", url): files.size_of_url(url) for url in paths}

  def read(self, state: ReadState) -> Iterator[str | None]:
    """Yields the texts of the column."""
    spec = self.spec
    state.where = f"{HUB}{spec.name} [{spec.split}]"
    state.unit = "record"
    state.number = 0
    with spec.convert_errors():
      records = self.records()
      if spec.column in (records.column_names or ()):
        records = records.select_columns([spec.column])
      yield from readers.read_batches(
        records.with_format("arrow").iter(batch_size=readers.BATCH_RECORDS),
        state,
        column=spec.column,
      )


def parse_dataset(text: str, *, key: str) -> DatasetSpec:
  """Parses "hf:NAME config=C split=S revision=R" of a key, for all columns."""
  item = grammar.parse_item(text, key=key)
  defaults = {"split": "", "config": "", "revision": ""}
  options = item.convert(defaults, subject=f"{key}: {item.name!r}")
  name = item.name.removeprefix(HUB)
  return DatasetSpec(name, column="", **options)


def open_dataset(spec: DatasetSpec) -> HubDataset:
  """Finds a data set and a split of it; downloads no records."""
  is_local = is_folder(spec.name)
  folder = pathlib.Path(spec.name).expanduser()
  if not is_local and not is_hub_name(spec.name):
    raise errors.DataError(
      f"{spec} is neither a folder nor a name on the Hugging Face hub."
      " For a file, remove hf:."
    )
  with spec.convert_errors():
    if is_local and is_saved(folder):
      return _open_saved(spec, folder)
    return _open_files(spec, folder)


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

  check_saved_files(folder)
  saved = datasets.load_from_disk(str(folder))
  splits: Iterable[object]
  if isinstance(saved, datasets.DatasetDict):
    spec = dataclasses.replace(spec, split=spec.split or "train")
    splits = saved
    saved = saved.get(spec.split)
    folder /= spec.split
  else:
    splits = [saved.split or "train"] if spec.split else [""]
  spec.check(splits, getattr(saved, "features", None))
  paths = tuple(str(x) for x in sorted(folder.iterdir()) if x.is_file())
  size = saved.data.nbytes
  return HubDataset(spec, lambda: saved, {}, paths, size, lambda: len(saved))


def check_saved_files(folder: pathlib.Path) -> None:
  """Raises InputError if `save_to_disk`'s files name others outside."""
  parts = [folder]
  splits = folder / "dataset_dict.json"
  if splits.is_file():
    with read_json(splits, errors.DataError, ORIGINAL) as saved:
      parts = [join_inside(folder, str(name)) for name in saved["splits"]]
  for part in parts:
    path = join_inside(part, "state.json")
    with read_json(path, errors.DataError, ORIGINAL) as saved:
      for file in saved["_data_files"]:
        join_inside(part, str(file["filename"]))


def check_data_files(
  spec: DatasetSpec, base: str, paths: Iterable[str]
) -> None:
  """Raises InputError if a data set's card names files of somebody else.

  Those of a folder are in the folder, `base`. Those of the hub are on the hub,
  as is the archive behind the "::" in the name of its member.
  """
  for path in paths:
    if "://" not in base:
      root = pathlib.Path(base).resolve()
      join_inside(root, os.path.relpath(os.path.realpath(path), root))
    elif not path.rpartition("::")[2].startswith("hf://"):
      raise errors.InputError(
        f"{spec} names the file {path[:100]!r}, which is not on the hub, so it"
        " may be made to do harm. Use another data set."
      )


def _open_files(spec: DatasetSpec, folder: pathlib.Path) -> HubDataset:
  """Opens a data set of files on the hub or in a folder."""
  builder = _load_builder(spec, folder)
  split = spec.split or "train"
  spec = dataclasses.replace(spec, split=split)
  infos = builder.info.splits or {}
  data_files = getattr(builder.config, "data_files", None) or {}
  named = [str(x) for listed in data_files.values() for x in listed]
  check_data_files(spec, str(builder.base_path), named)
  spec.check(infos or data_files, builder.info.features)

  def load() -> Any:
    if spec.streaming:
      return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)

  def num_records() -> int | None:  # `load` adds what the files say
    return getattr((builder.info.splits or {}).get(split), "num_examples", None)

  commit = {}
  paths = tuple(map(str, data_files.get(split, [])))
  if not is_folder(spec.name):
    commit = {"dataset": spec.name, "config": builder.config.name}
    commit["revision"] = builder.hash  # the commit
  size = getattr(infos.get(split), "num_bytes", None)
  return HubDataset(spec, load, commit, paths, size, num_records)


def _load_builder(spec: DatasetSpec, folder: pathlib.Path) -> Any:
  """Returns the builder of a revision, of the hub at the commit to read."""
  import datasets

  def load(revision: str) -> Any:
    return datasets.load_dataset_builder(
      str(folder), spec.config or None, revision=revision or None
    )

  builder = load(spec.revision)
  commit = spec.revision
  if is_folder(spec.name):
    return builder
  if not COMMIT.fullmatch(commit):
    commit, record = _find_commit(spec, builder)
    if commit != builder.hash:
      progress.log_console().print(
        f"warning: {spec}: revision={spec.revision or 'main'} is now"
        f" {builder.hash}. The text of the first run is read: {commit}. For the"
        f" new one, set revision={builder.hash}, or remove '{record}'.",
        soft_wrap=True,
      )
      builder = load(commit)
  if builder.hash != commit:
    raise errors.UnavailableError(
      f"{spec} is needed at commit {commit}, but without the hub only"
      f" {builder.hash} is on this machine. Connect to the hub, or set"
      f" revision={builder.hash} for the other text."
    )
  return builder


def _find_commit(spec: DatasetSpec, builder: Any) -> tuple[str, pathlib.Path]:
  """Returns the commit of a branch or tag in the first run, and its record."""
  name = f"{spec.name}@{spec.revision or 'main'}".replace("/", "--")
  record = cache.folder() / "revisions" / name
  if spec.keep_commit and record.exists():
    return record.read_text(encoding="utf-8"), record
  # Without the hub it is any commit that was read before, and has no files.
  if spec.keep_commit and builder.config.data_files:
    with disk_errors(record):
      record.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(record, several_writers=True) as file:
      file.write(builder.hash.encode())
  return builder.hash, record
