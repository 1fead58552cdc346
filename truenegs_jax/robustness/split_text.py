"""Splits English text into sentences of tokens, near the Penn Treebank's rules.

Hyphenated words and abbreviations (`U.S.`) stay whole; punctuation, currency
signs and the endings n't, 's, 're, 've, 'll, 'd, 'm are tokens of their own.
"""

import re

TOKEN = re.compile(
  r"""
    (?:[A-Z]\.)+(?:[A-Z]\.|[A-Z]\b) | [ap]\.m\.        # U.S.  U.S  p.m.
  | \d+[A-Za-z]+\b                                   # 720p
  | (?:Mr|Mrs|Ms|Dr|St|Jr|Sr|Prof|Gen|Col|Capt|Gov|Sen|Rep|Rev|Inc|Ltd|Co|Corp
      |vs|etc|Mt|Ft|Lt|No(?=\.\s*\d)|i\.e|e\.g)\.
  | [A-Z]\.(?=\s+[A-Z])                               # the J. of J. Smith
  | \d+(?:[.,:/–⁄]\d+)*(?:st|nd|rd|th|s)?(?![A-Za-z])   # 1,000.5  21st  1990s
  | (?:can(?=not\b))
  | \w+?(?=n['’]t\b) | n['’]t\b
  | ['’](?:s|S|re|ve|ll|d|m)\b
  | \w+(?:[-–'’&./](?!(?:s|S|re|ve|ll|d|m|t)\b)\w+)*  # words, well-known, AT&T
  | \.\.\.+ | -- | `` | ''
  | \S
  """,
  re.VERBOSE,
)
ENDS = (".", "?", "!", "...")
CLOSERS = ('"', "''", "”", "’", "'", ")", "]")

# Index of the first character and of the one after the last.
Span = tuple[int, int]


def split_sentences(text: str) -> list[list[Span]]:
  """Returns the tokens of each sentence. Only white space is in no token.

  A sentence ends with one of ENDS, or an abbreviation such as `U.S.` does not
  end it, before a capital, a digit, a quote or the end of the text; or it ends
  at an empty line.
  """
  sentences: list[list[Span]] = [[]]
  ended = False
  previous_end = 0
  for match in TOKEN.finditer(text):
    word, gap = match[0], text[previous_end : match.start()]
    starts = gap and (
      word[0].isupper() or word[0].isdigit() or word[0] in "\"'“‘(["
    )
    if sentences[-1] and (ended and starts or gap.count("\n") > 1):
      sentences.append([])
      ended = False
    ended = word in ENDS or ended and word in CLOSERS
    sentences[-1].append(match.span())
    previous_end = match.end()
  return sentences if sentences[-1] else []
