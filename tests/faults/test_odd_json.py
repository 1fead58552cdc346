"""JSON in any file, whatever it holds, is used or refused with one message."""

import json
import random

import pytest

from support.faults import tries
from support.json_readers import READERS, write_files
from truenegs_jax.runtime.errors import TrueNegsError

DEEP = 3_000
NESTED = (b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP)
ODD = (b"null", b"[]", b"{}", b"3", b"")
# Files whose damaged lines are dropped, or whose odd values are defaults.
TOLERANT = {
  "run/metrics.jsonl",
  "finished/metrics.jsonl",
  "weights/tokenizer_config.json",
}
# In place of a value, as text.
VALUES = (
  *("null", "[]", "{}", '""', '"x"', "true", "-1", "0", "0.5", "[[]]"),
  *("1" + "0" * 30, "1" + "0" * 5000, "1e999", "NaN", "-Infinity"),
  *('"\\ud800"', '"\\u0000"', '{"a": {"b": [1]}}', "[" * 90 + "]" * 90),
  *("[" * DEEP + "]" * DEEP, '{"a": 1, "a": 2}', '"\xff"'),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with all files of READERS."""
  root = tmp_path_factory.mktemp("json")
  write_files(root)
  return root


def is_refused(path, read, data) -> bool:
  """Returns whether a file of these bytes is refused with its name."""
  original = path.read_bytes()
  path.write_bytes(data)
  try:
    read(path)
  except TrueNegsError as e:
    assert path.name in str(e) and len(str(e)) < 3000
    return True
  finally:
    path.write_bytes(original)
  return False


@pytest.mark.parametrize("name", READERS)
def test_odd_files_are_used_or_refused(folder, name):
  path, read = folder / name, READERS[name][1]
  content = path.read_bytes()
  assert not is_refused(path, read, content)
  for data in NESTED:
    assert is_refused(path, read, data) or name in TOLERANT
  for data in ODD:
    is_refused(path, read, data)


@pytest.mark.parametrize("index", tries(22, 2000))
def test_odd_values_are_used_or_refused(folder, index):
  rng = random.Random(index)
  name = list(READERS)[index % len(READERS)]
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
  path, read = folder / name, READERS[name][1]
  is_refused(path, read, text.encode("latin-1"))
  assert not is_refused(path, read, path.read_bytes())  # nothing is kept
