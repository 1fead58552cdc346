"""Opens `config.data.sources` as a corpus of documents.

  corpus = open_corpus("wiki/*.txt.xz weight=3, hf:name/set weight=1")
  for text in corpus: ...

A part is a file, a folder or a glob, also by URL; "wordnet"; or hf:NAME, which
`datasets` loads. The documents of a unit of a part are a function of the unit.
"""

import collections
import dataclasses
import functools
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from truenegs_jax.config import grammar
from truenegs_jax.data import documents
from truenegs_jax.data.documents import HUB, JOIN, Counts, Place
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
  split_suffixes,
  stat_file,
)

WORDNET = "wordnet"
WORDNET_BYTES = 11_000_000
SUFFIXES = tuple(f".{kind}" for kind in documents.KINDS)
UNIT_BYTES = 2**22  # of the small files of a unit, as they are stored
MAX_UNITS = 1_024  # of small files; a unit has a shard at least
JOIN_CHARS = 20_000  # about 9 rows of 512: half a row of padding is 5 %
LEAST_SHARE = 0.99  # of the records that records= says
# The beginning of a split, as the hub converts large data sets to Parquet.
PARTIAL = re.compile(r"(?:^|[/\\])partial-[^/\\]+[/\\][^/\\]+\.parquet$")
SAMPLE_CHARACTERS = 100_000  # of all excerpts together, of 10 times the text
EXCERPT_CHARACTERS = 500
MIN_CHARACTERS = 60_000  # some 10,000 words; less text is not refused
NO_LANGUAGE = ("zxx", "und")  # numbers; unsure, as of artificial text
# Languages that a detector confuses: each passes as any other of its group.
RELATED = (("bs", "hr", "sr"), ("da", "nb", "nn", "no"), ("id", "ms"))
Unit = tuple[int, int]  # the index of a part, and the number of its unit


@dataclasses.dataclass(frozen=True)
class PartSpec:
  """A part of a spec with its options."""

  where: str  # its name or path
  subject: str  # the config key and the part, for messages
  weight: float = 0.0  # 0 if not set
  document: str = ""  # block, record or file; "": that of its format
  chars: int = 0  # least size of joined documents; 0 to join none
  records: int = 0  # that it should have; 0 if unknown
  column: str = "text"
  format: str = ""  # of files; "" if the suffix says it
  split: str = "train"  # this and the following of a data set
  config: str = ""
  revision: str = ""
  streaming: bool = False

  @property
  def is_dataset(self) -> bool:
    """Whether `datasets` loads it."""
    return self.where.startswith(HUB) and not is_url(self.where)


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a corpus that is ready to be read."""

  spec: PartSpec
  # Yields the documents of a unit before they are joined; moves the place.
  read: Callable[[int, Place], Iterator[str]]
  # Returns as JSON what determines these documents, as of now.
  identity: Callable[[], dict[str, Any]]
  num_bytes: int | None = None  # of its text, about; None if unknown
  num_units: int = 1
  paths: tuple[str, ...] = ()  # absolute paths or URLs of its files
  is_local: bool = True  # reading needs no hub and no bucket
  num_records: int = 0  # at least; 0 if unknown

  @property
  def name(self) -> str:
    """Its file, folder, glob, source or data set."""
    return self.spec.where

  def check_records(self, number: int) -> None:
    """Raises DataError if the part has fewer records than expected."""
    if number < self.num_records:
      raise DataError(
        f"{self.name!r}: {number:,} records, but at least {self.num_records:,}"
        " are expected (records=, or the data set's card). Get all of it, mend"
        " records=, or accept it with --config.data.expect=any."
      )


@dataclasses.dataclass(frozen=True)
class Corpus:
  """The documents of some parts."""

  parts: tuple[Part, ...]
  shares: tuple[float, ...] = ()  # of each part; () to read them in order
  errors: str = "strict"  # refuses bad text; "replace" repairs it
  stopping: str = "all"  # or "first": of the parts, read to the end

  @property
  def num_bytes(self) -> int | None:
    """Bytes of all text, about; None if unknown."""
    sizes = [x.num_bytes for x in self.parts if x.num_bytes is not None]
    return sum(sizes) if len(sizes) == len(self.parts) else None

  def read_unit(self, unit: Unit, counts: Counts) -> Iterator[str]:
    """Yields the documents of a unit, and counts what it reads."""
    part = self.parts[unit[0]]
    place = Place(counts, self.errors, part.name)
    texts = part.read(unit[1], place)
    if chars := part.spec.chars:
      return documents.join(texts, place, num_chars=chars)
    return texts

  def next_unit(self, sizes: Mapping[Unit, int]) -> Unit | None:
    """Returns the unit to read next; None at the end of an epoch.

    `sizes` has bytes of text of each unit that was read. Units are read in
    order, or with shares, of the part that is furthest behind its share, if the
    epoch needs more of it (`passes`). Raises DataError for a part without text.
    """
    progress = self._progress(sizes)
    counts = collections.Counter(index for index, _ in sizes)
    unfinished = []
    limit = math.inf
    for index, part in enumerate(self.parts):
      if counts[index] < part.num_units:
        unfinished.append(index)
      elif not progress[index]:
        raise DataError(
          f"{part.name!r} has no text: it is empty, or its lines are blank. Add"
          " text, or remove this part from data.sources."
        )
      elif self.shares and self.stopping == "first":
        limit = min(limit, progress[index])
    if self.shares:
      unfinished = [i for i in unfinished if progress[i] < limit]
      unfinished.sort(key=lambda i: progress[i])
    return (unfinished[0], counts[unfinished[0]]) if unfinished else None

  def passes(self, sizes: Mapping[Unit, int]) -> tuple[float, ...]:
    """Returns how often each part occurs in an epoch of the units of `sizes`.

    Without shares, once. Else `stopping` "all" reads all of every part, and
    "first" repeats none.
    """
    if not self.shares:
      return (1.0,) * len(self.parts)
    progress = self._progress(sizes)
    total = max(progress) if self.stopping == "all" else min(progress)
    return tuple(total / x for x in progress)

  def _progress(self, sizes: Mapping[Unit, int]) -> list[float]:
    """Returns bytes that were read over the share of each part."""
    progress = [0.0] * len(self.parts)
    for (index, _), size in sizes.items():
      progress[index] += size / (self.shares[index] if self.shares else 1.0)
    return progress

  def __iter__(self) -> Iterator[str]:
    """Yields the documents of the units of an epoch, each once."""
    sizes: dict[Unit, int] = {}
    while unit := self.next_unit(sizes):
      sizes[unit] = 0
      for text in self.read_unit(unit, Counts()):
        sizes[unit] += len(text.encode())
        yield text

  def __str__(self) -> str:
    return ", ".join(part.name for part in self.parts)

  def identity(self) -> list[dict[str, Any]]:
    """Returns as JSON what determines the documents and their order."""
    identities = []
    for part, share in itertools.zip_longest(self.parts, self.shares):
      options = {"document": part.spec.document, "join": part.spec.chars}
      if share:
        options |= {"share": share, "stopping": self.stopping}
      identities.append(part.identity() | options | {"errors": self.errors})
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
  expect: str = "any",
  key: str = "data.sources",
  reader: Any = None,
) -> Corpus:
  """Opens the corpus of a spec; reads the first document of parts of files.

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
  # Or one may train on a file and one hold it out.
  counts = collections.Counter(x for part in parts for x in {*part.paths})
  if repeated := [path for path, number in counts.items() if number > 1]:
    raise InputError(
      f"{key}: '{repeated[0]}' is in two parts. Name it only once."
    )
  # Weights 3 and 1 are the same mixture as 6 and 2; one part is no mixture.
  shares = tuple(x / sum(weights) for x in weights if len(weights) > 1)
  return Corpus(parts, shares, errors, stopping)


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
    raise InputError(f"{key}={spec!r} names no text. Name a file, for example.")
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
  for option in {"weight", "chars", "records"} & {*item.options}:
    if not 0 < values[option] < math.inf:  # NaN, too
      raise InputError(f"{subject}: {option}= must be above 0, and finite.")
  part = dataclasses.replace(part, **values)
  one_of(f"{subject}: document", part.document or JOIN, documents.RULES)
  one_of(f"{subject}: format", part.format or "txt", documents.KINDS)
  if part.document == JOIN:
    chars = part.chars or JOIN_CHARS
    return dataclasses.replace(part, document="", chars=chars)
  return part


def _open_part(spec: PartSpec, reader: Any, expect: str) -> Part:
  if spec.is_dataset:
    part = _open_dataset(spec)
  elif spec.where == WORDNET:
    part = _open_wordnet(spec, reader)
  else:
    part = _open_files(spec)
  if expect == "any":
    return dataclasses.replace(part, num_records=0)
  if partial := next(filter(PARTIAL.search, part.paths), ""):
    raise DataError(
      f"{spec.subject}: '{partial}' holds only the beginning of a split. Use"
      " the original files, or accept it with --config.data.expect=any."
    )
  least = math.ceil(LEAST_SHARE * spec.records)
  checked = dataclasses.replace(part, num_records=max(part.num_records, least))
  if part.num_records:  # is known before anything is read
    checked.check_records(part.num_records)
  return checked


def _open_wordnet(spec: PartSpec, reader: Any) -> Part:
  if reader is None:
    raise InputError(f"{spec.subject} cannot be read here. Name files.")

  def identity() -> dict[str, Any]:
    return {"source": WORDNET, "sha256": documents.hash_wordnet(reader)}

  def read(_: int, place: Place) -> Iterator[str]:
    return documents.from_records(documents.read_wordnet(reader), "", place)

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

  def read(unit: int, place: Place) -> Iterator[str]:
    for path in units[unit]:
      yield from documents.read_file(path, spec.document, place, **options)

  def identity() -> dict[str, Any]:
    now = files_identity(find_files(where, SUFFIXES))
    return {"source": "files", "files": now, **options}

  # So that a missing column is noticed at once.
  next(read(0, Place(Counts(), "replace", where)), "")
  is_local = not is_url(where)
  paths = [os.path.abspath(x.path) if is_local else x.path for x in files]
  num_bytes = None if is_packed else total
  return Part(spec, read, identity, num_bytes, len(units), (*paths,), is_local)


def _open_dataset(spec: PartSpec) -> Part:
  names = ("config", "split", "revision", "streaming")
  options = {name: getattr(spec, name) for name in names}
  dataset = documents.open_dataset(spec.where, **options)
  if dataset.features:
    schema = dataset.features.arrow_schema
    documents.check_text(schema, spec.column, dataset.name)
  num_units = len(dataset.paths) if spec.streaming else 1

  def identity() -> dict[str, Any]:
    version: dict[str, Any] = {**dataset.commit}
    if not version:
      version["files"] = files_identity(map(stat_file, dataset.paths))
    version |= {"split": spec.split, "column": spec.column}
    return version | {"source": "hf", "streaming": spec.streaming}

  def read(unit: int, place: Place) -> Iterator[str]:
    values = documents.read_dataset(
      dataset, spec.column, place, unit=unit, num_units=num_units
    )
    return documents.from_records(values, spec.document, place)

  return Part(
    spec,
    read,
    identity,
    getattr(dataset.info, "num_bytes", None),
    num_units,
    dataset.paths,
    not dataset.commit,
    getattr(dataset.info, "num_examples", None) or 0,
  )


def check_code(language: str) -> None:
  """Raises InputError unless `data.language` is "" or may be a code."""
  if language and not re.fullmatch("[a-z]{2,3}", language):
    raise InputError(
      f"data.language={language!r} is no code of a language such as en. Set"
      " --config.data.language to one, or to '' for other text, without checks."
    )


def sample_languages(corpus: Corpus) -> dict[str, int]:
  """Returns characters by language, of excerpts from each part."""
  size = SAMPLE_CHARACTERS // len(corpus.parts)
  lengths = collections.Counter[str]()
  for part in corpus.parts:
    texts = Corpus((part,), errors=corpus.errors)
    characters = itertools.chain.from_iterable(text + "\n" for text in texts)
    beginning = "".join(itertools.islice(characters, 10 * size))
    step = EXCERPT_CHARACTERS * max(1, len(beginning) // size)
    for start in range(0, len(beginning), step):
      excerpt = beginning[start : start + EXCERPT_CHARACTERS]
      code, _ = _load_detector().classify(excerpt)
      if code not in NO_LANGUAGE:
        lengths[code] += len(excerpt)
  return dict(lengths)


def check_language(
  lengths: Mapping[str, int], language: str, say: Callable[[str], None]
) -> None:
  """Refuses a text mostly in another language; warns of one that is small."""
  related = next((x for x in RELATED if language in x), (language,))
  total = sum(lengths.values())
  if not language or 2 * sum(lengths.get(x, 0) for x in related) >= total:
    return
  other = max(lengths, key=lambda code: lengths[code])
  problem = (
    f"data.language={language!r}, but {lengths[other] / total:.0%} of the text"
    f" of data.sources looks like {other}. Set --config.data.language={other},"
    " or to '' for no check."
  )
  if total >= MIN_CHARACTERS:
    raise InputError(problem)
  say(f"warning: {problem}")


@functools.cache
def _load_detector() -> Any:
  """Returns a `LanguageIdentifier` of languages with a code of ISO 639-1."""
  from py3langid import langid  # takes half a second to load

  detector = langid.LanguageIdentifier.from_model_file(
    langid.MODEL_FILE, norm_probs=True, min_confidence=0.5
  )
  codes = [x for x in detector.labels if len(x) == 2 or x in NO_LANGUAGE]
  detector.set_languages(codes)
  return detector
