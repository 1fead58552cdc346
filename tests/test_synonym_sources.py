"""Properties of the synonym sources, on a WordNet of a dozen words."""

import contextlib
import shutil

import pytest

from truenegs_jax.errors import DataError, InputError
from truenegs_jax.synonyms import sources

SYNSETS = {
  "noun": [
    ["house", "firm", "business_firm"],
    ["house", "home"],
    ["Indiana", "Hoosier_State", "in"],
    ["category"],
  ],
  "verb": [["stay", "remain"], ["take", "assume"], ["house", "lodge"]],
  "adj": [["good", "dependable"]],
  "adv": [],
}
EXCEPTIONS = {"verb": "took take\n"}
TOKENS = (
  "[PAD] [house] house houses home firm lodge in indiana category stay "
  "stayss remain take took assume ##house good you"
).split()


def write_wordnet(folder, *, lexnames=True):
  """Writes SYNSETS in the format of WordNet's own files."""
  folder.mkdir(parents=True)
  for part, synsets in SYNSETS.items():
    kind = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}[part]
    data, offsets = "  1 The licence is indented.\n", {}
    for lemmas in synsets:
      for lemma in lemmas:
        offsets.setdefault(lemma.lower(), []).append(len(data))
      words = " ".join(f"{lemma} 0" for lemma in lemmas)
      frames = " 00" if kind == "v" else ""
      data += f"{len(data):08} 03 {kind} {len(lemmas):02x} {words} 000{frames}"
      data += " | what it means  \n"
    index = "  1 The licence is indented.\n"
    for lemma, places in sorted(offsets.items()):
      known = " ".join(f"{place:08}" for place in places)
      index += f"{lemma} {kind} {len(places)} 0 {len(places)} 0 {known}  \n"
    (folder / f"data.{part}").write_text(data)
    (folder / f"index.{part}").write_text(index)
    (folder / f"{part}.exc").write_text(EXCEPTIONS.get(part, ""))
  if lexnames:
    (folder / "lexnames").write_text(sources.lexnames_text())
  return folder


@pytest.fixture
def mini(tmp_path):
  return write_wordnet(tmp_path / "corpora" / "wordnet")


@pytest.fixture
def open_wordnet():
  """`sources.open_wordnet`, closing what it opened at the end of the test."""
  with contextlib.ExitStack() as stack:

    def opened(folder=""):
      reader = sources.open_wordnet(str(folder))
      stack.callback(sources.close_wordnet, reader)
      return reader

    yield opened


@pytest.fixture
def reader(mini, open_wordnet):
  return open_wordnet(mini)


def test_raw_list_is_the_union_over_parts_of_speech_with_self_and_phrases(
  reader,
):
  names = sources.raw_synonyms("House", reader)
  assert names == ("business_firm", "firm", "home", "house", "lodge")


def test_raw_list_is_empty_exactly_for_unknown_words(reader):
  assert sources.raw_synonyms("zebra", reader) == ()
  assert sources.raw_synonyms("category", reader) == ("category",)


def test_inflected_and_irregular_forms_find_their_lemma(reader):
  assert "home" in sources.raw_synonyms("houses", reader)
  assert sources.raw_synonyms("took", reader) == ("assume", "take")


def test_stemming_goes_on_until_something_is_found_with_every_nltk(reader):
  assert sources.raw_synonyms("stayss", reader) == ("remain", "stay")


def test_stemming_stops_at_an_irregular_form_without_lemma(mini, open_wordnet):
  (mini / "noun.exc").write_text("homess unknown\n")
  reader = open_wordnet(mini)
  assert sources.raw_synonyms("homess", reader) == ()
  assert sources.raw_synonyms("houseses", reader) != ()


def test_pairs_are_whole_word_tokens_and_differ(reader):
  pairs = list(sources.wordnet(TOKENS, reader=reader))
  assert ("house", "lodge") in pairs and ("good", "dependable") not in pairs
  for word, synonym in pairs:
    assert word != synonym
    assert {word, synonym} <= set(TOKENS)
    assert sources.is_word(word) and sources.is_word(synonym)


def test_lemmas_match_lower_case_tokens_and_written_ones(reader):
  assert ("in", "indiana") in set(sources.wordnet(TOKENS, reader=reader))
  cased = ["in", "Indiana"]
  assert ("in", "Indiana") in set(sources.wordnet(cased, reader=reader))


def test_synonyms_of_an_inflected_form_are_one_way(reader):
  pairs = set(sources.wordnet(TOKENS, reader=reader))
  assert ("houses", "house") in pairs
  assert ("house", "houses") not in pairs


def test_pairs_come_in_the_same_order_every_time(mini, open_wordnet):
  first, second = (
    list(sources.wordnet(TOKENS, reader=open_wordnet(mini))) for _ in range(2)
  )
  assert first == second
  order = [TOKENS.index(word) for word, _ in first]
  assert order == sorted(order)


@pytest.mark.parametrize(
  "token, expected",
  [
    ("house", True),
    ("[", True),
    ("[]", True),
    ("#", True),
    ("[MASK]", False),
    ("[unused7]", False),
    ("##s", False),
    ("", False),
  ],
)
def test_whole_words_are_told_from_pieces_and_specials(token, expected):
  assert sources.is_word(token) is expected


@pytest.mark.parametrize("above", ["", "corpora", "corpora/wordnet"])
def test_wordnet_is_found_at_and_below_the_given_folder(
  mini, tmp_path, above, open_wordnet
):
  reader = open_wordnet(tmp_path / above)
  assert sources.raw_synonyms("stay", reader) == ("remain", "stay")


def test_wordnet_is_read_from_the_zip_file_of_nltk(
  mini, tmp_path, open_wordnet
):
  shutil.make_archive(str(mini), "zip", mini.parent, "wordnet")
  shutil.rmtree(mini)
  reader = open_wordnet(tmp_path)
  assert sources.raw_synonyms("stay", reader) == ("remain", "stay")


def test_wordnet_is_found_on_nltks_path_before_the_cache(
  tmp_path, monkeypatch, open_wordnet
):
  import nltk

  cached = write_wordnet(tmp_path / "cache/nltk_data/corpora/wordnet")
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setattr(nltk.data, "path", [])
  assert str(cached) in repr(open_wordnet())
  own = write_wordnet(tmp_path / "own/corpora/wordnet")
  monkeypatch.setattr(nltk.data, "path", [str(tmp_path / "own")])
  assert str(own) in repr(open_wordnet())


def test_opening_writes_nothing(mini, tmp_path, open_wordnet):
  before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
  reader = open_wordnet(mini)
  list(sources.wordnet(TOKENS, reader=reader))
  assert before == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}


def test_missing_wordnet_names_the_commands_that_fetch_it(
  tmp_path, monkeypatch, open_wordnet
):
  import nltk

  monkeypatch.setattr(nltk.data, "path", [])
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path))
  with pytest.raises(InputError) as caught:
    open_wordnet()
  assert "launch/wordnet.sh" in str(caught.value)
  assert "python -m nltk.downloader wordnet" in str(caught.value)
  assert str(tmp_path) in str(caught.value)


def test_given_folder_without_wordnet_is_named_and_not_passed_over(
  mini, tmp_path, monkeypatch, open_wordnet
):
  import nltk

  monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
  empty = tmp_path / "empty"
  empty.mkdir()
  with pytest.raises(InputError, match="empty"):
    open_wordnet(empty)


@pytest.mark.parametrize(
  "name, keep",
  [("index.verb", 45), ("data.verb", 90), ("data.noun", 40), ("lexnames", 7)],
)
def test_cut_off_file_is_reported_as_damage(mini, name, keep, open_wordnet):
  path = mini / name
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(DataError, match="damaged") as caught:
    open_wordnet(mini)
  assert str(mini) in str(caught.value)


def test_debians_folder_without_lexnames_is_reported_as_damage(
  tmp_path, open_wordnet
):
  folder = write_wordnet(tmp_path / "wordnet", lexnames=False)
  with pytest.raises(DataError, match="lexnames"):
    open_wordnet(folder)


def test_index_and_data_of_different_versions_are_reported(mini, open_wordnet):
  data = (mini / "data.noun").read_text().split("\n")
  data[1] = data[1].replace(data[1][:8], "99999999")
  (mini / "data.noun").write_text("\n".join(data))
  reader = open_wordnet(mini)
  with pytest.raises(DataError, match="launch/wordnet.sh"):
    list(sources.wordnet(TOKENS, reader=reader))


def test_lexnames_are_the_45_files_of_wordnet_numbered_in_order():
  lines = sources.lexnames_text().splitlines()
  assert len(lines) == 45
  assert [int(line.split("\t")[0]) for line in lines] == list(range(45))
  assert lines[3] == "03\tnoun.Tops\t1" and lines[44] == "44\tadj.ppl\t3"


def test_unknown_source_lists_the_known_ones():
  with pytest.raises(InputError, match="'thesaurus'.*wordnet"):
    sources.synonym_source("thesaurus")
  assert sources.synonym_source("wordnet") is sources.wordnet


def test_a_name_is_registered_once(monkeypatch):
  monkeypatch.setattr(sources, "SOURCES", {})
  sources.source("mine")(lambda tokens: [])
  with pytest.raises(ValueError, match="'mine' is registered twice"):
    sources.source("mine")(lambda tokens: [])


def test_source_closes_the_wordnet_it_opened(mini, tmp_path, monkeypatch):
  import nltk

  monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
  opened = []
  find = sources.open_wordnet
  monkeypatch.setattr(
    sources, "open_wordnet", lambda: opened.append(find()) or opened[0]
  )
  assert ("stay", "remain") in list(sources.wordnet(TOKENS))
  assert opened[0]._data_file_map == {}
