"""Parses questions into constituency trees by rules, from Penn Treebank tags.

The trees have the shape that statement rules expect of a trained parser:

  (SBARQ (WHNP (WDT Which) (NN team)) (SQ (VP (VBD won))) (. ?))
  (SBARQ (WHADVP (WRB When)) (SQ (VBD did) (NP (PRP it)) (VP (VB end))) (. ?))

Prepositional phrases belong to the noun before them, if there is one.
"""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from truenegs_jax.robustness.word_lists import word_set

# (label, children) of a phrase; (tag, word) of a token.
Tree: TypeAlias = tuple[str, Any]

AUXILIARIES = word_set(
  "is are was were be been am do does did has have had 's ’s"
)
WH_TAGS = ("WP", "WDT", "WRB", "WP$")
FINITE = ("VBD", "VBZ", "VBP", "MD")
NOMINAL = ("NN", "NNS", "NNP", "NNPS", "CD", "PRP", "EX")
_IN_NP = word_set(
  "DT PRP$ CD JJ JJR JJS NN NNS NNP NNPS POS HYPH $ # SYM FW `` '' -LRB- -RRB-"
)
_SUBORDINATORS = word_set(
  "that because if whether although though while unless until since after"
  " before as once than"
)
# After these participles a question asks for the name or use of its subject.
_NAMING = word_set(
  "called named known used considered made referred termed dubbed titled given"
  " awarded located based born"
)
_ESCAPED = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"'}


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
  parser = _Parser(tokens[:end])
  return "ROOT", (("SBARQ", (*parser.question(), *tokens[end:])),)


class _Parser:
  """A cursor in the tokens; each method consumes a phrase and returns it."""

  def __init__(self, tokens: Sequence[tuple[str, str]]) -> None:
    self.tokens = tokens
    self.i = 0
    self.in_situ = False  # whether the WH phrase is not at the beginning

  def tag(self, ahead: int = 0) -> str:
    """Returns the tag of the next token, "" after the last; all RB* as RB."""
    i = self.i + ahead
    tag = self.tokens[i][0] if i < len(self.tokens) else ""
    return "RB" if tag in ("RBR", "RBS") else tag

  def word(self, ahead: int = 0) -> str:
    """Returns the next token in lower case, "" after the last."""
    i = self.i + ahead
    return self.tokens[i][1].lower() if i < len(self.tokens) else ""

  def take(self) -> Tree:
    """Consumes one token."""
    self.i += 1
    return self.tokens[self.i - 1]

  def question(self) -> list[Tree]:
    """Returns the parts of a question without its last punctuation."""
    wh = next(
      (i for i, (tag, word) in enumerate(self.tokens) if is_wh(tag, word)), -1
    )
    before = self.tokens[wh - 1][0] if wh > 0 else ""
    lead = wh - 1 if before in ("IN", "TO", "RB") else wh
    if lead == 1 or lead > 1 and self.tokens[lead - 1][0] != ",":
      self.in_situ = True
      return [("S", tuple(self.rest()))]
    parts: list[Tree] = []
    if lead > 0:
      clause = _Parser(self.tokens[: lead - 1])
      parts = [clause.leading(), self.tokens[lead - 1]]
      self.i = lead
    if wh < 0:
      return [("SQ", tuple(self.inverted(is_nominal=False)))]
    phrase = self.wh_phrase()
    parts.append(phrase)
    if self.tag():
      is_nominal = phrase[0] == "WHNP"
      parts.append(("SQ", tuple(self.inverted(is_nominal=is_nominal))))
    return parts

  def leading(self) -> Tree:
    """Returns what stands before the comma before the WH phrase."""
    finite = any(tag in FINITE for tag, _ in self.tokens)
    if self.tag() in WH_TAGS or finite and self.tag() == "IN":
      return "SBAR", (self.take(), *self.rest())
    label = "PP" if self.tag() in ("IN", "TO", "VBG", "RB") else "NP"
    return label, tuple(self.rest())

  def wh_phrase(self) -> Tree:
    """Returns WHNP, WHADVP, WHADJP or WHPP."""
    if self.tag() in ("IN", "TO"):
      return "WHPP", (self.take(), self.wh_phrase())
    before = [self.take()] if self.tag() == "RB" else []  # approximately
    is_how = self.word() == "how"
    wh: Tree = self.take()
    if is_how and self.word() in ("many", "much"):
      wh = "WHADJP", (*before, wh, self.take())
      before = []
      if self.starts_np() and not self.is_subject_next():
        return self.wh_noun(wh)
      return "WHNP", (wh,)
    if is_how and self.tag()[:1] in ("J", "R"):
      label = "WHADJP" if self.tag()[0] == "J" else "WHADVP"
      return label, (*before, wh, self.take())
    if wh[0] == "WRB":
      return "WHADVP", (*before, wh)
    if self.starts_np() and not self.is_subject_next() or self.word() == "of":
      return self.wh_noun(wh)
    return "WHNP", (*before, wh)

  def wh_noun(self, wh: Tree) -> Tree:
    """Returns the WHNP of a WH word and the noun phrase after it."""
    words = self.base_np()[1] if self.starts_np() else ()
    inner: Tree = ("WHNP", (wh, *words))
    while self.tag() in ("IN", "TO") and self.starts_after(1):
      inner = "WHNP", (inner, self.pp())
    return inner

  def inverted(self, *, is_nominal: bool) -> list[Tree]:
    """Returns the parts after the WH phrase: verb, subject, and the rest."""
    is_auxiliary = self.tag() == "MD" or self.word() in AUXILIARIES
    do = self.word() in ("do", "does", "did")
    if not is_auxiliary:
      starts = self.tag()[:1] in ("V", "R", "M")
      return [self.vp(), *self.rest()] if starts else self.rest()
    self.i += 1
    has_subject = self.starts_np() and (do or not self.is_predicate())
    self.i -= 1
    if not has_subject and is_nominal:
      return [self.vp(), *self.rest()]
    be = self.word() in ("is", "are", "was", "were")
    parts = [self.take()]
    while self.tag() == "RB" and not self.starts_np():
      parts.append(("ADVP", (self.take(),)))
    if self.starts_np():
      parts.append(self.np(reduced=be and is_nominal))
    return [*parts, *self.rest()]

  def is_predicate(self) -> bool:
    """Returns whether an adjective, not a noun phrase, comes next."""
    i = 0
    while self.tag(i) in ("RB", "JJ", "JJR", "JJS", "VBN"):
      i += 1
    return i > 0 and self.tag(i) not in _IN_NP

  def is_subject_next(self) -> bool:
    """Returns whether the noun phrase after a WH word is not part of it."""
    return self.tag() in ("DT", "PRP", "PRP$", "EX") and self.word() != "all"

  def starts_np(self) -> bool:
    """Returns whether a noun phrase comes next."""
    tag = self.tag()
    if tag in ("PRP", "EX"):
      return True
    if tag in ("RB", "VBN", "VBG", "IN") and self.tag(1) not in ("CD", "JJ"):
      return tag in ("VBN", "VBG") and self.tag(1) in NOMINAL[:4]
    if tag in ("RB", "VBN", "VBG"):
      return self.tag(2) in NOMINAL
    return tag in _IN_NP and tag not in ("POS", "-RRB-")

  def base_np(self) -> Tree:
    """Returns a noun phrase without phrases after its noun."""
    words = [self.take()]
    if words[0][0] in ("PRP", "EX"):
      return "NP", tuple(words)
    while tag := self.tag():
      last = words[-1][0]
      is_after_noun = last in NOMINAL
      if "HYPH" in (last, tag):  # gold-trimmed
        pass
      elif tag in ("RB", "VBN", "VBG"):
        if is_after_noun or not self.starts_np():
          break
      elif tag == "CC":
        before, after = last, self.tag(1)
        same = before[:2] == after[:2] and before[:1] in "NJC"
        if not same or self.verb_after(1):
          break
      elif tag not in _IN_NP:
        break
      elif is_after_noun and tag in ("DT", "PRP$"):
        break
      elif is_after_noun and tag[0] == "J" and self.tag(1) not in NOMINAL[:4]:
        break
      elif last in ("NN", "NNS") and tag.startswith("NNP"):
        if self.verb_after(0):  # the language Luther used
          break
      words.append(self.take())
    return "NP", tuple(words)

  def verb_after(self, ahead: int) -> bool:
    """Returns whether nouns and then a finite verb follow."""
    while self.tag(ahead) in _IN_NP | {"PRP"}:
      ahead += 1
    return self.tag(ahead) in FINITE

  def np(self, *, reduced: bool = True) -> Tree:
    """Returns a noun phrase with the phrases that describe its noun.

    Args:
      reduced: whether a participle may belong to the noun (the team *coached by
        him*) rather than be the main verb.
    """
    phrase = self.base_np()
    head = phrase[1][-1][0]
    while tag := self.tag():
      after: Tree
      if tag in ("IN", "TO") and self.word() not in ("that", "than"):
        stranded = not (self.starts_after(1) or self.tag(1) in WH_TAGS)
        if stranded or tag == "TO" and self.tag(1) == "VB":
          break
        if self.word() in _SUBORDINATORS and self.clause_after(1):
          break
        after = self.pp()
      elif self.in_situ and is_wh(tag, self.word()):
        break
      elif tag in ("WDT", "WP", "WRB") or tag == "IN" and self.word() == "that":
        after = self.sbar()
      elif tag in ("VBN", "VBG") and reduced and not self.is_main(head):
        after = self.vp()
      elif tag in ("DT", "PRP", "NNP", "PRP$") and self.clause_after(0):
        after = "SBAR", (("S", (self.base_np(), self.vp())),)
      elif tag == "CC" and (self.at_np(1)) and not self.clause_after(1):
        phrase = "NP", (phrase, self.take(), self.base_np())
        continue
      elif tag == "," and self.at_np(1) and self.closes_list():
        phrase = "NP", (phrase, self.take(), self.base_np())
        continue
      else:
        break
      phrase = "NP", (phrase, after)
    return phrase

  def starts_after(self, ahead: int) -> bool:
    """Returns whether a noun phrase or a gerund follows a preposition."""
    return self.at_np(ahead) or self.tag(ahead) in ("VBG", "IN", "TO", "RB")

  def at_np(self, ahead: int) -> bool:
    """Returns whether a noun phrase starts `ahead` tokens from here."""
    self.i += ahead
    starts = self.starts_np()
    self.i -= ahead
    return starts

  def clause_after(self, ahead: int) -> bool:
    """Returns whether a subject and a finite verb follow."""
    start = self.i
    self.i += ahead
    follows = self.starts_np() and bool(self.base_np())
    follows = follows and self.tag() in FINITE
    self.i = start
    return follows

  def closes_list(self) -> bool:
    """Returns whether this comma is one of a list, `A, B and C`."""
    tags = [tag for tag, _ in self.tokens[self.i :]]
    end = next((j for j, t in enumerate(tags) if t not in _IN_NP | {","}), 0)
    return end > 0 and tags[end] == "CC"

  def is_main(self, head: str) -> bool:
    """Returns whether a participle after the subject is the main verb."""
    last = self.tokens[-1][0]
    return (
      head in ("NNP", "NNPS", "PRP")
      or self.word() in _NAMING
      or not self.tag(1)
      or last in ("IN", "TO", "RP")
    )

  def pp(self) -> Tree:
    """Returns a prepositional phrase; its preposition may stand alone."""
    preposition = self.take()
    if self.tag() in ("IN", "TO") and self.tag(1):
      return "PP", (preposition, self.pp())
    if self.tag() == "VBG" and not self.starts_np():
      return "PP", (preposition, ("S", (self.vp(),)))
    if self.starts_np():
      return "PP", (preposition, self.np())
    if is_wh(self.tag(), self.word()):
      return "PP", (preposition, self.wh_or_clause())
    return "PP", (preposition,)

  def sbar(self) -> Tree:
    """Returns a subordinate or relative clause."""
    first = self.take()
    parts = [first]
    if self.starts_np() and not (first[0] == "IN" and self.tag() == "VBG"):
      parts.append(self.np(reduced=False))
    if self.tag()[:1] in ("V", "M", "T", "R"):
      parts.append(self.vp())
    label = {"WRB": "WHADVP", "WP": "WHNP", "WDT": "WHNP"}.get(first[0])
    if len(parts) == 1:
      return (label if label and is_wh(*first) else "SBAR"), (first,)
    return "SBAR", (parts[0], ("S", tuple(parts[1:])))

  def vp(self) -> Tree:
    """Returns a verb phrase with its objects."""
    parts: list[Tree] = []
    while self.tag() == "RB":
      parts.append(("ADVP", (self.take(),)))
    if self.tag()[:1] not in ("V", "M", "T"):
      return "ADVP", tuple(parts) or (self.take(),)
    verb = self.take()
    parts.append(verb)
    chains = verb[0] in ("MD", "TO") or verb[1].lower() in AUXILIARIES
    adverbs = 0
    while self.tag(adverbs) == "RB":
      adverbs += 1
    if (
      chains
      and self.tag(adverbs)[:2] == "VB"
      and (adverbs == 0 or self.tag(adverbs) != "VBG" or not self.starts_np())
    ):
      parts += [("ADVP", (self.take(),)) for _ in range(adverbs)]
      return "VP", (*parts, self.vp())
    while self.tag() and (part := self.complement()):
      parts.append(part)
    return "VP", tuple(parts)

  def complement(self) -> Tree | None:
    """Returns the next phrase of a verb phrase; None at its end."""
    tag = self.tag()
    if tag in ("MD", "VBD", "VBZ", "VBP", "VB"):
      return None
    if tag == "TO" and (self.tag(1) == "VB" or self.tag(2) == "VB"):
      return "S", (self.vp(),)
    if tag == "IN" and self.word() in _SUBORDINATORS and self.clause_after(1):
      return self.sbar()
    if tag in ("IN", "TO"):
      return self.pp()
    if tag in WH_TAGS:
      is_question = is_wh(tag, self.word())
      return self.wh_or_clause() if is_question else self.sbar()
    if self.starts_np() and not self.is_predicate():
      if self.clause_after(0):
        return "SBAR", (("S", (self.base_np(), self.vp())),)
      return self.np()
    if tag[0] == "J":
      return "ADJP", (self.take(),)
    if tag in ("VBN", "VBG"):
      return "VP", self.vp()[1]
    if tag == "RP":
      return "PRT", (self.take(),)
    return ("ADVP", (self.take(),)) if tag == "RB" else self.take()

  def wh_or_clause(self) -> Tree:
    """Returns a WH phrase, or the clause that begins with it."""
    start = self.i
    phrase = self.wh_phrase()
    if self.in_situ:
      return phrase
    has_subject = self.tag() in FINITE or self.clause_after(0)
    if has_subject or self.tag() == "TO" and self.tag(1) == "VB":
      self.i = start
      return self.sbar()
    return phrase

  def rest(self) -> list[Tree]:
    """Returns the phrases up to the end."""
    parts = []
    while tag := self.tag():
      start = self.i
      if tag in FINITE or tag == "VB" or tag == "RB" and self.tag(1)[:1] == "V":
        part = self.vp()
      elif is_wh(tag, self.word()):
        part = self.wh_phrase()
      elif self.clause_after(0):
        part = self.base_np()
      else:
        part = self.complement() or self.take()
      assert self.i > start
      parts.append(part)
    return parts


def is_wh(tag: str, word: str) -> bool:
  """Returns whether a token is a question word (`that` is not)."""
  return (tag in WH_TAGS or word.lower() == "whose") and word.lower() != "that"
