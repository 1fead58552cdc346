"""Compares the language of a text with the one that its config declares.

py3langid (a naive Bayes classifier of byte n-grams; Lui and Baldwin, 2012)
detects the language of excerpts.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from truenegs_jax.data.corpus.corpus import Corpus
from truenegs_jax.runtime.errors import InputError

SAMPLE_CHARACTERS = 100_000  # of all excerpts together
EXCERPT_CHARACTERS = 500  # at most
# Shorter texts are joined. In a mixture the language with more accents wins.
MIN_EXCERPT_CHARACTERS = 100
MAX_EXCERPTS_OF_TEXT = 50
MIN_CHARACTERS = 60_000  # some 10,000 words; less text is not refused
MIN_CONFIDENCE = 0.5  # less in artificial text
MAX_MINORITY = 0.2  # share of other languages that is not reported
NO_LANGUAGE = ("zxx", "und")  # numbers; below MIN_CONFIDENCE
# Languages that a detector confuses: each passes as any other of its group.
RELATED = (
  frozenset({"bs", "hr", "sr"}),
  frozenset({"da", "nb", "nn", "no"}),
  frozenset({"gl", "pt"}),
  frozenset({"id", "ms"}),
)


def check_code(language: str) -> None:
  """Raises InputError unless `data.language` is "" or a code of ISO 639-1."""
  if language in ("", "en"):
    return
  from nltk.langnames import iso639long  # slow to import

  if language not in iso639long:
    raise InputError(
      f"data.language={language!r} is not a code of ISO 639-1. Set"
      " --config.data.language to a code such as en, fr or de, or to '' for"
      " text that is not checked and has no default lexicon."
    )


def sample_corpus(corpus: Corpus) -> Iterator[str]:
  """Yields excerpts from the beginning of each part of a corpus."""
  for texts in corpus.read_parts():
    yield from cut_excerpts(texts, SAMPLE_CHARACTERS // len(corpus.parts))


def cut_excerpts(
  texts: Iterable[str], num_characters: int = SAMPLE_CHARACTERS
) -> Iterator[str]:
  """Yields at least `num_characters` of the texts, spread over long ones."""
  joined = ""
  for text in texts:
    joined += f"{text}\n"
    if len(joined) < MIN_EXCERPT_CHARACTERS:
      continue
    step = max(EXCERPT_CHARACTERS, len(joined) // MAX_EXCERPTS_OF_TEXT)
    for start in range(0, len(joined), step):
      excerpt = joined[start : start + EXCERPT_CHARACTERS]
      num_characters -= len(excerpt)
      yield excerpt
    if num_characters <= 0:
      return
    joined = ""
  yield joined


def check_language(
  excerpts: Iterable[str], language: str, say: Callable[[str], None]
) -> None:
  """Checks that most of a text is in a language, by excerpts of it.

  Excerpts without a language, such as numbers, do not count. Says a warning if
  more than MAX_MINORITY is in other languages, but the text is too short to be
  refused or mostly in this one.
  """
  if not language:
    return
  related = next((x for x in RELATED if language in x), frozenset({language}))
  detector = _load_detector()
  if related.isdisjoint(detector.labels):
    say(f"warning: data.language={language!r} cannot be detected.")
    return
  lengths: collections.Counter[str] = collections.Counter()
  clearest: dict[str, tuple[float, str]] = {}
  for excerpt in excerpts:
    code, confidence = detector.classify(excerpt)
    if code in NO_LANGUAGE:
      continue
    code = language if code in related else code
    lengths[code] += len(excerpt)
    clearest[code] = max(clearest.get(code, (0.0, "")), (confidence, excerpt))
  total = max(1, lengths.total())
  others = [code for code, _ in lengths.most_common() if code != language]
  if sum(lengths[code] for code in others) <= MAX_MINORITY * total:
    return
  shares = [f"{n / total:.0%} {code}" for code, n in lengths.most_common(4)]
  example = " ".join(clearest[others[0]][1].split())[:80]
  problem = (
    f"data.language={language!r}, but the text of data.sources looks like"
    f" {', '.join(shares)}; {others[0]} is '{example} ...'. Set"
    f" --config.data.language={others[0]}, or to '' for no check."
  )
  if lengths[language] < total / 2 and total >= MIN_CHARACTERS:
    raise InputError(problem)
  say(f"warning: {problem}")


@functools.cache
def _load_detector() -> Any:
  """Returns a `LanguageIdentifier` of languages with a code of ISO 639-1."""
  from py3langid import langid  # takes half a second to load

  detector = langid.LanguageIdentifier.from_model_file(
    langid.MODEL_FILE, norm_probs=True, min_confidence=MIN_CONFIDENCE
  )
  codes = [x for x in detector.labels if len(x) == 2 or x in NO_LANGUAGE]
  detector.set_languages(codes)
  return detector
