"""Guesses Penn Treebank tags and lemmas by rules, for want of a trained tagger.

Function words, WordNet (parts of speech with their frequencies), endings and
capitals give each token its possible tags; the likeliest sequence follows from
a small table of which tag goes after which.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence

from truenegs_jax.data.corpus.sources import WordNetReader
from truenegs_jax.synonyms.wordnet import find_stems

_CLOSED = {
  "DT": "the a an this that these those each every some any no another both"
  " either neither all half",
  "IN": "of in on at by for with from about against between into through during"
  " before after above under over within without among amongst upon toward"
  " towards across along around behind beside besides beyond despite except"
  " inside like near off onto outside per past since than throughout till until"
  " unlike via whether while because if although though unless as amid beneath"
  " concerning regarding below that due",
  "TO": "to",
  "CC": "and or but nor & plus",
  "MD": "can could may might must shall should will would ca wo cannot 'll",
  "PRP": "i you he she it we they me him us them himself herself itself"
  " themselves myself",
  "PRP$": "my your his its our their her",
  "POS": "'s ’s ' ’",
  "EX": "there",
  "WP": "what who whom",
  "WP$": "whose",
  "WDT": "what which that",
  "WRB": "when where why how",
  "CD": "one two three four five six seven eight nine ten eleven twelve"
  " thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty"
  " forty fifty sixty seventy eighty ninety hundred thousand million billion"
  " trillion dozen",
  "RB": "not n't n’t also only just even still once now here out"
  " up down off back more less first",
  "RBS": "most least",
  "RP": "out up down off over back on",
  "JJ": "many much few several other such same own first last next",
  "JJR": "more less fewer",
  "VBZ": "is has does 's ’s",
  "VBP": "are am have do own 're 've ’re ’ve 'm",
  "VBD": "was were had did 'd ’d",
  "VB": "be have do own",
  "VBN": "been had done",
  "VBG": "being having doing",
  ".": ". ? !",
  ",": ",",
  ":": ": ; - -- – — ...",
  "-LRB-": "( [ {",
  "-RRB-": ") ] }",
  "``": "`` “ ‘",
  "''": "'' ” \"",
  "$": "$ £ € ¥",
  "NN": "%",
  "NNS": "people",
}
CLOSED: dict[str, dict[str, float]] = {}
for _tag, _words in _CLOSED.items():
  for _word in _words.split():
    CLOSED.setdefault(_word, {})[_tag] = 0.0
_AUXILIARIES = """
be is are am was were been being have has had having do does did 's ’s
"""
AUXILIARIES = frozenset(_AUXILIARIES.split())
FINITE = ("VBD", "VBZ", "VBP", "MD")
_GROUPS = {
  "N": "NN NNS NNP NNPS",
  "ADJ": "JJ JJR JJS",
  "FIN": " ".join(FINITE),
  "DT": "PRP PRP$ WP$ POS EX",
  "RB": "RBR RBS",
  "W": "WP WDT WRB",
}
GROUP = {t: group for group, tags in _GROUPS.items() for t in tags.split()}
# Tag or group, or AUX for an auxiliary -> bonus of each next tag: its own, else
# its group's, else that of *.
_AFTER = {
  "DT": "N+2 ADJ+1.5 CD+1 VBN+0.5 VBG+0 RB-1 *-4",
  "ADJ": "N+2 ADJ+0.5 CC+0 IN+0 TO+0.5 FIN-2.5 VB-4 *-1",
  "CD": "N+1.5 ADJ+0.5 IN+0.5 FIN-1 VB-3",
  "IN": "N+1 DT+1 W+1 ADJ+0.5 CD+0.5 VBG+0.5 RB-1 IN-1 FIN-4 VB-5 *-2",
  "TO": "VB+3 DT+1 W+1 N+0 CD+0 ADJ-0.5 FIN-5 *-2",
  "MD": "VB+4 RB+1 DT+1 N+0 FIN-5 *-1",
  "AUX": "EX+2 VBN+2 VBG+1.5 DT+1.5 ADJ+1 RB+1 CD+0.5 IN+0.5 N+0 FIN-5 VB-5"
  " *-1",
  "N": "FIN+1 VBP-1 POS+2 IN+1 W+1 N+0.4 TO+0.5 CC+0.5 DT-1 ADJ-2 VB-2 RP-4",
  "PRP": "FIN+1.5 IN+0 N-3 *-1",
  "EX": "FIN+3 VB+1",
  "WDT": "N+0.1 ADJ+0.1 CD+0.1 FIN+0.1 DT+0 VB-4 *-1",
  "W": "FIN+1 RB+0.5 DT+0.5 N+0 ADJ+0 POS-4 VB-4 *-1",
  "RB": "ADJ+1 VBN+1 FIN+0.5 VB+0.3 IN+0.3 N-1 *-0.5",
  "VBN": "IN+1.5 TO+1 RP+1 VB-4 FIN-2",
  "FIN": "DT+1 N+0.5 IN+0.7 TO+0.7 RP+0.7 VBN-1 VB-4 FIN-4",
}
_AFTER["NNS"] = f"{_AFTER['N']} VBP+1 VBZ-1"
_AFTER |= dict.fromkeys(("VB", "VBG"), _AFTER["FIN"])
AFTER = {
  state: {
    tag: float(bonus) for tag, bonus in re.findall(r"(\S+?)([+-]\S+)", row)
  }
  for state, row in _AFTER.items()
}
# A clause without a verb yet; after do or MD, before its base form; with one.
OPEN, NEEDS_BASE, HAS_VERB = "open", "needs base", "has verb"
# Ending of words that WordNet does not know -> tags.
ENDINGS = {
  "ly": "RB",
  "ing": "VBG NN",
  "ed": "VBD VBN JJ",
  "ss": "NN",
  "s": "NNS",
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
      return CLOSED[word]
    if not word[0].isalpha():
      return {"CD": 0.0} if any(map(str.isdigit, word)) else {"SYM": 0.0}
    counts: dict[str, float] = {}
    for pos in "nvar":
      for stem in self.stems(word, pos):
        count = 0.5 + self._counts.get((stem, pos), 0)
        for tag in _tags_of_form(word, stem, pos):
          counts[tag] = max(counts.get(tag, 0), count)
    if not counts:
      tags = next((ENDINGS[e] for e in ENDINGS if word.endswith(e)), "NN")
      counts = dict.fromkeys(tags.split(), 1.0)
    total = sum(counts.values())
    return {tag: math.log(count / total) for tag, count in counts.items()}

  def likeliest(self, word: str) -> str:
    """Returns the most frequent tag of a word in lower case."""
    weights = self.weights(word)
    return max(weights, key=weights.__getitem__)

  def split_hyphens(self, word: str, tag: str) -> list[tuple[str, str]]:
    """Returns the parts of a hyphenated word and their tags, as spaCy does."""
    parts = re.split(r"(?<=\w)(-)(?=\w)", word)
    if len(parts) == 1 or tag.startswith("NNP"):
      return [(part, "HYPH" if part == "-" else tag) for part in parts]
    own = {":": "HYPH", "VBD": "VBN"}  # gold-trimmed
    tags = [self.likeliest(part.lower()) for part in parts]
    return [(p, own.get(t, t)) for p, t in zip(parts, tags, strict=True)]

  def lemma(self, word: str, tag: str) -> str:
    """Returns the dictionary form, in lower case unless it is a name."""
    pos = {"N": "n", "V": "v", "J": "a", "R": "r"}.get(tag[0], "")
    if tag.startswith("NNP") or not pos:
      return word if pos else word.lower()
    return [*self.stems(word.lower(), pos), word.lower()][0]


def _tags_of_form(word: str, stem: str, pos: str) -> Sequence[str]:
  """Returns the tags of a form of a WordNet entry; pos is one of nvar."""
  is_stem = word == stem
  if pos == "n":
    return ["NN" if is_stem or not word.endswith("s") else "NNS"]
  if pos == "r":
    return ["RB"]
  if pos == "a":
    degree = "" if is_stem else {"r": "R", "t": "S"}.get(word[-1], "")
    return [f"JJ{degree}"]
  if is_stem:
    return ["VB", "VBP"]
  if word.endswith("ing"):
    return ["VBG"]
  return ["VBZ"] if word.endswith("s") else ["VBD", "VBN"]


def tag_sentence(words: Sequence[str], tags: WordTags) -> list[str]:
  """Returns the likeliest Penn Treebank tag of each token of a sentence."""
  # (row of AFTER, clause) -> score and tags of the best beginning.
  best: dict[tuple[str, str], tuple[float, list[str]]] = {("", OPEN): (0.0, [])}
  for i, word in enumerate(words):
    lower = word.lower()
    options = _options(words, i, tags)
    following: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for (state, clause), (score, path) in best.items():
      for tag, weight in options.items():
        total = score + weight + _bonus(state, clause, tag)
        key = _state(lower, tag), _next_clause(clause, lower, tag)
        if key not in following or total > following[key][0]:
          following[key] = total, [*path, tag]
    best = following
  return max(best.values(), key=lambda pair: pair[0])[1]


def _state(lower: str, tag: str) -> str:
  """Returns the row of AFTER for what follows a token."""
  if lower in AUXILIARIES and tag[0] == "V":
    return "AUX"
  return tag if tag in AFTER else GROUP.get(tag, "")


def _bonus(state: str, clause: str, tag: str) -> float:
  """Returns the bonus of a tag after a state and for what its clause needs."""
  row = AFTER.get(state, {})
  bonus = row.get(tag, row.get(GROUP.get(tag, ""), row.get("*", 0.0)))
  if clause == NEEDS_BASE:
    if tag == "VB" and state in ("N", "NNS", "PRP", "CD", "RB"):
      return bonus + 4  # did the team WIN
    is_relative = state in ("W", "WDT")  # did the man who DIED
    return bonus - 4 * (tag == "." or tag in FINITE and not is_relative)
  if clause == HAS_VERB and state in ("N", "NNS", "ADJ"):
    bonus -= 4 * (tag in ("VB", "VBZ", "VBP"))  # the scavenger HUNT
  return bonus - 3 * (clause == HAS_VERB and tag == "VBD")  # the one LED by


def _next_clause(clause: str, lower: str, tag: str) -> str:
  """Returns what a clause has or needs after a token."""
  if tag == "MD" or lower in ("do", "does", "did"):
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
  word, lower = words[i], words[i].lower()
  known = tags.weights(lower)
  is_closed = lower in CLOSED and len(word) < 5 and not word.isupper()
  if not word[0].isupper() or word == "I" or is_closed:
    return known
  if i == 0 and (lower in CLOSED or known.keys() - {"NN", "NNS"}):
    return known
  nouns = tags.stems(lower, "n")
  if i == 0 and lower.endswith("s") and nouns:
    return known
  is_plural = lower.endswith("s") and nouns and lower not in nouns
  name = "NNPS" if is_plural and not word.isupper() else "NNP"
  is_name = i + 1 < len(words) and words[i + 1][0].isupper()
  if tags.stems(lower, "a") and not tags.stems(lower, "v") and not is_name:
    return {name: 0.0, "JJ": 0.5}  # American, French
  return {name: 0.0}
