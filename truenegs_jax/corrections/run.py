"""Runs the task "corrections": how often hard correction applies, and where.

The lines of a text are masked once and predicted by each checkpoint of a run.
Results are rates (the paper's table 2) and cases (its figure 3). Masking,
predictions and options of tables (`negatives` without `sources`) are those of
the run's config, or without a run those of this config.

The run's workdir is only read. Nothing is written before the end of measuring.
"""

import contextlib
import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from truenegs_jax.config.sections import Data, Negatives, PretrainConfig
from truenegs_jax.configs.common import REQUIRED
from truenegs_jax.corrections import findings, predict_slots
from truenegs_jax.corrections.predict_slots import Lines, Predictions
from truenegs_jax.data.corpus.sources_spec import (
  describe_sources,
  named_sources,
)
from truenegs_jax.report.write import write_own_report
from truenegs_jax.runtime import distributed, progress
from truenegs_jax.runtime.cache import enable_compilation_cache
from truenegs_jax.runtime.errors import (
  CheckpointError,
  DamagedStepError,
  InputError,
  printable,
  rerun_command,
)
from truenegs_jax.synonyms import run_table, wordnet
from truenegs_jax.synonyms.run_table import TableRequest
from truenegs_jax.train import plan, sharding, start
from truenegs_jax.weights import find, fit, load
from truenegs_jax.weights.find import Weights
from truenegs_jax.workdir import files, lock, saved_model
from truenegs_jax.workdir.saved_model import (
  SavedModel,
  build_model,
  build_tokenizer,
)

SOURCES = "corrections.sources"  # the config key
AUTO = "auto"  # the source of a run, or else the default of the language
MIN_LENGTH = 3  # [CLS], a token, [SEP]
KEPT, LAST = "kept", "last"  # values of corrections.steps


@dataclasses.dataclass(frozen=True)
class MeasuredModel:
  """A model and a function that reads its parameters.

  Attributes:
    saved: the model, its tokenizer, and the config of its training, on which
      predictions and corrections depend.
    steps: saved steps, ascending; `(None,)` for weights without a run.
    read_params: returns the parameters of a step as numpy arrays; None, with a
      warning, if they are damaged or the run, which may still be training, has
      deleted them meanwhile.
  """

  saved: SavedModel
  steps: tuple[int | None, ...]
  read_params: Callable[[Any], dict[str, Any] | None]


def run(c: ConfigDict, workdir: pathlib.Path, console: Console) -> int:
  """Measures corrections, prints and saves them, and returns the exit code."""
  say = functools.partial(console.print, soft_wrap=True)
  weights = Weights(c.init, say)
  config = json.loads(c.to_json())
  c = resolve_config(c, weights)
  requests = _check_config(c, workdir)
  mesh = sharding.make_mesh(sharding.get_mesh_spec(c.mesh.preset, c.mesh.axes))
  if c.dry_run:
    console.print(plan.report_table(_plan(c, requests, mesh)))
    return 0
  enable_compilation_cache(distributed.warn)
  with open_model(c, weights) as measured:
    trained = measured.saved.config
    if c.corrections.run:
      objective = start.describe_objective(trained)
      say(
        "The model, its vocabulary, masking and readings are those of"
        f" '{c.corrections.run}': {objective}"
      )
    with progress.working(console, "Reading text"):
      text = _read_text(c, measured)
    sources = [request.sources for request in requests]
    requests = _make_requests(trained.negatives, trained.data, sources)
    tables = _build_tables(requests, measured.saved, text, console)
    prediction = c.corrections.prediction or trained.negatives.prediction
    predicted = _predict_steps(
      measured,
      text,
      prediction=prediction,
      batch_size=c.batch_size,
      seed=c.seed,
      mesh=mesh,
      console=console,
    )
    with lock.lock(workdir):
      measurement = _measure(predicted, measured, text, tables)
      findings.print_findings(
        measurement, console, num_cases=c.corrections.cases
      )
      about = {
        "command": rerun_command(),
        "seed": c.seed,
        "corrections": json.loads(c.corrections.to_json()),
        "init": c.init,
        "objective": trained.objective,
        "masking": dataclasses.asdict(trained.masking),
        "prediction": prediction,
        "strict_subword": trained.negatives.strict_subword,
      }
      files.save_json(workdir / files.CONFIG, config)
      findings.save_findings(measurement, workdir, about)
      write_own_report(workdir, say)
  names = files.RESULTS, files.CASES, files.REPORT
  say(f"saved: {', '.join(str(workdir / name) for name in names)}")
  return 0


def _plan(
  c: ConfigDict, requests: Sequence[TableRequest], mesh: jax.sharding.Mesh
) -> dict[str, str]:
  """Returns the lines of a dry run."""
  o = c.corrections
  return {
    "dry run": "reads no text; writes and compiles nothing",
    "devices": plan.describe_devices(c.mesh.preset, mesh),
    "weights": _describe_run(o.run, o.steps)
    if o.run
    else find.describe(c.init),
    "text": describe_sources(o.text, key=predict_slots.TEXT),
    "lines": f"{o.sequences or 'all'}, in batches of {c.batch_size}",
    "synonyms": "; compared with ".join(
      request.identity for request in requests
    ),
  }


def resolve_config(c: ConfigDict, weights: Weights) -> ConfigDict:
  """Fills in language and sources of a run, or sizes and vocabulary of `init`.

  Raises:
    InputError: the config sets neither or both of a run and weights, or sizes
      that the weights do not have.
  """
  if bool(c.corrections.run) == bool(c.init) or c.init == REQUIRED:
    raise InputError(
      "Exactly one of corrections.run and init is needed. Set"
      " --config.corrections.run=WORKDIR to measure a run, or --config.init="
      "FOLDER and --config.objective to measure weights."
    )
  c = c.copy_and_resolve_references()
  if c.dry_run and c.init and not find.is_local(c.init):
    return c  # nothing is downloaded
  if c.init:
    config = start.replace_init(PretrainConfig.read(c), weights, saved=None)
    c.update(dataclasses.asdict(config))
    return c
  workdir = pathlib.Path(c.corrections.run).expanduser()
  if saved := files.read_saved_config(workdir):
    c.data.language = saved["data"]["language"]
    trained = saved["negatives"]["sources"]
    [request] = _make_requests(
      Negatives.read(c.negatives), Data.read(c.data), [trained]
    )
    if request.model is None:
      c.negatives.sources = trained
  return c


def _check_config(c: ConfigDict, workdir: pathlib.Path) -> list[TableRequest]:
  """Checks the config before anything is read, and returns the sources."""
  start.check(PretrainConfig.read(c))
  o = c.corrections
  if distributed.process_count() > 1:
    raise InputError("Several processes are only for pre-training. Use one.")
  if not o.text.strip():
    raise InputError(
      f"{predict_slots.TEXT} is empty. Set it to files, folders, globs or"
      f" hf:NAME, such as --config.{predict_slots.TEXT}="
      "'hf:Salesforce/wikitext config=wikitext-2-raw-v1 split=test'."
    )
  sources = (o.sources,) if isinstance(o.sources, str) else tuple(o.sources)
  sources = tuple(
    c.negatives.sources if x == AUTO else x for x in sources or (AUTO,)
  )
  requests = _make_requests(
    Negatives.read(c.negatives), Data.read(c.data), sources
  )
  for request in requests:
    if request.model:
      raise InputError(
        f"{SOURCES}={request.sources!r} changes while a model trains. Use"
        " sources that are the same for every checkpoint."
      )
    request.check()
  if files.has_pretraining(workdir):
    raise InputError(
      f"--workdir='{workdir}' is the workdir of a run, whose results would be"
      " replaced. Choose another, such as --workdir=runs/corrections."
    )
  return requests


def _make_requests(
  negatives: Negatives, data: Data, sources: Sequence[str]
) -> list[TableRequest]:
  """Makes requests for tables of other sources with the options of a config."""
  request = start.build_table_request(negatives, data)
  return [dataclasses.replace(request, sources=x, key=SOURCES) for x in sources]


def choose_steps(text: str, saved_steps: list[int]) -> tuple[int, ...]:
  """Returns the saved steps selected by "kept", "last" or "100,200"."""
  if text == KEPT:
    return tuple(saved_steps)
  if text == LAST:
    return tuple(saved_steps[-1:])
  words = text.replace(" ", "").split(",")
  if not set(words) <= set(map(str, saved_steps)):
    raise InputError(
      f"corrections.steps={text!r} is unknown. Choose kept, last, or some of"
      f" the saved steps {', '.join(map(str, saved_steps))}."
    )
  return tuple(sorted(set(map(int, words))))


def _describe_run(run: str, steps: str) -> str:
  workdir = pathlib.Path(run).expanduser()
  if not files.has_checkpoint(workdir):
    return f"'{workdir}' (missing, or without a checkpoint)"
  with saved_model.open_run(workdir) as checkpoints:
    chosen = choose_steps(steps, checkpoints.steps())
  return f"'{workdir}', steps {', '.join(map(str, chosen))}"


@contextlib.contextmanager
def open_model(c: ConfigDict, weights: Weights) -> Iterator[MeasuredModel]:
  """Opens the model of `c.corrections.run` or `c.init` for reading.

  Raises:
    InputError: no such run, folder or step; sizes differ from the weights'.
    CheckpointError: the run has no saved step, or another vocabulary.
  """
  if c.init:
    config = PretrainConfig.read(c)
    tokenizer = build_tokenizer(config.data, config.data.vocab)
    model = build_model(config, vocab_size=len(tokenizer.vocab))
    params = load.load_params(
      fit.fit(weights, model, tokenizer), complete=True, report=weights.report
    )
    saved = SavedModel(0, config, tokenizer, model)
    yield MeasuredModel(saved, (None,), lambda step: params)
    return
  steps_text = c.corrections.steps
  workdir = pathlib.Path(c.corrections.run).expanduser()
  with saved_model.open_run(workdir) as checkpoints:
    steps = choose_steps(steps_text, checkpoints.steps())
    if steps_text == LAST:
      last, last_params = saved_model.load(
        checkpoints, None, report=weights.report
      )
      steps = (last.step,)
    else:
      last = saved_model.read_newest_model(checkpoints, weights.report)

    def read_params(step: int) -> dict[str, Any] | None:
      if steps_text == LAST:
        return last_params
      try:
        return saved_model.read_params(checkpoints, last.model, step)
      except DamagedStepError as e:
        if steps_text != KEPT:
          raise
        weights.report(f"warning: {printable(e)} It is skipped.")
        return None

    # Paths are those of this machine.
    paths = {"data.wordnet_dir": c.data.wordnet_dir}
    if c.negatives.stop_words:
      paths["negatives.stop_words"] = c.negatives.stop_words
    trained = last.config.replace(paths)
    yield MeasuredModel(last._replace(config=trained), steps, read_params)


def _read_text(c: ConfigDict, measured: MeasuredModel) -> Lines:
  o, trained = c.corrections, measured.saved.config
  length, positions = o.length or trained.length, trained.model.max_positions
  if not MIN_LENGTH <= length <= positions:
    raise InputError(
      f"corrections.length={length} is out of range. Set it from"
      f" {MIN_LENGTH} to {positions}, the positions of the model."
    )
  with contextlib.ExitStack() as stack:
    resources = {}
    if "wordnet" in named_sources(o.text, key=predict_slots.TEXT):
      session = wordnet.session(c.data.wordnet_dir)
      resources["reader"] = stack.enter_context(session)
    return predict_slots.read_lines(
      o.text,
      measured.saved.tokenizer,
      length=length,
      limit=o.sequences,
      errors=c.data.errors,
      stopping=c.data.stopping,
      **resources,
    )


def _build_tables(
  requests: Sequence[TableRequest],
  saved: SavedModel,
  text: Lines,
  console: Console,
) -> findings.Tables:
  """Returns the table of each source, by canonical form of its expression.

  Prints how much of the vocabulary and of the text each of them covers.
  """
  tables = {}
  size = len(saved.tokenizer.vocab)
  counts_V = np.bincount(np.concatenate(text.sequences), minlength=size)
  for request in requests:
    source = request.sources
    table = run_table.load_or_build(
      request, saved.tokenizer, saved=None, console=console
    )
    if not table.num_pairs:
      raise InputError(
        f"{SOURCES}={source!r} has no pair of words of the vocabulary. Use a"
        " source of the vocabulary's language."
      )
    # Canonical forms have no folders, so those of two sources may be equal.
    name = source if table.source in tables else table.source
    tables[name] = table
    line, warning = run_table.describe_text(request, table, counts_V)
    console.print(f"{name}, text: {line}", soft_wrap=True)
    if warning:
      console.print("warning:", warning, soft_wrap=True)
  return tables


def _predict_steps(
  measured: MeasuredModel,
  text: Lines,
  *,
  prediction: str,
  batch_size: int,
  seed: int,
  mesh: jax.sharding.Mesh,
  console: Console,
) -> Iterator[tuple[int | None, Predictions]]:
  """Yields each step and its predictions."""
  saved = measured.saved
  trained = start.Run(saved.config, saved.tokenizer)
  predict = predict_slots.make_predict_slots(
    saved.model,
    trained.options.masking,
    prediction=prediction,
    temperature=trained.options.sampling_temperature,
    continues_V=trained.continues_V,
  )
  for step in measured.steps:
    name = "weights" if step is None else f"step {step:,}"
    with progress.working(console, f"Reading {name}", brief=True):
      params = measured.read_params(step)
    if params is None:
      continue
    params = jax.device_put(params, sharding.replicated_sharding(mesh))
    began = time.perf_counter()
    title, size = f"Predicting slots of {name}, lines", len(text.sequences)
    with progress.counting(console, title, size, brief=True) as advance:
      predictions = predict_slots.predict_lines(
        predict,
        params,
        text.sequences,
        jax.random.key(seed),
        length=text.length,
        batch_size=batch_size,
        mesh=mesh,
        advance=advance,
      )
    secs = time.perf_counter() - began
    console.print(f"{name}: {len(predictions.gold_M):,} slots in {secs:.1f} s")
    yield step, predictions


def _measure(
  predicted: Iterator[tuple[int | None, Predictions]],
  measured: MeasuredModel,
  text: Lines,
  tables: findings.Tables,
) -> findings.Findings:
  """Counts the corrections of each step; finds the last one's cases."""
  checkpoints = {source: list[findings.CheckpointRates]() for source in tables}
  predictions = None
  for step, predictions in predicted:
    percent = None if step is None else 100 * step / measured.saved.config.steps
    for source, table in tables.items():
      counts = findings.count_corrections(predictions, table)
      at = findings.CheckpointRates(step, percent, counts)
      checkpoints[source].append(at)
  if predictions is None:
    raise CheckpointError(
      "The run has no undamaged step to measure. Run the same command again,"
      " or set --config.corrections.steps=STEPS."
    )
  finder = findings.CaseFinder(tables, measured.saved.tokenizer)
  finder.add(predictions)
  return findings.Findings(text, tables, checkpoints, finder.finish())
