"""The synonym table of a run is the one that its config names."""

import io
import os

import pytest
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.data.tokens.tokenizer import make_tokenizer
from truenegs_jax.objectives.options import CHOICES, Options
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms import run_table, sources, sources_spec
from truenegs_jax.synonyms import table as table_lib
from truenegs_jax.workdir import files

WORDS = ("primary", "main", "chief", "stay")
TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], lowercase=True
)
PAIRS = [("primary", "main"), ("main", "primary"), ("stay", "chief")]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache" / "synonyms"


@pytest.fixture
def workdir(tmp_path):
  (tmp_path / "workdir").mkdir()
  return tmp_path / "workdir"


def config(sources, *, wordnet_dir="", **negatives):
  """What tables.py reads of a config."""
  n = {
    "sources": sources,
    "keep_stop_words": False,
    "stop_words": "",
    "symmetric": False,
    "include_self": False,
    "hard_correction": True,
    "smoothing": 0.0,
    "discriminator": "none",
  }
  data = {"wordnet_dir": wordnet_dir}
  return ConfigDict({"negatives": n | negatives, "data": data})


def write_vectors(path, *rows):
  lines = [f"{word} {x} {y}" for word, (x, y) in zip(WORDS, rows, strict=True)]
  path.write_text("\n".join(lines) + "\n")
  return str(path)


def save_pairs(path, pairs):
  """A table's file, here a source that can be changed."""
  made = table_lib.build_table(pairs, TOKENIZER.vocab, source="made up")
  table_lib.save_table(made, path)
  return made


def find(c, workdir, tokenizer=TOKENIZER):
  return run_table.find_or_build(
    c, workdir, tokenizer, Console(file=io.StringIO())
  )


def listed(found):
  """The pairs of a table, as words."""
  vocab = TOKENIZER.vocab
  keys = (divmod(key, found.vocab_size) for key in found.keys_Q.tolist())
  return {(vocab[a], vocab[b]) for a, b in keys}


@pytest.fixture
def built(monkeypatch):
  """What was looked up, and not found made."""
  calls = []
  pairs_of = sources_spec.pairs_of

  def counted(asked, tokens, **kwargs):
    calls.append(asked.identity)
    return pairs_of(asked, tokens, **kwargs)

  monkeypatch.setattr(sources_spec, "pairs_of", counted)
  return calls


def test_vectors_of_another_file_make_another_table(tmp_path):
  path = tmp_path / "vectors.txt"
  write_vectors(path, (1, 0), (2, 1), (3, 1), (0, 1))
  c = config(f"vectors path={path} top=10")
  first = find(c, tmp_path)
  assert find(c, tmp_path).fingerprint == first.fingerprint
  table_lib.save_table(first, tmp_path / files.SYNONYMS)

  write_vectors(path, (1, 0), (0, 0), (3, 1), (0, 1))  # "main" has none now
  os.utime(path, ns=(0, 0))
  second = find(c, tmp_path)
  assert second.num_rows == 3 != first.num_rows

  # One that was not saved to the end is none.
  (tmp_path / "checkpoints" / "10.orbax-checkpoint-tmp").mkdir(parents=True)
  assert find(c, tmp_path).fingerprint == second.fingerprint

  # What a checkpoint was made with stays, with or without the file.
  (tmp_path / "checkpoints" / "10").mkdir()
  path.unlink()
  assert find(c, tmp_path).fingerprint == first.fingerprint


def test_a_checkpoints_table_is_that_of_its_options_alone(tmp_path, workdir):
  path, words = tmp_path / "t.npz", tmp_path / "words.txt"
  save_pairs(path, PAIRS)
  words.write_text("stay\n")
  c = config(f"table path={path}", stop_words=str(words))
  first = find(c, workdir)
  table_lib.save_table(first, workdir / files.SYNONYMS)
  (workdir / "checkpoints" / "10").mkdir(parents=True)
  path.unlink()  # so that nothing can be made
  assert find(c, workdir).fingerprint == first.fingerprint
  changes = {"keep_stop_words": True, "symmetric": True, "include_self": True}
  changes |= {"stop_words": "", "sources": f"table path={tmp_path}/other.npz"}
  for name, value in changes.items():
    other = config(c.negatives.sources, stop_words=str(words))
    other.negatives[name] = value
    with pytest.raises(InputError, match="there is no file '.*npz'"):
      find(other, workdir)
  # The same file elsewhere has the same name; it may be gone, as may these:
  words.unlink()
  c.negatives.sources = "table path=elsewhere/t.npz"
  assert find(c, workdir).fingerprint == first.fingerprint


@pytest.fixture
def see_wordnet_in(monkeypatch):
  """Has the search for WordNet look in these folders alone."""
  import nltk

  return lambda *roots: monkeypatch.setattr(
    nltk.data, "path", [str(root) for root in roots]
  )


def test_a_checkpoints_table_needs_no_wordnet(workdir, see_wordnet_in):
  see_wordnet_in()
  made = table_lib.build_table(PAIRS, TOKENIZER.vocab, source="wordnet")
  table_lib.save_table(made, workdir / files.SYNONYMS)
  with pytest.raises(InputError, match="There is no WordNet"):
    find(config("wordnet"), workdir)
  (workdir / "checkpoints" / "10").mkdir(parents=True)
  assert find(config("wordnet"), workdir).fingerprint == made.fingerprint


def test_another_wordnet_makes_another_table_wherever_it_is_found(
  tmp_path, workdir, monkeypatch, see_wordnet_in
):
  read = []

  def of_wordnet(tokens, *, folder: str = ""):
    read.append(folder)
    return PAIRS

  def times_read(root, **options):
    see_wordnet_in(tmp_path / root)
    find(config("wordnet", **options), workdir)
    return len(read)

  monkeypatch.setitem(sources.SOURCES, "wordnet", of_wordnet)
  names = ("data.noun", "index.noun", "noun.exc")
  for root in "xy":
    (tmp_path / root / "corpora/wordnet").mkdir(parents=True)
    for name in names:
      path = tmp_path / root / "corpora/wordnet" / name
      path.touch()
      os.utime(path, ns=(0, 0))
  assert [times_read(root) for root in "xxyx"] == [1, 1, 2, 2]
  for i, name in enumerate(names):
    (tmp_path / "x/corpora/wordnet" / name).write_text("changed")
    assert [times_read("x"), times_read("x")] == [3 + i, 3 + i]
  assert times_read("x", wordnet_dir=str(tmp_path / "y")) == 5  # that of y
  packed = tmp_path / "z/corpora/wordnet.zip"
  packed.parent.mkdir(parents=True)
  for i in range(2):
    packed.write_text("changed" * i)
    assert [times_read("z"), times_read("z")] == [6 + i, 6 + i]
  monkeypatch.setattr(run_table, "RECIPE", -1)
  assert times_read("z") == 8


def test_a_table_is_built_once_and_found_by_all_it_depends_on(
  tmp_path, workdir, built, cache
):
  path, words = tmp_path / "t.npz", tmp_path / "words.txt"
  save_pairs(path, PAIRS)
  words.write_text("stay\n")
  sources = f"table path={path}"
  c = config(sources, stop_words=str(words))
  first = find(c, workdir)
  assert listed(first) == set(PAIRS[:2])
  assert find(c, workdir).fingerprint == first.fingerprint
  assert built == ["table path=t.npz"]

  words.write_text("primary\n")
  assert listed(find(c, workdir)) == set(PAIRS[1:])
  for name in ("keep_stop_words", "symmetric", "include_self"):
    find(config(sources, stop_words=str(words), **{name: True}), workdir)
  save_pairs(path, PAIRS[2:])
  os.utime(path, ns=(0, 0))
  assert listed(find(c, workdir)) == set(PAIRS[2:])
  assert len(built) == 6 == len(list(cache.glob("table-*.npz")))
  find(config(f"{sources} | {sources}"), workdir)
  assert len(built) == 7 == len(list(cache.iterdir()))


def test_a_table_of_another_vocabulary_is_another(tmp_path, workdir, built):
  write_vectors(tmp_path / "v.txt", (1, 0), (2, 1), (3, 1), (0, 1))
  c = config(f"vectors path={tmp_path}/v.txt")
  larger = make_tokenizer([*TOKENIZER.vocab, "more"], lowercase=True)
  assert find(c, workdir).vocab_size == 9
  assert find(c, workdir, larger).vocab_size == 10
  assert find(c, workdir).vocab_size == 9
  assert len(built) == 2


def test_files_of_one_name_size_and_time_are_told_apart(tmp_path, workdir):
  tables_of = {}
  for name, row in (("x", (9, 1)), ("y", (1, 9))):
    (tmp_path / name).mkdir()
    path = tmp_path / name / "v.txt"
    write_vectors(path, (1, 0), row, (2, 1), (0, 1))
    os.utime(path, ns=(0, 0))
    tables_of[name] = find(config(f"vectors path={path} top=1"), workdir)
  assert tables_of["x"].fingerprint != tables_of["y"].fingerprint


def test_a_damaged_table_of_the_cache_is_told_and_made_anew(
  tmp_path, workdir, built, cache
):
  save_pairs(tmp_path / "t.npz", PAIRS)
  c = config(f"table path={tmp_path}/t.npz")
  first = find(c, workdir)
  [cached] = cache.iterdir()
  cached.write_bytes(b"PK cut off")
  said = io.StringIO()
  again = run_table.find_or_build(c, workdir, TOKENIZER, Console(file=said))
  assert again.fingerprint == first.fingerprint
  assert "not used: " in said.getvalue() and cached.name in said.getvalue()
  assert len(built) == 2


def test_the_models_own_table_is_not_built(workdir, cache):
  assert find(config("model top=3"), workdir) is None
  assert not cache.exists()


def test_options_reach_the_table(tmp_path, workdir):
  save_pairs(tmp_path / "t.npz", PAIRS)
  source = f"table path={tmp_path}/t.npz"
  both = find(config(source, symmetric=True), workdir)
  assert listed(both) == {*PAIRS, ("chief", "stay")}
  naive = find(config(source, include_self=True), workdir)
  assert ("stay", "stay") in listed(naive)
  assert naive.source == "table path=t.npz"


@pytest.mark.parametrize("hard_correction", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("discriminator", CHOICES["discriminator"])
def test_a_table_is_wanted_where_something_asks_it(
  hard_correction, smoothing, discriminator
):
  changes = {
    "hard_correction": hard_correction,
    "smoothing": smoothing,
    "discriminator": discriminator,
  }
  asks = hard_correction or smoothing > 0 or discriminator != "none"
  assert run_table.wanted(config("wordnet", **changes)) is asks
  assert Options(masking=None, **changes).needs_table is asks


def test_what_a_table_cannot_be_made_of_is_refused(tmp_path, see_wordnet_in):
  (tmp_path / "here.txt").write_text("primary main\n")
  here = f"pairs path={tmp_path}/here.txt"
  run_table.check_paths(config(here))
  run_table.check_paths(config("model"))
  gone = config(f"{here} & vectors path=glove.6B.50d.txt")
  with pytest.raises(InputError, match="nlp.stanford.edu") as caught:
    run_table.check_paths(gone)
  assert "there is no file 'glove.6B.50d.txt'" in str(caught.value)
  gone.negatives.hard_correction = False
  run_table.check_paths(gone)  # nothing asks for it
  see_wordnet_in()
  for source, words in (
    (f"pairs path={tmp_path}", "there is no file"),
    (f"{here} | wordnet", "no WordNet where NLTK looks"),
    (f"wordnet folder={tmp_path}", "no WordNet in"),
    ("wordnet pos=x", "pos='x'.*nouns"),
    (f"vectors path={tmp_path}/here.txt among=x", "vocabulary or file"),
  ):
    with pytest.raises(InputError, match=words):
      run_table.check_paths(config(source))
  with pytest.raises(InputError, match="no WordNet in '.*/absent'"):
    run_table.check_paths(config("wordnet", wordnet_dir=f"{tmp_path}/absent"))
  with pytest.raises(DataError, match="here.txt:1: 'main' is not a finite"):
    run_table.check_paths(config(f"vectors path={tmp_path}/here.txt"))
  for words in (f"{tmp_path}/absent", "~nobody/absent"):
    with pytest.raises(InputError, match="negatives.stop_words=.*absent"):
      run_table.check_paths(config(here, stop_words=words))
