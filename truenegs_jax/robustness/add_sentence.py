"""Adds a distracting sentence to contexts: TextFlint's AddSentenceDiverse.

The question is altered, answered with a fake answer, turned into a statement by
the rules in statements.txt, and put before the sentence of the answer. Nothing
is drawn, so that all seeds give the same sentences.

Differences to TextFlint: the tokens of an answer are those at its offset, not
the first that are spelled alike; the first word of a question is in lower case
inside a statement. A word's most frequent tag is that of the word alone.
"""

import dataclasses
import functools
import importlib.resources
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nltk.stem.lancaster import LancasterStemmer
from nltk.tree import Tree

from truenegs_jax.robustness import annotate, transformation
from truenegs_jax.robustness.annotate import (
  Annotator,
  Token,
  find_entity,
  find_tag,
)
from truenegs_jax.robustness.transformation import (
  WORDS,
  Refused,
  Transformation,
)
from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.vocabulary import Vocabulary
from truenegs_jax.synonyms.wordnet import WordNetReader
from truenegs_jax.tasks.task import Question

STYLE = "AddSentDiverse-style"  # title: TextFlint has a parser
NOT_ALIGNED = "the parse does not align with the tokens"
SEVERAL = "the question has several sentences"
NO_RULE = "no statement rule matches the question"
TOP = 100  # nearest words of a word
ADJECTIVES = ("JJ", "JJR", "JJS")
COMMON = ("NN", "NNS", *ADJECTIVES)
MACROS: Mapping[str, str] = WORDS["macros"]  # labels and words, in rules
WH_PHRASES = tuple(MACROS["W"].split("/"))
LEADING = ("PP", "SBAR")  # clauses before a comma

find_stem = functools.lru_cache(maxsize=2**16)(LancasterStemmer().stem)
_RULES = importlib.resources.files(__package__) / "statements.txt"
STATEMENT_RULES, WH_RULES = (
  [x.split(" = ") for x in part.splitlines() if not x.startswith("#")]
  for part in _RULES.read_text(encoding="utf-8").split("\n\n")
)


@dataclasses.dataclass(frozen=True)
class AddSentence:
  """The transformation of questions."""

  annotator: Annotator
  reader: WordNetReader  # for antonyms
  # Neighbours of words in lower case, nearest first.
  neighbours: Mapping[str, Sequence[str]]

  def __call__(self, question: Question, rng: random.Random) -> Question:
    """Adds the sentence; refused are questions without a parse or a rule."""
    del rng  # nothing is drawn
    sentences = self.annotator.annotate(question.context)
    tokens = [token for sentence in sentences for token in sentence]
    answers = transformation.find_answers(question, tokens)
    first, last = answers[0]
    fake = fake_answer(question, tokens[first:last])
    added = self._make_distractor(question.text, fake.split())
    place = insertion_place([len(x) for x in sentences], first)
    texts = [token.text for token in tokens]
    texts[place:place] = added
    size = len(added)
    moved = [(a + size, b + size) if a >= place else (a, b) for a, b in answers]
    return transformation.replace_context(question, texts, moved)

  def _make_distractor(self, text: str, answer: Sequence[str]) -> list[str]:
    """Returns the statement that a question's altered form has an answer."""
    sentences = self.annotator.annotate(text)
    if len(sentences) != 1:
      raise Refused(SEVERAL)
    tokens = sentences[0]
    tree = annotate.parse_question(tokens)
    if tree is None:
      raise Refused(NO_RULE)
    if tree.leaves() != [token.text for token in tokens]:
      raise Refused(NOT_ALIGNED)
    altered = self.alter(tokens)
    if not find_tag(tokens[0]).startswith("NNP"):
      altered[0] = altered[0][:1].lower() + altered[0][1:]
    for place, word in zip(tree.treepositions("leaves"), altered, strict=True):
      tree[place] = word
    statement = make_statement(tree, answer)
    if not statement:
      raise Refused(NO_RULE)
    return statement

  def alter(self, tokens: Sequence[Token]) -> list[str]:
    """Alters words by the first candidates of TextFlint, after Jia & Liang."""
    refused = {token.text.lower() for token in tokens}
    refused.update(WORDS["bad_alterations"])
    altered = []
    for token in tokens:
      new = (x for x in self._candidates(token) if x.lower() not in refused)
      word = next(new, token.text)
      if token.text.isupper():
        word = word.upper()
      elif token.text.istitle():
        word = word.title()
      altered.append(word)
    return altered

  def _candidates(self, token: Token) -> Iterator[str]:
    """Yields other words for a token, by TextFlint's rules in order."""
    text = token.text
    tag = find_tag(token)
    entity = find_entity(token)
    if text.lower() in WORDS["never_altered"]:
      return
    if text in WORDS["alterations"]:
      yield WORDS["alterations"][text]
    if tag == "NN" or tag in ADJECTIVES:
      synsets = self.reader.synsets(text, "n" if tag == "NN" else "a")[:1]
      lemmas = [lemma for synset in synsets for lemma in synset.lemmas()]
      names = [x.name() for lemma in lemmas for x in lemma.antonyms()]
      yield from (name for name in names if "_" not in name)
    near = self._near_words(text.lower())
    if tag in ("CD", "NNP", "NNPS"):
      yield from near
    elif entity in WORDS["word_by_entity"] and tag in COMMON:
      for word in near:
        if find_tag(self.annotator.list_tokens(word)[0]) == tag:
          yield word
    if tag[:2] not in ("JJ", "NN", "RB", "VB"):
      return
    if entity == "ORGANIZATION" and text.isupper():
      yield "UNICEF"
    elif entity in WORDS["word_by_entity"]:
      yield WORDS["word_by_entity"][entity]
    elif tag == "NNPS":
      yield "Daleks"

  def _near_words(self, word: str) -> Iterator[str]:
    """Yields the neighbours of a word that do not share its stem."""
    # A test for a substring, as in TextFlint, whose ("war") is no tuple.
    if word in "war":
      return
    stem = find_stem(word)
    for other in self.neighbours.get(word, ()):
      other_stem = find_stem(other)
      if not stem.startswith(other_stem) and not other_stem.startswith(stem):
        yield other


def make_add_sentence(
  annotator: Annotator,
  reader: WordNetReader,
  questions: Iterable[Question],
  *,
  neighbours: str = "",
) -> Transformation:
  """Makes the transformation; `neighbours` is a file of word vectors or ""."""
  near: dict[str, list[str]] = {}
  if neighbours:
    words = {
      token.lower_
      for question in questions
      for token in annotator.list_tokens(question.text)
      if any(map(str.isalnum, token.text))
    }
    path = os.path.expanduser(neighbours)
    for word, other in sources.vectors(
      Vocabulary(sorted(words)), path=path, top=TOP
    ):
      near.setdefault(word, []).append(other)
  apply = AddSentence(annotator, reader, near)
  names = {"annotations": annotator.name, "neighbours": neighbours or "none"}
  return Transformation("add_sentence", STYLE, apply, names)


def fake_answer(question: Question, tokens: Sequence[Token]) -> str:
  """Returns a fake answer of the kind of the first answer, `tokens`."""
  kinds = {find_entity(token) for token in tokens}
  if len(kinds) == 1 and (kind := kinds.pop()) in WORDS["answer_by_entity"]:
    return WORDS["answer_by_entity"][kind]
  if question.answers[0][0].isupper():
    return "LSTM"
  text = question.text.lower()
  for start, fake in WORDS["answer_by_question"].items():
    if text.startswith(f"{start} "):
      return fake
  first_tag = find_tag(tokens[0])
  last_tag = find_tag(tokens[-1])
  if first_tag in WORDS["answer_by_first_tag"]:
    return WORDS["answer_by_first_tag"][first_tag]
  if noun := WORDS["noun_by_last_tag"].get(last_tag):
    determiner = tokens[0].text
    return (
      f"{determiner} {noun}" if determiner.lower() in ("the", "a") else noun
    )
  return WORDS["answer_by_last_tag"].get(last_tag, "aliens")


def insertion_place(sizes: Sequence[int], first: int) -> int:
  """Returns the token before which the distractor goes, a sentence's start.

  The sentence, of which `sizes` are the numbers of tokens, is that of the
  answer, or the one before if the answer's token `first` starts its own (`>=`,
  as in TextFlint).
  """
  count = 0
  for size in sizes:
    if count + size >= first:
      break
    count += size
  return count


def make_statement(tree: Tree, answer: Sequence[str]) -> list[str]:
  """Returns the tokens of the statement that `answer` answers a question.

  If no rule matches, the last WH phrase is replaced in its place. Without one
  there is no statement, [].
  """
  tree = group_wh_phrases(tree)
  for pattern, output in STATEMENT_RULES:
    for lead in ([], *([label, ","] for label in LEADING)):
      atoms = pattern.split()
      if (nodes := match([*lead, *atoms], [tree])) is not None:
        size = len(lead)
        words = [word for node in nodes[:size] for word in node.leaves()]
        filled = _fill(output, atoms, nodes[size:], answer)
        return _punctuate([*words, *filled])
  tokens = _replace_last_wh(tree, answer)
  return _punctuate(tokens) if tokens else []


def _is_word(tree: Tree) -> bool:
  """Returns whether a tree is a tag with its word."""
  return isinstance(tree[0], str)


def group_wh_phrases(tree: Tree) -> Tree:
  """Returns the tree with each WHNP as [WH word, NP of all that follows].

  A phrase of the WH word is taken apart, and an SQ in a WHNP, a parser's
  mistake, is moved behind it.
  """
  if _is_word(tree):
    return tree
  if tree.label() != "WHNP":
    return Tree(tree.label(), map(group_wh_phrases, tree))
  first, *rest = tree
  if first.label() in WH_PHRASES:
    first, *others = group_wh_phrases(first)
    rest = others + rest
  if not first.label().startswith("W"):
    return tree
  labels = [child.label() for child in rest]
  end = labels.index("SQ") if "SQ" in labels else len(rest)
  noun = [Tree("NP", [Tree("NP", [child]) for child in rest[:end]])]
  phrase = Tree("WHNP", [first, *noun] if end else [first])
  siblings = [*map(group_wh_phrases, rest[end:])]
  return Tree("SBARQ", [phrase, *siblings]) if siblings else phrase


def match(atoms: Sequence[str], nodes: Sequence[Tree]) -> list[Tree] | None:
  """Returns the largest node of each atom if they cover the nodes' words."""
  if not nodes:
    return None if atoms else []
  if not atoms:
    ends = all(word in "?." for node in nodes for word in node.leaves())
    return [] if ends else None
  first, *rest = nodes
  if _fits(first, atoms[0]):
    if (others := match(atoms[1:], rest)) is not None:
      return [first, *others]
  return None if _is_word(first) else match(atoms, [*first, *rest])


def _fits(node: Tree, atom: str) -> bool:
  label, colon, prefixes = atom.partition(":")
  if colon:
    phrase = " ".join(node.leaves()).lower()
    return _fits(node, label) and phrase.startswith(tuple(prefixes.split("/")))
  if atom in MACROS or "/" in atom:
    choices = MACROS.get(atom, atom).split("/")
    return any(_fits(node, choice) for choice in choices)
  return node.label() == atom or _is_word(node) and node[0].lower() == atom


def _fill(
  output: str,
  atoms: Sequence[str],
  nodes: Sequence[Tree],
  answer: Sequence[str],
) -> list[str]:
  """Returns the tokens of an output, WH phrases rewritten."""
  slots = [list(answer)]
  for atom, node in zip(atoms, nodes, strict=True):
    if atom.islower() and atom.isalpha():
      continue  # a single word has no slot
    is_wh = node.label() in WH_PHRASES
    slots.append(rewrite_wh(node, answer) if is_wh else node.leaves())
  tokens: list[str] = []
  for part in output.split():
    tokens += slots[int(part)] if part.isdigit() else [part]
  return tokens


def rewrite_wh(phrase: Tree, answer: Sequence[str]) -> list[str]:
  """Returns the tokens that stand for a WH phrase in a statement."""
  for pattern, output in WH_RULES:
    atoms = pattern.split()
    if (nodes := match(atoms, [phrase])) is not None:
      return _fill(output, atoms, nodes, answer)
  tokens = phrase.leaves()
  lower = [token.lower() for token in tokens]
  for wh in WORDS["wh_words"]:  # the first of them that occurs
    for i in range(len(lower)):
      if lower[i : i + len(wh)] == wh:
        return [*tokens[:i], *answer, *tokens[i + len(wh) :]]
  return list(answer)


def _replace_last_wh(tree: Tree, answer: Sequence[str]) -> list[str]:
  """Returns the tokens with the last WH phrase rewritten; [] without one."""
  if tree.label() in WH_PHRASES:
    return rewrite_wh(tree, answer)
  if _is_word(tree):
    return []
  for i in reversed(range(len(tree))):
    if tokens := _replace_last_wh(tree[i], answer):
      before = [word for child in tree[:i] for word in child.leaves()]
      after = [word for child in tree[i + 1 :] for word in child.leaves()]
      return [*before, *tokens, *after]
  return []


def _punctuate(tokens: Sequence[str]) -> list[str]:
  """Returns the tokens without question marks, as a sentence."""
  kept = [token for token in tokens if token not in ("?", ".")]
  return [kept[0][:1].upper() + kept[0][1:], *kept[1:], "."]
