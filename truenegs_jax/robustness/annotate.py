"""Annotates text with tokens, tags, lemmas, entities and parses of questions.

  annotator = make_annotator("auto")
  for sentence in annotator("Who won? Denver did."): ...

spaCy, Stanza and benepar are used where they are installed; the rules of this
folder need only WordNet. A file of recorded annotations stands for any of them
on a machine that has none.
"""

import dataclasses
import functools
import importlib
import json
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from truenegs_jax.data.corpus import files, lines
from truenegs_jax.data.corpus.read_state import ReadState
from truenegs_jax.robustness import (
  guess_entities,
  parse_question,
  split_text,
  tag_words,
)
from truenegs_jax.runtime import json_text
from truenegs_jax.runtime.errors import DataError, InputError, UnavailableError
from truenegs_jax.runtime.files import atomic_file
from truenegs_jax.synonyms import wordnet

# (label, children) of a phrase; (tag, word) of a token.
Tree: TypeAlias = parse_question.Tree
CHOICES = ("auto", "rules", "spacy", "stanza", "benepar")
SPACY_MODELS = ("en_core_web_lg", "en_core_web_md", "en_core_web_sm")
ENTITIES = {"GPE": "LOCATION", "LOC": "LOCATION", "ORG": "ORGANIZATION"}


class Token(NamedTuple):
  """A token of a text.

  Attributes:
    text, start, end: its characters, `annotated_text[start:end]`.
    tag: part of speech of the Penn Treebank, "NNP".
    lemma: dictionary form.
    entity: "", PERSON, LOCATION, ORGANIZATION or another name of the annotator.
  """

  text: str
  start: int
  end: int
  tag: str
  lemma: str
  entity: str = ""


class Sentence(NamedTuple):
  """A sentence; `tree` is None if it was not parsed."""

  tokens: tuple[Token, ...]
  tree: Tree | None = None


@dataclasses.dataclass
class Annotator:
  """Annotates texts, each once.

  Attributes:
    name: names the tagger and the parser in results.
    annotate: the uncached function.
    is_parser: whether trees come from a trained parser.
  """

  name: str
  annotate: Callable[[str], tuple[Sentence, ...]]
  is_parser: bool = False

  def __post_init__(self) -> None:
    self.known: dict[str, tuple[Sentence, ...]] = {}

  def __call__(self, text: str) -> tuple[Sentence, ...]:
    """Returns the sentences of a text."""
    if text not in self.known:
      self.known[text] = self.annotate(text)
    return self.known[text]


def make_annotator(choice: str = "auto", *, wordnet_dir: str = "") -> Annotator:
  """Returns an annotator by name, or one that reads a recorded file.

  Args:
    choice: "rules"; "spacy" (its tags, trees by rules), "stanza", "benepar"
      (spaCy with its parser); "auto", the best of these that is installed; or a
      file of `save_annotations`.
    wordnet_dir: folder of WordNet, for "rules"; see `wordnet.open_wordnet`.

  Raises:
    InputError: what was chosen is not installed, or there is no WordNet.
    UnavailableError, DataError: the file is missing or damaged.
  """
  if choice == "auto":
    for make in _MAKERS.values():
      try:
        return make()
      except InputError:  # not installed, or without its model
        continue
    choice = "rules"
  if choice == "rules":
    return _by_rules(wordnet_dir)
  return _MAKERS[choice]() if choice in _MAKERS else load_annotations(choice)


def save_annotations(
  path: pathlib.Path, texts: Iterable[str], annotator: Annotator
) -> None:
  """Writes the annotations of texts and of all others so far, as JSON lines.

  All questions were annotated for their neighbours, few of them are drawn. A
  line has "text", "annotator", "is_parser" and "sentences", a list of
  [tokens, tree]; a token is [text, start, end, tag, lemma, entity].
  """
  with atomic_file(path) as file:
    for text in dict.fromkeys([*annotator.known, *texts]):
      row = {
        "text": text,
        "annotator": annotator.name,
        "is_parser": annotator.is_parser,
        "sentences": annotator(text),
      }
      line = json.dumps(row, ensure_ascii=False) + "\n"
      file.write(line.encode())


def load_annotations(where: str) -> Annotator:
  """Reads a file of `save_annotations`.

  Raises:
    UnavailableError: there is no such file.
    DataError: a line is damaged, or the annotator is asked for another text.
  """
  path = pathlib.Path(where).expanduser()
  if not path.is_file():
    raise UnavailableError(
      f"robustness.annotations={where!r}: there is no such file. Choose"
      f" {', '.join(CHOICES)}, or record a file with robustness.record=FILE."
    )
  known, is_parser = {}, True
  names: dict[str, None] = {}
  for number, row in lines.read_objects(files.stat_file(path), ReadState()):
    try:
      known[row["text"]] = _check(row["text"], row["sentences"])
      names[str(row["annotator"])] = None
      is_parser &= row["is_parser"]
    except json_text.READ_ERRORS as error:
      reason = json_text.describe(error)
      raise DataError(
        f"{where}:{number}: damaged annotation: {reason}. Record it again."
      ) from error

  def refuse(text: str) -> tuple[Sentence, ...]:
    raise DataError(
      f"{where}: no annotation of {text[:60]!r}. Record one of all contexts and"
      " questions with robustness.record=FILE."
    )

  name = f"{' | '.join(names)}, recorded"
  annotator = Annotator(name, refuse, is_parser=is_parser)
  annotator.known = known
  return annotator


def _check(text: str, sentences: list[Any]) -> tuple[Sentence, ...]:
  """Returns sentences of JSON; ValueError if a token is not at its place."""
  checked = []
  for rows, tree in sentences:
    tokens = tuple(Token(*fields) for fields in rows)
    for token in tokens:
      if text[token.start : token.end] != token.text:
        raise ValueError(f"no token {token.text!r} at {token.start}")
    checked.append(Sentence(tokens, tree and _tuples(tree)))
  return tuple(checked)


def _tuples(tree: Any) -> Tree:
  label, content = tree
  is_word = isinstance(content, str)
  return label, content if is_word else tuple(map(_tuples, content))


def _by_rules(wordnet_dir: str) -> Annotator:
  """Returns the annotator of this folder; needs WordNet."""
  reader = wordnet.open_wordnet(wordnet_dir)
  word_tags = tag_words.WordTags(reader)
  kinds = guess_entities.NameKinds(reader)

  def annotate(text: str) -> tuple[Sentence, ...]:
    sentences = []
    for spans in split_text.split_sentences(text):
      words = [text[start:end] for start, end in spans]
      tags = tag_words.tag_sentence(words, word_tags)
      entities = guess_entities.guess_entities(words, tags, kinds)
      tokens = []
      for (start, _), word, tag, entity in zip(
        spans, words, tags, entities, strict=True
      ):
        for part, own in word_tags.split_hyphens(word, tag):
          end = start + len(part)
          lemma = word_tags.lemma(part, own)
          tokens.append(Token(part, start, end, own, lemma, entity))
          start = end
      sentences.append(_parse_by_rules(tokens))
    return tuple(sentences)

  return Annotator("rules with WordNet", annotate)


def _parse_by_rules(tokens: Sequence[Token]) -> Sentence:
  """Adds the tree of the rules to a question; other sentences have none."""
  tagged = [(token.tag, token.text) for token in tokens]
  is_question = any(tag[0] == "W" or word == "?" for tag, word in tagged)
  tree = parse_question.parse(tagged) if is_question else None
  return Sentence(tuple(tokens), tree)


def _by_spacy(*, with_benepar: bool = False) -> Annotator:
  """Returns spaCy's annotator, with trees by benepar or by rules."""
  parser = _import("benepar", "its model benepar_en3") if with_benepar else None
  spacy = _import("spacy", "a model: python -m spacy download en_core_web_lg")
  installed = [m for m in SPACY_MODELS if spacy.util.is_package(m)]
  if not installed:
    raise InputError(
      "spaCy has no English model. Run python -m spacy download"
      f" {SPACY_MODELS[0]}, or set robustness.annotations=rules."
    )
  nlp = spacy.load(installed[0])
  name = f"spaCy {spacy.__version__} {installed[0]}"
  if parser:
    nlp.add_pipe("benepar", config={"model": "benepar_en3"})
    name += f", benepar {parser.__version__}"

  def annotate_sentence(sentence: Any) -> Sentence:
    tokens = tuple(
      _token(t.text, t.idx, t.tag_, t.lemma_, t.ent_type_)
      for t in sentence
      if not t.is_space
    )
    if not parser:
      return _parse_by_rules(tokens)
    return Sentence(tokens, parse_question.read_tree(sentence._.parse_string))

  def annotate(text: str) -> tuple[Sentence, ...]:
    return tuple(map(annotate_sentence, nlp(text).sents))

  return Annotator(name, annotate, is_parser=with_benepar)


def _by_stanza() -> Annotator:
  """Returns Stanza's annotator, with its constituency parser."""
  stanza = _import("stanza", "its English models: stanza.download('en')")
  processors = "tokenize,pos,lemma,ner,constituency"
  try:
    pipeline = stanza.Pipeline("en", processors=processors, verbose=False)
  except Exception as error:  # stanza's own, requests', FileNotFoundError
    raise InputError(
      f'Stanza cannot load its English models ({error}). Run python -c "import'
      " stanza; stanza.download('en')\", or set robustness.annotations=rules."
    ) from error

  def annotate_sentence(sentence: Any) -> Sentence:
    tokens = []
    for t in sentence.tokens:
      word, kind = t.words[0], t.ner.partition("-")[2]
      tokens.append(_token(t.text, t.start_char, word.xpos, word.lemma, kind))
    tree = parse_question.read_tree(str(sentence.constituency))
    return Sentence(tuple(tokens), tree)

  def annotate(text: str) -> tuple[Sentence, ...]:
    return tuple(map(annotate_sentence, pipeline(text).sentences))

  return Annotator(f"Stanza {stanza.__version__}", annotate, is_parser=True)


def _token(text: str, start: int, tag: str, lemma: str, kind: str) -> Token:
  """Returns a token of spaCy or Stanza, its entity by our names."""
  entity = ENTITIES.get(kind, kind)
  return Token(text, start, start + len(text), tag, lemma, entity)


def _import(name: str, needs: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise InputError(
      f"{name} is not installed. Run pip install {name}, and get {needs}; or"
      " set robustness.annotations=rules."
    ) from error


# The best first.
_MAKERS: dict[str, Callable[[], Annotator]] = {
  "benepar": functools.partial(_by_spacy, with_benepar=True),
  "stanza": _by_stanza,
  "spacy": _by_spacy,
}
