"""Opens the parts of a corpus: finds what each names, and how to read it."""

import contextlib
import dataclasses
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from truenegs_jax.data import documents, hub
from truenegs_jax.data.files import File, files_state, find_files
from truenegs_jax.data.reading import EMPTY_FILES, Reading
from truenegs_jax.data.sources import SOURCES, formats
from truenegs_jax.data.spec import (
  HUB,
  KEYS,
  LIKE_AN_OPTION,
  Asked,
  unknown_key,
  wrong,
)
from truenegs_jax.errors import AbsentError, InputError


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a corpus, ready to be read.

  Attributes:
    name: as a person would name it.
    read: one pass over its documents, all of which tell the `Reading`.
    state: what decides the documents, as JSON; looked up at every call.
    num_bytes: about how much there is, in the units of its own files; None
      where not known.
    is_local: reading needs no hub.
    may_be_mended: its documents depend on how errors are met.
    paths: of its files, where it has some; absolute.
  """

  name: str
  read: Callable[[Reading], Iterator[str]]
  state: Callable[[], dict[str, Any]]
  num_bytes: int | None
  is_local: bool = True
  may_be_mended: bool = True
  paths: tuple[str, ...] = ()


def open_part(asked: Asked, resources: Mapping[str, Any]) -> Part:
  """Finds what a part names, and reads the first record of its files.

  Raises:
    InputError: a key or a resource is missing or of no use here.
    DataError: it is not there, or has no such column or split.
  """
  if not asked.source:
    return _open_files(asked)
  if asked.source != "hf":
    return _open_named(asked, resources)
  _check_keys(asked, SOURCES["hf"].keys)
  name = asked.where.removeprefix(HUB)
  if LIKE_AN_OPTION.search(name) and not hub.is_folder(name):
    raise unknown_key(asked)
  others = ("column", "split", "config", "revision")
  dataset = hub.open_dataset(
    name,
    streaming=asked.options.get("streaming") == "true",
    **{k: v for k, v in asked.options.items() if k in others},
  )
  part = _open_named(asked, {"dataset": dataset})
  return dataclasses.replace(part, is_local=dataset.is_local())


def _check_keys(asked: Asked, keys: Collection[str]) -> None:
  for key in asked.options:
    if key not in keys:
      known = ", ".join(k for k in KEYS if k == "weight" or k in keys)
      raise wrong(
        asked.where, f"{key}= is of no use here; its keys are: {known}."
      )


def _open_named(asked: Asked, resources: Mapping[str, Any]) -> Part:
  entry = SOURCES[asked.source]
  _check_keys(asked, entry.keys)
  names = set(inspect.signature(entry.read).parameters) - {"reading"}
  if missing := sorted(names - set(resources)):
    raise InputError(
      f"data.sources: {asked.source!r} needs {', '.join(missing)}; pass"
      f" open_corpus(..., {missing[0]}=...)."
    )
  arguments = {name: resources[name] for name in names}
  rule = asked.options.get("document", entry.document)
  if rule == "file":
    raise wrong(asked.where, "document=file: it has records, not files.")

  def state() -> dict[str, Any]:
    found = {"source": asked.source, **entry.state(**arguments)}
    return found | ({"document": rule} if "document" in entry.keys else {})

  def read(reading: Reading) -> Iterator[str]:
    reading.where, reading.unit, reading.number = asked.where, "record", 0
    values = entry.read(reading=reading, **arguments)
    return documents.from_records(values, rule, reading)

  size = entry.num_bytes(**arguments)
  may_be_mended = "document" in entry.keys
  return Part(asked.where, read, state, size, may_be_mended=may_be_mended)


def _open_files(asked: Asked) -> Part:
  known = formats()
  found = find_files(asked.where, suffixes=known)
  given = asked.options.get("format")

  def kind_of(file: File) -> str:
    return given or known.get(file.suffix, "text")

  if not found:
    if LIKE_AN_OPTION.search(asked.where):
      raise unknown_key(asked)
    named = sorted(n for n, s in SOURCES.items() if not s.suffixes)
    raise AbsentError(
      f"data.sources: {asked.where!r} is no file, no folder, no glob that"
      f" matches a file, and no source with a name (known: {', '.join(named)};"
      " hf as hf:NAME)."
    )
  _refuse_saved(asked.where, found)
  kinds = {kind_of(file): file for file in reversed(found)}
  _check_keys(
    asked, {"document", "format"}.union(*(SOURCES[k].keys for k in kinds))
  )
  column = asked.options.get("column", "text")
  rules = {
    kind: asked.options.get("document", SOURCES[kind].document)
    for kind in sorted(kinds)
  }
  for kind, first in kinds.items():
    _try_first_record(kind, first, column)

  def state() -> dict[str, Any]:
    now = find_files(asked.where, suffixes=known)
    takes_column = any(SOURCES[kind].keys for kind in kinds)
    return {
      "source": "files",
      "files": files_state(now),
      "document": rules,
    } | ({"column": column} if takes_column else {})

  def read(reading: Reading) -> Iterator[str]:
    with_kinds = [(file, kind_of(file)) for file in found]
    return _read_files(with_kinds, rules, column, reading)

  size = sum(file.size for file in found)
  paths = tuple(os.path.abspath(file.path) for file in found)
  return Part(asked.where, read, state, size, paths=paths)


def _refuse_saved(where: str, found: list[File]) -> None:
  """A saved data set has .json files, none of which holds its text."""
  for folder in sorted({file.path.parent for file in found}):
    if hub.is_saved(folder):
      raise InputError(
        f"data.sources: {where!r} holds a data set that save_to_disk wrote:"
        f" give it as {HUB}{folder}."
      )


def _try_first_record(kind: str, file: File, column: str) -> None:
  """Finds now what would stop the reading at its start, such as a column."""
  if kind == "parquet" and file.compression:
    return  # would unpack all of it
  values = _values(kind, file, column, Reading("replace", where=str(file.path)))
  with contextlib.closing(values):
    next(values, None)


def _values(kind: str, file: File, column: str, reading: Reading) -> Any:
  options = {"column": column} if "column" in SOURCES[kind].keys else {}
  return SOURCES[kind].read(file=file, reading=reading, **options)


def _read_files(
  files: list[tuple[File, str]],
  rules: dict[str, str],
  column: str,
  reading: Reading,
) -> Iterator[str]:
  whole, before = max(1, sum(file.size for file, _ in files)), 0
  for file, kind in files:
    reading.begin_file(
      str(file.path), before=before / whole, share=file.size / whole
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
