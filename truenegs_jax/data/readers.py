"""Finds the files and data sets of a corpus, and reads their records.

  for text in RECORD_FORMATS["csv"]("a.csv", "text", place): ...
  dataset = open_dataset("hf:nyu-mll/glue", config="sst2").load()

`datasets` is imported only where it is used.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from truenegs_jax.data.documents import MAX_CHARS, Place, cut_line
from truenegs_jax.runtime import errors
from truenegs_jax.runtime import text as text_lib
from truenegs_jax.runtime.errors import DataError, UnavailableError
from truenegs_jax.runtime.files import read_json, short_sha256
from truenegs_jax.runtime.paths import is_hub_name, join_inside
from truenegs_jax.runtime.text import check_column

BLOCK_CHARS = 2**18  # read at once: few calls, little memory
BATCH_RECORDS = 64
SYNSETS_PER_DOCUMENT = 64  # about 1,100 tokens: eight rows of 128
TEXT = "text"  # the format of files with other suffixes
SUFFIXES = {
  ".csv": "csv",
  ".json": "jsonl",
  ".jsonl": "jsonl",
  ".parquet": "parquet",
  ".tsv": "csv",
  ".txt": TEXT,
}
HUB = "hf:"  # begins data sets in configs
SHARD_BYTES = 2**25  # of a saved data set, about
COMMIT = re.compile("[0-9a-f]{40}")


def read_text(path: str, place: Place) -> Iterator[str]:
  """Yields groups of complete lines; a long line is cut or refused."""
  rest = ""
  number = 1
  with text_lib.open_text(path) as file:
    while block := file.read(BLOCK_CHARS):
      text = rest + block
      place.number = number
      end = text.rfind("\n") + 1
      if not end and len(text) > MAX_CHARS:
        end = cut_line(text, place)
      rest = text[end:]
      if end:
        yield place.clean(text[:end], is_lines=True)
        number += text.count("\n", 0, end)
    place.number = number
    if rest:
      yield place.clean(rest, is_lines=True)


def read_csv(path: str, column: str, place: Place) -> Iterator[str]:
  """Yields a column of comma-separated values; .tsv is separated by tabs."""
  is_tsv = text_lib.split_suffixes(path)[0] == ".tsv"
  rows = text_lib.read_rows(
    path, delimiter="\t" if is_tsv else ",", errors="surrogateescape"
  )
  names: list[str] = []
  for place.number, row in rows:
    if not names:
      names = row
      check_column(str(place), names, column)
    elif len(row) == len(names):
      yield row[names.index(column)]
    elif row:  # a blank line is an empty row
      raise DataError(
        f"{place}: {len(row)} fields, but {len(names)} in the first line. Quote"
        " a field that holds the separator."
      )


def read_jsonl(path: str, column: str, place: Place) -> Iterator[object]:
  """Yields the value `column` of the JSON object on each line."""
  records = text_lib.read_objects(path, errors="surrogateescape")
  for place.number, record in records:
    check_column(str(place), [*record], column)
    yield record[column]


def read_parquet(path: str, column: str, place: Place) -> Iterator[str | None]:
  """Yields the text column of a Parquet file; holds a part of a row group."""
  from pyarrow import parquet  # `datasets` would write locks into its cache

  with dataset_errors(path), text_lib.open_bytes(path) as file:
    table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20)
    check_text(table.schema_arrow, column, path)
    batches = table.iter_batches(
      BATCH_RECORDS, columns=[column], use_threads=False
    )
    yield from read_batches(batches, column, place)


def read_batches(
  batches: Iterable[Any], column: str, place: Place
) -> Iterator[str | None]:
  """Yields the texts of a column of Arrow's batches or tables."""
  import pyarrow

  place.form = "{}: record {}"
  for batch in batches:
    check_text(batch.schema, column, place.path)
    texts = batch.column(column).cast(pyarrow.large_binary())
    texts.validate(full=True)  # damaged offsets would crash the process
    for text in texts.to_pylist():
      place.number += 1
      yield None if text is None else text.decode("utf-8", "surrogateescape")


def check_text(schema: Any, column: str, where: str) -> None:
  """Raises DataError unless a column of an Arrow schema exists and is text."""
  import pyarrow

  check_column(where, schema.names, column)
  kind = schema.field(column).type
  text = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
  if text not in (
    *(pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()),
    pyarrow.null(),
  ):
    raise DataError(
      f"{where}: column {column!r} holds {kind}, not text. Set column=NAME."
    )


# One reader per process: parsing WordNet takes seconds, its text 11 MB.
@functools.lru_cache(maxsize=1)
def read_wordnet(reader: Any) -> tuple[str, ...]:
  """Returns the definitions and example sentences of WordNet, one a line.

  A document holds 64 neighboring synsets of one of WordNet's lexicographer
  files, which have related meanings (all persons, all plants, ...).
  """
  texts = []
  for pos in "nvar":
    synsets = sorted(
      reader.all_synsets(pos), key=lambda s: (s.lexname(), s.offset())
    )
    for _, group in itertools.groupby(synsets, key=lambda s: s.lexname()):
      while members := list(itertools.islice(group, SYNSETS_PER_DOCUMENT)):
        glosses = [t for s in members for t in (s.definition(), *s.examples())]
        lines = [" ".join(gloss.split()) for gloss in glosses]
        texts.append("\n".join(filter(None, lines)))
  return tuple(filter(None, texts))


def hash_wordnet(reader: Any) -> str:
  """Returns a hash, as times and places differ between packages: 40 ms."""
  contents = []
  for name in ("noun", "verb", "adj", "adv"):
    with reader.open("data." + name) as file:
      contents.append(file.read())
  return short_sha256(*contents)


# Name -> yields a column of the records of a file.
RECORD_FORMATS: dict[str, Callable[[str, str, Place], Iterator[object]]] = {
  "csv": read_csv,
  "jsonl": read_jsonl,
  "parquet": read_parquet,
}


@dataclasses.dataclass(frozen=True)
class HubDataset:
  """One split of a data set of the `datasets` library."""

  name: str  # "hf:NAME [SPLIT]", for messages
  # Downloads and returns all columns; use it in `dataset_errors`.
  load: Callable[[], Any]
  split: str  # "" for a saved data set without splits
  commit: Mapping[str, str]  # determines it; empty for a folder
  paths: tuple[str, ...]  # of its files, or their URLs
  num_bytes: int | None  # of its text, about
  num_records: int  # that its card or state says; 0 if unknown
  num_shards: int  # in which it can be read
  features: Any  # its columns; None if unknown

  def read_shard(
    self, number: int, column: str, place: Place
  ) -> Iterator[str | None]:
    """Yields the texts of a column of one of the shards."""
    with dataset_errors(self.name):
      records = self.load()
      if self.num_shards > 1:
        records = records.shard(self.num_shards, number, contiguous=True)
      if column in (records.column_names or ()):
        records = records.select_columns([column])
      tables = records.with_format("arrow").iter(batch_size=BATCH_RECORDS)
      yield from read_batches(tables, column, place)

  def list_files(self) -> dict[str, int]:
    """Returns name and bytes of each file on the hub, if it can be reached."""
    sizes = {}
    with dataset_errors(self.name):
      for url in self.paths if self.commit else ():
        system, path = text_lib.connect(url)
        sizes[re.sub("^hf://[^@]*@[^/]*/", "", url)] = int(system.size(path))
    return sizes


@contextlib.contextmanager
def dataset_errors(name: str) -> Iterator[None]:
  """Turns the errors of `datasets` into errors that name the data set."""
  try:
    yield
  except errors.TrueNegsError:
    raise
  # `datasets` and its libraries raise two dozen types.
  except Exception as error:
    reason = f"{type(error).__name__}: {error}"
    folder = name.removeprefix(HUB).partition(" [")[0]
    if os.path.exists(os.path.expanduser(folder)):
      raise DataError(f"'{name}' cannot be read ({reason}).") from error
    raise UnavailableError(
      f"'{name}' cannot be loaded from the Hugging Face hub ({reason})."
      " Without internet, use local files or hf:FOLDER with a data set that"
      " save_to_disk wrote."
    ) from error


def is_saved(folder: pathlib.Path) -> bool:
  """Returns whether `save_to_disk` wrote this folder."""
  names = ("dataset_dict.json", "state.json")
  return any((folder / name).is_file() for name in names)


def open_dataset(
  name: str,
  *,
  config: str = "",
  split: str = "",
  revision: str = "",
  streaming: bool = False,
) -> HubDataset:
  """Finds a split of a data set; downloads no records.

  Args:
    name: "hf:NAME" on the hub, or "hf:FOLDER", of data files or saved.
    config: also called subset; "" for the only one or the default.
    split: "" for "train", or for all that a saved data set holds.
    revision: branch, tag or commit; "" for the main branch.
    streaming: whether it is read from the hub without a copy on disk.
  """
  where = os.path.expanduser(name.removeprefix(HUB))
  is_local = os.path.isdir(where)
  if not is_local and not is_hub_name(where):
    raise DataError(
      f"'{name}' is neither a folder nor a name on the Hugging Face hub."
      " For a file, remove hf:."
    )
  with dataset_errors(name):
    import datasets

    if is_local and is_saved(pathlib.Path(where)):
      return _open_saved(name, where, split)
    builder = datasets.load_dataset_builder(
      where, config or None, revision=revision or None
    )
  split = split or "train"
  infos = builder.info.splits or {}
  data_files = getattr(builder.config, "data_files", None) or {}
  named = [str(path) for paths in data_files.values() for path in paths]
  check_data_files(name, str(builder.base_path), named)
  _check_split(name, split, infos or data_files)
  commit = {}
  if not is_local:
    commit = {"dataset": where, "config": builder.config.name}
    commit["revision"] = builder.hash
  # Without the hub, it is any commit that was read before.
  if COMMIT.fullmatch(revision) and builder.hash != revision and not is_local:
    raise UnavailableError(
      f"'{name}' is needed at commit {revision}, but without the hub only"
      f" {builder.hash} is on this machine. Connect to the hub."
    )

  def load() -> Any:
    if streaming:
      return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)

  return HubDataset(
    f"{name} [{split}]",
    load,
    split,
    commit,
    tuple(map(str, data_files.get(split, []))),
    getattr(infos.get(split), "num_bytes", None),
    getattr(infos.get(split), "num_examples", None) or 0,
    len(data_files.get(split, [])) if streaming else 1,
    builder.info.features,
  )


def _open_saved(name: str, where: str, split: str) -> HubDataset:
  import datasets

  check_saved_files(pathlib.Path(where))
  saved = datasets.load_from_disk(where)
  if isinstance(saved, datasets.DatasetDict):
    split = split or "train"
    _check_split(name, split, saved)
    saved = saved[split]
  elif split:
    _check_split(name, split, [saved.split or "train"])
  paths = [file["filename"] for file in saved.cache_files]
  size = saved.data.nbytes
  return HubDataset(
    f"{name} [{split}]",
    lambda: saved,
    split,
    {},
    tuple(paths),
    size,
    len(saved),
    1 + size // SHARD_BYTES,
    saved.features,
  )


def _check_split(name: str, split: str, splits: Iterable[object]) -> None:
  names = [*map(str, splits)]
  if split not in names:
    raise DataError(
      f"'{name}' has no split {split!r}. Choose one of {', '.join(names)}."
    )


def check_saved_files(folder: pathlib.Path) -> None:
  """Raises InputError if `save_to_disk`'s files name others outside."""
  fix = "Use the original files of the data set."
  parts = [folder]
  if (splits := folder / "dataset_dict.json").is_file():
    with read_json(splits, DataError, fix) as saved:
      parts = [join_inside(folder, str(name)) for name in saved["splits"]]
  for part in parts:
    with read_json(join_inside(part, "state.json"), DataError, fix) as saved:
      for file in saved["_data_files"]:
        join_inside(part, str(file["filename"]))


def check_data_files(name: str, base: str, paths: Iterable[str]) -> None:
  """Raises InputError if a data set names files of somebody else.

  Those of a folder are in the folder, `base`. Those of the hub are on the hub,
  as is the archive behind the "::" in the name of its member.
  """
  for path in paths:
    if "://" not in base:
      root = pathlib.Path(base).resolve()
      join_inside(root, os.path.relpath(os.path.realpath(path), root))
    elif not path.rpartition("::")[2].startswith("hf://"):
      raise errors.InputError(
        f"'{name}' names the file {path[:100]!r}, which is not on the hub, so"
        " it may be made to do harm. Use another data set."
      )
