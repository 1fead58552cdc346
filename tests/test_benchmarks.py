"""Tests the functions of the benchmarks, without measuring any speed."""

import functools
import itertools
import json
import math
import os
import pathlib
import re
import runpy
import subprocess

import jax
import numpy as np
import pytest
from absl import flags

from truenegs_jax.configs import bert_base
from truenegs_jax.runtime.errors import InputError

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "benchmarks"
NAMES = (
  *("timing", "steps", "roofline", "overheads", "memory"),
  *("coverage", "hlo_listing", "h100"),
)
PYTHON = ROOT / ".venv" / "h100" / "bin" / "python"
COMPILERS = ROOT / ".venv" / "h100" / ".compilers"  # made by make h100


@pytest.fixture(scope="module")
def scripts():
  """Returns the globals of each script by name; removes its flags."""
  before, scripts = set(flags.FLAGS), {}
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(FOLDER))
    for name in NAMES:
      scripts[name] = runpy.run_path(str(FOLDER / f"{name}.py"))
      for flag in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, flag)
  return scripts


def test_time_in_turns_balances_the_order_and_drops_the_warmup(scripts):
  order = []
  calls = {name: lambda name=name: order.append(name) for name in "abc"}
  secs = scripts["timing"]["time_in_turns"](calls, rounds=5, warmup=1)
  assert {len(values) for values in secs.values()} == {5}
  assert all(set(order[i : i + 3]) == set("abc") for i in range(0, 18, 3))
  for place in range(3):  # each call is twice at each place of a round
    assert sorted(order[place::3]) == list("aabbcc")
  assert sum(a == b for a, b in itertools.pairwise(order)) == 3  # once each


def test_paired_ratio_is_right_while_the_machine_drifts(scripts):
  rng = np.random.default_rng(0)
  drift = np.exp(np.cumsum(rng.normal(0, 0.05, 400)))
  secs = [scale * drift * rng.normal(1, 0.01, 400) for scale in (1.02, 1.0)]
  ratio = scripts["timing"]["paired_ratio"](*secs)
  assert ratio.low < 1.02 < ratio.high
  assert 0.0002 < ratio.half_width < 0.003


def test_positions_are_counted_from_the_shape_of_logits(scripts):
  logit_positions = scripts["roofline"]["logit_positions"]
  shapes = ((4, 9, 50), (36, 54), (36, 6, 9), (6, 9, 36), (50, 36))
  assert {logit_positions(x, 50) for x in shapes} == {36}
  assert {logit_positions(x, 50) for x in ((36, 49), (50 + 256, 7))} == {0}


def test_a_step_runs_on_random_rows_and_its_operations_are_counted(
  scripts, monkeypatch
):
  # As users compile: without its emitters, XLA turns scatters into loops.
  if "xla_cpu_use_fusion_emitters" in os.environ["XLA_FLAGS"]:
    monkeypatch.setattr(
      jax.stages.Lowered,
      "compile",
      functools.partialmethod(
        jax.stages.Lowered.compile, {"xla_cpu_use_fusion_emitters": True}
      ),
    )
  c = bert_base.get_config("hc,runlocal")
  c.model.variant = "embedding_size=16 width=32 layers=1 heads=2 ffn=64"
  step = scripts["steps"]["make_step"](c, pad_share=0.25)
  is_padding = [step.host_batch(i)["documents"] == 0 for i in range(40)]
  assert 0.23 < np.mean(is_padding) < 0.27
  has_synonyms_V = np.any(step.aux["bits_VxW"], axis=1)
  assert 0.38 < has_synonyms_V.mean() < 0.47
  terms = scripts["steps"]["make_step_calls"]({"hc": step})["hc"]()
  assert not terms["skipped"][0] and np.isfinite(float(terms["mlm"][0]))
  counts = scripts["overheads"]["count_operations"](step)
  assert counts["on LxV"] == 0 < counts["on KxV"] < counts["ops"]
  assert counts["gathers"] and counts["scatters"]


def test_memory_reports_a_config_without_data(scripts):
  c = bert_base.get_config("runlocal")
  c.mesh.preset, c.mesh.axes = "fsdp_tp", "model=2"
  lines = scripts["memory"]["report"](c, jax.devices()[:4])
  assert "data 2, model 2" in lines["devices"]
  assert "4 per mesh slice" in lines["batch"]
  assert re.search(r"arguments \d.*scratch \d", lines["memory"])


@pytest.mark.parametrize(
  ("kind", "seeds", "runs", "shares"),
  [
    ("normal", 2, 1, (1.0, 0.0, 0.0)),
    ("normal", 2, 1, (0.8, 0.0, 0.2)),
    ("normal", 3, 1, (0.3, 0.2, 0.5)),
    ("right", 3, 3, (0.5, 0.5, 0.0)),
    ("normal", 10, 3, (0.1, 0.1, 0.8)),
  ],
)
def test_the_intervals_of_a_study_cover_the_true_difference(
  scripts, kind, seeds, runs, shares
):
  coverage = scripts["coverage"]
  world = coverage["World"](kind, seeds, runs, shares)
  x = coverage["simulate"](world, 1_000)
  assert 0.925 <= x.coverage <= 0.98  # 0.93 to 0.973, and 2 standard errors


def test_the_interval_over_runs_counts_the_noise_of_answers_once(scripts):
  coverage = scripts["coverage"]
  deviations = coverage["REGIMES"]["answers"]
  x = coverage["false_positives"]("right", (3, 3), deviations, 400)
  assert 0.01 <= x[0] <= 0.08 and x[1] <= 0.015  # 5 %, and with noise twice


# Made up. Sizes: 2 rows of 8 tokens, 3 heads, 4 slots, 5,000 words.
HLO = """HloModule step, is_scheduled=true

FileNames
1 "/a (b) {"

%slice (p.0: f32[5,100], p.1: s32[], p.2: f32[100]) -> f32[100] {
  %p.0 = f32[5,100]{1,0} parameter(0)
  %b = f32[500]{0} bitcast(%p.0)
  %p.1 = s32[] parameter(1)
  %d = f32[100]{0} dynamic-slice(%b, %p.1), dynamic_slice_sizes={100}
  %p.2 = f32[100]{0} parameter(2)
  ROOT %add = f32[100]{0} add(%d, %p.2)
}

%stack (p.3: f32[5,100], p.4: f32[100], p.5: s32[]) -> f32[5,100] {
  %p.3 = f32[5,100]{1,0} parameter(0)
  %p.4 = f32[100]{0} parameter(1)
  %u = f32[1,100]{1,0} bitcast(%p.4)
  %p.5 = s32[] parameter(2)
  ROOT %dus = f32[5,100]{1,0} dynamic-update-slice(%p.3, %u, %p.5)
}

%bits (p.6: u32[3]) -> (pred[300], u32[300]) {
  %p.6 = u32[3]{0} parameter(0)
  %many = u32[300]{0} broadcast(%p.6), dimensions={}
  %x = u32[300]{0} xor(%many, %many)
  %y = u32[300]{0} shift-left(%x, %many)
  %z = pred[300]{0} compare(%y, %x), direction=LT
  ROOT %two = (pred[300]{0}, /*index=1*/u32[300]{0}) tuple(%z, %y)
}

%zeros () -> bf16[1024,1024] {
  %zero = bf16[] constant(0)
  ROOT %fill = bf16[1024,1024]{1,0} broadcast(%zero), dimensions={}
}

%body (s: (f32[5,100], s32[])) -> (f32[5,100], s32[]) {
  %s = (f32[5,100]{1,0}, s32[]) parameter(0)
  %x.1 = f32[5,100]{1,0} get-tuple-element(%s), index=0
  %i = s32[] get-tuple-element(%s), index=1
  %v = f32[100]{0} constant({...})
  %read = f32[100]{0} fusion(%x.1, %i, %v), kind=kLoop, calls=%slice
  %put = f32[5,100]{1,0} fusion(%x.1, %v, %i), kind=kLoop, calls=%stack
  ROOT %t = (f32[5,100]{1,0}, s32[]) tuple(%put, %i)
}

%condition (c: (f32[5,100], s32[])) -> pred[] {
  %c = (f32[5,100]{1,0}, s32[]) parameter(0)
  ROOT %yes = pred[] constant(true)
}

ENTRY %main (t: f32[5000,16], x: bf16[2,8,16]) -> f32[4,5000] {
  %a = f32[4,16]{1,0} parameter(0), metadata={op_name="a (b)"}
  %t = f32[5000,16]{1,0} parameter(1)
  %q = bf16[2,8,3,16]{3,2,1,0} parameter(2)
  %bmm = (f32[6,8,8]{2,1,0}, s8[99]{0}) custom-call(%q, %q), \
custom_call_target="__cublas$lt$matmul", backend_config={"gemm":{\
"dot_dimension_numbers":{"lhs_contracting_dimensions":["3"],\
"rhs_contracting_dimensions":["3"],"lhs_batch_dimensions":["0","2"],\
"rhs_batch_dimensions":["0","2"]}}}
  %logits = f32[4,5000]{1,0} dot(%a, %t), lhs_contracting_dims={1}, \
rhs_contracting_dims={1}
  %w = (f32[5,100]{1,0}, s32[]) while(%loop), condition=%condition, \
body=%body, backend_config={"known_trip_count":{"n":"12"}}
  %key = u32[3]{0} constant({1, 2, 3})
  %mask = (pred[300]{0}, u32[300]{0}) fusion(%key), kind=kLoop, calls=%bits, \
metadata={op_name="jit(step)/jvp(Model)/encoder/layer_3/ge"}
  %start = (f32[4]{0}, f32[4]{0}) copy-start(%a)
  %done = f32[4]{0} copy-done(%start)
  %fill.1 = bf16[1024,1024]{1,0} fusion(), kind=kLoop, calls=%zeros
  %fmha = (bf16[2,8,3,16]{3,2,1,0}, u8[7]{0}) custom-call(%q, %q, %q), \
custom_call_target="__cudnn$fmhaSoftmaxBackward"
  %documents = s32[2,1,128]{2,1,0} parameter(3)
  %word = u32[2,3,1,128]{3,2,1,0} parameter(4)
  %long = bf16[2,128,3,16]{3,2,1,0} parameter(5)
  %flash = (bf16[2,128,3,16]{3,2,1,0}, f32[2,3,1,128]{3,2,1,0}) \
custom-call(%documents, %word, %word, %long, %long, /*index=5*/%long), \
custom_call_target="__gpu$xla.gpu.triton", \
metadata={op_name="jit(step)/jvp(Model)/layer_0/flash_forward/pallas_call"}
  ROOT %out = f32[4,5000]{1,0} copy(%logits)
}
"""


@pytest.fixture(scope="module")
def bounds(scripts):
  """Returns the bounds of HLO by the operation's name."""
  return get_bounds(scripts, HLO)


def get_bounds(scripts, text):
  sizes = scripts["roofline"]["Sizes"](
    rows=2,
    length=8,
    slots=4,
    vocab_size=5000,
    heads=frozenset({3}),
    drops_weights=True,
    table_sizes=frozenset({16}),
  )
  listing = scripts["hlo_listing"]["parse"](text)
  bounds = scripts["roofline"]["bound_launches"](listing, sizes)
  return {x.launch.op.name: x for x in bounds}


def test_operations_of_loops_and_fusions_are_launched(bounds):
  times = {name: x.launch.times for name, x in bounds.items()}
  in_loop = {"read": 12, "put": 12}
  once = ("bmm", "logits", "mask", "start", "fill.1", "fmha", "flash", "out")
  assert times == in_loop | dict.fromkeys(once, 1)


@pytest.mark.parametrize(
  ("name", "nbytes", "flops"),
  [
    ("read", 3 * 400 + 4, 0),  # not all 2,000 bytes of the stack
    ("put", 2 * 400 + 4, 0),
    ("mask", 12 + 300 + 1200, 0),
    ("fill.1", 2 * 2**20, 0),
    ("logits", 4 * (4 * 16 + 5000 * 16 + 4 * 5000), 2 * 4 * 5000 * 16),
    ("bmm", 2 * 2 * 768 + 4 * 6 * 64, 2 * 6 * 64 * 16),  # not the workspace
    ("fmha", 2 * 4 * 768, 10 * 2 * 3 * 8**2 * 16),
  ],
)
def test_bytes_and_flops_of_a_launch(bounds, name, nbytes, flops):
  assert bounds[name].nbytes == nbytes
  assert bounds[name].flops == flops


def test_a_kernel_counts_what_it_declares(bounds, scripts):
  forward = bounds["flash"]
  text = HLO.replace("flash_forward", "flash_backward")
  backward = get_bounds(scripts, text)["flash"]
  products = 2 * 3 * 128**2 * 16
  assert forward.flops == 4 * products
  assert 10 * products <= backward.flops <= 14 * products
  # All arrays once, keys and values once more for each block of queries.
  array = 2 * 2 * 128 * 3 * 16
  assert 4 * array < forward.nbytes < backward.nbytes
  assert 0 < forward.integers == 3 * 2 * 3 * 128**2
  long = HLO.replace("128", "1024")
  local = long.replace("flash_forward", "flash_forward_window64")
  shares = [
    getattr(get_bounds(scripts, local)["flash"], name)
    / getattr(get_bounds(scripts, long)["flash"], name)
    for name in ("flops", "nbytes")
  ]
  assert shares[0] == 22 / 64 and 0.35 < shares[1] < 0.6  # tiles it reaches


def test_a_custom_call_of_unknown_cost_is_an_error(bounds, scripts):
  with pytest.raises(InputError, match="'new_kernel' .fmha. is unknown"):
    get_bounds(
      scripts, HLO.replace("__cudnn$fmhaSoftmaxBackward", "new_kernel")
    )


def test_figures_are_kept_and_compared(scripts, tmp_path):
  h100, path = scripts["h100"], tmp_path / "kept.json"
  flags_given = ["--json=x", "--config=b:hc", "--config.batch_size=8"]
  key = h100["config_key"](flags_given, "v5e")
  assert key == "v5e config.batch_size=8 config=b:hc"
  record = {"jax": "1", "ms": math.pi, "launches": 100, "logits_ops": 7}
  h100["keep"](path, key, record | {"command": "x"})
  kept = h100["load_kept"](path)[key]
  assert kept == record | {"ms": 3.1416}

  def compare(**changes):
    return h100["compare"](record | changes, kept)

  assert compare() == (False, ["Equal to the kept figures."])
  assert compare(ms=3.2)[0] is False
  assert compare(ms=3.3) == (True, ["ms: 3.142 -> 3.300, worse"])
  assert compare(logits_ops=8)[0] is True
  worse, (line,) = compare(launches=50)
  assert not worse and "better" in line
  assert compare(ms=99, jax="2")[0] is False
  assert h100["compare"](record, None)[0] is False


def test_runs_and_their_ends_fit_on_the_documented_meshes(scripts):
  limits = {"v5e": 15.75, "h100": 74.5}  # GiB
  meshes = set()
  for key, record in scripts["h100"]["load_kept"](
    scripts["h100"]["KEPT"]
  ).items():
    if key.startswith("memory "):
      meshes.add(key)
      gib = [x for name, x in record.items() if name.endswith("_gib")]
      assert max(gib) < limits[key.split()[1].partition(":")[0]], key
  assert any("electra_large" in key for key in meshes) and len(meshes) > 6


@pytest.mark.skipif(not COMPILERS.exists(), reason="no compilers for an H100")
def test_the_search_at_the_end_needs_the_memory_that_is_kept():
  command = [PYTHON, "benchmarks/fits.py", "--programs=search"]
  command += ["--config=electra_small:hc", "--config.model.dtype=bfloat16"]
  done = subprocess.run(
    command, cwd=ROOT, check=True, timeout=900, capture_output=True, text=True
  )
  assert "Equal to the kept figures." in done.stdout


@pytest.mark.skipif(not COMPILERS.exists(), reason="no compilers for an H100")
def test_a_layer_compiled_for_an_h100_has_fused_attention(tmp_path):
  rows, length, heads = 2, 512, 32
  values = {
    "config": "electra_small",
    "config.batch_size": rows,
    "config.length": length,
    "config.model.max_positions": length,
    "config.model.attention": "flash",
    "config.model.dtype": "bfloat16",
    "config.model.variant": "embedding_size=32 width=512 layers=1"
    f" heads={heads} ffn=128",
    "recipes": "baseline,hc",
    "json": tmp_path / "steps.json",
  }
  command = [PYTHON, "benchmarks/h100.py"]
  command += [f"--{name}={value}" for name, value in values.items()]
  subprocess.run(command, cwd=ROOT, check=True, timeout=900)
  baseline, corrected = json.loads((tmp_path / "steps.json").read_text())
  for step in (baseline, corrected):
    # In the generator and in the discriminator.
    assert step["kernels"] == {"flash_forward": 2, "flash_backward": 2}
    scores_bytes = 4 * rows * heads * length**2
    assert step["scratch_gib"] * 2**30 < scores_bytes
  for name in ("logits_ops", "logits_reads", "logits_writes"):
    assert baseline[name] == corrected[name]
