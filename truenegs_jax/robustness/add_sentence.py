"""Adds a distracting sentence to contexts: TextFlint's AddSentenceDiverse.

The question is altered, answered with a fake answer, turned into a statement,
and put before the sentence of the answer. There is no random choice, so that
all seeds give the same sentences.

Differences to TextFlint: the tokens of an answer are those at its offset, not
the first that are spelled alike; the first word of a question is in lower case
inside a statement. A word's most frequent tag is that of the word alone.

Questions become statements by the rules in statements.txt, whose labels and
tags are those of the question's tree, or of MACROS.
"""

import dataclasses
import functools
import importlib.resources
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nltk.stem.lancaster import LancasterStemmer

from truenegs_jax.data.corpus.readers import WordNetReader
from truenegs_jax.robustness import annotate, transformation
from truenegs_jax.robustness.annotate import Sentence, Token, Tree, list_words
from truenegs_jax.robustness.transformation import Refused, Transformation
from truenegs_jax.synonyms import sources, wordnet
from truenegs_jax.synonyms.vocabulary import Vocabulary
from truenegs_jax.tasks.task import Question

STYLE = "AddSentDiverse-style"  # title: TextFlint has a parser
NOT_ALIGNED = "the parse does not align with the tokens"
SEVERAL = "the question has several sentences"
NO_RULE = "no statement rule matches the question"
FAKE_BY_ENTITY = dict(
  PERSON="Jeff Dean", LOCATION="Chicago", ORGANIZATION="Stark Industries"
)
FAKE_BY_QUESTION = {"who": "Jeff Dean", "when": "1956", "where": "Chicago"}
FAKE_BY_QUESTION["how many"] = "42"
FAKE_BY_FIRST_TAG = dict(
  VB="learn", VBD="learned", VBG="learning", VBP="learns", VBZ="learns"
)
# After the determiner of the answer, if it has one.
FAKE_NOUNS = dict(
  NN="hamster", NNP="Central Park", NNS="hamsters", NNPS="Kew Gardens"
)
FAKE_BY_LAST_TAG = dict(
  JJ="deep", JJR="deeper", JJS="deepest", RB="silently", VBG="learning"
)
TOP = 100  # nearest words of a word
find_stem = functools.lru_cache(maxsize=2**16)(LancasterStemmer().stem)
_FROM = "States US U.S U.S. UK U.K U.K. largest smallest highest lowest May"
_TO = "Kingdom UK U.K. U.K. US U.S. U.S. smallest largest lowest highest April"
ALTERED = dict(zip(_FROM.split(), _TO.split(), strict=True))
ALTERED["Peyton"] = "Trevor"
_DO_NOT_ALTER = """
many such few much other same general type record kind sort part form terms use
place way old young bowl united one different square war republic doctor color
"""
DO_NOT_ALTER = frozenset(_DO_NOT_ALTER.split())
BAD_ALTERATIONS = {"mx2004", "planet", "u.s.", "http://www.co.mo.md.us"}
ADJECTIVES = ("JJ", "JJR", "JJS")
ENTITY_WORDS = dict(PERSON="Jackson", LOCATION="Berlin", ORGANIZATION="Acme")

MACROS = {
  "Noun": "NP/NN/NNS/NNP/NNPS",
  "Verb": "VB/VBD/VBP/VBZ",
  "Part": "VBN/VG",
  "Be": "is/are/was/were",
  "Do": "do/did/does/don't/didn't/doesn't",
  "W": "WHADJP/WHADVP/WHNP/WHPP",
}
WH_PHRASES = tuple(MACROS["W"].split("/"))
# Replaced in WH phrases that no rule matches.
_WH = "what/who/how many/how much/which/where/when/why/how"
WH_WORDS = tuple(_WH.split("/"))
LEADING = ("PP", "SBAR")  # clauses before a comma

_RULES = importlib.resources.files(__package__) / "statements.txt"
STATEMENT_RULES, WH_RULES = (
  [x.split(" = ") for x in part.splitlines() if not x.startswith("#")]
  for part in _RULES.read_text(encoding="utf-8").split("\n\n")
)


@dataclasses.dataclass(frozen=True)
class AddSentence:
  """The transformation of questions."""

  annotator: annotate.Annotator
  reader: WordNetReader  # for antonyms
  # Neighbours of words in lower case, nearest first.
  neighbours: Mapping[str, Sequence[str]]

  def __call__(self, question: Question, rng: random.Random) -> Question:
    """Adds the sentence; refused are questions without a parse or a rule."""
    del rng  # nothing is drawn
    sentences = self.annotator.annotate(question.context)
    tokens = [token for sentence in sentences for token in sentence.tokens]
    answers = transformation.find_answers(question, tokens)
    first, last = answers[0]
    fake = fake_answer(question, tokens[first:last])
    parsed = self.annotator.annotate(question.text)
    added = self._make_distractor(parsed, fake.split())
    place = insertion_place(sentences, first)
    texts = [token.text for token in tokens]
    texts[place:place] = added
    size = len(added)
    moved = [(a + size, b + size) if a >= place else (a, b) for a, b in answers]
    return transformation.replace_context(question, texts, moved)

  def _make_distractor(
    self, sentences: Sequence[Sentence], answer: Sequence[str]
  ) -> list[str]:
    """Returns the statement that a question's altered form has an answer."""
    if len(sentences) != 1:
      raise Refused(SEVERAL)
    tokens, tree = sentences[0]
    if tree is None:
      raise Refused(NO_RULE)
    if list_words(tree) != [token.text for token in tokens]:
      raise Refused(NOT_ALIGNED)
    altered = self.alter(tokens)
    if not tokens[0].tag.startswith("NNP"):
      altered[0] = altered[0][:1].lower() + altered[0][1:]
    if statement := make_statement(with_words(tree, iter(altered)), answer):
      return statement
    raise Refused(NO_RULE)

  def alter(self, tokens: Sequence[Token]) -> list[str]:
    """Alters words by the first candidates of TextFlint, after Jia & Liang."""
    refused = {token.text.lower() for token in tokens} | BAD_ALTERATIONS
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
    text, tag, entity = token.text, token.tag, token.entity
    if text.lower() in DO_NOT_ALTER:
      return
    if text in ALTERED:
      yield ALTERED[text]
    if tag == "NN" or tag in ADJECTIVES:
      synsets = self.reader.synsets(text, "n" if tag == "NN" else "a")[:1]
      lemmas = [lemma for synset in synsets for lemma in synset.lemmas()]
      names = [x.name() for lemma in lemmas for x in lemma.antonyms()]
      yield from (name for name in names if "_" not in name)
    near = self._near_words(text.lower())
    if tag in ("CD", "NNP", "NNPS"):
      yield from near
    elif entity in ENTITY_WORDS and tag in ("NN", "NNS", *ADJECTIVES):
      for word in near:
        if self.annotator.annotate(word)[0].tokens[0].tag == tag:
          yield word
    if tag[:2] not in ("JJ", "NN", "RB", "VB"):
      return
    if entity == "ORGANIZATION" and text.isupper():
      yield "UNICEF"
    elif entity in ENTITY_WORDS:
      yield ENTITY_WORDS[entity]
    elif tag == "NNPS":
      yield "Daleks"

  def _near_words(self, word: str) -> Iterator[str]:
    """Yields the neighbours of a word that do not share its stem."""
    stem = find_stem(word)
    for other in self.neighbours.get(word, ()) if word not in "war" else ():
      other_stem = find_stem(other)
      if not stem.startswith(other_stem) and not other_stem.startswith(stem):
        yield other


def make_add_sentence(
  annotator: annotate.Annotator,
  questions: Iterable[Question],
  *,
  neighbours: str = "",
  wordnet_dir: str = "",
) -> Transformation:
  """Makes the transformation; `neighbours` is a file of word vectors or ""."""
  reader = wordnet.open_wordnet(wordnet_dir)
  near: dict[str, list[str]] = {}
  if neighbours:
    words = {
      token.text.lower()
      for question in questions
      for token in annotator.list_tokens(question.text)
      if any(map(str.isalnum, token.text))
    }
    path = os.path.expanduser(neighbours)
    for word, other in sources.vectors(
      Vocabulary(sorted(words)), path=path, top=TOP, symbols=True
    ):
      near.setdefault(word, []).append(other)
  apply = AddSentence(annotator, reader, near)
  names = {"annotations": annotator.name, "neighbours": neighbours or "none"}
  return Transformation("add_sentence", STYLE, apply, names)


def fake_answer(question: Question, tokens: Sequence[Token]) -> str:
  """Returns a fake answer of the kind of the first answer, `tokens`."""
  entities = {token.entity for token in tokens}
  if len(entities) == 1 and (kind := entities.pop()) in FAKE_BY_ENTITY:
    return FAKE_BY_ENTITY[kind]
  if question.answers[0][0].isupper():
    return "LSTM"
  text = question.text.lower()
  for start, fake in FAKE_BY_QUESTION.items():
    if text.startswith(f"{start} "):
      return fake
  first, last = tokens[0], tokens[-1]
  if first.tag in FAKE_BY_FIRST_TAG:
    return FAKE_BY_FIRST_TAG[first.tag]
  if last.tag in FAKE_NOUNS:
    determiner = first.text if first.text.lower() in ("the", "a") else ""
    return f"{determiner} {FAKE_NOUNS[last.tag]}".strip()
  return FAKE_BY_LAST_TAG.get(last.tag, "aliens")


def insertion_place(sentences: Sequence[Sentence], first: int) -> int:
  """Returns the token before which the distractor goes, a sentence's start.

  It is the answer's sentence; the one before if the answer, whose first token
  is `first`, is at the start of its own (`>=`: this is TextFlint's).
  """
  count = 0
  for sentence in sentences:
    if count + len(sentence.tokens) >= first:
      break
    count += len(sentence.tokens)
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
      if (nodes := match([*lead, *atoms], (tree,))) is not None:
        front, body = nodes[: len(lead)], nodes[len(lead) :]
        words = [word for node in front for word in list_words(node)]
        return _punctuate([*words, *_fill(output, atoms, body, answer)])
  tokens = _replace_last_wh(tree, answer)
  return _punctuate(tokens) if tokens else []


def with_words(tree: Tree, new_words: Iterator[str]) -> Tree:
  """Returns the tree with other words, one for each."""
  label, content = tree
  if isinstance(content, str):
    return label, next(new_words)
  return label, tuple(with_words(child, new_words) for child in content)


def group_wh_phrases(tree: Tree) -> Tree:
  """Returns the tree with each WHNP as [WH word, NP of all that follows].

  A phrase of the WH word is taken apart, and an SQ in a WHNP, a parser's
  mistake, is moved behind it.
  """
  label, content = tree
  if isinstance(content, str):
    return tree
  if label != "WHNP":
    return label, tuple(map(group_wh_phrases, content))
  first, *rest = content
  if first[0] in WH_PHRASES:
    _, (first, *others) = group_wh_phrases(first)
    rest = others + rest
  if not first[0].startswith("W"):
    return tree
  sq = next((i for i, child in enumerate(rest) if child[0] == "SQ"), len(rest))
  siblings = tuple(map(group_wh_phrases, rest[sq:]))
  noun = tuple(("NP", (child,)) for child in rest[:sq])
  phrase = "WHNP", (first, ("NP", noun)) if noun else (first,)
  return ("SBARQ", (phrase, *siblings)) if siblings else phrase


def match(atoms: Sequence[str], nodes: Sequence[Tree]) -> list[Tree] | None:
  """Returns the largest node of each atom if they cover the nodes' words."""
  if not nodes:
    return None if atoms else []
  first, *rest = nodes
  if not atoms:
    ends = all(word in "?." for node in nodes for word in list_words(node))
    return [] if ends else None
  if _fits(first, atoms[0]):
    if (others := match(atoms[1:], rest)) is not None:
      return [first, *others]
  if isinstance(first[1], str):
    return None
  return match(atoms, [*first[1], *rest])


def _fits(node: Tree, atom: str) -> bool:
  label, colon, prefixes = atom.partition(":")
  if colon:
    phrase = " ".join(list_words(node)).lower()
    return _fits(node, label) and phrase.startswith(tuple(prefixes.split("/")))
  if atom in MACROS or "/" in atom:
    choices = MACROS.get(atom, atom).split("/")
    return any(_fits(node, choice) for choice in choices)
  is_word = isinstance(node[1], str) and node[1].lower() == atom
  return is_word or node[0] == atom


def _fill(
  output: str,
  atoms: Sequence[str],
  nodes: Sequence[Tree],
  answer: Sequence[str],
) -> list[str]:
  """Returns the tokens of an output, WH phrases rewritten."""
  slots = [list(answer)]
  for atom, node in zip(atoms, nodes, strict=True):
    if not (atom.islower() and atom.isalpha()):  # no single word
      is_wh = node[0] in WH_PHRASES
      slots.append(rewrite_wh(node, answer) if is_wh else list_words(node))
  tokens: list[str] = []
  for part in output.split():
    tokens += slots[int(part)] if part.isdigit() else [part]
  return tokens


def rewrite_wh(phrase: Tree, answer: Sequence[str]) -> list[str]:
  """Returns the tokens that stand for a WH phrase in a statement."""
  for pattern, output in WH_RULES:
    atoms = pattern.split()
    if (nodes := match(atoms, (phrase,))) is not None:
      return _fill(output, atoms, nodes, answer)
  tokens = list_words(phrase)
  lower = [token.lower() for token in tokens]
  for wh in map(str.split, WH_WORDS):
    for i in range(len(lower)):
      if lower[i : i + len(wh)] == wh:
        return [*tokens[:i], *answer, *tokens[i + len(wh) :]]
  return list(answer)


def _replace_last_wh(tree: Tree, answer: Sequence[str]) -> list[str]:
  """Returns the tokens with the last WH phrase rewritten; [] without one."""
  label, content = tree
  if label in WH_PHRASES:
    return rewrite_wh(tree, answer)
  if isinstance(content, str):
    return []
  for i in reversed(range(len(content))):
    if tokens := _replace_last_wh(content[i], answer):
      before, after = (label, content[:i]), (label, content[i + 1 :])
      return list_words(before) + tokens + list_words(after)
  return []


def _punctuate(tokens: Sequence[str]) -> list[str]:
  """Returns the tokens without question marks, as a sentence."""
  kept = [token for token in tokens if token not in ("?", ".")]
  return [kept[0][:1].upper() + kept[0][1:], *kept[1:], "."]
