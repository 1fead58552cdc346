"""Opens `config.data.sources` as a corpus of documents.

  corpus = open_corpus("wiki/*.txt.xz weight=3, hf:name/set weight=1")
  for text in corpus: ...

A part is a file, a folder or a glob, also by URL; "wordnet"; or hf:NAME, which
`datasets` loads. The documents of a unit of a part are a function of the unit.
"""

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from truenegs_jax.config import grammar
from truenegs_jax.data import documents, readers
from truenegs_jax.data.documents import JOIN, MAX_CHARS, Place, ReadCounts
from truenegs_jax.data.readers import HUB, SUFFIXES, TEXT
from truenegs_jax.runtime import text as text_lib
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  UnavailableError,
  one_of,
)
from truenegs_jax.runtime.text import files_identity, find_files, is_url

WORDNET = "wordnet"
WORDNET_BYTES = 11_000_000
UNIT_BYTES = 2**22  # of the files of a unit, as they are stored
JOIN_CHARS = 20_000  # about 9 rows of 512: half a row of padding is 5 %
LEAST_SHARE = 0.99  # of the records that records= says
# The beginning of a split, as the hub converts large data sets to Parquet.
PARTIAL = re.compile(r"(?:^|[/\\])partial-[^/\\]+[/\\][^/\\]+\.parquet$")
FORMATS = (*readers.RECORD_FORMATS, TEXT)
ANY = "any"  # of data.expect
Unit = tuple[int, int]  # the index of a part, and the number of its unit


@dataclasses.dataclass(frozen=True)
class PartSpec:
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

  @property
  def is_dataset(self) -> bool:
    """Whether `datasets` loads it."""
    return self.where.startswith(HUB) and not is_url(self.where)

  def rule(self, default: str) -> str:
    """Returns the rule that forms its documents before they are joined."""
    return default if self.document in ("", JOIN) else self.document


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a corpus that is ready to be read."""

  spec: PartSpec
  # Yields the documents of a unit before short lines are dropped; moves Place.
  read: Callable[[int, Place], Iterator[str]]
  # Returns as JSON what determines these documents, as of now.
  identity: Callable[[], dict[str, Any]]
  num_bytes: int | None  # of its text, about; None if unknown
  num_units: int = 1
  is_local: bool = True  # reading needs no hub and no bucket
  paths: tuple[str, ...] = ()  # absolute paths or URLs of its files
  files: Mapping[str, int] = dataclasses.field(default_factory=dict)  # on a hub
  num_promised: int = 0  # records that the data set says to have; 0 if unknown

  @property
  def name(self) -> str:
    """Its file, folder, glob, source or data set."""
    return self.spec.where

  def check_records(self, number: int) -> None:
    """Raises DataError if the part has fewer records than expected."""
    promises = ((self.num_promised, 1.0), (self.spec.records, LEAST_SHARE))
    for expected, least in promises:
      if number < least * expected:
        raise DataError(
          f"{self.name!r}: {number:,} records, but {expected:,} are expected"
          " (records= or the data set's card). Get all of it, correct records="
          " in data.sources, or accept it with --config.data.expect=any."
        )


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The documents of some parts."""

  parts: tuple[Part, ...]
  # One for each part; empty to read one after another.
  shares: tuple[float, ...] = ()
  errors: str = "strict"  # refuses bad text; "replace" repairs it
  stopping: str = "all"  # or "first": of the parts, read to the end

  @property
  def num_bytes(self) -> int | None:
    """Bytes of all text, about; None if unknown."""
    sizes = [x.num_bytes for x in self.parts if x.num_bytes is not None]
    return sum(sizes) if len(sizes) == len(self.parts) else None

  def read_unit(self, unit: Unit, counts: ReadCounts) -> Iterator[str]:
    """Yields the documents of a unit, and counts what it reads."""
    part = self.parts[unit[0]]
    place = Place(counts, self.errors, part.name)
    texts = part.read(unit[1], place)
    if size := part.spec.min_chars:
      texts = documents.drop_short_lines(texts, place, min_chars=size)
    if size := part.spec.chars:
      texts = documents.join(texts, place, num_chars=size)
    return texts

  def next_unit(self, sizes: Mapping[Unit, int]) -> Unit | None:
    """Returns the unit to read next; None at the end of an epoch.

    `sizes` has bytes of text of each unit that was read. Without shares, units
    are read in order. With shares, the part is next that is furthest behind its
    share, among those that the epoch needs more of (`passes`). Raises DataError
    for a part that has no text.
    """
    progress, counts = self._measure(sizes)
    unfinished = []
    ended = []
    for index, part in enumerate(self.parts):
      if counts[index] < part.num_units:
        unfinished.append(index)
      elif progress[index]:
        ended.append(progress[index])
      else:
        raise DataError(
          f"{part.name!r} has no text: it is empty, or its lines are blank or"
          " shorter than min_chars. Add text, or remove this part from"
          " data.sources."
        )
    if ended and self.shares and self.stopping == "first":
      unfinished = [i for i in unfinished if progress[i] < min(ended)]
    if self.shares:
      unfinished.sort(key=lambda i: progress[i])
    return (unfinished[0], counts[unfinished[0]]) if unfinished else None

  def passes(self, sizes: Mapping[Unit, int]) -> tuple[float, ...]:
    """Returns how often each part occurs in an epoch of the units of `sizes`.

    Without shares, once each. With shares, `stopping` is "all" to have all of
    every part, or "first" to repeat none.
    """
    if not self.shares:
      return (1.0,) * len(self.parts)
    progress, _ = self._measure(sizes)
    total = max(progress) if self.stopping == "all" else min(progress)
    return tuple(total / x for x in progress)

  def _measure(
    self, sizes: Mapping[Unit, int]
  ) -> tuple[list[float], list[int]]:
    """Returns bytes that were read over the share, and units, of each part."""
    progress = [0.0] * len(self.parts)
    counts = [0] * len(self.parts)
    for (index, _), size in sizes.items():
      counts[index] += 1
      progress[index] += size / (self.shares[index] if self.shares else 1.0)
    return progress, counts

  def __iter__(self) -> Iterator[str]:
    """Yields the documents of the units of an epoch, each once."""
    sizes: dict[Unit, int] = {}
    while unit := self.next_unit(sizes):
      sizes[unit] = 0
      for text in self.read_unit(unit, ReadCounts()):
        sizes[unit] += len(text.encode())
        yield text

  def __str__(self) -> str:
    return ", ".join(part.name for part in self.parts)

  def identity(self) -> list[dict[str, Any]]:
    """Returns as JSON what determines the documents and their order."""
    identities = []
    for part, share in itertools.zip_longest(self.parts, self.shares):
      options = {"errors": self.errors, "min_chars": part.spec.min_chars}
      options["join"] = part.spec.chars
      if share:
        options |= {"share": share, "stopping": self.stopping}
      identities.append(part.identity() | options)
    return identities

  def check_unchanged(self, identity: list[dict[str, Any]]) -> None:
    """Raises DataError if the identity is another one by now."""
    if self.identity() != identity:
      raise DataError(
        f"data.sources: {self} changed while it was read. Run the same command"
        " again when nothing writes to it anymore."
      )

  def is_local(self) -> bool:
    """Returns whether all parts can be read without the hub or a bucket."""
    return all(part.is_local for part in self.parts)


def open_corpus(
  spec: str,
  *,
  errors: str = "strict",
  stopping: str = "all",
  expect: str = ANY,
  key: str = "data.sources",
  reader: Any = None,
) -> Corpus:
  """Opens the corpus of a spec; reads only the first document of each format.

  Args:
    spec: comma-separated parts, with the options of `PartSpec`.
    errors: "strict" refuses bad text; "replace" repairs and counts it.
    stopping: see `Corpus.passes`.
    expect: "" refuses parts that are cut off; "any" does not.
    reader: NLTK's, for the part "wordnet".
  """
  part_specs = _parse_spec(spec, key)
  weights = [part.weight for part in part_specs if part.weight]
  if weights and len(weights) < len(part_specs):
    raise InputError(
      f"{key}: {len(weights)} of {len(part_specs)} parts have weight=. Set it"
      " for all, or for none."
    )
  parts = tuple(_open_part(part, reader, expect) for part in part_specs)
  seen: dict[str, str] = {}  # or one may train on a file and one hold it out
  for part in parts:
    for path in part.paths:
      if (other := seen.setdefault(path, part.name)) is not part.name:
        raise InputError(
          f"{key}: '{path}' is in {other!r} and in {part.name!r}. Name it only"
          " once. To read it more often, set weights."
        )
  # Normalized, so that weights 3 and 1 are the same mixture as 6 and 2.
  shares = tuple(weight / sum(weights) for weight in weights)
  return Corpus(parts, shares if len(shares) > 1 else (), errors, stopping)


def named_sources(spec: str, *, key: str = "data.sources") -> set[str]:
  """Returns the named sources of a spec, without hf: {"wordnet"} or none."""
  return {part.where for part in _parse_spec(spec, key)} & {WORDNET}


def describe_sources(spec: str, *, key: str = "data.sources") -> str:
  """Describes in a dry run which files of a spec exist; reads none."""
  texts = []
  for part in _parse_spec(spec, key):
    text = part.where
    if not (part.is_dataset or text == WORDNET or is_url(text)):
      sizes = [file.size for file in find_files(text, SUFFIXES)]
      count = "1 file" if len(sizes) == 1 else f"{len(sizes):,} files"
      state = f"{count}, {sum(sizes) / 1e6:,.1f} MB" if sizes else "missing"
      text += f" ({state})"
    texts.append(text)
  return ", ".join(texts)


def sample_languages(corpus: Corpus) -> dict[str, int]:
  """Returns characters by language, of excerpts from each part."""
  lengths = collections.Counter[str]()
  share = documents.SAMPLE_CHARACTERS // len(corpus.parts)
  for index, part in enumerate(corpus.parts):
    units = ((index, i) for i in range(part.num_units))
    texts = (corpus.read_unit(unit, ReadCounts()) for unit in units)
    joined = itertools.chain.from_iterable(texts)
    lengths.update(documents.measure_languages(joined, share))
  return dict(lengths)


def _parse_spec(spec: str, key: str) -> list[PartSpec]:
  if parts := [_parse_part(x, key) for x in grammar.parse_items(spec, key=key)]:
    return parts
  raise InputError(f"{key}={spec!r} names no text. Name a file, for example.")


def _parse_part(item: grammar.Item, key: str) -> PartSpec:
  subject = f"{key}: part {item.name!r}"
  if item.name in ("", HUB):
    raise InputError(f"{subject}: no name or path before the options.")
  part = PartSpec(item.name, subject)
  options = [field.name for field in dataclasses.fields(part)][2:]
  if item.name == WORDNET:
    options = ["weight"]
  elif part.is_dataset:
    options.remove("format")
  else:
    options = options[: options.index("split")]
  defaults = {option: getattr(part, option) for option in options}
  values = item.convert(defaults, subject=subject)
  limits = {"weight": 1e9, "chars": MAX_CHARS, "min_chars": MAX_CHARS}
  for option, largest in (limits | {"records": 1e12}).items():
    if option in item.options and not 0 < values[option] <= largest:  # NaN, too
      raise InputError(
        f"{subject}: {option}={item.options[option]} must be above 0 and at"
        f" most {largest:,.0f}."
      )
  part = dataclasses.replace(part, **values)
  one_of(f"{subject}: document", part.document or JOIN, documents.RULES)
  one_of(f"{subject}: format", part.format or TEXT, FORMATS)
  if part.document == JOIN:
    return dataclasses.replace(part, chars=part.chars or JOIN_CHARS)
  if part.chars:
    raise InputError(f"{subject}: chars= needs document={JOIN}.")
  return part


def _open_part(spec: PartSpec, reader: Any, expect: str) -> Part:
  if spec.is_dataset:
    part = _open_dataset(spec)
  elif spec.where == WORDNET:
    part = _open_wordnet(spec, reader)
  else:
    part = _open_files(spec)
  if expect == ANY:
    spec = dataclasses.replace(spec, records=0)
    return dataclasses.replace(part, spec=spec, num_promised=0)
  if partial := next(filter(PARTIAL.search, part.paths), ""):
    raise DataError(
      f"{spec.subject}: '{partial}' holds only the beginning of a split."
      " Use the original files or another revision, or accept it with"
      " --config.data.expect=any."
    )
  if part.num_promised:  # is known before anything is read
    part.check_records(part.num_promised)
  return part


def _open_wordnet(spec: PartSpec, reader: Any) -> Part:
  if reader is None:
    raise InputError(f"{spec.subject} cannot be read here. Name files.")

  def identity() -> dict[str, Any]:
    return {"source": WORDNET, "sha256": readers.hash_wordnet(reader)}

  def read(unit: int, place: Place) -> Iterator[str]:
    del unit  # there is one
    texts = place.count(readers.read_wordnet(reader))
    return documents.from_records(texts, "record", place)

  return Part(spec, read, identity, WORDNET_BYTES)


def _open_dataset(spec: PartSpec) -> Part:
  rule = spec.rule("record")
  if rule == "file":
    raise InputError(
      f"{spec.subject}: document=file does not apply to records. Choose block,"
      f" record or {JOIN}."
    )
  names = ("config", "split", "revision", "streaming")
  options = {name: getattr(spec, name) for name in names}
  dataset = readers.open_dataset(spec.where, **options)
  if dataset.features:
    schema = dataset.features.arrow_schema
    readers.check_text(schema, spec.column, dataset.name)

  def identity() -> dict[str, Any]:
    version: dict[str, Any] = {**dataset.commit}
    if not version:
      version["files"] = files_identity(map(text_lib.stat_file, dataset.paths))
    version |= {"split": dataset.split, "column": spec.column, "document": rule}
    return version | {"source": "hf", "streaming": spec.streaming}

  def read(unit: int, place: Place) -> Iterator[str]:
    place.path = dataset.name
    texts = dataset.read_shard(unit, spec.column, place)
    return documents.from_records(place.count(texts), rule, place)

  return Part(
    spec,
    read,
    identity,
    dataset.num_bytes,
    dataset.num_shards,
    is_local=not dataset.commit,
    paths=dataset.paths,
    files=dataset.list_files(),
    num_promised=dataset.num_records,
  )


def _open_files(spec: PartSpec) -> Part:
  where = spec.where
  files = find_files(where, SUFFIXES)
  if not files:
    raise UnavailableError(
      f"{spec.subject} is no file, folder or URL, and no glob with a match. On"
      " the hub it is hf:NAME. Put a path with commas or = in quotes."
    )
  formats = [
    spec.format or SUFFIXES.get(text_lib.split_suffixes(x.path)[0], TEXT)
    for x in files
  ]
  rules = {
    name: spec.rule("block" if name == TEXT else "record")
    for name in sorted({*formats})
  }
  size: int | None = sum(file.size for file in files)
  if "parquet" in rules or any(
    text_lib.split_suffixes(x.path)[1] for x in files
  ):
    size = None
  # Small files share a unit, so that their documents can be joined.
  starts = itertools.accumulate((file.size for file in files), initial=0)
  places = [*zip(files, formats, starts, strict=False)]
  grouped = itertools.groupby(places, key=lambda x: x[2] // UNIT_BYTES)
  units = [[*members] for _, members in grouped]

  def read_file(path: str, name: str, place: Place) -> Iterator[str]:
    place.path = path
    place.number = 0
    if name == TEXT:
      lines = readers.read_text(path, place)
      return place.count(documents.from_lines(lines, rules[name], place))
    values = readers.RECORD_FORMATS[name](path, spec.column, place)
    return documents.from_records(place.count(values), rules[name], place)

  def read(unit: int, place: Place) -> Iterator[str]:
    for file, name, _ in units[unit]:
      yield from read_file(file.path, name, place)

  def identity() -> dict[str, Any]:
    now = files_identity(find_files(where, SUFFIXES))
    result = {"source": "files", "files": now, "document": rules}
    return result if [*rules] == [TEXT] else {**result, "column": spec.column}

  place = Place(ReadCounts(), "replace", where)
  for name in rules:  # so that a missing column is noticed at once
    next(read_file(files[formats.index(name)].path, name, place), "")
  is_local = not is_url(where)
  paths = tuple(os.path.abspath(f.path) if is_local else f.path for f in files)
  return Part(spec, read, identity, size, len(units), is_local, paths)
