"""The task "corrections": how often hard correction strikes, and where.

lines of a text -> masked once -> filled by each checkpoint of a run -> rates
(the paper's table 2), cases (its figure 3), a sheet for people to judge

How lines are masked, predictions judged and tables made (all of `negatives` but
`sources`) is read from the run's own config; without a run, from this one.

A run is only read. Nothing is written before all is measured.
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
  open_measured_model,
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
  """The values of `config.corrections`, described in configs/corrections.py,
  and with them the seed and the lines of a batch."""

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
  """Measures what a config asks for; returns the exit code.

  Raises:
    TrueNegsError: with the exit code that belongs to it.
  """
  weights = Weights(c.init, functools.partial(console.print, soft_wrap=True))
  c = resolve_sizes(c, weights)
  settings = check_settings(c, workdir)
  enable_compilation_cache()
  mesh = sharding.make_mesh(sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes))
  with open_measured_model(c, weights) as subject:
    if settings.run:
      console.print(
        "the model, its vocabulary, masking and readings are those of"
        f" {settings.run}: {build_run.describe_objective(subject.config)}",
        soft_wrap=True,
      )
    # Before the text is read: it may be long.
    only = cases.parse_filter(settings.only, subject.tokenizer)
    corpus = {"errors": c.data.errors, "stopping": c.data.stopping}
    with console.status("reading text ..."):
      text = _read_text(settings, subject, c.data.wordnet_dir, **corpus)
    tables = _make_tables(settings.sources, subject, console)
    with lock.lock(workdir):
      findings = _measure(settings, subject, text, tables, only, mesh, console)
      report.print_report(findings, console)
      about = {
        "command": rerun_command(),
        "seed": c.seed,
        "corrections": json.loads(c.corrections.to_json()),
        "init": c.init,
        "objective": subject.config.objective,
        "masking": json.loads(subject.config.masking.to_json()),
        "prediction": settings.prediction
        or subject.config.negatives.prediction,
        "strict_subword": subject.config.negatives.strict_subword,
      }
      written = report.save_report(findings, workdir, about)
  console.print(f"written: {', '.join(map(str, written))}", soft_wrap=True)
  return 0


def check_settings(c: ConfigDict, workdir: pathlib.Path) -> Settings:
  """Refuses settings that cannot be measured, before anything is read."""
  checks.check_config(c)
  o = c.corrections
  if c.dry_run or distributed.process_count() > 1:
    mode = "dry_run" if c.dry_run else "a run of many processes"
    raise InputError(f"{mode} is for pre-training; leave it out here.")
  for name in ("length", "sequences", "cases", "sheet"):
    if o[name] < 0:
      raise InputError(f"corrections.{name} is {o[name]}; give 0 or more.")
  if o.prediction not in ("", *CHOICES["prediction"]):
    known = ", ".join(CHOICES["prediction"])
    raise InputError(
      f"corrections.prediction {o.prediction!r} is unknown; known: {known}, or"
      ' "" for what the run judged.'
    )
  sources = (o.sources,) if isinstance(o.sources, str) else tuple(o.sources)
  if not sources:
    raise InputError(
      f"{SOURCES} is empty; name a source of synonyms, such as"
      f" --config.{SOURCES}='(\"wordnet\",)'"
    )
  for source in sources:
    request = _request(build_run.build_table_request(c), source)
    if request.expression.model:
      raise InputError(
        f"{SOURCES}: {source!r} is made while a model trains; give sources that"
        " are the same for every checkpoint."
      )
    run_table.check_request(request)
  if files.has_pretraining(workdir):
    raise InputError(
      f"--workdir={workdir} is that of a run, whose results would be replaced;"
      " give another, such as runs/corrections."
    )
  values = dict(o.items()) | {"sources": sources}
  return Settings(**values, seed=c.seed, batch_size=c.batch_size)


def _request(request: TableRequest, source: str) -> TableRequest:
  return dataclasses.replace(request, sources=source, key=SOURCES)


def _read_text(
  settings: Settings, subject: MeasuredModel, wordnet_dir: str, **corpus: Any
) -> Lines:
  length = settings.length or subject.config.length
  positions = subject.config.model.max_positions
  if not layouts.MIN_LENGTH <= length <= positions:
    raise InputError(
      f"corrections.length is {length}; it must be at least"
      f" {layouts.MIN_LENGTH} and at most {positions}, the model's positions."
    )
  with contextlib.ExitStack() as stack:
    text = settings.text
    if text and "wordnet" in named_sources(text, key=predict_slots.TEXT):
      reader = stack.enter_context(wordnet.session(wordnet_dir))
      corpus["reader"] = reader
    return predict_slots.read_lines(
      text,
      subject.tokenizer,
      length=length,
      limit=settings.sequences,
      headings=settings.headings,
      **corpus,
    )


def _make_tables(
  sources: tuple[str, ...], subject: MeasuredModel, console: Console
) -> dict[str, SynonymTable]:
  """The tables of the sources, by the identity of their expressions."""
  tables: dict[str, SynonymTable] = {}
  for source in sources:
    table = run_table.find_or_build(
      _request(build_run.build_table_request(subject.config), source),
      subject.tokenizer.vocab,
      saved=None,
      console=console,
    )
    assert table is not None  # check_settings refuses the model
    if not table.num_pairs:
      raise InputError(
        f"{SOURCES}: {source!r} has no pair of words of this vocabulary; there"
        " is nothing to measure."
      )
    # Of a path its last part alone is in a table's name.
    tables[source if table.source in tables else table.source] = table
  return tables


def _parts_of_speech(
  subject: MeasuredModel, console: Console
) -> tuple[str, ...]:
  """The class of each token; empty where there is no WordNet to look it up."""
  stops = stop_words.load(subject.config.negatives.stop_words)
  try:
    with wordnet.session(subject.config.data.wordnet_dir) as reader:
      return rates.classify_tokens(
        subject.tokenizer.vocab, reader, stop_words=stops
      )
  except (InputError, DataError) as e:
    console.print(f"no parts of speech: {printable(e)}", soft_wrap=True)
    return ()


def _measure(
  settings: Settings,
  subject: MeasuredModel,
  text: Lines,
  tables: dict[str, SynonymTable],
  only: cases.PairFilter,
  mesh: jax.sharding.Mesh,
  console: Console,
) -> report.Findings:
  tokenizer, all_tables = subject.tokenizer, list(tables.values())
  speech = _parts_of_speech(subject, console)
  checkpoints: dict[str, list] = {source: [] for source in tables}
  for step, filled in _fill(settings, subject, text, mesh, console):
    percent = None if step is None else 100 * step / subject.config.steps
    for source, table in tables.items():
      counted = rates.count_corrections(
        filled, table, tokenizer.vocab, speech=speech
      )
      checkpoints[source].append(report.Checkpoint(step, percent, counted))
    last = filled
  if not any(checkpoints.values()):
    raise CheckpointError(
      f"{settings.run} has deleted every step that was to be measured"
      " meanwhile; give the same command again, or --config.corrections.steps."
    )
  sheet = ""
  if settings.sheet:
    sheet = cases.build_sheet(
      last, all_tables, tokenizer, size=settings.sheet, seed=settings.seed
    )
  return report.Findings(
    text=text,
    tables=tables,
    checkpoints=checkpoints,
    judgements=rates.compare_sources(last, tables, tokenizer.vocab),
    cases=cases.choose_cases(
      last, all_tables[0], tokenizer, limit=settings.cases, only=only
    ),
    searched=len(last.gold_M),
    sheet=sheet,
  )


def _fill(
  settings: Settings,
  subject: MeasuredModel,
  text: Lines,
  mesh: jax.sharding.Mesh,
  console: Console,
) -> Iterator[tuple[int | None, Predictions]]:
  """Each step and its predictions."""
  options = build_run.build_options(subject.config, subject.tokenizer)
  is_piece_V = None
  if options.strict_subword:
    is_piece_V = plan.continuation_mask(subject.tokenizer.vocab)
  predict = predict_slots.make_predict_slots(
    subject.model,
    options.masking,
    prediction=settings.prediction or options.prediction,
    temperature=options.sampling_temperature,
    continues_V=is_piece_V,
  )
  for step in subject.steps:
    name = "weights" if step is None else f"step {step:,}"
    params = subject.read(step)
    if params is None:
      console.print(f"{name}: its run has deleted it; left out")
      continue
    params = jax.device_put(params, sharding.replicated_sharding(mesh))
    began = time.perf_counter()
    with _bar(console, name, len(text.sequences)) as advance:
      filled = predict_slots.predict_lines(
        predict,
        params,
        text.sequences,
        jax.random.key(settings.seed),
        length=text.length,
        batch_size=settings.batch_size,
        mesh=mesh,
        advance=advance,
      )
    secs = time.perf_counter() - began
    console.print(f"{name}: {len(filled.gold_M):,} slots in {secs:.1f} s")
    yield step, filled


@contextlib.contextmanager
def _bar(
  console: Console, name: str, total: int
) -> Iterator[Callable[[int], None]]:
  """A progress bar on a terminal; yields the function that advances it."""
  hidden = not console.is_terminal
  bar = rich.progress.Progress(console=console, transient=True, disable=hidden)
  with bar:
    yield functools.partial(bar.advance, bar.add_task(name, total=total))
