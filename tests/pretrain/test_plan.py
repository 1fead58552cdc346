"""Sizes, FLOPs and the dry run equal published figures."""

import importlib
import io
import types

import jax
import pytest
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.pretrain import describe, plan, start
from truenegs_jax.pretrain import run as run_lib
from truenegs_jax.train import sharding
from truenegs_jax.workdir.saved_model import build_model

# Parameters as counted with transformers. GFLOP per row (forward and backward,
# K slots) were computed by hand.
SIZES = {  # parameters of all and of each network, embeddings, GFLOP
  "electra_small": (14_196_219, (9_576_193, 647_162), 3_972_864, 9.0),
  "electra_base": (119_386_427, (85_645_825, 9_903_418), 23_837_184, 342.2),
  "electra_large": (
    *(354_655_291, (303_360_001, 19_512_378), 31_782_912, 1110.9),
  ),
  "bert_base": (109_514_298, (85_677_114,), 23_837_184, 301.3),
  "bert_large": (335_174_458, (303_391_546,), 31_782_912, 1020.3),
}
VOCAB_SIZE = 30_522
SPEC = sharding.get_mesh_spec("dp")
LARGE = [
  pytest.param(name, marks=pytest.mark.slow)
  for name in ("electra_base", "electra_large", "bert_base", "bert_large")
]


def get_config(name, arg=""):
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config(arg)


def make_run(c, vocab=("x",) * VOCAB_SIZE, **options):
  tokenizer = types.SimpleNamespace(mask=4, cls=2, sep=3, vocab=vocab)
  return plan.make_run(PretrainConfig.read(c), tokenizer, **options)


def make_model(c):
  model = build_model(PretrainConfig.read(c), vocab_size=VOCAB_SIZE)
  return model, pretrain.param_shapes(model)


@pytest.mark.parametrize("name", ["electra_small", *LARGE])
def test_parameters_and_flops_are_the_published_ones(name):
  c = get_config(name)
  model, params = make_model(c)
  total, own, embeddings, gflop = SIZES[name]
  assert pretrain.count_parameters(params) == total
  assert pretrain.count_parameters(params["embeddings"]) == embeddings
  shown = describe.describe_parameters(model, params)
  for role, expected in zip(model.roles, own, strict=True):
    assert f"{total:,}: " in shown and f"{role} {expected:,}" in shown
  run = make_run(c)
  assert describe.row_flops(run) / 1e9 == pytest.approx(gflop, rel=2e-3)
  c.length //= 4  # rows that are read as four of a quarter
  assert describe.row_flops(run, 4) == 4 * describe.row_flops(make_run(c))


@pytest.mark.parametrize("num_devices", [1, 8])
def test_as_many_slots_are_computed_as_fit(num_devices):
  """A chunk's logits take a quarter of a device; fewer chunks would not fit."""
  c = get_config("electra_small")
  mesh = sharding.make_mesh(SPEC, jax.devices()[:num_devices])
  slots = masking.num_slots(c.length, c.masking.prob)
  rows = c.batch_size // num_devices
  counts = []
  for memory in (2**27, 2**28, 2**30, 2**34):
    chunk = make_run(c, mesh=mesh, memory=memory).vocabulary_chunk
    count = output_softmax.count_chunks(c.batch_size, slots, chunk)
    counts.append(count)

    def fits(count, memory=memory):
      return 8 * rows * -(-slots // count) * VOCAB_SIZE <= memory / 4

    assert fits(count) or count == slots
    assert count == 1 or not fits(count - 1)
  assert counts[-1] == 1 and counts[:2] == sorted(counts[:2], reverse=True)


@pytest.mark.parametrize(
  ("vocab", "is_strict"), [(("big", "##ly"), False), (("Ġbig", "ly"), True)]
)
def test_pieces_are_spared_where_spaces_are_marked(vocab, is_strict):
  c = get_config("electra_small")
  c.negatives.strict_subword = False
  assert make_run(c, vocab).options.strict_subword == is_strict


def test_the_objective_gets_arrays_only_for_keys_that_need_them():
  c = get_config("bert_base", "baseline")
  c.negatives.strict_subword = False
  assert make_run(c).abstract_aux() == {}
  c.masking.update({"prob": 0.4, "unit": "word"})
  run = make_run(c)
  aux = start.make_aux(run, None)
  assert aux.keys() == {"edges_V"}
  described = jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), aux)
  assert described == {
    name: (x.shape, x.dtype, x.sharding)
    for name, x in run.abstract_aux().items()
  }
  text = describe.describe_objective(run.config)
  assert "40% masked (80_10_10, whole words)" in text


def test_dry_run_writes_nothing(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  c = get_config("electra_small", "hc_glove,runlocal")
  c.batch_size, c.dry_run = 16 * c.optim.accumulation, True
  console = Console(record=True, width=100, file=io.StringIO())
  assert run_lib.run(c, tmp_path / "none", console) == 0
  text = console.export_text()
  model, _ = make_model(c)
  assert f"{c.steps:,} of 16 rows of {c.length} tokens" in text
  assert ": embeddings " in text and "mesh" in text
  assert "2,000 entries of 'train'" in text
  assert "glove.6B.50d.txt" in text.partition("needs ")[2]
  assert not list(tmp_path.iterdir())


def test_short_rows_grow_at_their_shares_of_the_schedule():
  config = PretrainConfig(steps=20, short_rows=0.5)
  parts = [plan.count_parts(config, step) for step in range(20)]
  assert parts == [4] * 10 + [2] * 5 + [1] * 5
