"""Parses questions into constituency trees by rules, from Penn Treebank tags.

The trees have the shape that statement rules expect of a trained parser:

  (SBARQ (WHNP (WDT Which) (NN team)) (SQ (VP (VBD won))) (. ?))
  (SBARQ (WHADVP (WRB When)) (SQ (VBD did) (NP (PRP it)) (VP (VB end))) (. ?))

Prepositional phrases belong to the noun before them, if there is one. Clauses
before the WH phrase, and questions that do not begin with one, stay flat.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from truenegs_jax.robustness.tag_words import AUXILIARIES

# (label, children) of a phrase; (tag, word) of a token.
Tree: TypeAlias = tuple[str, Any]

NOUNS = ("NN", "NNS", "NNP", "NNPS")
WH_TAGS = ("WP", "WP$", "WDT", "WRB")
_ESCAPED = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"'}

# Patterns of tags; a space follows each tag.
_BEFORE_NOUN = (
  r"(?:(?:DT|PRP\$|CD|JJ\S?|POS|SYM|\$|#|``|''|-LRB-) |\S+ (?=HYPH )"
  r"|HYPH \S+ |(?:RB\S?|VBN|VBG) (?=(?:(?:RB|VBN|CD|JJ) )*NN)|JJ CC (?=JJ ))"
)
_NOUNS = rf"{_BEFORE_NOUN}*(?:(?:NN\S*|CD|''|-RRB-) |HYPH \S+ )+"
FINITE = "(?:VBD|VBZ|VBP|MD) "
_MORE = rf"(?:POS |CC (?!{_NOUNS}{FINITE})){_NOUNS}"
_LONGEST = (
  rf"PRP |EX |{_NOUNS}(?:{_MORE})*(?:POS )?|(?:DT|PRP\$) {_BEFORE_NOUN}*"
)
NOUN_PHRASE = rf"(?=({_LONGEST}))\1"  # a lookahead is not tried again
CLAUSE = NOUN_PHRASE + FINITE
PREPOSITION = "(?:IN|TO) "
# Of a noun: before a noun phrase, a gerund or another preposition.
MODIFIER = rf"{PREPOSITION}(?={NOUN_PHRASE}|VBG |IN |TO |RB )"
# A participle that is followed by more than a preposition at the end.
REDUCED = r"VB[NG] (?!$|.*(?:IN|TO|RP) $)"
WH_WORD = r"(?:WP\$?|WDT|WRB) "
ADVERBS = r"(?:RB\S? )*"
VERB = rf"{ADVERBS}(?:V\S*|MD) "


def read_tree(text: str) -> Tree:
  """Reads a tree in brackets, `(S (NP (PRP I)) ...)`."""
  stack: list[list[Any]] = [[]]
  for token in re.findall(r"[()]|[^\s()]+", text):
    if token == "(":
      stack.append([])
    elif token == ")":
      label, *content = stack.pop()
      if len(content) == 1 and isinstance(content[0], str):
        stack[-1].append((label, _ESCAPED.get(content[0], content[0])))
      else:
        stack[-1].append((label, tuple(content)))
    else:
      stack[-1].append(token)
  return stack[0][0]


def parse(tokens: Sequence[tuple[str, str]]) -> Tree:
  """Returns the tree of a sentence of (tag, word)."""
  end = len(tokens)
  while end and tokens[end - 1][0] in (".", "''"):
    end -= 1
  # One after a noun rather is a relative pronoun.
  wh = [i for i in range(end) if is_wh(*tokens[i])]
  start = min(
    wh, key=lambda i: i > 0 and tokens[i - 1][0] in NOUNS, default=end
  )
  if 0 < start < end and tokens[start - 1][0] == "IN":
    start -= 1
  before: list[Tree] = list(tokens[:start])
  if start > 1 and before[-1][0] == ",":
    before = [("PP", tuple(before[:-1])), before[-1]]
  question = _Parser(tokens[start:end]).question()
  return "ROOT", (("SBARQ", (*before, *question, *tokens[end:])),)


def is_wh(tag: str, word: str) -> bool:
  """Returns whether a token is a question word (`that` is not)."""
  return tag in WH_TAGS and word.lower() != "that"


class _Parser:
  """The tokens that are left; methods consume a phrase and return it."""

  def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
    self.tokens = list(tokens)
    self.tags = "".join(f"{tag} " for tag, _ in tokens)

  def next(self, pattern: str) -> int:
    """Returns how many of the next tokens a pattern of tags matches."""
    match = re.match(pattern, self.tags)
    return match[0].count(" ") if match else 0

  def word(self) -> str:
    """Returns the next token in lower case, "" after the last."""
    return self.tokens[0][1].lower() if self.tokens else ""

  def take(self) -> Tree:
    """Consumes one token."""
    self.tags = self.tags.partition(" ")[2]
    return self.tokens.pop(0)

  def take_all(self, pattern: str) -> list[Tree]:
    """Consumes the tokens that a pattern of tags matches."""
    return [self.take() for _ in range(self.next(pattern))]

  def question(self) -> list[Tree]:
    """Returns the WH phrase and the clause after it, if there are any."""
    parts = [self.wh_phrase()] if self.tokens else []
    if not self.tokens:
      return parts
    clause: list[Tree] = []
    if self.next("MD ") or self.word() in AUXILIARIES:
      if self.next(rf"\S+ {NOUN_PHRASE}"):
        reduced = parts[0][0] == "WHNP"
        clause = [self.take(), self.noun_phrase(reduced=reduced)]
    while self.tokens:
      clause.append(self.complement() or self.verb_phrase())
    return [*parts, ("SQ", tuple(clause))]

  def wh_phrase(self) -> Tree:
    """Returns WHNP, WHADVP, WHADJP or WHPP."""
    if self.next(PREPOSITION):
      return "WHPP", (self.take(), self.wh_phrase())
    wh: Tree = self.take()
    if wh[1].lower() == "how" and self.next(r"(?:JJ|RB)\S? "):
      is_number = self.word() in ("many", "much")
      wh = "WHADJP", (wh, self.take())
      if not is_number:
        return wh
    elif wh[0] == "WRB":
      return "WHADVP", (wh,)
    noun = self.take_all(f"(?!DT|PRP|EX){NOUN_PHRASE}")
    phrase: Tree = "WHNP", (wh, *noun)
    while (noun or self.word() == "of") and self.next(MODIFIER):
      phrase = "WHNP", (phrase, self.prepositional_phrase())
    return phrase

  def noun_phrase(self, *, reduced: bool = True) -> Tree:
    """Returns a noun phrase with the phrases that describe its noun.

    Args:
      reduced: whether a participle may belong to the noun (the team *coached by
        him*) rather than be the main verb.
    """
    phrase: Tree = "NP", tuple(self.take_all(NOUN_PHRASE))
    while self.tokens:
      if self.next(WH_WORD) or self.word() == "that":
        phrase = "NP", (phrase, self.subordinate_clause())
      elif self.next(MODIFIER):
        phrase = "NP", (phrase, self.prepositional_phrase())
      elif reduced and self.next(REDUCED):
        phrase = "NP", (phrase, self.verb_phrase())
      else:
        break
    return phrase

  def prepositional_phrase(self) -> Tree:
    """Returns a prepositional phrase; its preposition may stand alone."""
    preposition = self.take()
    if self.next(NOUN_PHRASE):
      return "PP", (preposition, self.noun_phrase())
    if self.next("VBG "):
      return "PP", (preposition, ("S", (self.verb_phrase(),)))
    return "PP", (preposition,)

  def subordinate_clause(self) -> Tree:
    """Returns a clause after a conjunction or a relative pronoun, if any."""
    parts: list[Tree] = [] if self.next(CLAUSE) else [self.take()]
    if self.next(NOUN_PHRASE):
      parts.append(self.noun_phrase())
    if self.next(VERB):
      parts.append(self.verb_phrase())
    return "SBAR", tuple(parts)

  def verb_phrase(self) -> Tree:
    """Returns a verb phrase with its objects, or another token."""
    parts = self.take_all(ADVERBS)
    is_auxiliary = self.next("MD |TO ") or self.word() in AUXILIARIES
    parts += self.take_all(r"\S+ ")
    if is_auxiliary and self.next(VERB):
      return "VP", (*parts, self.verb_phrase())
    while part := self.complement():
      parts.append(part)
    return "VP", tuple(parts)

  def complement(self) -> Tree | None:
    """Returns the next phrase of a verb phrase; None before a verb or end."""
    if not self.tokens or self.next(f"{ADVERBS}(?:{FINITE}|VB )"):
      return None
    if self.next(r"TO (?:RB )?VB "):
      return "S", (self.verb_phrase(),)
    if self.next(WH_WORD) or self.next(f"(?:IN )?{CLAUSE}"):
      return self.subordinate_clause()
    if self.next(PREPOSITION):
      return self.prepositional_phrase()
    if self.next(NOUN_PHRASE):
      return self.noun_phrase()
    return self.verb_phrase() if self.next(VERB) else self.take()
