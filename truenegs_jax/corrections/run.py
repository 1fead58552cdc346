"""Runs the task "corrections": how often hard correction applies, and where.

The lines of a text are masked once and predicted by each checkpoint of a run.
Masking, predictions and options of tables (`negatives` without `sources`) are
those of the run's config, or without a run those of this config. The run's
workdir is only read. No result is written before the end of measuring.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import Corrections
from truenegs_jax.corrections import lines as lines_lib
from truenegs_jax.corrections import rates as rates_lib
from truenegs_jax.data import sources as text_sources
from truenegs_jax.pretrain import cases, describe, measured, predict_slots
from truenegs_jax.pretrain import resolve as resolve_lib
from truenegs_jax.report.page import Table, print_table
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import errors, progress
from truenegs_jax.synonyms import run_table, wordnet
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.workdir import files, lock, saved_model

SOURCES = "corrections.sources"  # the config key


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Measures corrections, prints and saves them, and returns the exit code."""
  say = functools.partial(console.print, soft_wrap=True)
  config = PretrainConfig.read(c)
  o = Corrections.read(c.corrections)
  m, sources = resolve(config, o, say)
  files.check_no_run(workdir, c.task)
  if config.dry_run:
    console.print(progress.make_table(_describe_plan(m, o, sources)))
    return 0
  with measured.open_model(m) as (saved, steps):
    if stop_words := config.negatives.stop_words:  # a path of this machine
      own = {"negatives.stop_words": stop_words}
      saved = saved._replace(config=saved.config.replace(own))
    if o.run:
      say(
        "The model, its vocabulary, masking and objective are those of"
        f" '{o.run}': {describe.describe_objective(saved.config)}"
      )
    with progress.working(console, "Reading text"):
      text = _read_text(o, saved)
    request = make_request(saved.config, sources)
    table = _build_table(request, saved, text, console)
    with lock.lock(workdir):
      checkpoints, search = _measure(m, saved, steps, text, table, console)
      results = _report(saved, checkpoints, text, table)
      print_table(Table(**results["tables"][0]), console)
      shown = search.cases[: o.cases]
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
  checkpoints: list[rates_lib.CheckpointRates],
  text: lines_lib.Lines,
  table: SynonymTable,
) -> dict[str, Any]:
  """Returns the content of results.json."""
  last = checkpoints[-1].rates
  rates = rates_lib.make_rates_table(checkpoints, table.source)
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
    "tables": [dataclasses.asdict(rates)],
  }


def make_request(
  config: PretrainConfig, sources: str
) -> run_table.TableRequest:
  """Makes a request for the table of sources with a config's options."""
  request = run_table.make_request(config.negatives, config.data)
  return dataclasses.replace(request, sources=sources, key=SOURCES)


def resolve(
  config: PretrainConfig, o: Corrections, report: Callable[[str], object]
) -> tuple[measured.Measured, str]:
  """Returns the model to measure, without arrays, and sources of synonyms.

  Its config has values of the run, or sizes of `init`.
  """
  model = measured.find_model(config, o, report)
  text_sources.named_sources(o.text, key=lines_lib.TEXT)
  config = model.config
  auto = config.negatives.sources
  if o.run and (saved := saved_model.read_config(model.workdir)):
    config = config.replace({"data.language": saved["data"]["language"]})
    if not saved["negatives"]["sources"].startswith((*run_table.IN_TRAINING,)):
      auto = saved["negatives"]["sources"]
  resolve_lib.check(config)
  sources = auto if o.sources in ("", "auto") else o.sources
  request = make_request(config, sources)
  if request.model or request.teacher:
    raise errors.InputError(
      f"{SOURCES}={sources!r} has pairs only while a model trains. Use sources"
      " that are the same for every checkpoint."
    )
  request.check()
  return model._replace(config=config), sources


def _describe_plan(
  m: measured.Measured, o: Corrections, sources: str
) -> dict[str, str]:
  """Returns the lines of a dry run."""
  return measured.describe(m) | {
    "dry run": "reads no text; writes and compiles nothing",
    "text": text_sources.describe_sources(o.text, key=lines_lib.TEXT),
    "lines": f"{o.sequences or 'all'}, in batches of {m.config.batch_size}",
    "synonyms": make_request(m.config, sources).identity,
  }


def _read_text(
  o: Corrections, saved: saved_model.SavedModel
) -> lines_lib.Lines:
  length = o.length or saved.config.length
  positions = saved.config.model.positions
  if not 3 <= length <= positions:  # [CLS], a token, [SEP]
    raise errors.InputError(
      f"corrections.length={length} is out of range. Set it from 3 to"
      f" {positions}, the positions of the model."
    )
  return lines_lib.read_lines(
    o.text,
    saved.tokenizer,
    length=length,
    limit=o.sequences,
    open_wordnet=wordnet.open_wordnet,
  )


def _build_table(
  request: run_table.TableRequest,
  saved: saved_model.SavedModel,
  text: lines_lib.Lines,
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
  m: measured.Measured,
  saved: saved_model.SavedModel,
  steps: measured.Steps,
  text: lines_lib.Lines,
  table: SynonymTable,
  console: Console,
) -> tuple[list[rates_lib.CheckpointRates], cases.Search]:
  """Predicts with each step and counts its corrections; finds cases at last."""
  predict = predict_slots.build_predict_step(m.make_run(saved))
  # With a time limit, the last step may come before that of the config.
  total = saved.step if saved.config.minutes else saved.config.steps
  checkpoints = []
  for step, params in steps:
    name = "weights" if step is None else f"step {step:,}"
    title = f"Predicting slots of {name}, lines"
    size = len(text.sequences)
    with progress.counting(console, title, size) as advance:
      predictions = lines_lib.predict_lines(
        predict,
        params,
        text.sequences,
        length=text.length,
        batch_size=m.config.batch_size,
        mesh=m.mesh,
        advance=advance,
      )
    percent = None if step is None else 100 * step / total
    rates = rates_lib.count_corrections(predictions, table)
    checkpoints.append(rates_lib.CheckpointRates(step, percent, rates))
  return checkpoints, cases.find_cases([predictions], table, saved.tokenizer)
