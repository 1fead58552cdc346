"""Encodes plain lines with TensorFlow Text.

FastBertTokenizer differs from BERT beyond ASCII: it folds characters by NFKC
(superscripts, ligatures, the final sigma), keeps control and private-use
characters, and has a newer list of punctuation. It therefore gets only lines of
printable ASCII, on which both give the same ids.
"""

import contextlib
import os
from collections.abc import Callable

import numpy as np

from truenegs_jax.data.tokens.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import InputError

MAX_CHARACTERS = 100  # of a word; both give [UNK] for longer ones
Ids = tuple[np.ndarray, np.ndarray]  # of all lines, and their number per line


def is_plain(line: str) -> bool:
  """Tells lines that TensorFlow Text encodes like BERT."""
  return line.isascii() and line.isprintable()


def make_encode(tokenizer: Tokenizer) -> Callable[[list[str]], Ids]:
  """Makes a function that encodes plain lines, on one core and no GPU.

  Raises:
    InputError: tensorflow-text is missing or refuses the vocabulary.
  """
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
  # No word contains white space, but TensorFlow would match entries that do. It
  # ignores entries that mix letters with punctuation, so one takes their place.
  vocab = [
    f"[{i},]" if any(map(str.isspace, entry)) else entry
    for i, entry in enumerate(tokenizer.vocab)
  ]
  try:
    bert = tensorflow_text.FastBertTokenizer(
      vocab,
      max_bytes_per_word=MAX_CHARACTERS,
      token_out_type=np.int32,
      lower_case_nfd_strip_accents=tokenizer.lowercase,
    )
  except (RuntimeError, ValueError) as error:
    raise InputError(
      f"data.vocab cannot be used by tensorflow-text ({error}). Set"
      " --config.data.tokenizer=fast."
    ) from error

  def encode(lines: list[str]) -> Ids:
    if not lines:  # TensorFlow would take them for numbers
      return np.empty(0, np.int32), np.empty(0, np.int64)
    ragged = bert.tokenize(lines)
    return ragged.flat_values.numpy(), ragged.row_lengths().numpy()

  return encode
