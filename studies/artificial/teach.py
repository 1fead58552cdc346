"""Trains networks with teachers on artificial languages, and measures them.

  python studies/artificial/teach.py DIAL RESULTS LANGUAGE... [--shades]

DIAL is the percentage of words with synonyms; languages are numbered from 0.
`--shades` trains only further shares and temperatures of the true teacher.
Appends a line of JSON for each network and moment to RESULTS. Each network is
trained by the training step of the package, without checkpoints. The protocol
is in studies/teacher.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import language as language_lib
import measure_run
import measures
import numpy as np
from measure_run import FIRST_WORD
from rich.console import Console

from truenegs_jax.config.load import load_config
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.data import batches
from truenegs_jax.data import rows as rows_lib
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.objectives.slot_predictions import Options
from truenegs_jax.objectives.teacher import Outputs, Teacher
from truenegs_jax.pretrain import plan, start
from truenegs_jax.pretrain.open_teacher import OpenTeacher
from truenegs_jax.synonyms.run_table import TeacherOptions
from truenegs_jax.train import sharding

CONFIG = str(pathlib.Path(__file__).with_name("config.py"))
STEPS = 1_500
TOP = 64  # all words of a language
KEPT = ("kl_class", "kl_word", "probe_new_words", "accuracy_class")
Params = dict[str, Any]
SMOOTH = {"smoothing": 0.3, "smoothing_by": "balanced"}
TAUGHT = {"smoothing": 1.0, "smoothing_by": "teacher"}
SHADES = {  # share and temperature
  "10": (0.1, 1),
  "60": (0.6, 1),
  "t05": (1, 0.5),
  "t08": (1, 0.8),
  "t125": (1, 1.25),
}


@dataclasses.dataclass(frozen=True)
class Truth:
  """A language as the teacher of a run, without parameters."""

  language: language_lib.Language
  mask_id: int
  temperature: float = 1.0
  ratio: float = 0.5

  def make_reader(self, *mesh: Any) -> Teacher:
    """Returns how an objective reads it."""
    del mesh
    return Teacher(self.predict, TOP, self.temperature, self.ratio)

  def predict(self, params: Params, inputs: Any, slots_BxK: Any) -> Outputs:
    """Returns the exact log-probabilities of the tokens of slots as vectors.

    As `measures.class_posterior`; a slot that shows its word has no other. The
    output layer changes nothing.
    """
    del params
    lang = self.language
    tokens_BxL = inputs["tokens"]
    word_BxL = jnp.clip(tokens_BxL - FIRST_WORD, 0, len(lang.class_V) - 1)
    is_word_BxL = tokens_BxL >= FIRST_WORD
    class_BxL = jnp.asarray(lang.class_V)[word_BxL]
    shown_BxLxC = jax.nn.one_hot(class_BxL, len(lang.start_C))
    evidence_BxLxC = jnp.where(is_word_BxL[..., None], shown_BxLxC, 1.0)
    next_CxC = jnp.asarray(lang.next_CxC, jnp.float32)
    last = tokens_BxL.shape[1] - 2  # before [SEP]
    before = {1: jnp.asarray(lang.start_C, jnp.float32)}
    after = {last: jnp.ones(len(lang.start_C))}
    for i in range(2, last + 1):
      before[i] = _normalize(
        (before[i - 1] * evidence_BxLxC[:, i - 1]) @ next_CxC
      )
      j = last + 1 - i
      after[j] = _normalize(
        (after[j + 1] * evidence_BxLxC[:, j + 1]) @ next_CxC.T
      )
    around = [before[i] * after[i] for i in range(1, last + 1)]
    shape = tokens_BxL.shape[0], len(lang.start_C)
    p_BxLxC = jnp.stack([jnp.broadcast_to(x, shape) for x in around], axis=1)
    p_BxLxC = jnp.pad(_normalize(p_BxLxC), ((0, 0), (1, 1), (0, 0)))
    log_p_BxLxV = jnp.log(p_BxLxC + 1e-30)[..., lang.class_V]
    log_p_BxLxV += jnp.log(jnp.asarray(lang.share_V, jnp.float32))
    log_p_BxLxT = jnp.pad(
      log_p_BxLxV, ((0, 0), (0, 0), (FIRST_WORD, 0)), constant_values=-1e4
    )
    shown_BxLxT = jnp.log(
      jax.nn.one_hot(tokens_BxL, log_p_BxLxT.shape[-1]) + 1e-30
    )
    log_p_BxLxT = jnp.where(is_word_BxL[..., None], shown_BxLxT, log_p_BxLxT)
    log_p_BxKxT = jnp.take_along_axis(log_p_BxLxT, slots_BxK[..., None], axis=1)
    size = log_p_BxKxT.shape[-1]
    return log_p_BxKxT, jnp.eye(size), jnp.zeros(size)


@dataclasses.dataclass(frozen=True)
class TaughtRun(plan.Run):
  """A run whose teacher is given, and not opened."""

  given: Any = None

  @property
  def teacher(self) -> Any:
    """The teacher."""
    return self.given


@dataclasses.dataclass(frozen=True)
class Lines:
  """The lines of a language: rows to train on, and what measures need."""

  language: language_lib.Language
  config: PretrainConfig
  tokenizer: Tokenizer
  rows: rows_lib.Rows
  held_out_RxL: np.ndarray

  @functools.cached_property
  def plain_options(self) -> Options:
    """The options of all measures, which therefore compile once."""
    return plan.make_options(self.config, self.tokenizer)

  def train(
    self,
    arm: str,
    *,
    steps: int = STEPS,
    teacher: Any = None,
    params: Params | None = None,
    seed: int | None = None,
    **changed: Any,
  ) -> tuple[OpenTeacher, Params, list[dict[str, Any]]]:
    """Trains a network; returns it as a teacher, parameters and measures.

    `params` are those of the teacher; `changed` are keys of `negatives`.
    """
    values: dict[str, Any] = {f"negatives.{k}": x for k, x in changed.items()}
    values["steps"] = steps
    values["optim.warmup_steps"] = min(100, steps // 10)
    if seed is not None:
      values["seed"] = seed
    if teacher:
      values["negatives.sources"] = "teacher path=given"
    config = self.config.replace(values)
    made = plan.make_run(config, self.tokenizer)
    fields = {x.name: getattr(made, x.name) for x in dataclasses.fields(made)}
    run = TaughtRun(**fields, given=teacher)
    table = None
    if request := run.table_request:
      table = request.build(self.tokenizer)
    aux = start.make_aux(run, table, params)
    abstract = run.abstract_state()
    step = start.lower_train_step(run, abstract, aux).compile()
    state = jax.jit(run.init_state)()
    moments = {round(steps * x): x for x in (0.1, 0.334, 1.0)}
    measured = []
    for done in range(steps):
      batch = batches.batch_at(
        self.rows, done, batch_size=config.batch_size, seed=config.seed
      )
      state, _ = step(state, sharding.shard_batch(batch, run.mesh), aux)
      if done + 1 in moments:
        scores = measure_run.measure_model(
          run.model,
          state.params,
          self.plain_options,
          self.tokenizer,
          self.language,
          self.held_out_RxL,
        )
        line = {"arm": arm, "share": moments[done + 1], "steps": done + 1}
        measured.append(line | {x: round(scores[x], 6) for x in KEPT})
    taught: Any = OpenTeacher(TeacherOptions(top=TOP), None, run.model)
    return taught, state.params, measured


def open_lines(folder: pathlib.Path, *, dial: float, number: int) -> Lines:
  """Opens a language in a folder, which it writes; five times the text."""
  if not folder.exists():
    drawn = language_lib.draw_language(number, synonym_share=dial / 100)
    rows = 5 * language_lib.ROWS
    language_lib.write_language(folder, drawn, seed=number, rows=rows)
  lang, held_out_RxL = language_lib.read_language(folder)
  c = load_config(CONFIG)
  lexicon = folder / language_lib.LEXICON.format(100, 100)
  c.data.sources = f"'{folder / language_lib.TEXT}'"
  c.data.vocab = str(folder / language_lib.VOCABULARY)
  c.data.rows = str(folder / "rows")
  c.negatives.sources = f"pairs path='{lexicon}'"
  c.seed = number
  config = PretrainConfig.read(c)
  console = Console(stderr=True)
  rows_folder, tokenizer = start.prepare_rows(
    config.data, config.length, console
  )
  rows = rows_lib.open_rows(rows_folder, "train")
  return Lines(lang, config, tokenizer, rows, held_out_RxL)


def train_all(lines: Lines) -> Iterator[dict[str, Any]]:
  """Trains all arms on a language; yields their measures."""
  truth = Truth(lines.language, lines.tokenizer.mask)
  check_truth(truth, lines)

  def run(*args: Any, **options: Any) -> Iterator[dict[str, Any]]:
    yield from lines.train(*args, **options)[2]

  off = {"hard_correction": False}
  yield from run("baseline", **off)
  yield from run("longer", steps=2_000, **off)
  yield from run("hc", hard_correction=True)
  yield from run("balanced", **off | SMOOTH)
  yield from run("model", **off | SMOOTH | {"smoothing_by": "model"})
  yield from train_shades(lines, {"30": (0.3, 1), "100": (1, 1), "t2": (1, 2)})
  yield from run("truth_hc", teacher=truth, params={}, hard_correction=True)
  other = 1_000 + lines.config.seed
  teacher, params, measured = lines.train(
    "half_teacher", steps=750, seed=other, **off
  )
  yield from measured
  yield from run(
    "half", steps=562, teacher=teacher, params=params, **off | TAUGHT
  )
  teacher, params, measured = lines.train(
    "much_teacher", steps=5 * STEPS, seed=other, **off
  )
  yield from measured
  for name, share in (("much", 1.0), ("much_30", 0.3)):
    taught = off | TAUGHT | {"smoothing": share}
    yield from run(name, teacher=teacher, params=params, **taught)


def train_shades(
  lines: Lines, shades: Mapping[str, tuple[float, float]] = SHADES
) -> Iterator[dict[str, Any]]:
  """Trains with the truth as the teacher, by share and temperature."""
  truth = Truth(lines.language, lines.tokenizer.mask)
  for name, (share, temperature) in shades.items():
    _, _, measured = lines.train(
      f"truth_{name}",
      teacher=dataclasses.replace(truth, temperature=float(temperature)),
      params={},
      hard_correction=False,
      smoothing=float(share),
      smoothing_by="teacher",
    )
    yield from measured


def check_truth(truth: Truth, lines: Lines) -> None:
  """Compares the teacher with the distribution of the measures, in f64."""
  words_RxL = lines.held_out_RxL[:50]
  visible_RxL = np.random.default_rng(0).random(words_RxL.shape) < 0.7
  tokens_RxL = np.where(visible_RxL, words_RxL + FIRST_WORD, truth.mask_id)
  tokens_RxL = np.pad(tokens_RxL, ((0, 0), (1, 1)))
  slots_RxL = np.tile(1 + np.arange(words_RxL.shape[1]), (len(words_RxL), 1))
  ours, *_ = truth.predict({}, {"tokens": jnp.asarray(tokens_RxL)}, slots_RxL)
  exact_RxLxC = measures.class_posterior(truth.language, words_RxL, visible_RxL)
  exact_MxV = measures.word_log_probs(truth.language, exact_RxLxC[~visible_RxL])
  np.testing.assert_allclose(
    np.exp(ours[~visible_RxL][:, FIRST_WORD:]), np.exp(exact_MxV), atol=1e-5
  )


def _normalize(p: jax.Array) -> jax.Array:
  return p / p.sum(axis=-1, keepdims=True)


def main() -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("dial", type=int)
  parser.add_argument("results")
  parser.add_argument("languages", type=int, nargs="+")
  parser.add_argument("--shades", action="store_true")
  args = parser.parse_args()
  for number in args.languages:
    folder = pathlib.Path(f"runs/teacher/dial-{args.dial}/language-{number}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    lines = open_lines(folder.resolve(), dial=args.dial, number=number)
    for line in train_shades(lines) if args.shades else train_all(lines):
      with open(args.results, "a") as file:
        head = {"dial": args.dial, "language": number}
        file.write(json.dumps(head | line) + "\n")


if __name__ == "__main__":
  main()
