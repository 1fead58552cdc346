"""WordNet: the synonyms of its words, and where it is found and how refused."""

import shutil

import pytest

from support.mini_wordnet import write_wordnet
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources, wordnet
from truenegs_jax.synonyms.stop_words import is_word

TOKENS = (
  "[PAD] [house] house houses home firm lodge in indiana category stay "
  "stayss remain take took assume ##house good you"
).split()
FORMS = "firm firms home homes house housed houses Houses lodge lodges".split()
STAY = ("remain", "stay")


@pytest.fixture
def mini(tmp_path):
  return write_wordnet(tmp_path / "corpora" / "wordnet")


@pytest.fixture
def reader(mini):
  with wordnet.session(str(mini)) as reader:
    yield reader


@pytest.fixture
def look_in(monkeypatch):
  """Sets the folders where NLTK looks, and the cache."""
  import nltk

  def look_in(cache, *roots):
    monkeypatch.setenv("TRUENEGS_CACHE", str(cache))
    monkeypatch.setattr(nltk.data, "path", list(map(str, roots)))

  return look_in


def pairs_of(reader, tokens=TOKENS, **options):
  return set(sources.wordnet(tokens, reader=reader, **options))


def raw(word, folder):
  with wordnet.session(str(folder)) as reader:
    return wordnet.find_lemma_names(word, reader)


# Synonyms.


@pytest.mark.parametrize(
  "word, names",
  [
    ("House", "business_firm firm home house lodge"),  # of all parts, with self
    ("category", "category"),
    ("zebra", ""),
    ("took", "assume take"),
    ("stayss", "remain stay"),  # stemmed until something is found
  ],
)
def test_raw_list_is_the_union_of_all_synsets(reader, word, names):
  assert wordnet.find_lemma_names(word, reader) == tuple(names.split())
  assert "home" in wordnet.find_lemma_names("houses", reader)


def test_stemming_stops_at_an_irregular_form_without_lemma(mini):
  (mini / "noun.exc").write_text("homess unknown\n")
  assert raw("homess", mini) == () != raw("houseses", mini)


def test_pairs_are_different_whole_words_and_as_directed_as_wordnet(reader):
  pairs = pairs_of(reader)
  for pair in pairs:
    assert set(pair) <= set(filter(is_word, TOKENS)) and len(set(pair)) == 2
  assert {("house", "lodge"), ("houses", "house"), ("in", "indiana")} <= pairs
  assert ("house", "houses") not in pairs
  assert ("in", "Indiana") in pairs_of(reader, ["in", "Indiana"])


def test_synonyms_are_of_the_parts_of_speech_asked_for(reader):
  nouns, verbs = (
    {b for a, b in pairs_of(reader, FORMS, pos=pos) if a == "house"}
    for pos in "nv"
  )
  assert nouns == {"firm", "home"} and verbs == {"lodge"}
  for pos in ("vn", "nvv", "nvar"):
    found = {b for a, b in pairs_of(reader, FORMS, pos=pos) if a == "house"}
    assert found == nouns | verbs
  tokens = ["good", "dependable", "stay", "remain"]
  for pos in ("a", "s", "sar"):
    assert len(pairs_of(reader, tokens, pos=pos)) == 2
  assert pairs_of(reader, tokens, pos="r") == set()
  for pos in ("", "x", "noun", "N", "n,v"):
    with pytest.raises(InputError, match=f"pos='{pos}'.*pos=nv"):
      pairs_of(reader, pos=pos)


def test_inflected_forms_count_in_the_part_of_speech_of_the_synset(reader):
  forms = {}
  for word, form in pairs_of(reader, FORMS, inflections=True):
    forms.setdefault(word, set()).add(form)
  assert forms["home"] == {"homes", "house", "houses"}  # not `housed`
  assert forms["lodge"] == {"house", "housed", "houses", "lodges"}
  others = set(FORMS) - {"houses", "Houses"}
  assert forms["houses"] == forms["Houses"] == others
  assert not any("Houses" in listed for listed in forms.values())
  names = pairs_of(reader, ["in", "indianas"], inflections=True)
  assert ("in", "indianas") in names


def test_inflected_forms_add_to_the_pairs_and_make_them_mutual(reader):
  tokens = [word for word in FORMS if word != "Houses"]
  for pos in ("nvar", "n", "v"):
    plain = pairs_of(reader, tokens, pos=pos)
    every = pairs_of(reader, tokens, pos=pos, inflections=True)
    assert plain < every == {(b, a) for a, b in every}
  pairs = pairs_of(reader, inflections=True)
  assert {("stayss", "stay"), ("take", "took")} <= pairs
  assert ("stay", "stayss") not in pairs  # a form is stemmed once


# Places.


@pytest.mark.parametrize("above", ["", "corpora", "corpora/wordnet"])
def test_wordnet_is_found_at_and_below_the_given_folder(mini, tmp_path, above):
  assert raw("stay", tmp_path / above) == STAY


def test_files_are_those_that_decide_the_pairs_or_the_zip_file(mini, tmp_path):
  before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
  assert raw("stay", tmp_path) == STAY  # and opening writes nothing
  assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
  found = wordnet.list_files(str(tmp_path))
  assert found == sorted(set(mini.iterdir()) - {mini / "lexnames"})
  shutil.make_archive(str(mini), "zip", mini.parent, "wordnet")
  shutil.rmtree(mini)
  assert raw("stay", tmp_path) == STAY
  assert wordnet.list_files(str(tmp_path)) == [mini.with_suffix(".zip")]


def test_wordnet_is_found_on_nltks_path_before_the_cache(tmp_path, look_in):
  cached = write_wordnet(tmp_path / "cache/nltk_data/corpora/wordnet")
  own = write_wordnet(tmp_path / "own/corpora/wordnet")
  look_in(tmp_path / "cache")
  assert wordnet.find_wordnet() == str(cached)
  look_in(tmp_path / "cache", tmp_path / "own")
  assert wordnet.find_wordnet() == str(own)
  # A given folder is not passed over for another.
  with pytest.raises(InputError, match="absent"):
    wordnet.open_wordnet(f"{tmp_path}/absent")


def test_missing_wordnet_names_the_commands_that_fetch_it(tmp_path, look_in):
  look_in(tmp_path)
  with pytest.raises(InputError, match="launch/wordnet.sh") as caught:
    wordnet.open_wordnet()
  assert "python -m nltk.downloader wordnet" in str(caught.value)
  assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
  "name, keep",
  [
    ("index.verb", 45),
    ("data.verb", 90),
    ("data.noun", 40),
    ("lexnames", 7),
    ("lexnames", None),  # Debian's package lacks it
  ],
)
def test_damage_is_reported(mini, name, keep):
  content = (mini / name).read_bytes()
  (mini / name).unlink()
  if keep:
    (mini / name).write_bytes(content[:keep])
  with pytest.raises(DataError, match="damaged") as caught:
    wordnet.open_wordnet(str(mini))
  assert str(mini) in str(caught.value)


def test_index_and_data_of_different_versions_are_reported(mini):
  data = (mini / "data.noun").read_text().split("\n")
  data[1] = data[1].replace(data[1][:8], "99999999")
  (mini / "data.noun").write_text("\n".join(data))
  with wordnet.session(str(mini)) as reader:
    with pytest.raises(DataError, match="launch/wordnet.sh"):
      pairs_of(reader)


def test_a_source_closes_the_wordnet_it_opened(mini, monkeypatch):
  closed = []
  close = wordnet.close_wordnet
  monkeypatch.setattr(
    wordnet, "close_wordnet", lambda r: (close(r), closed.append(r))
  )
  assert ("house", "lodge") in list(sources.wordnet(TOKENS, folder=str(mini)))
  assert [reader._data_file_map for reader in closed] == [{}]
