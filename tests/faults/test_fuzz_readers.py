"""Damaged files are read or refused, within bounds, and run no code.

One table of all readers, one property; files are damaged by hypothesis.
"""

import functools
import gzip
import io
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import datasets
import hypothesis
import nltk
import numpy as np
import pytest
from hypothesis import strategies as st

from support import flax_files, json_readers, tiny, weight_files
from support.faults import tries
from support.mini_wordnet import write_wordnet
from support.small_rows import TOKENIZER
from support.texts import COMPRESSORS, FORMATTERS
from truenegs_jax.configs import bert_base
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.runtime.errors import MAX_MESSAGE, TrueNegsError, printable
from truenegs_jax.synonyms import sources
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.vocabulary import Vocabulary
from truenegs_jax.tasks import records, squad
from truenegs_jax.tasks.task import TASKS
from truenegs_jax.weights import find
from truenegs_jax.workdir.saved_model import build_model

CASES = {False: 5, True: 1000}  # of each reader, in make test-faults
MAX_SECS, MAX_BYTES = 5, 200_000_000  # of processor time, of memory
TEXTS = ["A swan, mute.", 'say "x"\u2028y', "é 語 𝄞", "a\tb"]
WORDS = ("house", "home", "firm", "take", "assume", "in", "maison", "demeure")
VECTORS = np.arange(24, dtype="<f4").reshape(8, 3) - 7
MYTHES = "UTF-8\nhouse|2\n(noun)|home|firm (fam.)\n(verb)|take\nhome|1\n-|house"
OMW = "# French\tfra\n00001740-n\tfra:lemma\tmaison\n00001740-n\tlemma\tdemeure"


class Reader(NamedTuple):
  """A function that reads the file of its path, and a valid file.

  Attributes:
    read: all that can be read of the file.
    content: of the file; None if `write_folders` writes it.
    pack: compresses the content; damage is done before or after.
  """

  read: Callable[[pathlib.Path], Any]
  content: bytes | None = None
  pack: Callable[[bytes], bytes] = bytes


class _Canary:
  """Creates the folder `canary` when its pickle is executed."""

  def __reduce__(self):
    return os.mkdir, ("canary",)


def to_zip(name, data):
  """Returns a zip file with one member."""
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr(name, data)
  return file.getvalue()


def to_npy(array, **options):
  file = io.BytesIO()
  np.save(file, array, **options)
  return file.getvalue()


def to_tar(data):
  file = io.BytesIO()
  with tarfile.open(fileobj=file, mode="w") as archive:
    info = tarfile.TarInfo("../canary")
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
  return file.getvalue()


def to_words(row):
  return b"\n".join(map(row, map(str.encode, WORDS), VECTORS))


def read_corpus(path):
  return list(open_corpus(str(path)))


def read_rows(path):
  rows_folder.verify_rows(path.parent)
  for split in rows_folder.SPLITS:
    rows = rows_folder.open_rows(path.parent, split)
    rows.take(np.arange(len(rows)))


def read_weights(folder):
  for network in find.Weights(str(folder)).networks.values():
    network.load()


def read_run(path):
  read_weights(next(x for x in path.parents if x.name == "run3"))


def read_source(source):
  return lambda path: list(source(Vocabulary(WORDS), path=str(path)))


def read_task(path):
  return [r.label("label", "classes") for r in records.read_file(path)]


def tsv(*rows):
  return "\n".join("\t".join(row) for row in rows).encode()


CORPORA = {
  f"corpus{suffix}": Reader(read_corpus, write(TEXTS))
  for suffix, write in FORMATTERS.items()
} | {
  f"corpus.txt{suffix}": Reader(read_corpus, "\n\n".join(TEXTS).encode(), pack)
  for suffix, pack in COMPRESSORS.items()
}
SYNONYMS = {
  "pairs.tsv": (sources.pairs, b"house\thome\nhome\thouse\n"),
  "lists.txt": (sources.pairs, b"house home firm\nhome house\ntake assume"),
  "ppdb.txt": (sources.pairs, b"[NN] ||| house ||| home ||| x=1 ||| 0-0"),
  "th_en.dat": (sources.pairs, MYTHES.encode()),
  "omw.tab": (sources.omw, OMW.encode()),
  "glove.txt": (
    sources.vectors,
    to_words(lambda word, x: word + b" %g %g %g" % tuple(x)),
  ),
}
TASK_READERS = {
  "own.tsv": (read_task, tsv(("text", "label"), ("a swan", "1"))),
  "own.csv": (read_task, b'text,label\n"a ""swan""",1\n'),
  "ori_x.json": (
    json_readers.read_published,
    b'{"context": "A swan.", "question": "Who?", "sample_id": 0, "answers":'
    b' [{"text": "swan", "answer_start": 2}]}',
  ),
  "cola.tsv": (
    lambda x: records.read_split(TASKS["cola"], "dev", str(x)),
    tsv(("gj04", "1", "", "A swan."), ("gj04", "0", "*", "Swan a.")),
  ),
}
WORDNET = ("data.noun", "index.noun", "verb.exc", "lexnames")
ROWS = (
  "train-00000-0000.tokens.npy",
  "held_out-00000-0000.types.npy",
  "unigram_V.npy",
)
RUN = (
  "vocab.txt",
  "checkpoints/3/_CHECKPOINT_METADATA",
  "checkpoints/3/run/metadata",
  "checkpoints/3/state/_METADATA",
  "checkpoints/3/state/manifest.ocdbt",
)
READERS = (
  {name: Reader(read) for name, (_, read) in json_readers.READERS.items()}
  | CORPORA
  | {
    "archive": Reader(read_corpus, "\n\n".join(TEXTS).encode(), to_tar),
    "archive.tar": Reader(read_corpus, b"A swan.", to_tar),
    "dataset/data-00000-of-00001.arrow": Reader(
      lambda x: list(open_corpus(f"hf:{x.parent}"))
    ),
    "vocab.txt": Reader(
      lambda x: load_tokenizer(str(x), lowercase=True),
      "\n".join(TOKENIZER.vocab).encode(),
    ),
    "stop_words.txt": Reader(
      lambda x: TableRequest(stop_words=str(x)).load_stop_words(), b"au\nles\n"
    ),
    "nltk/corpora/stopwords.zip": Reader(
      lambda _: TableRequest(language="fr").load_stop_words(),
      b"au\nles\n",
      functools.partial(to_zip, "stopwords/french"),
    ),
    "nltk/corpora/omw-1.4.zip": Reader(
      lambda _: list(sources.omw(Vocabulary(WORDS), language="fr")),
      OMW.encode(),
      functools.partial(to_zip, "omw-1.4/fra/wn-data-fra.tab"),
    ),
    "squad.json.xz": Reader(
      lambda x: squad.read_squad(str(x)),
      b'{"data": [{"paragraphs": [{"context": "A swan.", "qas": [{"id": "q",'
      b' "question": "Who?", "answers": [{"text": "swan", "answer_start": 2}'
      b"]}]}]}]}",
      COMPRESSORS[".xz"],
    ),
    "weights/model.safetensors": Reader(lambda x: read_weights(x.parent)),
    f"flax/{flax_files.FILE}": Reader(lambda x: read_weights(x.parent)),
  }
  | {n: Reader(read_source(s), data) for n, (s, data) in SYNONYMS.items()}
  | {n: Reader(read, data) for n, (read, data) in TASK_READERS.items()}
  | {
    f"nltk/corpora/wordnet/{name}": Reader(
      lambda _: list(sources.wordnet(Vocabulary(WORDS)))
    )
    for name in WORDNET
  }
  | {f"rows/{name}": Reader(read_rows) for name in ROWS}
  | {f"run3/{name}": Reader(read_run) for name in RUN}
)
REFUSED = {"archive", "archive.tar"}  # also if they are not damaged

# Extreme lengths, code, and what begins a file of another format.
LENGTHS = [
  struct.pack(order + kind, value)
  for order in "<>"
  for kind, value in zip(
    "HIIQQQ",
    (65535, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1),
    strict=True,
  )
]
NUMBERS = (b"-1", b"0", b"99999999999", b"1e999", b"nan", b"1" + b"0" * 5000)
PICKLE = pickle.dumps({"a": _Canary()}, protocol=2)
CODE = (
  PICKLE,
  to_npy(np.array([_Canary()], object), allow_pickle=True),
  to_zip("keys.npy", to_npy(np.array([_Canary()], object), allow_pickle=True)),
  b'__import__("os").mkdir("canary")',
  b'!!python/object/apply:os.mkdir ["canary"]\n',
  b"../canary",
  gzip.compress(b"\0" * 10**6),
)
# Name -> returns what takes the place of the rest of a file.
EDITS = {
  "flip": lambda rest, size, piece: (
    bytes(x ^ 1 << size % 8 for x in rest[:1]) + rest[1:]
  ),
  "cut": lambda rest, size, piece: b"",
  "drop": lambda rest, size, piece: rest[size:],
  "repeat": lambda rest, size, piece: rest[:size] + rest,
  "stretch": lambda rest, size, piece: rest[: 1 + size % 4] * 30_000 + rest,
  "insert": lambda rest, size, piece: piece + rest,
  "overwrite": lambda rest, size, piece: piece + rest[len(piece) :],
  "replace": lambda rest, size, piece: piece,
  "number": lambda rest, size, piece: re.sub(
    rb"\d+", NUMBERS[size % len(NUMBERS)], rest, count=1
  ),
}
EDIT = st.tuples(
  st.sampled_from(list(EDITS)),
  st.integers(-100, 2**20),  # the place, modulo the size
  st.integers(0, 300),
  st.binary(max_size=12) | st.sampled_from([*LENGTHS, *CODE]),
)
# In place of a JSON file, and as text in place of a value.
DEEP = 3_000
NESTED = (b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP)
ODD = (b"null", b"[]", b"{}", b"3", b"")
VALUES = (
  *("null", "[]", "{}", '""', '"x"', "true", "-1", "0", "0.5", "[[]]"),
  *("1" + "0" * 30, "1" + "0" * 5000, "1e999", "NaN", "-Infinity"),
  *('"\\ud800"', '"\\u0000"', '{"a": {"b": [1]}}', "[" * 90 + "]" * 90),
  *("[" * DEEP + "]" * DEEP, '{"a": 1, "a": 2}', '"\xff"'),
)
# Files whose damaged lines are dropped, or whose odd values are defaults.
TOLERANT = {"run/metrics.jsonl", "finished/metrics.jsonl"}
DAMAGES = st.tuples(st.booleans(), st.lists(EDIT, min_size=1, max_size=3))


def damage(reader, data, is_inside, edits):
  """Returns the damaged content of a file."""
  is_inside &= reader.content is not None
  data = reader.content if is_inside else data
  for kind, place, size, piece in edits:
    at = 0 if kind == "replace" else place % (len(data) + 1)
    data = data[:at] + EDITS[kind](data[at:], size, piece)
  return reader.pack(data) if is_inside else data


def write_folders(root):
  """Writes the files of READERS, and those that they need."""
  json_readers.write_files(root)
  shutil.copytree(root / "weights", root / "flax")
  flax_files.convert(root / "flax")
  write_wordnet(root / "nltk" / "corpora" / "wordnet")
  datasets.disable_progress_bars()
  data = datasets.Dataset.from_dict({"text": TEXTS})
  data.save_to_disk(str(root / "dataset"))
  c = bert_base.get_config("runlocal")
  c.model.variant = "tiny"
  model = build_model(c, vocab_size=tiny.V)
  params = weight_files.random_params(model)
  weight_files.write_run(root / "run3", c, {3: params})
  for name, reader in READERS.items():
    if reader.content is not None:
      (root / name).parent.mkdir(parents=True, exist_ok=True)
      (root / name).write_bytes(reader.pack(reader.content))
  shutil.copy(root / "ori_x.json", root / "trans_x.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The current folder, with all files; a canary there shows that code ran."""
  root = tmp_path_factory.mktemp("readers")
  with pytest.MonkeyPatch.context() as patch:
    patch.chdir(root)
    patch.setenv("TRUENEGS_CACHE", str(root / "cache"))
    patch.setattr(nltk.data, "path", [str(root / "nltk")])
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", root / "cache")
    write_folders(root)
    pickle.loads(PICKLE)
    (root / "canary").rmdir()  # so the pickle is not harmless
    yield root


def peak_bytes(*, reset=False):
  """Returns the most memory that was resident since it was last reset."""
  if reset:
    pathlib.Path("/proc/self/clear_refs").write_text("5")
  status = pathlib.Path("/proc/self/status").read_text()
  return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1024


def read_or_explain(path, read):
  """Reads a file within bounds; returns the message that refuses it, or ""."""
  secs, num_bytes = time.process_time(), peak_bytes(reset=True)
  try:
    read(path)
    return ""
  except TrueNegsError as e:
    message = printable(e)
    assert len(message) <= MAX_MESSAGE + len(" ... ")
    assert message.replace("\n", "").isprintable()
    return message
  finally:
    assert not pathlib.Path("canary").exists(), "code was executed"
    assert time.process_time() - secs < MAX_SECS
    assert peak_bytes() - num_bytes < MAX_BYTES


def test_intact_files_are_read(folder):
  refused = {
    name
    for name, reader in READERS.items()
    if read_or_explain(folder / name, reader.read)
  }
  assert refused == REFUSED


def find_refusal(path, read, data):
  """Returns the message that refuses a file of these bytes, or ""."""
  original = path.read_bytes()
  path.write_bytes(data)
  try:
    return read_or_explain(path, read)
  finally:
    path.write_bytes(original)


@pytest.mark.parametrize("name", json_readers.READERS)
def test_odd_json_is_used_or_refused_with_its_name(folder, name):
  path, read = folder / name, READERS[name].read
  for data in (*NESTED, *ODD):
    message = find_refusal(path, read, data)
    assert not message or path.name in message
    assert message or data in ODD or name in TOLERANT


@pytest.mark.parametrize("index", tries(22, 400))
def test_odd_values_of_json_are_used_or_refused_with_its_name(folder, index):
  rng = random.Random(index)
  name = list(json_readers.READERS)[index % len(json_readers.READERS)]
  lines = (folder / name).read_text().splitlines()
  is_lines = name.endswith(".jsonl")
  value = json.loads(lines[0] if is_lines else "\n".join(lines))
  parent, key = {"": value}, ""
  while isinstance(parent[key], dict | list) and parent[key]:
    parent = parent[key]
    keys = list(parent) if isinstance(parent, dict) else range(len(parent))
    key = rng.choice(keys)
    if rng.random() < 0.3:
      break
  parent[key] = "@"
  text = json.dumps(value).replace('"@"', rng.choice(VALUES))
  path, read = folder / name, READERS[name].read
  message = find_refusal(path, read, text.encode("latin-1"))
  assert not message or path.name in message
  assert not read_or_explain(path, read)  # nothing is kept


# Orbax's reads of a damaged index end after its event loop is closed; commands
# print none of it (`runtime.errors.start_command`).
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
  "all_cases", [False, pytest.param(True, marks=pytest.mark.faults)]
)
def test_damaged_files_are_read_or_refused(folder, name, all_cases):
  path, reader = folder / name, READERS[name]
  data = path.read_bytes()
  count = CASES[all_cases]

  @hypothesis.settings(
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=count,
    phases=[hypothesis.Phase.generate],  # to shrink takes minutes
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  @hypothesis.given(DAMAGES)
  def check(damages):
    find_refusal(path, reader.read, damage(reader, data, *damages))

  check()
