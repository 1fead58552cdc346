"""Measures a trained run on the held-out lines of its artificial language."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import measures
import numpy as np
from language import Language, read_language, vocabulary
from scipy import special

from truenegs_jax.data.tokenizer import SPECIALS, Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.objectives.slot_predictions import Options
from truenegs_jax.pretrain.plan import make_options
from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.workdir import saved_model
from truenegs_jax.workdir.metrics_file import read_records

FIRST_WORD = len(SPECIALS)  # its token
# Random words would change what is known about the line.
STYLE = "electra_85_15"
CORRECTED = "corrected_of_slots"  # a field of training records


def measure_run(
  workdir: pathlib.Path, folder: pathlib.Path
) -> dict[int, dict[str, float]]:
  """Measures the kept checkpoints of a run on its language, by step.

  Args:
    workdir: of the run.
    folder: of its language.

  Returns:
    The measures of `measure_model`; with hard correction also the share of
    corrected slots, averaged over the training records until the step.

  Raises:
    InputError: one of the folders is none, or the run has another vocabulary.
    CheckpointError: see `saved_model.load`.
  """
  language, words_RxL = read_language(folder)
  records = [x for x in read_records(workdir) if x["split"] == "train"]
  measured = {}
  with saved_model.open_run(workdir) as checkpoints:
    for step in checkpoints.steps():
      saved, params = saved_model.load(checkpoints, step, report=print)
      if saved.tokenizer.vocab != vocabulary(language):
        raise InputError(
          f"'{workdir}' was not trained on the language in '{folder}': its"
          " vocabulary differs. Use the folder of its data.vocab."
        )
      options = make_options(saved.config, saved.tokenizer)
      measured[step] = measure_model(
        saved.model, params, options, saved.tokenizer, language, words_RxL
      )
      shares = [x.get(CORRECTED) for x in records if x["step"] <= step]
      if shares and None not in shares:
        measured[step][CORRECTED] = sum(shares) / len(shares)
  return measured


def measure_model(
  model: pretrain.Model,
  params: dict[str, Any],
  options: Options,
  tokenizer: Tokenizer,
  language: Language,
  words_RxL: np.ndarray,
) -> dict[str, float]:
  """Measures a model on lines; the masks are the same for all models.

  Returns:
    The scores of `measures.score_predictions` for the slots that show [MASK];
    `probe_new_words`, see there, of the hidden states of lines without masks;
    for ELECTRA `auc`, of the detection of replaced tokens, and `auc_class`,
    where a synonym counts as original.
  """
  mask = dataclasses.replace(options.masking, style=STYLE)
  options = dataclasses.replace(options, masking=mask)
  tokens_RxL = np.pad(words_RxL + FIRST_WORD, ((0, 0), (1, 1)))
  tokens_RxL[:, 0], tokens_RxL[:, -1] = tokenizer.cls, tokenizer.sep
  out = jax.device_get(
    _run_model(params, tokens_RxL.astype(np.int32), model, options)
  )
  row_M, slot_M = np.nonzero(out["hidden_BxK"])
  at_M = row_M, out["positions_BxK"][row_M, slot_M] - 1
  visible_RxL = np.ones(words_RxL.shape, bool)
  visible_RxL[at_M] = False
  logits_MxT = out["logits_BxKxT"][row_M, slot_M].astype(np.float64)
  scores = measures.score_predictions(
    language,
    special.log_softmax(logits_MxT, axis=1)[:, FIRST_WORD:],
    measures.class_posterior(language, words_RxL, visible_RxL)[at_M],
    words_RxL[at_M],
  )
  hidden_MxD = np.concatenate(out["encoded_BxLxD"][:, 1:-1]).astype(np.float64)
  scores["probe_new_words"] = measures.probe_new_words(
    language, words_RxL.ravel(), hidden_MxD
  )
  if "detect_BxL" in out:
    sampled_RxL, detect_RxL = out["corrupted_BxL"], out["detect_BxL"]
    class_T = np.pad(language.class_V, (FIRST_WORD, 0), constant_values=-1)
    for name, replaced_RxL in (
      ("auc", sampled_RxL != tokens_RxL),
      ("auc_class", class_T[sampled_RxL] != class_T[tokens_RxL]),
    ):
      scores[name] = measures.detection_auc(
        detect_RxL.ravel(), replaced_RxL.ravel()
      )
  return scores


@functools.partial(jax.jit, static_argnames=("model", "options"))
def _run_model(params, tokens_BxL, model, options):
  """Computes slots, logits, hidden states and, for ELECTRA, detection."""
  rows_B = jnp.arange(tokens_BxL.shape[0])
  keys_B = rng.row_keys(jax.random.key(0), 0, rows_B)
  ones_BxL = jnp.ones_like(tokens_BxL)
  batch = {"types": ones_BxL - 1, "documents": ones_BxL}
  slots, masked_BxL = masking.hide_slots(
    tokens_BxL, ones_BxL, rng.purpose_keys(keys_B, rng.MASK), options.masking
  )
  bound, positions_BxK = model.bind({"params": params}), slots.positions_BxK
  masked = {**batch, "tokens": masked_BxL}
  logits_BxKxT = bound.generate_logits(masked, positions_BxK, None)
  shown_BxK = jnp.take_along_axis(masked_BxL, positions_BxK, axis=1)
  is_hidden_BxK = shown_BxK == options.masking.mask_id
  out = {
    "positions_BxK": positions_BxK,
    "hidden_BxK": is_hidden_BxK & (slots.weight_BxK > 0),
    "logits_BxKxT": logits_BxKxT,
    "encoded_BxLxD": bound.encode({**batch, "tokens": tokens_BxL}, None),
  }
  if isinstance(model, pretrain.ElectraPair):
    output = output_softmax.compute(
      bound.generate_vectors(masked, positions_BxK, None),
      *bound.output_layer(),
      slots.gold_BxK,
      rng.purpose_keys(keys_B, rng.SAMPLE),
    )
    corrupted_BxL = masking.fill_slots(tokens_BxL, slots, output.sampled_BxK)
    inputs = {**batch, "tokens": corrupted_BxL}
    out["corrupted_BxL"] = corrupted_BxL
    out["detect_BxL"] = bound.detect_logits(inputs, None)
  return out
