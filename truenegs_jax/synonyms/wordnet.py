"""Finds NLTK's packages, opens WordNet, and finds synonyms in it.

with session() as reader:
  for word, synonym in find_pairs(Vocabulary(tokens), reader, pos="nv"): ...
"""

import contextlib
import fnmatch
import io
import itertools
import os
import pathlib
import warnings
import zipfile
from collections.abc import Iterator
from typing import IO, Any

from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DataError, InputError, program
from truenegs_jax.runtime.files import atomic_file, disk_errors
from truenegs_jax.runtime.paths import join_inside
from truenegs_jax.synonyms.vocabulary import Vocabulary

# Nouns, verbs, adjectives (including satellites) and adverbs.
PARTS_OF_SPEECH = "nvar"
MAX_LEMMAS = 255  # of a synset; two hexadecimal digits in data files
ALL_SENSES = 99  # more than any word has; the verb `break` has 59
OFFLINE = (
  "Without internet, copy the folder nltk_data of another machine and set"
  " NLTK_DATA=FOLDER, or install Debian's wordnet-base and wordnet-sense-index"
  " and set --config.data.wordnet_dir=/usr/share/wordnet."
)
FIX = f"Run {program()} wordnet. {OFFLINE}"

# The groups of synsets by number, WordNet's file `lexnames` (lexnames(5WN)).
LEXNAMES = """
adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact
noun.attribute noun.body noun.cognition noun.communication noun.event
noun.feeling noun.food noun.group noun.location noun.motive noun.object
noun.person noun.phenomenon noun.plant noun.possession noun.process
noun.quantity noun.relation noun.shape noun.state noun.substance noun.time
verb.body verb.change verb.cognition verb.communication verb.competition
verb.consumption verb.contact verb.creation verb.emotion verb.motion
verb.perception verb.possession verb.social verb.stative verb.weather adj.ppl
"""

LEXICONS = (
  "Use 'omw path=FILE', 'pairs path=FILE' (a thesaurus, such as that of"
  " Debian's mythes-de or mythes-fr), 'vectors path=FILE' or 'model' as sources"
  " of synonyms, or the recipe baseline, which needs none."
)
# Languages whose wordnet is that of one of their standards or dialects.
OMW_CODES = {"ar": "arb", "ms": "zsm", "no": "nob", "sq": "als", "zh": "cmn"}


def find_pairs(
  vocabulary: Vocabulary,
  reader: WordNetReader,
  *,
  pos: str = PARTS_OF_SPEECH,
  senses: int = ALL_SENSES,
  inflections: bool = False,
) -> Iterator[tuple[str, str]]:
  """Yields each word with the other words that are lemmas of its synsets.

  Lemmas are compared with words by `Vocabulary.match`: a lower-case vocabulary
  has `indiana` for the lemma `Indiana`. With `inflections`, a lower-case word
  also matches the lemmas that it is an inflected form of, in the same part of
  speech (the noun *houses* matches *house*, a synonym of *home*). `senses` is
  that of `find_lemma_names`.
  """
  words = vocabulary.words
  forms: dict[tuple[str, str], list[str]] = {}  # of a lemma, by part of speech
  if inflections:
    # Only one ending is removed: `assess` is not a plural of `ass`.
    for word, part in itertools.product(words, pos):
      for stem in find_stems(word, part, reader, repeat=False):
        forms.setdefault((part, stem), []).append(word)
  for word in words:
    synonyms: set[str] = set()
    for part in pos:
      for name in find_lemma_names(word, reader, pos=part, senses=senses):
        synonyms |= vocabulary.match(name)
        synonyms.update(forms.get((part, name.lower()), ()))
    yield from vocabulary.list_pairs(word, synonyms)


def parse_parts_of_speech(letters: str) -> str:
  """Returns the letters n, v, a (or s) and r of an option, in this order."""
  if not letters or set(letters) - set("nvars"):
    raise InputError(
      f"source of synonyms: pos={letters!r} is unknown. Use one or more of the"
      " letters n (nouns), v (verbs), a (adjectives) and r (adverbs), such as"
      " pos=nv."
    )
  return "".join(p for p in PARTS_OF_SPEECH if p in letters.replace("s", "a"))


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
  names, index = set[str](), reader._lemma_pos_offset_map
  for part in pos:
    for stem in find_stems(word.lower(), part, reader):
      for offset in index[stem][part][:senses]:
        synset = _synset(part, offset, reader)
        if satellites or synset.pos() != "s":
          for name in synset.lemma_names():
            if offset in index[name.lower()].get(part, ())[:senses]:
              names.add(name)
  return tuple(sorted(names))


@contextlib.contextmanager
def session(folder: str = "") -> Iterator[WordNetReader]:
  """Opens WordNet for the duration of a `with` block."""
  reader = open_wordnet(folder)
  try:
    yield reader
  finally:
    close_wordnet(reader)


def open_wordnet(folder: str = "") -> WordNetReader:
  """Opens WordNet with NLTK, as a `WordNetCorpusReader`.

  `folder` is WordNet's own folder, or an `nltk_data` folder above it. ""
  searches NLTK's path (`$NLTK_DATA`, `~/nltk_data`, ...), then the cache.
  """
  root = find_wordnet(folder)
  reader = _new_reader(root, folder)
  try:
    with warnings.catch_warnings():
      warnings.filterwarnings("ignore", message=".*multilingual functions")
      reader.__init__()
    index = reader._lemma_pos_offset_map.values()
    for pos in PARTS_OF_SPEECH:
      offsets = [max(entry[pos]) for entry in index if pos in entry]
      if offsets:  # a file that was cut off misses its last synset
        _synset(pos, max(offsets), reader)
  except Exception as error:  # NLTK raises a dozen unrelated types
    close_wordnet(reader)
    raise DataError(
      f"WordNet in '{root}' is damaged or may not be read"
      f" ({type(error).__name__}: {error}). Repair or remove it. {FIX}"
    ) from error
  return reader


def find_wordnet(folder: str = "") -> str:
  """Returns the folder of `data.noun`, or `<zip file>/wordnet/`, for NLTK."""
  if folder:
    parent = pathlib.Path(os.path.expanduser(folder))
    parents = [parent, parent / "corpora", parent / "nltk_data/corpora"]
  else:
    parents = list_folders()
  for parent in parents:
    for root in (parent / "wordnet", parent):
      if (root / "data.noun").is_file():
        return str(root.resolve())
    # NLTK's downloader does not unpack every package.
    if (parent / "wordnet.zip").is_file():
      return f"{(parent / 'wordnet.zip').resolve()}/wordnet/"
  place = f"in {folder!r}" if folder else "on NLTK's path or in the cache"
  raise InputError(f"There is no WordNet {place}. {FIX}")


def close_wordnet(reader: WordNetReader) -> None:
  """Closes the data files, which NLTK leaves to the garbage collector."""
  while files := getattr(reader, "_data_file_map", None):
    files.popitem()[1].close()


def find_stems(
  word: str, pos: str, reader: WordNetReader, *, repeat: bool = True
) -> list[str]:
  """Returns the entries of WordNet's index that `word` may be a form of.

  This is NLTK 3.8.1's `_morphy`, which with `repeat` removes a second ending
  where removing one finds no entry (lester -> lest -> l...). NLTK 3.9 and later
  remove only one and know 19,075 tokens of BERT's vocabulary, not the 19,080
  (62.51 %) of the paper. `word`, in lower case, comes first if it is an entry.
  """
  index, forms = reader._lemma_pos_offset_map, [word]
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
    if entries or not (repeat and forms) or word in exceptions:
      return entries


def _synset(pos: str, offset: int, reader: WordNetReader) -> Any:
  synset = None
  with warnings.catch_warnings(), contextlib.suppress(Exception):
    warnings.simplefilter("ignore")  # "No WordNet synset found": raised below
    synset = reader.synset_from_pos_and_offset(pos, offset)
  if synset is None or len(synset.lemma_names()) > MAX_LEMMAS:
    raise DataError(
      f"WordNet's index names synset {offset} ({pos!r}), which is not in its"
      f" data file, or has more than {MAX_LEMMAS} words. The two are of"
      f" different versions or one is damaged. Remove them. {FIX}"
    )
  return synset


def _new_reader(root: str, folder: str) -> Any:
  """Returns an NLTK reader before its `__init__`; pickled as its `folder`."""
  from nltk.corpus.reader.wordnet import WordNetCorpusReader
  from nltk.data import PathPointer

  class Place(PathPointer):
    """Is asked for nothing: the reader opens its files."""

    open = file_size = join = None

  class Reader(WordNetCorpusReader):
    def __init__(self) -> None:
      super().__init__(Place(), None)

    def __del__(self) -> None:
      close_wordnet(self)

    def __reduce__(self) -> Any:
      return open_wordnet, (folder,)

    # `__init__` maps synsets to other versions and languages, for which NLTK
    # 3.9 and later read a second WordNet. English needs no map.
    def map_wn(self, *_: Any) -> None:
      del self

    map_wn30 = map_wn

    def open(self, file: str) -> IO[str]:
      try:
        return _open_file(root, file)
      except (KeyError, OSError):  # of a zip file, of a folder
        if file != "lexnames":  # missing from Debian's package
          raise
        names = enumerate(LEXNAMES.split())
        return io.StringIO("".join(f"{i} {name} 0\n" for i, name in names))

  return Reader.__new__(Reader)


def _open_file(root: str, name: str) -> IO[str]:
  """Opens a file of a result of `find_wordnet`.

  NLTK would only read what is on `nltk.data.path`, which is that of the whole
  process, and no files that the group of their owner can change.
  """
  archive, in_archive, folder = root.rpartition(".zip/")
  if not in_archive:
    return open(os.path.join(root, name), encoding="utf-8")
  with zipfile.ZipFile(f"{archive}.zip") as file:
    content = io.BytesIO(file.read(folder + name))
  return io.TextIOWrapper(content, encoding="utf-8")


def list_folders() -> list[pathlib.Path]:
  """Returns the folders that may have packages: NLTK's, then the cache's."""
  import nltk  # slow

  places = map(pathlib.Path, nltk.data.path)
  folders = [*places, cache.folder() / "nltk_data"]
  return [folder / "corpora" for folder in folders]


def find_file(package: str, pattern: str) -> pathlib.Path | None:
  """Finds a file of a package, unzipped in the cache; None if there is none."""
  for folder in list_folders():
    if files := sorted((folder / package).glob(pattern)):
      return files[0]
    archive = folder / f"{package}.zip"
    if not archive.is_file():
      continue
    try:
      with zipfile.ZipFile(archive) as file:
        names = fnmatch.filter(file.namelist(), f"{package}/{pattern}")
        content = file.read(names[0]) if names else b""
    except Exception as error:  # zipfile and zlib raise unrelated types
      raise DataError(
        f"'{archive}' is damaged ({error}). Download it again with"
        f" `python -m nltk.downloader {package}`."
      ) from error
    if names:
      # Without the archive's folders, which might lead out of the cache.
      name = pathlib.PurePath(names[0]).name
      unpacked = cache.folder() / "nltk_data" / "unpacked" / package
      path = join_inside(unpacked, name)
      with disk_errors(path):
        unpacked.mkdir(parents=True, exist_ok=True)
      with atomic_file(path, several_writers=True) as copy:
        copy.write(content)
      return path
  return None


def find_omw(language: str) -> pathlib.Path:
  """Finds the wordnet of a language in Open Multilingual WordNet."""
  from nltk.langnames import iso639long

  code = OMW_CODES.get(language) or iso639long.get(language)
  file = find_file("omw-1.4", f"*/wn-data-{code}.tab") if code else None
  if file is None:
    raise InputError(
      f"source of synonyms: language {language!r} has no file in Open"
      " Multilingual WordNet on NLTK's path or in the cache. If it is not"
      f" installed, run `python -m nltk.downloader omw-1.4`. {LEXICONS}"
    )
  return file
