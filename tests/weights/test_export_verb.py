"""The command `truenegs export` on the workdir of a tiny run."""

import json

import jax
import numpy as np
import pytest

from support import tiny
from support.weight_files import (
  TOKENIZER,
  random_params,
  read_tensors,
  run_export,
  write_run,
)
from truenegs_jax.configs import bert_base, electra_demo
from truenegs_jax.workdir.saved_model import build_model

CONFIG = electra_demo.get_config("runlocal")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  return _make_workdir(tmp_path_factory.mktemp("run"), CONFIG)


def _make_workdir(folder, config):
  """Writes a run with steps 10 and 20; parameters of 20 are those of 10 + 1."""
  first = random_params(build_model(config, vocab_size=tiny.V))
  second = jax.tree.map(lambda x: x + 1, first)
  write_run(folder, config, {10: first, 20: second})
  record = {"split": "held_out", "step": 20, "mlm": 3.5, "auc": 0.75, "lr": 0.1}
  lines = [record | {"step": 10, "mlm": 9.0}, record]
  (folder / "metrics.jsonl").write_text(
    "".join(json.dumps(line) + "\n" for line in lines) + '{"split": "tr'
  )
  return folder, first["embeddings"]["word"]


def test_exports_the_newest_step(workdir, no_torch, capsys):
  folder, word_VxE = workdir
  assert run_export(folder) == 0
  assert str(folder / "export") in capsys.readouterr().out
  np.testing.assert_array_equal(
    _word_table(folder / "export" / "generator"), word_VxE + 1
  )
  card = (folder / "export" / "generator" / "README.md").read_text()
  for line in "loss of masked tokens | 3.5000", "tokens | 0.7500 | 0.5000":
    assert line in card


def test_exports_a_given_step_to_a_separate_folder(workdir, no_torch):
  folder, word_VxE = workdir
  assert run_export(folder, "--step=10") == 0
  np.testing.assert_array_equal(
    _word_table(folder / "export-10" / "discriminator"), word_VxE
  )


@pytest.mark.parametrize("step", [None, 10])
def test_a_run_and_a_step_of_it_export_the_same_files(
  workdir, no_torch, tmp_path, step
):
  folder, _ = workdir
  by_flag = [folder, *([f"--step={step}"] if step else [])]
  path = folder / "checkpoints" / str(step or "")
  contents = []
  for flags in by_flag, [path]:
    assert run_export(*flags, f"--output={tmp_path / 'out'}") == 0
    files = sorted((tmp_path / "out").glob("*/*"))
    contents.append({str(path): path.read_bytes() for path in files})
  assert contents[0] == contents[1]
  assert len(contents[0]) == 12


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ([], "Name one run"),
    (["a", "b", "--output=c"], "Name one run"),
    (["--workdir=a"], "Pass the folder alone"),
    (["a"], "'a' is not the folder of a run"),
    (["a", "--output=c", "--step=3"], "and no --step"),
    (["hf://a/b"], "is a URL"),
    (["a", "--output=s3:/a/b"], "is a URL"),
  ],
)
def test_flags_that_do_not_go_together_are_refused(flags, message, capsys):
  assert run_export(*flags) == 2
  assert message in capsys.readouterr().err


def test_missing_step_error_lists_the_saved_steps(workdir, capsys):
  folder, _ = workdir
  assert run_export(folder, "--step=11") == 4
  assert (
    "no checkpoint of step 11. Saved steps: 10, 20." in capsys.readouterr().err
  )
  assert run_export(folder / "rnu") == 2
  assert "rnu' is not the folder of a run" in capsys.readouterr().err
  assert not (folder / "rnu").exists()


def test_changed_vocabulary_is_refused(workdir, capsys):
  folder, _ = workdir
  vocabulary = (folder / "vocab.txt").read_text()
  try:
    (folder / "vocab.txt").write_text(vocabulary.replace("w5\n", "v5\n"))
    assert run_export(folder) == 4
  finally:
    (folder / "vocab.txt").write_text(vocabulary)
  assert TOKENIZER.fingerprint in capsys.readouterr().err


def test_exports_bert_and_compares_it_with_transformers(tmp_path, capsys):
  pytest.importorskip("torch")
  config = bert_base.get_config("runlocal")
  config.init = "weights"  # which have a pooler
  folder, word_VxE = _make_workdir(tmp_path, config)
  assert run_export(folder) == 0
  printed = capsys.readouterr().out
  assert "loads BertForPreTraining and computes our logits" in printed
  (exported,) = (
    path for path in (folder / "export").iterdir() if path.is_dir()
  )
  assert exported.name == "bert"
  tensors = read_tensors(exported)
  np.testing.assert_array_equal(
    tensors["bert.embeddings.word_embeddings.weight"], word_VxE + 1
  )
  assert "cls.seq_relationship.weight" in tensors


def _word_table(folder):
  return read_tensors(folder)["electra.embeddings.word_embeddings.weight"]
