"""Compares the language of a text with the one that its config declares.

py3langid (Lui and Baldwin, 2012) detects the language of excerpts.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from truenegs_jax.data.corpus.corpus import Corpus
from truenegs_jax.runtime.errors import InputError

SAMPLE_CHARACTERS = 100_000  # of all excerpts together, of 10 times the text
EXCERPT_CHARACTERS = 500  # at most
# Shorter texts are joined. In a mixture the language with more accents wins.
MIN_EXCERPT_CHARACTERS = 100
MIN_CHARACTERS = 60_000  # some 10,000 words; less text is not refused
MIN_CONFIDENCE = 0.5  # less in artificial text
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
      f"data.language={language!r} is not a code of ISO 639-1 such as en. Set"
      " --config.data.language to one, or to '' for other text, without checks."
    )


def sample_corpus(corpus: Corpus) -> list[str]:
  """Returns excerpts from the beginning of each part of a corpus."""
  share = SAMPLE_CHARACTERS // len(corpus.parts)
  return [
    excerpt
    for texts in corpus.read_parts()
    for excerpt in cut_excerpts(texts, share)
  ]


def cut_excerpts(
  texts: Iterable[str], num_characters: int = SAMPLE_CHARACTERS
) -> list[str]:
  """Returns excerpts that are spread over the beginning of some texts."""
  excerpts = []
  joined = ""
  size = 0
  for text in texts:
    joined += f"{text}\n"
    if len(joined) < MIN_EXCERPT_CHARACTERS:
      continue
    starts = range(0, len(joined), EXCERPT_CHARACTERS)
    excerpts += [joined[i : i + EXCERPT_CHARACTERS] for i in starts]
    size += len(joined)
    joined = ""
    if size >= 10 * num_characters:
      break
  return [*excerpts, joined][:: max(1, size // num_characters)]


def measure_languages(excerpts: Iterable[str]) -> dict[str, int]:
  """Returns the characters by language; text without one does not count."""
  detector = _load_detector()
  lengths = collections.Counter[str]()
  for excerpt in excerpts:
    code, _ = detector.classify(excerpt)
    if code not in NO_LANGUAGE:
      lengths[code] += len(excerpt)
  return dict(lengths)


def check_language(
  lengths: Mapping[str, int], language: str, say: Callable[[str], None]
) -> None:
  """Refuses a text mostly in another language; warns where it is unsure."""
  related = next((x for x in RELATED if language in x), frozenset({language}))
  total = sum(lengths.values())
  declared = sum(n for code, n in lengths.items() if code in related)
  if not language or declared >= total / 2:
    return
  if related.isdisjoint(_load_detector().labels):
    say(f"warning: data.language={language!r} cannot be detected.")
    return
  common = collections.Counter(lengths).most_common(4)
  shares = ", ".join(f"{n / total:.0%} {code}" for code, n in common)
  problem = (
    f"data.language={language!r}, but the text of data.sources looks like"
    f" {shares}. Set --config.data.language={common[0][0]}, or to '' for no"
    " check."
  )
  if total >= MIN_CHARACTERS:
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
