"""Corpora: specs, files, mixtures, units, identity, data sets and buckets."""

import io
import json
import os
import types

import datasets
import fsspec
import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants

from support import bucket_servers, hub_stand_in
from support.texts import COMPRESSORS, FORMATTERS, make_texts, to_parquet
from truenegs_jax.data import sources
from truenegs_jax.data.sources import (
  named_sources,
  open_corpus,
)
from truenegs_jax.runtime import text as text_lib
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  TrueNegsError,
  UnavailableError,
)

TEXTS = [f"The swan number {i} swims across the lake ." for i in range(100)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  """Keeps converted data sets out of the user's cache."""
  monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


class FakeWordNet:
  """Two lexicographer files of 100 nouns each, interleaved."""

  def all_synsets(self, pos):
    return [self.synset(i) for i in range(200)] if pos == "n" else []

  def synset(self, i):
    return types.SimpleNamespace(
      lexname=lambda: ("noun.plant", "noun.act")[i % 2],
      offset=lambda: i,
      definition=lambda: f"definition {i}",
      examples=lambda: [f"an  example\tof {i}"] if i % 3 == 0 else [],
    )

  def open(self, name):
    return io.StringIO(name)


def write_documents(folder, name: str, sizes) -> None:
  """Writes documents of these sizes in bytes."""
  texts = [f"{name[0]}{i} ".ljust(size, "x") for i, size in enumerate(sizes)]
  (folder / name).write_text("\n\n".join(texts))


def save(texts, folder, **options) -> str:
  datasets.disable_progress_bars()
  table = {"id": range(len(texts)), "text": texts}
  datasets.Dataset.from_dict(table).save_to_disk(folder, **options)
  return f"hf:{folder}"


# Specs.


@pytest.mark.parametrize(
  "spec, message",
  [
    (" ,", "' ,' names no text"),
    ("weight=3", "no name or path before the options"),
    ("{a} weight=0", "weight= must be above 0"),
    ("{a} wieght=3", "no option wieght=. Did you mean weight="),
    ("{a} document=line", "document='line' is unknown.* file or join"),
    ("{a} split=train", "no option split="),
    ("{a} weight=1, {b}", "1 of 2 parts have weight=. Set it for all"),
    ("{a} format=xml", "format='xml' is unknown.* csv, json"),
    ("{a}, {a}*", "a.txt' is in two parts"),
    ("wordnet", "'wordnet' cannot be read here"),
    ("none-*.txt", "no file.* no glob.* hf:NAME"),
    ("a\0b", "no file.* no glob.* hf:NAME"),
    ("empty", r"holds no text file \(.*\.txt, also compressed"),
    ("hf:{a}", "neither a folder nor a name .*remove hf:"),
    ("/dev/zero", "/dev/zero is a folder or a device"),
    ("broken.txt", "cannot be read.*No such file"),
    ("'\udcff.txt'", "is not named in UTF-8"),
  ],
)
def test_mistakes_in_a_spec_are_refused(tmp_path, monkeypatch, spec, message):
  monkeypatch.chdir(tmp_path)
  for name in ("a.txt", "b.txt", "\udcff.txt"):
    (tmp_path / name).write_text("text")
  (tmp_path / "empty").mkdir()
  (tmp_path / "broken.txt").symlink_to("nowhere")
  with pytest.raises(TrueNegsError, match=message):
    open_corpus(spec.format(a=tmp_path / "a.txt", b=tmp_path / "b.txt"))


def test_names_of_sources_are_no_paths(tmp_path):
  assert not named_sources(f"{tmp_path}/wordnet, hf:a/b, texts/*.txt weight=1")
  assert named_sources("x.txt, wordnet weight=2") == {"wordnet"}


def test_without_wordnet_its_rows_may_be_used(tmp_path):
  def open_wordnet():
    raise InputError("There is no WordNet.")

  with pytest.raises(UnavailableError, match="^There is no WordNet.$"):
    open_corpus("wordnet", open_wordnet=open_wordnet)


# Files.


def test_folders_give_their_files_of_known_formats_in_order(tmp_path):
  root, other = tmp_path / "corpus", tmp_path / "other"
  names = ["B.TXT.XZ", "a/z.txt.gz", "a.b/y.JSONL", "a.txt", "b.txt"]
  names += ["f.txt.bz2", "sub/deep/er/x.jsonl.zst", "to/l.txt"]
  hidden = ["._d.txt", ".git/e.txt", "README.md", "g.doc", "h.gz", "txt"]
  for name in [*reversed(names), *hidden]:
    path = (other if name[:3] == "to/" else root) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix, compression = text_lib.split_suffixes(path)
    form = FORMATTERS.get(suffix, FORMATTERS[".txt"])
    path.write_bytes(COMPRESSORS[compression](form([name])))
  (root / "to").symlink_to(other / "to")
  (root / "sub" / "circle").symlink_to(root)
  (root / "latest.txt").symlink_to(root / "a.txt")  # is read once
  assert list(open_corpus(str(root))) == names
  for path in [root, *root.rglob("*")]:  # of a colleague
    path.chmod(0o555 if path.is_dir() else 0o444)
  assert list(open_corpus(f"{root}/")) == names
  assert list(open_corpus(f"{root}/README.md, {root}/a*.txt")) == [
    *("README.md", "a.txt")
  ]
  assert list(open_corpus(f"{root}/**/**/*.gz")) == [*("a/z.txt.gz", "h.gz")]
  for path in [root, *root.rglob("*")]:
    path.chmod(0o755)


# Units and mixtures.


def test_units_and_passes_follow_the_shares(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "UNIT_BYTES", 2000)
  rng = np.random.default_rng(0)
  for part, count in zip("abc", (60, 8, 24), strict=True):
    (tmp_path / part).mkdir()
    for number in range(count):
      sizes = rng.integers(10, 400, 5)
      write_documents(tmp_path / part, f"{number:03}.txt", sizes)
  corpus = open_corpus(", ".join(f"{tmp_path}/{part}" for part in "abc"))
  texts = {unit: [*corpus.read_unit(unit)] for unit in reversed(corpus.units)}
  assert [*corpus] == [x for unit in corpus.units for x in texts[unit]]
  assert 20 < len(texts) < 80  # small files are together
  sizes = [0, 0, 0]
  for (part, _), documents in texts.items():
    sizes[part] += sum(len(text.encode()) for text in documents)
  assert corpus.passes(sizes) == (1, 1, 1)
  for weights in ((1, 1, 1), (3, 1, 0.5), (1, 20, 4)):
    pairs = zip("abc", weights, strict=True)
    spec = ", ".join(f"{tmp_path}/{part} weight={x}" for part, x in pairs)
    passes = open_corpus(spec).passes(sizes)
    read = np.array(passes) * sizes
    np.testing.assert_allclose(
      read / sum(read), np.array(weights) / sum(weights)
    )
    assert min(passes) == 1.0


def test_empty_parts_are_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(sources, "UNIT_BYTES", 1)
  (tmp_path / "a.txt").write_text("\n \n")
  with pytest.raises(DataError, match="a.txt' has no text"):
    open_corpus(f"{tmp_path}/a.txt")
  (tmp_path / "b.txt").write_text("\n")
  with pytest.raises(DataError, match="txt' has no text"):
    open_corpus(f"{tmp_path}/*.txt").passes([0])


def test_wordnet_gives_neighboring_synsets_in_a_document():
  corpus = open_corpus("wordnet", open_wordnet=FakeWordNet)
  numbers = [
    [int(line.split()[1]) for line in text.split("\n") if line[0] == "d"]
    for text in corpus
  ]
  acts, plants = list(range(1, 200, 2)), list(range(0, 200, 2))
  assert numbers == [acts[:64], acts[64:], plants[:64], plants[64:]]
  assert "definition 3\nan example of 3\ndefinition 5" in next(iter(corpus))
  [identity] = corpus.identity()
  assert identity["source"] == "wordnet" and len(identity["sha256"]) == 16


# Identity, and text that is cut off.


def test_identities_differ_if_documents_do(tmp_path):
  folder = tmp_path / "corpus"
  (folder / "sub").mkdir(parents=True)
  write_documents(folder, "a.txt", [10, 20])
  write_documents(folder / "sub", "b.txt", [30])
  (folder / "c.jsonl").write_text('{"text": "c", "title": "d"}\n')
  specs = ["{0}", "{0} document=block", "{0} document=record", "{0}/*.txt"]
  specs += ["{0} document=file", "{0} column=title", "{0}/*.jsonl"]
  specs += ["{0} document=join chars=9", "{0} document=join chars=8"]
  specs += ["{0}/sub/*.txt, {0}/a.txt", "{0}/a.txt, {0}/sub/*.txt"]
  specs += [f"{{0}}/a.txt weight=1, {{0}}/sub weight={x}" for x in (1, 2)]
  specs += [f"{save(TEXTS, tmp_path / 'saved')} {x}" for x in ("", "chars=3")]

  def identity_of(spec: str, folder=folder) -> str:
    return json.dumps(open_corpus(spec.format(folder)).identity())

  identities = [*map(identity_of, specs)]
  assert len({*identities}) == len(identities)
  mixture = "{0}/a.txt weight=2, {0}/sub weight=4"
  assert identity_of(mixture) == identities[12]
  moved = tmp_path / "elsewhere"
  folder.rename(moved)
  assert [identity_of(spec, moved) for spec in specs] == identities


def test_identities_change_with_the_files(tmp_path):
  write_documents(tmp_path, "a.txt", [10])
  path = tmp_path / "b.txt"
  changes = {
    "content": lambda: path.write_text("other text"),
    "time": lambda: os.utime(path, ns=(1, 1)),
    "name": lambda: path.rename(tmp_path / "0.txt"),
    "a new file": lambda: write_documents(tmp_path, "c.txt", [10]),
  }
  for name, change in changes.items():
    path.write_text("text")
    corpus = open_corpus(str(tmp_path))
    before = corpus.identity()
    corpus.check_unchanged(before)
    change()
    assert open_corpus(str(tmp_path)).identity() == corpus.identity(), name
    with pytest.raises(DataError, match="changed while"):
      corpus.check_unchanged(before)


# Data sets.


def test_saved_data_sets_are_read(tmp_path):
  save(["old"] * 4, tmp_path / "saved [1]", num_shards=4)
  spec = save([*TEXTS, None, " "], tmp_path / "saved [1]", num_shards=3)
  corpus = open_corpus(spec)
  assert list(corpus) == TEXTS
  for options, message in {
    "split=dev": "'dev'. Choose one of train",
    "column=id": "'id' holds int64, not text",
    "column=x": "no column 'x'. Columns: 'id', 'text'",
  }.items():
    with pytest.raises(TrueNegsError, match=message):
      list(open_corpus(f"{spec} {options}"))
  (tmp_path / "saved [1]/data-00001-of-00003.arrow").unlink()
  with pytest.raises(DataError, match="data-00001"):
    open_corpus(spec)
  (tmp_path / "latin").mkdir()
  (tmp_path / "latin/a.txt").write_bytes(b"caf\xe9")
  with pytest.raises(DataError, match="byte 0xe9"):  # not only "generating"
    list(open_corpus(f"hf:{tmp_path}/latin"))


NAME, REF = "owner/books", "refs/convert/parquet"


def convert(texts=TEXTS):
  """Returns the files of a branch that the hub's converter wrote."""
  return {
    f"en/train/000{number}.parquet": to_parquet(texts[number::2])
    for number in range(2)
  }


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """The revisions of NAME, which `datasets` reads."""
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
  with hub_stand_in.HubServer() as server:
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", server.url)
    with hub_stand_in.connect(server, monkeypatch):
      server.hub.models[NAME] = {REF: convert()}
      huggingface_hub.HfFileSystem.clear_instance_cache()
      yield server.hub.models[NAME]
  huggingface_hub.HfFileSystem.clear_instance_cache()


def test_data_sets_of_the_hub_are_identified_by_their_commit(hub, monkeypatch):
  hub["main"] = convert(TEXTS[:10])
  commits = [hub_stand_in.commit_of(NAME, x, hub[x]) for x in (REF, "main")]
  corpus = open_corpus(f"hf:{NAME} revision={REF}")
  [identity] = corpus.identity()
  assert identity["dataset"] == NAME and identity["revision"] == commits[0]
  assert sorted(corpus) == sorted(TEXTS)
  for package in ("huggingface_hub.constants", "datasets.config"):
    monkeypatch.setattr(f"{package}.HF_HUB_OFFLINE", True)
  corpus = open_corpus(f"hf:{NAME} revision={commits[0]}")
  assert corpus.identity() == [identity]
  # No other commit is read in its place.
  with pytest.raises(UnavailableError, match=f"at commit {commits[1]}, but"):
    open_corpus(f"hf:{NAME} revision={commits[1]}")


# Buckets, on servers of this machine.


@pytest.mark.parametrize("scheme", bucket_servers.PACKAGES)
def test_buckets_give_the_documents_of_local_files(
  scheme, tmp_path, monkeypatch
):
  monkeypatch.setenv("HOME", str(tmp_path / "home"))
  with bucket_servers.serve(scheme) as server:
    bucket_servers.connect(monkeypatch, scheme, server.port)
    name = f"b-{abs(hash(str(tmp_path))):x}"
    url = f"{scheme}://{name}"
    system = fsspec.filesystem(scheme)
    system.mkdir(name)
    texts = make_texts(30)
    files = {f"wiki/t{x}": form(texts) for x, form in FORMATTERS.items()}
    for suffix, pack in COMPRESSORS.items():
      files[f"wiki/sub/c.txt{suffix}"] = pack("\n\n".join(texts).encode())
    files |= {"wiki/.hidden.txt": b"no", "wiki/README.md": b"no"}
    files |= {"wiki/.old/a.txt": b"old", "wiki/.old/.b.txt": b"no"}
    for name, data in files.items():
      system.pipe(f"{url}/{name}", data)
      (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
      (tmp_path / name).write_bytes(data)
    hidden = "wiki/.old", "wiki/.old/*.txt", "wiki/*/*.txt*", "wiki/.hid*"
    for where in ("wiki", "wiki/t*", *hidden, "wiki/README.md"):
      corpus = open_corpus(f"{url}/{where}")
      local = open_corpus(f"{tmp_path}/{where}")
      assert list(corpus) == list(local) != []
      [there], [local] = corpus.identity(), local.identity()
      assert [x[:2] for x in there["files"]] == [x[:2] for x in local["files"]]
    identity = corpus.identity()
    system.pipe(f"{url}/wiki/README.md", b"new")
    with pytest.raises(DataError, match="changed while it was read"):
      corpus.check_unchanged(identity)
    for missing, message in (
      (f"{scheme}://no-such-bucket/a.txt", "Correct the name"),
      (f"{url}/none/*", "is no file.* no glob with"),
    ):
      with pytest.raises(UnavailableError, match=message):
        open_corpus(missing)
