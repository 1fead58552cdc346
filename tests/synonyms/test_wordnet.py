"""Tests WordNet's synonyms, the search for its folder, and damaged files."""

import pickle
import shutil

import pytest

from support.mini_wordnet import write_wordnet
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import wordnet
from truenegs_jax.synonyms.vocabulary import Vocabulary

TOKENS = ["[PAD]", "[house]", "house", "houses", "home", "firm", "lodge", "in"]
TOKENS += ["indiana", "category", "stay", "stayss", "remain", "take", "took"]
TOKENS += ["assume", "##house", "good", "you"]
STAY = ("remain", "stay")


@pytest.fixture
def mini(tmp_path):
  return write_wordnet(tmp_path / "corpora" / "wordnet")


@pytest.fixture
def reader(mini):
  return wordnet.open_wordnet(str(mini))


@pytest.fixture
def set_folders(monkeypatch):
  """Returns a function that sets the cache and the folders of NLTK's path."""
  import nltk

  def set_folders(cache, *roots):
    monkeypatch.setenv("TRUENEGS_CACHE", str(cache))
    monkeypatch.setattr(nltk.data, "path", list(map(str, roots)))

  return set_folders


def find_pairs(reader, tokens=TOKENS, **options):
  return set(wordnet.find_pairs(Vocabulary(tokens), reader, **options))


def read_lemma_names(word, folder):
  return wordnet.find_lemma_names(word, wordnet.open_wordnet(str(folder)))


# Synonyms.


@pytest.mark.parametrize(
  "word, names",
  [
    ("House", "business_firm firm home house lodge"),  # nouns and verbs
    ("category", "category"),
    ("zebra", ""),
    ("took", "assume take"),
    ("stayss", "remain stay"),  # two endings removed
  ],
)
def test_lemma_names_are_the_union_of_all_synsets(reader, word, names):
  assert wordnet.find_lemma_names(word, reader) == tuple(names.split())
  assert "home" in wordnet.find_lemma_names("houses", reader)


def test_pairs_are_whole_words_and_have_wordnets_direction(reader):
  pairs = find_pairs(reader)
  for pair in pairs:
    assert set(pair) <= set(TOKENS) and len(set(pair)) == 2
    assert not any(word[0] in "[#" for word in pair)
  assert {("house", "lodge"), ("houses", "house"), ("in", "indiana")} <= pairs
  assert ("house", "houses") not in pairs
  assert ("in", "Indiana") in find_pairs(reader, ["in", "Indiana"])


@pytest.mark.parametrize(
  "pos, names",
  [("n", "business_firm firm home house"), ("v", "house lodge"), ("ar", "")],
)
def test_pos_selects_the_parts_of_speech(reader, pos, names):
  lemmas = wordnet.find_lemma_names("house", reader, pos=pos)
  assert lemmas == tuple(names.split())


def test_only_the_first_senses_of_both_words_count(reader):
  tokens = ["home", "firm", "house", "houses", "lodge", "good", "dependable"]

  def find(word, **options):
    pairs = find_pairs(reader, tokens, **options)
    return {b for a, b in pairs if a == word}

  # *firm* is the first sense of *house*, *home* its second, and *lodge* the
  # first of the verb. All are first senses of the other words.
  assert find("house", senses=1) == find("houses", senses=1) - {"house"}
  assert find("house", senses=1) == {"firm", "lodge"}
  assert find("home", senses=1) == set()  # the second of *house*
  assert find("firm", senses=1) == {"house"}
  assert find("good", senses=1) == {"dependable"}
  for options in ({"senses": 2}, {"senses": 99}, {}):
    assert find("house", **options) == {"firm", "home", "lodge"}
    assert find("home", **options) == {"house"}


# Folders.


@pytest.mark.parametrize("subfolder", ["", "corpora", "corpora/wordnet"])
def test_wordnet_is_found_in_and_below_a_folder(mini, tmp_path, subfolder):
  assert read_lemma_names("stay", tmp_path / subfolder) == STAY


def test_a_reader_is_pickled_as_its_folder(reader):
  copy = pickle.loads(pickle.dumps(reader))
  assert wordnet.find_lemma_names("stay", copy) == STAY


def test_wordnet_is_read_from_a_zip_file_without_writing(mini, tmp_path):
  shutil.make_archive(str(mini), "zip", mini.parent, "wordnet")
  shutil.rmtree(mini)
  before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
  assert read_lemma_names("stay", tmp_path) == STAY
  assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}


def test_wordnet_is_found_on_nltks_path_before_the_cache(tmp_path, set_folders):
  cached = write_wordnet(tmp_path / "cache/nltk_data/corpora/wordnet")
  on_path = write_wordnet(tmp_path / "own/corpora/wordnet")
  set_folders(tmp_path / "cache")
  assert wordnet.find_wordnet() == [cached]
  set_folders(tmp_path / "cache", tmp_path / "own")
  assert wordnet.find_wordnet() == [on_path, cached]
  # With a folder, no other folder is searched.
  with pytest.raises(InputError, match="absent"):
    wordnet.open_wordnet(f"{tmp_path}/absent")


def test_debians_package_is_read_with_the_same_groups(mini):
  def read():
    reader = wordnet.open_wordnet(str(mini))
    synsets = [s for pos in "nvar" for s in reader.all_synsets(pos)]
    return [s.lexname() for s in synsets], find_pairs(reader)

  complete = read()
  (mini / "lexnames").unlink()
  assert read() == complete


@pytest.mark.parametrize(
  "name, keep",
  [
    ("index.verb", 45),
    ("data.verb", 90),
    ("data.noun", 40),
  ],
)
def test_damaged_files_are_reported(mini, name, keep):
  content = (mini / name).read_bytes()
  (mini / name).write_bytes(content[:keep])
  with pytest.raises(DataError, match="damaged") as caught:
    wordnet.open_wordnet(str(mini))
  assert str(mini) in str(caught.value)


def test_index_and_data_of_different_versions_are_reported(mini):
  data = (mini / "data.noun").read_text().split("\n")
  data[1] = data[1].replace(data[1][:8], "99999999")
  (mini / "data.noun").write_text("\n".join(data))
  reader = wordnet.open_wordnet(str(mini))
  with pytest.raises(DataError, match="Run .*truenegs.* wordnet"):
    find_pairs(reader)
