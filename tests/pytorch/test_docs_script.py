"""The script of the documentation for PyTorch runs on a tiny BERT."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from support.doc_pages import ROOT, write_files
from support.mini_wordnet import write_wordnet
from support.texts import LETTERS
from truenegs_jax.data.tokenizer import SPECIALS

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")  # of transformers' Trainer

PAGE = ROOT / "docs" / "how_to" / "use_in_pytorch.md"
WORDS = ["house", "home", "firm", "stay", "remain", "the", "this", "is", "##s"]


@pytest.mark.slow
def test_the_script_of_the_docs_continues_a_bert(tmp_path):
  import transformers

  vocab = [*SPECIALS, *WORDS, *LETTERS]
  (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n")
  tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
  tokenizer.save_pretrained(tmp_path / "bert")
  config = transformers.BertConfig(
    vocab_size=len(vocab),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
  )
  torch.manual_seed(0)
  transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
  words = np.random.default_rng(0).choice(WORDS[:8], (400, 12))
  (tmp_path / "text.txt").write_text("\n".join(map(" ".join, words)))
  write_wordnet(tmp_path / "cache" / "nltk_data" / "corpora" / "wordnet")
  write_files(PAGE, tmp_path)
  done = subprocess.run(
    [sys.executable, "continue_bert.py", "bert", "text.txt", "50"],
    cwd=tmp_path,
    env=os.environ
    | {
      "TRUENEGS_CACHE": str(tmp_path / "cache"),
      "PYTHONPATH": os.pathsep.join([str(ROOT), os.getenv("PYTHONPATH", "")]),
      "CUDA_VISIBLE_DEVICES": "",
    },
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  before, after = map(float, re.findall(r"(?:before|after): (.*)", done.stdout))
  assert after < before - 0.02, done.stdout
  assert (tmp_path / "corrected" / "model.safetensors").exists()
