"""Tests the task "corrections" on the workdir of a tiny run."""

import dataclasses
import functools
import json
import lzma

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support import runs, tiny
from support.small_predictions import random_predictions, random_table
from support.weight_files import write_export, write_run
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import Corrections
from truenegs_jax.configs import common, electra_small
from truenegs_jax.configs import corrections as config
from truenegs_jax.corrections import rates
from truenegs_jax.corrections import run as run_lib
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.objectives.slot_predictions import mask_and_predict
from truenegs_jax.pretrain import plan
from truenegs_jax.report.write import read_workdir
from truenegs_jax.runtime.errors import DataError, InputError
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.workdir.saved_model import build_model

WORDS = [f"w{i}" for i in range(5, tiny.V - 1)]
TOKENIZER = make_tokenizer([*SPECIALS, *WORDS, "##ly"], lowercase=True)
PIECE = TOKENIZER.vocab.index("##ly")
LENGTH, NUM_LINES = 32, 70
PARAMS = {}  # of the run, by step

STOP_WORDS = tuple(f"w{i}" for i in range(9, 19))
# `negatives` of the run "strict".
STRICT = {
  "prediction": "sample",
  "strict_subword": True,
  "stop_words": "lost/stops.txt",
}


def make_text():
  """Returns lines of 12 to 40 words, with blank lines and headings."""
  rng = np.random.default_rng(0)
  words = [*WORDS, *(f"{word}ly" for word in WORDS[:30])]
  sizes = rng.integers(12, 41, NUM_LINES)
  lines = [" ".join(rng.choice(words, size)) for size in sizes]
  lines[3:3] = ["", " = w5 = ", " = = w6 w7 = = ", "   "]
  return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with two runs of 20 steps, a text and a file of synonyms."""
  folder = tmp_path_factory.mktemp("folder")
  model = build_model(make_config(), vocab_size=tiny.V)
  rng = np.random.default_rng(0)
  for step in (10, 20):
    PARAMS[step] = tiny.random_params(model, rng, deviation=0.5)
  write_run(folder / "run", make_config(), PARAMS, tokenizer=TOKENIZER)
  last = {20: PARAMS[20]}
  write_run(folder / "strict", make_config(**STRICT), last, tokenizer=TOKENIZER)
  with lzma.open(folder / "text.raw.xz", "wt") as file:
    file.write(make_text())
  pairs = np.random.default_rng(1).choice(WORDS, (700, 2))
  (folder / "one.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
  return folder


def make_config(**negatives):
  c = electra_small.get_config("runlocal,hc+sr")
  c.length = LENGTH
  c.model.layers = 1
  c.masking.prob = 0.25
  c.seed = 5  # masks are drawn by the seed of the measurement
  c.negatives.update({"strict_subword": False, **negatives})
  return c


def make_task(folder, **changes):
  """Configures the task; `__` in the names of changes stands for a dot."""
  c = config.get_config()
  c.corrections.run = str(folder / "run")
  c.corrections.text = str(folder / "text.raw.xz")
  c.corrections.sources = f"pairs path={folder}/one.tsv"
  c.batch_size = 16
  c.update_from_flattened_dict(
    {name.replace("__", "."): value for name, value in changes.items()}
  )
  return c.lock()


def run_task(folder, workdir, **changes):
  """Runs the task; returns results.json, cases.json and the printed text."""
  c = make_task(folder, **changes)
  code, printed = runs.run_task(c, workdir, width=100)
  assert code == 0
  results, found_cases = (
    json.loads((workdir / name).read_text())
    for name in ("results.json", "cases.json")
  )
  return results, found_cases, printed


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
  """The workdir and results of the task with all steps."""
  before = runs.read_files(folder / "run")
  workdir = tmp_path_factory.mktemp("finished") / "corrections"
  results = run_task(folder, workdir)
  assert runs.read_files(folder / "run") == before  # the run is only read
  return workdir, *results


def get_counts(rates):
  names = ("sequence_rate", "mismatch_rate", "slot_rate")
  return [(rates[name]["hits"], rates[name]["total"]) for name in names]


def count_by_loops(folder, step, text, **negatives):
  """Counts table 2 of a step in loops over one batch, masked as in training."""
  run = plan.make_run(PretrainConfig.read(make_config()), TOKENIZER)
  prediction = negatives.get("prediction", "argmax")
  options = dataclasses.replace(run.options, prediction=prediction)
  lines = (folder / "one.tsv").read_text().splitlines()
  pairs = {tuple(line.split("\t")) for line in lines}
  stops = STOP_WORDS if "stop_words" in negatives else ()
  words = TOKENIZER.vocab

  def is_corrected(gold, predicted, next_token):
    return (
      (words[gold], words[predicted]) in pairs
      and gold != predicted
      and words[gold] not in stops
      and not (negatives.get("strict_subword") and next_token == PIECE)
    )

  slots_B = fill_slots(run.model, PARAMS[step], text, options)
  corrected = [[is_corrected(*slot) for slot in row] for row in slots_B]
  wrong = sum(slot[0] != slot[1] for row in slots_B for slot in row)
  hits = sum(map(sum, corrected))
  rows = sum(map(any, corrected)), len(corrected)
  return [rows, (hits, wrong), (hits, sum(map(len, corrected)))]


def fill_slots(model, params, text, options):
  """Returns (gold, predicted, next token) of each slot by line."""
  lines = [line for line in text.split("\n") if line.strip()]
  tokens = np.zeros((NUM_LINES + 2, LENGTH), np.int32)
  documents = np.zeros_like(tokens)
  for b, ids in enumerate(TOKENIZER.encode_lines(lines)):
    row = [TOKENIZER.cls, *ids[: LENGTH - 2], TOKENIZER.sep]
    tokens[b, : len(row)] = row
    documents[b, : len(row)] = 1
  batch = {"tokens": tokens, "types": 0 * tokens, "documents": documents}
  arrays = jax.device_get(predict_batch(params, batch, model, options))
  slots_B = []
  for b in range(len(lines)):
    slots = zip(*(x_BxK[b].tolist() for x_BxK in arrays), strict=True)
    slots_B.append([(g, y, int(tokens[b, p + 1])) for p, g, y, w in slots if w])
  return slots_B


@functools.partial(jax.jit, static_argnames=("model", "options"))
def predict_batch(params, batch, model, options):
  key = jax.random.fold_in(jax.random.key(0), 0)
  rows_B = jnp.arange(NUM_LINES + 2)
  keys_B = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows_B)
  bound = model.bind({"params": params})
  filled = mask_and_predict(bound, batch, keys_B, {}, options, train=False)
  s = filled.slots
  return s.positions_BxK, s.gold_BxK, filled.predicted_BxK, s.weight_BxK


def test_rates_equal_loops_over_lines_masked_as_in_training(folder, finished):
  workdir, results, shown, printed = finished
  steps = [(at["step"], at["percent"]) for at in results["checkpoints"]]
  assert steps == [(10, 50.0), (20, 100.0)]
  for at in results["checkpoints"]:
    expected = count_by_loops(folder, at["step"], make_text())
    assert get_counts(at["rates"]) == expected
    assert expected[0][1] == 72 and min(hits for hits, _ in expected) > 5
  assert results["lines"] == 72 and results["lines_cut"] > 5
  assert results["source"] == "pairs path=one.tsv" in printed
  assert shown["corrected"] == len(shown["cases"]) == expected[1][0]
  page = read_workdir(workdir)
  assert page.sentence in printed.replace("\n", "")


def test_a_run_is_measured_with_its_options(folder, tmp_path):
  run = {"corrections__run": str(folder / "strict")}
  with pytest.raises(InputError, match="lost/stops.txt"):
    run_task(folder, tmp_path / "out", **run)
  moved = tmp_path / "stops.txt"
  moved.write_text("\n".join(STOP_WORDS))
  run["negatives__stop_words"] = str(moved)
  run["corrections__sequences"] = 60
  results, _, _ = run_task(folder, tmp_path / "out", **run)
  [at] = results["checkpoints"]
  lines = [line for line in make_text().split("\n") if line.strip()]
  few = "\n".join(lines[:60])
  expected = count_by_loops(folder, 20, few, **STRICT)
  assert get_counts(at["rates"]) == expected
  for name in STRICT:  # every option has an effect
    others = {key: value for key, value in STRICT.items() if key != name}
    assert count_by_loops(folder, 20, few, **others) != expected


def test_exported_weights_have_the_rates_of_their_checkpoint(
  folder, finished, tmp_path
):
  weights = write_export(
    tmp_path, tiny.make_model(layers=1), PARAMS[20], tokenizer=TOKENIZER
  )
  results, _, _ = run_task(
    folder,
    tmp_path / "out",
    corrections__run="",
    init=str(weights),
    model__variant="tiny",
    model__layers=1,
    negatives__strict_subword=False,
    generator__multiplier=0.5,
    masking__prob=0.25,
    length=LENGTH,
    batch_size=24,  # which has no effect
  )
  [at] = results["checkpoints"]
  last = finished[1]["checkpoints"][-1]
  assert at == last | {"step": None, "percent": None}


@pytest.mark.parametrize(
  "key, value, message",
  [
    ("init", "somewhere", "Exactly one of"),
    ("corrections__run", "no/such", "no/such.* has no checkpoints"),
    ("corrections__steps", "10,11", "saved steps 10, 20"),
    ("corrections__length", 1_000, "from .* to 512"),
    ("corrections__sources", "model", "while a model trains"),
  ],
)
def test_invalid_settings_are_refused_before_writing(
  folder, tmp_path, key, value, message
):
  with pytest.raises((InputError, DataError), match=message):
    run_task(folder, tmp_path / "out", **{key: value})
  assert not (tmp_path / "out").exists()
  finetuned = tmp_path / "finetuned"
  finetuned.mkdir()
  (finetuned / "config.json").write_text('{"task": "finetune"}')
  for workdir in (folder / "run", finetuned):
    with pytest.raises(InputError, match="results would be replaced"):
      run_task(folder, workdir)


def test_tables_are_of_the_language_of_the_run(tmp_path, monkeypatch):
  monkeypatch.setattr(TableRequest, "check", lambda self: None)
  c = config.get_config()
  c.corrections.run = str(tmp_path)
  c.corrections.text = "not read"
  (tmp_path / "checkpoints" / "7" / "state").mkdir(parents=True)
  saved = json.loads(common.get_config().to_json())
  for language, sources, identity in (
    ("fr", "auto", "omw language=fr"),
    ("en", "pairs path=a", "pairs path=a"),
  ):
    saved["data"]["language"] = language
    saved["negatives"]["sources"] = sources
    (tmp_path / "config.json").write_text(json.dumps(saved))
    options = Corrections.read(c.corrections)
    m, auto = run_lib.resolve(PretrainConfig.read(c), options, print)
    assert run_lib.make_request(m.config, auto).identity == identity


@pytest.mark.parametrize(
  "steps, rows",
  [
    # Of a run of 162 steps, 6.25 % are 10.125, 12.5 % are 20.25.
    ([10, 81, 120], {0: "6.90 1.31", 1: "7.05 1.36"}),
    ([11, 20, 162], {1: "6.96 1.34", 2: "7.07 1.41"}),
    ([None], {0: "7.07 1.41"}),
  ],
)
def test_the_papers_table_2_is_beside_equal_shares_of_steps(steps, rows):
  checkpoints = []
  for i, step in enumerate(steps):
    r = rates.count_corrections(random_predictions(i, 400), random_table(i))
    percent = step and step / 1.62
    checkpoints.append(rates.CheckpointRates(step, percent, r))
  table = rates.make_rates_table(checkpoints, "wordnet")
  for i, row in enumerate(table.rows):
    assert row["BERT base"] == rows.get(i, "")
    rate = checkpoints[i].rates.mismatch_rate
    low, high = (f"{100 * x:.2f}" for x in (rate.low, rate.high))
    assert row["Pred"] == f"{100 * rate.hits / rate.total:.2f} {low}-{high}"
