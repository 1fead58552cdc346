"""Properties of the synonym sources, and of WordNet on a dozen words."""

import contextlib
import inspect
import json
import os
import shutil
import subprocess
import sys

import pytest

from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import sources, sources_spec, table, wordnet

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
FORMS = "firm firms home homes house housed houses Houses lodge lodges".split()

# What every source is asked for, and what each says of it: that all of ALIKE,
# words, pieces, specials and phrases, may stand for one another.
ASKED = "[PAD] you House home firm [house] house ##house Home".split()
ALIKE = "home house firm House [house] ##house business_firm hut Home".split()


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
    (folder / "lexnames").write_text(wordnet.lexnames_text())
  return folder


@pytest.fixture
def mini(tmp_path):
  return write_wordnet(tmp_path / "corpora" / "wordnet")


@pytest.fixture
def open_wordnet():
  """`open_wordnet`, closing what it opened at the end of the test."""
  with contextlib.ExitStack() as stack:

    def opened(folder=""):
      reader = wordnet.open_wordnet(str(folder))
      stack.callback(wordnet.close_wordnet, reader)
      return reader

    yield opened


@pytest.fixture
def reader(mini, open_wordnet):
  return open_wordnet(mini)


def test_raw_list_is_the_union_over_parts_of_speech_with_self_and_phrases(
  reader,
):
  names = wordnet.raw_synonyms("House", reader)
  assert names == ("business_firm", "firm", "home", "house", "lodge")


def test_raw_list_is_empty_exactly_for_unknown_words(reader):
  assert wordnet.raw_synonyms("zebra", reader) == ()
  assert wordnet.raw_synonyms("category", reader) == ("category",)


def test_inflected_and_irregular_forms_find_their_lemma(reader):
  assert "home" in wordnet.raw_synonyms("houses", reader)
  assert wordnet.raw_synonyms("took", reader) == ("assume", "take")


def test_stemming_goes_on_until_something_is_found_with_every_nltk(reader):
  assert wordnet.raw_synonyms("stayss", reader) == ("remain", "stay")


def test_stemming_stops_at_an_irregular_form_without_lemma(mini, open_wordnet):
  (mini / "noun.exc").write_text("homess unknown\n")
  reader = open_wordnet(mini)
  assert wordnet.raw_synonyms("homess", reader) == ()
  assert wordnet.raw_synonyms("houseses", reader) != ()


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


def pairs_of(reader, tokens=FORMS, **options):
  return set(sources.wordnet(tokens, reader=reader, **options))


def test_synonyms_are_of_the_parts_of_speech_asked_for(reader):
  of = lambda pos: {b for a, b in pairs_of(reader, pos=pos) if a == "house"}
  assert of("n") == {"firm", "home"} and of("v") == {"lodge"}
  assert of("vn") == of("nvv") == of("nvar") == of("n") | of("v")
  tokens = ["good", "dependable", "stay", "remain"]
  adjectives = {("good", "dependable"), ("dependable", "good")}
  for pos in ("a", "s", "sar"):
    assert pairs_of(reader, tokens, pos=pos) == adjectives
  assert pairs_of(reader, tokens, pos="r") == set()


@pytest.mark.parametrize("pos", ["", "x", "noun", "N", "n,v", "n v"])
def test_other_parts_of_speech_are_refused(reader, pos):
  with pytest.raises(InputError, match=f"pos='{pos}'.*pos=nv"):
    pairs_of(reader, pos=pos)


def test_inflected_forms_count_in_the_part_of_speech_of_the_synset(reader):
  found = {}
  for word, form in pairs_of(reader, inflections=True):
    found.setdefault(word, set()).add(form)
  nouns = {"home", "homes", "house", "houses"}
  assert found["home"] == nouns - {"home"}  # not `housed`
  assert found["lodge"] == {"house", "housed", "houses", "lodges"}
  assert found["houses"] == set(FORMS) - {"houses", "Houses"}
  assert found["Houses"] == set(FORMS) - {"houses", "Houses"}
  assert not any("Houses" in forms for forms in found.values())


def test_synonyms_of_a_word_are_sorted(reader):
  pairs = list(sources.wordnet(FORMS, reader=reader, inflections=True))
  key = lambda pair: (FORMS.index(pair[0]), pair[1])
  assert len(pairs) > 30 and pairs == sorted(pairs, key=key)


def test_inflected_forms_add_to_the_pairs_and_make_them_mutual(reader):
  tokens = [word for word in FORMS if word != "Houses"]
  for pos in ("nvar", "n", "v"):
    plain = pairs_of(reader, tokens, pos=pos)
    whole = pairs_of(reader, tokens, pos=pos, inflections=True)
    assert plain < whole == {(b, a) for a, b in whole}


def test_a_form_is_stemmed_once(reader):
  pairs = pairs_of(reader, TOKENS, inflections=True)
  assert ("stayss", "stay") in pairs and ("took", "take") in pairs
  assert ("take", "took") in pairs and ("stay", "stayss") not in pairs


def test_names_have_forms_in_lower_case(reader):
  tokens = ["in", "indianas"]
  assert ("in", "indianas") in pairs_of(reader, tokens, inflections=True)
  assert pairs_of(reader, tokens) == {("indianas", "in")}


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
  assert wordnet.raw_synonyms("stay", reader) == ("remain", "stay")


def test_wordnet_is_read_from_the_zip_file_of_nltk(
  mini, tmp_path, open_wordnet
):
  shutil.make_archive(str(mini), "zip", mini.parent, "wordnet")
  shutil.rmtree(mini)
  reader = open_wordnet(tmp_path)
  assert wordnet.raw_synonyms("stay", reader) == ("remain", "stay")


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


def files_of(folder):
  return [(f.name, f.parent) for f in wordnet.files(str(folder))]


def test_files_of_a_wordnet_are_those_that_say_what_it_holds(mini, tmp_path):
  parts = ("adj", "adv", "noun", "verb")
  names = [f"{kind}.{part}" for kind in ("data", "index") for part in parts]
  names += [f"{part}.exc" for part in parts]
  assert files_of(tmp_path) == [(name, mini) for name in sorted(names)]
  shutil.make_archive(str(mini), "zip", mini.parent, "wordnet")
  shutil.rmtree(mini)
  assert files_of(tmp_path) == [("wordnet.zip", mini.parent)]
  with pytest.raises(InputError, match="no WordNet"):
    wordnet.files(str(tmp_path / "empty"))


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
  lines = wordnet.lexnames_text().splitlines()
  assert len(lines) == 45
  assert [int(line.split("\t")[0]) for line in lines] == list(range(45))
  assert lines[3] == "03\tnoun.Tops\t1" and lines[44] == "44\tadj.ppl\t3"


# What holds for every source.


def example(name, folder):
  """Options with which the source says that all of ALIKE are alike."""
  path = folder / "example"
  if name == "wordnet":
    return {"folder": str(write_wordnet(folder / "wordnet"))}
  if name == "pairs":
    path.write_text("".join(f"{w} {' '.join(ALIKE)}\n" for w in ALIKE))
  elif name == "omw":
    lines = [f"00000001-n\tlemma\t{w}\n" for w in ALIKE]
    path.write_text("# example\n" + "".join(lines))
  elif name == "vectors":
    path.write_text("".join(f"{w} 1 {i}\n" for i, w in enumerate(ALIKE)))
  elif name == "table":
    pairs = [(a, b) for a in ALIKE for b in ALIKE if a.lower() != b.lower()]
    table.save_table(table.build_table(pairs, ASKED, source="example"), path)
  else:
    pytest.fail(f"write an example for the source {name}")
  return {"path": str(path)}


@pytest.fixture(params=sorted(sources.SOURCES))
def asked(request, tmp_path):
  """Asks a source for the pairs of ASKED, once more on each call."""
  options = example(request.param, tmp_path)
  return lambda: list(sources.SOURCES[request.param](ASKED, **options))


def test_sources_give_different_whole_words_of_the_vocabulary(asked):
  pairs = asked()
  assert {("home", "firm"), ("home", "house")} & set(pairs)
  for word, synonym in pairs:
    assert {word, synonym} <= {"House", "home", "firm", "house", "Home"}
    assert word.lower() != synonym.lower()


def test_sources_give_each_pair_once_in_the_order_of_the_vocabulary(asked):
  pairs = asked()
  assert len(set(pairs)) == len(pairs)
  words = [ASKED.index(word) for word, _ in pairs]
  assert words == sorted(words)


def test_sources_can_be_asked_again(asked):
  assert asked() == asked()


def test_order_does_not_depend_on_hashes(tmp_path):
  examples = {}
  for name in sources.SOURCES:
    (tmp_path / name).mkdir()
    examples[name] = example(name, tmp_path / name)
  code = (
    "import json, sys; from truenegs_jax.synonyms import sources, spec;"
    " tokens, examples = json.load(sys.stdin); print([list("
    "sources.SOURCES[name](tokens, **o)) for name, o in examples.items()])"
  )
  found = [
    subprocess.run(
      [sys.executable, "-c", code],
      input=json.dumps([ASKED, examples]),
      env={**os.environ, "PYTHONHASHSEED": seed},
      capture_output=True,
      text=True,
      check=True,
    ).stdout
    for seed in ("1", "2")
  ]
  assert found[0] == found[1] and "home" in found[0]


@pytest.mark.parametrize("name", sorted(sources.SOURCES))
def test_options_of_a_source_are_keyword_only_and_those_of_the_config(name):
  first, *options = inspect.signature(sources.SOURCES[name]).parameters.values()
  assert first.name == "tokens"
  assert {option.kind for option in options} == {first.KEYWORD_ONLY}
  needed = [f"{o.name}=x" for o in options if o.default is o.empty]
  parsed = sources_spec.parse(" ".join([name, *needed]))
  assert parsed.union[0][0].options == dict.fromkeys(
    [text.removesuffix("=x") for text in needed], "x"
  )


@pytest.mark.parametrize("name", ["vectors", "pairs", "omw", "table"])
def test_files_that_are_not_there_are_named(name, tmp_path):
  for path in ("", "nowhere", "~nobody/v", str(tmp_path), "a\0b"):
    with pytest.raises(InputError, match="negatives.sources") as caught:
      sources.SOURCES[name]((), path=path)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("tokens", [(), ASKED])
@pytest.mark.parametrize(
  "name, changes, words",
  [
    ("wordnet", {"pos": "x"}, "pos='x'.*nouns.*verbs"),
    ("wordnet", {"folder": "nowhere"}, "no WordNet in 'nowhere'"),
    ("wordnet", {"folder": "~nobody/w"}, "no WordNet in '~nobody/w'"),
    ("omw", {"pos": "x"}, "pos='x'.*nouns.*verbs"),
    ("vectors", {"top": 0}, "top=0 .*at least 1"),
    ("vectors", {"threshold": 2.0}, "threshold=2.0 .*from -1 to 1"),
    ("vectors", {"among": "words"}, "among=words: .*vocabulary or file"),
  ],
)
def test_options_are_refused_before_a_pair_is_asked_for(
  tmp_path, tokens, name, changes, words
):
  options = example(name, tmp_path)
  sources.SOURCES[name](tokens, **options)
  with pytest.raises(InputError, match=words):
    sources.SOURCES[name](tokens, **options | changes)


@pytest.mark.parametrize("tokens", [(), ASKED])
@pytest.mark.parametrize(
  "name, content",
  [(name, "") for name in ("vectors", "pairs", "omw", "table")]
  + [("vectors", "some words"), ("pairs", "word"), ("pairs", "a\tb\tc")]
  + [("omw", "house home"), ("table", "PK cut off")],
)
def test_files_that_begin_as_something_else_are_refused_before(
  tmp_path, tokens, content, name
):
  path = tmp_path / "file.txt"
  path.write_text(content)
  with pytest.raises(DataError, match="file.txt"):
    sources.SOURCES[name](tokens, path=str(path))


def test_a_name_is_registered_once(monkeypatch):
  monkeypatch.setattr(sources, "SOURCES", {})
  sources.source("mine")(lambda tokens: [])
  with pytest.raises(ValueError, match="'mine' is registered twice"):
    sources.source("mine")(lambda tokens: [])


def test_source_closes_the_wordnet_it_opened(mini, monkeypatch):
  opened = []
  find = wordnet.open_wordnet
  monkeypatch.setattr(
    wordnet, "open_wordnet", lambda f: opened.append(find(f)) or opened[0]
  )
  pairs = sources.wordnet(TOKENS, folder=str(mini))
  assert ("house", "lodge") in list(pairs)  # not in the real one
  assert opened[0]._data_file_map == {}
