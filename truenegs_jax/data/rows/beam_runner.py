"""Runs steps of independent items on any runner of Apache Beam.

Flink and Dataflow run items again that were lost with a worker. Runners of one
machine do not, and wait for it forever; there, `worker_pool` does the work.
"""

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from truenegs_jax.data.rows import worker_pool
from truenegs_jax.data.rows.steps import Step
from truenegs_jax.runtime import errors
from truenegs_jax.runtime.errors import InputError

# An error of a worker, in the text of Beam's error.
ERROR_LINE = re.compile(
  rf"^{re.escape(errors.__name__)}\.(\w+): (.*?)(?: \[while running .*)?$",
  re.MULTILINE,
)


def run_steps(
  steps: Sequence[Step], *, runner: str, options: Sequence[str]
) -> None:
  """Runs steps one after the other, the items of each in parallel.

  Args:
    runner: a name that Beam knows, such as DataflowRunner.
    options: pipeline options of Beam, such as "--region=us-central1".
  """
  worker_pool.check_main_guard()
  if importlib.util.find_spec("apache_beam") is None:
    raise InputError(
      f"--runner={runner}: apache_beam is missing. Install truenegs_jax[beam]."
    )
  # Local workers import the same modules, also without an installed package.
  os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
  try:
    _submit(steps, runner, list(options))
  except errors.TrueNegsError:
    raise
  except Exception as error:
    if match := ERROR_LINE.search(traceback.format_exc()):
      raise getattr(errors, match[1])(match[2]) from error
    raise


def _submit(steps: Sequence[Step], runner: str, options: list[str]) -> None:
  import apache_beam as beam
  from apache_beam.options.pipeline_options import PipelineOptions
  from apache_beam.runners.portability.portable_runner import PortableRunner
  from apache_beam.runners.runner import create_runner

  beam_runner = create_runner(runner)
  beam_options = PipelineOptions(options, runner=runner)
  # Beam would discard an unknown option. A portable runner asks its job server
  # for more options.
  if not isinstance(beam_runner, PortableRunner):
    known = beam_options.get_all_options()
    given = beam_options.get_all_options(retain_unknown_options=True)
    if unknown := set(given).difference(known):
      raise InputError(
        f"--beam=--{min(unknown)} is unknown to Beam. Set its options like"
        " --beam=--region=us-central1; its documentation lists them."
      )
  with beam.Pipeline(beam_runner, beam_options) as pipeline:
    start = pipeline | "Start" >> beam.Create([None])
    barrier: list = []
    for step in steps:
      results = (
        start
        | f"List {step.name}"
        >> beam.FlatMap(_list_items, step.list_items, *barrier)
        | f"Spread {step.name}" >> beam.Reshuffle()
        | f"Run {step.name}" >> beam.FlatMap(_call_function, step.function)
      )
      barrier = [beam.pvalue.AsIter(results)]  # a worker waits for all of it


# Beam checks these types: a barrier is not yet a list when it looks.
def _list_items(_: None, list_items: Callable, *barrier: Any) -> Sequence:
  del barrier
  return list_items()


def _call_function(item: Any, function: Callable[[Any], object]) -> Sequence:
  function(item)
  return ()
