"""English words by class: function words, irregular verbs, endings, names."""

import re
from collections.abc import Mapping


def word_set(words: str) -> frozenset[str]:
  """Returns the words of a text."""
  return frozenset(words.split())


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
  " themselves myself one",
  "PRP$": "my your his its our their her whose",
  "POS": "'s ’s ' ’",
  "EX": "there",
  "WP": "what who whom",
  "WDT": "which that",
  "WRB": "when where why how",
  "CD": "one two three four five six seven eight nine ten eleven twelve"
  " thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty"
  " forty fifty sixty seventy eighty ninety hundred thousand million billion"
  " trillion dozen",
  "RB": "not n't n’t never also only just very too quite ever even still"
  " already often once then now here almost away again there approximately"
  " about so as else most more less out up down back together apart ago first"
  " originally later currently together",
  "RP": "out up down off over back on",
  "JJ": "many much few several other such same own first second third fourth"
  " fifth last next due able",
  "JJR": "more less fewer later",
  "JJS": "most least",
  "NN": "something anything nothing everything someone anyone everyone today",
  "NNS": "people police",
  "VBZ": "is has does 's ’s",
  "VBP": "are am have do own 're 've ’re ’ve 'm",
  "VBD": "was were had did 'd ’d",
  "VB": "be have do own",
  "VBN": "been had done",
  "VBG": "being having doing",
}
CLOSED: Mapping[str, tuple[str, ...]] = {
  word: tuple(tag for tag, words in _CLOSED.items() if word in words.split())
  for words in _CLOSED.values()
  for word in words.split()
}
BE = word_set("be is are am was were been being 're ’re 'm")
HAVE = word_set("have has had having 've ’ve")
DO = word_set("do does did")
PUNCTUATION = {
  **dict.fromkeys(".?!", "."),
  **dict.fromkeys([":", ";", "-", "--", "–", "—", "..."], ":"),
  **dict.fromkeys("([{", "-LRB-"),
  **dict.fromkeys(")]}", "-RRB-"),
  **dict.fromkeys(["``", "“", "‘"], "``"),
  **dict.fromkeys(["''", "”", '"'], "''"),
  **dict.fromkeys("$£€¥", "$"),
  "%": "NN",
  ",": ",",
  "#": "#",
}
# Past tenses that are no participles, and the reverse (irregular verbs).
PAST = word_set(
  "went saw took gave came became began ran wrote knew grew drew flew threw"
  " fell rose spoke broke chose drove rode ate sang drank swam wore tore"
  " bore forgot shook stole froze woke swore hid bit arose overcame underwent"
  " withdrew oversaw undertook fled"
)
PARTICIPLE = re.compile(".*(?:[^aeiou]n|wn|en|ne|ung|unk|um|egun)")
# Ending of words that WordNet does not know -> tags.
ENDINGS = (
  ("ly", "RB"),
  ("ing", "VBG NN"),
  ("ed", "VBD VBN JJ"),
  *dict.fromkeys(
    ("ous", "ful", "ive", "al", "ic", "able", "ible", "less", "ish", "ary"),
    "JJ",
  ).items(),
  ("ss", "NN"),
  ("s", "NNS"),
  ("", "NN"),
)

PERSON, LOCATION, ORGANIZATION = "PERSON", "LOCATION", "ORGANIZATION"
TITLES = word_set(
  "mr. mrs. ms. dr. sir lord lady king queen prince princess president pope"
  " saint emperor chancellor duke john james william george charles robert"
  " thomas henry edward david michael paul peter martin joseph richard mary"
  " elizabeth anne jane sarah margaret daniel mark stephen steven andrew"
)
_LAST_WORDS = {
  ORGANIZATION: "university college school academy institute church company"
  " corporation inc. ltd. association council committee commission agency"
  " department ministry court parliament congress senate party army navy union"
  " league club society bank museum orchestra foundation group network studios"
  " records",
  LOCATION: "river lake mount mountains street avenue road county city island"
  " islands sea ocean valley park bay gulf coast desert forest square province"
  " district kingdom republic stadium airport",
}
LAST_WORD = {
  word: kind for kind, words in _LAST_WORDS.items() for word in words.split()
}
CALENDAR = word_set(
  "january february march april may june july august september october november"
  " december monday tuesday wednesday thursday friday saturday sunday"
)
