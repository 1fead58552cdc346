"""Tests the task "corrections" on the workdir of a tiny run."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import lzma

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from tests.support.tokenizer_files import write_vocabulary

from support import tiny
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import Corrections
from truenegs_jax.configs import common, electra_demo
from truenegs_jax.configs import corrections as config
from truenegs_jax.corrections import run as run_lib
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.objectives.slot_predictions import mask_and_predict
from truenegs_jax.pretrain import plan, predict_slots
from truenegs_jax.report.write import read_workdir
from truenegs_jax.runtime.errors import DataError, InputError, NonFiniteError
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.weights import export_model
from truenegs_jax.workdir import checkpoints
from truenegs_jax.workdir.saved_model import build_model

WORDS = [f"w{i}" for i in range(5, tiny.V - 1)]
TOKENIZER = make_tokenizer([*SPECIALS, *WORDS, "##ly"], lowercase=True)
PIECE = TOKENIZER.vocab.index("##ly")
LENGTH, NUM_LINES = 32, 70
PARAMS = {}  # of the run, by step

RATE = ["rate", "low", "high", "hits", "total"]
STOP_WORDS = ("w9", "w10", "w11", "w12")
# `negatives` of the run "strict".
STRICT = dict(prediction="sample", strict_subword=True, symmetric=True)
STRICT["stop_words"] = "lost/stops.txt"

original_build_predict_step = predict_slots.build_predict_step
PREDICT = {}  # compiled once for all tests


def build_predict_step(run):
  is_plain = run.edges_V is None
  key = run.model, run.options, run.mesh, run.config.seed, is_plain
  if not is_plain or key not in PREDICT:
    PREDICT[key] = original_build_predict_step(run)
  return PREDICT[key]


def _make_text(seed=0, num_lines=NUM_LINES):
  """Returns lines of 12 to 40 words, with blank lines and headings."""
  rng = np.random.default_rng(seed)
  sizes = rng.integers(12, 41, num_lines)
  words = [*WORDS, *(f"{word}ly" for word in WORDS[:30])]
  lines = [" ".join(rng.choice(words, size)) for size in sizes]
  lines[3:3] = ["", " = w5 = ", " = = w6 w7 = = ", "   "]
  return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True, scope="module")
def _isolate(tmp_path_factory):
  """Hides WordNet and the user's cache, and makes compilation fast."""
  folder = tmp_path_factory.mktemp("isolated")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TRUENEGS_CACHE", str(folder / "cache"))
    patch.setenv("NLTK_DATA", str(folder / "none"))
    patch.setattr(predict_slots, "build_predict_step", build_predict_step)
    optimized = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", optimized)


@pytest.fixture(scope="module")
def folder(_isolate, tmp_path_factory):
  """A folder with two runs of 20 steps, a text and files of synonyms."""
  folder = tmp_path_factory.mktemp("folder")
  shapes = pretrain.param_shapes(build_model(_make_config(), vocab_size=tiny.V))
  rng = np.random.default_rng(0)
  for step in (10, 20):
    PARAMS[step] = jax.tree.map(
      lambda x: np.float32(rng.normal(0, 0.5, x.shape)), shapes
    )
  _save_run(folder / "run", _make_config(), (10, 20))
  _save_run(folder / "strict", _make_config(**STRICT), (20,))
  with lzma.open(folder / "text.raw.xz", "wt") as file:
    file.write(_make_text())
  for name, seed in (("one.tsv", 1), ("two.tsv", 2)):
    pairs = np.random.default_rng(seed).choice(WORDS, (700, 2))
    (folder / name).write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
  return folder


def _make_config(**negatives):
  c = electra_demo.get_config("runlocal")
  c.length = LENGTH
  c.negatives.update({"strict_subword": False, **negatives})
  return c


def _save_run(workdir, c, steps):
  """Writes the checkpoints and vocabulary of a run."""
  description = {
    "config": json.loads(c.to_json()),
    "fingerprints": {"vocabulary": TOKENIZER.fingerprint},
  }
  writer = checkpoints.Checkpoints(workdir / "checkpoints", keep=9)
  with contextlib.closing(writer):
    for step in steps:
      writer.save(step, {"params": PARAMS[step]}, description)
    writer.wait()
  write_vocabulary(TOKENIZER.vocab, workdir / "vocab.txt")


def _task_config(folder, **changes):
  c = config.get_config()
  c.corrections.run = str(folder / "run")
  c.corrections.text = str(folder / "text.raw.xz")
  c.corrections.sources = f"pairs path={folder}/one.tsv"
  c.data.wordnet_dir = str(folder / "none")
  c.batch_size = 16
  c.update_from_flattened_dict(
    {name.replace("__", "."): value for name, value in changes.items()}
  )
  return c.lock()


def _run(folder, workdir, **changes):
  """Runs the task; returns results.json, cases.json and the printed text."""
  screen = io.StringIO()
  console = Console(file=screen, width=100, markup=False, highlight=False)
  assert run_lib.run(_task_config(folder, **changes), workdir, console) == 0
  results, cases = (
    json.loads((workdir / name).read_text())
    for name in ("results.json", "cases.json")
  )
  return results, cases, screen.getvalue()


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
  """The workdir and results of the task with all steps."""
  before = _hash_files(folder / "run")
  workdir = tmp_path_factory.mktemp("finished") / "corrections"
  results = _run(folder, workdir)
  assert _hash_files(folder / "run") == before  # the run is only read
  return workdir, *results


def _hash_files(folder):
  files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
  return {path: hashlib.md5(path.read_bytes()).hexdigest() for path in files}


def _get_counts(rates):
  names = ("sequence_rate", "mismatch_rate", "slot_rate")
  return [(rates[name]["hits"], rates[name]["total"]) for name in names]


def _count_by_loops(folder, step, text, **negatives):
  """Counts table 2 of a step in loops over one batch, masked as in training."""
  run = plan.make_run(PretrainConfig.read(_make_config()), TOKENIZER)
  prediction = negatives.get("prediction", "argmax")
  options = dataclasses.replace(run.options, prediction=prediction)
  slots_B = _fill_slots(run.model, PARAMS[step], text, options)
  pairs = _read_pairs(folder / "one.tsv", **negatives)

  def is_corrected(gold, predicted, next_token):
    return (
      (gold, predicted) in pairs
      and gold != predicted
      and not (negatives.get("strict_subword") and next_token == PIECE)
    )

  corrected = [[is_corrected(*slot) for slot in row] for row in slots_B]
  wrong = sum(slot[0] != slot[1] for row in slots_B for slot in row)
  hits, total = sum(map(sum, corrected)), sum(map(len, corrected))
  rows = sum(map(any, corrected)), len(corrected)
  return [rows, (hits, wrong), (hits, total)]


def _read_pairs(path, *, symmetric=False, stop_words="", **_):
  """Returns (gold, synonym) ids of a file of pairs with a run's options."""
  ids = TOKENIZER.vocab.index
  stops = [ids(word) for word in STOP_WORDS] if stop_words else []
  lines = path.read_text().splitlines()
  pairs = {tuple(map(ids, line.split("\t"))) for line in lines}
  pairs |= {(b, a) for a, b in pairs if symmetric}
  return {(a, b) for a, b in pairs if a not in stops}


def _fill_slots(model, params, text, options):
  """Returns (gold, predicted, next token) of each slot by line."""
  lines = [line for line in text.split("\n") if line.strip()]
  tokens = np.zeros((NUM_LINES + 2, LENGTH), np.int32)
  documents = np.zeros_like(tokens)
  for b, ids in enumerate(TOKENIZER.encode_lines(lines)):
    row = [TOKENIZER.cls, *ids[: LENGTH - 2], TOKENIZER.sep]
    tokens[b, : len(row)], documents[b, : len(row)] = row, 1
  types = np.zeros_like(tokens)
  batch = {"tokens": tokens, "types": types, "documents": documents}
  arrays = jax.device_get(_predict_batch(params, batch, model, options))
  slots_B = []
  for b in range(len(lines)):
    slots = zip(*(x_BxK[b].tolist() for x_BxK in arrays), strict=True)
    slots_B.append([(g, y, int(tokens[b, p + 1])) for p, g, y, w in slots if w])
  return slots_B


@functools.partial(jax.jit, static_argnames=("model", "options"))
def _predict_batch(params, batch, model, options):
  key = jax.random.fold_in(jax.random.key(0), 0)
  rows_B = jnp.arange(NUM_LINES + 2)
  keys_B = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows_B)
  bound = model.bind({"params": params})
  filled = mask_and_predict(bound, batch, keys_B, {}, options, train=False)
  s = filled.slots
  return s.positions_BxK, s.gold_BxK, filled.predicted_BxK, s.weight_BxK


def test_rates_equal_loops_over_lines_masked_as_in_training(folder, finished):
  _, results, _, printed = finished
  name = "pairs path=one.tsv"
  assert results["source"] == name
  measured = results["checkpoints"]
  steps = [(at["step"], at["percent"]) for at in measured]
  assert steps == [(10, 50.0), (20, 100.0)]
  for at in measured:
    expected = _count_by_loops(folder, at["step"], _make_text())
    assert _get_counts(at["rates"]) == expected
    assert expected[0][1] == 72 and min(hits for hits, _ in expected) > 5
    assert list(at["rates"]["slot_rate"]) == RATE
  assert results["lines"] == 72 and results["lines_cut"] > 5
  assert name in printed and "(100)" in printed


def test_a_run_is_measured_with_its_options(folder, tmp_path):
  run = dict(corrections__run=str(folder / "strict"))
  message = "lost/stops.txt"
  with pytest.raises(InputError, match=message):
    _run(folder, tmp_path / "out", **run)
  assert not (tmp_path / "out").exists()
  moved = tmp_path / "stops.txt"
  moved.write_text("\n".join(STOP_WORDS))

  results, cases, printed = _run(
    folder,
    tmp_path / "out",
    negatives__stop_words=str(moved),
    negatives__symmetric=False,
    corrections__cases=10_000,
    **run,
  )
  [at] = results["checkpoints"]
  expected = _count_by_loops(folder, 20, _make_text(), **STRICT)
  assert _get_counts(at["rates"]) == expected
  hits = expected[1][0]
  for name in STRICT:  # every option has an effect
    others = {key: value for key, value in STRICT.items() if key != name}
    counts = _count_by_loops(folder, 20, _make_text(), **others)
    assert counts[1][0] != hits > 20
  # Cases have the same corrections.
  assert cases["corrected"] == len(cases["cases"]) == hits
  assert f"{hits} are shown" in " ".join(printed.split())
  assert results["config"]["negatives"]["strict_subword"]


def test_results_are_reproducible(folder, finished, tmp_path):
  workdir, results, cases, printed = finished
  again = _run(
    folder,
    tmp_path / "out",
    batch_size=24,
  )
  for name in ("checkpoints", "fingerprints"):
    assert again[0][name] == results[name]
  both = [x.pop("cases") for x in (cases, again[1])]
  assert cases == again[1] and cases["corrected"] > 20
  for case, other in zip(*both, strict=True):
    assert case.pop("probability") == pytest.approx(other.pop("probability"))
    assert case == other
  page = read_workdir(workdir)
  assert [x.title for x in page.sections] == ["Tables", "Corrections"]
  assert not page.notes and page.sentence in printed.replace("\n", "")
  written = {path.name for path in workdir.rglob("*") if path.is_file()}
  names = {"cases.json", "results.json", "report.html"}
  assert written - names == {"lock", "config.json"}
  assert all(name in printed for name in names)


def test_exported_weights_have_the_rates_of_their_checkpoint(
  folder, finished, tmp_path
):
  model = tiny.make_model()
  for role in model.roles:
    export = tmp_path / "weights" / role
    export.mkdir(parents=True)
    export_model.write_model(export, PARAMS[20], model, role, TOKENIZER)
  results, _, printed = _run(
    folder,
    tmp_path / "out",
    corrections__run="",
    init=str(tmp_path / "weights"),
    model__variant="tiny",
    negatives__strict_subword=False,
    generator__multiplier=0.5,
    masking__prob=0.25,
    length=LENGTH,
  )
  [at] = results["checkpoints"]
  last = finished[1]["checkpoints"][-1]
  assert at == last | {"step": None, "percent": None}
  assert "weights" in printed


@pytest.mark.parametrize(
  "key, value, message",
  [
    ("corrections__run", "", "Exactly one of"),
    ("init", "somewhere", "Exactly one of"),
    ("corrections__run", "no/such", "no/such.* has no checkpoints"),
    ("corrections__steps", "10,11", "saved steps 10, 20"),
    ("corrections__steps", "all", "Choose kept, last, or some"),
    ("corrections__text", "", "corrections.text='' names no text"),
    ("corrections__text", "no/text", "^corrections.text: .*no/text"),
    ("corrections__length", 1_000, "from .* to 512"),
    ("corrections__sources", "nett", "^corrections.sources: .*nett"),
    ("corrections__sources", "model", "while a model trains"),
    ("corrections__sources", "pairs path=no", "no file 'no'"),
  ],
)
def test_invalid_settings_are_refused_before_writing(
  folder, tmp_path, key, value, message
):
  with pytest.raises((InputError, DataError), match=message):
    _run(folder, tmp_path / "out", **{key: value})
  assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
  ("run", "text", "expected"),
  [
    ("run", "texts", "steps 10, 20"),
    ("no/run", "no/text", "no/run' (missing"),
    ("no/run", "no/text", "no/text (missing)"),
  ],
)
def test_a_dry_run_lists_what_is_there_and_writes_nothing(
  folder, tmp_path, run, text, expected
):
  (folder / "texts").mkdir(exist_ok=True)
  (folder / "texts" / "a.txt").write_text("a\n")
  before = _hash_files(folder / "run")
  c = _task_config(
    folder,
    dry_run=True,
    corrections__run=str(folder / run),
    corrections__text=str(folder / text),
  )
  console = Console(file=io.StringIO(), width=300)
  assert run_lib.run(c, tmp_path / "out", console) == 0
  assert expected in console.file.getvalue()
  assert not (tmp_path / "out").exists()
  assert _hash_files(folder / "run") == before


def test_the_workdir_of_a_run_is_not_overwritten(folder):
  before = _hash_files(folder / "run")
  with pytest.raises(InputError, match="results would be replaced"):
    _run(folder, folder / "run")
  assert _hash_files(folder / "run") == before


@pytest.mark.parametrize("failure", [KeyboardInterrupt, "nan"])
def test_interrupted_or_failed_measurements_write_nothing(
  folder, tmp_path, monkeypatch, failure
):
  original, calls = predict_slots.predict_lines, []

  def predict_lines(predict, params, *args, **kwargs):
    calls.append(1)
    if len(calls) == 2 and failure == "nan":
      params = jax.tree.map(lambda x: np.full_like(x, np.nan), PARAMS[20])
    elif len(calls) == 2:
      raise failure
    return original(predict, params, *args, **kwargs)

  monkeypatch.setattr(predict_slots, "predict_lines", predict_lines)
  expected = NonFiniteError if failure == "nan" else failure
  with pytest.raises(expected):
    _run(folder, tmp_path / "out")
  assert [p.name for p in (tmp_path / "out").iterdir()] == ["lock"]


def test_a_step_that_its_run_deletes_is_skipped_and_lines_limited(
  folder, tmp_path, monkeypatch
):
  step_10 = folder / "run" / "checkpoints" / "10"
  hidden = step_10.with_name("hidden")
  read_lines = predict_slots.read_lines

  def delete_and_read(*args, **kwargs):
    step_10.rename(hidden)  # after the steps were listed
    return read_lines(*args, **kwargs)

  monkeypatch.setattr(predict_slots, "read_lines", delete_and_read)
  try:
    results, _, printed = _run(
      folder, tmp_path / "out", corrections__sequences=9
    )
  finally:
    hidden.rename(step_10)
  [at] = results["checkpoints"]
  few = "\n".join([x for x in _make_text().split("\n") if x.strip()][:9])
  assert _get_counts(at["rates"]) == _count_by_loops(folder, 20, few)
  assert at["step"] == 20
  assert "10' was deleted by its run. It is skipped." in printed


def test_tables_are_of_the_language_of_the_run(tmp_path, monkeypatch):
  monkeypatch.setattr(TableRequest, "check", lambda self: None)
  c = config.get_config()
  c.corrections.run, c.corrections.text = str(tmp_path), "not read"
  (tmp_path / "checkpoints" / "7" / "state").mkdir(parents=True)
  saved = json.loads(common.get_config().to_json())

  def resolve():
    (tmp_path / "config.json").write_text(json.dumps(saved))
    options = Corrections.read(c.corrections)
    return run_lib.resolve(PretrainConfig.read(c), options, print)

  for language, identity in (("fr", "omw language=fr"), ("en", "wordnet")):
    saved["data"]["language"] = language
    m = resolve()
    assert m.make_request(m.config).identity == identity
  for trained, source in (("pairs path=a", "pairs path=a"), ("model", "auto")):
    saved["negatives"]["sources"] = trained
    assert resolve().sources == source
