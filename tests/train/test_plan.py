"""Sizes, operations and the dry run, against published figures."""

import importlib
import io
import types

import jax
import pytest
from rich.console import Console

from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import dry_run
from truenegs_jax.train import build_run, plan, sharding
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.workdir.from_config import build_model

# Parameters: counted with transformers on models of these sizes. GFLOP a row:
# forward and backward, K slots, by hand.
SIZES = {
  # config: (all, embeddings, {role: own}, GFLOP)
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
# With the pooler and the next-sentence classifier: BertForPreTraining.
CARRYING = {"bert_base": 110_106_428, "bert_large": 336_226_108}
# (width, heads, ffn, layers, embeddings) of the generators.
GENERATORS = {
  "electra_small": (64, 1, 256, 12, 128),
  "electra_base": (256, 4, 1024, 12, 768),
  "electra_large": (256, 4, 1024, 24, 1024),
}
V = 30_522


def get_config(name, arg=""):
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config(arg)


def run_of(c):
  return build_run.build_run(
    c, types.SimpleNamespace(mask=4, cls=2, sep=3, vocab=("x",) * V)
  )


def shapes_of(c):
  model = build_model(c, vocab_size=V)
  init = lambda key: pretrain.init_params(model, key)
  return model, jax.eval_shape(init, jax.random.key(0))


@pytest.mark.parametrize("name", SIZES)
def test_parameters_and_operations_are_the_published(name):
  c = get_config(name)
  model, params = shapes_of(c)
  total, embeddings, own, gflop = SIZES[name]
  assert pretrain.count_parameters(params) == total
  assert pretrain.count_parameters(params["embeddings"]) == embeddings
  for role, expected in own.items():
    parts = [params[role], params[f"{role}_head"]]
    assert pretrain.count_parameters(parts) == expected
    shared = pretrain.select_params(params, role)
    assert pretrain.count_parameters(shared) == embeddings + expected
  assert plan.row_flops(run_of(c)) / 1e9 == pytest.approx(gflop, rel=2e-3)
  assert f"{total:,}" in plan.describe_parameters(model, params)


@pytest.mark.parametrize("name", CARRYING)
def test_a_continued_bert_has_all_of_the_released_one(name):
  _, params = shapes_of(get_config(name, "continue"))
  assert pretrain.count_parameters(params) == CARRYING[name]


@pytest.mark.parametrize("name", GENERATORS)
def test_the_multiplier_scales_the_width_and_heads_and_ffn_follow(name):
  model, _ = shapes_of(get_config(name))
  g = model.roles["generator"]
  found = (g.width, g.heads, g.ffn, g.layers, g.embedding_size)
  assert found == GENERATORS[name]


def test_operations_count_the_sentence_passes():
  plain, sentences = get_config("bert_base"), get_config("bert_base", "sr_sent")
  more = plan.row_flops(run_of(sentences)) / plan.row_flops(run_of(plain))
  assert 2.2 < more < 2.34  # 3 + 4 passes of the encoder for 3, less the head


@pytest.mark.parametrize(
  ("name", "arg"),
  [
    ("electra_small", "hc_glove,len512"),
    ("bert_base", "sr_sent,runlocal"),
  ],
)
def test_a_dry_run_touches_nothing(name, arg, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  c = get_config(name, arg)
  c.batch_size = 16 * c.optim.accumulation
  console = Console(record=True, width=100, file=io.StringIO())
  assert dry_run.dry_run(c, Weights(""), console) == 0
  text = console.export_text()
  model, _ = shapes_of(c)
  assert f"{c.steps:,} of 16 rows of {c.length} tokens" in text
  assert "embeddings/word" in text and "mesh" in text
  assert not list(tmp_path.iterdir())


def test_a_dry_run_sizes_the_model_by_a_vocabulary_that_is_there(tmp_path):
  c = get_config("bert_base", "runlocal")
  c.data.vocab = str(tmp_path)
  (tmp_path / "vocab.txt").write_text("a\n" * 77)
  tokenizer, source = dry_run.placeholder_tokenizer(c)
  assert len(tokenizer.vocab) == 77 and "vocab.txt" in source
  c.data.vocab = "google-bert/bert-base-uncased"
  assert len(dry_run.placeholder_tokenizer(c)[0].vocab) == c.data.vocab_size


def test_bytes_on_a_device_are_those_of_its_share():
  c = get_config("electra_small", "runlocal")
  c.mesh.preset = "fsdp"
  tokenizer, _ = dry_run.placeholder_tokenizer(c)
  run = build_run.build_run(c, tokenizer)
  mesh = sharding.make_mesh(run.mesh_spec)
  split = plan.abstract_state(run, mesh)
  whole = sum(
    leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(split)
  )
  held = sharding.bytes_per_device(split)
  assert whole / 8 <= held < whole / 3  # the small arrays are whole
  assert f"state {plan.format_mib(held)}" in plan.describe_memory(split, {})
