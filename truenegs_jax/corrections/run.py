"""Runs the task "corrections": how often hard correction applies, and where.

The lines of a text are masked once and predicted by each checkpoint of a run.
Results are rates (the paper's table 2), cases (its figure 3) and a sheet for
people to judge. Masking, predictions and options of tables (`negatives` without
`sources`) are those of the run's config, or without a run those of this config.

The run's workdir is only read. Nothing is written before the end of measuring.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.corrections import (
  cases,
  dry_run,
  predict_slots,
  rates,
  report,
)
from truenegs_jax.corrections.measured_model import (
  MeasuredModel,
  open_model,
  resolve_config,
)
from truenegs_jax.corrections.predict_slots import Lines, Predictions
from truenegs_jax.data.corpus.sources_spec import named_sources
from truenegs_jax.data.rows import layouts
from truenegs_jax.objectives.options import CHOICES
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.errors import (
  CheckpointError,
  InputError,
  one_of,
)
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.synonyms import coverage, run_table, wordnet
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import build_run, checks, plan, sharding
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.workdir import files, lock

SOURCES = "corrections.sources"  # the config key
AUTO = "auto"  # the source of a run, or else the default of the language


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Measures corrections, prints and saves them, and returns the exit code.

  Raises:
    TrueNegsError: see its subclasses for the exit codes.
  """
  say = functools.partial(console.print, soft_wrap=True)
  weights = Weights(c.init, say)
  config = json.loads(c.to_json())
  c = resolve_config(c, weights)
  sources = _check_config(c, workdir)
  if c.dry_run:
    return dry_run.dry_run(c, sources, console)
  enable_compilation_cache()
  mesh = sharding.make_mesh(sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes))
  with open_model(c, weights) as measured:
    if c.corrections.run:
      objective = build_run.describe_objective(measured.config)
      say(
        "The model, its vocabulary, masking and readings are those of"
        f" '{c.corrections.run}': {objective}"
      )
    # Parsed before the text is read, which may take long.
    only = cases.parse_filter(c.corrections.only, measured.tokenizer)
    with progress.working(console, "Reading text"):
      text = _read_text(c, measured)
    base = build_run.build_table_request(measured.config)
    requests = [_request(base, source) for source in sources]
    tables = _build_tables(requests, measured, text, console)
    with lock.lock(workdir):
      findings = _measure(c, measured, text, tables, only, mesh, console)
      findings = _add_lemmas(findings, requests[0], say)
      report.print_report(findings, console)
      about = {
        "command": rerun_command(),
        "seed": c.seed,
        "corrections": json.loads(c.corrections.to_json()),
        "init": c.init,
        "objective": measured.config.objective,
        "masking": json.loads(measured.config.masking.to_json()),
        "prediction": _prediction(c, measured),
        "strict_subword": measured.config.negatives.strict_subword,
      }
      files.save_json(workdir / files.CONFIG, config)
      written = report.save_report(findings, workdir, about)
      write_own_report(workdir, say)
      written.append(workdir / files.REPORT)
  say(f"saved: {', '.join(map(str, written))}")
  return 0


def _check_config(c: ConfigDict, workdir: pathlib.Path) -> tuple[str, ...]:
  """Checks the config before anything is read, and returns the sources."""
  checks.check_config(c)
  o = c.corrections
  if distributed.process_count() > 1:
    raise InputError("Several processes are only for pre-training. Use one.")
  predict_slots.check_text(o.text)
  if o.prediction:  # "" is the run's
    one_of("corrections.prediction", o.prediction, CHOICES["prediction"])
  sources = (o.sources,) if isinstance(o.sources, str) else tuple(o.sources)
  if not sources:
    raise InputError(
      f"{SOURCES} is empty. Set a source of synonyms, such as"
      f" --config.{SOURCES}='(\"wordnet\",)'."
    )
  sources = tuple(c.negatives.sources if s == AUTO else s for s in sources)
  for source in sources:
    request = _request(build_run.build_table_request(c), source)
    if request.expression.model:
      raise InputError(
        f"{SOURCES}={source!r} changes while a model trains. Use sources that"
        " are the same for every checkpoint."
      )
    run_table.check_request(request)
  if files.has_pretraining(workdir):
    raise InputError(
      f"--workdir='{workdir}' is the workdir of a run, whose results would be"
      " replaced. Choose another, such as --workdir=runs/corrections."
    )
  return sources


def _request(request: TableRequest, source: str) -> TableRequest:
  return dataclasses.replace(request, sources=source, key=SOURCES)


def _prediction(c: ConfigDict, measured: MeasuredModel) -> str:
  return c.corrections.prediction or measured.config.negatives.prediction


def _read_text(c: ConfigDict, measured: MeasuredModel) -> Lines:
  o = c.corrections
  length = o.length or measured.config.length
  positions = measured.config.model.max_positions
  if not layouts.MIN_LENGTH <= length <= positions:
    raise InputError(
      f"corrections.length={length} is out of range. Set it from"
      f" {layouts.MIN_LENGTH} to {positions}, the positions of the model."
    )
  with contextlib.ExitStack() as stack:
    resources = {}
    if o.text and "wordnet" in named_sources(o.text, key=predict_slots.TEXT):
      session = wordnet.session(c.data.wordnet_dir)
      resources["reader"] = stack.enter_context(session)
    return predict_slots.read_lines(
      o.text,
      measured.tokenizer,
      length=length,
      limit=o.sequences,
      headings=o.headings,
      errors=c.data.errors,
      stopping=c.data.stopping,
      **resources,
    )


def _build_tables(
  requests: Sequence[TableRequest],
  measured: MeasuredModel,
  text: Lines,
  console: Console,
) -> dict[str, SynonymTable]:
  """Returns the table of each source, by canonical form of its expression.

  Prints how much of the vocabulary and of the text each of them covers.
  """
  tables: dict[str, SynonymTable] = {}
  tokens = measured.tokenizer.vocab
  counts_V = np.bincount(np.concatenate(text.sequences), minlength=len(tokens))
  for request in requests:
    source = request.sources
    table = run_table.find_or_build(
      request, measured.tokenizer, saved=None, console=console
    )
    assert table is not None  # _check_config refuses the source "model"
    if not table.num_pairs:
      raise InputError(
        f"{SOURCES}={source!r} has no pair of words of the vocabulary. Use a"
        " source of the vocabulary's language."
      )
    # Canonical forms have no folders, so those of two sources may be equal.
    name = source if table.source in tables else table.source
    tables[name] = table
    lines, warning = coverage.describe(request, table, tokens, counts_V)
    for subject, line in lines.items():
      console.print(f"{name}, {subject}: {line}", soft_wrap=True)
    if warning:
      console.print(warning, soft_wrap=True)
  return tables


def _measure(
  c: ConfigDict,
  measured: MeasuredModel,
  text: Lines,
  tables: dict[str, SynonymTable],
  only: cases.PairFilter,
  mesh: jax.sharding.Mesh,
  console: Console,
) -> report.Findings:
  o, tokenizer = c.corrections, measured.tokenizer
  classes = rates.find_classes(
    build_run.build_table_request(measured.config),
    tokenizer.vocab,
    functools.partial(console.print, soft_wrap=True),
  )
  checkpoints: dict[str, list[report.CheckpointRates]] = {s: [] for s in tables}
  for step, predictions in _predict(c, measured, text, mesh, console):
    percent = None if step is None else 100 * step / measured.config.steps
    for source, table in tables.items():
      counts = rates.count_corrections(
        predictions, table, tokenizer.vocab, token_classes=classes
      )
      checkpoints[source].append(report.CheckpointRates(step, percent, counts))
  if not any(checkpoints.values()):
    raise CheckpointError(
      f"'{o.run}' has no undamaged step to measure. Run the same command again,"
      " or set --config.corrections.steps=STEPS."
    )
  sheet = ""
  if o.sheet:
    sheet = cases.build_sheet(
      predictions, [*tables.values()], tokenizer, size=o.sheet, seed=c.seed
    )
  first = next(iter(tables))
  choose = functools.partial(
    cases.choose_cases, predictions, tokenizer=tokenizer, only=only
  )
  return report.Findings(
    text=text,
    tables=tables,
    checkpoints=checkpoints,
    agreements=rates.compare_sources(predictions, tables, tokenizer.vocab),
    shown=choose(tables={first: tables[first]}, limit=o.cases).cases,
    search=choose(tables=tables, limit=cases.MAX_SAVED, token_classes=classes),
    sheet=sheet,
  )


def _add_lemmas(
  f: report.Findings,
  request: TableRequest,
  say: Callable[[str], object],
) -> report.Findings:
  """Does `cases.add_lemmas` for the cases to print and to save."""
  both = cases.add_lemmas([*f.shown, *f.search.cases], request, say)
  count = len(f.shown)
  search = dataclasses.replace(f.search, cases=both[count:])
  return dataclasses.replace(f, shown=both[:count], search=search)


def _predict(
  c: ConfigDict,
  measured: MeasuredModel,
  text: Lines,
  mesh: jax.sharding.Mesh,
  console: Console,
) -> Iterator[tuple[int | None, Predictions]]:
  """Yields each step and its predictions."""
  options = build_run.build_options(measured.config, measured.tokenizer)
  vocab = measured.tokenizer.vocab
  predict = predict_slots.make_predict_slots(
    measured.model,
    options.masking,
    prediction=_prediction(c, measured),
    temperature=options.sampling_temperature,
    continues_V=plan.continuation_mask(vocab, options),
  )
  for step in measured.steps:
    name = "weights" if step is None else f"step {step:,}"
    with progress.working(console, f"Reading {name}", brief=True):
      params = measured.read_params(step)
    if params is None:
      continue
    params = jax.device_put(params, sharding.replicated_sharding(mesh))
    start = time.perf_counter()
    title, size = f"Predicting slots of {name}, lines", len(text.sequences)
    with progress.counting(console, title, size, brief=True) as advance:
      predictions = predict_slots.predict_lines(
        predict,
        params,
        text.sequences,
        jax.random.key(c.seed),
        length=text.length,
        batch_size=c.batch_size,
        mesh=mesh,
        advance=advance,
      )
    secs = time.perf_counter() - start
    console.print(f"{name}: {len(predictions.gold_M):,} slots in {secs:.1f} s")
    yield step, predictions
