"""Reads files and data sets as documents, and repairs their text.

A document has lines separated by "\\n", at least one, none of them blank. The
option `document=` of a part sets the rule:

* "block": blank lines separate documents;
* "record": every record is a document, in plain text every line;
* "file": every file is a document, without its blank lines;
* "join": consecutive records, in plain text blocks, are one document.

`datasets` does not read files here: it takes a zstd file that is cut off for a
whole one, and shifts the columns of CSV rows that are too long, in silence.
"""

import collections
import contextlib
import dataclasses
import functools
import glob
import io
import itertools
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TextIO

from truenegs_jax.runtime import text as text_lib
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  TrueNegsError,
  UnavailableError,
)
from truenegs_jax.runtime.files import read_json, short_sha256
from truenegs_jax.runtime.paths import is_hub_name, join_inside
from truenegs_jax.runtime.text import ESCAPED, check_column

JOIN = "join"  # of the documents of a format's default rule
RULES = ("block", "record", "file", JOIN)
# Of a line or document; longer ones are cut. A file without blank lines would
# be one document.
MAX_CHARS = 1_000_000
BATCH_RECORDS = 64
SYNSETS_PER_DOCUMENT = 64  # about 1,100 tokens: eight rows of 128
# Names of repairs.
REPLACED = "characters that are not text, replaced"
CUTS = "cuts after 1,000,000 characters"
BLANK = "blank records, left out"
# Records of a source, before documents are joined.
RECORDS = "records"
Counts = collections.Counter[str]  # of records, and of repairs by their names
HUB = "hf:"  # begins data sets in configs
COMMIT = re.compile("[0-9a-f]{40}")
BAD = re.compile("[\0\x80-\x9f\ud800-\udfff]")


@dataclasses.dataclass
class Place:
  """A place in a source, and how bad text is treated there."""

  counts: Counts  # of what is read there
  errors: str  # "strict" refuses bad text; "replace" repairs and counts it
  path: str  # a file or data set
  number: int = 0  # of the current line or record, from 1

  def __str__(self) -> str:
    return f"{self.path}:{self.number}"

  def count(self, items: Iterable[Any]) -> Iterator[Any]:
    """Yields items and counts them as records of the source."""
    for item in items:
      self.counts[RECORDS] += 1
      yield item

  def repair(self, repair: str, problem: str, number: int = 1) -> None:
    """Counts a repair that the caller makes; DataError if errors are strict."""
    if self.errors == "strict":
      raise DataError(
        f"{self}: {problem} Or set --config.data.errors=replace to repair such"
        " text."
      )
    self.counts[repair] += number

  def clean(self, text: str) -> str:
    """Replaces bytes that are not UTF-8, lone surrogates, NUL and controls."""
    if (text.isascii() and "\0" not in text) or not BAD.search(text):
      return text
    bad = BAD.findall(text)
    self.repair(REPLACED, _explain_bad(bad[0], text, self.path), len(bad))
    return BAD.sub("\ufffd", text)


def _explain_bad(character: str, text: str, path: str) -> str:
  code = f"U+{ord(character):04X}"
  if character == "\0":
    return "NUL in the text, as in binary files. Remove it, or the file."
  if character < "\xa0":
    return (
      f"the control character {code}, as of a text in CP1252 that was read as"
      " LATIN1. Convert the original: `iconv -f CP1252 -t UTF-8`."
    )
  if ESCAPED.match(character):
    return text_lib.explain_bytes(text, path)
  return f"{code} is half of a surrogate pair. Repair the record."


def read_file(
  path: str, rule: str, place: Place, *, column: str, kind: str = ""
) -> Iterator[str]:
  """Yields the documents of a file; kind and rule are "" for its suffix's."""
  kind = kind or text_lib.split_suffixes(path)[0].removeprefix(".")
  place.path = path
  place.number = 0
  if kind in READERS:
    return from_records(READERS[kind](path, column, place), rule, place)
  return place.count(_read_text(path, rule or "block", place))


def from_records(
  values: Iterable[object], rule: str, place: Place
) -> Iterator[str]:
  """Forms the documents of records; leaves blank ones out and counts them.

  The place is at each record. "block" splits a record at its blank lines.
  """
  return join(_split_records(values, rule or "record", place), place)


def _split_records(
  values: Iterable[object], rule: str, place: Place
) -> Iterator[str]:
  for value in place.count(values):
    if not isinstance(value, str | None):
      raise DataError(
        f"{place}: the column holds {type(value).__name__}, not text. Set"
        " column=NAME to a column of text."
      )
    if value and not value.isspace():
      yield from _split_lines(io.StringIO(value, newline=None), rule, place)
    else:
      place.counts[BLANK] += 1
    if rule != "file":
      yield ""


def join(
  texts: Iterable[str], place: Place, *, num_chars: float = math.inf
) -> Iterator[str]:
  """Joins texts up to each blank one, or until they have `num_chars`.

  A document also ends before it would exceed MAX_CHARS, which is counted.
  """
  joined: list[str] = []
  chars = 0  # without line ends
  for text in itertools.chain(texts, [""]):
    is_blank = not text or text.isspace()
    is_complete = is_blank or chars >= num_chars
    is_long = chars + len(joined) + len(text) > MAX_CHARS
    if joined and (is_complete or is_long):
      if not is_complete:
        place.counts[CUTS] += 1
      yield "\n".join(joined)
      joined = []
      chars = 0
    if not is_blank:
      joined.append(text)
      chars += len(text)


def _read_text(path: str, rule: str, place: Place) -> Iterator[str]:
  with text_lib.open_text(path) as file:
    lines = _split_lines(file, rule, place, step=1)
    yield from lines if rule == "record" else join(lines, place)


def _split_lines(
  file: TextIO, rule: str, place: Place, *, step: int = 0
) -> Iterator[str]:
  """Yields cleaned lines without their ends; cuts or refuses long ones.

  Adds `step` to the place for each. Only the rule "block" has blank lines.
  """
  rest = ""
  while line := rest + file.readline(MAX_CHARS + 1 - len(rest)):
    place.number += step
    line = place.clean(line).removesuffix("\n")
    rest = line[MAX_CHARS:]
    if rest:
      place.repair(
        CUTS,
        f"a line of more than {MAX_CHARS:,} characters. Put one sentence or"
        " paragraph on a line, and a blank line between documents.",
      )
    if rule == "block" or not (line.isspace() or not line):
      yield line[:MAX_CHARS]


def _read_csv(
  path: str, column: str, place: Place, *, delimiter: str = ","
) -> Iterator[str]:
  """Yields a column of values separated by commas, or another character."""
  rows = text_lib.read_rows(path, delimiter=delimiter, errors="surrogateescape")
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


def _read_jsonl(path: str, column: str, place: Place) -> Iterator[object]:
  """Yields the value `column` of the JSON object on each line."""
  records = text_lib.read_objects(path, errors="surrogateescape")
  for place.number, record in records:
    check_column(str(place), [*record], column)
    yield record[column]


def _read_parquet(path: str, column: str, place: Place) -> Iterator[str | None]:
  """Yields the text column of a Parquet file; holds a part of a row group."""
  from pyarrow import parquet

  with dataset_errors(path), text_lib.open_bytes(path) as file:
    table = parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**20)
    check_text(table.schema_arrow, column, path)
    batches = table.iter_batches(
      BATCH_RECORDS, columns=[column], use_threads=False
    )
    yield from read_batches(batches, column, place)


# Kind -> yields a column of the records of a file; moves the place.
READERS: dict[str, Callable[[str, str, Place], Iterator[object]]] = {
  "csv": _read_csv,
  "json": _read_jsonl,
  "jsonl": _read_jsonl,
  "parquet": _read_parquet,
  "tsv": functools.partial(_read_csv, delimiter="\t"),
}
KINDS = (*READERS, "txt")  # of files, by their suffixes; others are read as txt


def read_batches(
  batches: Iterable[Any], column: str, place: Place
) -> Iterator[str | None]:
  """Yields the texts of a column of Arrow's batches or tables."""
  place.number = 0
  for batch in batches:
    check_text(batch.schema, column, place.path)
    texts = batch.column(column)
    texts.validate(full=True)  # damaged offsets would crash the process
    for text in texts.to_pylist():
      place.number += 1
      yield text


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
  info: Any  # `datasets.SplitInfo` of its card; None if unknown


@contextlib.contextmanager
def dataset_errors(name: str) -> Iterator[None]:
  """Turns the errors of `datasets` into errors that name the data set."""
  try:
    yield
  except TrueNegsError:
    raise
  except Exception as error:  # `datasets` and its libraries raise two dozen
    if "while generating" in str(error) and isinstance(
      error.__cause__, Exception
    ):
      error = error.__cause__
    reason = f"'{name}' cannot be read ({type(error).__name__}: {error})."
    folder = name.removeprefix(HUB).partition(" [")[0]
    if os.path.exists(os.path.expanduser(folder)):
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


def _saved_files(folder: pathlib.Path) -> list[str]:
  """Returns patterns of the files of a split; older ones may be beside them."""
  fix = "Save the data set again."
  with read_json(folder / "state.json", DataError, fix) as state:
    names = [str(file["filename"]) for file in state["_data_files"]]
    paths = [join_inside(folder, name) for name in names]
  for path in paths:  # `datasets` passes over a missing one
    if not path.is_file():
      raise DataError(f"'{path}' is missing. {fix}")
  return [glob.escape(str(path)) for path in paths]


def open_dataset(
  name: str,
  *,
  config: str = "",
  split: str = "train",
  revision: str = "",
  streaming: bool = False,
) -> HubDataset:
  """Finds a split of a data set; downloads no records.

  Its name is "hf:NAME" on the hub, or "hf:FOLDER", of data files or saved. A
  saved one, or any if `streaming`, is read without another copy on disk.
  """
  where = os.path.expanduser(name.removeprefix(HUB))
  is_local = os.path.isdir(where)
  if not is_local and not is_hub_name(where):
    raise DataError(
      f"'{name}' is neither a folder nor a name on the Hugging Face hub."
      " For a file, remove hf:."
    )
  saved = find_saved(pathlib.Path(where))
  builder = _load_builder(name, where, saved, config, revision)
  data_files = getattr(builder.config, "data_files", None) or {}
  named = [str(path) for paths in data_files.values() for path in paths]
  check_data_files(name, where if is_local else builder.base_path, named)
  infos = builder.info.splits or {}
  splits = [*map(str, infos or data_files)]
  if split not in splits:
    raise DataError(
      f"'{name}' has no split {split!r}. Choose one of {', '.join(splits)}."
    )
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
    if streaming or saved:
      return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)

  return HubDataset(
    f"{name} [{split}]",
    load,
    commit,
    tuple(map(str, data_files.get(split, []))),
    builder.info.features,
    infos.get(split),
  )


def _load_builder(
  name: str,
  where: str,
  saved: Mapping[str, pathlib.Path],
  config: str,
  revision: str,
) -> Any:
  """Returns the builder of a data set, or of the folders of saved splits."""
  with dataset_errors(name):
    import datasets

    files = {split: _saved_files(path) for split, path in saved.items()}
    return datasets.load_dataset_builder(
      "arrow" if saved else where,
      config or None,
      data_files=files or None,
      revision=revision or None,
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


def read_dataset(
  dataset: HubDataset, column: str, place: Place, *, unit: int, num_units: int
) -> Iterator[str | None]:
  """Yields the texts of a column of one of the units of a data set."""
  place.path = dataset.name
  with dataset_errors(dataset.name):
    records = dataset.load()
    if num_units > 1:
      records = records.shard(num_units, unit, contiguous=True)
    if column in (records.column_names or ()):
      records = records.select_columns([column])
    tables = records.with_format("arrow").iter(batch_size=BATCH_RECORDS)
    yield from read_batches(tables, column, place)
