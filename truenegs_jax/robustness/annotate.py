"""Annotates texts with spaCy, and makes trees of constituents of questions.

The rules that turn questions into statements need constituents. spaCy has none,
so that they are made from its dependencies:

  (SBARQ (WHNP (WDT Which) (NN team)) (SQ (VP (VBD won))) (. ?))
  (SBARQ (WHADVP (WRB When)) (SQ (VBD did) (NP (PRP it)) (VP (VB end))) (. ?))
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from nltk.tree import Tree

from truenegs_jax.runtime.errors import InputError

Token = Any  # of spaCy, which may not be installed
ENTITIES = {"GPE": "LOCATION", "LOC": "LOCATION", "ORG": "ORGANIZATION"}
# Of spaCy's dependencies.
SUBJECTS = ("nsubj", "nsubjpass", "csubj", "expl", "attr")
AUXILIARIES = ("aux", "auxpass")
INSIDE_NOUN = ("det", "poss", "nummod", "compound", "nmod", "case")
PREPOSITIONS = ("IN", "TO")
WH_TAGS = ("WP", "WP$", "WDT", "WRB")
KINDS = {"JJ": "ADJP", "RB": "ADVP", "WR": "ADVP"}
BE = ("is", "are", "was", "were", "'s")


class Annotator(NamedTuple):
  """A model of spaCy."""

  name: str  # with versions, for results
  # Returns the sentences of a text, each as its tokens without spaces.
  annotate: Callable[[str], tuple[tuple[Token, ...], ...]]

  def list_tokens(self, text: str) -> list[Token]:
    """Returns the tokens of all sentences."""
    return [token for sentence in self.annotate(text) for token in sentence]


def load_annotator(model: str) -> Annotator:
  """Loads a model of spaCy; InputError if it is not installed."""
  # Not the path of a folder, which a saved config could name.
  if not model.isidentifier():
    raise InputError(
      f"robustness.spacy_model={model!r} is not the name of a package. Set"
      " --config.robustness.spacy_model=en_core_web_sm, for example."
    )
  try:
    import spacy

    nlp = spacy.load(model, exclude=["lemmatizer"])
  except (ImportError, OSError) as error:
    raise InputError(
      f"robustness.spacy_model={model!r}: spaCy or this model is not installed,"
      " which swap_synonyms and add_sentence need. Run pip install"
      " '.[robustness]' in the checkout and python -m spacy download"
      f" {model}, or set robustness.sets= to make no sets."
    ) from error

  @functools.lru_cache(maxsize=2**11)
  def annotate(text: str) -> tuple[tuple[Token, ...], ...]:
    return tuple(
      tuple(token for token in sentence if not token.is_space)
      for sentence in nlp(text).sents
    )

  name = f"spaCy {spacy.__version__} {model} {nlp.meta['version']}"
  return Annotator(name, annotate)


def find_tag(token: Token) -> str:
  """Returns a token's tag; VB for a noun with an auxiliary: "did it END"."""
  has_auxiliary = any(x.dep_ in AUXILIARIES for x in token.children)
  return "VB" if has_auxiliary and token.tag_[0] == "N" else token.tag_


def find_entity(token: Token) -> str:
  """Returns the kind of the entity that a token is in, or ""."""
  return ENTITIES.get(token.ent_type_, token.ent_type_)


def parse_question(tokens: Sequence[Token]) -> Tree | None:
  """Converts spaCy's dependencies of a question to constituents.

  The words are those of the tokens in order, unless the dependencies of the
  question word's phrase cross. Returns None without a question word.
  """
  candidates = [x for x in tokens if x.tag_ in WH_TAGS and x.lower_ != "that"]
  if not candidates:
    return None
  sentence = tokens[0].sent
  # One after a noun rather is a relative pronoun.
  word = min(
    candidates,
    key=lambda x: x.i > sentence.start and x.nbor(-1).tag_.startswith("NN"),
  )
  question = _Question(word)
  tree = question.tree(sentence.root)
  if tree.leaves() == [x.text for x in tokens]:
    return tree
  # No other phrase than that of the question word.
  top = question.top
  before = [_leaf(x) for x in tokens if x.i < top.left_edge.i]
  after = [_leaf(x) for x in tokens if x.i > top.right_edge.i]
  return _root([*before, question.phrase(top), *after])


def _root(children: Sequence[Tree]) -> Tree:
  return Tree("ROOT", [Tree("SBARQ", children)])


def _leaf(token: Token) -> Tree:
  return Tree(find_tag(token), [token.text])


def _is_verb(token: Token) -> bool:
  return find_tag(token)[0] in "VM"  # VB, VBD, ..., MD


class _Question:
  """Phrases of a question, whose WH phrase is lifted out of its clause.

  Attributes:
    top: the head of the WH phrase.
    wh_heads: the heads of the phrases that contain the question word, from the
      word itself up to `top`.
  """

  def __init__(self, word: Token) -> None:
    self.top = word
    self.wh_heads = [word]
    # Up to the main clause, a verb, or a phrase that does not start here.
    while (head := self.top.head) != head.head and not _is_verb(head):
      length = head.right_edge.i - head.left_edge.i + 1
      is_start = head.left_edge == self.top.left_edge
      if not is_start and head.tag_ not in PREPOSITIONS:
        break
      if len(list(head.subtree)) != length:
        break
      self.top = head
      self.wh_heads.append(head)

  def tree(self, root: Token) -> Tree:
    """Returns the tree of a clause whose WH phrase is put first, if it is."""
    start = self.top.left_edge.i
    before = [self.phrase(x) for x in self.elements(root) if x.i < start]
    after = [x for x in self.elements(root) if x.i > start]
    marks: list[Tree] = []
    while after and after[-1].dep_ == "punct":
      marks.insert(0, _leaf(after.pop()))
    if len(before) > 1 and before[-1].label() == ",":
      before = [Tree("PP", before[:-1]), before[-1]]
    body = [Tree("SQ", self.inverted(root, after))] if after else []
    return _root([*before, self.phrase(self.top), *body, *marks])

  def elements(self, token: Token) -> list[Token]:
    """Returns a token and the heads that depend on it, in order."""
    children = [x for x in token.children if x != self.top and not x.is_space]
    return sorted([token, *children], key=lambda x: x.i)

  def inverted(self, root: Token, elements: Sequence[Token]) -> Iterator[Tree]:
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

  def verb_phrase(self, verb: Token, elements: Sequence[Token]) -> Tree:
    """Returns a verb with its complements; auxiliaries contain the others."""
    first, *rest = elements
    if first == verb or not rest:
      return Tree("VP", self.children(verb, elements))
    return Tree("VP", [self.phrase(first), self.verb_phrase(verb, rest)])

  def children(self, head: Token, elements: Sequence[Token]) -> list[Tree]:
    """Returns the phrases of elements; that of the head is its word."""
    return [_leaf(x) if x == head else self.phrase(x) for x in elements]

  def phrase(self, token: Token) -> Tree:
    """Returns the phrase of a token and of all that depends on it."""
    elements = self.elements(token)
    if token.dep_ in AUXILIARIES:
      return _leaf(token)
    if _is_verb(token):
      return self.clause(token, elements)
    label = self.label(token, is_alone=len(elements) == 1)
    if not label:
      return _leaf(token)
    nodes = self.children(token, elements)
    if not label.endswith("NP"):
      return Tree(label, nodes)
    end = elements.index(token) + 1
    while end < len(nodes) and elements[end].dep_ in ("case", "punct"):
      end += 1
    tree = Tree(label, nodes[:end])
    for modifier in nodes[end:]:
      tree = Tree(label, [tree, modifier])
    return tree

  def label(self, token: Token, *, is_alone: bool) -> str:
    """Returns the label of a phrase that is no clause; "" for a single word."""
    tag = token.tag_
    kind = KINDS.get(tag[:2], "NP")
    if token.dep_ == "prep" or tag in PREPOSITIONS and not is_alone:
      kind = "PP"
    elif is_alone and token != self.top:
      is_noun = tag[0] in "NPCEDW$" and token not in self.wh_heads
      if not is_noun or token.dep_ in INSIDE_NOUN:
        return ""
    if token not in self.wh_heads:
      return kind
    if kind == "ADVP" and not is_alone:
      return "WHADJP"
    return f"WH{kind}"

  def clause(self, verb: Token, elements: Sequence[Token]) -> Tree:
    """Returns a verb phrase, or a clause if something is before the verb."""
    start = next(
      i
      for i, x in enumerate(elements)
      if x == verb or x.dep_ in (*AUXILIARIES, "neg")
    )
    body = self.verb_phrase(verb, elements[start:])
    if start:
      return Tree("SBAR", [*map(self.phrase, elements[:start]), body])
    return Tree("S", [body]) if body[0].label() == "TO" else body
