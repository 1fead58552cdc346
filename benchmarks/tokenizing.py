"""Times `Encoder` against `datasets.map` with the tokenizer of transformers.

  python benchmarks/tokenizing.py [TEXT] [--vocab=VOCABULARY]

Both encode the lines of a UTF-8 text (default: generated) with one vocabulary
(default: trained on the text), on one core and in turns, A B B A. "peer", the
`datasets.map`, returns only ids, which is fastest. "plain" is `tokenizers`
without the cache of words, "first" a new `Encoder` in every turn, "again" one
that has read the text before, "rows" the way from the text to finished rows.
The ids are compared. Times are of the processor. A ratio is the median over the
turns, with minimum and maximum.
"""

import argparse
import functools
import itertools
import lzma
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it warns if PyTorch is missing

import datasets  # noqa: E402
import numpy as np  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402

from truenegs_jax.data import tokenizer as tokenizer_lib  # noqa: E402
from truenegs_jax.data import tokenizer_files  # noqa: E402
from truenegs_jax.data import vocabulary as vocabulary_lib  # noqa: E402
from truenegs_jax.data.encoder import Encoder  # noqa: E402
from truenegs_jax.data.prepare import prepare  # noqa: E402

Tokenizer = tokenizer_lib.Tokenizer
Ids = tuple[np.ndarray, np.ndarray]  # of all lines, and their number per line


def main(argv: Sequence[str] | None = None) -> int:
  """Prints speeds and ratios; returns 1 if the ids differ."""
  args = _parse_arguments(argv)
  if hasattr(os, "sched_setaffinity"):  # Linux
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
  lines = _read_lines(args.text, round(args.megabytes * 1e6))
  size_mb = sum(len(line.encode()) + 1 for line in lines) / 1e6
  tokenizer = _make_tokenizer(args.vocab, lines)

  calls: dict[str, Callable[[], Any]] = {
    "peer": _make_peer(tokenizer, lines),
    "plain": functools.partial(_encode_plain, tokenizer, lines),
    "first": lambda: Encoder(tokenizer).encode(lines),
    "again": functools.partial(Encoder(tokenizer).encode, lines),
    "rows": functools.partial(_prepare, tokenizer, lines),
  }
  # These calls also warm up.
  expected, *others, _ = (call() for call in calls.values())
  if not all(all(map(np.array_equal, expected, ids)) for ids in others):
    print("error: The ids differ.", file=sys.stderr)
    return 1
  num_ids = len(expected[0])
  print(f"{size_mb:.1f} MB, {len(lines):,} lines, {num_ids:,} ids: equal")
  secs: dict[str, list[float]] = {name: [] for name in calls}
  for turn in range(args.rounds):
    for name in list(calls)[:: -1 if turn % 2 else 1]:
      start = time.process_time()
      calls[name]()
      secs[name].append(time.process_time() - start)
  for name, values in secs.items():
    mb_per_s = size_mb / np.median(values)
    ratios = np.divide(secs["peer"], values)
    ratio = f"{np.median(ratios):5.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(f"{name:5}  {mb_per_s:6.1f} MB/s  ratio {ratio}")
  return 0


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("text", type=pathlib.Path, nargs="?")
  parser.add_argument("--vocab", help="a value of data.vocab")
  parser.add_argument("--megabytes", type=float, default=8, help="At most.")
  parser.add_argument("--rounds", type=int, default=6)
  return parser.parse_args(argv)


def _read_lines(path: pathlib.Path | None, size: int) -> list[str]:
  """Returns the lines of a file's first `size` bytes, or of random words."""
  if path:
    with (lzma.open if path.suffix == ".xz" else open)(path, "rb") as file:
      return file.read(size).decode("utf-8", "ignore").split("\n")
  rng = np.random.default_rng(0)
  letters = list("etaoinshrdlucmfwygpb")
  words = ["".join(rng.choice(letters, n)) for n in rng.integers(2, 10, 50_000)]
  ranks_W = np.minimum(rng.zipf(1.3, size // 7), len(words)) - 1
  text = [words[rank] for rank in ranks_W]
  return [" ".join(text[i : i + 80]) + "." for i in range(0, len(text), 80)]


def _make_tokenizer(vocab: str | None, lines: Sequence[str]) -> Tokenizer:
  if vocab:
    return tokenizer_files.load_tokenizer(vocab, lowercase=True)
  train = vocabulary_lib.train_vocabulary
  pieces = train(lines, size=8192, lowercase=True)
  return tokenizer_lib.make_tokenizer(pieces, lowercase=True)


def _encode_plain(tokenizer: Tokenizer, lines: list[str]) -> Ids:
  ids_N = tokenizer.encode_lines(lines)
  tokens_T = np.fromiter(itertools.chain.from_iterable(ids_N), np.int32)
  return tokens_T, np.array([*map(len, ids_N)])


def _prepare(tokenizer: Tokenizer, lines: list[str]) -> None:
  """Prepares rows of 128 tokens from a file with the lines."""
  with tempfile.TemporaryDirectory() as folder:
    text = pathlib.Path(folder, "text.txt")
    text.write_text("\n".join(lines))
    tokenizer_files.write_tokenizer(tokenizer, text.parent)
    options = {"vocab": folder, "lowercase": tokenizer.lowercase}
    prepare(str(text), length=128, rows=f"{folder}/rows", **options)


def _make_peer(tokenizer: Tokenizer, lines: list[str]) -> Callable[[], Ids]:
  """Returns a call that encodes the lines with `datasets.map`."""
  datasets.disable_progress_bars()
  if tokenizer.definition:
    backend = tokenizers.Tokenizer.from_str(tokenizer.definition)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
  else:
    fast = transformers.BertTokenizer(
      {piece: i for i, piece in enumerate(tokenizer.vocab)},
      do_lower_case=tokenizer.lowercase,
    )
  data = datasets.Dataset.from_dict({"text": lines})

  def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
    encoding = fast(
      batch["text"],
      add_special_tokens=False,
      split_special_tokens=True,
      return_attention_mask=False,
      return_token_type_ids=False,
    )
    return {"ids": encoding["input_ids"]}

  def encode_lines() -> Ids:
    mapped = data.map(
      encode, batched=True, remove_columns=["text"], load_from_cache_file=False
    )
    # Arrow's arrays, so that no time is spent on Python lists.
    column = mapped.data.column("ids").combine_chunks()
    ends_N = np.asarray(column.offsets)
    return np.asarray(column.flatten()), np.diff(ends_N)

  return encode_lines


if __name__ == "__main__":
  sys.exit(main())
