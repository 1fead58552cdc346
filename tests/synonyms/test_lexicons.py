"""Tests readers of pairs, lists, PPDB, MyThes and Open Multilingual WordNet."""

import gzip
import itertools
import lzma

import pytest

from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.vocabulary import Vocabulary

WORDS = ["big", "large", "house", "home", "villa", "été", "Rome", "rome", "."]
TOKENS = ["[PAD]", *WORDS, "##home"]
PAIRS = [
  ("big", "large"),
  ("house", "home"),
  ("house", "villa"),
  ("home", "house"),
  ("été", "."),
]
# Readers drop these.
DROPPED_PAIRS = [
  ("big", "very large"),
  ("summer_house", "villa"),
  ("big", "huge"),
  ("##home", "[PAD]"),
  ("home", "##home"),
  ("Rome", "rome"),
  ("HOUSE", "Villa"),
  ("house", "house"),
  ("été", "ete"),
]
EXPECTED = sorted(PAIRS, key=lambda pair: (TOKENS.index(pair[0]), pair[1]))


@pytest.fixture
def write(tmp_path):
  def write_file(content, name="pairs.txt"):
    path = tmp_path / name
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(data)
    return str(path)

  return write_file


def read(path, source="pairs", tokens=TOKENS, normalize=str, **options):
  vocabulary = Vocabulary(tokens, normalize)
  return list(sources.SOURCES[source](vocabulary, path=path, **options))


def group_by_word(pairs):
  synonyms = {}
  for word, synonym in pairs:
    synonyms.setdefault(word, []).append(synonym)
  return synonyms


def format_tsv(pairs):
  return "".join(f"{word}\t{synonym}\n" for word, synonym in pairs)


def format_lists(pairs):
  lists = group_by_word(pair for pair in pairs if " " not in "".join(pair))
  return "".join(f"{w} {' '.join(names)}\n" for w, names in lists.items())


def format_ppdb(pairs):
  other_fields = "PPDB2.0Score=3.1 Agigasim=0.2 ||| 0-0 ||| Equivalence"
  return "".join(f"[NN] ||| {a} ||| {b} ||| {other_fields}\n" for a, b in pairs)


FORMATTERS = {
  "table.tsv": format_tsv,
  "lists": format_lists,
  "ppdb-2.0-s-lexical": format_ppdb,
}


@pytest.mark.parametrize("name", FORMATTERS)
def test_every_format_yields_the_pairs_of_the_vocabulary(write, name):
  for order in (1, -1):
    content = FORMATTERS[name]((PAIRS + DROPPED_PAIRS)[::order])
    assert read(write(content, name)) == EXPECTED
  compressed = gzip.compress(content.encode())
  assert read(write(compressed, f"{name}.gz")) == EXPECTED
  with pytest.raises(DataError, match="damaged or cut off"):
    read(write(compressed[:-10], f"{name}.gz"))
  for variant in (
    content.replace("\n", "\r\n"),
    "\n \n" + content.replace("\n", "\n\n"),
    content.removesuffix("\n"),
    "\ufeff" + content,
  ):
    assert read(write(variant, name)) == EXPECTED


FRENCH = """# WOLF\tfra\thttp://wolf.example.org\tCeCILL-C
02958343-n\tfra:lemma\tvoiture
02958343-n\tfra:lemma\tauto
02958343-n\tfra:lemma\tvéhicule à moteur
02958343-n\tfra:lemma\tautomobile
02958343-n\tfra:def\t0\tun véhicule
02958343-n\tfra:exe\t0\tune belle voiture

00774344-r\tfra:lemma\tauto
00774344-r\tfra:lemma\tseul
01835496-v\tlemma\taller
01835496-v\tlemma\tse_déplacer
01835496-v\tlemma\tmarcher
01835496-v\tfra:lemma:root\tété
00217728-a\tfra:lemma\tbeau
00217728-a\tfra:lemma\tÉlégant
00217729-s\tfra:lemma\tjoli
00217729-s\tfra:lemma\tbeau
15236475-n\tfra:lemma\tété
15236475-n\tfra:lemma\tété
"""
FRENCH_WORDS = ["voiture", "auto", "automobile", "seul", "aller", "marcher"]
FRENCH_WORDS += ["été", "beau", "élégant", "joli"]
SYNSETS = [
  {"voiture", "auto", "automobile"},
  {"aller", "marcher"},
  {"beau", "joli"},
  {"beau", "élégant"},
  {"auto", "seul"},
]


def test_words_that_share_a_synset_are_synonyms(write):
  tokens = ["[CLS]", *FRENCH_WORDS]
  pairs = read(write(FRENCH, "wn-data-fra.tab"), "omw", tokens)
  expected = set()
  for synset in SYNSETS:
    expected.update(itertools.permutations(synset, 2))
  assert pairs == sorted(expected, key=lambda p: (tokens.index(p[0]), p[1]))


# Accents and case, as a tokenizer writes them.

ACCENTED = ["réel véritable vrai", "Maison demeure", "élève étudiant"]
NUM_ACCENTED = 6 + 2 + 2  # pairs in both directions
STRIPPED = str.maketrans("éèô", "eeo")


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_entries_are_compared_as_the_tokenizer_writes_them(
  write, lowercase, strip
):
  words = " ".join(ACCENTED).translate(STRIPPED if strip else {})
  words = words.lower() if lowercase else words
  tokenizer = make_tokenizer(
    [*SPECIALS, *words.split()], lowercase=lowercase, strip_accents=strip
  )
  lists = [itertools.permutations(text.split(), 2) for text in ACCENTED]
  path = write(format_tsv(itertools.chain(*lists)))
  pairs = read(path, "pairs", tokenizer.vocab, tokenizer.normalize)
  assert len(set(pairs)) == NUM_ACCENTED


def test_words_with_accents_stand_for_no_stop_word(write):
  path = write("vrai\tsûr\nvrai\tréel\nvrai\tsur\nréel\tsûr\n")
  tokens = ["vrai", "reel", "sur"]
  stripped = make_tokenizer([*SPECIALS, *tokens], lowercase=True)
  vocabulary = Vocabulary(tokens, stripped.normalize, no_neighbours={"sur"})
  pairs = sources.pairs(vocabulary, path=path)
  assert list(pairs) == [("vrai", "reel"), ("vrai", "sur")]


# MyThes.

MYTHES = """big|2
(adj)|large|very large|House (generic term)|home (antonym)|été (similar term)
(adv)|villa (coll.)|. (ugs., derb)|Rome (Hauptform) (Oberbegriff) (ugs.)
rome|1
-|Rome|house|||
(antonyms)|0
villa|1
(антоним)|big|home
home|1
(noun)|HOUSE (Hauptform)
a|b|1
(noun)|house
"""
MYTHES_PAIRS = [("big", "."), ("big", "large"), ("big", "villa")]
MYTHES_PAIRS += [("home", "house"), ("Rome", "house"), ("rome", "house")]


@pytest.mark.parametrize("encoding", ["UTF-8", "microsoft-cp1252"])
def test_mythes_is_read_in_its_encoding(write, encoding):
  text = MYTHES.replace("антоним", "Antónimo").replace("villa", "été")
  codec = encoding.removeprefix("microsoft-")
  content = f"{encoding}\n{text}".encode(codec)
  expected = [("big", "."), ("big", "large"), ("big", "été")] + MYTHES_PAIRS[3:]
  path = write(content, "th.dat")
  assert sorted(read(path)) == sorted(expected)
  crlf = content.replace(b"\n", b"\r\n")
  assert read(write(crlf, "th.txt")) == read(path)
  assert read(write(content.rstrip(), "th")) == read(path)
  assert read(write(lzma.compress(content), "th.dat.xz")) == read(path)


def format_group(words, source):
  """Writes one group, and the synonyms *big* and *large*."""
  if source == "omw":
    lemmas = [f"00000001-n\tlemma\t{word}\n" for word in words]
    return "".join(lemmas) + FRENCH
  cases = map("".join, itertools.product(*zip("villas", "VILLAS", strict=True)))
  return "\n".join(
    ["UTF-8", "big|1", "-|large", "villas|1", "|".join(["-", *cases, *words])]
  )


@pytest.mark.parametrize("source", ["omw", "pairs"])
def test_large_groups_cost_their_words_in_the_vocabulary(
  write, source, monkeypatch
):
  monkeypatch.setattr(sources, "MAX_PAIRS", 1000)
  words = [f"word{i}" for i in range(30_000)]  # 900 million pairs
  path = write(format_group(words, source))
  tokens = [*FRENCH_WORDS, "big", "large"]
  assert len(read(path, source, tokens)) == {"omw": 14, "pairs": 1}[source]
  # Of 40 words with 40 others each, or of one word with 1,001.
  words = words[: {"omw": 40, "pairs": 1001}[source]]
  with pytest.raises(DataError, match="more than 1,000 pairs of words"):
    read(path, source, [*words, "villas"])


@pytest.mark.slow
def test_pairs_of_ppdb_for_berts_vocabulary(real_data):
  vocab_file = real_data / "vocab" / "bert-base-uncased-vocab.txt.xz"
  bert = lzma.decompress(vocab_file.read_bytes()).decode().split("\n")[:-1]
  path = str(real_data / "optional" / "ppdb-xl.txt.xz")
  normalize = make_tokenizer(bert, lowercase=True).normalize
  pairs = read(path, tokens=bert, normalize=normalize)
  assert len(pairs) == 106_350
  assert len({word for word, _ in pairs}) == 18_278
  assert {("primary", "main"), ("house", "homes")} <= set(pairs)
