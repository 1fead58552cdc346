"""Opens WordNet and NLTK's other packages, and finds synonyms in WordNet.

for word, synonym in find_pairs(Vocabulary(tokens), open_wordnet()): ...
"""

import io
import itertools
import os
import pathlib
import re
import warnings
import zipfile
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import IO, Any, Protocol

from truenegs_jax.runtime import cache
from truenegs_jax.runtime.errors import DataError, InputError, program
from truenegs_jax.synonyms.vocabulary import Vocabulary

# Nouns, verbs, adjectives (including satellites) and adverbs.
PARTS_OF_SPEECH = "nvar"
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


class WordNetReader(Hashable, Protocol):
  """The parts of nltk's `WordNetCorpusReader` that are used."""

  MORPHOLOGICAL_SUBSTITUTIONS: Mapping[str, list[tuple[str, str]]]
  _exception_map: Mapping[str, dict[str, list[str]]]
  _lemma_pos_offset_map: Mapping[str, dict[str, list[int]]]

  def all_synsets(self, pos: str) -> Iterable[Any]: ...
  def get_version(self) -> str | None: ...
  def open(self, file: str) -> Any: ...
  def synsets(self, lemma: str, pos: str) -> list[Any]: ...
  def synset_from_pos_and_offset(self, pos: str, offset: int) -> Any: ...


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


def open_wordnet(folder: str = "") -> WordNetReader:
  """Opens the first good WordNet with NLTK, as a `WordNetCorpusReader`.

  `folder` is WordNet's own folder, or an `nltk_data` folder above it. ""
  searches NLTK's path (`$NLTK_DATA`, `~/nltk_data`, ...), then the cache.
  """
  reasons = []
  for place in find_wordnet(folder):
    try:
      return _read(place, folder)
    except Exception as error:  # NLTK raises a dozen unrelated types
      reasons.append(f"'{place}' ({type(error).__name__}: {error})")
  raise DataError(
    "WordNet is damaged or may not be read. Repair or remove"
    f" {', '.join(reasons)}. {FIX}"
  )


def find_wordnet(folder: str = "") -> list[pathlib.Path]:
  """Returns where WordNet is: folders of `data.noun`, and files wordnet.zip."""
  if folder:
    parent = pathlib.Path(os.path.expanduser(folder))
    parents = [parent, parent / "corpora", parent / "nltk_data/corpora"]
  else:
    import nltk  # slow

    roots = [*nltk.data.path, cache.folder() / "nltk_data"]
    parents = [pathlib.Path(root, "corpora") for root in roots]
  places = []
  for parent in parents:
    folders = (parent / "wordnet", parent)
    places += [root for root in folders if (root / "data.noun").is_file()]
    # NLTK's downloader does not unpack every package.
    if (parent / "wordnet.zip").is_file():
      places.append(parent / "wordnet.zip")
  if not places:
    place = f"in {folder!r}" if folder else "on NLTK's path or in the cache"
    raise InputError(f"There is no WordNet {place}. {FIX}")
  return [place.resolve() for place in places]


def find_stems(
  word: str, pos: str, reader: WordNetReader, *, repeat: bool = True
) -> list[str]:
  """Returns the entries of WordNet's index that `word` may be a form of.

  This is NLTK 3.8.1's `_morphy`, which with `repeat` removes a second ending
  where removing one finds no entry (lester -> lest -> l...). NLTK 3.9 and later
  remove only one and know 19,075 tokens of BERT's vocabulary, not the 19,080
  (62.51 %) of the paper. `word`, in lower case, comes first if it is an entry.
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
    if entries or not (repeat and forms) or word in exceptions:
      return entries


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


def _read(place: pathlib.Path, folder: str) -> Any:
  """Returns NLTK's reader for a folder or zip file; pickled as its `folder`.

  NLTK would only read what is on `nltk.data.path`, which is that of the whole
  process; so the files are read here, each as a whole.
  """
  from nltk.corpus.reader.wordnet import WordNetCorpusReader
  from nltk.data import PathPointer

  root: Any = place
  if place.suffix == ".zip":
    root = zipfile.Path(place, "wordnet/")

  class Place(PathPointer):
    """Is asked for nothing: the reader opens its files."""

    open = file_size = join = None

  class Reader(WordNetCorpusReader):
    def __reduce__(self) -> Any:
      return open_wordnet, (folder,)

    # `__init__` maps synsets to other versions and languages, for which NLTK
    # reads a second WordNet. English needs no map.
    def map_wn(self, *_: Any) -> None:
      del self

    def open(self, file: str) -> IO[str]:
      path = root / file
      if file == "lexnames" and not path.is_file():  # as in Debian's package
        names = enumerate(LEXNAMES.split())
        return io.StringIO("".join(f"{i} {name} 0\n" for i, name in names))
      content = io.BytesIO(path.read_bytes())
      return io.TextIOWrapper(content, encoding="utf-8")

  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message=".*multilingual functions")
    reader = Reader(Place(), None)
  index = reader._lemma_pos_offset_map.values()
  for pos in PARTS_OF_SPEECH:
    offsets = [max(entry[pos]) for entry in index if pos in entry]
    if offsets:  # a file that was cut off misses its last synset
      _synset(pos, max(offsets), reader)
  return reader


def read_package(package: str, pattern: str, fix: str) -> str:
  """Returns the text of the first file of a package on NLTK's path.

  Raises:
    InputError: there is no such file, or only in folders that NLTK refuses,
      because other accounts may write to them. The message ends with `fix`.
    DataError: the package is damaged.
  """
  from nltk.corpus.reader import CorpusReader
  from nltk.corpus.util import LazyCorpusLoader

  reader = LazyCorpusLoader(package, CorpusReader, pattern)
  refused = ""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")  # folders that are refused: named below
      names = reader.fileids()
    if names:
      return reader.raw(names[0]).removeprefix("\ufeff")
  except LookupError as error:
    commands = dict.fromkeys(re.findall("chmod go-w '[^']*'", str(error)))
    if commands:
      refused = (
        " NLTK refuses folders that other accounts can write to:"
        f" {', '.join(commands)}."
      )
  except Exception as error:  # zipfile and zlib raise unrelated types
    raise DataError(
      f"NLTK's package {package} is damaged ({type(error).__name__}: {error})."
      f" Download it again with `python -m nltk.downloader {package}`."
    ) from error
  raise InputError(
    f"There is no file {pattern!r} of NLTK's package {package} on NLTK's path."
    f"{refused} {fix}"
  )


def read_omw(language: str) -> str:
  """Returns the text of a language's file in Open Multilingual WordNet."""
  from nltk.langnames import iso639long

  fix = (
    f"source of synonyms: language={language!r} needs it. If it is not"
    f" installed, run `python -m nltk.downloader omw-1.4`. {LEXICONS}"
  )
  code = OMW_CODES.get(language) or iso639long.get(language, language)
  return read_package("omw-1.4", f".*/wn-data-{re.escape(code)}[.]tab", fix)
