"""Tests which words of a vocabulary and of a text are said to have synonyms."""

import numpy as np
import pytest

from support import mini_wordnet
from truenegs_jax.data.tokens.tokenizer import SPECIALS
from truenegs_jax.synonyms import run_table, wordnet
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import may_have_synonyms

WORDS = ("the", "house", "homes", "took", "fish", "cat", "7", ".", "in")
TOKENS = (*SPECIALS, *WORDS, "##s")
TABLE = SynonymTable.from_pairs(
  [("house", "cat"), ("homes", "cat")], TOKENS, source="x"
)
PAIRS = TableRequest("pairs path=x.tsv", key="a.key")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache" / "synonyms"


def count(**occurrences):
  """Returns counts_V of words, and 50 of everything that is not counted."""
  counts_V = np.zeros(len(TOKENS), int)
  for word in (*SPECIALS, "the", "7", ".", "in", "##s"):
    counts_V[TOKENS.index(word)] = 50
  for word, number in occurrences.items():
    counts_V[TOKENS.index(word)] = number
  return counts_V


def test_symbols_pieces_and_stop_words_are_no_words_of_a_text():
  counts_V = count(house=3, homes=2, fish=1, cat=4)
  counted_V = may_have_synonyms(TOKENS, stop_words={"the", "in"})
  text = run_table.measure_text(TABLE, TOKENS, counts_V * counted_V)
  assert text == (0.5, ["cat", "fish"])  # "took" does not occur
  counted_V = may_have_synonyms(TOKENS, stop_words={"cat", "house"})
  text = run_table.measure_text(TABLE, TOKENS, counts_V * counted_V)
  assert text == (pytest.approx(2 / 103), ["the", "in", "fish"])
  assert run_table.measure_text(TABLE, TOKENS, counts_V * 0) == (1, [])


def test_a_small_share_of_a_text_is_warned_of_with_what_to_set(tmp_path):
  lines, warning = run_table.describe_coverage(
    PAIRS, TABLE, TOKENS, count(house=3, cat=7)
  )
  assert not warning and lines.keys() == {"text"}
  assert lines["text"].startswith("30.0%") and lines["text"].endswith(": cat")
  few = count(house=2, cat=6, fish=1)
  _, warning = run_table.describe_coverage(PAIRS, TABLE, TOKENS, few)
  for words in ("a.key='pairs path=x.tsv'", "22.2%", "none for cat, fish."):
    assert words in warning
  (tmp_path / "stops").write_text("cat\n")
  own = TableRequest(PAIRS.sources, stop_words=str(tmp_path / "stops"))
  lines, _ = run_table.describe_coverage(own, TABLE, TOKENS, few)
  assert lines["text"].endswith("without: the, in, fish")
  # A resumed run may have lost its list of stop words.
  lost = TableRequest(PAIRS.sources, stop_words=str(tmp_path / "lost"))
  assert (
    "22.2%" in run_table.describe_coverage(lost, TABLE, TOKENS, few)[0]["text"]
  )


def test_synsets_are_counted_once_per_wordnet(tmp_path, cache, monkeypatch):
  folder = mini_wordnet.write_wordnet(tmp_path / "wordnet")
  request = TableRequest(f"pairs path=x | wordnet pos=n folder={folder}")
  opened, session = [], wordnet.session
  monkeypatch.setattr(
    wordnet, "session", lambda path: opened.append(path) or session(path)
  )

  def describe(request=request):
    return run_table.describe_coverage(request, TABLE, TOKENS)[0].get(
      "in WordNet"
    )

  # house, homes, took and in; the stop word "in" is Indiana.
  line = describe()
  assert line.startswith("4 tokens have a synset: 26.67%")
  assert "3 are no stop words: 20.00%" in line
  assert describe() == line and opened == [str(folder)]
  [file] = cache.iterdir()
  file.write_bytes(file.read_bytes()[:-5])
  assert describe() == line and len(opened) == 2
  (folder / "verb.exc").write_text("")  # "took" has no lemma any more
  assert describe().startswith("3 tokens") and len(opened) == 3
  (folder / "index.noun").write_text("damaged\n")
  assert describe() is None
  assert describe(TableRequest("wordnet folder=none")) is None
  assert describe(PAIRS) is None
