"""Reads minimal pairs of sentences, such as BLiMP, and scores their sentences.

A masked language model gives the pseudo-log-likelihood: each token is hidden in
turn, and the log-probabilities are added (Salazar et al. 2020). A discriminator
reads a sentence as it is, and those of "original" are added.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from truenegs_jax.models import encoder
from truenegs_jax.pretrain.plan import Run
from truenegs_jax.runtime import distributed, errors, progress
from truenegs_jax.runtime import text as text_lib
from truenegs_jax.tasks.records import HUB, Record, read_dataset
from truenegs_jax.train import sharding

# Names of a pair's fields, as published and short; the last may be missing.
PUBLISHED = ("sentence_good", "sentence_bad", "UID", "linguistics_term")
SHORT = ("good", "bad", "paradigm", "term")
BATCH_TOKENS = 4_096  # but at least one row for each device
WIDTH = 8  # lengths of batches are its multiples, so that few compile
# In place of the number of a word.
SPECIAL = -1
PADDING = -2


class Pair(NamedTuple):
  """Two sentences that differ in one property, of which one is grammatical."""

  good: str
  bad: str
  paradigm: str
  term: str  # of linguistics, that paradigms have in common; or ""
  location: str  # file and line


def read_pairs(where: str, *, key: str, rows: int = 0) -> list[Pair]:
  """Reads the first `rows` pairs of each paradigm (0: all), by paradigm.

  `where` is the value of a config key: JSON lines as a file, plain or
  compressed, a folder or a glob; or hf:NAME. DataError for what is no pair.
  """
  by_paradigm: dict[str, list[Pair]] = {}
  for record in _read_records(where):
    names = SHORT if SHORT[0] in record.fields else PUBLISHED
    good, bad, paradigm = map(record.text, names[:3])
    term = ""
    if names[3] in record.fields:
      term = record.text(names[3], may_be_empty=True)
    members = by_paradigm.setdefault(paradigm, [])
    if not rows or len(members) < rows:
      members.append(Pair(good, bad, paradigm, term, record.location))
  pairs = [*itertools.chain.from_iterable(by_paradigm.values())]
  if not pairs:
    raise errors.DataError(
      f"{key}={where!r} names no minimal pairs. Set --config.{key}=FILE."
    )
  return pairs


def _read_records(where: str) -> Iterator[Record]:
  if where.startswith(HUB):
    yield from read_dataset(where, split="train")
    return
  for file in text_lib.find_files(where, (".jsonl",)) if where else ():
    for number, fields in text_lib.read_objects(file.path):
      yield Record(f"{file.path}:{number}", fields)


class PairScorer:
  """Scores pairs by parameters of a run's model, in f32.

  Axes: N pairs, S different sentences.
  """

  def __init__(
    self,
    run: Run,
    pairs: Sequence[Pair],
    *,
    hidden: str = "token",
    network: str = "",
  ):
    """Tokenizes pairs; options are as in the section `blimp` of a config.

    Raises DataError for a sentence without tokens, or with too many.
    """
    self.pairs = pairs
    self._run = run
    network = network or run.model.mlm_role
    errors.one_of("blimp.network", network, run.model.roles)
    most = run.model.roles[network].max_positions - 2
    lines = [x.split(" ") for pair in pairs for x in (pair.good, pair.bad)]
    sentences = []
    for i, (ids, words) in enumerate(run.tokenizer.encode_words(lines)):
      if not 0 < len(ids) <= most:
        raise errors.DataError(
          f"{pairs[i // 2].location}: a sentence has {len(ids)} tokens, and the"
          f" model takes 1 to {most}. Remove the line."
        )
      parts = words if hidden == "word" else range(len(ids))
      first = run.tokenizer.cls, SPECIAL
      last = run.tokenizer.sep, SPECIAL
      sentences.append((first, *zip(ids, parts, strict=True), last))
    # Equal sentences are scored once, so that they tie.
    index = {x: i for i, x in enumerate(dict.fromkeys(sentences))}
    self._index_Nx2 = np.array([index[x] for x in sentences]).reshape(-1, 2)
    padding = run.tokenizer.pad, PADDING
    columns = itertools.zip_longest(*index, fillvalue=padding)
    self._tokens_SxL, self._words_SxL = np.array([*columns], np.int32).T
    self._is_slot_SxL = self._words_SxL >= 0
    self._score = build_score_step(run, network)
    if network == "discriminator":
      self._is_slot_SxL[:, 2:] = False  # a row for each sentence

  def rate(self, params: optax.Params, console: Console) -> dict[str, float]:
    """Returns the accuracy by paradigm in percent; ties count one half."""
    score_Nx2 = self.score(params, console)
    right_N = 50 + 50 * np.sign(score_Nx2[:, 0] - score_Nx2[:, 1])
    rights: dict[str, list[float]] = {}
    for pair, right in zip(self.pairs, right_N, strict=True):
      rights.setdefault(pair.paradigm, []).append(right)
    return {name: float(np.mean(x)) for name, x in rights.items()}

  def score(self, params: optax.Params, console: Console) -> np.ndarray:
    """Returns the scores of good and bad sentences in nats, f64 `[N, 2]`."""
    score_S = np.zeros(len(self._tokens_SxL))
    size = int(self._is_slot_SxL.sum())
    title = "Scoring pairs, rows"
    with progress.counting(console, title, size, brief=True) as advance:
      for row_M, batch in self._batches():
        on_device = sharding.place_batch(batch, self._run.mesh)
        # GPUs and TPUs round more by default.
        with distributed.watch_step(), jax.default_matmul_precision("highest"):
          score_B = jax.device_get(self._score(params, on_device))
        np.add.at(score_S, row_M, score_B[: len(row_M)])
        advance(len(row_M))
    return score_S[self._index_Nx2]

  def _batches(self) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields the sentences of M slots, and a batch whose first M rows they are.

    A batch has about BATCH_TOKENS tokens, `[B, L]`, of similar sentences.
    """
    slices = self._run.mesh.shape[sharding.DATA_AXIS]
    size_S = (self._words_SxL != PADDING).sum(1)
    length_S = -(-size_S // WIDTH) * WIDTH
    for length in np.unique(length_S):
      is_here_S = length_S == length
      slots = np.nonzero(self._is_slot_SxL & is_here_S[:, None])
      row_M, position_M = (x.astype(np.int32) for x in slots)
      rows = max(BATCH_TOKENS // length // slices, 1) * slices
      for start in range(0, len(row_M), rows):
        # The first slots fill the last batch.
        slot_B = np.arange(start, start + rows) % len(row_M)
        batch = {"position": position_M[slot_B]}
        batch["tokens"] = self._tokens_SxL[row_M[slot_B], :length]
        batch["words"] = self._words_SxL[row_M[slot_B], :length]
        yield row_M[start : start + rows], batch


def build_score_step(run: Run, network: str) -> Callable[..., jax.Array]:
  """Builds `(params, batch) -> f32 [B]`, the log-probability of each slot.

  A slot is hidden together with the later tokens of its word. A discriminator
  gives the sum over the whole sentence.
  """
  model = encoder.replace_configs(run.model, dtype="float32")

  def score(params: dict, batch: Mapping[str, jax.Array]) -> jax.Array:
    tokens_BxL = batch["tokens"]
    words_BxL = batch["words"]
    inputs = {
      "tokens": tokens_BxL,
      "types": jnp.zeros_like(tokens_BxL),
      "documents": (words_BxL != PADDING).astype(jnp.int32),
    }
    bound = model.bind({"params": params})
    if network == "discriminator":
      log_p_BxL = jax.nn.log_sigmoid(-bound.detect_logits(inputs, None))
      return jnp.where(words_BxL >= 0, log_p_BxL, 0.0).sum(1)
    slot_Bx1 = batch["position"][:, None]
    word_Bx1 = jnp.take_along_axis(words_BxL, slot_Bx1, 1)
    is_later_BxL = jnp.arange(tokens_BxL.shape[1])[None] >= slot_Bx1
    is_hidden_BxL = is_later_BxL & (words_BxL == word_Bx1)
    inputs["tokens"] = jnp.where(is_hidden_BxL, run.tokenizer.mask, tokens_BxL)
    logits_BxV = bound.generate_logits(inputs, slot_Bx1, None)[:, 0]
    gold_B = jnp.take_along_axis(tokens_BxL, slot_Bx1, 1)[:, 0]
    return -optax.softmax_cross_entropy_with_integer_labels(logits_BxV, gold_B)

  return jax.jit(
    sharding.gather_params(score, run.mesh, run.mesh_spec),
    out_shardings=sharding.replicated_sharding(run.mesh),
  )
