"""Exporting pre-trained models."""

import errno
import functools
import re

import huggingface_hub
import jax
import numpy as np
import pytest

from support import tiny
from support.weight_files import (
  TOKENIZER,
  load_params,
  random_params,
)
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.configs import bert_base, electra_demo
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import export_run
from truenegs_jax.runtime.errors import (
  DiskError,
  InputError,
  NonFiniteError,
  TrueNegsError,
)
from truenegs_jax.weights import export_model, hf_folder, hf_names


def _describe(c, *args):
  return export_run.describe_run(PretrainConfig.read(c), 20, *args)


CONFIG = electra_demo.get_config("runlocal")
HELD_OUT = {
  "mlm": 4.25,
  "mlm_uncorrected": 4.5,
  "replaced": 0.5,
  "detect": 0.6,
  "auc": 0.75,
  "corrected_of_slots": 0.00125,
}
RESULTS = {
  "steps": 20,
  "verdict": {"unigram_entropy": 6.5, "passed": False},
}
CONFIG.data.language = "no"  # without quotes, YAML reads False
CONFIG.negatives.sources = "wordnet"
SYNONYMS = "5,321 pairs for 1,344 tokens from vectors path=/home/me/g.txt"
ORIGIN = _describe(CONFIG, HELD_OUT, RESULTS, SYNONYMS)
BERT_CONFIG = bert_base.get_config("runlocal,sr_sent")
BERT_CONFIG.init = "/released/bert-base-uncased"
BERT_ORIGIN = _describe(BERT_CONFIG, {"mlm": 4.25}, {})


def _expected_files(*roles):
  names = (
    "README.md",
    "SHA256SUMS",
    "config.json",
    "model.safetensors",
    "tokenizer_config.json",
    "vocab.txt",
  )
  return {f"{r}/{name}" for r in roles for name in names}


FILES = _expected_files("discriminator", "generator")


def _with_params(model):
  return model, random_params(model)


def _bert(*, pooler):
  return pretrain.make_bert(vocab_size=tiny.V, variant="tiny", pooler=pooler)


@pytest.fixture(scope="module")
def pair():
  return _with_params(tiny.make_model())


@pytest.fixture(scope="module", params=[False, True], ids=["bert", "pooled"])
def bert(request):
  """BERT without and with a pooler."""
  return _with_params(_bert(pooler=request.param))


def _export(model_and_params, output, **changed):
  model, params = model_and_params
  arguments = dict(origin=BERT_ORIGIN if "bert" in params else ORIGIN) | changed
  return export_model.export_model(
    model, params, TOKENIZER, output, **arguments
  )


def _list_files(folder):
  return {
    path.relative_to(folder).as_posix()
    for path in folder.rglob("*")
    if path.is_file()
  }


def _read_files(folder):
  return {name: (folder / name).read_bytes() for name in _list_files(folder)}


def test_model_cards_of_a_pair(pair, tmp_path, no_torch):
  output = _export(pair, tmp_path / "export").output
  for role, size in (("discriminator", 32), ("generator", 16)):
    card = huggingface_hub.ModelCard.load(output / role / "README.md")
    is_generator = role == "generator"
    assert card.data.to_dict() == {
      "language": "no",
      "library_name": "transformers",
      "license": "unknown",
      "pipeline_tag": "fill-mask" if is_generator else "feature-extraction",
      "tags": ["electra", "truenegs_jax"],
    }
    for words in (
      f"# ELECTRA {role}, pre-trained with hard correction and soft",
      " (0.12% of the predictions corrected)\n",
      hf_names.NETWORKS[role].architecture,
      "https://arxiv.org/abs/2212.00460",
      f"2 layers of {size} units",
      "`wordnet`; the vocabulary was trained on it",
      "* Synonyms: 5,321 pairs for 1,344 tokens from vectors path=g.txt\n",
      "copyright Princeton",
      "20 of 8 rows of 32 tokens, seed 0, from scratch",
      "hard correction by wordnet (argmax) + soft regularization",
      "(cosine) x 0.1",
      "| loss of masked tokens | 4.5000 | 6.5000 |",
      "| loss of detecting replaced tokens | 0.6000 | 0.6931 |",
      "| AUC of detecting replaced tokens | 0.7500 | 0.5000 |",
      "not shown to beat guessing",
      "Trained on 5,120 tokens at most",
      "Positions beyond 32",
      "text is lower-cased, accents are stripped",
    ):
      assert words in card.text
    assert len(card.content.splitlines()) <= 64  # a page


def test_a_run_without_corrections_claims_none(pair, tmp_path, no_torch):
  config = electra_demo.get_config("baseline,runlocal")
  origin = _describe(config, {"mlm": 4.25}, RESULTS, SYNONYMS)
  output = _export(pair, tmp_path / "export", origin=origin).output
  card = (output / "generator" / "README.md").read_text()
  assert "# ELECTRA generator, a baseline without corrections\n" in card
  for claim in "True Negatives", "Synonyms", "orrected", "synonym reg":
    assert claim not in card


def test_model_card_of_bert(bert, tmp_path, no_torch):
  model, params = bert
  output = _export(bert, tmp_path / "export").output
  assert _list_files(output) == _expected_files("bert")
  card = (output / "bert" / "README.md").read_text()
  name = "BertForPreTraining" if model.pooler else "BertForMaskedLM"
  size = sum(x.size for x in jax.tree.leaves(params))
  for words in (
    "# BERT, pre-trained with sentence regularization\n",
    f"import AutoTokenizer, {name}\n",
    f"{size:,} parameters, 2 layers of 32 units",
    "from `bert-base-uncased`",
    "license: unknown",
    "BERT + sentence regularization x 1; 15% masked (80_10_10)",
  ):
    assert words in card
  assert "ELECTRA" not in card


@pytest.mark.parametrize(
  "make",
  [
    tiny.make_model,
    tiny.make_bert,
    functools.partial(tiny.make_bert, pooler=True),
  ],
)
def test_loading_and_exporting_again_gives_the_same_bytes(
  tmp_path, no_torch, make
):
  model, params = _with_params(make())
  params["embeddings"]["word"][7] = -0.0  # a sum would lose the sign
  first = _export((model, params), tmp_path / "first").output
  loaded, _ = load_params(first, model)
  assert np.signbit(loaded["embeddings"]["word"][7]).all()
  for name, x in ("loaded", loaded), ("same", params):
    second = _export((model, x), tmp_path / name).output
    assert _read_files(first) == _read_files(second)


@pytest.mark.parametrize(
  ("module", "name", "raised", "expected"),
  [
    (export_model, "compare_logits", TrueNegsError("differ"), TrueNegsError),
    (
      hf_folder.safetensors.numpy,
      "save_file",
      OSError(errno.ENOSPC, "No space left on device"),
      DiskError,
    ),
  ],
)
def test_failed_export_keeps_the_older_one(
  pair, tmp_path, no_torch, monkeypatch, module, name, raised, expected
):
  output = _export(pair, tmp_path / "export").output
  before = {file: (output / file).read_bytes() for file in FILES}

  def fail(*args, **kwargs):
    raise raised

  monkeypatch.setattr(module, name, fail)
  with pytest.raises(expected):
    _export(pair, output)
  assert {file: (output / file).read_bytes() for file in FILES} == before
  assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_folder_with_other_files_is_not_replaced(pair, tmp_path, no_torch):
  other = tmp_path / "home" / "generator" / "thesis.tex"
  other.parent.mkdir(parents=True)
  other.write_text("years of work")
  (tmp_path / "empty").mkdir()
  (tmp_path / "home" / "bert").symlink_to(tmp_path / "empty")
  with pytest.raises(InputError, match="does not replace: bert, generator"):
    _export(pair, tmp_path / "home")
  assert other.read_text() == "years of work"
  output = _export(pair, tmp_path / "export").output
  before = _read_files(output)
  with pytest.raises(InputError, match="does not replace: generator"):
    _export(pair, output, roles=["discriminator"])
  assert _read_files(output) == before


def test_output_may_be_a_link(pair, tmp_path, no_torch):
  first = _export(pair, tmp_path / "there").output
  (tmp_path / "link").symlink_to(first)
  assert _export(pair, tmp_path / "link").output == first
  assert (tmp_path / "link").is_symlink()


def test_non_finite_weights_are_refused(pair, tmp_path):
  model, params = pair
  params = jax.tree.map(np.copy, params)
  params["generator"]["layer_1"]["query"]["kernel"][0, 0] = np.nan
  with pytest.raises(NonFiniteError, match="layer_1/query/kernel holds 1 "):
    _export((model, params), tmp_path / "export")
  assert not list(tmp_path.iterdir())


def test_exported_models_work_in_transformers_without_network(
  pair, tmp_path, monkeypatch
):
  torch = pytest.importorskip("torch")
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  import transformers

  exported = _export(pair, tmp_path / "export")
  names = "ElectraForPreTraining and ElectraForMaskedLM"
  assert f"loads {names} and computes our logits" in exported.summary
  output = exported.output
  fill = transformers.pipeline(
    "fill-mask", model=str(output / "generator"), device="cpu"
  )
  filled = fill("w7 [MASK] w9", top_k=3)
  assert len(filled) == 3
  assert all(0 < entry["score"] < 1 for entry in filled)

  folder = output / "discriminator"
  auto = transformers.AutoModelForPreTraining.from_pretrained(folder)
  assert type(auto).__name__ == "ElectraForPreTraining"
  # The code of the model card runs.
  monkeypatch.chdir(folder)
  code = re.search(
    "```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL
  )
  names = {}
  exec(code[1], names)
  model, tokenizer = names["model"], names["tokenizer"]
  assert type(model) is type(auto)
  encoded = tokenizer(["w7 w8", "w9"], padding=True, return_tensors="pt")
  with torch.no_grad():
    assert model(**encoded).logits.shape == (2, 4)
