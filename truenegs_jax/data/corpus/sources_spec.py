"""Opens the corpus that `config.data.sources` names.

  corpus = open_corpus("wiki/*.txt.xz weight=3, hf:name/set weight=1")

A part is `WHERE [key=value ...]`: the name of a source ("wordnet"), a file, a
folder or a glob, or hf:NAME for the `datasets` library.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from truenegs_jax.data.corpus import documents, hub_datasets
from truenegs_jax.data.corpus.corpus import Corpus, Part
from truenegs_jax.data.corpus.files import File, files_identity, find_files
from truenegs_jax.data.corpus.read_state import EMPTY_FILES, ReadState
from truenegs_jax.data.corpus.sources import SOURCES, formats
from truenegs_jax.runtime.errors import InputError, UnavailableError

KEYS = (
  "weight",
  "document",
  "format",
  "column",
  "split",
  "config",
  "revision",
  "streaming",
)
HUB = "hf:"
OPTION = re.compile(r"(?:^|\s)(\w+)=(\S*)$")
LIKE_AN_OPTION = re.compile(r"(?:^|\s)(\w+)=\S*(?=\s|$)")


ERRORS = ("strict", "replace")
STOPPING = ("all", "first")


def open_corpus(
  spec: str,
  *,
  errors: str = "strict",
  stopping: str = "all",
  key: str = "data.sources",
  **resources: Any,
) -> Corpus:
  """Opens the corpus of a spec; reads no more than the first record of a part.

  Args:
    spec: comma-separated parts. Keys of a part: `weight`, `document` (block,
      record or file), `format` (of files whose suffix does not say it),
      `column`, and of hf: also `split`, `config`, `revision`,
      `streaming`. Without weights the parts come one after the other. With
      them documents take turns so that the text (in bytes) has these shares;
      a part that ends before the mixture does is read again.
    errors: "strict" refuses bad text by file and place; "replace" mends it
      where that is possible, and counts.
    stopping: the end of a mixture: "all" when every part was read to its end
      once, "first" when the first part ends.
    key: the config key that `spec` is the value of, for errors.
    **resources: what sources need beside text (`reader` for "wordnet").

  Raises:
    InputError: the spec has a mistake, or a resource is missing.
    DataError: a part is missing, or has no such column or split.
  """
  for name, value, known in (
    ("errors", errors, ERRORS),
    ("stopping", stopping, STOPPING),
  ):
    if value not in known:
      raise InputError(f"data.{name}={value!r}: give one of {known}.")
  part_specs = parse_spec(spec, key=key)
  weights = [part.weight for part in part_specs if part.weight is not None]
  if weights and len(weights) < len(part_specs):
    without = next(part.where for part in part_specs if part.weight is None)
    raise InputError(
      f"{key}: weight= is given for {len(weights)} of {len(part_specs)}"
      f" parts; give it for {without!r}, too, or for none."
    )
  # Shares, so that 3 and 1 are the same mixture as 6 and 2.
  shares = tuple(weight / sum(weights) for weight in weights)
  parts = tuple(open_part(part, resources) for part in part_specs)
  _refuse_overlap(parts, key)
  return Corpus(parts, shares if len(shares) > 1 else (), errors, stopping)


def named_sources(spec: str, *, key: str = "data.sources") -> set[str]:
  """Sources in a spec that may need resources, by name, such as "wordnet".

  Raises:
    InputError: the spec has a mistake.
  """
  return {part.source for part in parse_spec(spec, key=key)} - {"", "hf"}


@dataclasses.dataclass(frozen=True)
class PartSpec:
  """A part of a spec, taken apart.

  Attributes:
    where: the part without its keys.
    source: the named source that `where` names, such as "hf"; "" for files.
    weight: None where not given.
    options: the other keys that were given.
    key: the config key that it is part of, for errors.
  """

  where: str
  source: str
  weight: float | None
  options: dict[str, str]
  key: str = "data.sources"

  def wrong(self, message: str) -> InputError:
    """The error of an impossible part."""
    return _wrong(self.key, self.where, message)


def parse_spec(spec: str, *, key: str = "data.sources") -> list[PartSpec]:
  """Takes a spec apart.

  Raises:
    InputError: an empty part, a key given twice, an impossible value.
  """
  part_specs = []
  for number, text in enumerate(spec.split(","), start=1):
    if not text.strip():
      raise InputError(
        f"{key}={spec!r}: part {number} is empty; give names or paths"
        f" separated by commas, such as {'wordnet'!r} or 'texts/*.txt'."
      )
    part_specs.append(_parse_part(text.strip(), key))
  return part_specs


def _parse_part(text: str, config_key: str) -> PartSpec:
  where, options = text, {}
  wrong = functools.partial(_wrong, config_key, text)
  while (match := OPTION.search(where)) and match[1] in KEYS:
    if os.path.lexists(os.path.expanduser(where)):
      break  # a path with such a name
    key, value = match.groups()
    if key in options:
      raise wrong(f"{key}= is given twice.")
    if not value:
      raise wrong(f"{key}= has no value.")
    options[key] = value
    where = where[: match.start()].rstrip()
  if where in ("", HUB):
    raise wrong("it has keys and no name or path before them.")
  for key, known in (
    ("document", documents.RULES),
    ("streaming", ("true", "false")),
    ("format", tuple(sorted(set(formats().values())))),
  ):
    if options.get(key, known[0]) not in known:
      raise wrong(
        f"{key}={options[key]}: give one of {', '.join(known)}.",
      )
  named = where in SOURCES and not SOURCES[where].suffixes and where != "hf"
  source = "hf" if where.startswith(HUB) else where if named else ""
  weight = _weight(options, wrong)
  return PartSpec(where, source, weight, options, config_key)


def _weight(
  options: dict[str, str], wrong: Callable[[str], InputError]
) -> float | None:
  if "weight" not in options:
    return None
  value = options.pop("weight")
  try:
    weight = float(value)
  except ValueError:
    weight = math.nan
  if not 0 < weight < math.inf:
    raise wrong(f"weight={value}: give a number above 0, such as 2.5.")
  return weight


def _wrong(key: str, part: str, message: str) -> InputError:
  return InputError(f"{key}: part {part!r}: {message}")


def unknown_key(part_spec: PartSpec) -> InputError:
  """The error of a part whose path is not there and looks like keys."""
  names = [match[1] for match in LIKE_AN_OPTION.finditer(part_spec.where)]
  unknown = next((name for name in names if name not in KEYS), names[0])
  return part_spec.wrong(
    f"nothing has this name, and if {unknown}= is meant as a key, it is none:"
    f" the keys, which come last, are {', '.join(KEYS)}.",
  )


def open_part(part_spec: PartSpec, resources: Mapping[str, Any]) -> Part:
  """Finds what a part names, and reads the first record of its files.

  Raises:
    InputError: a key or a resource is missing or of no use here.
    DataError: it is not there, or has no such column or split.
  """
  if not part_spec.source:
    return _open_files(part_spec)
  if part_spec.source != "hf":
    return _open_named(part_spec, resources)
  _check_keys(part_spec, SOURCES["hf"].keys)
  name = part_spec.where.removeprefix(HUB)
  if LIKE_AN_OPTION.search(name) and not hub_datasets.is_folder(name):
    raise unknown_key(part_spec)
  others = ("column", "split", "config", "revision")
  dataset = hub_datasets.open_dataset(
    name,
    streaming=part_spec.options.get("streaming") == "true",
    **{k: v for k, v in part_spec.options.items() if k in others},
  )
  part = _open_named(part_spec, {"dataset": dataset})
  return dataclasses.replace(part, is_local=dataset.is_local())


def _check_keys(part_spec: PartSpec, keys: Collection[str]) -> None:
  for key in part_spec.options:
    if key not in keys:
      known = ", ".join(k for k in KEYS if k == "weight" or k in keys)
      raise part_spec.wrong(
        f"{key}= is of no use here; its keys are: {known}.",
      )


def _open_named(part_spec: PartSpec, resources: Mapping[str, Any]) -> Part:
  entry = SOURCES[part_spec.source]
  _check_keys(part_spec, entry.keys)
  names = set(inspect.signature(entry.read).parameters) - {"reading"}
  if missing := sorted(names - set(resources)):
    raise InputError(
      f"{part_spec.key}: {part_spec.source!r} needs {', '.join(missing)}; pass"
      f" open_corpus(..., {missing[0]}=...)."
    )
  arguments = {name: resources[name] for name in names}
  rule = part_spec.options.get("document", entry.document)
  if rule == "file":
    raise part_spec.wrong("document=file: it has records, not files.")

  def identity() -> dict[str, Any]:
    found = {"source": part_spec.source, **entry.identity(**arguments)}
    return found | ({"document": rule} if "document" in entry.keys else {})

  def read(reading: ReadState) -> Iterator[str]:
    reading.where, reading.unit, reading.number = part_spec.where, "record", 0
    values = entry.read(reading=reading, **arguments)
    return documents.from_records(values, rule, reading)

  size = entry.num_bytes(**arguments)
  is_repairable = "document" in entry.keys
  return Part(
    part_spec.where, read, identity, size, is_repairable=is_repairable
  )


def _open_files(part_spec: PartSpec) -> Part:
  known = formats()
  found = find_files(part_spec.where, suffixes=known)
  given = part_spec.options.get("format")

  def kind_of(file: File) -> str:
    return given or known.get(file.suffix, "text")

  if not found:
    if LIKE_AN_OPTION.search(part_spec.where):
      raise unknown_key(part_spec)
    named = sorted(n for n, s in SOURCES.items() if not s.suffixes)
    raise UnavailableError(
      f"{part_spec.key}: {part_spec.where!r} is no file, no folder, no glob"
      " that matches a file, and no source with a name (known:"
      f" {', '.join(named)}; hf as hf:NAME)."
    )
  _refuse_saved(part_spec, found)
  kinds = {kind_of(file): file for file in reversed(found)}
  _check_keys(
    part_spec, {"document", "format"}.union(*(SOURCES[k].keys for k in kinds))
  )
  column = part_spec.options.get("column", "text")
  rules = {
    kind: part_spec.options.get("document", SOURCES[kind].document)
    for kind in sorted(kinds)
  }
  for kind, first in kinds.items():
    _try_first_record(kind, first, column)

  def identity() -> dict[str, Any]:
    now = find_files(part_spec.where, suffixes=known)
    takes_column = any(SOURCES[kind].keys for kind in kinds)
    return {
      "source": "files",
      "files": files_identity(now),
      "document": rules,
    } | ({"column": column} if takes_column else {})

  def read(reading: ReadState) -> Iterator[str]:
    with_kinds = [(file, kind_of(file)) for file in found]
    return _read_files(with_kinds, rules, column, reading)

  size = sum(file.size for file in found)
  paths = tuple(os.path.abspath(file.path) for file in found)
  return Part(part_spec.where, read, identity, size, paths=paths)


def _refuse_saved(part_spec: PartSpec, found: list[File]) -> None:
  """A saved data set has .json files, none of which holds its text."""
  for folder in sorted({file.path.parent for file in found}):
    if hub_datasets.is_saved(folder):
      raise InputError(
        f"{part_spec.key}: {part_spec.where!r} holds a data set that"
        f" save_to_disk wrote: give it as {HUB}{folder}."
      )


def _try_first_record(kind: str, file: File, column: str) -> None:
  """Finds now what would stop the reading at its start, such as a column."""
  if kind == "parquet" and file.compression:
    return  # would unpack all of it
  values = _values(
    kind, file, column, ReadState("replace", where=str(file.path))
  )
  with contextlib.closing(values):
    next(values, None)


def _values(kind: str, file: File, column: str, reading: ReadState) -> Any:
  options = {"column": column} if "column" in SOURCES[kind].keys else {}
  return SOURCES[kind].read(file=file, reading=reading, **options)


def _read_files(
  files: list[tuple[File, str]],
  rules: dict[str, str],
  column: str,
  reading: ReadState,
) -> Iterator[str]:
  total, before = max(1, sum(file.size for file, _ in files)), 0
  for file, kind in files:
    reading.begin_file(
      str(file.path), before=before / total, share=file.size / total
    )
    values = _values(kind, file, column, reading)
    form = (
      documents.from_lines if SOURCES[kind].is_lines else documents.from_records
    )
    texts = form(values, rules[kind], reading)
    first = next(texts, None)
    if first is None:
      reading.mend(
        EMPTY_FILES,
        f"{file.path}: no document in it: it is empty, or every line or record"
        " is blank; remove it",
      )
    else:
      yield first
      yield from texts
    before += file.size


def _refuse_overlap(parts: tuple[Part, ...], key: str) -> None:
  """A text in two parts could be held out of one and trained on in another."""
  seen: dict[str, str] = {}
  for part in parts:
    for path in part.paths:
      if (other := seen.setdefault(path, part.name)) is not part.name:
        raise InputError(
          f"{key}: {path} is in {other!r} and in {part.name!r}: name it"
          " once; to read it more often, give weights."
        )
