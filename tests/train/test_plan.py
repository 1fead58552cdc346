"""Sizes, FLOPs and the dry run equal published figures."""

import importlib
import io
import types

import jax
import pytest
from rich.console import Console

from truenegs_jax.data.tokens.tokenizer import SPECIALS
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import dry_run
from truenegs_jax.train import build_run, plan, sharding
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.workdir.from_config import build_model

# Parameters as counted with transformers. GFLOP per row (forward and backward,
# K slots) were computed by hand.
SIZES = {
  # config: (total, embeddings, {role: own}, GFLOP)
  "electra_small": (
    14_196_219,
    3_972_864,
    {"discriminator": 9_576_193, "generator": 647_162},
    9.0,
  ),
  "electra_base": (
    119_386_427,
    23_837_184,
    {"discriminator": 85_645_825, "generator": 9_903_418},
    342.2,
  ),
  "electra_large": (
    354_655_291,
    31_782_912,
    {"discriminator": 303_360_001, "generator": 19_512_378},
    1110.9,
  ),
  "bert_base": (109_514_298, 23_837_184, {"bert": 85_677_114}, 301.3),
  "bert_large": (335_174_458, 31_782_912, {"bert": 303_391_546}, 1020.3),
}
# With pooler and next-sentence classifier, as BertForPreTraining.
CONTINUED = {"bert_base": 110_106_428, "bert_large": 336_226_108}
# (width, heads, ffn, layers, embeddings) of the generators.
GENERATORS = {
  "electra_small": (64, 1, 256, 12, 128),
  "electra_base": (256, 4, 1024, 12, 768),
  "electra_large": (256, 4, 1024, 24, 1024),
}
VOCAB_SIZE = 30_522


def get_config(name, arg=""):
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config(arg)


def make_run(c):
  return build_run.build_run(
    c, types.SimpleNamespace(mask=4, cls=2, sep=3, vocab=("x",) * VOCAB_SIZE)
  )


def make_model(c):
  model = build_model(c, vocab_size=VOCAB_SIZE)
  return model, pretrain.param_shapes(model)


@pytest.mark.parametrize("name", SIZES)
def test_parameters_and_flops_are_the_published_ones(name):
  c = get_config(name)
  model, params = make_model(c)
  total, embeddings, own, gflop = SIZES[name]
  assert pretrain.count_parameters(params) == total
  assert pretrain.count_parameters(params["embeddings"]) == embeddings
  for role, expected in own.items():
    parts = [params[role], params[f"{role}_head"]]
    assert pretrain.count_parameters(parts) == expected
    shared = pretrain.select_params(params, role)
    assert pretrain.count_parameters(shared) == embeddings + expected
  assert plan.row_flops(make_run(c)) / 1e9 == pytest.approx(gflop, rel=2e-3)
  assert f"{total:,}" in plan.describe_parameters(model, params)


@pytest.mark.parametrize("name", CONTINUED)
def test_continued_bert_has_all_released_parameters(name):
  _, params = make_model(get_config(name, "continue"))
  assert pretrain.count_parameters(params) == CONTINUED[name]


@pytest.mark.parametrize("name", GENERATORS)
def test_generator_sizes_follow_from_its_width(name):
  model, _ = make_model(get_config(name))
  g = model.roles["generator"]
  sizes = (g.width, g.heads, g.ffn, g.layers, g.embedding_size)
  assert sizes == GENERATORS[name]


def test_flops_include_sentence_encodings():
  plain, sentences = get_config("bert_base"), get_config("bert_base", "sr_sent")
  ratio = plan.row_flops(make_run(sentences)) / plan.row_flops(make_run(plain))
  assert 2.2 < ratio < 2.34  # 3 + 4 encoder passes instead of 3; same head


@pytest.mark.parametrize(
  ("name", "arg"),
  [("electra_small", "hc_glove,len512"), ("bert_base", "sr_sent,runlocal")],
)
def test_dry_run_writes_nothing(name, arg, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  c = get_config(name, arg)
  c.batch_size = 16 * c.optim.accumulation
  console = Console(record=True, width=100, file=io.StringIO())
  assert dry_run.dry_run(c, Weights(""), console) == 0
  text = console.export_text()
  model, _ = make_model(c)
  assert f"{c.steps:,} of 16 rows of {c.length} tokens" in text
  assert "embeddings/word" in text and "mesh" in text
  assert not list(tmp_path.iterdir())


def test_dry_run_uses_the_size_of_a_local_vocabulary(tmp_path):
  c = get_config("bert_base", "runlocal")
  c.data.vocab = str(tmp_path)
  words = [*SPECIALS, *map(str, range(72))]
  (tmp_path / "vocab.txt").write_text("\n".join(words))
  tokenizer, source = dry_run.placeholder_tokenizer(c)
  assert len(tokenizer.vocab) == 77 and "vocab.txt" in source
  c.data.vocab = "google-bert/bert-base-uncased"
  assert len(dry_run.placeholder_tokenizer(c)[0].vocab) == c.data.vocab_size


def test_bytes_per_device_of_a_split_state():
  c = get_config("electra_small", "runlocal")
  c.mesh.preset = "fsdp"
  tokenizer, _ = dry_run.placeholder_tokenizer(c)
  run = build_run.build_run(c, tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec)
  state = plan.abstract_state(run, mesh)
  total = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
  local = sharding.bytes_per_device(state)
  assert total / 8 <= local < total / 3  # small arrays are not split
  assert f"state {plan.format_mib(local)}" in plan.describe_memory(state, {})
