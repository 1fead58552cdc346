"""Parses `config.data.sources` and opens its corpus.

  corpus = open_corpus("wiki/*.txt.xz weight=3, hf:name/set weight=1")

A part is `WHERE [option=value ...]`: a file, a folder or a glob, the name of a
source ("wordnet"), or hf:NAME for the `datasets` library.
"""

import contextlib
import dataclasses
import inspect
import math
import os
import pathlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from truenegs_jax.data.corpus import documents, hub_datasets, read_state
from truenegs_jax.data.corpus.buckets import is_url
from truenegs_jax.data.corpus.corpus import Corpus, Part
from truenegs_jax.data.corpus.files import File, files_identity, find_files
from truenegs_jax.data.corpus.read_state import EMPTY_FILES, ReadState
from truenegs_jax.data.corpus.sources import FORMING, SOURCES, Source, formats
from truenegs_jax.runtime.errors import InputError, UnavailableError, one_of

OPTIONS = ("weight", *SOURCES["hf"].options, "format")
HUB = "hf:"
JOIN_CHARS = 20_000  # about 9 rows of 512: half a row of padding is 5 %
LAST_OPTION = re.compile(r"(?:^|\s)(\w+)=(\S*)$")
LIKE_AN_OPTION = re.compile(r"(?:^|\s)(\w+)=\S*(?=\s|$)")

ERRORS = ("strict", "replace")
STOPPING = ("all", "first")


def open_corpus(
  spec: str,
  *,
  errors: str = "strict",
  stopping: str = "all",
  key: str = "data.sources",
  **resources: object,
) -> Corpus:
  """Opens the corpus of a spec; reads only the first record of each part.

  Args:
    spec: comma-separated parts. Options of a part: `weight`, `document` (block,
      record, file, or join with the bounds `chars` and `by`), `min_chars` (of a
      line), `format` (of files, if the suffix does not say it), `column`, and
      of hf: also `split`, `config`, `revision`, `streaming`.
      Without weights the parts are read one after another. With weights they
      are mixed so that their shares of the text (in bytes) follow the weights;
      a part that ends before the mixture is read again.
    errors: "strict" refuses bad text with its position; "replace" repairs and
      counts it, if it can be repaired.
    stopping: end of a mixture: "all" when every part was read to its end once,
      "first" when the first part ends.
    key: the config key of `spec`, for messages.
    **resources: what sources need apart from text (`reader` for "wordnet").

  Raises:
    InputError: the spec has a mistake, or a resource is missing.
    DataError: a part is missing, or has no such column or split.
  """
  one_of("data.errors", errors, ERRORS)
  one_of("data.stopping", stopping, STOPPING)
  part_specs = _parse_spec(spec, key)
  weights = [part.weight for part in part_specs if part.weight is not None]
  if weights and len(weights) < len(part_specs):
    without = next(part.where for part in part_specs if part.weight is None)
    raise InputError(
      f"{key}: {len(weights)} of {len(part_specs)} parts have weight=. Set it"
      f" for {without!r} as well, or for none."
    )
  # Normalized, so that weights 3 and 1 are the same mixture as 6 and 2.
  shares = tuple(weight / sum(weights) for weight in weights)
  parts = tuple(_open_part(part, resources) for part in part_specs)
  _check_overlap(parts, key)
  return Corpus(parts, shares if len(shares) > 1 else (), errors, stopping)


def named_sources(spec: str, *, key: str = "data.sources") -> set[str]:
  """Returns the named sources of a spec, without hf: {"wordnet"} or none.

  Raises:
    InputError: the spec has a mistake.
  """
  return {part.source for part in _parse_spec(spec, key)} - {"", "hf"}


def describe_sources(spec: str, *, key: str = "data.sources") -> str:
  """Describes in a dry run which files of a spec exist; reads none.

  Raises:
    InputError: the spec has a mistake.
    DataError: a folder has no text, or a file cannot be read.
  """
  lines = []
  for part in _parse_spec(spec, key):
    if part.source:
      is_local = hub_datasets.is_folder(part.where.removeprefix(HUB))
      is_remote = part.source == "hf" and not is_local
      lines.append(f"{part.where}{' (on the hub)' * is_remote}")
    elif is_url(part.where):
      lines.append(f"{part.where} (in a bucket)")
    elif files := find_files(part.where, suffixes=formats()):
      size = sum(file.size for file in files) / 1e6
      plural = "s" * (len(files) > 1)
      lines.append(
        f"{part.where} ({len(files):,} file{plural}, {size:,.1f} MB)"
      )
    else:
      lines.append(f"{part.where} (missing)")
  return ", ".join(lines)


@dataclasses.dataclass(frozen=True)
class PartSpec:
  """A parsed part of a spec.

  Attributes:
    where: the part without its options.
    source: "hf", another source that `where` names, or "" for files.
    weight: None if not set.
    join_chars: least size of joined documents; 0 to join none.
    min_chars: least size of a line.
    options: all options that are set.
    subject: the config key and the part, for the beginning of a message.
  """

  where: str
  source: str
  weight: float | None
  join_chars: int
  min_chars: int
  options: dict[str, str]
  subject: str

  def rule(self, source: Source) -> str:
    """Returns the rule that forms its documents before they are joined."""
    rule = self.options.get("document", documents.JOIN)
    return source.document if rule == documents.JOIN else rule


def _parse_spec(spec: str, key: str) -> list[PartSpec]:
  part_specs = []
  for number, text in enumerate(spec.split(","), start=1):
    if not text.strip():
      raise InputError(
        f"{key}={spec!r}: part {number} is empty. Separate names or paths by"
        " commas, such as 'wordnet, texts/*.txt'."
      )
    part_specs.append(_parse_part(text.strip(), key))
  return part_specs


def _parse_part(text: str, key: str) -> PartSpec:
  subject = f"{key}: part {text!r}"
  where, options = _split_options(text, subject)
  for option, choices in (
    ("document", (*documents.RULES, documents.JOIN)),
    ("streaming", ("true", "false")),
    ("format", sorted(set(formats().values()))),
  ):
    if option in options:
      one_of(f"{subject}: {option}", options[option], choices)
  source = ""
  if where.startswith(HUB) and not is_url(where):
    source = "hf"
  elif where in SOURCES and not SOURCES[where].suffixes and where != "hf":
    source = where
  return PartSpec(
    where,
    source,
    _parse_weight(options, subject),
    _parse_join(options, subject),
    _parse_chars(options, "min_chars", subject),
    options,
    f"{key}: part {where!r}",
  )


def _split_options(text: str, subject: str) -> tuple[str, dict[str, str]]:
  where, options = text, {}
  while (match := LAST_OPTION.search(where)) and match[1] in OPTIONS:
    if os.path.lexists(os.path.expanduser(where)):
      break  # the path itself ends like an option
    option, value = match.groups()
    if option in options:
      raise InputError(f"{subject}: {option}= is set twice.")
    if not value:
      raise InputError(f"{subject}: {option}= has no value.")
    options[option] = value
    where = where[: match.start()].rstrip()
  if where in ("", HUB):
    raise InputError(f"{subject}: no name or path before the options.")
  return where, options


def _parse_join(options: Mapping[str, str], subject: str) -> int:
  """Returns the least size of joined documents, or 0 to join none."""
  if options.get("document") == documents.JOIN:
    default = read_state.MAX_DOCUMENT_BYTES if "by" in options else JOIN_CHARS
    return _parse_chars(options, "chars", subject) or default
  for option in ("chars", "by"):
    if option in options:
      raise InputError(
        f"{subject}: {option}= is a bound of joined records. Add"
        f" document={documents.JOIN}, or remove {option}=."
      )
  return 0


def _parse_weight(options: Mapping[str, str], subject: str) -> float | None:
  if (value := options.get("weight")) is None:
    return None
  with contextlib.suppress(ValueError):
    if 0 < (weight := float(value)) < math.inf:
      return weight
  raise InputError(
    f"{subject}: weight={value!r} is not a number above 0, such as 2.5."
  )


def _parse_chars(options: Mapping[str, str], option: str, subject: str) -> int:
  """Returns a number of characters, or 0 if the option is not set."""
  if (value := options.get(option)) is None:
    return 0
  limit = read_state.MAX_DOCUMENT_BYTES
  if re.fullmatch("[0-9]{1,7}", value) and 0 < int(value) <= limit:
    return int(value)
  raise InputError(
    f"{subject}: {option}={value!r} is not a number of characters. Use a whole"
    f" number from 1 to {limit:,}, such as {option}=80."
  )


def _check_misplaced_options(part_spec: PartSpec) -> None:
  """Refuses a missing path or name that seems to hold options."""
  names = LIKE_AN_OPTION.findall(part_spec.where)
  if names:
    unknown = next((name for name in names if name not in OPTIONS), names[0])
    raise InputError(
      f"{part_spec.subject}: no such file or data set, and {unknown}= is not an"
      " option at this place. The options, which come last, are"
      f" {', '.join(OPTIONS)}."
    )


def _open_part(part_spec: PartSpec, resources: Mapping[str, object]) -> Part:
  if part_spec.source:
    part = _open_named(part_spec, resources)
  else:
    part = _open_files(part_spec)
  least, join_chars = part_spec.min_chars, part_spec.join_chars
  changes: dict[str, Any] = {"min_chars": least} if least else {}
  if join_chars:
    changes["join"] = [join_chars, part_spec.options.get("by", "")]

  def read(state: ReadState) -> Iterator[str]:
    texts = part.read(state)
    if least:
      texts = documents.drop_short_lines(texts, state, min_chars=least)
    if join_chars:
      texts = documents.join(texts, state, num_chars=join_chars)
    return texts

  return dataclasses.replace(
    part, read=read, identity=lambda: part.identity() | changes
  )


def _check_options(part_spec: PartSpec, allowed: Collection[str]) -> None:
  for option in part_spec.options:
    if option != "weight" and option not in allowed:
      known = [name for name in OPTIONS if name == "weight" or name in allowed]
      raise InputError(
        f"{part_spec.subject}: {option}= does not apply. The options are"
        f" {', '.join(known)}."
      )


def _open_named(part_spec: PartSpec, resources: Mapping[str, object]) -> Part:
  source, is_local = SOURCES[part_spec.source], True
  _check_options(part_spec, source.options)
  rule = part_spec.rule(source)
  if rule == "file":
    raise InputError(
      f"{part_spec.subject}: document=file does not apply to records. Choose"
      f" block, record or {documents.JOIN}."
    )
  if part_spec.source == "hf":
    dataset = _open_dataset(part_spec)
    resources, is_local = {"dataset": dataset}, dataset.spec.is_local()
  names = set(inspect.signature(source.read).parameters) - {"state"}
  if missing := sorted(names - set(resources)):
    raise InputError(
      f"{part_spec.subject} needs {', '.join(missing)}. Pass open_corpus(...,"
      f" {missing[0]}=...)."
    )
  arguments = {name: resources[name] for name in names}
  is_repairable = "document" in source.options

  def identity() -> dict[str, Any]:
    result = {"source": part_spec.source, **source.identity(**arguments)}
    return result | ({"document": rule} if is_repairable else {})

  def read(state: ReadState) -> Iterator[str]:
    state.where, state.unit = part_spec.where, "record"
    return _form_documents(source, rule, arguments, state)

  size = source.num_bytes(**arguments)
  return Part(part_spec.where, read, identity, size, is_local, is_repairable)


def _open_dataset(part_spec: PartSpec) -> hub_datasets.HubDataset:
  name = part_spec.where.removeprefix(HUB)
  if not hub_datasets.is_folder(name):
    _check_misplaced_options(part_spec)
  names = ("column", "by", "split", "config", "revision")
  spec = hub_datasets.DatasetSpec(
    name,
    streaming=part_spec.options.get("streaming") == "true",
    **{k: v for k, v in part_spec.options.items() if k in names},
  )
  return hub_datasets.open_dataset(spec)


def _open_files(part_spec: PartSpec) -> Part:
  files, suffixes = _find_files(part_spec), formats()
  chosen = part_spec.options.get("format")
  names = [chosen or suffixes.get(file.suffix, "text") for file in files]
  sources = {name: SOURCES[name] for name in sorted(set(names))}
  options = [option for x in sources.values() for option in x.options]
  _check_options(part_spec, [*FORMING, "format", *options])
  columns = {"column": "text", "by": ""} | part_spec.options
  rules = {name: part_spec.rule(source) for name, source in sources.items()}
  size = sum(file.size for file in files)

  def read_file(file: File, name: str, state: ReadState) -> Iterator[str]:
    arguments: dict[str, Any] = {"file": file}
    arguments |= {option: columns[option] for option in sources[name].options}
    return _form_documents(sources[name], rules[name], arguments, state)

  def identity() -> dict[str, Any]:
    now = files_identity(find_files(part_spec.where, suffixes=suffixes))
    result = {"source": "files", "files": now, "document": rules}
    return result | ({"column": columns["column"]} if options else {})

  def read(state: ReadState) -> Iterator[str]:
    total, before = max(1, size), 0
    for file, name in zip(files, names, strict=True):
      share = file.size / total
      state.begin_file(file.path, before=before / total, share=share)
      yield from _check_not_empty(read_file(file, name, state), state)
      before += file.size

  for name in sources:
    file = files[names.index(name)]
    # Raises the errors of its start, such as a missing column.
    next(read_file(file, name, ReadState("replace", where=file.path)), 0)
  is_local = not is_url(part_spec.where)
  places = [file.path for file in files]
  paths = tuple(map(os.path.abspath, places) if is_local else places)
  return Part(part_spec.where, read, identity, size, is_local, paths=paths)


def _find_files(part_spec: PartSpec) -> list[File]:
  files = find_files(part_spec.where, suffixes=formats())
  if not files:
    _check_misplaced_options(part_spec)
    named = sorted(name for name in SOURCES if not SOURCES[name].suffixes)
    raise UnavailableError(
      f"{part_spec.subject} is not a file, a folder, a URL or a glob with a"
      " match."
      f" Named sources: {', '.join(named)} (hf as hf:NAME)."
    )
  for folder in sorted({os.path.dirname(file.path) for file in files}):
    if hub_datasets.is_saved(
      pathlib.Path(folder)
    ):  # its .json files do not hold its text
      raise InputError(
        f"{part_spec.subject} holds a data set that save_to_disk wrote. Use"
        f" {HUB}{folder}."
      )
  return files


def _form_documents(
  source: Source, rule: str, arguments: Mapping[str, Any], state: ReadState
) -> Iterator[str]:
  values: Any = source.read(state=state, **arguments)
  form = documents.from_lines if source.is_lines else documents.from_records
  return form(values, rule, state)


def _check_not_empty(texts: Iterator[str], state: ReadState) -> Iterator[str]:
  """Refuses or counts a file without documents."""
  path = state.where
  first = next(texts, None)
  if first is None:
    state.count_repair(
      EMPTY_FILES,
      f"{path}: no document in it, because it is empty or every line or record"
      " is blank. Remove it.",
    )
  else:
    yield first
    yield from texts


def _check_overlap(parts: tuple[Part, ...], key: str) -> None:
  """Refuses a file in two parts: one could train on it, one hold it out."""
  seen: dict[str, str] = {}
  for part in parts:
    for path in part.paths:
      if (other := seen.setdefault(path, part.name)) is not part.name:
        raise InputError(
          f"{key}: '{path}' is in {other!r} and in {part.name!r}. Name it only"
          " once. To read it more often, set weights."
        )
