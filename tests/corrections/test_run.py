"""The task "corrections" on the workdir of a tiny run, and its parts."""

import contextlib
import csv
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

from support import tiny
from support.small_predictions import FakeWordNet
from truenegs_jax.configs import corrections as config
from truenegs_jax.configs import electra_demo
from truenegs_jax.corrections import cases as cases_lib
from truenegs_jax.corrections import predict_slots, text_lines
from truenegs_jax.corrections import run as run_lib
from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.data.tokens.tokenizer import make_tokenizer, write_vocabulary
from truenegs_jax.models import pretrain
from truenegs_jax.objectives.fill_slots import guess_slots
from truenegs_jax.runtime.errors import (
  DataError,
  DiskError,
  InputError,
  NonFiniteError,
)
from truenegs_jax.synonyms.table import build_table
from truenegs_jax.train import build_run, sharding
from truenegs_jax.weights.formats import hf_folder
from truenegs_jax.workdir import checkpoints, saved_model
from truenegs_jax.workdir.from_config import build_model

WORDS = [f"w{i}" for i in range(5, tiny.V - 1)]
TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##ly"],
  lowercase=True,
)
PIECE = TOKENIZER.vocab.index("##ly")
LENGTH, NUM_LINES = 32, 70
PARAMS = {}  # of the run by step, as they were saved
MASKING = dataclasses.replace(tiny.MASKING, style="80_10_10", mask_prob=0.25)


STOPS = ("w9", "w10", "w11", "w12")
# How the run "strict" was trained.
STRICT = dict(
  prediction="sample",
  strict_subword=True,
  symmetric=True,
  stop_words="lost/stops.txt",
)


MAKE = predict_slots.make_predict_slots
_made = functools.cache(MAKE)  # compiled once for all runs of the task


def make_predict_slots(model, options, *, continues_V=None, **kwargs):
  if continues_V is None:
    return _made(model, options, **kwargs)
  return MAKE(model, options, continues_V=continues_V, **kwargs)


def _text(seed=0, num_lines=NUM_LINES):
  """Lines of 12 to 40 words, blank ones and headings between."""
  rng = np.random.default_rng(seed)
  sizes = rng.integers(12, 41, num_lines)
  words = [*WORDS, *(f"{word}ly" for word in WORDS[:30])]
  found = [" ".join(rng.choice(words, size)) for size in sizes]
  found[3:3] = ["", " = w5 = ", " = = w6 w7 = = ", "   "]
  return "\n".join(found) + "\n"


@pytest.fixture(autouse=True, scope="module")
def _alone(tmp_path_factory):
  """No WordNet, and no cache but its own; little time to compile."""
  folder = tmp_path_factory.mktemp("alone")
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TRUENEGS_CACHE", str(folder / "cache"))
    patch.setenv("NLTK_DATA", str(folder / "none"))
    patch.setattr(run_lib, "enable_compilation_cache", lambda: None)
    patch.setattr(predict_slots, "make_predict_slots", make_predict_slots)
    optimized = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", optimized)


@pytest.fixture(scope="module")
def place(_alone, tmp_path_factory):
  """A run with steps 10 and 20 of 20, another, a text, files of synonyms."""
  folder = tmp_path_factory.mktemp("place")
  model = build_model(_trained(), vocab_size=tiny.V)
  shapes = jax.eval_shape(
    lambda: pretrain.init_params(model, jax.random.key(0))
  )
  rng = np.random.default_rng(0)
  for step in (10, 20):
    PARAMS[step] = jax.tree.map(
      lambda x: np.float32(rng.normal(0, 0.5, x.shape)), shapes
    )
  _save(folder / "run", _trained(), (10, 20))
  _save(folder / "strict", _trained(**STRICT), (20,))
  with lzma.open(folder / "text.raw.xz", "wt") as file:
    file.write(_text())
  for name, seed in (("one.tsv", 1), ("two.tsv", 2)):
    pairs = np.random.default_rng(seed).choice(WORDS, (700, 2))
    (folder / name).write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
  return folder


def _trained(**negatives):
  c = electra_demo.get_config("runlocal")
  c.length = LENGTH
  c.negatives.update({"strict_subword": False, **negatives})
  return c


def _save(workdir, c, steps):
  """What a run leaves that is measured."""
  described = {
    "config": json.loads(c.to_json()),
    "fingerprints": {"vocabulary": TOKENIZER.fingerprint},
  }
  del described["config"]["negatives"]["smoothing"]  # an earlier code's
  saving = checkpoints.Checkpoints(workdir / "checkpoints", keep=9)
  with contextlib.closing(saving):
    for step in steps:
      saving.save(step, {"params": PARAMS[step]}, described)
    saving.wait()
  write_vocabulary(TOKENIZER.vocab, workdir / "vocab.txt")


def _config(place, **changed):
  c = config.get_config()
  c.corrections.run = str(place / "run")
  c.corrections.text = str(place / "text.raw.xz")
  c.corrections.sources = (f"pairs path={place}/one.tsv",)
  c.data.wordnet_dir = str(place / "none")
  c.batch_size = 16
  c.update_from_flattened_dict(
    {name.replace("__", "."): value for name, value in changed.items()}
  )
  return c.lock()


def _run(place, workdir, **changed):
  """Runs the task; returns results.json, cases.json and what was printed."""
  screen = io.StringIO()
  console = Console(file=screen, width=100, markup=False, highlight=False)
  assert run_lib.run(_config(place, **changed), workdir, console) == 0
  results, cases = (
    json.loads((workdir / name).read_text())
    for name in ("results.json", "cases.json")
  )
  return results, cases, screen.getvalue()


@pytest.fixture(scope="module")
def done(place, tmp_path_factory):
  """The workdir and outcome of a run with two sources and all steps."""
  before = _hashes(place / "run")
  workdir = tmp_path_factory.mktemp("done") / "corrections"
  outcome = _run(place, workdir, corrections__sources=_both(place))
  assert _hashes(place / "run") == before  # a run is only read
  return workdir, *outcome


def _both(place):
  return tuple(f"pairs path={place}/{n}.tsv" for n in ("one", "two"))


def _hashes(folder):
  return {
    path.relative_to(folder).as_posix(): hashlib.md5(
      path.read_bytes()
    ).hexdigest()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
  }


def _key_figures(rates):
  names = ("of_sequences", "of_mismatches", "of_slots")
  return [(rates[name]["hits"], rates[name]["of"]) for name in names]


def _counted(place, step, text, **negatives):
  """Table 2 of a step by loops, over one batch as training masks it."""
  run = build_run.build_run(_trained(), TOKENIZER)
  sample = negatives.get("prediction") == "sample"
  options = dataclasses.replace(
    run.options, prediction="sample" if sample else "argmax"
  )
  slots_B = _guessed(run.model, PARAMS[step], text, options)
  pairs = _pairs(place / "one.tsv", **negatives)

  def is_false(gold, predicted, shown, following):
    return (
      (gold, predicted) in pairs
      and gold != predicted
      and not (negatives.get("strict_subword") and following == PIECE)
    )

  hits = [[is_false(*slot) for slot in row] for row in slots_B]
  wrong = sum(slot[0] != slot[1] for row in slots_B for slot in row)
  total = sum(map(len, hits))
  struck = sum(map(sum, hits))
  return [(sum(map(any, hits)), len(hits)), (struck, wrong), (struck, total)]


def _pairs(path, *, symmetric=False, stop_words="", **_):
  """(gold, synonym) by a file of pairs and a run's options."""
  ids = TOKENIZER.vocab.index
  stops = [ids(word) for word in STOPS] if stop_words else []
  lines = path.read_text().splitlines()
  pairs = {tuple(map(ids, line.split("\t"))) for line in lines}
  pairs |= {(b, a) for a, b in pairs if symmetric}
  return {(a, b) for a, b in pairs if a not in stops}


def _guessed(model, params, text, options):
  """(gold, predicted, shown, next token) of each slot of each line.

  All lines are in one wide batch.
  """
  kept = [line for line in text.split("\n") if line.strip()]
  tokens = np.zeros((NUM_LINES + 2, LENGTH), np.int32)
  documents = np.zeros_like(tokens)
  for b, ids in enumerate(TOKENIZER.encode_lines(kept)):
    row = [TOKENIZER.cls, *ids[: LENGTH - 2], TOKENIZER.sep]
    tokens[b, : len(row)], documents[b, : len(row)] = row, 1
  types = np.zeros_like(tokens)
  batch = {"tokens": tokens, "types": types, "documents": documents}
  found = jax.device_get(_guess(params, batch, model, options))
  return [
    [
      (int(g), int(y), int(s), int(tokens[b, p + 1]))
      for p, g, y, s, w in zip(*(x[b] for x in found), strict=True)
      if w
    ]
    for b in range(len(kept))
  ]


@functools.partial(jax.jit, static_argnames=("model", "options"))
def _guess(params, batch, model, options):
  key = jax.random.fold_in(jax.random.key(0), 0)
  rows_B = jnp.arange(NUM_LINES + 2)
  keys_B = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows_B)
  bound = model.bind({"params": params})
  guess = guess_slots(bound, batch, keys_B, options, train=False)
  found = guess.slots
  return (
    found.positions_BxK,
    found.original_BxK,
    guess.predicted_BxK,
    guess.shown_BxK,
    found.weight_BxK,
  )


def test_rates_are_those_of_the_lines_masked_as_in_training(place, done):
  _, results, _, printed = done
  name = "pairs path=one.tsv"
  found = results["checkpoints"][name]
  assert [(at["step"], at["percent"]) for at in found] == [
    (10, 50.0),
    (20, 100.0),
  ]
  for at in found:
    expected = _counted(place, at["step"], _text())
    assert _key_figures(at["rates"]) == expected
    assert expected[0][1] == 72 and min(hits for hits, _ in expected) > 5
  assert results["lines"] == 72 and results["lines_cut"] > 5
  assert name in printed and "(100)" in printed


def test_sampled_predictions_are_those_of_training(place, tmp_path):
  results, _, _ = _run(
    place,
    tmp_path / "out",
    corrections__steps="10",
    corrections__prediction="sample",
    batch_size=8,
  )
  [at] = results["checkpoints"]["pairs path=one.tsv"]
  expected = _counted(place, 10, _text(), prediction="sample")
  assert _key_figures(at["rates"]) == expected
  assert not (tmp_path / "out" / "plots").exists()  # of one step


def test_a_run_is_measured_by_its_own_options(place, tmp_path):
  run = dict(corrections__run=str(place / "strict"))
  message = "was trained with a list of stop words; .*lost/stops.txt"
  with pytest.raises(InputError, match=message):
    _run(place, tmp_path / "out", **run)
  assert not (tmp_path / "out").exists()
  moved = tmp_path / "stops.txt"
  moved.write_text("\n".join(STOPS))
  results, cases, _ = _run(
    place,
    tmp_path / "out",
    negatives__stop_words=str(moved),
    negatives__symmetric=False,
    corrections__sources=_both(place),
    corrections__cases=10_000,
    corrections__sheet=10_000,
    **run,
  )
  [at] = results["checkpoints"]["pairs path=one.tsv"]
  expected = _counted(place, 20, _text(), **STRICT)
  assert _key_figures(at["rates"]) == expected
  struck = expected[1][0]
  for name in STRICT:  # each of them matters
    others = {key: value for key, value in STRICT.items() if key != name}
    assert _counted(place, 20, _text(), **others)[1][0] != struck > 20
  # Whatever else is told of corrections is told of the same ones.
  assert len(cases) == struck and {c["verdict"] for c in cases} == {"corrected"}
  [two] = results["checkpoints"]["pairs path=two.tsv"]
  [j, *_] = results["judgements"]
  both = j["precision"]["hits"]
  assert j["precision"]["of"] == struck
  sheet = (tmp_path / "out" / "sheet.csv").read_text().splitlines()
  assert len(sheet) - 1 == struck + two["rates"]["of_slots"]["hits"] - both
  assert results["strict_subword"]


def test_the_same_again_gives_the_same(place, done, tmp_path):
  workdir, results, cases, printed = done
  again = _run(
    place, tmp_path / "out", corrections__sources=_both(place), batch_size=24
  )
  for name in ("checkpoints", "judgements", "fingerprints"):
    assert again[0][name] == results[name]
  sheet = (workdir / "sheet.csv").read_text()
  assert (tmp_path / "out" / "sheet.csv").read_text() == sheet
  for one, other in zip(cases, again[1], strict=True):
    assert one.pop("probability") == pytest.approx(other.pop("probability"))
    assert one == other
  written = {path.name for path in workdir.rglob("*") if path.is_file()}
  assert written == {
    "cases.json",
    "correction_rates.png",
    "lock",
    "results.json",
    "sheet.csv",
  }
  assert all(name in printed for name in written - {"lock"})


def test_sources_judge_one_another(done):
  _, results, _, printed = done
  judges = {(j["source"], j["judge"]) for j in results["judgements"]}
  one, two = "pairs path=one.tsv", "pairs path=two.tsv"
  assert judges == {(one, two), (two, one)}
  assert set(results["checkpoints"]) == {one, two}
  assert set(results["fingerprints"]["synonyms"]) == {one, two}
  assert "kappa" in printed


def test_lines_at_most_are_the_first_ones(place, tmp_path):
  results, _, _ = _run(
    place,
    tmp_path / "out",
    corrections__steps="last",
    corrections__sequences=9,
    corrections__headings=False,
    corrections__sheet=0,
  )
  kept = [line for line in _text().split("\n") if "=" not in line]
  [at] = results["checkpoints"]["pairs path=one.tsv"]
  few = "\n".join([line for line in kept if line.strip()][:9])
  assert _key_figures(at["rates"]) == _counted(place, 20, few)
  assert (at["step"], results["headings_left_out"]) == (20, 2)
  assert not (tmp_path / "out" / "sheet.csv").exists()


def test_weights_of_a_folder_are_measured_as_their_checkpoint(
  place, done, tmp_path
):
  model = tiny.make_model()
  for role in model.roles:
    folder = tmp_path / "weights" / role
    folder.mkdir(parents=True)
    hf_folder.write_model(
      folder, PARAMS[20], model, role, TOKENIZER, dtype="float32"
    )
  results, _, printed = _run(
    place,
    tmp_path / "out",
    corrections__run="",
    init=str(tmp_path / "weights"),
    model__variant="tiny",
    generator__multiplier=0.5,
    masking__prob=0.25,
    length=LENGTH,
  )
  [at] = results["checkpoints"]["pairs path=one.tsv"]
  last = done[1]["checkpoints"]["pairs path=one.tsv"][-1]
  assert at == last | {"step": None, "percent": None}
  assert "weights" in printed


ERRORS = {
  "neither": (dict(corrections__run=""), "give what to measure"),
  "both": (dict(init="somewhere"), "give what to measure"),
  "run": (dict(corrections__run="no/such"), "no/such holds no checkpoints"),
  "step": (dict(corrections__steps="10,11"), "saved steps: 10, 20"),
  "steps": (dict(corrections__steps="all"), "give kept, last, or some"),
  "no text": (dict(corrections__text=""), "corrections.text is empty"),
  "absent": (dict(corrections__text="no/text"), "corrections.text: .*no/text"),
  "length": (dict(corrections__length=1_000), "at most 512"),
  "only": (dict(corrections__only="w5, yes:w6"), "'yes' of 'yes:w6'"),
  "source": (dict(corrections__sources=("wordnett",)), "wordnett"),
  "no source": (dict(corrections__sources=()), "corrections.sources is empty"),
  "model": (dict(corrections__sources=("model",)), "while a model trains"),
  "file": (
    dict(corrections__sources=("pairs path=no",)),
    "corrections.sources: .*pairs",
  ),
  "negative": (dict(corrections__cases=-1), "corrections.cases is -1"),
  "reading": (dict(corrections__prediction="best"), "'best' is unknown"),
  "dry": (dict(dry_run=True), "dry_run is for pre-training"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_cannot_be_measured_is_refused_before_all(place, tmp_path, name):
  changed, message = ERRORS[name]
  with pytest.raises((InputError, DataError), match=message):
    _run(place, tmp_path / "out", **changed)
  assert not (tmp_path / "out").exists()


def test_a_text_without_words_is_refused(place, tmp_path):
  (tmp_path / "blank.txt").write_text(" \n\n")
  with pytest.raises(DataError, match="no document in it"):
    _run(place, tmp_path / "o", corrections__text=str(tmp_path / "blank.txt"))
  (tmp_path / "null.txt").write_text("\u200b\n")
  with pytest.raises(DataError, match="no line of it holds a token"):
    _run(place, tmp_path / "o", corrections__text=str(tmp_path / "null.txt"))


def test_the_workdir_of_a_run_is_left_alone(place):
  before = _hashes(place / "run")
  with pytest.raises(InputError, match="results would be replaced"):
    _run(place, place / "run")
  assert _hashes(place / "run") == before


@pytest.mark.parametrize("broken", [KeyboardInterrupt, "nan"])
def test_what_ends_early_leaves_nothing_behind(
  place, tmp_path, monkeypatch, broken
):
  whole, calls = predict_slots.predict_lines, []

  def predict_lines(predict, params, *args, **kwargs):
    calls.append(1)
    if len(calls) == 2 and broken == "nan":
      params = jax.tree.map(lambda x: np.full_like(x, np.nan), PARAMS[20])
    elif len(calls) == 2:
      raise broken
    return whole(predict, params, *args, **kwargs)

  monkeypatch.setattr(predict_slots, "predict_lines", predict_lines)
  expected = NonFiniteError if broken == "nan" else broken
  with pytest.raises(expected):
    _run(place, tmp_path / "out")
  assert [p.name for p in (tmp_path / "out").iterdir()] == ["lock"]


def test_a_step_that_its_run_clears_away_is_left_out(
  place, tmp_path, monkeypatch
):
  kept = place / "run" / "checkpoints" / "10"
  gone = kept.with_name("gone")
  gather = run_lib._gather

  def clear(*args):
    kept.rename(gone)  # after the steps were listed
    return gather(*args)

  monkeypatch.setattr(run_lib, "_gather", clear)
  try:
    results, _, printed = _run(place, tmp_path / "out")
  finally:
    gone.rename(kept)
  found = results["checkpoints"]["pairs path=one.tsv"]
  assert [at["step"] for at in found] == [20]
  assert "step 10: its run has cleared it away" in printed


def test_wordnets_files_are_closed_whatever_happens(
  place, tmp_path, monkeypatch
):
  reader, closed = FakeWordNet({}, None), []
  monkeypatch.setattr(run_lib, "open_wordnet", lambda folder: reader)
  monkeypatch.setattr(run_lib, "close_wordnet", closed.append)
  last = dict(corrections__steps="last")
  _, _, printed = _run(place, tmp_path / "out", **last)
  assert "no parts of speech: WordNet's cntlist.rev" in printed
  assert closed == [reader]

  def read_lines(*args, reader, **kwargs):
    raise DataError("damaged")

  monkeypatch.setattr(text_lines, "read_lines", read_lines)
  with pytest.raises(DataError, match="damaged"):
    _run(place, tmp_path / "out", corrections__text="wordnet", **last)
  assert closed == [reader, reader]


def test_opening_a_run_to_read_it_says_nothing(place, caplog):
  with saved_model.open_run(place / "run"):
    assert not caplog.records
  opened = checkpoints.Checkpoints(
    place / "run" / "checkpoints", read_only=True
  )
  with contextlib.closing(opened):
    assert "read only" in caplog.text  # what there is to be silent about


def test_a_sheet_that_somebody_fills_in_stays(place, tmp_path):
  workdir = tmp_path / "out"
  few = dict(corrections__steps="last", corrections__sheet=3)
  _run(place, workdir, **few)
  sheet = workdir / "sheet.csv"
  rows = list(csv.DictReader(io.StringIO(sheet.read_text())))
  assert [row["number"] for row in rows] == ["1", "2", "3"]
  drawn = sheet.read_bytes()
  # As a spreadsheet may save it: no UTF-8.
  judged = drawn.replace(b",\n", b",y \xe9\r\n")
  sheet.write_bytes(judged)
  sheets = lambda: {p.name: p.read_bytes() for p in workdir.glob("sheet*")}
  for _ in range(2):  # what is there already is not written again
    _, _, printed = _run(place, workdir, **few)
    assert sheets() == {"sheet.csv": judged, "sheet-2.csv": drawn}
    assert "sheet-2.csv" in printed
  (workdir / "sheet-2.csv").write_bytes(judged)
  _run(place, workdir, **few)
  assert sheets() == {
    "sheet.csv": judged,
    "sheet-2.csv": judged,
    "sheet-3.csv": drawn,
  }


def test_a_sheet_that_cannot_be_written_costs_no_numbers(place, tmp_path):
  (tmp_path / "out" / "sheet.csv").mkdir(parents=True)
  with pytest.raises(DiskError, match=r"sheet\.csv"):
    _run(place, tmp_path / "out", corrections__steps="last")
  results = json.loads((tmp_path / "out" / "results.json").read_text())
  assert results["checkpoints"]


# What follows is of the parts, without a model.


def _said(rows, found, tokens=TOKENIZER.vocab):
  """Predictions: found = (sequence, position, predicted word)."""
  ids = {token: i for i, token in enumerate(tokens)}
  sequences = [
    np.array([2, *[ids[word] for word in row.split()], 3], np.int32)
    for row in rows
  ]
  sequence, position, predicted = zip(*found, strict=True)
  gold = [sequences[t][i] for t, i in zip(sequence, position, strict=True)]
  return Predictions(
    sequence_M=np.array(sequence, np.int32),
    position_M=np.array(position, np.int32),
    gold_M=np.array(gold, np.int32),
    predicted_M=np.array([ids[word] for word in predicted], np.int32),
    probability_M=np.linspace(0.9, 0.1, len(found)).astype(np.float32),
    eligible_M=np.ones(len(found), bool),
    sequences=tuple(sequences),
  )


ROWS = ("w5 w6 ##ly w7 w5", "w5 w8", "w9 " * 60 + "w5 " + "w10 " * 60)
SAID = _said(
  ROWS,
  [
    (0, 1, "w8"),  # corrected
    (0, 5, "w8"),  # the same pair again
    (0, 2, "w7"),  # wrong
    (1, 1, "w5"),  # right
    (1, 2, "w9"),  # corrected, the other pair
    (2, 61, "w8"),  # corrected, once more
  ],
)
PAIRS = [("w5", "w8"), ("w5", "w6"), ("w8", "w9")]
# In a table that lists the gold itself the gold is no correction, either.
TABLE = build_table(PAIRS, TOKENIZER.vocab, source="made up", include_self=True)


def _cases(**kwargs):
  only = cases_lib.parse_only(kwargs.pop("only", ""), TOKENIZER)
  return cases_lib.choose_cases(
    SAID, TABLE, TOKENIZER, only=only, **{"limit": 10} | kwargs
  )


def test_corrected_cases_come_by_different_pairs_first():
  found = [(c.gold, c.prediction, c.sentence[:12]) for c in _cases()]
  assert found == [
    ("w5", "w8", "[MASK] w6ly "),
    ("w8", "w9", "w5 [MASK]"),
    ("w5", "w8", "w5 w6ly w7 ["),
    ("w5", "w8", "w9 w9 w9 w9 "),
  ]
  assert {c.verdict for c in _cases()} == {"corrected"}
  assert _cases(limit=2) == _cases()[:2]
  first = _cases()[0]
  assert first.sentence == "[MASK] w6ly w7 w5" and first.synonyms[1:] == (
    "w6",
    "w8",
  )
  assert first.probability == pytest.approx(0.9)


def test_a_filter_shows_every_verdict():
  verdicts = lambda only: [c.verdict for c in _cases(only=only)]
  assert verdicts("W5:W8") == ["corrected"] * 3  # of a lower-case vocabulary
  assert verdicts("w5") == ["corrected", "right", "corrected", "corrected"]
  assert verdicts("w6, w8:w9") == ["wrong", "corrected"]
  assert verdicts("w5:w5") == ["right"]
  assert verdicts("w8:w5") == []
  printed = io.StringIO()
  console = Console(file=printed, width=120)
  console.print(cases_lib.show(_cases(only="w6"), 6))
  console.print(cases_lib.show([], 6))
  assert "wrong" in printed.getvalue() and "nothing found" in printed.getvalue()


def test_a_sheet_is_drawn_blind_from_all_that_any_source_corrects():
  other = build_table([("w6", "w7")], TOKENIZER.vocab, source="other")
  make = lambda **kwargs: cases_lib.sheet(
    SAID, [TABLE, other], TOKENIZER, **{"size": 200, "seed": 0} | kwargs
  )
  head, *rows = csv.reader(io.StringIO(make()))
  assert head[:5] == "number sentence gold prediction probability".split()
  assert head[5:] == ["right? (y, n, or ? where you cannot tell)"]
  drawn = sorted((row[2], row[3], row[5]) for row in rows)
  assert drawn == [("w5", "w8", "")] * 3 + [("w6", "w7", ""), ("w8", "w9", "")]
  [six] = [row for row in rows if row[2] == "w6"]
  assert six[1] == "w5 **w6**ly w7 w5"
  assert make() == make() and len({make(seed=s) for s in range(9)}) > 1
  assert len(make(size=2).splitlines()) == 3


def test_no_cell_of_a_sheet_is_a_formula():
  tokenizer = make_tokenizer([*TOKENIZER.vocab, "=", "-"], lowercase=True)
  said = _said(["= =", "w5 ="], [(0, 2, "-"), (1, 1, "=")], tokenizer.vocab)
  table = build_table(
    [("=", "-"), ("w5", "=")], tokenizer.vocab, source="made up"
  )
  sheet = cases_lib.sheet(said, [table], tokenizer, size=2, seed=0)
  _, *rows = csv.reader(io.StringIO(sheet))
  assert sorted(row[1:4] for row in rows) == [
    ["'= **=**", "'=", "'-"],
    ["**w5** =", "w5", "'="],
  ]


def test_slots_that_correction_may_not_touch_are_no_cases():
  said = dataclasses.replace(SAID, eligible_M=np.arange(6) != 1)
  choose = lambda said, only="": cases_lib.choose_cases(
    said,
    TABLE,
    TOKENIZER,
    limit=10,
    only=cases_lib.parse_only(only, TOKENIZER),
  )
  assert [c for c in choose(SAID) if c not in choose(said)] == [
    case := choose(SAID)[2]
  ]
  [spared] = [c for c in choose(said, "w5:w8") if c.verdict == "wrong"]
  assert spared == dataclasses.replace(case, verdict="wrong")
  sheet = cases_lib.sheet(said, [TABLE], TOKENIZER, size=9, seed=0)
  assert len(sheet.splitlines()) - 1 == len(choose(said)) == 3


def test_lines_are_cut_and_headings_known(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text(" = w5 = \n\nw5 = w6\n = = w5 w6 = = \nw5 w6 w7\n= w5\n")
  read = lambda **kwargs: text_lines.read_lines(
    str(path), TOKENIZER, length=4, **kwargs
  )
  with_headings, without = read(), read(headings=False)
  assert (len(with_headings.sequences), with_headings.num_headings) == (5, 0)
  assert (len(without.sequences), without.num_headings) == (3, 2)
  assert without.num_cut == 2
  endless = "= " * 20_000 + "x"  # told in a moment
  assert not text_lines.is_heading(endless)
  assert text_lines.is_heading(endless + " =" * 20_000)
  assert not text_lines.is_heading("= x = y =")
  ids = [TOKENIZER.vocab.index(word) for word in ("w5", "w6")]
  assert without.sequences[1].tolist() == [2, *ids, 3]
  assert read(limit=2).sequences[1].tolist() == without.sequences[0].tolist()
  assert read(limit=2).fingerprint != with_headings.fingerprint


@pytest.mark.parametrize("with_replacement", [False, True])
def test_predictions_do_not_depend_on_how_lines_share_batches(
  place, with_replacement
):
  model, params = tiny.make_model(), PARAMS[20]
  masking = dataclasses.replace(MASKING, with_replacement=with_replacement)
  # What shares a place says the same there, also where it is drawn.
  predict = predict_slots.make_predict_slots(
    model, masking, prediction="sample" if with_replacement else "argmax"
  )
  rng = np.random.default_rng(0)
  sequences = [
    np.array([2, *rng.integers(5, tiny.V, size), 3], np.int32)
    for size in [*rng.integers(1, 7, 8), *rng.integers(20, 30, 14), 30]
  ]
  mesh = sharding.make_mesh(sharding.get_spec("dp"), jax.devices()[:1])
  told = []

  def say(sequences):
    return predict_slots.predict_lines(
      predict,
      params,
      sequences,
      jax.random.key(1),
      length=LENGTH,
      batch_size=8,
      mesh=mesh,
      advance=told.append,
    )

  # In batches of their own short lines take a narrow batch.
  every, some = say(sequences), say([*sequences[:4], sequences[-1]])
  assert told == [8, 8, 7, 5]
  for name in ("sequence_M", "position_M", "gold_M", "predicted_M"):
    by_every, by_some = (
      getattr(said, name)[said.sequence_M < 4] for said in (every, some)
    )
    np.testing.assert_array_equal(by_every, by_some)
    assert len(by_some) >= 4
  assert set(every.sequence_M) == set(range(23))
  # Slots may share a place with replacement; a row holds one token there.
  places = list(zip(every.sequence_M, every.position_M, strict=True))
  assert places == sorted(places)  # as one reads
  with_tokens = set(zip(places, every.predicted_M, strict=True))
  assert len(set(places)) == len(with_tokens)
  assert (len(with_tokens) < len(places)) == with_replacement
  assert np.bincount(every.sequence_M)[-1] == 8  # of 32 tokens, at 25 %


def test_cases_of_packed_rows_show_their_own_document(place):
  params = PARAMS[20]
  predict = predict_slots.make_predict_slots(tiny.make_model(), MASKING)
  batches = [tiny.make_batch(seed, length=24) for seed in range(4)]
  for batch in batches:  # a second document from position 12 on
    full = (batch["documents"] > 0).all(axis=1)
    batch["documents"][full, 12:] = 2
    batch["tokens"][full, 11:13] = tiny.SEP, tiny.CLS
  said = predict_slots.predict_batch(
    predict, params, batches[0], jax.random.key(0)
  )
  assert len(said.gold_M) > 20  # and Predictions has checked the golds
  assert {row[0] for row in said.sequences} == {tiny.CLS}
  assert len(said.sequences) > tiny.B - 2
  every = [(a, b) for a in WORDS for b in WORDS if a != b]
  table = build_table(every, TOKENIZER.vocab, source="all")
  search = lambda limit: cases_lib.find_cases(
    predict,
    params,
    iter(batches),
    table=table,
    tokenizer=TOKENIZER,
    limit=limit,
    seed=0,
  )
  cases, searched = search(10_000)
  pairs = [(case.gold, case.prediction) for case in cases]
  assert len(set(pairs)) == len(pairs) > 20
  assert all(gold != predicted for gold, predicted in pairs)
  assert search(3) == (cases[:3], len(said.gold_M)) and searched > 60
