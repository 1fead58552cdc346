"""Reads files and data sets as documents.

A document has lines separated by "\\n", at least one, none of them blank. The
option `document=` of a part sets the rule:

* "block": blank lines separate documents;
* "record": every record is a document, in plain text every line;
* "file": every file is a document, without its blank lines;
* "join": consecutive records, in plain text blocks, are one document.

`datasets` does not read files here: it takes a zstd file that is cut off for a
whole one, and shifts the columns of CSV rows that are too long, in silence.
"""

import contextlib
import functools
import io
import itertools
import math
import os
import pathlib
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from truenegs_jax.runtime import text as text_lib
from truenegs_jax.runtime.errors import (
  DataError,
  DiskError,
  InputError,
  TrueNegsError,
  UnavailableError,
)
from truenegs_jax.runtime.files import FULL_DISK, short_sha256
from truenegs_jax.runtime.paths import is_hub_name, join_inside
from truenegs_jax.runtime.text import ESCAPED, check_column

JOIN = "join"  # of the documents of a format's default rule
RULES = ("block", "record", "file", JOIN)
# Of a line or document. Longer lines are refused; joined ones are cut, as a
# file without blank lines would be one document.
MAX_CHARS = 1_000_000
BATCH_RECORDS = 64
SYNSETS_PER_DOCUMENT = 64  # about 1,100 tokens: eight rows of 128
HUB = "hf:"  # begins data sets in configs
COMMIT = re.compile("[0-9a-f]{40}")
BAD = re.compile("[\0\x80-\x9f\ud800-\udfff]")
Records = Iterable[tuple[int, object]]  # a number, from 1, and a value of each
Table = Callable[..., Iterable[tuple[int, list[str]]]]  # reads rows of a path


def read_file(
  path: str, rule: str, *, column: str, kind: str = ""
) -> Iterator[str]:
  """Yields the documents of a file; kind and rule are "" for its suffix's."""
  kind = kind or text_lib.split_suffixes(path)[0].removeprefix(".")
  if kind in READERS:
    yield from from_records(READERS[kind](path, column), rule, path)
  elif rule == "record":
    yield from filter(str.strip, _read_lines(path))
  elif rule == "file":
    yield from join(filter(str.strip, _read_lines(path)))
  else:
    yield from join(_read_lines(path))


def from_records(records: Records, rule: str, path: str) -> Iterator[str]:
  """Forms the documents of records; leaves blank ones out.

  "block" splits a record at its blank lines.
  """
  return join(_split_records(records, rule or "record", path))


def _split_records(records: Records, rule: str, path: str) -> Iterator[str]:
  """Yields the lines of records, and a blank one where a document ends."""
  for number, value in records:
    if not isinstance(value, str | None):
      raise DataError(
        f"{path}:{number}: the column holds {type(value).__name__}, not text."
        " Set column=NAME to a column of text."
      )
    for line in io.StringIO(value or "", newline=None):
      line = line.removesuffix("\n")
      _check_line(line, path, number)
      if rule == "block" or line.strip():
        yield line
    if rule != "file":
      yield ""


def join(texts: Iterable[str], num_chars: float = math.inf) -> Iterator[str]:
  """Joins texts up to each blank one, or until they have `num_chars`.

  A document also ends before it would exceed MAX_CHARS.
  """
  joined: list[str] = []
  chars = 0  # without line ends
  for text in itertools.chain(texts, [""]):
    is_blank = not text.strip()
    is_long = chars + len(joined) + len(text) > MAX_CHARS
    if joined and (is_blank or is_long or chars >= num_chars):
      yield "\n".join(joined)
      joined = []
      chars = 0
    if not is_blank:
      joined.append(text)
      chars += len(text)


def _read_lines(path: str) -> Iterator[str]:
  """Yields the lines of a text without their ends."""
  with text_lib.open_text(path) as file:
    lines = iter(lambda: file.readline(MAX_CHARS + 2), "")
    for number, line in enumerate(lines, 1):
      line = line.removesuffix("\n")
      _check_line(line, path, number)
      yield line


def _check_line(line: str, path: str, number: int) -> None:
  """Raises DataError for a long line, or one that is not text."""
  is_plain = line.isascii() and "\0" not in line
  bad = None if is_plain else BAD.search(line)
  if bad or len(line) > MAX_CHARS:
    problem = _explain_bad(bad[0] if bad else "", line, path)
    raise DataError(f"{path}:{number}: {problem}")


def _explain_bad(character: str, line: str, path: str) -> str:
  """Says what to do about a character, or about a line that is too long."""
  if not character:
    return (
      f"a line of more than {MAX_CHARS:,} characters. Put one sentence or"
      " paragraph on a line, and a blank line between documents."
    )
  code = f"U+{ord(character):04X}"
  if character == "\0":
    return "NUL in the text, as in binary files. Remove it, or the file."
  if character < "\xa0":
    return (
      f"the control character {code}, as of a text in CP1252 that was read as"
      " LATIN1. Convert the original: `iconv -f CP1252 -t UTF-8`."
    )
  if ESCAPED.match(character):
    return text_lib.explain_bytes(line, path)
  return f"{code} is half of a surrogate pair. Repair the record."


def _read_table(path: str, column: str, *, read: Table) -> Records:
  """Yields a column of a table, whose first row has the names."""
  names: list[str] = []
  for number, row in read(path, errors="surrogateescape"):
    if not names:
      names = row
      check_column(f"{path}:{number}", names, column)
    elif len(row) == len(names):
      yield number, row[names.index(column)]
    elif row:  # a blank line is an empty row
      raise DataError(
        f"{path}:{number}: {len(row)} fields, but {len(names)} in the first"
        " line. Repair the row; .csv may quote a field that holds a comma."
      )


def _read_jsonl(path: str, column: str) -> Records:
  """Yields the value `column` of the JSON object on each line."""
  for number, record in text_lib.read_objects(path, errors="surrogateescape"):
    check_column(f"{path}:{number}", [*record], column)
    yield number, record[column]


def _read_parquet(path: str, column: str) -> Records:
  """Yields the text column of a Parquet file; holds a part of a row group."""
  from pyarrow import parquet

  suffix = text_lib.split_suffixes(path)[1]
  if suffix in (".bz2", ".zst"):  # cannot be read from their end
    command = f"{text_lib.TOOLS[suffix]} -d {shlex.quote(path)}"
    raise DataError(
      f"{path}: a Parquet file cannot be read in {suffix}, and is compressed"
      f" inside. Unpack it: `{command}`."
    )
  with dataset_errors(path), text_lib.open_bytes(path) as file:
    table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20)
    check_text(table.schema_arrow, column, path)
    batches = table.iter_batches(
      BATCH_RECORDS, columns=[column], use_threads=False
    )
    yield from enumerate(_read_batches(batches, column, path), 1)


# Kind -> yields a column of the records of a file.
READERS: dict[str, Callable[[str, str], Records]] = {
  "csv": functools.partial(_read_table, read=text_lib.read_csv),
  "json": _read_jsonl,
  "jsonl": _read_jsonl,
  "parquet": _read_parquet,
  "tsv": functools.partial(_read_table, read=text_lib.read_tsv),
}
KINDS = (*READERS, "txt")  # of files, by their suffixes; others are read as txt


def _read_batches(
  batches: Iterable[Any], column: str, path: str
) -> Iterator[str | None]:
  """Yields the texts of a column of Arrow's batches or tables."""
  for batch in batches:
    check_text(batch.schema, column, path)
    texts = batch.column(column)
    texts.validate(full=True)  # damaged offsets would crash the process
    yield from texts.to_pylist()


def check_text(schema: Any, column: str, where: str) -> None:
  """Raises DataError unless a column of an Arrow schema exists and is text."""
  check_column(where, schema.names, column)
  kind = str(schema.field(column).type)
  text = kind.removeprefix("dictionary<values=").partition(",")[0]
  if text not in ("string", "large_string", "string_view", "null"):
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


class HubDataset(NamedTuple):
  """One split of a data set of the `datasets` library."""

  name: str  # "hf:NAME [SPLIT]", for messages
  # Downloads and returns all columns; use it in `dataset_errors`.
  load: Callable[[], Any]
  commit: Mapping[str, str]  # determines it; empty for a folder
  paths: tuple[str, ...]  # of its files, or their URLs
  features: Any  # its columns; None if unknown
  num_bytes: int | None  # of its card


@contextlib.contextmanager
def dataset_errors(name: str) -> Iterator[None]:
  """Turns the errors of `datasets` into errors that name the data set."""
  try:
    yield
  except (TrueNegsError, MemoryError):
    raise
  except Exception as error:  # `datasets` and its libraries raise two dozen
    if "while generating" in str(error) and isinstance(
      error.__cause__, Exception
    ):
      error = error.__cause__
    if isinstance(error, OSError) and error.errno in FULL_DISK:
      raise DiskError(
        f"'{name}' could not be written to the cache of `datasets`:"
        f" {error.strerror}. Free some space, or set HF_HOME to a folder"
        " elsewhere, and run the same command again."
      ) from error
    reason = f"'{name}' cannot be read ({type(error).__name__}: {error})."
    where = os.path.expanduser(name.removeprefix(HUB))
    split = where.rpartition(" [")[0]  # "FOLDER [train]"
    if os.path.exists(where) or os.path.exists(split):
      raise DataError(reason) from error
    raise UnavailableError(
      f"{reason} Without internet, use local files or hf:FOLDER with a data set"
      " that save_to_disk wrote."
    ) from error


def find_saved(folder: pathlib.Path) -> dict[str, pathlib.Path]:
  """Returns the folder of each split that `save_to_disk` wrote."""
  if (folder / "state.json").is_file():
    return {"train": folder}
  if not (folder / "dataset_dict.json").is_file():
    return {}
  return {x.parent.name: x.parent for x in folder.glob("*/state.json")}


def open_dataset(
  name: str, *, config: str = "", split: str = "train", revision: str = ""
) -> HubDataset:
  """Finds a split of a data set; downloads no records.

  Its name is "hf:NAME" on the hub, or "hf:FOLDER", of data files or saved. A
  saved one is read without another copy on disk.
  """
  where = os.path.expanduser(name.removeprefix(HUB))
  is_local = os.path.isdir(where)
  if not is_local and not is_hub_name(where):
    raise DataError(
      f"'{name}' is neither a folder nor a name on the Hugging Face hub."
      " For a file, remove hf:."
    )
  if saved := find_saved(pathlib.Path(where)):
    return _open_saved(name, saved, split)
  with dataset_errors(name):
    import datasets

    builder = datasets.load_dataset_builder(
      where, config or None, revision=revision or None
    )
  data_files = getattr(builder.config, "data_files", None) or {}
  named = [str(path) for paths in data_files.values() for path in paths]
  check_data_files(name, where if is_local else builder.base_path, named)
  infos = builder.info.splits or {}
  _check_split(name, split, [*map(str, infos or data_files)])
  commit = {}
  if not is_local:
    config = builder.config.name
    commit = {"dataset": where, "config": config, "revision": builder.hash}
  # Without the hub, it is any commit that was read before.
  if commit and COMMIT.fullmatch(revision) and builder.hash != revision:
    raise UnavailableError(
      f"'{name}' is needed at commit {revision}, but without the hub only"
      f" {builder.hash} is on this machine. Connect to the hub."
    )

  def load() -> Any:
    builder.download_and_prepare()
    return builder.as_dataset(split=split)

  return HubDataset(
    f"{name} [{split}]",
    load,
    commit,
    tuple(map(str, data_files.get(split, []))),
    builder.info.features,
    getattr(infos.get(split), "num_bytes", None),
  )


def _open_saved(
  name: str, saved: Mapping[str, pathlib.Path], split: str
) -> HubDataset:
  """Opens a split of those that `find_saved` found."""
  _check_split(name, split, [*saved])
  folder = saved[split]
  check_data_files(name, str(folder), map(str, folder.iterdir()))
  with dataset_errors(name):
    import datasets

    dataset = datasets.load_from_disk(folder)
  paths = tuple(file["filename"] for file in dataset.cache_files)
  check_data_files(name, str(folder), paths)
  title = f"{name} [{split}]"
  return HubDataset(title, lambda: dataset, {}, paths, dataset.features, None)


def _check_split(name: str, split: str, splits: Sequence[str]) -> None:
  if split not in splits:
    raise DataError(
      f"'{name}' has no split {split!r}. Choose one of {', '.join(splits)}."
    )


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
      raise InputError(
        f"'{name}' names the file {path[:100]!r}, which is not on the hub, so"
        " it may be made to do harm. Use another data set."
      )


def read_dataset(dataset: HubDataset, column: str) -> Records:
  """Yields the texts of a column of a data set."""
  with dataset_errors(dataset.name):
    records = dataset.load()
    if column in (records.column_names or ()):
      records = records.select_columns([column])
    tables = records.with_format("arrow").iter(batch_size=BATCH_RECORDS)
    yield from enumerate(_read_batches(tables, column, dataset.name), 1)
