"""How much sooner `Encoder` gives ids than `datasets.map` with transformers.

  python benchmarks/tokenizing.py [TEXT] [--vocab=vocab.txt] [--backend=fast]

Both take the lines of a UTF-8 text (generated, if none is named) to the ids of
one vocabulary (learned from the text, if none is named), in one process on one
core, in turns: A B B A A B B A. The peer is told to return only ids, which is
its fastest. Of `Encoder` there are two: "first" is a new one in every turn,
"again" has read the text before. The ids are compared; a ratio is the median
over the turns, with the least and the greatest. Text is lower-cased without
--cased.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # it wants to have PyTorch

import datasets  # noqa: E402
import numpy as np  # noqa: E402
import transformers  # noqa: E402

from truenegs_jax.data.tokens.fast_encoder import (
  BACKENDS,
  Encoder,  # noqa: E402
)
from truenegs_jax.data.tokens.tokenizer import (
  Tokenizer,
  load_tokenizer,
  make_tokenizer,
)
from truenegs_jax.data.tokens.train_vocabulary import train_vocabulary  # noqa: E402

Ids = tuple[np.ndarray, np.ndarray]  # of all lines, and how many each has


def main(argv: Sequence[str] | None = None) -> int:
  """Prints speeds and ratios; returns 1 where ids differ."""
  flags = _flags(argv)
  if hasattr(os, "sched_setaffinity"):  # Linux
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
  lines = _lines(flags.text, round(flags.megabytes * 1e6))
  size = sum(len(line.encode()) + 1 for line in lines) / 1e6
  tokenizer = _tokenizer(flags.vocab, lines, lowercase=not flags.cased)
  encoder = Encoder(tokenizer, flags.backend)
  runs: dict[str, Callable[[], Ids]] = {
    "peer": _peer(tokenizer, lines),
    "first": lambda: Encoder(tokenizer, flags.backend).encode(lines),
    "again": lambda: encoder.encode(lines),
  }
  found = [runs[name]() for name in runs]  # and all that is done once
  if not all(map(np.array_equal, found[0], found[1])):
    print("The ids differ.", file=sys.stderr)
    return 1
  print(f"{size:.1f} MB, {len(lines):,} lines, {len(found[0][0]):,} ids: equal")
  secs: dict[str, list[float]] = {name: [] for name in runs}
  for turn in range(flags.rounds):
    for name in list(runs)[:: -1 if turn % 2 else 1]:
      start = time.perf_counter()
      runs[name]()
      secs[name].append(time.perf_counter() - start)
  for name, values in secs.items():
    ratios = [a / b for a, b in zip(secs["peer"], values, strict=True)]
    print(
      f"{name:5}  {size / statistics.median(values):6.1f} MB/s  ratio"
      f" {statistics.median(ratios):5.2f} ({min(ratios):.2f} to"
      f" {max(ratios):.2f})"
    )
  return 0


def _flags(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("text", type=pathlib.Path, nargs="?")
  parser.add_argument("--vocab", help="vocab.txt, its folder, a hub name")
  parser.add_argument("--backend", choices=BACKENDS, default="fast")
  parser.add_argument("--cased", action="store_true")
  parser.add_argument("--megabytes", type=float, default=8, help="at most")
  parser.add_argument("--rounds", type=int, default=6)
  return parser.parse_args(argv)


def _lines(path: pathlib.Path | None, size: int) -> list[str]:
  if path:
    with path.open("rb") as file:
      return file.read(size).decode("utf-8", "ignore").split("\n")
  rng = np.random.default_rng(0)
  letters = list("etaoinshrdlucmfwygpb")
  words = ["".join(rng.choice(letters, n)) for n in rng.integers(2, 10, 50_000)]
  ranks_W = np.minimum(rng.zipf(1.3, size // 7), len(words)) - 1
  text = [words[rank] for rank in ranks_W]
  return [" ".join(text[i : i + 80]) + "." for i in range(0, len(text), 80)]


def _tokenizer(
  vocab: str | None, lines: Sequence[str], *, lowercase: bool
) -> Tokenizer:
  if vocab:
    return load_tokenizer(vocab, lowercase=lowercase)
  return make_tokenizer(
    train_vocabulary(lines, size=8192, lowercase=lowercase), lowercase=lowercase
  )


def _peer(tokenizer: Tokenizer, lines: list[str]) -> Callable[[], Ids]:
  datasets.disable_progress_bars()
  bert = transformers.BertTokenizer(
    {entry: i for i, entry in enumerate(tokenizer.vocab)},
    do_lower_case=tokenizer.lowercase,
  )
  data = datasets.Dataset.from_dict({"text": lines})

  def encode(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
    found = bert(
      batch["text"],
      add_special_tokens=False,
      split_special_tokens=True,
      return_attention_mask=False,
      return_token_type_ids=False,
    )
    return {"ids": found["input_ids"]}

  def run() -> Ids:
    mapped = data.map(
      encode, batched=True, remove_columns=["text"], load_from_cache_file=False
    )
    # As the arrow column has them: no lists of Python are made.
    column = mapped.data.column("ids").combine_chunks()
    ends_N = np.asarray(column.offsets)
    return np.asarray(column.flatten()), np.diff(ends_N)

  return run


if __name__ == "__main__":
  sys.exit(main())
