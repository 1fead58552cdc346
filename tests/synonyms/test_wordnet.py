"""Tests WordNet's synonyms, its download, and places with a damaged one."""

import os
import shutil

import nltk
import nltk.downloader
import pytest

from support.mini_wordnet import write_wordnet
from truenegs_jax.runtime.errors import DataError, UnavailableError
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.vocabulary import Vocabulary

TOKENS = ["[PAD]", "[house]", "house", "houses", "home", "firm", "lodge", "in"]
TOKENS += ["indiana", "category", "stay", "take", "took", "##house", "good"]
TOKENS += ["dependable"]


@pytest.fixture
def mini(cached, tmp_path):
  nltk.data.path.append(str(tmp_path))
  return write_wordnet(tmp_path / "corpora" / "wordnet")


@pytest.fixture
def reader(mini):
  return wordnet.open_wordnet()


def find_pairs(reader, tokens=TOKENS, **options):
  return set(wordnet.find_pairs(Vocabulary(tokens), reader, **options))


# Synonyms.


@pytest.mark.parametrize(
  "word, pos, names",
  [
    ("House", "nvar", "business_firm firm home house lodge"),
    ("house", "v", "house lodge"),
    ("zebra", "nvar", ""),
    ("took", "nvar", "assume take"),
    ("stayss", "nvar", "remain stay"),  # two endings removed
  ],
)
def test_lemma_names_are_the_union_of_all_synsets(reader, word, pos, names):
  lemmas = wordnet.find_lemma_names(word, reader, pos=pos)
  assert lemmas == tuple(names.split())


def test_pairs_have_wordnets_direction_and_match_without_case(reader):
  pairs = find_pairs(reader)
  assert {("house", "lodge"), ("houses", "house"), ("in", "indiana")} <= pairs
  assert ("house", "houses") not in pairs
  assert ("in", "Indiana") in find_pairs(reader, ["in", "Indiana"])


def test_only_the_first_senses_of_both_words_count(reader):
  def find(word, **options):
    return {b for a, b in find_pairs(reader, **options) if a == word}

  # *firm* is the first sense of *house*, *home* its second, and *lodge* the
  # first of the verb. All are first senses of the other words.
  assert find("house", senses=1) == {"firm", "lodge"}
  assert find("home", senses=1) == set()  # the second of *house*
  assert find("firm", senses=1) == {"house"}
  assert find("good", senses=1) == {"dependable"}
  assert find("house", senses=2) == find("house") == {"firm", "home", "lodge"}
  assert find("home", senses=2) == {"house"}


# Places.


def test_debians_package_without_lexnames_is_read(mini, reader):
  (mini / "lexnames").unlink()
  wordnet._read_wordnet.cache_clear()
  other = wordnet.open_wordnet()
  assert other is not reader
  assert find_pairs(other) == find_pairs(reader)


@pytest.mark.parametrize("name, keep", [("index.verb", 45), ("data.noun", 40)])
def test_damaged_files_are_reported(mini, name, keep):
  content = (mini / name).read_bytes()
  (mini / name).write_bytes(content[:keep])
  with pytest.raises(DataError, match=f"damaged.*'{mini}'.*Run .* wordnet"):
    wordnet.open_wordnet()


# The command.


class Downloader:
  """Stands in for NLTK's: unpacks nothing, and compares with checksums."""

  content = b""  # of the server's file; empty if it cannot be reached

  def download(self, package, *, download_dir, **options):
    assert package == "wordnet"
    assert options["raise_on_error"] and options["force"]
    if not self.content:
      raise ValueError("Error loading wordnet: no server")
    os.makedirs(f"{download_dir}/corpora", exist_ok=True)
    with open(f"{download_dir}/corpora/wordnet.zip", "wb") as file:
      file.write(self.content)


@pytest.fixture
def cached(tmp_path, monkeypatch):
  """Returns the folder to fill; no server and no WordNet exists."""
  monkeypatch.setattr(nltk.data, "path", [])
  monkeypatch.setattr(wordnet, "DEBIAN", tmp_path / "debian")
  monkeypatch.setattr(nltk.downloader, "Downloader", Downloader)
  monkeypatch.setattr(Downloader, "content", b"")
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache" / "nltk_data" / "corpora"


@pytest.fixture
def served(cached, tmp_path, monkeypatch):
  """Serves a small WordNet."""
  write_wordnet(tmp_path / "server" / "wordnet")
  path = shutil.make_archive(tmp_path / "w", "zip", tmp_path / "server")
  with open(path, "rb") as file:
    monkeypatch.setattr(Downloader, "content", file.read())


def is_readable():
  return "home" in wordnet.find_lemma_names("house", wordnet.open_wordnet())


def test_wordnet_is_downloaded_once(served, cached, monkeypatch, capsys):
  wordnet.fetch()
  assert is_readable() and str(cached.parent) in capsys.readouterr().out
  assert [path.name for path in cached.iterdir()] == ["wordnet.zip"]
  monkeypatch.setattr(Downloader, "content", b"")
  wordnet.fetch()
  assert not capsys.readouterr().out


@pytest.mark.parametrize("place", ["own/corpora", "debian"])
def test_a_good_wordnet_elsewhere_is_enough(cached, tmp_path, place):
  """Also one that its group can write to, which NLTK refuses."""
  own = write_wordnet(tmp_path / place / "wordnet")
  for path in own.iterdir():
    path.chmod(0o664)
  nltk.data.path.append(str(tmp_path / "own"))
  wordnet.fetch()
  assert is_readable() and not cached.exists()


def test_a_damaged_wordnet_of_the_user_is_left_alone(
  served, cached, tmp_path, monkeypatch
):
  """The good one of the cache is read instead, as a folder or a zip file."""
  own = write_wordnet(tmp_path / "own" / "corpora" / "wordnet")
  (own / "data.noun").write_text("")
  own.with_name("wordnet.zip").write_bytes(b"PK cut off")
  monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "own")])
  with pytest.raises(DataError, match=f"Repair or remove '{own}'.*zip'"):
    wordnet.open_wordnet()
  write_wordnet(cached / "wordnet")
  (cached / "wordnet" / "data.noun").unlink()
  (cached / "wordnet.zip").write_text("")
  wordnet.fetch()  # again, as the copy of the cache is damaged, too
  assert is_readable() and not (own / "data.noun").read_text()


@pytest.mark.parametrize("content", [b"", b"PK"])
def test_without_a_good_download_the_error_says_what_to_type(
  cached, monkeypatch, content
):
  monkeypatch.setattr(Downloader, "content", content)
  with pytest.raises(UnavailableError, match="NLTK's server.*NLTK_DATA=FOLDER"):
    wordnet.fetch()
