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
from collections.abc import Iterator
from typing import Any

import jax
import rich.progress
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.corrections import (
  cases,
  predict_slots,
  rates,
  report,
  sources_compared,
  text_lines,
)
from truenegs_jax.corrections.measured_model import (
  Subject,
  open_subject,
  with_sizes,
)
from truenegs_jax.corrections.predict_slots import Predictions
from truenegs_jax.data.corpus.sources_spec import needs
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
from truenegs_jax.runtime.flags import command
from truenegs_jax.synonyms import run_table, sources, stop_words
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.wordnet import close_wordnet, open_wordnet
from truenegs_jax.train import build_run, checks, plan, sharding
from truenegs_jax.weights.formats.find import Weights
from truenegs_jax.workdir import lock

SOURCES = "negatives.sources", "corrections.sources"


@dataclasses.dataclass(frozen=True)
class Asked:
  """All that a measurement needs beside a model."""

  text: text_lines.Lines
  tables: dict[str, SynonymTable]  # by the identity of their expression
  only: cases.Only
  speech: tuple[str, ...]  # the class of each token; empty: no WordNet is here


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Measures what a config asks for; returns the exit code.

  Raises:
    TrueNegsError: with the exit code that belongs to it.
  """
  say = functools.partial(console.print, soft_wrap=True)
  weights = Weights(c.init, say)
  c = with_sizes(c, weights)
  check(c, workdir)
  enable_compilation_cache()
  with open_subject(c, weights) as of:
    if c.corrections.run:  # what the config says of these does not count
      console.print(
        "the model, its vocabulary, masking and readings are those of"
        f" {c.corrections.run}: {build_run.describe_objective(of.config)}",
        soft_wrap=True,
      )
    asked = _gather(c, of, console)
    with lock.lock(workdir):
      found = _measure(c, of, asked, console)
      report.show(found, console)
      written = report.save(found, workdir, _about(c, of))
  console.print(f"written: {', '.join(map(str, written))}", soft_wrap=True)
  return 0


def check(c: ConfigDict, workdir: pathlib.Path) -> None:
  """Refuses what cannot be measured, before anything is read or made."""
  checks.check_config(c)
  o = c.corrections
  if c.dry_run or distributed.count() > 1:
    what = "dry_run" if c.dry_run else "a run of many processes"
    raise InputError(f"{what} is for pre-training; leave it out here.")
  for name in ("length", "sequences", "cases", "sheet"):
    if o[name] < 0:
      raise InputError(f"corrections.{name} is {o[name]}; give 0 or more.")
  if o.prediction not in ("", *CHOICES["prediction"]):
    known = ", ".join(CHOICES["prediction"])
    raise InputError(
      f"corrections.prediction {o.prediction!r} is unknown; known: {known}, or"
      ' "" for what the run judged.'
    )
  if not _sources(c):
    raise InputError(
      "corrections.sources is empty; name a source of synonyms, such as"
      " --config.corrections.sources='(\"wordnet\",)'"
    )
  for source in _sources(c):
    with text_lines.renamed(*SOURCES):
      model = sources.parse(source).model
      run_table.check(_request(c, source))
    if model:
      raise InputError(
        f"corrections.sources: {source!r} is made while a model trains; give"
        " sources that are the same for every checkpoint."
      )
  if (workdir / "checkpoints").exists():
    raise InputError(
      f"--workdir={workdir} is that of a run, whose results would be replaced;"
      " give another, such as runs/corrections."
    )


def _sources(c: ConfigDict) -> tuple[str, ...]:
  sources = c.corrections.sources
  return (sources,) if isinstance(sources, str) else tuple(sources)


@contextlib.contextmanager
def _wordnet(c: ConfigDict) -> Iterator[Any]:
  reader = open_wordnet(c.data.wordnet_dir)
  try:
    yield reader
  finally:
    close_wordnet(reader)


def _request(c: ConfigDict, source: str) -> run_table.TableRequest:
  return dataclasses.replace(build_run.table_request(c), sources=source)


def _gather(c: ConfigDict, of: Subject, console: Console) -> Asked:
  o, tokenizer = c.corrections, of.tokenizer
  length = o.length or of.config.length
  positions = of.config.model.max_positions
  if not layouts.MIN_LENGTH <= length <= positions:
    raise InputError(
      f"corrections.length is {length}; it must be at least"
      f" {layouts.MIN_LENGTH} and at most {positions}, the model's positions."
    )
  only = cases.parse_only(o.only, tokenizer)
  with contextlib.ExitStack() as stack:
    resources = {}
    if o.text and "wordnet" in needs(o.text):
      resources["reader"] = stack.enter_context(_wordnet(c))
    stack.enter_context(console.status("reading text ..."))
    text = text_lines.read_lines(
      o.text,
      tokenizer,
      length=length,
      limit=o.sequences,
      headings=o.headings,
      errors=c.data.errors,
      stopping=c.data.stopping,
      **resources,
    )
  found = {}
  for source in _sources(c):
    with text_lines.renamed(*SOURCES):
      table = run_table.find_or_build(
        _request(of.config, source),
        tokenizer.vocab,
        saved=None,
        console=console,
      )
    assert table is not None  # as of "model", which `check` has refused
    if not table.num_pairs:
      raise InputError(
        f"corrections.sources: {source!r} has no pair of words of this"
        " vocabulary; there is nothing to measure."
      )
    # Of a path its last part alone is in a table's name.
    found[source if table.source in found else table.source] = table
  return Asked(text, found, only, _speech(of, console))


def _speech(of: Subject, console: Console) -> tuple[str, ...]:
  """Parts of speech, where there is a WordNet to ask."""
  stops = stop_words.load(of.config.negatives.stop_words)
  try:
    with _wordnet(of.config) as reader:
      return rates.parts_of_speech(of.tokenizer.vocab, reader, stop_words=stops)
  except (InputError, DataError) as e:
    console.print(f"no parts of speech: {printable(e)}", soft_wrap=True)
    return ()


def _measure(
  c: ConfigDict, of: Subject, asked: Asked, console: Console
) -> report.Findings:
  checkpoints: dict[str, list] = {source: [] for source in asked.tables}
  for step, said in _predictions(c, of, asked.text, console):
    percent = None if step is None else 100 * step / of.config.steps
    for source, table in asked.tables.items():
      counted = rates.count(
        said, table, of.tokenizer.vocab, speech=asked.speech
      )
      at = report.Checkpoint(step, percent, counted)
      checkpoints[source].append(at)
  if not any(checkpoints.values()):
    raise CheckpointError(
      f"{c.corrections.run} has cleared away every step that was to be measured"
      " meanwhile; give the same command again, or --config.corrections.steps."
    )
  o, all_tables = c.corrections, list(asked.tables.values())
  return report.Findings(
    text=asked.text,
    tables=asked.tables,
    checkpoints=checkpoints,
    judgements=sources_compared.compare(said, asked.tables, of.tokenizer.vocab),
    cases=cases.choose_cases(
      said, all_tables[0], of.tokenizer, limit=o.cases, only=asked.only
    ),
    searched=len(said.gold_M),
    sheet=cases.sheet(said, all_tables, of.tokenizer, size=o.sheet, seed=c.seed)
    if o.sheet
    else "",
  )


def _predictions(
  c: ConfigDict, of: Subject, text: text_lines.Lines, console: Console
) -> Iterator[tuple[int | None, Predictions]]:
  """Each step and what the model said at it."""
  options = build_run.make_options(of.config, of.tokenizer)
  predict = predict_slots.make_predict_slots(
    of.model,
    options.masking,
    prediction=c.corrections.prediction or options.prediction,
    temperature=options.sampling_temperature,
    continues_V=plan.continuations(of.tokenizer.vocab)
    if options.strict_subword
    else None,
  )
  mesh = sharding.make_mesh(sharding.get_spec(c.mesh.preset, c.mesh.axes))
  for step in of.steps:
    name = "weights" if step is None else f"step {step:,}"
    params = of.read(step)
    if params is None:
      console.print(f"{name}: its run has cleared it away; left out")
      continue
    params = jax.device_put(params, sharding.replicated(mesh))
    began = time.perf_counter()
    with rich.progress.Progress(
      console=console, transient=True, disable=not console.is_terminal
    ) as bar:
      task = bar.add_task(name, total=len(text.sequences))
      said = predict_slots.predict_lines(
        predict,
        params,
        text.sequences,
        jax.random.key(c.seed),
        length=text.length,
        batch_size=c.batch_size,
        mesh=mesh,
        advance=functools.partial(bar.advance, task),
      )
    secs = time.perf_counter() - began
    console.print(f"{name}: {len(said.gold_M):,} slots in {secs:.1f} s")
    yield step, said


def _about(c: ConfigDict, of: Subject) -> dict[str, Any]:
  """What was measured, in JSON's types."""
  return {
    "command": command(),
    "seed": c.seed,
    "corrections": json.loads(c.corrections.to_json()),
    "init": c.init,
    "objective": of.config.objective,
    "masking": json.loads(of.config.masking.to_json()),
    "prediction": c.corrections.prediction or of.config.negatives.prediction,
    "strict_subword": of.config.negatives.strict_subword,
  }
