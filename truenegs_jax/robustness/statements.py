"""Turns questions with answers into statements, by rules on their parses.

The rules are those of Jia & Liang (2017), "Adversarial Examples for Evaluating
Reading Comprehension Systems", in TextFlint's selection. A pattern is a
sequence of atoms that has to cover the tree's words from left to right:

  NP, IN, ...      a node with this label or tag, or one of MACROS
  NP/VP            either
  W:what/which     a WH phrase that begins with one of these words
  called           this word

Slot 0 is the answer; slots 1, 2, ... are the atoms in order, without single
words. An output is a sequence of slots and words.
"""

from collections.abc import Iterator, Sequence

from truenegs_jax.robustness.annotate import Tree, list_words

MACROS = {
  "Noun": "NP/NN/NNS/NNP/NNPS",
  "Verb": "VB/VBD/VBP/VBZ",
  "Part": "VBN/VG",
  "Be": "is/are/was/were",
  "Do": "do/did/does/don't/didn't/doesn't",
  "W": "WHADJP/WHADVP/WHNP/WHPP",
}
WH_PHRASES = tuple(MACROS["W"].split("/"))
_KIND = "type/genre/kind/group"
_SORT = "type/sort/kind/group"
_DO = "W:what/which/who Do NP"
_HOW_DO = "W:what/which/who/how Do NP"
_WHEN_DO = "W:when/where Do NP"
_BE = "W:what/which/who Be/MD NP"

# Pattern -> output; the first that matches counts.
STATEMENT_RULES = (
  ("W:what Be NP called that VP", "2 that 3 1 called 1"),
  (f"W:what/which {_KIND} of NP/Noun Be NP", "5 4 a 1 3"),
  (f"W:what/which {_KIND} of NP/Noun Be VP", "1 3 4 5"),
  (f"W:what/which {_KIND} of NP VP", "1 3 4"),
  ("how JJ Be NP IN NP", "3 2 0 1 4 5"),
  ("how JJ Be NP SBAR", "3 2 0 1 4"),
  ("how JJ Be NP", "3 2 0 1"),
  (_WHEN_DO, "3 occurred in 1"),
  (f"{_WHEN_DO} Verb", "3 4 in 1"),
  (f"{_WHEN_DO} Verb NP/PP", "3 4 5 in 1"),
  (f"{_WHEN_DO} Verb NP PP", "3 4 5 6 in 1"),
  ("W:when/where Be NP", "3 2 in 1"),
  ("W:when/where Verb NP VP/ADJP", "3 2 4 in 1"),
  (f"{_DO} do", "3 1"),
  (f"{_HOW_DO} Verb", "3 4 1"),
  (f"{_DO} Verb IN/NP", "3 4 5 1"),
  (f"{_DO} Verb PP", "3 4 1 5"),
  (f"{_DO} Verb NP VP", "3 4 5 6 1"),
  (f"{_DO} Verb to VB", "3 4 to 5 1"),
  (f"{_DO} Verb to VB VP", "3 4 to 5 1 6"),
  (f"{_HOW_DO} Verb NP IN VP", "3 4 5 6 1 7"),
  (f"{_HOW_DO} Verb PP/S/VP/SBAR/SQ", "3 4 1 5"),
  (f"{_HOW_DO} Verb PP PP/S/VP/SBAR", "3 4 1 5 6"),
  (f"{_BE} of NP Verb/Part IN", "3 of 4 2 5 6 1"),
  (f"{_BE} NP IN", "3 2 4 5 1"),
  (f"{_BE} VP/IN", "3 2 4 1"),
  (f"{_BE} IN NP/VP", "1 2 3 4 5"),
  (f"{_BE} Verb PP", "3 2 4 1 5"),
  ("W:what/which/who Be/MD NP/VP/PP", "1 2 3"),
  ("W:how Be/MD NP VP", "3 2 4 by 1"),
  ("W:what/which/who VP", "1 2"),
  ("IN what/which NP Do NP Verb NP", "5 6 7 1 the 3 of 0"),
  ("IN what/which NP Be NP VP/ADJP", "5 4 6 1 the 3 of 0"),
  ("IN what/which NP Verb NP/ADJP VP", "5 4 6 1 the 3 of 0"),
)

WH_RULES = (
  (f"IN what/which {_SORT} of NP/Noun", "1 0 4"),
  (f"IN what/which {_SORT} of NP/Noun PP", "1 0 4 5"),
  ("IN what/which NP", "1 the 3 of 0"),
  ("IN WP/WDT", "1 0"),
  (f"what/which {_SORT} of NP/Noun", "0 3"),
  (f"what/which {_SORT} of NP/Noun PP", "0 3 4"),
  ("what/which NP", "the 2 of 0"),
  ("how many/much NP", "0 2"),
)
# Replaced in WH phrases that no rule matches.
WH_WORDS = (
  *("what", "who", "how many", "how much", "which", "where", "when", "why"),
  "how",
)
LEADING = ("PP", "SBAR")  # clauses before a comma


def make_statement(tree: Tree, answer: Sequence[str]) -> list[str]:
  """Returns the tokens of the statement that `answer` answers a question.

  If no rule matches, the last WH phrase is replaced in its place. Without one
  there is no statement, [].
  """
  tree = group_wh_phrases(tree)
  for pattern, output in STATEMENT_RULES:
    for lead in ("", *LEADING):
      atoms = pattern.split()
      nodes = match([lead, ",", *atoms] if lead else atoms, (tree,))
      if nodes is not None:
        front = [*list_words(nodes[0]), ","] if lead else []
        body = _fill(output, atoms, nodes[2:] if lead else nodes, answer)
        return _punctuate([*front, *body])
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

  Of a WHNP that starts with another phrase of WH word, the words of that
  phrase, too, move into the NP. An SQ in a WHNP, a parser's mistake, is moved
  behind it.
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
  """Returns the node of each atom if the atoms cover the nodes' words in order.

  Larger nodes are tried first. A question mark or period at the end needs no
  atom.
  """
  if not nodes:
    return None if atoms else []
  first, *rest = nodes
  if not atoms:
    ends = all(word in "?." for node in nodes for word in list_words(node))
    return [] if ends else None
  if _fits(first, atoms[0]):
    others = match(atoms[1:], rest)
    if others is not None:
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
  if isinstance(node[1], str) and node[1].lower() == atom:
    return True
  return node[0] == atom


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
    nodes = match(atoms, (phrase,))
    if nodes is not None:
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
      before = [word for child in content[:i] for word in list_words(child)]
      after = [word for child in content[i + 1 :] for word in list_words(child)]
      return before + tokens + after
  return []


def _punctuate(tokens: Sequence[str]) -> list[str]:
  """Returns the tokens without question marks, as a sentence."""
  kept = [token for token in tokens if token not in ("?", ".")]
  first = kept[0][:1].upper() + kept[0][1:]
  return [first, *kept[1:], "."]
