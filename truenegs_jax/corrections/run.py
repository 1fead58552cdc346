"""Runs the task "corrections": how often hard correction applies, and where.

The lines of a text are masked once and predicted by each checkpoint of a run.
Masking, predictions and options of tables (`negatives` without `sources`) are
those of the run's config, or without a run those of this config. The run's
workdir is only read. Nothing is written before the end of measuring.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import Corrections
from truenegs_jax.configs.common import REQUIRED
from truenegs_jax.data import sources as text_sources
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.models import pretrain
from truenegs_jax.pretrain import (
  cases,
  describe,
  plan,
  predict_slots,
)
from truenegs_jax.pretrain import resolve as resolve_lib
from truenegs_jax.report.page import print_table
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import errors, progress
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.synonyms import run_table, wordnet
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import sharding
from truenegs_jax.weights import find, load, match
from truenegs_jax.workdir import files, lock, saved_model
from truenegs_jax.workdir.checkpoints import Checkpoints

SOURCES = "corrections.sources"  # the config key
KEPT = "kept"  # values of corrections.steps
LAST = "last"
# Ascending steps with their parameters as NumPy arrays, read one by one; the
# step of weights without a run is None.
Steps = Iterator[tuple[int | None, dict[str, Any]]]


class Measurement(NamedTuple):
  """A checked measurement; `config` has values of the run or the weights."""

  options: Corrections
  config: PretrainConfig
  weights: find.Weights
  sources: str  # of synonyms

  def make_request(self, config: PretrainConfig) -> run_table.TableRequest:
    """Makes a request for the table of the sources with a config's options."""
    request = run_table.make_request(config.negatives, config.data)
    return dataclasses.replace(request, sources=self.sources, key=SOURCES)


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Measures corrections, prints and saves them, and returns the exit code."""
  say = functools.partial(console.print, soft_wrap=True)
  config = PretrainConfig.read(c)
  m = resolve(config, Corrections.read(c.corrections), say)
  files.check_no_run(workdir)
  spec = sharding.get_mesh_spec(config.mesh.preset, config.mesh.model)
  mesh = sharding.make_mesh(spec)
  if config.dry_run:
    console.print(progress.make_table(_describe_plan(m, mesh)))
    return 0
  with open_model(m) as (saved, steps):
    if m.options.run:
      say(
        "The model, its vocabulary, masking and objective are those of"
        f" '{m.options.run}': {describe.describe_objective(saved.config)}"
      )
    with progress.working(console, "Reading text"):
      text = _read_text(m, saved)
    table = _build_table(m.make_request(saved.config), saved, text, console)
    with lock.lock(workdir):
      checkpoints, search = _measure(
        m, saved, steps, text, table, mesh, console
      )
      results = _report(saved, checkpoints, text, table)
      rates = cases.make_rates_table(checkpoints, table.source)
      print_table(rates, console)
      shown = search.cases[: m.options.cases]
      print_table(cases.make_cases_table(search, shown), console)
      say(results["summary"])
      files.save_json(workdir / files.CONFIG, json.loads(c.to_json()))
      files.save_json(workdir / files.RESULTS, results)
      files.save_json(
        workdir / files.CASES, dataclasses.asdict(search), indent=None
      )
      write_own_report(workdir, say)
  names = files.RESULTS, files.CASES, files.REPORT
  say(f"saved: {', '.join(str(workdir / name) for name in names)}")
  return 0


def _report(
  saved: saved_model.SavedModel,
  checkpoints: list[cases.CheckpointRates],
  text: predict_slots.Lines,
  table: SynonymTable,
) -> dict[str, Any]:
  """Returns the content of results.json."""
  last = checkpoints[-1].rates
  rates = cases.make_rates_table(checkpoints, table.source)
  return {
    "command": errors.rerun_command(),
    "config": saved.config.to_json(),
    "lines": len(text.sequences),
    "lines_cut": text.num_cut,
    "length": text.length,
    "fingerprints": {
      "text": text.fingerprint,
      "synonyms": table.fingerprint,
      "vocabulary": table.vocabulary,
    },
    "source": table.source,
    "table": dict(table.options),
    "checkpoints": [*map(dataclasses.asdict, checkpoints)],
    "summary": (
      f"{last.mismatch_rate.rate:.2%} of the wrong predictions and"
      f" {last.sequence_rate.rate:.2%} of the sequences are corrected by"
      f" {table.source}: {len(text.sequences):,} lines, {text.num_cut:,} of"
      f" them cut to {text.length} tokens."
    ),
    "notes": [],
    "tables": [dataclasses.asdict(rates)],
  }


def resolve(
  config: PretrainConfig, o: Corrections, report: Callable[[str], object]
) -> Measurement:
  """Fills in values of the run, or sizes of `init`, without reading arrays."""
  if bool(o.run) == bool(config.init) or config.init == REQUIRED:
    raise errors.InputError(
      "Exactly one of corrections.run and init is needed. Set"
      " --config.corrections.run=WORKDIR to measure a run, or --config.init="
      "FOLDER and --config.objective to measure weights."
    )
  text_sources.named_sources(o.text, key=predict_slots.TEXT)
  weights = find.Weights(config.init, report)
  auto = config.negatives.sources
  if config.init and not (config.dry_run and not find.is_local(config.init)):
    config = resolve_lib.replace_init(config, weights, saved=None)
  workdir = open_path("corrections.run", o.run)
  if o.run and (saved := saved_model.read_config(workdir)):
    config = config.replace({"data.language": saved["data"]["language"]})
    if not saved["negatives"]["sources"].startswith("model"):
      auto = saved["negatives"]["sources"]
  resolve_lib.check(config)
  sources = auto if o.sources in ("", "auto") else o.sources
  m = Measurement(o, config, weights, sources)
  request = m.make_request(config)
  if request.model:
    raise errors.InputError(
      f"{SOURCES}={sources!r} changes while a model trains. Use sources that"
      " are the same for every checkpoint."
    )
  request.check()
  return m


def _describe_plan(m: Measurement, mesh: jax.sharding.Mesh) -> dict[str, str]:
  """Returns the lines of a dry run."""
  o = m.options
  workdir = open_path("corrections.run", o.run)
  if not o.run:
    weights = find.describe(m.config.init)
  elif not files.has_checkpoint(workdir):
    weights = f"'{workdir}' (missing, or without a checkpoint)"
  else:
    with saved_model.open_run(workdir) as checkpoints:
      steps = choose_steps(o.steps, checkpoints.steps())
    weights = f"'{workdir}', steps {', '.join(map(str, steps))}"
  return {
    "dry run": "reads no text; writes and compiles nothing",
    "devices": sharding.describe_devices(m.config.mesh.preset, mesh),
    "weights": weights,
    "text": text_sources.describe_sources(o.text, key=predict_slots.TEXT),
    "lines": f"{o.sequences or 'all'}, in batches of {m.config.batch_size}",
    "synonyms": m.make_request(m.config).identity,
  }


def choose_steps(text: str, saved_steps: list[int]) -> list[int]:
  """Returns the saved steps selected by "kept", "last" or "100,200"."""
  if text == KEPT:
    return saved_steps
  if text == LAST:
    return saved_steps[-1:]
  words = text.replace(" ", "").split(",")
  if not set(words) <= set(map(str, saved_steps)):
    raise errors.InputError(
      f"corrections.steps={text!r} is unknown. Choose kept, last, or some of"
      f" the saved steps {', '.join(map(str, saved_steps))}."
    )
  return sorted(set(map(int, words)))


@contextlib.contextmanager
def open_model(
  m: Measurement,
) -> Iterator[tuple[saved_model.SavedModel, Steps]]:
  """Opens the run or the weights of a measurement for reading."""
  config = m.config
  report = m.weights.report
  if config.init:
    tokenizer = tokenizer_lib.build_tokenizer(config.data, config.data.vocab)
    model = saved_model.build_model(config, vocab_size=len(tokenizer.vocab))
    networks = m.weights.for_roles(model.roles)
    matched = match.match_weights(networks, model, tokenizer)
    params = load.load_params(matched, complete=True, report=report)
    saved = saved_model.SavedModel(0, config, tokenizer, model)
    yield saved, iter([(None, params)])
    return
  workdir = open_path("corrections.run", m.options.run)
  with saved_model.open_run(workdir) as checkpoints:
    saved = saved_model.read_newest_model(checkpoints, report)
    if config.negatives.stop_words:  # a path of this machine
      stop_words = {"negatives.stop_words": config.negatives.stop_words}
      saved = saved._replace(config=saved.config.replace(stop_words))
    chosen = choose_steps(m.options.steps, checkpoints.steps())
    yield saved, _read_steps(m, checkpoints, saved.model, chosen)


def _read_steps(
  m: Measurement,
  checkpoints: Checkpoints,
  model: pretrain.Model,
  steps: list[int],
) -> Iterator[tuple[int, dict[str, Any]]]:
  """Yields the chosen steps of a run, which may still be training.

  One that is damaged, or that the run has deleted, is skipped with a warning.
  """
  for step in steps:
    try:
      params = saved_model.read_params(checkpoints, model, step)
    except errors.DamagedStepError as e:
      m.weights.report(f"warning: {errors.printable(e)} It is skipped.")
    else:
      yield step, params


def _read_text(
  m: Measurement, saved: saved_model.SavedModel
) -> predict_slots.Lines:
  o = m.options
  length = o.length or saved.config.length
  positions = saved.config.model.positions
  if not 3 <= length <= positions:  # [CLS], a token, [SEP]
    raise errors.InputError(
      f"corrections.length={length} is out of range. Set it from 3 to"
      f" {positions}, the positions of the model."
    )
  reader = None
  if "wordnet" in text_sources.named_sources(o.text, key=predict_slots.TEXT):
    reader = wordnet.open_wordnet()
  return predict_slots.read_lines(
    o.text,
    saved.tokenizer,
    length=length,
    limit=o.sequences,
    reader=reader,
  )


def _build_table(
  request: run_table.TableRequest,
  saved: saved_model.SavedModel,
  text: predict_slots.Lines,
  console: Console,
) -> SynonymTable:
  """Returns the table of synonyms; prints what it covers of the text."""
  with progress.working(console, "Looking up synonyms"):
    table = request.build(saved.tokenizer)
  tokens = np.concatenate(text.sequences)
  counts_V = np.bincount(tokens, minlength=table.vocab_size)
  line, warning = run_table.describe_text(request, table, counts_V)
  console.print(f"{table.source}, text: {line}", soft_wrap=True)
  if warning:
    console.print("warning:", warning, soft_wrap=True)
  return table


def _measure(
  m: Measurement,
  saved: saved_model.SavedModel,
  steps: Steps,
  text: predict_slots.Lines,
  table: SynonymTable,
  mesh: jax.sharding.Mesh,
  console: Console,
) -> tuple[list[cases.CheckpointRates], cases.Search]:
  """Predicts with each step and counts its corrections; finds cases at last."""
  own: dict[str, Any] = {"seed": m.config.seed}
  own |= {f"mesh.{name}": x for name, x in vars(m.config.mesh).items()}
  config = saved.config.replace(own)
  chunk = plan.choose_chunk(len(saved.tokenizer.vocab), mesh)
  run = plan.Run(config, saved.tokenizer, mesh, vocabulary_chunk=chunk)
  predict = predict_slots.build_predict_step(run)
  # With a time limit, the last step may come before that of the config.
  total = saved.step if saved.config.minutes else saved.config.steps
  predictions = None
  checkpoints = []
  for step, read in steps:
    split = sharding.tree_shardings({"params": read}, mesh, run.mesh_spec)
    params = jax.device_put(read, split["params"])
    name = "weights" if step is None else f"step {step:,}"
    title = f"Predicting slots of {name}, lines"
    size = len(text.sequences)
    with progress.counting(console, title, size) as advance:
      predictions = predict_slots.predict_lines(
        predict,
        params,
        text.sequences,
        length=text.length,
        batch_size=m.config.batch_size,
        mesh=mesh,
        advance=advance,
      )
    percent = None if step is None else 100 * step / total
    rates = cases.count_corrections(predictions, table)
    checkpoints.append(cases.CheckpointRates(step, percent, rates))
  if predictions is None:
    raise errors.CheckpointError(
      "The run has no undamaged step to measure. Run the same command again,"
      " or set --config.corrections.steps=STEPS."
    )
  return checkpoints, cases.find_cases([predictions], table, saved.tokenizer)
