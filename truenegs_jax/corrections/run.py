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
from collections.abc import Callable, Iterator
from typing import Any

import jax
import rich.progress
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.corrections import cases, predict_slots, rates, report
from truenegs_jax.corrections.measured_model import (
  MeasuredModel,
  open_model,
  resolve_sizes,
)
from truenegs_jax.corrections.predict_slots import Lines, Predictions
from truenegs_jax.data.corpus.sources_spec import named_sources
from truenegs_jax.data.rows import layouts
from truenegs_jax.objectives.options import CHOICES
from truenegs_jax.runtime import distributed
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.errors import (
  CheckpointError,
  DataError,
  InputError,
  one_of,
  printable,
)
from truenegs_jax.runtime.flags import rerun_command
from truenegs_jax.synonyms import run_table, stop_words, wordnet
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.train import build_run, checks, plan, sharding
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.workdir import files, lock

SOURCES = "corrections.sources"  # the config key


@dataclasses.dataclass(frozen=True)
class Settings:
  """Values of `config.corrections` (see its config file), seed, batch size."""

  run: str
  steps: str
  text: str
  length: int
  sequences: int
  headings: bool
  prediction: str
  sources: tuple[str, ...]
  only: str
  cases: int
  sheet: int
  seed: int
  batch_size: int


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Measures corrections, prints and saves them, and returns the exit code.

  Raises:
    TrueNegsError: see its subclasses for the exit codes.
  """
  weights = Weights(c.init, functools.partial(console.print, soft_wrap=True))
  c = resolve_sizes(c, weights)
  settings = check_settings(c, workdir)
  enable_compilation_cache()
  mesh = sharding.make_mesh(sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes))
  with open_model(c, weights) as measured:
    if settings.run:
      console.print(
        "The model, its vocabulary, masking and readings are those of"
        f" '{settings.run}': {build_run.describe_objective(measured.config)}",
        soft_wrap=True,
      )
    # Parsed before the text is read, which may take long.
    only = cases.parse_filter(settings.only, measured.tokenizer)
    corpus = {"errors": c.data.errors, "stopping": c.data.stopping}
    with console.status("reading text ..."):
      text = _read_text(settings, measured, c.data.wordnet_dir, **corpus)
    tables = _build_tables(settings.sources, measured, console)
    with lock.lock(workdir):
      findings = _measure(settings, measured, text, tables, only, mesh, console)
      report.print_report(findings, console)
      about = {
        "command": rerun_command(),
        "seed": c.seed,
        "corrections": json.loads(c.corrections.to_json()),
        "init": c.init,
        "objective": measured.config.objective,
        "masking": json.loads(measured.config.masking.to_json()),
        "prediction": settings.prediction
        or measured.config.negatives.prediction,
        "strict_subword": measured.config.negatives.strict_subword,
      }
      written = report.save_report(findings, workdir, about)
  console.print(f"saved: {', '.join(map(str, written))}", soft_wrap=True)
  return 0


def check_settings(c: ConfigDict, workdir: pathlib.Path) -> Settings:
  """Checks the config before anything is read, and returns its settings."""
  checks.check_config(c)
  o = c.corrections
  if c.dry_run:
    raise InputError("dry_run=True is only for pre-training. Remove it.")
  if distributed.process_count() > 1:
    raise InputError("Several processes are only for pre-training. Use one.")
  for name in ("length", "sequences", "cases", "sheet"):
    if o[name] < 0:
      raise InputError(f"corrections.{name}={o[name]} is not 0 or more.")
  if o.prediction:  # "" is the run's
    one_of("corrections.prediction", o.prediction, CHOICES["prediction"])
  sources = (o.sources,) if isinstance(o.sources, str) else tuple(o.sources)
  if not sources:
    raise InputError(
      f"{SOURCES} is empty. Set a source of synonyms, such as"
      f" --config.{SOURCES}='(\"wordnet\",)'."
    )
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
  values = dict(o.items()) | {"sources": sources}
  return Settings(**values, seed=c.seed, batch_size=c.batch_size)


def _request(request: TableRequest, source: str) -> TableRequest:
  return dataclasses.replace(request, sources=source, key=SOURCES)


def _read_text(
  settings: Settings, measured: MeasuredModel, wordnet_dir: str, **corpus: Any
) -> Lines:
  length = settings.length or measured.config.length
  positions = measured.config.model.max_positions
  if not layouts.MIN_LENGTH <= length <= positions:
    raise InputError(
      f"corrections.length={length} is out of range. Set it from"
      f" {layouts.MIN_LENGTH} to {positions}, the positions of the model."
    )
  with contextlib.ExitStack() as stack:
    text = settings.text
    if text and "wordnet" in named_sources(text, key=predict_slots.TEXT):
      reader = stack.enter_context(wordnet.session(wordnet_dir))
      corpus["reader"] = reader
    return predict_slots.read_lines(
      text,
      measured.tokenizer,
      length=length,
      limit=settings.sequences,
      headings=settings.headings,
      **corpus,
    )


def _build_tables(
  sources: tuple[str, ...], measured: MeasuredModel, console: Console
) -> dict[str, SynonymTable]:
  """Returns the table of each source, by canonical form of its expression."""
  tables: dict[str, SynonymTable] = {}
  for source in sources:
    table = run_table.find_or_build(
      _request(build_run.build_table_request(measured.config), source),
      measured.tokenizer.vocab,
      saved=None,
      console=console,
    )
    assert table is not None  # check_settings refuses the source "model"
    if not table.num_pairs:
      raise InputError(
        f"{SOURCES}={source!r} has no pair of words of the vocabulary. Use a"
        " source of the vocabulary's language."
      )
    # Canonical forms have no folders, so those of two sources may be equal.
    tables[source if table.source in tables else table.source] = table
  return tables


def _classify_tokens(
  measured: MeasuredModel, console: Console
) -> tuple[str, ...]:
  """Returns the class of each token, or nothing if there is no WordNet."""
  stops = stop_words.load(measured.config.negatives.stop_words)
  try:
    with wordnet.session(measured.config.data.wordnet_dir) as reader:
      return rates.classify_tokens(
        measured.tokenizer.vocab, reader, stop_words=stops
      )
  except (InputError, DataError) as e:
    message = f"warning: no parts of speech: {printable(e)}"
    console.print(message, soft_wrap=True)
    return ()


def _measure(
  settings: Settings,
  measured: MeasuredModel,
  text: Lines,
  tables: dict[str, SynonymTable],
  only: cases.PairFilter,
  mesh: jax.sharding.Mesh,
  console: Console,
) -> report.Findings:
  tokenizer, all_tables = measured.tokenizer, list(tables.values())
  classes = _classify_tokens(measured, console)
  checkpoints: dict[str, list[report.CheckpointRates]] = {s: [] for s in tables}
  for step, predictions in _predict(settings, measured, text, mesh, console):
    percent = None if step is None else 100 * step / measured.config.steps
    for source, table in tables.items():
      counts = rates.count_corrections(
        predictions, table, tokenizer.vocab, token_classes=classes
      )
      checkpoints[source].append(report.CheckpointRates(step, percent, counts))
  if not any(checkpoints.values()):
    raise CheckpointError(
      f"'{settings.run}' has deleted all steps to measure meanwhile. Run the"
      " same command again, or set --config.corrections.steps=STEPS."
    )
  sheet = ""
  if size := settings.sheet:
    sheet = cases.build_sheet(
      predictions, all_tables, tokenizer, size=size, seed=settings.seed
    )
  return report.Findings(
    text=text,
    tables=tables,
    checkpoints=checkpoints,
    agreements=rates.compare_sources(predictions, tables, tokenizer.vocab),
    cases=cases.choose_cases(
      predictions, all_tables[0], tokenizer, limit=settings.cases, only=only
    ),
    searched=len(predictions.gold_M),
    sheet=sheet,
  )


def _predict(
  settings: Settings,
  measured: MeasuredModel,
  text: Lines,
  mesh: jax.sharding.Mesh,
  console: Console,
) -> Iterator[tuple[int | None, Predictions]]:
  """Yields each step and its predictions."""
  options = build_run.build_options(measured.config, measured.tokenizer)
  is_piece_V = None
  if options.strict_subword:
    is_piece_V = plan.continuation_mask(measured.tokenizer.vocab)
  predict = predict_slots.make_predict_slots(
    measured.model,
    options.masking,
    prediction=settings.prediction or options.prediction,
    temperature=options.sampling_temperature,
    continues_V=is_piece_V,
  )
  for step in measured.steps:
    name = "weights" if step is None else f"step {step:,}"
    params = measured.read_params(step)
    if params is None:
      console.print(f"warning: {name} was deleted by its run. It is skipped.")
      continue
    params = jax.device_put(params, sharding.replicated_sharding(mesh))
    start = time.perf_counter()
    with _progress_bar(console, name, len(text.sequences)) as advance:
      predictions = predict_slots.predict_lines(
        predict,
        params,
        text.sequences,
        jax.random.key(settings.seed),
        length=text.length,
        batch_size=settings.batch_size,
        mesh=mesh,
        advance=advance,
      )
    secs = time.perf_counter() - start
    console.print(f"{name}: {len(predictions.gold_M):,} slots in {secs:.1f} s")
    yield step, predictions


@contextlib.contextmanager
def _progress_bar(
  console: Console, name: str, total: int
) -> Iterator[Callable[[int], None]]:
  """Shows a progress bar on terminals; yields the function that advances it."""
  hidden = not console.is_terminal
  bar = rich.progress.Progress(console=console, transient=True, disable=hidden)
  with bar:
    yield functools.partial(bar.advance, bar.add_task(name, total=total))
