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

import tiny
from truenegs_jax import corrections as task
from truenegs_jax import huggingface
from truenegs_jax.configs import corrections as config
from truenegs_jax.configs import electra_demo
from truenegs_jax.data.tokenizer import make_tokenizer, write_vocabulary
from truenegs_jax.errors import DataError, InputError, NonFiniteError
from truenegs_jax.evals import corrections, lines, slots
from truenegs_jax.evals.predictions import Predictions
from truenegs_jax.objectives.guess import guess_slots
from truenegs_jax.synonyms.table import build_table
from truenegs_jax.train import build, checkpoint, sharding

WORDS = [f"w{i}" for i in range(5, tiny.V - 1)]
TOKENIZER = make_tokenizer(
  ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##ly"],
  lowercase=True,
)
LENGTH, NUM_LINES = 32, 70
PARAMS = {}  # of the run by step, as they were saved
MASKING = dataclasses.replace(tiny.MASKING, style="80_10_10", mask_prob=0.25)


# Compiled once for all runs of the task.
make_predict_slots = functools.cache(slots.make_predict_slots)


def _text(seed=0, num_lines=NUM_LINES):
  """Lines of 15 to 45 words, blank ones and headings between."""
  rng = np.random.default_rng(seed)
  sizes = rng.integers(15, 46, num_lines)
  found = [" ".join(rng.choice(WORDS, size)) for size in sizes]
  found[3:3] = ["", " = w5 = ", " = = w6 w7 = = ", "   "]
  return "\n".join(found) + "\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
  """A run with steps 10 and 20 of 20, a text and a file of synonyms."""
  folder = tmp_path_factory.mktemp("place")
  c = electra_demo.get_config("runlocal")
  c.length = LENGTH
  run = build.build_run(c, TOKENIZER)
  state = jax.jit(lambda: run.init_state(0))()
  rng = np.random.default_rng(0)
  described = {
    "config": json.loads(c.to_json()),
    "fingerprints": {"vocabulary": TOKENIZER.fingerprint},
  }
  del described["config"]["negatives"]["smoothing"]  # an earlier code's
  saving = checkpoint.Checkpoints(folder / "run" / "checkpoints", keep=9)
  with contextlib.closing(saving):
    for step in (10, 20):
      params = jax.tree.map(
        lambda x: np.float32(x + rng.normal(0, 0.3, x.shape)), state.params
      )
      PARAMS[step] = params
      saving.save(step, vars(state) | {"params": params}, described)
    saving.wait()
  write_vocabulary(TOKENIZER.vocab, folder / "run" / "vocab.txt")
  with lzma.open(folder / "text.raw.xz", "wt") as file:
    file.write(_text())
  for name, seed in (("one.tsv", 1), ("two.tsv", 2)):
    pairs = np.random.default_rng(seed).choice(WORDS, (700, 2))
    (folder / name).write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
  return folder


@pytest.fixture(autouse=True, scope="module")
def _alone(place):
  """No WordNet, and no cache but its own; compiled steps are not kept."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TRUENEGS_CACHE", str(place / "cache"))
    patch.setenv("NLTK_DATA", str(place / "none"))
    patch.setattr(task, "enable_compilation_cache", lambda: None)
    patch.setattr(slots, "make_predict_slots", make_predict_slots)
    yield


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
  assert task.run(_config(place, **changed), workdir, console) == 0
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


def _counted(place, step, text, *, sample=False):
  """Table 2 of a step by loops, over one batch as training masks it."""
  c = electra_demo.get_config("runlocal")
  run = build.build_run(c, TOKENIZER)
  options = dataclasses.replace(
    run.options, prediction="sample" if sample else "argmax"
  )
  slots_B = _guessed(run.model, PARAMS[step], text, options)
  pairs = {
    tuple(map(TOKENIZER.vocab.index, line.split("\t")))
    for line in (place / "one.tsv").read_text().splitlines()
  }
  hits = [
    [(g, p) in pairs and g != p for g, p in row.values()] for row in slots_B
  ]
  wrong = sum(g != p for row in slots_B for g, p in row.values())
  total = sum(map(len, hits))
  struck = sum(map(sum, hits))
  return [(sum(map(any, hits)), len(hits)), (struck, wrong), (struck, total)]


def _guessed(model, params, text, options):
  """position -> (gold, predicted) of each line, all in one wide batch."""
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
    {
      int(p): (int(g), int(y))
      for p, g, y, w in zip(*(x[b] for x in found), strict=True)
      if w
    }
    for b in range(len(kept))
  ]


@functools.partial(jax.jit, static_argnames=("model", "options"))
def _guess(params, batch, model, options):
  key = jax.random.fold_in(jax.random.key(0), 0)
  rows_B = jnp.arange(NUM_LINES + 2)
  keys_B = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows_B)
  bound = model.bind({"params": params})
  guess = guess_slots(bound, batch, keys_B, options, train=False)
  slots = guess.slots
  golds_BxK = slots.original_BxK
  return slots.positions_BxK, golds_BxK, guess.predicted_BxK, slots.weight_BxK


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
  expected = _counted(place, 10, _text(), sample=True)
  assert _key_figures(at["rates"]) == expected
  assert not (tmp_path / "out" / "plots").exists()  # of one step


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
    huggingface.write_model(
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
    "corrections.sources: pairs path=no: no such",
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
  whole, calls = slots.predict_lines, []

  def predict_lines(predict, params, *args, **kwargs):
    calls.append(1)
    if len(calls) == 2 and broken == "nan":
      params = jax.tree.map(lambda x: x * np.nan, params)
    elif len(calls) == 2:
      raise broken
    return whole(predict, params, *args, **kwargs)

  monkeypatch.setattr(slots, "predict_lines", predict_lines)
  expected = NonFiniteError if broken == "nan" else broken
  with pytest.raises(expected):
    _run(place, tmp_path / "out")
  assert [p.name for p in (tmp_path / "out").iterdir()] == ["lock"]


def test_a_step_that_its_run_clears_away_is_left_out(
  place, tmp_path, monkeypatch
):
  kept = place / "run" / "checkpoints" / "10"
  gone = kept.with_name("gone")
  gather = task._gather

  def clear(*args):
    kept.rename(gone)  # after the steps were listed
    return gather(*args)

  monkeypatch.setattr(task, "_gather", clear)
  try:
    results, _, printed = _run(place, tmp_path / "out")
  finally:
    gone.rename(kept)
  found = results["checkpoints"]["pairs path=one.tsv"]
  assert [at["step"] for at in found] == [20]
  assert "step 10: its run has cleared it away" in printed


def test_a_sheet_that_somebody_fills_in_stays(place, tmp_path):
  workdir = tmp_path / "out"
  few = dict(corrections__steps="last", corrections__sheet=3)
  _run(place, workdir, **few)
  sheet = workdir / "sheet.csv"
  rows = list(csv.DictReader(io.StringIO(sheet.read_text())))
  assert [row["number"] for row in rows] == ["", "1", "2", "3"]
  judged = sheet.read_text().replace(",\n", ",y\n")
  sheet.write_text(judged)
  _run(place, workdir, **few)
  assert sheet.read_text() == judged
  assert (workdir / "sheet-new.csv").read_text().count(",y\n") == 0


# What follows is of the parts, without a model.


def _said(rows, found):
  """Predictions: found = (sequence, position, predicted word)."""
  ids = {token: i for i, token in enumerate(TOKENIZER.vocab)}
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
  only = corrections.parse_only(kwargs.pop("only", ""), TOKENIZER)
  return corrections.choose_cases(
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
  assert verdicts("w5") == ["corrected", "right", "corrected", "corrected"]
  assert verdicts("w6, w8:w9") == ["wrong", "corrected"]
  assert verdicts("w5:w5") == ["right"]
  assert verdicts("w8:w5") == []
  printed = io.StringIO()
  console = Console(file=printed, width=120)
  console.print(corrections.show(_cases(only="w6"), 6))
  console.print(corrections.show([], 6))
  assert "wrong" in printed.getvalue() and "nothing found" in printed.getvalue()


def test_a_sheet_is_drawn_blind_from_all_that_any_source_corrects():
  other = build_table([("w6", "w7")], TOKENIZER.vocab, source="other")
  make = lambda **kwargs: corrections.sheet(
    SAID, [TABLE, other], TOKENIZER, **{"size": 200, "seed": 0} | kwargs
  )
  head, how, *rows = csv.reader(io.StringIO(make()))
  assert head == "number sentence gold prediction probability right?".split()
  assert "y where the prediction" in how[1]
  drawn = sorted((row[2], row[3], row[5]) for row in rows)
  assert drawn == [("w5", "w8", "")] * 3 + [("w6", "w7", ""), ("w8", "w9", "")]
  [six] = [row for row in rows if row[2] == "w6"]
  assert six[1] == "w5 **w6**ly w7 w5"
  assert make() == make() and len({make(seed=s) for s in range(9)}) > 1
  assert len(make(size=2).splitlines()) == 4


def test_no_cell_of_a_sheet_is_a_formula():
  tokenizer = make_tokenizer([*TOKENIZER.vocab, "="], lowercase=True)
  said = dataclasses.replace(
    SAID,
    sequences=tuple(
      np.where(np.arange(len(row)) == 1, tiny.V, row) for row in SAID.sequences
    ),
    **{
      name: getattr(SAID, name)[4:5]
      for name in (
        "sequence_M position_M gold_M predicted_M probability_M"
      ).split()
    },
  )
  table = build_table(PAIRS, tokenizer.vocab, source="made up")
  sheet = corrections.sheet(said, [table], tokenizer, size=1, seed=0)
  [*_, row] = csv.reader(io.StringIO(sheet))
  assert row[1] == "'= **w8**"


def test_lines_are_cut_and_headings_known(tmp_path):
  path = tmp_path / "a.txt"
  path.write_text(" = w5 = \n\nw5 = w6\n = = w5 = w6 = = \nw5 w6 w7\n= w5\n")
  read = lambda **kwargs: lines.read_lines(
    str(path), TOKENIZER, length=4, **kwargs
  )
  with_headings, without = read(), read(headings=False)
  assert (len(with_headings.sequences), with_headings.num_headings) == (5, 0)
  assert (len(without.sequences), without.num_headings) == (3, 2)
  assert without.num_cut == 2
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
  predict = slots.make_predict_slots(model, masking, prediction="sample")
  rng = np.random.default_rng(0)
  sequences = [
    np.array([2, *rng.integers(5, tiny.V, size), 3], np.int32)
    for size in [*rng.integers(1, 7, 8), *rng.integers(20, 30, 14), 30]
  ]
  mesh = sharding.make_mesh(sharding.get_spec("dp"), jax.devices()[:1])
  told = []

  def say(sequences, batch_size):
    return slots.predict_lines(
      predict,
      params,
      sequences,
      jax.random.key(1),
      length=LENGTH,
      batch_size=batch_size,
      mesh=mesh,
      advance=told.append,
    )

  by_8, by_32, some = (
    say(sequences, 8),
    say(sequences, 32),
    say(sequences[:9], 8),
  )
  assert told == [8, 8, 7, 23, 8, 1]
  inside = by_8.sequence_M < 9
  for name in ("sequence_M", "position_M", "gold_M", "predicted_M"):
    np.testing.assert_array_equal(getattr(by_8, name), getattr(by_32, name))
    np.testing.assert_array_equal(
      getattr(by_8, name)[inside], getattr(some, name)
    )
  assert set(by_8.sequence_M) == set(range(23))
  # Slots may share a place with replacement; a row holds one token there.
  places = list(zip(by_8.sequence_M, by_8.position_M, strict=True))
  assert places == sorted(places)  # as one reads
  with_tokens = set(zip(places, by_8.predicted_M, strict=True))
  assert len(set(places)) == len(with_tokens)
  assert (len(with_tokens) < len(places)) == with_replacement
  assert np.bincount(by_8.sequence_M)[-1] == 8  # of 32 tokens, at 25 %


def test_cases_of_packed_rows_show_their_own_document(place):
  params = PARAMS[20]
  predict = slots.make_predict_slots(tiny.make_model(), MASKING)
  batches = [tiny.make_batch(seed, length=24) for seed in range(4)]
  for batch in batches:  # a second document from position 12 on
    full = (batch["documents"] > 0).all(axis=1)
    batch["documents"][full, 12:] = 2
    batch["tokens"][full, 11:13] = tiny.SEP, tiny.CLS
  said = slots.predict_batch(predict, params, batches[0], jax.random.key(0))
  assert len(said.gold_M) > 20  # and Predictions has checked the golds
  assert {row[0] for row in said.sequences} == {tiny.CLS}
  assert said.num_sequences > tiny.B - 2
  every = [(a, b) for a in WORDS for b in WORDS if a != b]
  table = build_table(every, TOKENIZER.vocab, source="all")
  search = lambda limit: corrections.find_cases(
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
