"""Builds synonym tables, shows what they list and compares them.

  python -m truenegs_jax.synonyms --vocab=vocab.txt
      [--sources='wordnet | pairs path=ppdb.tsv'] [--wordnet_dir=FOLDER]
      [--keep_stop_words] [--stop_words=FILE] [--symmetric] [--include_self]
      [--output=table.npz]        # then: negatives.sources="table path=..."
      [--word=primary,stay]       # their lists, or why they have none
      [--compare='vectors path=glove.6B.50d.txt; pairs path=ppdb.tsv']

The flags are those of a config's `negatives` and `data`. A saved table that
stands alone, 'table path=table.npz', is taken as it is unless one of the flags
says what to make of its pairs.
"""

import functools
import json
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import app, flags
from rich.console import Console
from rich.table import Table

from truenegs_jax.data.tokens.tokenizer import Tokenizer, load_tokenizer
from truenegs_jax.runtime.errors import (
  SAVED_INTERRUPT,
  InputError,
  TrueNegsError,
  printable,
)
from truenegs_jax.synonyms import sources_spec, stop_words, table
from truenegs_jax.synonyms.sources import is_word

# Flags that make a table what it is, named as its options are.
OPTIONS = ("keep_stop_words", "stop_words", "symmetric", "include_self")
EXAMPLES = 8  # pairs that only one of two tables has


def run(f: flags.FlagValues, console: Console) -> None:
  """Does what the flags say.

  Raises:
    TrueNegsError: with the exit code that belongs to it.
  """
  if not f.vocab:
    raise InputError("--vocab is missing: a vocab.txt, a folder or a hub name.")
  first, *others = map(_parse, [f.sources, *filter(None, f.compare.split(";"))])
  tokenizer = load_tokenizer(f.vocab, lowercase=f.lowercase)
  for asked in (first, *others):
    sources_spec.check(asked, wordnet_dir=f.wordnet_dir)
  read = lambda asked: sources_spec.pairs_of(
    asked, tokenizer.vocab, wordnet_dir=f.wordnet_dir
  )
  make = functools.partial(_make, f, tokenizer.vocab)
  began = time.perf_counter()
  pairs = list(read(first))
  built = make(first, pairs)
  secs = time.perf_counter() - began
  console.print(summary(built, tokenizer.vocab, secs))
  if f.output:
    table.save_table(built, f.output)
    console.print(f"saved as {f.output}", soft_wrap=True)
  if f.word:
    is_closed = built.options.get("symmetric") or _is_saved(f, first)
    both_ways = None if is_closed else make(first, pairs, symmetric=True)
    skipped = _skipped(f, built)
    console.print(lists(built, both_ways, tokenizer, f.word, skipped=skipped))
  if others:
    tables = [built, *(make(other, read(other)) for other in others)]
    console.print(overlaps(tables))
    console.print(examples(tables, tokenizer.vocab))


def summary(
  built: table.SynonymTable, tokens: Sequence[str], secs: float
) -> Table:
  """Counts, hash and sizes of a table that was built in `secs` seconds."""
  options = dict(sorted(built.options.items()))
  size, width = built.vocab_size, built.width
  words = sum(map(is_word, tokens))
  lengths_V = table.lengths(built)
  lengths_N = lengths_V[lengths_V > 0] if built.num_rows else np.zeros(1, int)
  mib = lambda columns: f"{size * columns * 4 / 2**20:,.1f} MiB"
  lines = {
    "sources": built.source,
    "options": ", ".join(f"{k} {json.dumps(v)}" for k, v in options.items()),
    "vocabulary": f"{size:,} tokens, {words:,} of them whole words",
    "with a list": f"{built.num_rows:,} tokens: {built.num_rows / size:.2%} of"
    f" the vocabulary, {built.num_rows / max(words, 1):.2%} of the words",
    "pairs": f"{built.num_pairs:,}; a list has {lengths_N.mean():.1f} (median"
    f" {np.median(lengths_N):.0f}, most {lengths_N.max()}:"
    f" {tokens[int(lengths_V.argmax())]})",
    "on a device": f"bits {mib(-(-size // 32))}, ids {mib(width)}; auto takes"
    f" {table.choose_layout(size, width, 'auto')}",
    "hash": built.fingerprint,
    "built in": f"{secs:.1f} s",
  }
  made = Table(box=None, show_header=False, pad_edge=False)
  made.add_column(style="bold", no_wrap=True)
  made.add_column(overflow="fold")
  for name, text in lines.items():
    made.add_row(name, text)
  return made


def lists(
  built: table.SynonymTable,
  both_ways: table.SynonymTable | None,
  tokenizer: Tokenizer,
  words: Iterable[str],
  *,
  skipped: Collection[str],
) -> Table:
  """The list of each word, or why there is none.

  Args:
    both_ways: the same table with `symmetric`; None where `built` is that one,
      or was saved.
    skipped: stop words, if they have no lists.
  """
  made = Table(title="lists", title_justify="left", show_lines=True)
  made.add_column("word", overflow="fold", ratio=1)
  made.add_column("its synonyms", overflow="fold", ratio=3)
  if both_ways:
    made.add_column("symmetric=true adds", overflow="fold", ratio=2)
  ids = {token: i for i, token in enumerate(tokenizer.vocab)}
  for word in filter(None, words):
    word = word.lower() if tokenizer.lowercase and is_word(word) else word
    if word not in ids:
      [pieces] = tokenizer.encode_lines([word])
      shown = " ".join(tokenizer.vocab[i] for i in pieces)
      made.add_row(word, f"(not in the vocabulary; it is {shown})")
      continue
    found = table.synonyms_of(built, ids[word])
    added = table.synonyms_of(both_ways, ids[word]) if both_ways else []
    name = lambda some: ", ".join(tokenizer.vocab[i] for i in some)
    made.add_row(
      f"{word} ({len(found)})",
      name(found) or f"({_why_none(word, skipped)})",
      *([name(i for i in added if i not in found)] if both_ways else []),
    )
  return made


def overlaps(tables: Sequence[table.SynonymTable]) -> Table:
  """How many pairs each table shares with the first."""
  made = Table(title="compared with A", title_justify="left")
  made.add_column("sources", overflow="fold")
  for name in ("tokens", "pairs", "shared", "Jaccard", "of A's", "of its own"):
    made.add_column(name, justify="right")
  for letter, other in _lettered(tables):
    shared = len(np.intersect1d(tables[0].keys_Q, other.keys_Q))
    either = tables[0].num_pairs + other.num_pairs - shared
    made.add_row(
      f"{letter}: {other.source}",
      f"{other.num_rows:,}",
      f"{other.num_pairs:,}",
      f"{shared:,}",
      f"{shared / max(either, 1):.3f}",
      f"{shared / max(tables[0].num_pairs, 1):.1%}",
      f"{shared / max(other.num_pairs, 1):.1%}",
    )
  return made


def examples(
  tables: Sequence[table.SynonymTable], tokens: Sequence[str]
) -> Table:
  """Pairs, gold token first, that the first table has and another lacks, or the
  other way round: the same ones on every call."""
  made = Table(title="pairs that only one has", title_justify="left")
  made.add_column("in")
  made.add_column("not in")
  made.add_column("such as", overflow="fold")
  for letter, other in list(_lettered(tables))[1:]:
    for names, one, two in (
      (("A", letter), tables[0], other),
      ((letter, "A"), other, tables[0]),
    ):
      keys_Q = np.setdiff1d(one.keys_Q, two.keys_Q)
      count = min(EXAMPLES, len(keys_Q))
      some = np.random.default_rng(0).choice(keys_Q, count, replace=False)
      pairs = (divmod(key, len(tokens)) for key in sorted(some.tolist()))
      text = ", ".join(f"{tokens[gold]} → {tokens[b]}" for gold, b in pairs)
      made.add_row(*names, text or "(nothing)")
  return made


def _parse(text: str) -> sources_spec.Spec:
  asked = sources_spec.parse(text)
  if asked.model:
    raise InputError(
      f"{text.strip()}: the source model has pairs only once a model is trained"
      " with it; give others."
    )
  return asked


def _is_saved(f: flags.FlagValues, asked: sources_spec.Spec) -> bool:
  """Whether a saved table is asked for, and nothing else."""
  given = any(f[name].present for name in OPTIONS)
  return not given and [s.name for s in asked.sources] == ["table"]


def _make(
  f: flags.FlagValues,
  tokens: Sequence[str],
  asked: sources_spec.Spec,
  pairs: Iterable[sources_spec.Pair],
  **changes: bool,
) -> table.SynonymTable:
  """The table of pairs, or the saved one that is asked for."""
  if _is_saved(f, asked):
    path = sources_spec.located(asked.sources[0])["path"]
    return table.load_table(str(path), tokens)
  options: dict[str, Any] = {name: f[name].value for name in OPTIONS}
  options["stop_words"] = stop_words.load(f.stop_words)
  return table.build_table(
    pairs, tokens, source=asked.identity, **(options | changes)
  )


def _skipped(f: flags.FlagValues, built: table.SynonymTable) -> frozenset[str]:
  """The stop words that have no lists, as far as they are known."""
  words = stop_words.load(f.stop_words)
  is_known = built.options.get("stop_words") == stop_words.fingerprint(words)
  kept = built.options.get("keep_stop_words") or not is_known
  return frozenset() if kept else words


def _why_none(word: str, skipped: Collection[str]) -> str:
  if not is_word(word):
    return "a piece of words or a special token: none has a list"
  if word.lower() in skipped:
    return "a stop word: --keep_stop_words gives it a list"
  return "the sources list no token of the vocabulary for it"


def _lettered(
  tables: Sequence[table.SynonymTable],
) -> Iterator[tuple[str, table.SynonymTable]]:
  for i, one in enumerate(tables):
    yield chr(ord("A") + i), one


def main(argv: list[str]) -> None:
  """The verb; its exit codes are those of `truenegs_jax.runtime.errors`."""
  try:
    if len(argv) > 1:
      raise InputError(f"arguments not understood: {' '.join(argv[1:])}")
    # markup: a token may be in brackets.
    run(flags.FLAGS, Console(markup=False, highlight=False))
  except TrueNegsError as error:
    print(f"error: {printable(error)}", file=sys.stderr)
    sys.exit(error.exit_code)
  except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    sys.exit(SAVED_INTERRUPT)


def define() -> None:
  """Defines the flags."""
  flags.DEFINE_string("sources", "wordnet", "As negatives.sources of a config.")
  flags.DEFINE_string("vocab", "", "vocab.txt, a folder, or a name on the hub.")
  flags.DEFINE_boolean("lowercase", True, "The vocabulary is an uncased one.")
  flags.DEFINE_string("wordnet_dir", "", "WordNet; default: where NLTK looks.")
  flags.DEFINE_boolean("keep_stop_words", False, "They have lists, too.")
  flags.DEFINE_string("stop_words", "", "A word a line; default: English ones.")
  flags.DEFINE_boolean("symmetric", False, "Whoever is listed lists in turn.")
  flags.DEFINE_boolean("include_self", False, "Words list themselves.")
  flags.DEFINE_string("output", "", "Save the table here, as .npz.")
  flags.DEFINE_list("word", [], "Words whose lists to show.")
  flags.DEFINE_string("compare", "", "Other sources, parted by semicolons.")


def _parse_flags(argv: list[str]) -> list[str]:
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(InputError.exit_code)


if __name__ == "__main__":
  define()
  app.run(main, flags_parser=_parse_flags)
