"""Guesses Penn Treebank tags and lemmas by rules, for want of a trained tagger.

Closed-class words, WordNet (parts of speech with their frequencies), endings
and capitals give each token its possible tags; the likeliest sequence follows
from a small table of which tag goes after which.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence

from truenegs_jax.data.corpus.sources import WordNetReader
from truenegs_jax.robustness.word_lists import (
  BE,
  CLOSED,
  DO,
  ENDINGS,
  HAVE,
  PARTICIPLE,
  PAST,
  PUNCTUATION,
  word_set,
)
from truenegs_jax.synonyms.wordnet import find_stems

NOUNS = word_set("NN NNS NNP NNPS")
FINITE = word_set("VBD VBZ VBP MD")
# Tag, BE, HAVE, DO, noun (N), or start (^) -> bonus of each next tag: one of
# its own, else of N, ADJ, FIN (finite verbs), else of *.
_AFTER = {
  "^": "WP+2 WDT+1 WRB+2 DT+1 IN+1 N+1 PRP+1 FIN-1 VB-2 POS-9 RP-5",
  "DT": "N+2 ADJ+1.5 CD+1 VBN+0.5 VBG+0 RB-1 FIN-4 VB-5 IN-2 *-3",
  "PRP$": "N+2 ADJ+1.5 CD+0 VBN+0 VBG-1 FIN-5 VB-5 RB-2 *-4",
  "POS": "N+2 ADJ+1.5 CD+0 VBN+0 VBG-1 FIN-5 VB-5 *-4",
  "JJ": "N+2 ADJ+0.5 CC+0 IN+0 TO+0.5 FIN-2.5 VB-4 VBN-1 VBG-1 DT-1 RP-4 *-1",
  "CD": "N+1.5 ADJ+0.5 CC+0 IN+0.5 FIN-1 VB-3 VBN-1 VBG-1 *0",
  "IN": "N+1 DT+1 PRP+0.5 ADJ+0.5 CD+0.5 VBG+0.5 WP+1 WDT+1 WRB+1 FIN-4 VB-5"
  " VBN-2 IN-1 RB-1 RP-5 PRP$+1 *-2",
  "TO": "VB+3 DT+1 N+0 PRP+0 PRP$+1 CD+0 ADJ-0.5 VBD-5 VBZ-5 VBP-5 VBN-3 VBG-1"
  " WP+1 WDT+1 WRB+1 *-2",
  "MD": "VB+4 RB+1 DT+1 PRP+1 N+0 ADJ-0.5 FIN-5 VBN-4 VBG-3 *-1",
  "BE": "CD+0.5 VBN+2 VBG+1.5 ADJ+1 DT+1.5 RB+1 IN+0.5 PRP+1 N+0 FIN-5 VB-5"
  " TO+0 EX+2 PRP$+1 *-1",
  "HAVE": "CD+0.5 VBN+2.5 DT+1 N+0 ADJ+0 RB+0.5 PRP+1 FIN-5 VB-4 TO+0 *-1",
  "DO": "DT+1 N+1 PRP+1 ADJ+0.5 VB+0 RB+0.5 FIN-5 VBN-2 VBG-2 PRP$+1 *-1",
  "N": "FIN+1 POS+2 N+0.4 IN+1 TO+0.5 CC+0.5 VBN+0.2 VBG+0 VB-2 ADJ-2 RB+0"
  " CD-0.5 DT-1 RP-4 PRP-2 WDT+1.5 WP+1 WRB+0.5 EX-3 PRP$-2 *0",
  "PRP": "FIN+1.5 POS-4 VB-2 N-3 ADJ-1 IN+0 VBN-1 VBG-1 TO+0 *-1",
  "EX": "FIN+3 VB+1 *0",
  "CC": "N+0.5 DT+0.5 ADJ+0.3 VB-0.5 *0",
  "WP": "FIN+1 POS-4 N+0 ADJ+0 RB+0 VB-4 VBN-3 VBG-3 DT+0 PRP+0.5 *-1",
  "WDT": "FIN+1 N+1 ADJ+0.5 CD+0.5 VB-4 VBN-1 VBG-1 DT+0 PRP+0.5 *-1",
  "WRB": "FIN+1 POS-4 ADJ+1 RB+0.5 DT+0.5 PRP+0.5 N-0.5 TO+0 VB-4 *-1",
  "RB": "ADJ+1 VBN+1 FIN+0.5 VB+0.3 RB+0 VBG+0.3 IN+0.3 CD+0.5 N-1 *-0.5",
  "RP": "DT+1 IN+1 N+0 TO+0 FIN-3 VB-3 *0",
  "VBN": "IN+1.5 TO+1 DT+0 N+0 ADJ+0 RB+0.5 RP+1 FIN-2 VB-4 VBN-2 *0",
  "V": "DT+1 N+0.5 IN+0.7 TO+0.7 RB+0.3 ADJ+0.3 PRP+1 RP+0.7 CD+0 VBN-1 VBG-0.3"
  " PRP$+1 FIN-4 VB-4 *0",
  ".": "*0",
}
AFTER = {
  state: {
    m[1]: float(m[2]) for m in re.finditer(r"([^\s+-]+?)([+-]?[\d.]+)", row)
  }
  for state, row in _AFTER.items()
}


class WordTags:
  """Possible tags of single words, by WordNet."""

  def __init__(self, reader: WordNetReader) -> None:
    """Reads the frequencies of words in the texts that WordNet annotated."""
    self._reader = reader
    self._counts: dict[tuple[str, str], int] = {}
    with reader.open("cntlist.rev") as file:
      for line in file:
        key, _, count = line.split()
        lemma, _, sense = key.partition("%")
        pair = lemma, "nvara"[int(sense[0]) - 1]
        self._counts[pair] = self._counts.get(pair, 0) + int(count)

  def stems(self, word: str, pos: str) -> list[str]:
    """Returns WordNet's entries that a lower-case word is a form of."""
    return find_stems(word, pos, self._reader, repeat=False)

  @functools.lru_cache(maxsize=2**16)  # noqa: B019
  def weights(self, word: str) -> Mapping[str, float]:
    """Returns the possible tags of a word in lower case -> log weight."""
    if word in CLOSED:
      return dict.fromkeys(CLOSED[word], 0.0) | _PREFERRED.get(word, {})
    if not word[0].isalpha():
      return {"CD": 0.0} if any(map(str.isdigit, word)) else {"SYM": 0.0}
    counts: dict[str, float] = {}
    for pos in "nvar":
      for stem in self.stems(word, pos):
        count = 0.5 + self._counts.get((stem, pos), 0)
        for tag in _tags_of_form(word, stem, pos):
          counts[tag] = max(counts.get(tag, 0), count)
    if "-" in word and not counts.keys() & {"NN", "NNS"}:
      counts["JJ"] = counts.get("JJ", 0) + 1
    if not counts:
      tags = next(tags for end, tags in ENDINGS if word.endswith(end))
      return dict.fromkeys(tags.split(), 0.0)
    if word.endswith("ing"):
      counts.setdefault("NN", 0.3)
    total = sum(counts.values())
    return {tag: math.log(count / total) for tag, count in counts.items()}

  def likeliest(self, word: str) -> str:
    """Returns the most frequent tag of a word in lower case."""
    weights = self.weights(word)
    return max(weights, key=weights.__getitem__)

  def split_hyphens(self, word: str, tag: str) -> list[tuple[str, str]]:
    """Returns the parts of a hyphenated word and their tags, as spaCy does."""
    parts = re.split(r"(?<=\w)(-)(?=\w)", word)
    if len(parts) == 1 or tag == ":":
      return [(word, tag)]
    tagged = []
    for part in parts:
      own = self.likeliest(part.lower()).replace("VBD", "VBN")
      own = tag if tag[:3] == "NNP" else own
      tagged.append((part, "HYPH" if part == "-" else own))
    return tagged

  def lemma(self, word: str, tag: str) -> str:
    """Returns the dictionary form, in lower case unless it is a name."""
    lower = word.lower()
    if tag.startswith("NNP"):
      return word
    if tag.startswith("V") and lower in BE:
      return "be"
    pos = {"N": "n", "V": "v", "J": "a", "R": "r"}.get(tag[0])
    stems = [s for s in self.stems(lower, pos) if s != lower] if pos else []
    is_base = tag in ("NN", "JJ", "RB", "VB", "VBP") or not stems
    return lower if is_base else stems[0]


# A clause without a verb yet; after do or MD, before its base form; with one.
OPEN, NEEDS_BASE, HAS_VERB = "open", "needs base", "has verb"
# Number of subject and verb.
_DISAGREEING = frozenset(
  (("NN", "VBP"), ("NNP", "VBP"), ("NNS", "VBZ"), ("NNPS", "VBZ"))
)
_PREFERRED = {
  "that": {"IN": 0.5, "DT": 0.0, "WDT": 0.0},
  "'s": {"POS": 0.5},
  "’s": {"POS": 0.5},
  "one": {"CD": 1.0},
  "first": {"JJ": 1.0},
  "later": {"RB": 0.5},
  "about": {"IN": 1.0},
  "as": {"IN": 1.0},
  "there": {"EX": 0.0, "RB": -0.5},
}


def _tags_of_form(word: str, stem: str, pos: str) -> Sequence[str]:
  """Returns the tags of a form of a WordNet entry; pos is one of nvar."""
  if pos == "n":
    return ["NN" if word == stem or not word.endswith("s") else "NNS"]
  if pos == "r":
    return ["RB"]
  if pos == "a":
    if word != stem and word.endswith(("er", "est")):
      return ["JJR" if word.endswith("er") else "JJS"]
    return ["JJ"]
  if word == stem:
    same_past = word.endswith(("set", "put", "cut", "hit", "let", "split"))
    return ["VB", "VBP"] + (["VBD", "VBN"] if same_past else [])
  if word.endswith("ing"):
    return ["VBG"]
  if word.endswith("s") and not word.endswith("ss"):
    return ["VBZ"]
  if word in PAST:
    return ["VBD"]
  if not word.endswith("ed") and PARTICIPLE.fullmatch(word):
    return ["VBN"]
  return ["VBD", "VBN"]


def tag_sentence(words: Sequence[str], tags: WordTags) -> list[str]:
  """Returns the likeliest Penn Treebank tag of each token of a sentence."""
  best: dict[tuple[str, str], tuple[float, list[str]]] = {
    ("^", OPEN): (0.0, [])
  }
  for i, word in enumerate(words):
    lower = word.lower()
    weights = _options(words, i, tags)
    following: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for (state, clause), (score, path) in best.items():
      for tag, weight in weights.items():
        total = score + weight + _bonus(state, tag)
        total += _clause_bonus(state, clause, tag, path[-1] if path else "")
        key = _state(lower, tag), _next_clause(clause, lower, tag)
        if key not in following or total > following[key][0]:
          following[key] = total, [*path, tag]
    best = following
  _, path = max(best.values(), key=lambda pair: pair[0])
  path = _settle_participles(words, path)
  for i, tag in enumerate(path[:-1]):
    if tag == "WP" and (path[i + 1] in NOUNS or path[i + 1][0] == "J"):
      path[i] = "WDT"  # what team
    if tag in ("JJR", "JJS") and words[i].lower() in CLOSED:
      if path[i + 1] in ("JJ", "RB", "NNP"):
        path[i] = f"RB{tag[-1]}"  # most famous
  return path


def _clause_bonus(state: str, clause: str, tag: str, before: str) -> float:
  """Returns the bonus of a tag for what its clause has or needs."""
  bonus = -2.0 if (before, tag) in _DISAGREEING else 0.0
  if clause == NEEDS_BASE:
    if tag == "VB" and state in ("N", "PRP", "CD", "RB"):
      bonus += 4  # did the team WIN
    if tag in FINITE and not before.startswith("W"):
      bonus -= 2
    if tag == ".":
      bonus -= 4
  elif clause == HAS_VERB and state in ("N", "JJ"):
    bonus -= 4.0 * (tag in ("VB", "VBZ", "VBP"))  # the scavenger HUNT
  return bonus


def _next_clause(clause: str, lower: str, tag: str) -> str:
  """Returns what a clause has or needs after a token."""
  if tag == "MD" or lower in DO:
    return NEEDS_BASE
  if clause == NEEDS_BASE and tag not in ("VB", ".", ","):
    return NEEDS_BASE
  if tag in FINITE or tag == "VB":
    return HAS_VERB
  opens = tag in ("CC", ",", ":", ".", "WDT", "WP", "WRB", "''")
  return OPEN if opens or lower in ("that", "because", "if") else clause


def _options(
  words: Sequence[str], i: int, tags: WordTags
) -> Mapping[str, float]:
  """Returns the possible tags of token `i` -> log weight."""
  word = words[i]
  if word in PUNCTUATION:
    return {PUNCTUATION[word]: 0.0}
  lower = word.lower()
  is_start = i == 0 or words[i - 1] in ("``", "''", '"', "“")
  if not word[0].isupper() or word == "I":
    return tags.weights(lower)
  if is_start and (lower in CLOSED or _is_common(lower, tags)):
    return tags.weights(lower)
  if lower in CLOSED and len(word) < 5 and not word.isupper():
    return tags.weights(lower)
  weights = {"NNP": 0.0}
  if lower.endswith("s") and not word.isupper():
    singular = [s for s in tags.stems(lower, "n") if s != lower]
    known = lower in tags.stems(lower, "n")
    if singular and not known and len(singular[0]) > 2:
      weights = {"NNPS": 0.0}
  is_name = i + 1 < len(words) and words[i + 1][0].isupper()
  if tags.stems(lower, "a") and not tags.stems(lower, "v") and not is_name:
    weights["JJ"] = 0.5  # American, French
  return weights


def _is_common(lower: str, tags: WordTags) -> bool:
  """Returns whether the first word of a sentence is more than a name."""
  return (
    bool(tags.weights(lower).keys() - {"NN", "NNS", "NNP"})
    or lower.endswith("s")
    and bool(tags.stems(lower, "n"))
  )


def _state(lower: str, tag: str) -> str:
  """Returns the row of AFTER for what follows a token."""
  if tag[0] == "V" or tag == "POS":
    for state, words in (("BE", BE), ("HAVE", HAVE), ("DO", DO)):
      if lower in words and tag != "POS":
        return state
  if tag in NOUNS:
    return "N"
  if tag.startswith("JJ"):
    return "JJ"
  if tag in AFTER:
    return tag
  return "V" if tag[0] == "V" else "."


def _bonus(state: str, tag: str) -> float:
  row = AFTER[state]
  group = (
    "N"
    if tag in NOUNS
    else "ADJ"
    if tag[0] == "J"
    else "FIN"
    if tag in FINITE
    else "*"
  )
  return row.get(tag, row.get(group, row.get("*", 0.0)))


def _settle_participles(words: Sequence[str], path: list[str]) -> list[str]:
  """Decides between past tense and participle by the verbs of the clause.

  A clause has one finite verb; a second one after it is a participle (the team
  was the one *led* by ...), unless a conjunction, a comma or a WH word is
  between. A participle after a noun, in a clause without one, is finite.
  """
  tags = list(path)
  has_finite = False
  for i, tag in enumerate(tags):
    if tag in ("CC", ",", ":", "WDT", "WP", "WRB", "''") or (
      tag == "IN" and words[i].lower() in ("that", "because", "while", "if")
    ):
      has_finite = False
    elif tag == "VBD" and has_finite and words[i].lower() not in PAST:
      if words[i].lower() not in BE | HAVE | DO:
        tags[i] = "VBN"
    elif (
      tag == "VBN" and not has_finite and i and tags[i - 1] in NOUNS | {"PRP"}
    ):
      follows = words[i + 1].lower() if i + 1 < len(words) else ""
      if follows != "by" and not PARTICIPLE.fullmatch(words[i]):
        tags[i] = "VBD"
        has_finite = True
    elif tag in FINITE:
      has_finite = True
  return tags
