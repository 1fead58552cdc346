"""Tests lists of sources, the tables of runs, and what they cover of a text."""

import dataclasses
import io
import itertools
import types

import numpy as np
import pytest
import tokenizers
from rich.console import Console
from tests.support.tokenizer_files import write_vocabulary
from tokenizers import models, normalizers

from truenegs_jax.data.tokenizer import SPECIALS, Tokenizer, load_tokenizer
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import run_table, sources
from truenegs_jax.synonyms.run_table import ModelTable, TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import Vocabulary

TOKENS = ("[PAD]", "[UNK]", "##s", "primary", "main", "chief", "stay")
TOKENIZER = Tokenizer(TOKENS, True, True, pad=0, unk=1, cls=0, sep=0, mask=0)
PAIRS = {("primary", "main"), ("main", "primary"), ("stay", "chief")}
SWITCHES = ("keep_stop_words", "symmetric", "include_self")

# Lists of sources.


@pytest.fixture
def calls(monkeypatch):
  """Adds sources and returns a list of the options of their calls."""
  calls = []

  def files(_, *, path: str = "", top: int = 10):
    """Returns the pair in the name of the file, such as main-chief."""
    calls.append({"path": path, "top": top})
    return [tuple(path.rpartition("/")[2].split("-"))]

  def flags(_, *, word="x", cut=0.5, both=False):
    calls.append({"word": word, "cut": cut, "both": both})
    return [("stay", "main")]

  def wordnet(_, *, folder: str = ""):
    calls.append({"folder": folder})
    return [("stay", "chief")]

  for fn in (files, flags, wordnet):
    monkeypatch.setitem(sources.SOURCES, fn.__name__, fn)
  return calls


def find_pairs(text, tokens=TOKENS, **options):
  request = TableRequest(text, **options)
  return set(request.find_pairs(Vocabulary(tokens)))


def test_sources_are_joined_and_their_options_converted(calls):
  text = "files  path='x, y=/a-b' top=3 ,files path=b-c, flags both=true cut=2"
  assert find_pairs(text) == {("a", "b"), ("b", "c"), ("stay", "main")}
  assert calls == [
    {"path": "x, y=/a-b", "top": 3},
    {"path": "b-c", "top": 10},
    {"word": "x", "cut": 2.0, "both": True},
  ]
  assert isinstance(calls[2]["cut"], float)


@pytest.mark.parametrize(
  "text, message",
  [
    ("   ", "names no source of synonyms"),
    ("flags | wordnet", "source='flags . wordnet' is unknown"),
    ("thesaurus", "'thesaurus'.* files, flags.* model"),
    ("flags reader=x", "flags: there is no option reader="),
    ("files path=ab top=2.5", "top=2.5 must be a whole number"),
    ("files path='ab", "quote without its partner"),
    ("model, flags", "cannot be combined"),
    ("model threshold=1.5", "from -1 to 1"),
  ],
)
def test_invalid_sources_are_refused_with_their_key(calls, text, message):
  with pytest.raises(InputError, match=f"^my_key[=:].*{message}"):
    TableRequest(text, key="my_key").check()


@pytest.mark.parametrize(
  "text, identity",
  [
    ("files top=3  path=/x/ab,flags cut=0.50", "files path=ab top=3, flags"),
    ("files path=~/y/ab top=10", "files path=ab"),
    ("flags both=true", "flags both=true"),
    ("files path='x/a, b'", "files path='a, b'"),
    ("wordnet folder=/x/my/", "wordnet folder=my"),
    ("model  threshold=0.4 top=3", "model threshold=0.4 top=3"),
    ("auto", "wordnet"),
  ],
)
def test_identity_omits_spaces_folders_and_defaults(calls, text, identity):
  assert TableRequest(text, wordnet_dir="/w").identity == identity


def test_the_source_model_has_options():
  model = TableRequest("model  threshold=0.4 top=3").model
  assert model == ModelTable(top=3, threshold=0.4, every=1000)


def test_paths_expand_the_home_folder_and_default_to_wordnet_dir(
  monkeypatch, calls
):
  monkeypatch.setenv("HOME", "/home/me")
  find_pairs("files path=~/a-b, wordnet, wordnet folder=/own", wordnet_dir="/w")
  assert calls[0]["path"] == "/home/me/a-b"
  assert calls[1:] == [{"folder": "/w"}, {"folder": "/own"}]


# Tables of runs.


def save_pairs(path, pairs=PAIRS, **options):
  """Saves and returns a table, for use as the source `table`."""
  table = SynonymTable.from_pairs(pairs, TOKENS, source="example", **options)
  table.save(path)
  return table


def load_or_build(request, saved=None, file=None):
  console = Console(file=file or io.StringIO())
  return run_table.load_or_build(
    request, TOKENIZER, saved=saved, console=console
  )


@pytest.fixture
def request_of(tmp_path):
  """A request for a table of PAIRS without the stop word "primary"."""
  save_pairs(tmp_path / "t.safetensors")
  (tmp_path / "words.txt").write_text("primary\n")
  sources = f"table path={tmp_path}/t.safetensors"
  return TableRequest(sources, stop_words=f"{tmp_path}/words.txt")


@pytest.mark.parametrize("include_self", [False, True])
def test_a_saved_table_is_a_source(tmp_path, calls, include_self):
  path = tmp_path / "t.safetensors"
  save_pairs(path, include_self=include_self)
  text = f"table path={path}, files path=c-d"
  assert find_pairs(text) == PAIRS | {("c", "d")}
  with pytest.raises(DataError, match="different vocabularies"):
    find_pairs(text, TOKENS[:-1])


def test_options_change_the_table_of_a_request(request_of):
  kept = PAIRS - {("primary", "main")}
  for changes, expected in (
    ({}, kept),
    ({"symmetric": True}, kept | {("chief", "stay")}),
    ({"include_self": True}, kept | {("main", "main"), ("stay", "stay")}),
    ({"keep_stop_words": True}, PAIRS),
  ):
    table = load_or_build(dataclasses.replace(request_of, **changes))
    ids = np.argwhere(table.build_ids() >= 0)[:, 0]
    assert len(ids) == table.num_pairs == len(expected)
    for word, synonym in expected:
      assert synonym in table.synonyms(word)


def test_a_resumed_run_keeps_its_table_if_its_options_are_the_same(
  request_of, tmp_path
):
  first = load_or_build(request_of)
  saved = tmp_path / "synonyms.safetensors"
  first.save(saved)
  save_pairs(tmp_path / "t.safetensors", [("stay", "main")])
  assert load_or_build(request_of).fingerprint != first.fingerprint
  (tmp_path / "t.safetensors").unlink()  # so that nothing can be built
  assert load_or_build(request_of, saved).fingerprint == first.fingerprint
  changes = dict.fromkeys(SWITCHES, True) | {"stop_words": ""}
  changes["sources"] = "table path=other"
  for name, value in changes.items():
    with pytest.raises(InputError, match="no file '"):
      load_or_build(dataclasses.replace(request_of, **{name: value}), saved)
  # A file may be in another folder, and the list of stop words may be missing.
  (tmp_path / "words.txt").unlink()
  sources = "table path=elsewhere/t.safetensors"
  moved = dataclasses.replace(request_of, sources=sources)
  assert load_or_build(moved, saved).fingerprint == first.fingerprint


def test_a_damaged_saved_table_is_reported_and_built_again(
  request_of, tmp_path
):
  saved = tmp_path / "synonyms.safetensors"
  saved.write_bytes(b"cut off")
  printed = io.StringIO()
  table = load_or_build(request_of, saved, file=printed)
  assert table.fingerprint == load_or_build(request_of).fingerprint
  assert "warning: not used: " in printed.getvalue()
  assert saved.name in printed.getvalue()


# Tokenizers of other libraries.

FOREIGN = ("[PAD]", "[UNK]", "<mask>", "eleve", "élève", "Main", "main", "##s")
FOREIGN_PAIRS = "Élève\tMain\nélève\tmain\neleve\t##s\n"


@pytest.fixture
def pairs(tmp_path):
  (tmp_path / "pairs.tsv").write_text(FOREIGN_PAIRS)
  return f"pairs path={tmp_path / 'pairs.tsv'}"


@pytest.mark.parametrize(
  "lowercase, strip", [*itertools.product((True, False), repeat=2)]
)
def test_a_foreign_tokenizer_has_the_table_of_its_own_kind(
  pairs, lowercase, strip
):
  options = {"lowercase": lowercase, "strip_accents": strip}
  ids = {word: i for i, word in enumerate(FOREIGN)}
  backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
  backend.normalizer = normalizers.BertNormalizer(**options)
  words = (*FOREIGN, "<added>")
  backend.add_tokens([words[-1]])
  fast = types.SimpleNamespace(backend_tokenizer=backend)  # transformers' field
  own = Tokenizer(words, **options, pad=0, unk=1, cls=0, sep=0, mask=2)
  expected = run_table.build_table(own, pairs)
  assert expected.num_pairs >= 2
  for tokenizer in (backend, fast):
    built = run_table.build_table(tokenizer, pairs)
    assert built.fingerprint == expected.fingerprint
    assert built.tokens == words


def test_what_is_no_fast_tokenizer_is_refused():
  for tokenizer, name in (("bert-base-uncased", "str"), (None, "NoneType")):
    with pytest.raises(InputError, match=f"{name} is not supported. Pass a"):
      run_table.build_table(tokenizer, "pairs path=x")


@pytest.mark.slow
def test_fast_tokenizers_of_transformers_are_read(pairs, tmp_path):
  transformers = pytest.importorskip("transformers")
  write_vocabulary((*SPECIALS, *FOREIGN[3:]), tmp_path / "vocab.txt")
  own = load_tokenizer(str(tmp_path), lowercase=True)
  expected = run_table.build_table(own, pairs)
  bert = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
  backend = bert.backend_tokenizer
  plain = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
  for tokenizer in (bert, plain):
    built = run_table.build_table(tokenizer, pairs)
    assert built.fingerprint == expected.fingerprint
  bpe = tokenizers.Tokenizer(models.BPE())
  with pytest.raises(InputError, match="The vocabulary is empty"):
    run_table.build_table(
      transformers.PreTrainedTokenizerFast(tokenizer_object=bpe), pairs
    )


# Coverage of a text.

WORDS = ("the", "house", "homes", "took", "fish", "cat", "7", ".", "in")
TEXT_TOKENS = (*SPECIALS, *WORDS, "##s")


def describe(stop_words="", sources="pairs path=x.tsv", **occurrences):
  """Describes a text with 50 of each token that is not counted."""
  table = SynonymTable.from_pairs(
    [("house", "cat"), ("homes", "cat")], TEXT_TOKENS, source="x"
  )
  uncounted = dict.fromkeys((*SPECIALS, "the", "7", ".", "in", "##s"), 50)
  counts = uncounted | occurrences
  counts_V = np.array([counts.get(token, 0) for token in TEXT_TOKENS])
  request = TableRequest(sources, key="a.key", stop_words=stop_words)
  return run_table.describe_text(request, table, counts_V)


@pytest.mark.parametrize(
  "counts, share, examples",
  [
    ({"house": 3, "homes": 2, "fish": 1, "cat": 4}, "50.0%", "cat, fish"),
    ({"house": 3, "cat": 7}, "30.0%", "cat"),
    ({"house": 3}, "100.0%", "none"),
    ({}, "100.0%", "none"),
  ],
)
def test_symbols_pieces_and_stop_words_are_no_words_of_a_text(
  counts, share, examples
):
  line, warning = describe(**counts)
  assert line.startswith(share) and line.endswith(f"without: {examples}")
  assert not warning


def test_a_small_share_of_a_text_is_warned_of_with_what_to_set(tmp_path):
  few = {"house": 2, "cat": 6, "fish": 1}
  _, warning = describe(**few)
  for words in ("a.key='pairs path=x.tsv'", "22.2%", "none for cat, fish."):
    assert words in warning
  (tmp_path / "stops").write_text("cat\n")
  line, _ = describe(str(tmp_path / "stops"), **few)
  assert line.endswith("without: the, in, fish")
  # A resumed run may have lost its list of stop words.
  assert describe(str(tmp_path / "lost"), **few)[0].startswith("22.2%")
  # Senses are left out on purpose.
  assert describe(sources="wordnet", **few)[1]
  assert not describe(sources="wordnet senses=1", **few)[1]
