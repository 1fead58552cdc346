"""Annotates text with tokens, tags, lemmas, entities and parses of questions.

  annotator = make_annotator("auto")
  for sentence in annotator("Who won? Denver did."): ...

spaCy, Stanza and benepar are used where they are installed; the rules of this
folder need only WordNet. A file of recorded annotations stands for any of them
on a machine that has none.
"""

import dataclasses
import functools
import importlib.util
import json
import pathlib
from collections.abc import Callable, Iterable
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
SPACY_ENTITIES = {"GPE": "LOCATION", "LOC": "LOCATION", "ORG": "ORGANIZATION"}


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
    has = {name for name in CHOICES[2:] if importlib.util.find_spec(name)}
    order = ["benepar"] if {"benepar", "spacy"} <= has else []
    for name in [*order, "stanza", "spacy"]:
      if name in has:
        try:
          return _MAKERS[name]()
        except InputError:  # without its model
          continue
    choice = "rules"
  if choice == "rules":
    return _by_rules(wordnet_dir)
  if choice in _MAKERS:
    return _MAKERS[choice]()
  return load_annotations(choice)


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
  for tokens, tree in sentences:
    tokens = tuple(Token(*fields) for fields in tokens)
    for token in tokens:
      if text[token.start : token.end] != token.text:
        raise ValueError(f"no token {token.text!r} at {token.start}")
    checked.append(Sentence(tokens, tree and _tuples(tree)))
  return tuple(checked)


def _tuples(tree: Any) -> Tree:
  label, content = tree
  if isinstance(content, str):
    return label, content
  return label, tuple(map(_tuples, content))


def _by_rules(wordnet_dir: str) -> Annotator:
  """Returns the annotator of this folder; needs WordNet."""
  reader = wordnet.open_wordnet(wordnet_dir)
  word_tags = tag_words.WordTags(reader)
  kinds = guess_entities.NameKinds(reader)

  def annotate(text: str) -> tuple[Sentence, ...]:
    return tuple(
      _annotate_by_rules(text, spans, word_tags, kinds)
      for spans in split_text.split_sentences(text)
    )

  return Annotator("rules with WordNet", annotate)


def _annotate_by_rules(
  text: str,
  spans: list[split_text.Span],
  word_tags: tag_words.WordTags,
  kinds: guess_entities.NameKinds,
) -> Sentence:
  words = [text[start:end] for start, end in spans]
  tags = tag_words.tag_sentence(words, word_tags)
  entities = guess_entities.guess_entities(words, tags, kinds)
  tokens = []
  for word, (start, _), tag, entity in zip(
    words, spans, tags, entities, strict=True
  ):
    for part in word_tags.split_hyphens(word, tag):
      end = start + len(part[0])
      lemma = word_tags.lemma(*part)
      tokens.append(Token(part[0], start, end, part[1], lemma, entity))
      start = end
  return _parse_by_rules(tuple(tokens))


def _parse_by_rules(tokens: tuple[Token, ...]) -> Sentence:
  """Adds the tree of the rules to a question; other sentences have none."""
  if tokens[-1].text != "?" and not any(t.tag[0] == "W" for t in tokens):
    return Sentence(tokens)
  return Sentence(
    tokens, parse_question.parse([(t.tag, t.text) for t in tokens])
  )


def _by_spacy(*, with_benepar: bool = False) -> Annotator:
  """Returns spaCy's annotator, with trees by benepar or by rules."""
  spacy = _import("spacy", "a model: python -m spacy download en_core_web_lg")
  installed = [m for m in SPACY_MODELS if spacy.util.is_package(m)]
  if not installed:
    raise InputError(
      "spaCy has no English model. Run python -m spacy download"
      f" {SPACY_MODELS[0]}, or set robustness.annotations=rules."
    )
  nlp = spacy.load(installed[0])
  name = f"spaCy {spacy.__version__} {installed[0]}"
  if with_benepar:
    benepar = _import("benepar", "its model benepar_en3")
    nlp.add_pipe("benepar", config={"model": "benepar_en3"})
    name += f", benepar {benepar.__version__}"

  def annotate(text: str) -> tuple[Sentence, ...]:
    return tuple(
      _from_spacy(span, with_benepar=with_benepar) for span in nlp(text).sents
    )

  return Annotator(name, annotate, is_parser=with_benepar)


def _from_spacy(span: Any, *, with_benepar: bool) -> Sentence:
  tokens = tuple(
    Token(
      t.text,
      t.idx,
      t.idx + len(t.text),
      t.tag_,
      t.lemma_,
      SPACY_ENTITIES.get(t.ent_type_, t.ent_type_),
    )
    for t in span
    if not t.is_space
  )
  if with_benepar:
    return Sentence(tokens, parse_question.read_tree(span._.parse_string))
  return _parse_by_rules(tokens) if tokens else Sentence(())


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

  def annotate(text: str) -> tuple[Sentence, ...]:
    return tuple(map(_from_stanza, pipeline(text).sentences))

  name = f"Stanza {stanza.__version__}"
  return Annotator(name, annotate, is_parser=True)


def _from_stanza(sentence: Any) -> Sentence:
  kinds = [t.ner.partition("-")[2] for t in sentence.tokens]
  tokens = tuple(
    Token(
      token.text,
      token.start_char,
      token.end_char,
      token.words[0].xpos,
      token.words[0].lemma,
      SPACY_ENTITIES.get(kind, kind),
    )
    for token, kind in zip(sentence.tokens, kinds, strict=True)
  )
  return Sentence(tokens, parse_question.read_tree(str(sentence.constituency)))


def _import(name: str, needs: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError as error:
    raise InputError(
      f"{name} is not installed. Run pip install {name}, and get {needs}; or"
      " set robustness.annotations=rules."
    ) from error


_MAKERS: dict[str, Callable[[], Annotator]] = {
  "spacy": _by_spacy,
  "benepar": functools.partial(_by_spacy, with_benepar=True),
  "stanza": _by_stanza,
}
