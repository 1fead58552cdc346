"""Annotates text with tokens, tags, entities and parses of questions.

  annotator = make_annotator("spacy:en_core_web_sm")
  for sentence in annotator.annotate("Who won? Denver did."): ...

Questions get trees of constituents, made from spaCy's dependencies:

  (SBARQ (WHNP (WDT Which) (NN team)) (SQ (VP (VBD won))) (. ?))
  (SBARQ (WHADVP (WRB When)) (SQ (VBD did) (NP (PRP it)) (VP (VB end))) (. ?))
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from truenegs_jax.runtime.errors import InputError

# (label, children) of a phrase; (tag, word) of a token.
Tree: TypeAlias = tuple[str, Any]
SPACY = "spacy:"
ENTITIES = {"GPE": "LOCATION", "LOC": "LOCATION", "ORG": "ORGANIZATION"}
# Of spaCy's dependencies.
SUBJECTS = ("nsubj", "nsubjpass", "csubj", "expl", "attr")
AUXILIARIES = ("aux", "auxpass")
INSIDE_NOUN = ("det", "poss", "nummod", "compound", "nmod", "case")
PREPOSITIONS = ("IN", "TO")
WH_TAGS = ("WP", "WP$", "WDT", "WRB")
KINDS = {"JJ": "ADJP", "RB": "ADVP", "WR": "ADVP"}
BE = ("is", "are", "was", "were", "'s")


class Token(NamedTuple):
  """A token, the characters `start` to `end` of the annotated text."""

  text: str
  start: int
  end: int
  tag: str  # of the Penn Treebank, "NNP"
  entity: str = ""  # PERSON, LOCATION, ORGANIZATION or a name of the annotator


class Sentence(NamedTuple):
  """A sentence; `tree` is None if it was not parsed."""

  tokens: tuple[Token, ...]
  tree: Tree | None = None


class Annotator(NamedTuple):
  """The sentences of texts by a model, which `name` names in results."""

  name: str
  annotate: Callable[[str], tuple[Sentence, ...]]

  def list_tokens(self, text: str) -> list[Token]:
    """Returns the tokens of all sentences."""
    return [token for x in self.annotate(text) for token in x.tokens]


def make_annotator(choice: str) -> Annotator:
  """Loads "spacy:MODEL"; InputError if it is not installed."""
  model = choice.removeprefix(SPACY)
  # Not the path of a folder, which a saved config could name.
  if model == choice or not model.isidentifier():
    raise InputError(
      f"robustness.annotations={choice!r} is unknown. Choose {SPACY}MODEL, such"
      f" as {SPACY}en_core_web_sm."
    )
  try:
    import spacy

    nlp = spacy.load(model, exclude=["lemmatizer"])
  except (ImportError, OSError) as error:
    raise InputError(
      f"robustness.annotations='spacy:{model}': spaCy or this model is not"
      " installed, which swap_synonyms and add_sentence need. Run pip install"
      " '.[robustness]' in the checkout and python -m spacy download"
      f" {model}, or choose other sets."
    ) from error

  @functools.lru_cache(maxsize=2**14)
  def annotate(text: str) -> tuple[Sentence, ...]:
    sentences = []
    for sentence in nlp(text).sents:
      tokens = []
      for t in [t for t in sentence if not t.is_space]:
        entity = ENTITIES.get(t.ent_type_, t.ent_type_)
        end = t.idx + len(t.text)
        tokens.append(Token(t.text, t.idx, end, _tag(t), entity))
      sentences.append(Sentence(tuple(tokens), parse_question(sentence)))
    return tuple(sentences)

  name = f"spaCy {spacy.__version__} {model} {nlp.meta['version']}"
  return Annotator(name, annotate)


def list_words(tree: Tree) -> list[str]:
  """Returns the words of a tree."""
  if isinstance(tree[1], str):
    return [tree[1]]
  return [word for child in tree[1] for word in list_words(child)]


def parse_question(sentence: Any) -> Tree | None:
  """Converts spaCy's dependencies of a question (a `Span`) to constituents.

  The words are those of the sentence in order, unless the dependencies of the
  question word's phrase cross. Returns None without a question word.
  """
  tokens = [t for t in sentence if not t.is_space]
  candidates = [t for t in tokens if t.tag_ in WH_TAGS and t.lower_ != "that"]
  if not candidates:
    return None
  # One after a noun rather is a relative pronoun.
  word = min(
    candidates,
    key=lambda t: t.i > sentence.start and t.nbor(-1).tag_.startswith("NN"),
  )
  question = _Question(word)
  tree = question.tree(sentence.root)
  if list_words(tree) == [t.text for t in tokens]:
    return tree
  # No other phrase than that of the question word.
  top = question.top
  before = [_leaf(x) for x in tokens if x.i < top.left_edge.i]
  after = [_leaf(x) for x in tokens if x.i > top.right_edge.i]
  return "ROOT", (("SBARQ", (*before, question.phrase(top), *after)),)


def _tag(token: Any) -> str:
  """Returns a token's tag; VB for a noun with an auxiliary: "did it END"."""
  has_auxiliary = any(x.dep_ in AUXILIARIES for x in token.children)
  return "VB" if has_auxiliary and token.tag_[0] == "N" else token.tag_


def _is_verb(token: Any) -> bool:
  return _tag(token)[0] in "VM"  # VB, VBD, ..., MD


def _leaf(token: Any) -> Tree:
  return _tag(token), token.text


class _Question:
  """Phrases of a question, whose WH phrase is lifted out of its clause.

  Attributes:
    wh_heads: the heads of the phrases that contain the question word, from the
      word itself up to the head of the WH phrase, `top`.
  """

  def __init__(self, word: Any) -> None:
    self.wh_heads, top = [word], word
    # Up to the main clause, a verb, or a phrase that does not start here.
    while (head := top.head) != head.head and not _is_verb(head):
      length = head.right_edge.i - head.left_edge.i + 1
      starts = head.left_edge == top.left_edge or head.tag_ in PREPOSITIONS
      if not starts or len(list(head.subtree)) != length:
        break
      self.wh_heads.append(top := head)
    self.top = top

  def tree(self, root: Any) -> Tree:
    """Returns the tree of a clause whose WH phrase is put first, if it is."""
    start = self.top.left_edge.i
    before = [x for x in self.elements(root) if x.i < start]
    after = [x for x in self.elements(root) if x.i > start]
    marks: list[Tree] = []
    while after and after[-1].dep_ == "punct":
      marks.insert(0, _leaf(after.pop()))
    front = [self.phrase(x) for x in before]
    if len(front) > 1 and front[-1][0] == ",":
      front = [("PP", tuple(front[:-1])), front[-1]]
    body = [("SQ", tuple(self.inverted(root, after)))] if after else []
    return "ROOT", (("SBARQ", (*front, self.phrase(self.top), *body, *marks)),)

  def elements(self, token: Any) -> list[Any]:
    """Returns a token and the heads that depend on it, in order."""
    children = [x for x in token.children if x != self.top and not x.is_space]
    return sorted([token, *children], key=lambda x: x.i)

  def inverted(self, root: Any, elements: Sequence[Any]) -> Iterator[Tree]:
    """Yields a verb, its subject and the rest; or the verb phrase."""
    first, *rest = elements
    is_auxiliary = first.dep_ in AUXILIARIES or first.lower_ in BE
    if is_auxiliary and rest and rest[0].dep_ in SUBJECTS:
      yield _leaf(first)
      yield self.phrase(rest.pop(0))
      if first == root:
        yield from map(self.phrase, rest)
        return
      elements = rest
    if elements:
      yield self.verb_phrase(root, elements)

  def verb_phrase(self, verb: Any, elements: Sequence[Any]) -> Tree:
    """Returns a verb with its complements; auxiliaries contain the others."""
    first, *rest = elements
    if first == verb or not rest:
      return "VP", tuple(self.children(verb, elements))
    return "VP", (self.phrase(first), self.verb_phrase(verb, rest))

  def children(self, head: Any, elements: Sequence[Any]) -> Iterator[Tree]:
    for x in elements:
      yield _leaf(x) if x == head else self.phrase(x)

  def phrase(self, token: Any) -> Tree:
    """Returns the phrase of a token and of all that depends on it."""
    elements = self.elements(token)
    if token.dep_ in AUXILIARIES:
      return _leaf(token)
    if _is_verb(token):
      return self.clause(token, elements)
    label = self.label(token, is_alone=len(elements) == 1)
    if not label:
      return _leaf(token)
    nodes = list(self.children(token, elements))
    if not label.endswith("NP"):
      return label, tuple(nodes)
    end = elements.index(token) + 1
    while end < len(nodes) and elements[end].dep_ in ("case", "punct"):
      end += 1
    tree = label, tuple(nodes[:end])
    for modifier in nodes[end:]:
      tree = label, (tree, modifier)
    return tree

  def label(self, token: Any, *, is_alone: bool) -> str:
    """Returns the label of a phrase that is no clause; "" for a single word."""
    tag, kind = token.tag_, KINDS.get(token.tag_[:2], "NP")
    if token.dep_ == "prep" or tag in PREPOSITIONS and not is_alone:
      kind = "PP"
    elif is_alone and token != self.top:
      is_noun = tag[0] in "NPCEDW$" and token not in self.wh_heads
      if not is_noun or token.dep_ in INSIDE_NOUN:
        return ""
    if token not in self.wh_heads:
      return kind
    return f"WH{'ADJP' if kind == 'ADVP' and not is_alone else kind}"

  def clause(self, verb: Any, elements: Sequence[Any]) -> Tree:
    """Returns a verb phrase, or a clause if something is before the verb."""
    start = next(
      i
      for i, x in enumerate(elements)
      if x == verb or x.dep_ in (*AUXILIARIES, "neg")
    )
    body = self.verb_phrase(verb, elements[start:])
    if start:
      return "SBAR", (*map(self.phrase, elements[:start]), body)
    return ("S", (body,)) if body[1][0][0] == "TO" else body
