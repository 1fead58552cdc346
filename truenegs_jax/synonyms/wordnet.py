"""Opens WordNet and NLTK's other packages, and finds synonyms in WordNet.

for word, synonym in find_pairs(Vocabulary(tokens), open_wordnet()): ...

The command `truenegs wordnet` downloads WordNet 3.0 with NLTK, unless it is on
this machine, into nltk_data/ of the cache folder, where all runs find it.
"""

import contextlib
import functools
import io
import pathlib
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeVar

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  UnavailableError,
  printable,
  program,
)
from truenegs_jax.runtime.paths import cache_folder
from truenegs_jax.synonyms.vocabulary import Vocabulary

Result = TypeVar("Result")
WordNetReader = Any  # NLTK's WordNetCorpusReader, which has no types

# Nouns, verbs, adjectives (including satellites) and adverbs.
PARTS_OF_SPEECH = "nvar"
ALL_SENSES = 99  # more than any word has; the verb `break` has 59
MAX_FILE_BYTES = 2**27  # of a package, unpacked; WordNet's largest has 15 MB
OFFLINE = (
  "Without internet, copy the folder nltk_data of another machine and set"
  " NLTK_DATA=FOLDER, or install Debian's wordnet-base and wordnet-sense-index."
)
DEBIAN = pathlib.Path("/usr/share")  # has the folder `wordnet`
FIX = f"Run {program()} wordnet. {OFFLINE}"

# Numbers in the place of names in WordNet's file `lexnames`, the groups of
# synsets (lexnames(5WN)). Groups are only compared within a part of speech,
# where names are in the order of their numbers.
LEXNAMES = "".join(f"{i} {i:02} 0\n" for i in range(45))

LEXICONS = (
  "Use 'omw path=FILE', 'pairs path=FILE' (a thesaurus, such as that of"
  " Debian's mythes-de or mythes-fr), 'vectors path=FILE' or 'model' as sources"
  " of synonyms, or the recipe baseline, which needs none."
)
# Languages whose wordnet is that of one of their standards or dialects.
OMW_CODES = {"ar": "arb", "ms": "zsm", "no": "nob", "sq": "als", "zh": "cmn"}


def find_pairs(
  vocabulary: Vocabulary,
  reader: WordNetReader | None = None,
  *,
  senses: int = ALL_SENSES,
) -> Iterator[tuple[str, str]]:
  """Yields each word with the other words that are lemmas of its synsets.

  Lemmas are compared with words by `Vocabulary.match`: a lower-case vocabulary
  has `indiana` for the lemma `Indiana`. `senses` is that of `find_lemma_names`.
  """
  reader = reader or open_wordnet()
  for word in vocabulary.words:
    synonyms: set[str] = set()
    for name in find_lemma_names(word, reader, senses=senses):
      synonyms |= vocabulary.match(name)
    yield from vocabulary.list_pairs(word, synonyms)


def find_lemma_names(
  word: str,
  reader: WordNetReader,
  *,
  pos: str = PARTS_OF_SPEECH,
  senses: int = ALL_SENSES,
  satellites: bool = True,
) -> tuple[str, ...]:
  """Returns the sorted lemma names of the synsets of `word`, as written there.

  Includes the word itself and phrases (`primary_coil`). `satellites` are
  synsets of adjectives that belong to another adjective's. Only synsets count
  that are among the first `senses` of the word, by part of speech, and of the
  lemma: WordNet's index lists senses from the most to the least frequent.
  """
  names = set[str]()
  index = reader._lemma_pos_offset_map
  for part in pos:
    for stem in find_stems(word.lower(), part, reader):
      for offset in index[stem][part][:senses]:
        synset = _synset(part, offset, reader)
        if satellites or synset.pos() != "s":
          for name in synset.lemma_names():
            if offset in index[name.lower()].get(part, ())[:senses]:
              names.add(name)
  return tuple(sorted(names))


def find_stems(word: str, pos: str, reader: WordNetReader) -> list[str]:
  """Returns the entries of WordNet's index that `word` may be a form of.

  This is NLTK 3.8.1's `_morphy`, which removes a second ending where removing
  one finds no entry (lester -> lest -> l...). NLTK 3.9 and later remove only
  one and know 19,075 tokens of BERT's vocabulary, not the 19,080 (62.51 %) of
  the paper. `word`, in lower case, comes first if it is an entry.
  """
  index = reader._lemma_pos_offset_map
  forms = [word]
  exceptions = reader._exception_map[pos]
  while True:
    forms = exceptions.get(word) or [
      form[: -len(ending)] + replacement
      for form in forms
      for ending, replacement in reader.MORPHOLOGICAL_SUBSTITUTIONS[pos]
      if form.endswith(ending)
    ]
    names = dict.fromkeys([word, *forms])
    entries = [name for name in names if pos in index.get(name, ())]
    if entries or not forms or word in exceptions:
      return entries


def open_wordnet() -> WordNetReader:
  """Opens the first good WordNet with NLTK.

  It searches NLTK's path (`$NLTK_DATA`, `~/nltk_data`, ...), then the cache,
  then Debian's folder.
  """
  return _read_first("wordnet", _read_wordnet, FIX)


def find_wordnet() -> pathlib.Path:
  """Returns where a WordNet is; InputError if it is nowhere."""
  return _read_first("wordnet", lambda place: place, FIX)


def read_package(package: str, name: str, fix: str) -> str:
  """Returns the text of a file of a package, in its folder or in one below.

  Raises InputError or DataError, which end with `fix`, as `_read_first`.
  """

  def read(place: pathlib.Path) -> str | None:
    with _open_root(place, package) as root:
      # Two of omw-1.4's have Italian; "ita", which comes first, is NLTK's.
      for folder in (root, *sorted(root.iterdir(), key=lambda x: x.name)):
        if (folder / name).is_file():
          return _read_bytes(folder / name).decode("utf-8-sig")
    return None

  return _read_first(package, read, fix)


def read_omw(language: str) -> str:
  """Returns the text of a language's file in Open Multilingual WordNet."""
  from nltk.langnames import iso639long

  fix = (
    f"source of synonyms: language={language!r} needs it. If it is not"
    f" installed, run `python -m nltk.downloader omw-1.4`. {LEXICONS}"
  )
  code = OMW_CODES.get(language) or iso639long.get(language, language)
  return read_package("omw-1.4", f"wn-data-{code}.tab", fix)


def fetch() -> None:
  """Downloads WordNet into the cache, unless a good one is found.

  Damaged ones elsewhere are left alone: the first good one is read.
  """
  try:
    open_wordnet()
    return
  except (InputError, DataError):
    pass  # there is none, or none that can be read
  from nltk.downloader import Downloader

  target = cache_folder().resolve() / "nltk_data"
  print(f"Downloading WordNet to '{target}'", flush=True)
  try:  # it makes folders, and compares sizes and checksums
    Downloader().download(
      "wordnet",
      download_dir=str(target),
      force=True,  # also where a file is there, which cannot be read
      quiet=True,
      raise_on_error=True,
      print_error_to=io.StringIO(),  # the error is raised, too
    )
    open_wordnet()
  except (OSError, ValueError, DataError) as e:
    raise UnavailableError(
      f"WordNet cannot be downloaded from NLTK's server ({printable(e)})."
      f" {OFFLINE}"
    ) from e


def run_command() -> None:
  """Runs the command."""
  flags_lib.run(lambda _: fetch())


def _read_first(
  package: str, read: Callable[[pathlib.Path], Result | None], fix: str
) -> Result:
  """Returns the first result of `read` on the folders and zips of a package.

  Raises DataError if no result is left, but places that cannot be read, and
  InputError without these. The messages end with `fix`.
  """
  import nltk  # slow

  roots = [*nltk.data.path, cache_folder() / "nltk_data"]
  parents = [*(pathlib.Path(root, "corpora") for root in roots), DEBIAN]
  # NLTK's downloader does not unpack every package.
  places = [x / y for x in parents for y in (package, f"{package}.zip")]
  reasons = []
  for place in filter(pathlib.Path.exists, places):
    try:
      result = read(place)
    except Exception as error:  # NLTK and zipfile raise a dozen unrelated types
      reasons.append(f"'{place}' ({type(error).__name__}: {error})")
    else:
      if result is not None:
        return result
  if reasons:
    raise DataError(
      f"NLTK's package {package} is damaged or may not be read. Repair or"
      f" remove {', '.join(reasons)}. {fix}"
    )
  raise InputError(
    f"NLTK's package {package} is neither on NLTK's path nor in the cache, or"
    f" lacks the file. {fix}"
  )


@contextlib.contextmanager
def _open_root(place: pathlib.Path, package: str) -> Iterator[Any]:
  """Opens the folder or the zip file of a package, and yields its root."""
  if place.suffix != ".zip":
    yield place
    return
  with zipfile.ZipFile(place) as archive:
    yield zipfile.Path(archive, f"{package}/")


def _read_bytes(file: Any) -> bytes:
  """Returns the content of a file, perhaps in a zip file."""
  with file.open("rb") as stream:
    data: bytes = stream.read(MAX_FILE_BYTES + 1)
  if len(data) > MAX_FILE_BYTES:
    raise ValueError(f"{file.name} has more than {MAX_FILE_BYTES:,} bytes")
  return data


# A run reads it for its text and for its synonyms.
@functools.lru_cache(maxsize=1)
def _read_wordnet(place: pathlib.Path) -> WordNetReader:
  """Returns NLTK's reader of a folder or zip file.

  NLTK would only read what is on `nltk.data.path`, which is that of the whole
  process; so the files are read here, each as a whole.
  """
  from nltk.corpus.reader.wordnet import WordNetCorpusReader
  from nltk.data import PathPointer

  class Root(PathPointer):
    """Is asked for nothing: the reader opens its files."""

    open = file_size = join = None

  class Reader(WordNetCorpusReader):
    # `__init__` maps synsets to other versions and languages, for which NLTK
    # reads a second WordNet. English needs no map.
    def map_wn(self, *_: Any) -> None:
      del self

    def open(self, file: str) -> IO[str]:
      with _open_root(place, "wordnet") as root:
        if file == "lexnames" and not (root / file).is_file():  # in Debian's
          return io.StringIO(LEXNAMES)
        content = io.BytesIO(_read_bytes(root / file))
      return io.TextIOWrapper(content, encoding="utf-8")

  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*multilingual functions")
    reader = Reader(Root(), None)
  index = reader._lemma_pos_offset_map.values()
  for pos in PARTS_OF_SPEECH:
    offsets = [max(entry[pos]) for entry in index if pos in entry]
    if offsets:  # a file that was cut off misses its last synset
      _synset(pos, max(offsets), reader)
  return reader


def _synset(pos: str, offset: int, reader: WordNetReader) -> Any:
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # "No WordNet synset found": raised below
    try:
      synset = reader.synset_from_pos_and_offset(pos, offset)
    except Exception:  # NLTK raises a dozen unrelated types
      synset = None
  if synset is None:
    raise DataError(
      f"WordNet's index names synset {offset} ({pos!r}), which is not in its"
      " data file. The two are of different versions or one is damaged. Remove"
      f" them. {FIX}"
    )
  return synset
