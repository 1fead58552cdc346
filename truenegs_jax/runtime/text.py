"""Finds files of text, compressed or by URL, and reads lines and records.

  for number, fields in read_csv("train.csv.xz"): ...

fsspec opens URLs: gcsfs reads gs://, s3fs s3:// and huggingface_hub hf://. They
repeat failed requests.
"""

import contextlib
import csv
import glob
import gzip
import io
import lzma
import os
import pathlib
import re
import shlex
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple, TextIO

from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import DataError, TrueNegsError
from truenegs_jax.runtime.files import parse_json
from truenegs_jax.runtime.paths import check_utf8

# Suffix -> the program that unpacks it.
TOOLS = {".bz2": "bzip2", ".gz": "gzip", ".xz": "xz", ".zst": "zstd"}
COMPRESSIONS = tuple(TOOLS)
BUFFER_BYTES = 2**18
REQUEST_BYTES = 2**22  # of a URL that are held in memory
CHECKSUMS = ("ETag", "md5Hash", "etag", "blob_id")  # keys, by file system
HEAD_BYTES = 512  # that tell the kind of a file
# A record is held in memory. The longest novels have 10 MB, and JSON may write
# a letter in six characters.
MAX_RECORD = 16_000_000  # characters
DAMAGE = (EOFError, zlib.error, lzma.LZMAError)
# Place and bytes of what is not UTF-8, its name, and what to do.
KINDS = (
  (0, b"\xff\xfe\0\0", "UTF-32", ""),
  (0, b"\0\0\xfe\xff", "UTF-32", ""),
  (0, b"\xff\xfe", "UTF-16", ""),
  (0, b"\xfe\xff", "UTF-16", ""),
  (0, b"PK\3\4", "a zip archive", "Unpack it: `unzip {}`."),
  (257, b"ustar", "a tar archive", "Unpack it: `tar -xf {}`."),
)
CONTROLS = bytes({*range(32)} - {*b"\t\n\v\f\r\x1b"})  # are not in text
ESCAPED = re.compile("[\udc80-\udcff]")  # bytes that are not UTF-8, by Python
# Between letters, of a text that is not CP1252, such as Polish.
SYMBOLS = re.compile("[a-z][¡-¬®-³µ¶¸-¿€‚ƒ„†‡ˆ‰‹˜›][a-z]", re.IGNORECASE)


def is_url(where: str) -> bool:
  """Returns whether `where` is a URL of one of SCHEMES."""
  scheme, separator, _ = where.partition("://")
  return bool(separator) and scheme in errors.SCHEMES


def split_suffixes(path: str | pathlib.Path) -> tuple[str, str]:
  """Returns the suffixes of format and compression in lower case, or ""."""
  name = pathlib.PurePath(str(path).lower())
  if name.suffix in COMPRESSIONS:
    return pathlib.PurePath(name.stem).suffix, name.suffix
  return name.suffix, ""


def connect(url: str) -> tuple[Any, str]:
  """Returns the file system of a URL, and the path there."""
  import fsspec  # a tenth of a second

  system, path = fsspec.url_to_fs(url)
  return system, path.rstrip("/")


@contextlib.contextmanager
def convert_errors(path: str) -> Iterator[None]:
  """Turns the errors of a file or URL that is read into TrueNegsErrors."""
  suffix = split_suffixes(path)[1]
  try:
    yield
  except (TrueNegsError, MemoryError):
    raise
  except Exception as error:  # file systems raise two dozen types
    reason = getattr(error, "strerror", None) or error
    is_reading = isinstance(error, OSError) and not error.errno
    if "too much memory" in str(error):
      problem = (
        "it was compressed with zstd --long, which needs much memory. Unpack"
        f" it: `zstd -d --long=31 {shlex.quote(path)}`."
      )
    elif isinstance(error, DAMAGE) or (suffix and is_reading):
      problem = (
        f"the {suffix} file is damaged or cut off, or it is none ({reason})."
        f" Download it again; if it is plain text, remove {suffix} from its"
        " name."
      )
    elif is_url(path) and isinstance(error, ImportError):
      raise errors.missing_package(path, error) from error
    elif is_url(path):
      _, access = errors.SCHEMES[path.partition("://")[0]]
      reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
      raise errors.UnavailableError(
        f"'{path}' cannot be reached ({reason}). Correct the name; for access,"
        f" {access}; if the connection broke, run the same command again."
      ) from error
    elif isinstance(error, OSError):
      problem = f"cannot be read: {reason}."
    else:
      raise
    raise DataError(f"{path}: {problem}") from error


class File(NamedTuple):
  """A file as it was when found."""

  path: str  # or URL
  size: int  # bytes as they are stored
  version: int | str  # time of its last change in ns; of a URL, its checksum


def stat_file(path: str) -> File:
  """Returns size and time of a file."""
  check_utf8(path)
  status = os.stat(path)
  if not os.path.isfile(path):
    raise DataError(f"{path} is a folder or a device. Name a file.")
  return File(path, status.st_size, status.st_mtime_ns)


def files_identity(files: Iterable[File]) -> list[list[object]]:
  """Returns as JSON the names, sizes and times, of URLs checksums, of files.

  Folders may move, so they do not count. Hashes would read the whole corpus.
  """
  return [[os.path.basename(x.path), x.size, x.version] for x in files]


def find_files(where: str, suffixes: Collection[str]) -> list[File]:
  """Finds the files of a path, a folder or a glob, sorted; none if none match.

  Of a folder, or its URL, only files with these suffixes, perhaps followed by
  that of a compression, are found, also in its subfolders; no hidden ones.
  """
  if is_url(where):
    return _find_urls(where, suffixes)
  path = os.path.expanduser(where)
  try:
    if not os.path.isdir(path):
      paths = [path]
      if not os.path.lexists(path):
        matches = glob.glob(path, recursive=True)
        paths = [x for x in matches if not os.path.isdir(x)]
    elif not (paths := list(_walk(path, suffixes))):
      raise errors.UnavailableError(
        f"Folder '{path}' holds no text file ({' '.join(suffixes)}, also"
        " compressed). Use a glob for files with other names."
      )
    # By links, or by "**/**", a file is found several times.
    paths.sort(key=lambda x: (-len(x), x))
    unique = {target: x for x, target in resolve_links(paths).items()}
    kept = sorted(unique.values(), key=lambda x: x.split(os.sep))
    return [stat_file(x) for x in kept]
  except (OSError, ValueError) as error:  # "\0"
    raise errors.UnavailableError(
      f"{where!r} cannot be read ({error})."
    ) from error


def resolve_links(paths: Iterable[str]) -> dict[str, str]:
  """Returns the files that paths lead to; of each folder, links once."""
  folders: dict[str, str] = {}
  targets = {}
  for path in paths:
    folder, name = os.path.split(path)
    if os.path.islink(path):
      targets[path] = os.path.realpath(path)
      continue
    if folder not in folders:
      folders[folder] = os.path.realpath(folder)
    targets[path] = os.path.join(folders[folder], name)
  return targets


def _walk(folder: str, suffixes: Collection[str]) -> Iterator[str]:
  def refuse(error: OSError) -> None:
    raise error  # os.walk would skip unreadable folders

  seen = set()  # links may form a circle
  for name, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
    # Editors and archives leave hidden files ("._a.txt").
    folders[:] = [x for x in folders if x[0] != "."]
    if (real := os.path.realpath(name)) in seen:
      folders.clear()
      continue
    seen.add(real)
    for file in names:
      if file[0] != "." and split_suffixes(file)[0] in suffixes:
        yield os.path.join(name, file)


def _find_urls(where: str, suffixes: Collection[str]) -> list[File]:
  """Finds files by URL; hidden files only if they are named."""
  with convert_errors(where):
    system, path = connect(where)
    system.invalidate_cache()
    is_glob = glob.has_magic(path)
    find = system.glob if is_glob else system.find
    entries = find(path, detail=True)
  files = []
  for name, entry in sorted(entries.items(), key=lambda x: x[0].split("/")):
    is_named = is_glob or name == path or split_suffixes(name)[0] in suffixes
    is_hidden = name.count("/.") > path.count("/.")
    if entry["type"] == "file" and is_named and not is_hidden:
      checksum = next(filter(None, map(entry.get, CHECKSUMS)), "")
      url = system.unstrip_protocol(name)
      files.append(File(url, entry["size"], str(checksum)))
  return files


class _Source(io.FileIO):
  """A file that is closed in silence where a reader is left at an error.

  A collector of garbage may find it before the generator that would close it.
  """

  def __del__(self) -> None:
    self.close()


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[io.BufferedReader]:
  """Opens a file or URL and decompresses it by its suffix.

  Raises DataError, also in the body, for a file that cannot be read, is damaged
  or no file; and UnavailableError for a URL.
  """
  with convert_errors(path), contextlib.ExitStack() as stack:
    stream: Any
    if is_url(path):
      system, name = connect(path)
      stream = system.open(name, "rb", REQUEST_BYTES, cache_type="readahead")
    else:
      stat_file(path)
      stream = _Source(path)
    stack.callback(stream.close)
    suffix = split_suffixes(path)[1]
    if suffix == ".gz":
      stream = gzip.GzipFile(fileobj=stream)
    elif suffix == ".xz":
      stream = lzma.LZMAFile(stream)
    elif suffix:
      import pyarrow  # a quarter of a second; bz2 passes over some damage

      codec = {".bz2": "bz2", ".zst": "zstd"}[suffix]
      file = pyarrow.PythonFile(stream, "r")
      stream = pyarrow.CompressedInputStream(file, codec)
    yield io.BufferedReader(stream, BUFFER_BYTES)


@contextlib.contextmanager
def open_text(path: str) -> Iterator[TextIO]:
  """Opens a text like `open_bytes`; CR and CR LF become LF.

  Bytes that are not UTF-8 become lone surrogates, as for `surrogateescape`.
  Raises DataError for what is not text in UTF-8 from its beginning on.
  """
  with open_bytes(path) as file:
    head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
    _check_head(head, path)
    yield io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape")


def read_lines(
  path: str, *, errors: str = "strict"
) -> Iterator[tuple[int, str]]:
  """Yields number and text of each line, which ends in LF.

  `errors` is "strict" to refuse bytes that are not UTF-8, or "surrogateescape".
  """
  with open_text(path) as file:
    lines = iter(lambda: file.readline(MAX_RECORD + 1), "")
    for number, line in enumerate(lines, 1):
      if len(line) > MAX_RECORD:
        raise DataError(
          f"{path}:{number}: a record of more than {MAX_RECORD:,} characters."
          " Split the record, or remove it."
        )
      if errors == "strict" and ESCAPED.search(line):
        raise DataError(f"{path}:{number}: {explain_bytes(line, path)}")
      yield number, line


def read_tsv(
  path: str, *, errors: str = "strict"
) -> Iterator[tuple[int, list[str]]]:
  """Yields number and fields of each line; quotes are ordinary characters."""
  for number, line in read_lines(path, errors=errors):
    fields = line.removesuffix("\n").split("\t")
    yield number, [] if fields == [""] else fields


def read_csv(
  path: str, *, errors: str = "strict"
) -> Iterator[tuple[int, list[str]]]:
  """Yields the first line and the fields of each CSV row (RFC 4180)."""
  lines = (line for _, line in read_lines(path, errors=errors))
  rows = csv.reader(lines, strict=True)
  start = 1
  while True:
    before = csv.field_size_limit(MAX_RECORD)  # of the process
    try:
      row = next(rows, None)
    except csv.Error as error:
      raise DataError(
        f"{path}:{start}: unbalanced quotes in the record that starts here, or"
        f" it exceeds {MAX_RECORD:,} characters ({error}). Double each quote"
        " inside a quoted field."
      ) from error
    finally:
      csv.field_size_limit(before)
    if row is None:
      return
    yield start, row
    start = rows.line_num + 1


def read_objects(
  path: str, *, errors: str = "strict"
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields number and JSON object of each line that is not blank."""
  for number, line in read_lines(path, errors=errors):
    if line.isspace():
      continue
    try:
      value = parse_json(line.removesuffix("\n"), strict=False)
    except ValueError as error:
      raise DataError(
        f"{path}:{number}: {error}. Write one JSON object per line; `jq -c"
        " '.[]'` converts an array."
      ) from error
    yield number, value


def check_column(
  where: str, names: list[str], column: str, *, advice: str = "Set column=NAME."
) -> None:
  """Raises DataError unless a column exists once among `names`."""
  count = names.count(column)
  if count == 1:
    return
  problem = f"{count} columns" if count else "no column"
  separators = {";": "semicolons", "\t": "tabs", "|": "bars"}
  if len(names) == 1 and (used := separators.keys() & {*names[0]}):
    words = separators[min(used)]
    advice = f"It is divided by {words}. Divide .csv by commas, .tsv by tabs."
  raise DataError(
    f"{where}: {problem} {column!r}. Columns:"
    f" {', '.join(map(repr, names[:20])) or 'none'}. {advice}".rstrip()
  )


def explain_bytes(text: str, path: str) -> str:
  """Says what to do about the bytes in a text that are not UTF-8."""
  bad = ESCAPED.findall(text)
  problem = f"byte 0x{ord(bad[0]) & 0xFF:02x} is not UTF-8."
  if len(re.findall("[^\0-\x7f\udc80-\udcff]", text)) >= len(bad):
    return f"{problem} Other characters are. Repair the line."
  with contextlib.suppress(UnicodeDecodeError):
    decoded = text.encode("utf-8", "surrogateescape").decode("cp1252")
    num_letters = len(re.findall("[A-Za-z]", text))
    if 4 * len(bad) <= num_letters and not SYMBOLS.search(decoded):
      return (
        f"{problem} In a language of Western Europe, it is CP1252."
        f" {_advise_iconv('CP1252', path)}"
      )
  return (
    f"{problem} The encoding cannot be known from the bytes. Ask where the text"
    f" comes from. {_advise_iconv('ENCODING', path)}"
  )


def _check_head(head: bytes, path: str) -> None:
  """Raises DataError unless a file begins as a text in UTF-8."""
  for place, magic, kind, fix in KINDS:
    if head[place:].startswith(magic):
      fix = fix.format(shlex.quote(path)) or _advise_iconv(kind, path)
      raise DataError(f"{path}: it is {kind}, not text in UTF-8. {fix}")
  if sum(map(head.count, CONTROLS)) * 20 > len(head) > 64:
    raise DataError(
      f"{path}: it is binary data, or UTF-16 without its mark, not text in"
      " UTF-8. Extract its text, or remove the file."
    )


def _advise_iconv(code: str, path: str) -> str:
  command = f"iconv -f {code} -t UTF-8"
  if tool := TOOLS.get(split_suffixes(path)[1]):
    command = f"{tool} -dc {shlex.quote(path)} | {command}"
  else:
    command += f" {shlex.quote(path)}"
  return f"Convert it: `{command} > NEW.txt`."
