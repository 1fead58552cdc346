"""Rows have all of the text, whoever builds them and whatever stops them."""

import concurrent.futures
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from support import commands, runs
from support.small_rows import (
  SMALL,
  read_letters,
  read_split,
  write_rows,
  write_sources,
  write_texts,
)
from support.texts import make_texts, to_jsonl
from support.tokenizer_files import write_vocabulary
from truenegs_jax.data import build, sources, vocabulary
from truenegs_jax.data import prepare as prepare_lib
from truenegs_jax.data.prepare import prepare
from truenegs_jax.data.rows import (
  SPLITS,
  open_rows,
  padding_warning,
  verify_rows,
)
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.data.tokenizer_files import load_tokenizer
from truenegs_jax.runtime import files
from truenegs_jax.runtime.errors import (
  DataError,
  DiskError,
  InputError,
  UnavailableError,
)

ROOT = str(pathlib.Path(__file__).parents[2])


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache"


@pytest.fixture
def small(monkeypatch):
  """Makes units and slices of some documents."""
  for module, name, value in SMALL:
    monkeypatch.setattr(module, name, value)


def join_letters(texts) -> str:
  return "".join("".join(texts).split())


def check_text(folder, texts) -> None:
  """Checks that each document is once in one split, in order."""
  rest = {split: read_letters(folder, split) for split in SPLITS}
  for text in map(join_letters, texts):
    split = next(split for split in SPLITS if rest[split].startswith(text))
    rest[split] = rest[split].removeprefix(text)
  assert not any(rest.values())


def test_rows_have_the_text_whoever_builds_them(tmp_path, small):
  spec = ", ".join(f"{x} weight=1" for x in write_sources(tmp_path).split(","))
  options = {"layout": "packed", "held_out": 0.1}
  manifest = write_rows(tmp_path / "one", spec, **options)
  expected = runs.read_files(tmp_path / "one")
  if importlib.util.find_spec("apache_beam"):
    write_rows(tmp_path / "beam", spec, runner="FnApiRunner", **options)
    assert runs.read_files(tmp_path / "beam") == expected
  write_rows(tmp_path / "three", spec, workers=3, **options)
  assert runs.read_files(tmp_path / "three") == expected
  assert len(manifest["splits"]["train"]["shards"]) > 9
  assert {*expected} == {"manifest.json", *manifest["files"]}


@pytest.mark.parametrize("seed", range(2))
def test_all_text_is_in_rows_in_order(tmp_path, monkeypatch, seed):
  rng = random.Random(seed)
  monkeypatch.setattr(build, "MIN_SLICE", rng.choice([10, 300, 10**6]))
  monkeypatch.setattr(build, "SLICE_DOCUMENTS", rng.choice([1, 3, 100]))
  monkeypatch.setattr(sources, "UNIT_BYTES", rng.choice([1, 3000]))
  (tmp_path / "texts").mkdir()
  for number in range(rng.randrange(1, 5)):
    texts = to_jsonl(make_texts(20, seed=10 * seed + number))
    (tmp_path / f"texts/{number}.jsonl").write_bytes(texts)
  for layout, held_out in itertools.product(("electra", "packed"), (0, 0.2)):
    options = {"layout": layout, "held_out": held_out, "length": 16}
    rows = tmp_path / f"{layout}-{held_out}"
    write_rows(rows, f"{tmp_path}/texts", **options)
    check_text(rows, sources.open_corpus(f"{tmp_path}/texts"))
    sizes = [len(read_letters(rows, split)) for split in SPLITS]
    share = sizes[1] / sum(sizes)
    assert 0.02 < share < 0.5 if held_out else not share
  # Documents, not slices, decide the draws of a layout.
  small = read_split(tmp_path / "electra-0", "train")["tokens"]
  monkeypatch.setattr(build, "MIN_SLICE", 10**6)
  monkeypatch.setattr(build, "SLICE_DOCUMENTS", 10**6)
  write_rows(tmp_path / "large", f"{tmp_path}/texts", held_out=0.0)
  large = read_split(tmp_path / "large", "train")["tokens"]
  np.testing.assert_array_equal(small, large)


class Killed(BaseException):
  """Ends a preparation as SIGKILL does: nothing of it handles this error."""


def die_at(patch, number) -> list[str]:
  """Kills preparations before their last removal, or before a file.

  Half of that file is on the disk. Returns a list to which names are added.
  """
  names = []
  write_file = build.write_file

  def step(path, data=b""):
    names.append(path.name)
    if len(names) > number:
      if data:
        half = path.with_name(f".{path.name}.0123456789abcdef")
        half.write_bytes(data[: len(data) // 2])
      raise Killed
    return write_file(path, data) if data else shutil.rmtree(path)

  patch.setattr(build, "write_file", step)
  patch.setattr(files, "remove_folder", step)
  return names


def test_a_killed_preparation_goes_on(tmp_path, small, monkeypatch):
  spec = write_sources(tmp_path)
  with monkeypatch.context() as patch:
    steps = die_at(patch, 1000)
    write_rows(tmp_path / "expected", spec)
  expected = runs.read_files(tmp_path / "expected")
  assert steps[-2] == "manifest.json" and steps[-1].startswith("unfinished-")
  rng = random.Random(0)
  last = len(steps) - 1
  for number in (0, 1, last - 1, last, *rng.choices(range(last), k=2)):
    rows = tmp_path / f"rows{number}"
    for kill in (number, rng.randrange(2)):
      with monkeypatch.context() as patch, contextlib.suppress(Killed):
        die_at(patch, kill)
        write_rows(rows, spec)
      if number < last:
        with pytest.raises(DataError, match="is not a rows folder"):
          open_rows(rows, "train")
    done = {path.name for path in rows.glob("unfinished-*/*-*.json")}
    with monkeypatch.context() as patch:
      again = die_at(patch, 1000)
      write_rows(rows, spec)
    assert not done & {*again}
    if number == last:  # nothing of a complete folder is removed
      shutil.rmtree(next(rows.glob("unfinished-*")))
    assert runs.read_files(rows) == expected


def test_text_out_of_reach_at_the_end_costs_no_work(tmp_path, monkeypatch):
  def fail(*_):
    raise UnavailableError("The bucket cannot be reached.")

  write = functools.partial(write_texts, texts=make_texts(60), vocab="train")
  with monkeypatch.context() as patch:
    patch.setattr(sources.Corpus, "check_unchanged", fail)
    with pytest.raises(UnavailableError):
      write(tmp_path / "rows")
  monkeypatch.setattr(vocabulary, "train_vocabulary", lambda *_, **__: 1 / 0)
  write(tmp_path / "rows")
  check_text(tmp_path / "rows", make_texts(60))


def test_a_mixture_lists_rows_again(tmp_path, small):
  spec = write_sources(tmp_path)
  first, second = spec.split(", ")
  folder = tmp_path / "rows"
  manifest = write_rows(folder, f"{first} weight=1, {second} weight=3")
  listed = manifest["splits"]["train"]["shards"]
  rows = open_rows(folder, "train")
  assert len(rows) == sum(count for _, count in listed)
  own = sum(count for name, count in listed if name < "00005")
  again = len(rows) - own
  assert again / own == pytest.approx(3, rel=0.1)
  plain = write_rows(tmp_path / "plain", second)["splits"]["train"]["rows"]
  names = [name for name, _ in listed if name > "00005"]
  assert max(map(names.count, names)) == np.ceil(again / plain)
  # Of the shard that is listed with some of its rows, counts are estimates.
  tokens_RxL = rows.take(np.arange(len(rows)))["tokens"]
  counts_V = np.bincount(tokens_RxL.ravel(), minlength=len(rows.unigram_V))
  np.testing.assert_allclose(counts_V[5:], rows.unigram_V[5:], rtol=0.05)
  padding = (tokens_RxL == rows.pad).mean()
  share = manifest["splits"]["train"]["padding_share"]
  assert share == pytest.approx(padding, abs=0.01)
  # Held-out documents are in no repeat, and are not repeated.
  names = [name for name, _ in manifest["splits"]["held_out"]["shards"]]
  assert len({*names}) == len(names) > 1
  held_out = {x.tobytes() for x in read_split(folder, "held_out")["tokens"]}
  assert not held_out & {x.tobytes() for x in tokens_RxL if (x > 0).all()}


def test_the_requested_share_of_documents_is_held_out(tmp_path, monkeypatch):
  (tmp_path / "texts").mkdir()
  for number in range(50):
    (tmp_path / f"texts/{number}.txt").write_text("a\n\n" * 10)
  # Of one unit, and of 50.
  for size, share, tolerance in (
    *[(10**6, share, 0) for share in (0.02, 0.15, 0.5)],
    (1, 0.15, 0.2),
  ):
    monkeypatch.setattr(sources, "UNIT_BYTES", size)
    rows = tmp_path / f"{size}-{share}"
    write_rows(rows, f"{tmp_path}/texts", held_out=share)
    count = len(open_rows(rows, "held_out"))
    assert count == pytest.approx(500 * share, rel=tolerance)


def test_with_few_documents_the_last_rows_are_held_out(tmp_path):
  few = [["a", "b"], make_texts(1), make_texts(2), make_texts(9)]
  for number, texts in enumerate(few):
    rows = tmp_path / f"{number}"
    write_texts(rows, texts)
    train, held_out = (len(open_rows(rows, split)) for split in SPLITS)
    assert held_out == max(1, round((train + held_out) / 10))
    letters = "".join(read_letters(rows, split) for split in SPLITS)
    assert letters == join_letters(texts)


def test_a_tiny_first_slice_has_a_held_out_row(tmp_path, monkeypatch):
  """Although 2 % of its rows are none."""
  monkeypatch.setattr(sources, "UNIT_BYTES", 1)
  (tmp_path / "texts").mkdir()
  (tmp_path / "texts/0.txt").write_text("a b\n\nc d")
  (tmp_path / "texts/1.txt").write_text("\n".join(make_texts(9)))
  manifest = write_rows(tmp_path / "rows", f"{tmp_path}/texts", held_out=0.02)
  for split in SPLITS:
    assert manifest["splits"][split]["shards"][0] == ["00000-0000", 1]


@pytest.mark.parametrize(
  ("texts", "message"),
  [
    (["\x01", "\u200e\n\x02"], "0 rows"),
    (make_texts(60), "changed while it was read"),
  ],
)
def test_unusable_text_is_rejected_and_its_slices_are_not_used(
  tmp_path, monkeypatch, texts, message
):
  with monkeypatch.context() as patch:
    if "changed" in message:
      times = itertools.count()
      patch.setattr(sources.Corpus, "identity", lambda _: [{"x": next(times)}])
    with pytest.raises(DataError, match=message):
      write_texts(tmp_path / "rows", texts)
  assert not (tmp_path / "rows/manifest.json").exists()
  (tmp_path / "rows-text/texts.jsonl").write_bytes(to_jsonl(make_texts(50)))
  write_texts(tmp_path / "rows", [])
  check_text(tmp_path / "rows", make_texts(50))


def test_files_of_others_are_never_replaced(tmp_path):
  (tmp_path / "rows").mkdir()
  (tmp_path / "rows/train-00000-0000.tokens.npy").write_text("x")
  (tmp_path / "file").write_text("x")
  (tmp_path / "plans/unfinished-thesis").mkdir(parents=True)
  for name in ("rows", "file", "plans"):
    with pytest.raises(DataError, match="exists and is not empty"):
      write_texts(tmp_path / name, make_texts(3))
  with pytest.raises(DiskError, match="could not be written"):
    write_rows(tmp_path / "file" / "rows", f"{tmp_path}/rows-text")
  for text in "rows-text", "rows-text/**/*.jsonl", "*text/r*/*.json*":
    (tmp_path / "rows-text/read").mkdir(exist_ok=True)
    (tmp_path / "rows-text/read/a.jsonl").write_bytes(to_jsonl(["a"]))
    with pytest.raises(InputError, match="would be read as text"):
      write_rows(tmp_path / "rows-text/rows", f"{tmp_path}/{text}")
  assert [*runs.read_files(tmp_path / "rows").values()] == [b"x"]
  write_rows(tmp_path / "rows-text/rows", f"{tmp_path}/*text/r*/*.jsonl")


def test_rows_are_found_again_by_their_text_and_options(tmp_path, cache):
  path = tmp_path / "texts.jsonl"
  path.write_bytes(to_jsonl(make_texts(40)))
  make = functools.partial(
    prepare, str(path), **{"length": 16, "vocab_size": 40, "held_out": 0.1}
  )
  folder, tokenizer = make()
  assert folder.parent == cache / "rows"
  assert tokenizer == load_tokenizer(str(folder), lowercase=True)
  changes = [{"length": 17}, {"vocab_size": 35}]
  changes += [{"accents": "keep"}, {"layout": "packed"}]
  changes += [{"lowercase": False}, {"held_out": 0.0}]
  folders = {make(**change)[0] for change in changes}
  assert len(folders) == 6 and folder not in folders
  assert make() == (folder, tokenizer)
  named = str(tmp_path / "rows")
  assert make(rows=named)[1] == tokenizer
  with pytest.raises(DataError) as caught:
    make(rows=named, length=20)
  message = str(caught.value)
  assert "length: 16 in the folder, 20 now" in message
  assert "lowercase" not in message
  os.utime(path, (1, 1))
  with pytest.raises(DataError, match="sources: "):
    make(rows=named)
  path.unlink()
  assert make(rows=named)[1] == tokenizer  # rows without their text
  with pytest.raises(DataError, match="is no file, folder or URL"):
    make()


def test_only_own_work_on_the_same_options_is_used(tmp_path, monkeypatch):
  (tmp_path / "rows").mkdir()
  write = functools.partial(write_texts, texts=make_texts(90), vocab="train")
  expected = write(tmp_path / "expected")
  for layout in ("electra", "packed", "electra"):
    with monkeypatch.context() as patch:
      patch.setattr(prepare_lib, "_write_manifest", lambda *_: 1 / 0)
      with pytest.raises(ZeroDivisionError):
        write(tmp_path / "rows", layout=layout)
  [records] = tmp_path.glob("rows/unfinished-*")
  path = records / "00000-0000.json"
  record = json.loads(path.read_text())
  record["files"]["../../thesis.txt"] = {"bytes": 4, "crc32": 0}
  path.write_text(json.dumps(record))
  for folder in (tmp_path, tmp_path / "rows"):
    (folder / "thesis.txt").write_text("mine")
  monkeypatch.setattr(vocabulary, "train_vocabulary", lambda *_, **__: 1 / 0)
  assert write(tmp_path / "rows")["files"] == expected["files"]
  for folder in (tmp_path, tmp_path / "rows"):
    assert (folder / "thesis.txt").read_text() == "mine"


def test_the_advice_against_padding_helps(tmp_path):
  path = tmp_path / "texts.jsonl"
  path.write_bytes(to_jsonl(["a b c d e f"] * 400))
  for options, layout, is_advised in (
    ("", "electra", True),
    ("document=join chars=60", "electra", True),
    ("document=join chars=9000", "electra", False),
    ("", "packed", False),
  ):
    rows = tmp_path / f"{options[-4:]}{layout}"
    spec = f"{path} {options}"
    manifest = write_rows(rows, spec, layout=layout, length=256, held_out=0.0)
    warning = padding_warning(manifest)
    assert bool(re.search("layout=packed.*chars=", warning)) == is_advised
    assert bool(warning) == is_advised


def test_two_calls_at_once_prepare_once(tmp_path, monkeypatch):
  manifests = []
  write = prepare_lib._write_manifest
  monkeypatch.setattr(
    prepare_lib, "_write_manifest", lambda *x: manifests.append(0) or write(*x)
  )
  (tmp_path / "texts.jsonl").write_bytes(to_jsonl(make_texts(300)))
  make = functools.partial(
    prepare, f"{tmp_path}/texts.jsonl", length=16, vocab_size=40
  )
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    # Locks of files are of their own in threads, as in processes.
    calls = [pool.submit(make) for _ in range(2)]
  assert calls[0].result() == calls[1].result() and len(manifests) == 1
  verify_rows(calls[0].result()[0])


def test_a_dry_run_prepares_nothing_and_only_pre_training_has_rows(tmp_path):
  text, rows = tmp_path / "a.jsonl", tmp_path / "r"
  text.write_bytes(to_jsonl(make_texts(9)))
  data = f"--config.data.sources={text} --config.data.rows={rows}"
  line = f"truenegs prepare --config=own {data} --config.dry_run"
  code, output = commands.type_line(line)
  assert code == 0 and "the rows would be prepared in" in output
  assert not rows.exists()
  code, output = commands.type_line("truenegs prepare --config=study_small")
  assert code == 2 and "that of a study is in study.base" in output


@pytest.mark.slow
def test_a_stopped_command_ends_cleanly_and_goes_on(tmp_path):
  rng = np.random.default_rng(1)
  words = np.array([f"w{i}" for i in range(400)])
  lines = [" ".join(rng.choice(words, 60)) for _ in range(28_000)]
  documents = ["\n".join(lines[i : i + 40]) for i in range(0, 28_000, 40)]
  (tmp_path / "large.txt").write_text("\n\n".join(documents))  # five slices
  write_vocabulary([*SPECIALS, *words], tmp_path / "vocab.txt")

  def list_flags(name, count):
    data = {
      "sources": f"{tmp_path}/large.txt",
      "vocab": f"{tmp_path}/vocab.txt",
    }
    data |= {"held_out": 0.1, "workers": count}
    data["rows"] = f"{tmp_path}/{name}"
    flags = [f"--config.data.{key}={value}" for key, value in data.items()]
    return [f"--config={ROOT}/truenegs_jax/configs/common.py", *flags]

  def start():
    command = [sys.executable, "-m", "truenegs_jax", "prepare"]
    return subprocess.Popen(
      command + list_flags("rows", 2),
      cwd=ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE,
      text=True,
      start_new_session=True,
    )

  # A terminal sends SIGINT to all processes of the group.
  for kill, number, code, secs in (
    (os.killpg, signal.SIGINT, 130, 0.1),
    (os.kill, signal.SIGKILL, -9, 0.6),
  ):
    command = start()
    children = pathlib.Path(f"/proc/{command.pid}/task/{command.pid}")
    while len(processes := (children / "children").read_text().split()) < 2:
      time.sleep(0.01)
    time.sleep(secs)
    kill(command.pid, number)
    _, err = command.communicate()
    assert command.returncode == code, err
    assert "Traceback" not in err and "leaked" not in err, err
    assert not (tmp_path / "rows/manifest.json").exists()
    deadline = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{x}") for x in processes):
      assert time.monotonic() < deadline, "workers outlive their parent"
      time.sleep(0.02)
  _, err = (command := start()).communicate()
  assert command.returncode == 0, err
  flags = shlex.join(list_flags("plain", 1))
  code, output = commands.type_line(f"truenegs prepare {flags}")
  assert code == 0, output
  assert runs.read_files(tmp_path / "rows") == runs.read_files(
    tmp_path / "plain"
  )
