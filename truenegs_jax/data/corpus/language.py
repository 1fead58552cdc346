"""Compares the language of a text with the one that its config declares.

py3langid (Lui and Baldwin, 2012) detects the language of excerpts.
"""

import collections
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from truenegs_jax.data.corpus.corpus import Corpus
from truenegs_jax.runtime.errors import InputError

SAMPLE_CHARACTERS = 100_000  # of all excerpts together
EXCERPT_CHARACTERS = 500  # at most
# Shorter texts are joined. In a mixture the language with more accents wins.
MIN_EXCERPT_CHARACTERS = 100
MAX_EXCERPTS_OF_TEXT = 50  # if there are many texts
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


def sample_corpus(corpus: Corpus) -> Iterator[str]:
  """Yields excerpts from the beginning of each part of a corpus."""
  for texts in corpus.read_parts():
    yield from cut_excerpts(texts, SAMPLE_CHARACTERS // len(corpus.parts))


def cut_excerpts(
  texts: Iterable[str], num_characters: int = SAMPLE_CHARACTERS
) -> Iterator[str]:
  """Yields excerpts of texts, spread over long ones, until they suffice.

  At first they are few of each text, to see many. If the texts end too early,
  more of them follow.
  """
  joined, others = "", list[str]()
  for text in texts:
    joined += f"{text}\n"
    if len(joined) < MIN_EXCERPT_CHARACTERS:
      continue
    starts = range(0, len(joined), EXCERPT_CHARACTERS)
    excerpts = [joined[i : i + EXCERPT_CHARACTERS] for i in starts]
    step = -(-len(excerpts) // MAX_EXCERPTS_OF_TEXT)
    for excerpt in excerpts[::step]:
      num_characters -= len(excerpt)
      yield excerpt
    if num_characters <= 0:
      return
    others += (x for i, x in enumerate(excerpts) if i % step)
    joined = ""
  yield joined
  step = max(1, len(others) * EXCERPT_CHARACTERS // num_characters)
  yield from others[::step]


def measure_languages(excerpts: Iterable[str]) -> dict[str, int]:
  """Returns the characters by language; text without one does not count."""
  detector, lengths = _load_detector(), collections.Counter[str]()
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
  counts = collections.Counter[str]()
  for code, length in lengths.items():
    counts[language if code in related else code] += length
  total = counts.total()
  if not language or counts[language] >= total / 2:
    return
  if related.isdisjoint(_load_detector().labels):
    say(f"warning: data.language={language!r} cannot be detected.")
    return
  common = counts.most_common(4)
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
