"""Measures a trained run on the held-out lines of its artificial language."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truenegs_jax.data.tokens.tokenizer import SPECIALS, Tokenizer
from truenegs_jax.models import pretrain
from truenegs_jax.objectives import masking, output_softmax
from truenegs_jax.objectives.options import Options
from truenegs_jax.runtime import rng
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.study.artificial import exact, files, measures
from truenegs_jax.study.artificial.language import Language
from truenegs_jax.train import build_run
from truenegs_jax.workdir import saved_model

FIRST_WORD = len(SPECIALS)  # its token


def measure_run(
  workdir: pathlib.Path,
  folder: pathlib.Path,
  *,
  report: Callable[[str], object],
) -> dict[str, float]:
  """Measures the newest checkpoint of a run; see `measure_model`.

  Args:
    workdir: of the run.
    folder: of its language, see `files.write_language`.
    report: receives a line about each damaged checkpoint.

  Raises:
    InputError: one of the folders is none, or the run has another vocabulary.
    CheckpointError: see `saved_model.load`.
  """
  language, words_RxL = files.read_language(folder)
  with saved_model.open_run(workdir) as checkpoints:
    saved, params = saved_model.load(checkpoints, None, report=report)
  if saved.tokenizer.vocab != files.vocabulary(language):
    raise InputError(
      f"'{workdir}' was not trained on the language in '{folder}': its"
      " vocabulary differs. Use the folder of its data.vocab."
    )
  options = build_run.build_options(saved.config, saved.tokenizer)
  return measure_model(
    saved.model, params, options, saved.tokenizer, language, words_RxL
  )


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
    `probe`, the accuracy of a linear probe on the class of unmasked words, and
    `probe_new_words`, that on the words whose class has a more frequent one,
    which the probe did not see, nan if there are none; for ELECTRA `auc`, of
    the detection of replaced tokens, `auc_class`, where a synonym counts as
    original, and `detect_bound`, see `exact.detection_bound`.

  Raises:
    InputError: masks show random words. What they hide is then not known.
  """
  if masking.STYLES[options.masking.style].random:
    raise InputError(
      f"masking.style={options.masking.style!r} shows random words, for which"
      " the best loss is not known. Train with"
      " --config.masking.style=electra_85_15."
    )
  num_rows = len(words_RxL)
  tokens_RxL = np.pad(words_RxL + FIRST_WORD, ((0, 0), (1, 1)))
  tokens_RxL[:, 0], tokens_RxL[:, -1] = tokenizer.cls, tokenizer.sep
  out = jax.device_get(
    _run_model(params, tokens_RxL.astype(np.int32), model, options)
  )
  row_M, slot_M = np.nonzero(out["hidden_BxK"])
  at_M = row_M, out["positions_BxK"][row_M, slot_M] - 1
  visible_RxL = np.ones(words_RxL.shape, bool)
  visible_RxL[at_M] = False
  exact_MxC = exact.class_posterior(language, words_RxL, visible_RxL)[at_M]
  logits_MxT = out["logits_BxKxT"][row_M, slot_M].astype(np.float64)
  log_p_MxT = logits_MxT - np.logaddexp.reduce(
    logits_MxT, axis=1, keepdims=True
  )
  scores = measures.score_predictions(
    language, log_p_MxT[:, FIRST_WORD:], exact_MxC, words_RxL[at_M]
  )
  scores |= probe_classes(language, words_RxL, out["encoded_BxLxD"][:, 1:-1])
  if "detect_BxL" not in out:
    return scores
  # Specials are never sampled by a trained generator; they differ in class.
  sampled_RxL = out["corrupted_BxL"] - FIRST_WORD
  classes = np.append(language.class_V, np.full(FIRST_WORD, -1))
  gold_RxL = tokens_RxL - FIRST_WORD
  exact_p_MxV = np.exp(exact.word_log_probs(language, exact_MxC))
  exact_p_MxT = np.pad(exact_p_MxV, ((0, 0), (0, FIRST_WORD)))
  sampled_M = sampled_RxL[:, 1:-1][at_M]
  differs = {
    "auc": sampled_RxL != gold_RxL,
    "auc_class": classes[sampled_RxL] != classes[gold_RxL],
  }
  for name, replaced_RxL in differs.items():
    scores[name] = measures.detection_auc(
      out["detect_BxL"].ravel(), replaced_RxL.ravel()
    )
  p_M = exact_p_MxT[np.arange(len(sampled_M)), sampled_M]
  bound = exact.detection_bound(p_M, num_rows * tokens_RxL.shape[1])
  return scores | {"detect_bound": bound}


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
  logits_BxKxT = bound.generate_logits(
    {**batch, "tokens": masked_BxL}, positions_BxK, None
  )
  shown_BxK = jnp.take_along_axis(masked_BxL, positions_BxK, axis=1)
  is_hidden_BxK = shown_BxK == options.masking.mask_id
  out = {
    "positions_BxK": positions_BxK,
    "hidden_BxK": is_hidden_BxK & (slots.weight_BxK > 0),
    "logits_BxKxT": logits_BxKxT,
    "encoded_BxLxD": bound.encode({**batch, "tokens": tokens_BxL}, None),
  }
  if isinstance(model, pretrain.ElectraPair):
    sampled_BxK = output_softmax.sample(
      logits_BxKxT,
      rng.purpose_keys(keys_B, rng.SAMPLE),
      options.sampling_temperature,
    )
    corrupted_BxL = masking.fill_slots(tokens_BxL, slots, sampled_BxK)
    inputs = {**batch, "tokens": corrupted_BxL}
    out["corrupted_BxL"] = corrupted_BxL
    out["detect_BxL"] = bound.detect_logits(inputs, None)
  return out


def probe_classes(
  language: Language, words_RxL: np.ndarray, encoded_RxLxD: np.ndarray
) -> dict[str, float]:
  """Fits probes on half of the lines and tests them on the other half.

  Args:
    language: of the lines.
    words_RxL: the lines.
    encoded_RxLxD: hidden states of the words, none of which was masked.

  Returns:
    The accuracies `probe` and `probe_new_words` of `measure_model`.
  """
  word_M = words_RxL.ravel()
  class_M = language.class_V[word_M]
  hidden_MxD = encoded_RxLxD.reshape(len(word_M), -1).astype(np.float64)
  is_train_M = np.arange(len(word_M)) < len(word_M) // 2
  # Sorting by class, then by share: the last word of a class is the likeliest.
  order_V = np.lexsort([language.share_V, language.class_V])
  is_main_V = np.zeros(len(order_V), bool)
  is_main_V[order_V[np.append(np.diff(language.class_V) > 0, True)]] = True
  is_main_M = is_main_V[word_M]
  fit = functools.partial(measures.probe_accuracy, hidden_MxD, class_M)
  return {
    "probe": fit(is_train_M, ~is_train_M),
    "probe_new_words": fit(is_train_M & is_main_M, ~is_train_M & ~is_main_M),
  }
