"""Encodes lines with TensorFlow Text where its ids are known to equal BERT's.

FastBertTokenizer differs from BERT: it folds characters by NFKC (superscripts,
ligatures, the final sigma), keeps control and private-use characters, uses a
newer list of punctuation, and limits words by bytes. So each new character is
checked with both tokenizers. Lines with a character on which they differ, or
with a long word, go to the Rust tokenizer. It is enough to check characters:
neither tokenizer treats a character by its neighbors, except combining marks,
which decomposition reorders and which therefore count as different.
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

from truenegs_jax.data.tokens import tokenizer as tokenizer_lib
from truenegs_jax.data.tokens.spans import Ids, interleave
from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import InputError

# At most 99 after decomposition (three letters per Hangul syllable), which is
# within BERT's limit of 100.
MAX_CHARACTERS = 33
_MAX_BYTES = 1000  # TensorFlow's limit, which MAX_CHARACTERS never reaches
_PROBE_VOCAB = (*tokenizer_lib.SPECIALS, "a", "##a")
# Ids of "a{c}a {c}" if c becomes a space, and if it is removed.
_DROPPED = ([5, 5], [5, 6])
_SURROGATES = range(0xD800, 0xE000)
_UNCHECKED, _EQUAL, _DIFFERENT = range(3)


class TfTextEncoder:
  """Encodes lines with tensorflow-text, on one core and no GPU."""

  def __init__(
    self, tokenizer: Tokenizer, fallback: Callable[[list[str]], Ids]
  ) -> None:
    """Imports TensorFlow; `fallback` encodes lines that it might get wrong.

    Raises:
      InputError: tensorflow-text is missing or does not support `tokenizer`.
    """
    lowercase = tokenizer.lowercase
    if tokenizer.strip_accents != lowercase:
      raise InputError(
        "data.tokenizer='tf_text' does not support"
        f" strip_accents={not lowercase} with lowercase={lowercase}."
        " Set --config.data.tokenizer=fast."
      )
    text = _import_tf_text()
    self._fallback = fallback
    self._tokenizer = _fast_bert_tokenizer(text, tokenizer)
    self._bert_probe = tokenizer_lib.make_tokenizer(
      _PROBE_VOCAB, lowercase=lowercase
    )
    self._probe = _fast_bert_tokenizer(text, self._bert_probe)
    self._bert_normalizer = normalizers.BertNormalizer(
      lowercase=lowercase, handle_chinese_chars=False
    )
    self._normalizer = text.FastBertNormalizer(
      lower_case_nfd_strip_accents=lowercase
    )
    self._state_of_code = np.full(0x110000, _UNCHECKED, np.uint8)

  def encode(self, lines: list[str]) -> Ids:
    """Returns the ids of all lines, and the number of ids of each line."""
    is_equal_N = self._have_equal_ids(lines)
    if is_equal_N.all():
      return _encode(self._tokenizer, lines)
    equal = list(itertools.compress(lines, is_equal_N))
    others = list(itertools.compress(lines, ~is_equal_N))
    ids = _encode(self._tokenizer, equal)
    return interleave(is_equal_N, ids, self._fallback(others))

  def _have_equal_ids(self, lines: list[str]) -> np.ndarray:
    """Returns bool `[N]`: which lines both tokenizers encode alike."""
    text = "\n".join(lines).encode("utf-32-le", "surrogatepass")
    codes_C = np.frombuffer(text, np.uint32)
    states_C = self._state_of_code[codes_C]
    if (unchecked_C := states_C == _UNCHECKED).any():
      self._check_characters(np.unique(codes_C[unchecked_C]))
      states_C = self._state_of_code[codes_C]
    is_gap_C = (codes_C == ord(" ")) | (codes_C == ord("\n"))
    ends_G = np.append(np.flatnonzero(is_gap_C), len(codes_C))
    is_long_G = np.diff(ends_G, prepend=-1) > MAX_CHARACTERS + 1
    bad = np.append(np.flatnonzero(states_C != _EQUAL), ends_G[is_long_G])
    ends_N = np.cumsum([len(line) + 1 for line in lines]) - 1
    is_equal_N = np.ones(len(lines), bool)
    is_equal_N[np.searchsorted(ends_N, bad)] = False
    return is_equal_N

  def _check_characters(self, codes_N: np.ndarray) -> None:
    """Records which characters both tokenizers treat alike in any context."""
    self._state_of_code[codes_N] = _DIFFERENT
    # TensorFlow takes UTF-8, which a lone surrogate does not have.
    codes = [code for code in codes_N.tolist() if code not in _SURROGATES]
    if not codes:
      return
    characters = list(map(chr, codes))
    texts = [f"a{c}a {c}" for c in characters]
    ids_T, lengths_N = _encode(self._probe, texts)
    tf_ids = np.split(ids_T, np.cumsum(lengths_N)[:-1])
    bert_ids = self._bert_probe.encode_lines(texts)
    tf_normal = self._normalizer.normalize(characters).numpy().tolist()
    for i, code in enumerate(codes):
      if tf_ids[i].tolist() != bert_ids[i]:
        continue
      # Ids are enough to recognize dropped characters. They do not show what
      # any other character becomes, so its normal forms are compared too.
      bert_normal = self._bert_normalizer.normalize_str(characters[i])
      if bert_ids[i] in _DROPPED or (
        tf_normal[i].decode() == bert_normal
        and not any(map(unicodedata.combining, bert_normal))
      ):
        self._state_of_code[code] = _EQUAL


def _import_tf_text() -> ModuleType:
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no warnings about GPUs
  try:
    import tensorflow
    import tensorflow_text
  except ImportError as error:
    raise InputError(
      f"data.tokenizer='tf_text' needs a package that is missing ({error})."
      " Run `pip install 'truenegs_jax[tf-text]'` (2 GB), or set"
      " --config.data.tokenizer=fast, which gives the same ids."
    ) from error
  with contextlib.suppress(RuntimeError):  # TensorFlow is already configured
    tensorflow.config.set_visible_devices([], "GPU")  # or it takes all memory
    tensorflow.config.threading.set_intra_op_parallelism_threads(1)
    tensorflow.config.threading.set_inter_op_parallelism_threads(1)
  return tensorflow_text


def _fast_bert_tokenizer(text: ModuleType, tokenizer: Tokenizer) -> Any:
  # BERT never uses an entry with white space, as no word contains any, but
  # TensorFlow would match it. TensorFlow ignores entries that mix letters with
  # punctuation, so such a name takes its place.
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
      f"data.vocab cannot be used by tensorflow-text ({error}). Set"
      " --config.data.tokenizer=fast."
    ) from error


def _encode(tokenizer: Any, texts: list[str]) -> Ids:
  if not texts:  # TensorFlow would take them for numbers
    return np.empty(0, np.int32), np.empty(0, np.int64)
  ragged = tokenizer.tokenize(texts)
  return ragged.flat_values.numpy(), ragged.row_lengths().numpy()
