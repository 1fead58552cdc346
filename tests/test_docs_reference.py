"""Pages of the reference list every field, file and exit code."""

import importlib
import json
import re
import types

import jax

from support import tiny
from support.doc_pages import ROOT, read_first_cells
from truenegs_jax.config.keys import flatten
from truenegs_jax.config.load import packaged_names
from truenegs_jax.config.tables import DICTS
from truenegs_jax.finetune import results, run
from truenegs_jax.models import pretrain
from truenegs_jax.runtime import errors, rng
from truenegs_jax.tasks.task import METRICS
from truenegs_jax.train import guards, metrics
from truenegs_jax.workdir import files, metrics_file

REFERENCE = ROOT / "docs" / "reference"
# Other fields of records; a run in pretrain/test_run.py has no others.
RECORD_FIELDS = (
  *metrics_file.COMMON,
  "total",
  "auc",
  "row_tokens",
  "lr",
  "grad_norm",
  "skipped",
  "eta_s",
  "total_steps",
  "blimp",
  "blimp_paradigms",
)


def test_every_metric_of_pretraining_is_described():
  model = tiny.make_model()
  options = tiny.make_options(discriminator_label=0.0, sentence_weight=1.0)
  terms = jax.eval_shape(
    tiny.make_objective(model, options, train=False),  # has more than training
    pretrain.param_shapes(model),
    batch := tiny.make_batch(0),
    rng.row_keys(jax.random.key(0), 0, batch["row"]),
    tiny.make_aux(),
  )
  device = types.SimpleNamespace(
    memory_stats=lambda: {"peak_bytes_in_use": 2, "bytes_in_use": 1}
  )
  fields = {
    *(terms.keys() - {metrics.HISTOGRAM}),
    *metrics.throughput_fields(1.0, tokens=1, flops=1, devices=1, peak=1.0),
    *metrics.memory_fields(device),
    *RECORD_FIELDS,
  }
  assert read_first_cells("metrics.md", "Pre-training") == fields


def test_every_score_of_fine_tuning_is_described():
  scores = set().union(*METRICS.values())
  cells = read_first_cells("metrics.md", "Evaluations of fine-tuning")
  assert cells == {"version", "step", "split", *scores}


def test_every_exit_code_is_described():
  classes = [
    x
    for x in vars(errors).values()
    if isinstance(x, type) and issubclass(x, errors.TrueNegsError)
  ]
  own = [kind.exit_code for kind in errors.TrueNegsError.__subclasses__()]
  codes = [0, *{x.exit_code for x in classes}]
  codes += [errors.SAVED_INTERRUPT, errors.SAVED_RESTART]
  codes += [guards.STOPPED_UNSAVED]
  assert read_first_cells("exit_codes.md") == set(map(str, codes))
  assert len(codes) == len(set(codes))
  assert len(own) == len(set(own)) and not {0, 1} & set(own)
  text = (REFERENCE / "exit_codes.md").read_text()
  for error in classes:
    assert re.search(rf"(?m)^\| {error.exit_code} \|.*`{error.__name__}`", text)


def test_every_file_of_a_workdir_is_described():
  constants = vars(files).items()
  names = {x for key, x in constants if key.isupper() and isinstance(x, str)}
  names -= {files.RUNNING, files.FINISHED, files.STOPPED, files.SEEDS}
  assert len(names) > 10
  names |= {results.MODEL, run.SUBMISSION}
  described = "\n".join(read_first_cells("workdir.md"))
  assert [name for name in sorted(names) if name not in described] == []


def test_every_key_of_every_config_has_a_row_with_a_meaning(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT / "docs"))
  page = importlib.import_module("config_reference").render()
  rows = re.findall(r"(?m)^\| `([^`]+)` \| (.*)$", page)
  described = {key for key, row in rows if len(row.split(" | ")[0].split()) > 1}
  for name in packaged_names():
    module = importlib.import_module(f"truenegs_jax.configs.{name}")
    missing = (
      flatten(module.get_config().to_dict(), kept=DICTS).keys() - described
    )
    assert not missing, name


def test_readme_has_the_figures_of_the_run_that_pages_show(monkeypatch):
  monkeypatch.syspath_prepend(str(ROOT / "docs"))
  figures = importlib.import_module("demo_figures")
  numbers = figures.numbers()
  readme = (ROOT / "README.md").read_text()
  section = readme.partition("## Results")[2].partition("## From")[0]
  shown = {*re.findall(r"\b\d+[.,]\d+\b", section)}
  assert len(shown) > 4 and shown <= {*numbers.values()}
  assert numbers["command"] in section
  saved = json.loads(figures.JSON.read_text())
  fills = {
    fill["sentence"]: ", ".join(
      f"{word} {p:.0%}"
      for word, p in zip(
        fill["tokens"][:3], fill["probabilities"][:3], strict=True
      )
    )
    for fill in saved["fills"]
  }
  cases = {
    (x["gold"], f"{x['prediction']} {x['probability']:.0%}"): x["sentence"]
    for x in saved["cases"]
  }
  rows = [
    x.strip("| ").split(" | ") for x in re.findall(r"(?m)^\| .*%.*$", section)
  ]
  for *words, last in rows:
    if len(words) == 1:
      assert fills[words[0]] == last
    else:
      assert last in cases[tuple(words)]
  assert len(rows) > 4
  printed = figures.PRINTED.read_text()
  value = f"{numbers['mlm']} ± {numbers['mlm_error']}"
  assert value in section and value in printed
  assert f"{numbers['searched']} predictions" in section
  assert f"{numbers['searched']} predictions" in printed
