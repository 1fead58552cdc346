"""Lines by TensorFlow Text's FastBertTokenizer, where it agrees with BERT.

It folds characters by NFKC (superscripts, ligatures, the final sigma), keeps
control and private-use characters, knows newer punctuation, and counts the
length of a word in bytes. So a character is tried with both tokenizers when it
is first met, and lines with one that they differ in, or with a long word, are
left to the Rust tokenizer. What either makes of a character does not depend on
its neighbours, but for marks that decomposition puts in order; so this proves
lines.
"""

import contextlib
import itertools
import os
import unicodedata
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from tokenizers import normalizers

from truenegs_jax.data.tokens.tokenizer import (
  SPECIALS,
  Tokenizer,
  make_tokenizer,
)
from truenegs_jax.data.tokens.word_cache import interleave
from truenegs_jax.runtime.errors import InputError

# Decomposed (a Hangul syllable is three letters) a word is within BERT's limit
# of 100.
MAX_CHARACTERS = 33
_MAX_BYTES = 1000  # TensorFlow's own limit, out of the way
_PROBE_VOCAB = (*SPECIALS, "a", "##a")
# Ids of "a{c}a {c}" where c parts words, and where it is dropped.
_NOTHING_LEFT = ([5, 5], [5, 6])
_SURROGATES = range(0xD800, 0xE000)
EncodeLines = Callable[[list[str]], tuple[np.ndarray, np.ndarray]]
_UNTRIED, _PROVEN, _DIFFERENT = range(3)


class TfTextEncoder:
  """Ids of lines; imports TensorFlow, and keeps it to one core."""

  def __init__(self, tokenizer: Tokenizer, others: EncodeLines) -> None:
    """Args: others: ids of the lines that TensorFlow might get wrong.

    Raises:
      InputError: no tensorflow-text here, or it cannot do what is asked.
    """
    uncased = tokenizer.lowercase
    if tokenizer.strip_accents != uncased:
      raise InputError(
        'data.tokenizer="tf_text" strips accents exactly where it lower-cases;'
        f" lowercase={uncased} with strip_accents={tokenizer.strip_accents}"
        ' needs data.tokenizer="fast".'
      )
    text = _import_tf_text()
    self._others = others
    self._tokenizer = _fast_bert_tokenizer(text, tokenizer)
    self._bert_probe = make_tokenizer(_PROBE_VOCAB, lowercase=uncased)
    self._probe = _fast_bert_tokenizer(text, self._bert_probe)
    self._bert_normalizer = normalizers.BertNormalizer(
      lowercase=uncased, handle_chinese_chars=False
    )
    self._normalizer = text.FastBertNormalizer(
      lower_case_nfd_strip_accents=uncased
    )
    self._state_of_code = np.full(0x110000, _UNTRIED, np.uint8)

  def ids(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Ids of lines, and how many each has."""
    is_proven_N = self._are_proven(lines)
    if is_proven_N.all():
      return _ids(self._tokenizer, lines)
    proven = list(itertools.compress(lines, is_proven_N))
    others = list(itertools.compress(lines, ~is_proven_N))
    return interleave(
      is_proven_N, _ids(self._tokenizer, proven), self._others(others)
    )

  def _are_proven(self, lines: list[str]) -> np.ndarray:
    text = "\n".join(lines)
    codes_C = np.frombuffer(
      text.encode("utf-32-le", "surrogatepass"), np.uint32
    )
    states_C = self._state_of_code[codes_C]
    if (untried_C := states_C == _UNTRIED).any():
      self._try(np.unique(codes_C[untried_C]))
      states_C = self._state_of_code[codes_C]
    is_gap_C = (codes_C == ord(" ")) | (codes_C == ord("\n"))
    ends_G = np.append(np.flatnonzero(is_gap_C), len(codes_C))
    is_long_G = np.diff(ends_G, prepend=-1) > MAX_CHARACTERS + 1
    bad = np.append(np.flatnonzero(states_C != _PROVEN), ends_G[is_long_G])
    ends_N = np.cumsum([len(line) + 1 for line in lines]) - 1
    are_proven_N = np.ones(len(lines), bool)
    are_proven_N[np.searchsorted(ends_N, bad)] = False
    return are_proven_N

  def _try(self, codes_N: np.ndarray) -> None:
    """Finds out which characters are treated alike wherever they stand."""
    self._state_of_code[codes_N] = _DIFFERENT
    # A lone surrogate has no UTF-8 to be tried with.
    codes = [code for code in codes_N.tolist() if code not in _SURROGATES]
    if not codes:
      return
    characters = list(map(chr, codes))
    texts = [f"a{c}a {c}" for c in characters]
    ids_T, lengths_N = _ids(self._probe, texts)
    found = np.split(ids_T, np.cumsum(lengths_N)[:-1])
    expected = self._bert_probe.encode_lines(texts)
    normal = self._normalizer.normalize(characters).numpy().tolist()
    for i, code in enumerate(codes):
      bert_normal = self._bert_normalizer.normalize_str(characters[i])
      # Ids tell whether a character parts words or is dropped. Of any other
      # they hide what it becomes, and whether it may change places.
      if found[i].tolist() == expected[i] and (
        expected[i] in _NOTHING_LEFT
        or normal[i].decode() == bert_normal
        and not any(map(unicodedata.combining, bert_normal))
      ):
        self._state_of_code[code] = _PROVEN


def _import_tf_text() -> ModuleType:
  # Without this it tells of the GPUs that it cannot find.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  try:
    import tensorflow
    import tensorflow_text
  except ImportError as error:
    raise InputError(
      'data.tokenizer="tf_text" needs a package that is not here'
      f" ({error}): pip install 'truenegs_jax[tf_text]', which takes 2 GB, or"
      ' set data.tokenizer="fast": the ids are the same.'
    ) from error
  with contextlib.suppress(RuntimeError):  # whoever used it before has chosen
    tensorflow.config.set_visible_devices([], "GPU")  # it would take them all
    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
  return tensorflow_text


def _fast_bert_tokenizer(text: ModuleType, tokenizer: Tokenizer) -> Any:
  # No word holds white space, yet TensorFlow would find "a b" in a text. It
  # leaves out entries with punctuation inside.
  vocab = [
    f"[{i},]" if any(map(str.isspace, entry)) else entry
    for i, entry in enumerate(tokenizer.vocab)
  ]
  try:
    return text.FastBertTokenizer(
      vocab,
      max_bytes_per_word=_MAX_BYTES,
      token_out_type=np.int32,
      lower_case_nfd_strip_accents=tokenizer.lowercase,
    )
  except (RuntimeError, ValueError) as error:
    raise InputError(
      f"tensorflow-text cannot use this vocabulary ({error}): set"
      ' data.tokenizer="fast".'
    ) from error


def _ids(tokenizer: Any, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
  if not texts:  # TensorFlow would take them for numbers
    return np.empty(0, np.int32), np.empty(0, np.int64)
  found = tokenizer.tokenize(texts)
  return found.flat_values.numpy(), found.row_lengths().numpy()
