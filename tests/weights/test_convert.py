"""Converting weights without training: `export WEIGHTS`."""

import json
import re

import numpy as np
import pytest

from support import tiny
from support.weight_files import read_tensors, run_export, write_export
from truenegs_jax.data.tokenizer import load_tokenizer, make_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.weights import export_model, hf_folder

WORDS = ["the", "##s", "café", "天"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
VOCAB += [f"w{i}" for i in range(tiny.V - len(VOCAB))]


def _export(init, output):
  return run_export(init, f"--output={output}")


def _write(folder, model, *, lowercase=True, **fields):
  tokenizer = make_tokenizer(VOCAB, lowercase=lowercase, **fields)
  return write_export(folder, model, tokenizer=tokenizer)


def _odd_pair():
  """Makes a pair with sizes of no named variant."""
  return pretrain.make_electra(
    vocab_size=tiny.V,
    variant="init",
    embedding_size=12,
    width=24,
    layers=3,
    heads=3,
    ffn=20,
    generator_sizes=(8, 1, 4, 10),
    generator_multiplier=1.0,
    max_positions=40,
    dropout=0.0,
  )


def _assert_same_files(a, b):
  assert {path.name for path in a.iterdir()} >= {"SHA256SUMS", *FILES}
  for name in FILES:
    assert (a / name).read_bytes() == (b / name).read_bytes(), name


FILES = "config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"


def test_discriminator_alone_is_exported_without_generator(
  tmp_path, no_torch, capsys
):
  folder = _write(tmp_path / "in", _odd_pair()) / "discriminator"
  assert _export(folder, tmp_path / "out") == 0
  (role,) = (tmp_path / "out").iterdir()
  _assert_same_files(role, folder)
  assert "RANDOM" not in capsys.readouterr().out
  assert "RANDOM" not in (role / "README.md").read_text()


def test_bare_bert_keeps_its_outputs_and_reports_random_heads(
  tmp_path, capsys, monkeypatch
):
  torch = pytest.importorskip("torch")
  monkeypatch.setenv("HF_HUB_OFFLINE", "1")
  monkeypatch.setattr(
    export_model, "compare_logits", lambda *args, **kwargs: ""
  )
  import transformers

  config = hf_folder.model_config(tiny.make_bert(), "bert", pad=0)
  torch.manual_seed(1)
  bare = transformers.BertModel(transformers.BertConfig(**config)).eval()
  with torch.no_grad():
    bare.pooler.dense.bias += 0.1
  bare.save_pretrained(tmp_path / "in")
  (tmp_path / "in" / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
  assert _export(tmp_path / "in", tmp_path / "out") == 0

  folder, output = tmp_path / "out" / "bert", capsys.readouterr().out
  card = (folder / "README.md").read_text()
  assert "pipeline_tag: feature-extraction" in card
  for name in "cls.predictions", "cls.seq_relationship":
    assert re.search(rf"DRAWN AT RANDOM[^.]*: .*{name}", output)
    assert re.search(rf"DRAWN AT\sRANDOM[^.]*: .*{name}", card, re.DOTALL)
  assert "bert." not in card
  auto = transformers.AutoModel.from_pretrained(folder).eval()
  inputs = torch.arange(tiny.V).reshape(2, -1)
  with torch.no_grad():
    converted, original = auto(inputs), bare(inputs)
  for name in "last_hidden_state", "pooler_output":
    assert torch.equal(converted[name], original[name])


@pytest.mark.parametrize(
  ("make", "options"),
  [
    (_odd_pair, {}),
    (tiny.make_bert, {"lowercase": False, "strip_accents": True}),
    (tiny.make_bert, {"lowercase": True, "strip_accents": False}),
  ],
  ids=["pair", "cased", "accents"],
)
def test_converted_model_is_byte_identical(
  tmp_path, no_torch, capsys, make, options
):
  model = make()
  folder = _write(tmp_path / "in", model, **options)
  assert _export(folder, tmp_path / "out") == 0
  assert {x.name for x in (tmp_path / "out").iterdir()} == set(model.roles)
  for role in model.roles:
    _assert_same_files(tmp_path / "out" / role, folder / role)
    card = (tmp_path / "out" / role / "README.md").read_text()
    assert "Converted, not trained, by truenegs_jax from: `in`\n" in card
    assert "RANDOM" not in card + capsys.readouterr().out


@pytest.mark.parametrize(("word", "lowercase"), [("Über", False), ("ℝ", True)])
def test_vocabulary_decides_the_case_without_a_tokenizer_config(
  tmp_path, no_torch, capsys, word, lowercase
):
  folder = _write(tmp_path / "in", tiny.make_bert()) / "bert"
  (folder / "tokenizer_config.json").unlink()
  (folder / "vocab.txt").write_text("\n".join([*VOCAB[:-1], word]) + "\n")
  (folder / "SHA256SUMS").unlink(missing_ok=True)
  assert _export(folder, tmp_path / "out") == 0
  written = tmp_path / "out" / "bert" / "tokenizer_config.json"
  assert json.loads(written.read_text())["do_lower_case"] == lowercase
  (folder / "vocab.txt").write_text("\n".join([*VOCAB, word]) + "\n")
  assert _export(folder, tmp_path / "out") == 2
  assert "70 words, but its vocabulary" in capsys.readouterr().err
  (folder / "vocab.txt").unlink()
  assert _export(folder, tmp_path / "out") == 2
  assert "no vocabulary file. Copy" in capsys.readouterr().err


def test_generator_alone_is_refused(tmp_path, capsys):
  folder = _write(tmp_path / "in", _odd_pair()) / "generator"
  assert _export(folder, tmp_path / "out") == 2
  assert "holds only generator" in capsys.readouterr().err
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", ["in", "in/bert"])
def test_output_that_overlaps_with_the_weights_is_refused(
  tmp_path, capsys, output
):
  folder = _write(tmp_path / "in", tiny.make_bert())
  (folder / "bert" / "README.md").write_text("")
  before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
  assert _export(folder / "bert", tmp_path / output) == 2
  error = capsys.readouterr().err
  assert "holds the weights" in error or "does not replace" in error
  after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
  assert after == before


ADDED = {"newword": tiny.V, "<url>": tiny.V + 1}
FLAGS = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
DECODER = {
  str(i): {"content": name, "special": False, **FLAGS}
  for name, i in {"[PAD]": 0, **ADDED}.items()
}


@pytest.mark.parametrize(
  ("file", "content"),
  [
    ("added_tokens.json", ADDED),
    ("tokenizer_config.json", {"added_tokens_decoder": DECODER}),
  ],
)
def test_tokens_that_users_added_keep_their_rows(tmp_path, file, content):
  transformers = pytest.importorskip("transformers")
  model = pretrain.make_bert(vocab_size=tiny.V + len(ADDED), variant="tiny")
  tokenizer = make_tokenizer([*VOCAB, *ADDED], lowercase=True)
  folder = write_export(tmp_path / "in", model, tokenizer=tokenizer) / "bert"
  (folder / "tokenizer_config.json").unlink()
  (folder / "tokenizer.json").unlink(missing_ok=True)
  (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
  (folder / file).write_text(json.dumps(content))
  assert _export(folder, tmp_path / "out") == 0
  exported = tmp_path / "out" / "bert"
  written = read_tensors(exported)
  for name, x in read_tensors(folder).items():
    np.testing.assert_array_equal(written[name], x)
  ours = load_tokenizer(str(folder), lowercase=True)
  assert ours.vocab == (*VOCAB, *ADDED)
  text = "The newword w11 <url>s"
  expected = ours.encode(text)
  assert [i for i in expected if i >= tiny.V] == [tiny.V, tiny.V + 1]
  for path in (folder, exported):
    theirs = transformers.AutoTokenizer.from_pretrained(path)
    assert theirs(text, add_special_tokens=False)["input_ids"] == expected
  (folder / file).write_text(json.dumps(content).replace("1", "x"))
  assert _export(folder, tmp_path / "bad") == 2
