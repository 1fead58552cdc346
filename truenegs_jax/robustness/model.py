"""Opens the models of a fine-tuning on questions, to answer others.

A workdir of fine-tuning has one exported model for each seed, whose answers to
the dev set have the scores that the fine-tuning printed.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from rich.console import Console

from truenegs_jax.configs import finetune_squad
from truenegs_jax.finetune import results, task_data
from truenegs_jax.finetune.results import Result
from truenegs_jax.finetune.start import Predictor, Start, resolve
from truenegs_jax.finetune.task_data import (
  Answer,
  FinetuneOptions,
  parse_options,
)
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.tasks import task as task_lib
from truenegs_jax.tasks.task import SQUAD, Question
from truenegs_jax.train import sharding
from truenegs_jax.weights import hf_folder, hf_names, match
from truenegs_jax.weights.find import Weights
from truenegs_jax.workdir import files


@dataclasses.dataclass(frozen=True)
class FineTunedModel:
  """A model that answers questions, of one or several seeds."""

  seeds: Mapping[str, int | None]  # by folder; None of a model of others
  starts: tuple[Start, ...]  # of each seed
  predictor: Predictor  # for the parameters of any seed
  note: str  # which seeds are left out, or ""

  @property
  def options(self) -> FinetuneOptions:
    """The config with which all seeds were fine-tuned, of the first folder."""
    return self.starts[0].options

  @property
  def family(self) -> str:
    """The network's family in transformers, such as "electra"."""
    model = self.predictor.model
    return hf_names.network_names(model, self.starts[0].role).family

  @property
  def width(self) -> int:
    """The network's number of units."""
    return self.predictor.model.config.width

  def answer(
    self, questions: Sequence[Question], console: Console
  ) -> list[Sequence[Answer]]:
    """Returns each seed's answers to questions with different keys."""
    task = task_lib.TASKS[SQUAD]
    with progress.working(console, "Encoding questions"):
      split = task_data.encode_split(
        self.options, task, questions, self.starts[0].tokenizer
      )
    replicated = sharding.replicated_sharding(self.predictor.mesh)
    answers_S = []
    for folder, start in zip(self.seeds, self.starts, strict=True):
      params = start.make_params(task, seed=0, complete=True)
      title = f"Answering with '{folder}', rows"
      answers = self.predictor.answer(
        jax.device_put(params, replicated), split, console=console, title=title
      )
      answers_S.append(answers)
    return answers_S


def open_model(
  init: str, values: Mapping[str, Any], report: Callable[[str], None]
) -> FineTunedModel:
  """Opens a model that was fine-tuned on questions; reads no arrays yet.

  `values` is a config of the task "robustness" as a dict.
  """
  if not init:
    raise InputError(
      "init='' names no model. Set --config.init=WORKDIR of a fine-tuning on"
      " SQuAD, or a folder or hub name of a Hugging Face model for questions."
    )
  runs, note = _find_runs(init)
  seeds: dict[str, int | None] = {x: run.seed for x, run in runs.items()}
  seeds = seeds or {init: None}
  run = next(iter(runs.values()), None)
  network = Weights(next(iter(seeds)), report).encoder()
  if not match.answers_questions(network):
    raise InputError(
      f"init: {network.location} has no head for questions. Fine-tune it with"
      " --config=finetune_squad, and pass that workdir."
    )
  options = parse_options(_make_values(values, run))
  each = (dataclasses.replace(options, init=folder) for folder in seeds)
  starts = tuple(resolve(x, report) for x in each)
  task = task_lib.TASKS[SQUAD]
  for start in starts:
    start.match_task(task)
  predictor = Predictor(options, starts[0].make_model(task))
  return FineTunedModel(seeds, starts, predictor, note)


def _find_runs(init: str) -> tuple[dict[str, Result], str]:
  """Returns runs by the folders of their models, {} for models of others.

  Runs that failed, or have no model, are left out; a note says so.
  """
  workdir = open_path("init", init)
  pool = results.load_all(workdir).get(SQUAD, [])
  if not pool:
    if any(workdir.glob(files.SEEDS)):
      raise InputError(
        f"init={init!r} is a fine-tuning without a finished run on SQuAD. Run"
        " its command again, or fine-tune on SQuAD: --config=finetune_squad."
      )
    return {}, ""
  runs: dict[str, Result] = {}
  left_out: list[str] = []
  for x in pool:
    folder = results.run_folder(workdir, x.task, x.seed) / results.MODEL
    if not x.failure and (folder / hf_folder.CONFIG).exists():
      runs[str(folder)] = x
    else:
      left_out.append(f"seed {x.seed} ({x.failure or 'not exported'})")
  text = f"{len(runs)} of {len(pool)} seeds; without {', '.join(left_out)}"
  if not runs:
    raise InputError(
      f"init={init!r} has models of {text}. Fine-tune into another --workdir"
      " with --config.finetune.export=all, or another learning rate."
    )
  return runs, f"{init}: {text}." if left_out else ""


def _make_values(
  values: Mapping[str, Any], run: Result | None
) -> dict[str, Any]:
  """Returns the config of the run's fine-tuning, in which `values` go first."""
  config = finetune_squad.get_config().to_dict()
  saved = run.provenance.get(files.CONFIG, {}) if run else {}
  config["length"] = values["length"] or saved.get("length", config["length"])
  config["batch_size"] = values["batch_size"]
  for name in ("model", "mesh"):
    config[name] |= values[name]
  config["finetune"] |= saved.get("finetune", {})
  if data := values["robustness"]["data"]:
    is_folder = pathlib.Path(data).expanduser().is_dir()
    for name in ("data", "train", "dev", "test"):
      config["finetune"][name] = ""
    config["finetune"]["data" if is_folder else "dev"] = data
  config["finetune"]["tasks"] = SQUAD
  return config
