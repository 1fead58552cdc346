"""Parses `config.data.sources` and opens its corpus.

  corpus = open_corpus("wiki/*.txt.xz weight=3, hf:name/set weight=1")

A part is a file, a folder or a glob, also by URL; "wordnet"; or hf:NAME for the
`datasets` library. `config.grammar` parses its options.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from truenegs_jax.config import grammar
from truenegs_jax.data.corpus import documents, hub_datasets, readers
from truenegs_jax.data.corpus.corpus import Corpus, Part
from truenegs_jax.data.corpus.files import files_identity, find_files, is_url
from truenegs_jax.data.corpus.hub_datasets import HUB
from truenegs_jax.data.corpus.readers import SUFFIXES, TEXT, ReadState
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  UnavailableError,
  one_of,
)
from truenegs_jax.runtime.files import short_sha256
from truenegs_jax.runtime.paths import check_utf8

WORDNET = "wordnet"
WORDNET_BYTES = 11_000_000
UNIT_BYTES = 2**22  # of the files of a unit, as they are stored
JOIN_CHARS = 20_000  # about 9 rows of 512: half a row of padding is 5 %
# The beginning of a split, as the hub converts large data sets to Parquet.
PARTIAL = re.compile(r"(?:^|[/\\])partial-[^/\\]+[/\\][^/\\]+\.parquet$")
ANY = "any"  # of data.expect
FORMATS = (*readers.RECORD_FORMATS, TEXT)
LARGEST = {
  "weight": 1e9,
  "chars": readers.MAX_DOCUMENT_BYTES,
  "min_chars": readers.MAX_DOCUMENT_BYTES,
  "records": 1e12,
}


def open_corpus(
  spec: str,
  *,
  errors: str = "strict",
  stopping: str = "all",
  expect: str = ANY,
  key: str = "data.sources",
  reader: readers.WordNetReader | None = None,
) -> Corpus:
  """Opens the corpus of a spec; reads only the first record of each part.

  Args:
    spec: comma-separated parts, each with the options of `PartSpec`. With
      weights they are mixed in these shares of the text (in bytes); a part that
      ends before the mixture is read again.
    errors: "strict" refuses bad text; "replace" repairs and counts it.
    stopping: end of a mixture: "all" when every part was read to its end once,
      "first" when the first part ends.
    expect: "" refuses parts that are cut off; "any" does not.
    reader: for the part "wordnet".
  """
  part_specs = _parse_spec(spec, key)
  weights = [part.weight for part in part_specs if part.weight]
  if weights and len(weights) < len(part_specs):
    without = next(part.where for part in part_specs if not part.weight)
    raise InputError(
      f"{key}: {len(weights)} of {len(part_specs)} parts have weight=. Set it"
      f" for {without!r} as well, or for none."
    )
  # Normalized, so that weights 3 and 1 are the same mixture as 6 and 2.
  shares = tuple(weight / sum(weights) for weight in weights)
  parts = tuple(_open_part(part, reader, expect) for part in part_specs)
  seen: dict[str, str] = {}  # or one may train on a file and one hold it out
  for part in parts:
    for path in part.paths:
      if (other := seen.setdefault(path, part.name)) is not part.name:
        raise InputError(
          f"{key}: '{path}' is in {other!r} and in {part.name!r}. Name it only"
          " once. To read it more often, set weights."
        )
  return Corpus(parts, shares if len(shares) > 1 else (), errors, stopping)


def named_sources(spec: str, *, key: str = "data.sources") -> set[str]:
  """Returns the named sources of a spec, without hf: {"wordnet"} or none."""
  return {part.where for part in _parse_spec(spec, key)} & {WORDNET}


def describe_sources(spec: str, *, key: str = "data.sources") -> str:
  """Describes in a dry run which files of a spec exist; reads none."""
  return ", ".join(map(_describe_part, _parse_spec(spec, key)))


class PartSpec(NamedTuple):
  """A part of a spec with its options."""

  where: str  # its name or path
  subject: str  # the config key and the part, for messages
  weight: float = 0.0  # 0 if not set
  document: str = ""  # block, record, file or join; "": that of its format
  chars: int = 0  # least size of joined documents; 0 to join none
  min_chars: int = 0  # least size of a line
  records: int = 0  # that it should have; 0 if unknown
  column: str = "text"
  format: str = ""  # of files; "" if the suffix says it
  split: str = ""  # this and the following of a data set
  config: str = ""
  revision: str = ""
  streaming: bool = False

  def is_dataset(self) -> bool:
    """Returns whether `datasets` reads it."""
    return self.where.startswith(HUB) and not is_url(self.where)

  def rule(self, default: str) -> str:
    """Returns the rule that forms its documents before they are joined."""
    return default if self.document in ("", documents.JOIN) else self.document


def _parse_spec(spec: str, key: str) -> list[PartSpec]:
  parts = [_parse_part(x, key) for x in grammar.parse_items(spec, key=key)]
  if not parts:
    raise InputError(f"{key}={spec!r} names no text. Name a file, for example.")
  return parts


def _parse_part(item: grammar.Item, key: str) -> PartSpec:
  subject = f"{key}: part {item.name!r}"
  if item.name in ("", HUB):
    raise InputError(f"{subject}: no name or path before the options.")
  part = PartSpec(item.name, subject)
  options = list(PartSpec._fields[2:])
  if item.name == WORDNET:
    options = ["weight"]
  elif part.is_dataset():
    options.remove("format")
  else:
    options = options[: options.index("split")]
  defaults = {option: getattr(part, option) for option in options}
  values = item.convert(defaults, subject=subject)
  for option, largest in LARGEST.items():
    if option in item.options and not 0 < values[option] <= largest:  # NaN, too
      raise InputError(
        f"{subject}: {option}={item.options[option]} must be above 0 and at"
        f" most {largest:,.0f}."
      )
  part = part._replace(**values)
  rules = (*documents.RULES, documents.JOIN)
  one_of(f"{subject}: document", part.document or documents.JOIN, rules)
  one_of(f"{subject}: format", part.format or TEXT, FORMATS)
  if part.document == documents.JOIN:
    return part._replace(chars=part.chars or JOIN_CHARS)
  if part.chars:
    raise InputError(f"{subject}: chars= needs document={documents.JOIN}.")
  return part


def _describe_part(part_spec: PartSpec) -> str:
  where = part_spec.where
  if part_spec.is_dataset() or where == WORDNET or is_url(where):
    return where
  if not (files := find_files(where, suffixes=SUFFIXES)):
    return f"{where} (missing)"
  size = sum(f.size for f in files) / 1e6
  count = "1 file" if len(files) == 1 else f"{len(files):,} files"
  return f"{where} ({count}, {size:,.1f} MB)"


def _open_part(
  part_spec: PartSpec, reader: readers.WordNetReader | None, expect: str
) -> Part:
  if expect == ANY:
    part_spec = part_spec._replace(records=0)
  if part_spec.is_dataset():
    part = _open_dataset(part_spec, expect)
  elif part_spec.where == WORDNET:
    part = _open_wordnet(part_spec, reader)
  else:
    part = _open_files(part_spec)
  partial = next(filter(PARTIAL.search, part.paths), "")
  if partial and expect != ANY:
    raise DataError(
      f"{part_spec.subject}: '{partial}' holds only the beginning of a split,"
      " which the hub's converter cut off. Use the original files or another"
      " revision, or accept it with --config.data.expect=any."
    )
  part = dataclasses.replace(
    part,
    num_expected=part_spec.records,
    min_chars=part_spec.min_chars,
    join_chars=part_spec.chars,
  )
  if part.num_expected:
    part.check_records(part.num_records())
  return part


def _open_wordnet(
  part_spec: PartSpec, reader: readers.WordNetReader | None
) -> Part:
  if reader is None:
    raise InputError(f"{part_spec.subject} cannot be read here. Name files.")

  def identity() -> dict[str, Any]:
    # A hash, because times and places differ between packages: 21 MB in 40 ms.
    contents = []
    for name in ("noun", "verb", "adj", "adv"):
      with reader.open("data." + name) as file:
        contents.append(file.read())
    return {"source": WORDNET, "sha256": short_sha256(*contents)}

  def read(state: ReadState, unit: int) -> Iterator[str]:
    del unit  # there is one
    state.where = WORDNET
    state.number = 0
    return documents.from_records(readers.read_wordnet(reader), "record", state)

  return Part(WORDNET, read, identity, WORDNET_BYTES)


def _open_dataset(part_spec: PartSpec, expect: str) -> Part:
  rule = part_spec.rule("record")
  if rule == "file":
    raise InputError(
      f"{part_spec.subject}: document=file does not apply to records. Choose"
      f" block, record or {documents.JOIN}."
    )
  names = ("column", "split", "config", "revision", "streaming")
  options = {name: getattr(part_spec, name) for name in names}
  name = part_spec.where.removeprefix(HUB)
  dataset = hub_datasets.open_dataset(
    hub_datasets.DatasetSpec(name, **options, keep_commit=expect != ANY)
  )
  return Part(
    part_spec.where,
    lambda state, _: documents.from_records(dataset.read(state), rule, state),
    lambda: {"source": "hf", **dataset.identity(), "document": rule},
    dataset.size,
    is_local=hub_datasets.is_folder(name),
    paths=dataset.paths,
    num_records=dataset.num_records,
    files=dataset.list_files(),
  )


def _open_files(part_spec: PartSpec) -> Part:
  where = part_spec.where
  column = part_spec.column
  files = find_files(where, suffixes=SUFFIXES)
  if not files:
    raise UnavailableError(
      f"{part_spec.subject} is no file, folder or URL, and no glob with a"
      " match. On the hub it is hf:NAME. Put a path with commas or = in quotes."
    )
  for file in files:
    check_utf8(file.path)
  names = [part_spec.format or SUFFIXES.get(x.suffix, TEXT) for x in files]
  rules = {
    name: part_spec.rule("block" if name == TEXT else "record")
    for name in sorted({*names})
  }
  size = None
  if not any(file.compression or file.suffix == ".parquet" for file in files):
    size = sum(file.size for file in files)
  units = _split_into_units([file.size for file in files])

  @functools.cache
  def num_records() -> int | None:
    if {*names} != {"parquet"} or is_url(where):
      return None
    return sum(map(readers.count_parquet, files))

  def read_file(number: int, state: ReadState) -> Iterator[str]:
    file = files[number]
    name = names[number]
    state.where = file.path
    state.unit = "line"
    state.number = 0
    if name == TEXT:
      lines = readers.read_text(file, state)
      return documents.from_lines(lines, rules[name], state)
    values = readers.RECORD_FORMATS[name](file, state, column=column)
    return documents.from_records(values, rules[name], state)

  def identity() -> dict[str, Any]:
    now = files_identity(find_files(where, suffixes=SUFFIXES))
    result = {"source": "files", "files": now, "document": rules}
    return result if [*rules] == [TEXT] else {**result, "column": column}

  def read(state: ReadState, unit: int) -> Iterator[str]:
    for number in units[unit]:
      is_empty = True
      for text in read_file(number, state):
        is_empty = False
        yield text
      if is_empty:
        state.repairs[readers.EMPTY_FILES] += 1

  for name in rules:  # so that a missing column is noticed at once
    next(read_file(names.index(name), ReadState("replace")), 0)
  is_local = not is_url(where)
  paths = tuple(os.path.abspath(f.path) if is_local else f.path for f in files)
  return Part(
    where, read, identity, size, len(units), is_local, paths, num_records
  )


def _split_into_units(sizes: list[int]) -> list[list[int]]:
  """Groups the numbers of files by UNIT_BYTES, so that small ones can join."""
  units = list[list[int]]()
  unit_size = UNIT_BYTES
  for number, size in enumerate(sizes):
    if unit_size >= UNIT_BYTES:
      units.append([])
      unit_size = 0
    units[-1].append(number)
    unit_size += size
  return units
