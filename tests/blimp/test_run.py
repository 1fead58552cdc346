"""Scores of minimal pairs equal a loop over tokens in transformers."""

import io
import itertools
import json
import shutil

import numpy as np
import pytest
from rich.console import Console

from support import runs
from support.texts import LETTERS, write_lines
from support.weight_files import (
  edit_config,
  edit_tensors,
  random_params,
  read_tensors,
  write_export,
)
from truenegs_jax.blimp import run as run_lib
from truenegs_jax.config.flags import parse_config
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import Blimp
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import measured, minimal_pairs
from truenegs_jax.runtime.errors import DataError, InputError

PIECES = ("##s", "##ing", *(f"##{x}" for x in LETTERS))
WORDS = ("who", "the", "cat", "see", "sleep", *LETTERS, *PIECES)
VOCAB = (*SPECIALS, *WORDS)
SIZE = {"vocab_size": len(VOCAB), "variant": "tiny"}
MODELS = {
  "bert": pretrain.make_bert(**SIZE),
  "modern": pretrain.make_bert(**SIZE, backbone="modern"),
  "pair": pretrain.make_electra(**SIZE, generator_multiplier=0.5),
}
SENTENCES = (
  "The cat sees a cats",
  "who sleeps?",
  "a cats seesings the cat see",
)
PAIRS = [
  {"good": good, "bad": bad, "paradigm": good}
  for good, bad in itertools.permutations(SENTENCES, 2)
]
CONSOLE = Console(file=io.StringIO())


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
  """A folder with exports of MODELS."""
  folder = tmp_path_factory.mktemp("exports")
  tokenizer = tokenizer_lib.make_tokenizer(VOCAB, lowercase=True)
  for name, model in MODELS.items():
    params = random_params(model)
    params["embeddings"]["word"] *= 9  # scores differ
    write_export(folder / name, model, params, tokenizer=tokenizer)
  return folder


def make_config(path, **values):
  values["blimp.pairs"] = path
  flags = [f"--config.{name}={x}" for name, x in values.items()]
  return parse_config(["--config=blimp", *flags])


def score(path, **values):
  """Returns the scores of the task by pair, and percentages by paradigm."""
  c = make_config(path, **values)
  o = Blimp.read(c.blimp)
  m = measured.find_model(PretrainConfig.read(c), o, print)
  pairs = minimal_pairs.read_pairs(o.pairs, key="blimp.pairs", rows=o.rows)
  unread = "generator" if o.network == "discriminator" else ""
  with measured.open_model(m, unread=unread) as (saved, steps):
    options = {"hidden": o.hidden, "network": o.network}
    scorer = minimal_pairs.PairScorer(m.make_run(saved), pairs, **options)
    [(_, params)] = steps
  score_Nx2 = scorer.score(params, CONSOLE).tolist()
  scores = {x[:2]: y for x, y in zip(pairs, score_Nx2, strict=True)}
  return scores, scorer.rate(params, CONSOLE)


def score_by_loop(folder, text, hidden="token"):
  """Scores a sentence by transformers, with one pass for each token."""
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  encoded = tokenizer(text, return_offsets_mapping=True)
  ids = torch.tensor(encoded["input_ids"])
  if folder.name == "discriminator":
    detector = transformers.ElectraForPreTraining.from_pretrained(folder).eval()
    logits = detector(ids[None]).logits[0, 1:-1]
    return torch.nn.functional.logsigmoid(-logits).sum().item()
  model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
  words = [len(text[:end].split()) for _, end in encoded["offset_mapping"]]
  total = 0.0
  for k in range(1, len(ids) - 1):
    masked = ids.clone()
    for i in range(k, len(ids) - 1):
      if i == k or (hidden == "word" and words[i] == words[k]):
        masked[i] = tokenizer.mask_token_id
    log_p = model(masked[None]).logits[0, k].log_softmax(-1)
    total += log_p[ids[k]].item()
  return total


@pytest.mark.parametrize(
  ("role", "hidden"),
  [
    *itertools.product(["bert/bert", "modern/bert"], ["token", "word"]),
    *[("pair/generator", "token"), ("pair/discriminator", "token")],
  ],
)
def test_scores_equal_a_loop_over_tokens(exports, tmp_path, role, hidden):
  name, network = role.split("/")
  path = write_lines(tmp_path / "pairs.jsonl", PAIRS)
  options = {"blimp.hidden": hidden, "blimp.network": network}
  scores, _ = score(path, init=exports / name, **options)
  if network == "discriminator":  # needs no generator
    alone, _ = score(path, init=exports / role, **options)
    assert alone == scores
  by_text = {x: score_by_loop(exports / role, x, hidden) for x in SENTENCES}
  expected = [[by_text[x] for x in pair] for pair in scores]
  np.testing.assert_allclose([*scores.values()], expected, rtol=1e-5)
  assert np.ptp(expected) > 0.5  # equal scores would hide errors


def test_real_pairs_are_read(real_data):
  file = str(real_data / "blimp" / "blimp-first500.jsonl.xz")
  pairs = minimal_pairs.read_pairs(file, key="blimp.pairs", rows=1)
  assert len({pair.paradigm for pair in pairs}) == len(pairs) == 67
  assert all(pair.good != pair.bad for pair in pairs)


def test_batches_do_not_change_scores_and_ties_are_one_half(
  exports, tmp_path, monkeypatch
):
  path = write_lines(tmp_path / "pairs.jsonl", PAIRS)
  expected, _ = score(path, init=exports / "modern")
  monkeypatch.setattr(minimal_pairs, "BATCH_TOKENS", 100)
  monkeypatch.setattr(minimal_pairs, "WIDTH", 64)
  tie = {"good": "a " * 40, "bad": "A " * 40, "paradigm": "tie"}
  write_lines(path, [tie, *PAIRS[::-1]])
  scores, rates = score(path, init=exports / "modern")
  assert rates.pop("tie") == 50
  for pair, values in expected.items():
    np.testing.assert_allclose(scores[pair], values, rtol=1e-5)
  by_text = {good: values[0] for (good, _), values in expected.items()}
  worst_first = sorted(SENTENCES, key=by_text.get)
  assert [rates[x] for x in worst_first] == [0, 50, 100]


def test_rows_that_are_no_words_change_no_score(exports, tmp_path):
  path = write_lines(tmp_path / "pairs.jsonl", PAIRS)
  padded = shutil.copytree(exports / "bert/bert", tmp_path / "padded")
  tensors = read_tensors(padded)
  rows = {}
  for name in (
    "bert.embeddings.word_embeddings.weight",
    "cls.predictions.bias",
  ):
    more = np.zeros_like(tensors[name][:3])
    rows[name] = np.concatenate([tensors[name], more])
  edit_tensors(padded, rows)
  edit_config(padded, {"vocab_size": len(VOCAB) + 3})
  assert score(path, init=padded) == score(path, init=exports / "bert")
  with pytest.raises(InputError, match="trained with data.lowercase=True"):
    score(path, init=padded, **{"data.lowercase": False})


PAIR = {"sentence_good": "a", "sentence_bad": "the", "UID": "p"}


@pytest.mark.parametrize(
  ("record", "message"),
  [
    (PAIR | {"sentence_bad": " "}, "column 'sentence_bad' holds ' ', not"),
    (PAIR | {"UID": 3}, "column 'UID' holds 3, not a text. Correct it"),
    ({"good": "a", "bad": "the"}, "no column 'paradigm'.*Rename"),
    (PAIR | {"sentence_good": "a " * 600}, ".* has 600 tokens.* 1 to 510"),
    (PAIR | {"sentence_good": "\u200b"}, "a sentence has 0 tokens"),
  ],
)
def test_other_records_are_refused(exports, tmp_path, record, message):
  path = write_lines(tmp_path / "pairs.jsonl", [PAIR, record])
  with pytest.raises(DataError, match=f"pairs.jsonl:2: {message}"):
    score(path, init=exports / "bert")


@pytest.mark.usefixtures("one_device")
def test_training_records_what_the_task_measures(shared_pretraining, tmp_path):
  shared = shared_pretraining.copy_to(tmp_path / "run")
  pairs = [
    {"good": f"{x} {verb}", "bad": f"{verb} {x}", "paradigm": verb}
    for x, verb in itertools.product(runs.SUBJECTS, runs.VERBS)
  ]
  path = write_lines(tmp_path / "pairs.jsonl", pairs)
  flags = [*shared.values, "--config.steps=13", f"--config.eval.blimp={path}"]
  assert runs.run_in_process(shared.workdir, flags)[0] == 0
  last = runs.read_records(shared.workdir, "held_out")[-1]
  c = make_config(path, **{"blimp.run": shared.workdir})
  assert run_lib.run(c, tmp_path / "out", CONSOLE) == 0
  results = json.loads((tmp_path / "out" / "results.json").read_text())
  [at] = results["checkpoints"]
  assert (at["step"], at["accuracy"]) == (13, last["blimp"])
  assert last["blimp_paradigms"] == len(at["paradigms"]) == 8
  assert len({*at["paradigms"].values()}) > 1
  assert (tmp_path / "out" / "report.html").exists()
