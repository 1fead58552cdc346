"""Opens `config.data.sources` as a corpus of documents.

  corpus = open_corpus("wiki/*.txt.xz weight=3, hf:name/set weight=1")
  for text in corpus: ...

A part is a file, a folder or a glob, also by URL; "wordnet"; or hf:NAME, which
`datasets` loads. The documents of a unit of a part are a function of the unit.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from truenegs_jax.config import grammar
from truenegs_jax.data import documents
from truenegs_jax.data.documents import HUB, JOIN
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  UnavailableError,
  one_of,
)
from truenegs_jax.runtime.text import (
  files_identity,
  find_files,
  is_url,
  resolve_links,
  split_suffixes,
  stat_file,
)

WORDNET = "wordnet"
WORDNET_BYTES = 11_000_000
SUFFIXES = tuple(f".{kind}" for kind in documents.KINDS)
UNIT_BYTES = 2**22  # of the small files of a unit, as they are stored
MAX_UNITS = 1_024  # of small files; a unit has a shard at least
JOIN_CHARS = 20_000  # about 9 rows of 512: half a row of padding is 5 %
Unit = tuple[int, int]  # the index of a part, and the number of its unit


@dataclasses.dataclass(frozen=True)
class PartSpec:
  """A part of a spec with its options."""

  where: str  # its name or path
  subject: str  # the config key and the part, for messages
  weight: float = 0.0  # 0 if not set
  document: str = ""  # block, record or file; "": that of its format
  chars: int = 0  # least size of joined documents; 0 to join none
  column: str = "text"
  format: str = ""  # of files; "" if the suffix says it
  split: str = "train"  # this and the following of a data set
  config: str = ""
  revision: str = ""

  @property
  def is_dataset(self) -> bool:
    """Whether `datasets` loads it."""
    return self.where.startswith(HUB) and not is_url(self.where)


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a corpus that is ready to be read."""

  spec: PartSpec
  # Yields the documents of a unit before they are joined.
  read: Callable[[int], Iterator[str]]
  # Returns as JSON what determines these documents, as of now.
  identity: Callable[[], dict[str, Any]]
  num_bytes: int | None = None  # of its text, about; None if unknown
  num_units: int = 1
  paths: tuple[str, ...] = ()  # absolute paths or URLs of its files


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The documents of some parts."""

  parts: tuple[Part, ...]
  shares: tuple[float, ...] = ()  # of each part; () to read each once

  @property
  def num_bytes(self) -> int | None:
    """Bytes of all text, about; None if unknown."""
    sizes = [x.num_bytes for x in self.parts if x.num_bytes is not None]
    return sum(sizes) if len(sizes) == len(self.parts) else None

  @property
  def units(self) -> list[Unit]:
    """The units of all parts, in order."""
    return [
      (index, number)
      for index, part in enumerate(self.parts)
      for number in range(part.num_units)
    ]

  def read_unit(self, unit: Unit) -> Iterator[str]:
    """Yields the documents of a unit."""
    part = self.parts[unit[0]]
    texts = part.read(unit[1])
    if chars := part.spec.chars:
      return documents.join(texts, chars)
    return texts

  def passes(self, sizes: Sequence[int]) -> tuple[float, ...]:
    """Returns how often each part occurs in an epoch: in shares, else once.

    `sizes` are the bytes of text of each part. All of every part is read, and
    one at least once. Raises DataError for a part without text.
    """
    for part, size in zip(self.parts, sizes, strict=True):
      if not size:
        raise _no_text(part.spec.where)
    if not self.shares:
      return (1.0,) * len(self.parts)
    progress = [x / y for x, y in zip(sizes, self.shares, strict=True)]
    return tuple(max(progress) / x for x in progress)

  def __iter__(self) -> Iterator[str]:
    """Yields the documents of all parts, each once."""
    return itertools.chain.from_iterable(map(self.read_unit, self.units))

  def __str__(self) -> str:
    return ", ".join(part.spec.where for part in self.parts)

  def identity(self) -> list[dict[str, Any]]:
    """Returns as JSON what determines the documents and their order."""
    identities = []
    for part, share in itertools.zip_longest(self.parts, self.shares):
      options = {"document": part.spec.document, "join": part.spec.chars}
      if share:
        options["share"] = share
      identities.append(part.identity() | options)
    return identities

  def check_unchanged(self, identity: list[dict[str, Any]]) -> None:
    """Raises DataError if the identity is another one by now."""
    if self.identity() != identity:
      raise DataError(
        f"data.sources: {self} changed while it was read. Run the same command"
        " again when nothing writes to it anymore."
      )


def open_corpus(
  spec: str,
  *,
  key: str = "data.sources",
  open_wordnet: Callable[[], Any] | None = None,
) -> Corpus:
  """Opens the corpus of a spec; reads the first document of parts of files.

  Args:
    spec: comma-separated parts, with the options of `PartSpec`.
    key: the key of the config that has it, for messages.
    open_wordnet: returns NLTK's reader, for the part "wordnet".
  """
  part_specs = _parse_spec(spec, key)
  weights = [part.weight for part in part_specs if part.weight]
  if weights and len(weights) < len(part_specs):
    raise InputError(
      f"{key}: {len(weights)} of {len(part_specs)} parts have weight=. Set it"
      " for all, or for none."
    )
  parts = tuple(_open_part(part, open_wordnet) for part in part_specs)
  # Or one may train on a file and one hold it out.
  counts = collections.Counter(x for part in parts for x in {*part.paths})
  if repeated := [path for path, number in counts.items() if number > 1]:
    raise InputError(
      f"{key}: '{repeated[0]}' is in two parts. Name it only once."
    )
  # Weights 3 and 1 are the same mixture as 6 and 2; one part is no mixture.
  shares = tuple(x / sum(weights) for x in weights if len(weights) > 1)
  return Corpus(parts, shares)


def named_sources(spec: str, *, key: str = "data.sources") -> set[str]:
  """Returns the named sources of a spec, without hf: {"wordnet"} or none."""
  return {part.where for part in _parse_spec(spec, key)} & {WORDNET}


def describe_sources(spec: str, *, key: str = "data.sources") -> str:
  """Describes in a dry run which files of a spec exist; reads none."""
  texts = []
  for part in _parse_spec(spec, key):
    text = part.where
    if not (part.is_dataset or text == WORDNET or is_url(text)):
      number = len(find_files(text, SUFFIXES))
      text += f" (files: {number:,})" if number else " (missing)"
    texts.append(text)
  return ", ".join(texts)


def _parse_spec(spec: str, key: str) -> list[PartSpec]:
  if not (items := grammar.parse_items(spec, key=key)):
    raise InputError(f"{key}={spec!r} names no text. Set --config.{key}=FILE.")
  return [_parse_part(item, key) for item in items]


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
  for option in {"weight", "chars"} & {*item.options}:
    if not 0 < values[option] < math.inf:  # NaN, too
      raise InputError(f"{subject}: {option}= must be above 0, and finite.")
  part = dataclasses.replace(part, **values)
  one_of(f"{subject}: document", part.document or JOIN, documents.RULES)
  one_of(f"{subject}: format", part.format or "txt", documents.KINDS)
  if part.document == JOIN:
    chars = part.chars or JOIN_CHARS
    return dataclasses.replace(part, document="", chars=chars)
  return part


def _open_part(spec: PartSpec, open_wordnet: Callable[[], Any] | None) -> Part:
  if spec.is_dataset:
    return _open_dataset(spec)
  if spec.where != WORDNET:
    return _open_files(spec)
  if open_wordnet is None:
    raise InputError(f"{spec.subject} cannot be read here. Name files.")
  try:
    reader = open_wordnet()
  except InputError as error:  # there may be rows of it
    raise UnavailableError(str(error)) from error

  def identity() -> dict[str, Any]:
    return {"source": WORDNET, "sha256": documents.hash_wordnet(reader)}

  def read(_: int) -> Iterator[str]:
    return iter(documents.read_wordnet(reader))

  return Part(spec, read, identity, WORDNET_BYTES)


def _open_files(spec: PartSpec) -> Part:
  where = spec.where
  files = find_files(where, SUFFIXES)
  if not files:
    raise UnavailableError(
      f"{spec.subject} is no file, folder or URL, and no glob with a match. On"
      " the hub it is hf:NAME. Put a path with commas or = in quotes."
    )
  suffixes = [split_suffixes(file.path) for file in files]
  is_packed = any(x == ".parquet" or packed for x, packed in suffixes)
  total = sum(file.size for file in files)
  unit_bytes = max(UNIT_BYTES, total // MAX_UNITS)
  # Small files share a unit, so that their documents can be joined.
  starts = itertools.accumulate((file.size for file in files), initial=0)
  places = [*zip(files, starts, strict=False)]
  grouped = itertools.groupby(places, key=lambda x: x[1] // unit_bytes)
  units = [[file.path for file, _ in group] for _, group in grouped]
  options = {"column": spec.column, "kind": spec.format}

  def read(unit: int) -> Iterator[str]:
    for path in units[unit]:
      yield from documents.read_file(path, spec.document, **options)

  def identity() -> dict[str, Any]:
    now = files_identity(find_files(where, SUFFIXES))
    return {"source": "files", "files": now, **options}

  # So that a missing column is noticed at once.
  if not next(read(0), "") and len(units) == 1:
    raise _no_text(where)
  paths = [x.path for x in files]
  if not is_url(where):
    paths = [*resolve_links(paths).values()]
  num_bytes = None if is_packed else total
  return Part(spec, read, identity, num_bytes, len(units), (*paths,))


def _open_dataset(spec: PartSpec) -> Part:
  names = ("config", "split", "revision")
  options = {name: getattr(spec, name) for name in names}
  dataset = documents.open_dataset(spec.where, **options)
  if dataset.features:
    schema = dataset.features.arrow_schema
    documents.check_text(schema, spec.column, dataset.name)

  def identity() -> dict[str, Any]:
    version: dict[str, Any] = {**dataset.commit}
    if not version:
      version["files"] = files_identity(map(stat_file, dataset.paths))
    version |= {"split": spec.split, "column": spec.column}
    return version | {"source": "hf"}

  def read(_: int) -> Iterator[str]:
    records = documents.read_dataset(dataset, spec.column)
    return documents.from_records(records, spec.document, dataset.name)

  return Part(spec, read, identity, dataset.num_bytes, paths=dataset.paths)


def _no_text(name: str) -> DataError:
  return DataError(
    f"{name!r} has no text: it is empty, or its lines are blank. Add text, or"
    " remove this part from data.sources."
  )
