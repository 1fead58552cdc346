"""Exports to one folder do not mix, and their files are verified."""

import os
import random
import shutil
import subprocess
import sys

import pytest

from support import tiny, weight_files
from support.faults import tries
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import export_model, hf_folder

# Writes 20 files with its number, slowly, and says when it has begun.
WRITER = """
import pathlib, sys, time
from truenegs_jax.runtime.files import atomic_folder
output, number, secs = sys.argv[1:]
with atomic_folder(pathlib.Path(output)) as folder:
  print("begun", flush=True)
  for i in range(20):
    (folder / str(i)).write_text(number)
    time.sleep(float(secs) / 20)
"""


def start(output, number, secs):
  command = [sys.executable, "-c", WRITER, output, str(number), str(secs)]
  return subprocess.Popen(command, stdout=subprocess.PIPE)


@pytest.mark.parametrize("case", tries(1, 30))
def test_writers_of_one_folder_leave_one_whole_folder(tmp_path, case):
  output = tmp_path / "out[1]"
  secs = [0.3, 0.02 * (case % 3), 0.1]  # the first is often the last to end
  writers = [start(output, i, x) for i, x in enumerate(secs)]
  for writer in writers:
    writer.communicate()
    assert writer.returncode == 0
  texts = [path.read_text() for path in output.iterdir()]
  assert len(texts) == 20 and len(set(texts)) == 1
  assert os.listdir(tmp_path) == [output.name]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
  model = tiny.make_model(max_positions=64)
  folder = tmp_path_factory.mktemp("export")
  weight_files.write_export(folder, model, roles=["discriminator"])
  export_model.write_checksums(folder / "discriminator")
  return folder / "discriminator"


@pytest.mark.parametrize("case", tries(3, 200))
def test_a_changed_bit_of_an_export_is_refused_with_a_fix(exported, case):
  rng = random.Random(case)
  path = sorted(exported.iterdir())[case % 5]  # a file, or the sums
  content = path.read_bytes()
  changed, at = bytearray(content), rng.randrange(len(content))
  changed[at] ^= 1 << rng.randrange(8)
  hf_folder.open_network(exported)
  try:
    path.write_bytes(changed)
    with pytest.raises(InputError, match="damaged.*remove SHA256SUMS"):
      hf_folder.open_network(exported)
  finally:
    path.write_bytes(content)


# Edits of the text of SHA256SUMS that are refused.
SUMS = {
  "empty": lambda text: "",
  "other name": lambda text: text.replace(".safetensors", ".bin"),
  "no last line": lambda text: "\n".join(text.split("\n")[:-2]),
  "two sums": lambda text: text + "0" * 64 + text[64:],
}


@pytest.mark.parametrize("case", SUMS)
def test_every_file_that_is_read_has_a_checksum(exported, tmp_path, case):
  folder = shutil.copytree(exported, tmp_path / "export")
  hf_folder.open_network(folder)
  path = folder / hf_folder.CHECKSUMS
  path.write_text(SUMS[case](path.read_text()))
  with pytest.raises(
    InputError, match="'.*' (is not as|is missing, but) listed"
  ):
    hf_folder.open_network(folder)
  path.unlink()  # a user may change an export without its sums
  weight_files.edit_config(folder, {"hidden_dropout_prob": 0.5})
  assert hf_folder.open_network(folder).fields["hidden_dropout_prob"] == 0.5
