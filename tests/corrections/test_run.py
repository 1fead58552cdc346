"""The task "corrections" on the workdir of a tiny run, and its parts."""

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

from support import tiny
from support.small_predictions import FakeWordNet
from truenegs_jax.configs import corrections as config
from truenegs_jax.configs import electra_demo
from truenegs_jax.corrections import predict_slots
from truenegs_jax.corrections import run as run_lib
from truenegs_jax.data.tokens.tokenizer import make_tokenizer, write_vocabulary
from truenegs_jax.models import pretrain
from truenegs_jax.objectives.slot_predictions import mask_and_predict
from truenegs_jax.runtime.errors import (
  DataError,
  InputError,
  NonFiniteError,
)
from truenegs_jax.synonyms import wordnet
from truenegs_jax.train import build_run
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
  # An early code knew neither key; its runs were not strict.
  negatives = described["config"]["negatives"]
  del negatives["smoothing"]
  if not negatives["strict_subword"]:
    del negatives["strict_subword"]
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

  def is_false(gold, predicted, following):
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
  """(gold, predicted, next token) of each slot; all lines in one batch."""
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
      (int(g), int(y), int(tokens[b, p + 1]))
      for p, g, y, w in zip(*(x[b] for x in found), strict=True)
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
  guess = mask_and_predict(bound, batch, keys_B, options, train=False)
  found = guess.slots
  return (
    found.positions_BxK,
    found.gold_BxK,
    guess.predicted_BxK,
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


@pytest.mark.slow
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
  names = {"cases.json", "correction_rates.png", "results.json", "sheet.csv"}
  assert written == names | {"lock"} and all(name in printed for name in names)
  one, two = sorted(results["checkpoints"])
  judges = {(j["source"], j["judge"]) for j in results["judgements"]}
  assert judges == {(one, two), (two, one)} and "kappa" in printed


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
    negatives__strict_subword=False,
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
  "run": (dict(corrections__run="no/such"), "no/such.* has no checkpoints"),
  "step": (dict(corrections__steps="10,11"), "saved steps: 10, 20"),
  "steps": (dict(corrections__steps="all"), "give kept, last, or some"),
  "no text": (dict(corrections__text=""), "corrections.text is empty"),
  "absent": (dict(corrections__text="no/text"), "^corrections.text: .*no/text"),
  "length": (dict(corrections__length=1_000), "at most 512"),
  "only": (dict(corrections__only="w5, yes:w6"), "'yes' of 'yes:w6'"),
  "source": (
    dict(corrections__sources=("wordnett",)),
    "^corrections.sources: .*wordnett",
  ),
  "no source": (dict(corrections__sources=()), "corrections.sources is empty"),
  "model": (dict(corrections__sources=("model",)), "while a model trains"),
  "file": (dict(corrections__sources=("pairs path=no",)), "no file 'no'"),
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
  read_lines = predict_slots.read_lines

  def clear(*args, **kwargs):
    kept.rename(gone)  # after the steps were listed
    return read_lines(*args, **kwargs)

  monkeypatch.setattr(predict_slots, "read_lines", clear)
  try:
    results, _, printed = _run(place, tmp_path / "out")
  finally:
    gone.rename(kept)
  found = results["checkpoints"]["pairs path=one.tsv"]
  assert [at["step"] for at in found] == [20]
  assert "step 10: its run has deleted it" in printed


def test_wordnets_files_are_closed_whatever_happens(
  place, tmp_path, monkeypatch
):
  reader, closed = FakeWordNet({}, None), []
  monkeypatch.setattr(wordnet, "open_wordnet", lambda folder: reader)
  monkeypatch.setattr(wordnet, "close_wordnet", closed.append)
  last = dict(corrections__steps="last")
  _, _, printed = _run(place, tmp_path / "out", **last)
  assert "no parts of speech: WordNet's cntlist.rev" in printed
  assert closed == [reader]

  def read_lines(*args, reader, **kwargs):
    raise DataError("damaged")

  monkeypatch.setattr(predict_slots, "read_lines", read_lines)
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
