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
import string
import sys
import time
from collections.abc import Collection, Iterable, Sequence
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
from truenegs_jax.synonyms import sources, stop_words, table
from truenegs_jax.synonyms.stop_words import is_word
from truenegs_jax.synonyms.table import SynonymTable

# Flags that decide a table's content, named as its options are.
OPTIONS = ("keep_stop_words", "stop_words", "symmetric", "include_self")
EXAMPLES = 8  # pairs that only one of two tables has


def run(f: flags.FlagValues, console: Console) -> None:
  """Carries out what the flags ask for.

  Raises:
    TrueNegsError: with the exit code that belongs to it.
  """
  if not f.vocab:
    raise InputError("--vocab is missing: a vocab.txt, a folder or a hub name.")
  others = [_parse(text, "--compare") for text in f.compare.split(";") if text]
  specs = [_parse(f.sources, "--sources"), *others]
  tokenizer = load_tokenizer(f.vocab, lowercase=f.lowercase)
  for spec in specs:
    sources.check_sources(spec, wordnet_dir=f.wordnet_dir)
  read = functools.partial(
    sources.find_pairs, tokens=tokenizer.vocab, wordnet_dir=f.wordnet_dir
  )
  make = functools.partial(_make, f, tokenizer.vocab)
  began = time.perf_counter()
  pairs = list(read(specs[0]))
  built = make(specs[0], pairs)
  secs = time.perf_counter() - began
  console.print(summary(built, tokenizer.vocab, secs))
  if f.output:
    table.save_table(built, f.output)
    console.print(f"saved as {f.output}", soft_wrap=True)
  if f.word:
    is_closed = built.options.get("symmetric") or _is_saved(f, specs[0])
    both_ways = None if is_closed else make(specs[0], pairs, symmetric=True)
    skipped = _skipped(f, built)
    console.print(lists(built, both_ways, tokenizer, f.word, skipped=skipped))
  if others:
    tables = [built, *(make(spec, read(spec)) for spec in others)]
    console.print(overlaps(tables))
    console.print(examples(tables, tokenizer.vocab))


def summary(built: SynonymTable, tokens: Sequence[str], secs: float) -> Table:
  """Counts, hash and sizes of a table that was built in `secs` seconds."""
  options = dict(sorted(built.options.items()))
  size, width = built.vocab_size, built.width
  words = sum(map(is_word, tokens))
  lengths_V = table.count_synonyms(built)
  lengths_N = lengths_V[lengths_V > 0] if built.num_rows else np.zeros(1, int)
  bits, ids = (x * size * 4 / 2**20 for x in (-(-size // 32), width))
  lines = {
    "sources": built.source,
    "options": ", ".join(f"{k} {json.dumps(v)}" for k, v in options.items()),
    "vocabulary": f"{size:,} tokens, {words:,} of them whole words",
    "with a list": f"{built.num_rows:,} tokens: {built.num_rows / size:.2%} of"
    f" the vocabulary, {built.num_rows / max(words, 1):.2%} of the words",
    "pairs": f"{built.num_pairs:,}; a list has {lengths_N.mean():.1f} (median"
    f" {np.median(lengths_N):.0f}, most {lengths_N.max()}:"
    f" {tokens[int(lengths_V.argmax())]})",
    "on a device": f"bits {bits:,.1f} MiB, ids {ids:,.1f} MiB; auto takes"
    f" {table.choose_layout(size, width, 'auto')}",
    "hash": built.fingerprint,
    "built in": f"{secs:.1f} s",
  }
  grid = Table(box=None, show_header=False, pad_edge=False)
  grid.add_column(style="bold", no_wrap=True)
  grid.add_column(overflow="fold")
  for line in lines.items():
    grid.add_row(*line)
  return grid


def lists(
  built: SynonymTable,
  both_ways: SynonymTable | None,
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
  grid = Table(title="lists", title_justify="left", show_lines=True)
  grid.add_column("word", overflow="fold", ratio=1)
  grid.add_column("its synonyms", overflow="fold", ratio=3)
  if both_ways:
    grid.add_column("symmetric=true adds", overflow="fold", ratio=2)
  ids = {token: i for i, token in enumerate(tokenizer.vocab)}

  def names(some: Iterable[int]) -> str:
    return ", ".join(tokenizer.vocab[i] for i in some)

  for word in filter(None, words):
    word = word.lower() if tokenizer.lowercase and is_word(word) else word
    if word not in ids:
      [pieces] = tokenizer.encode_lines([word])
      shown = names(pieces).replace(",", "")
      grid.add_row(word, f"(not in the vocabulary; it is {shown})")
      continue
    synonyms = table.get_synonyms(built, ids[word])
    row = [names(synonyms) or f"({_why_none(word, skipped)})"]
    if both_ways:
      closed = table.get_synonyms(both_ways, ids[word])
      row.append(names(i for i in closed if i not in synonyms))
    grid.add_row(f"{word} ({len(synonyms)})", *row)
  return grid


def overlaps(tables: Sequence[SynonymTable]) -> Table:
  """How many pairs each table shares with the first, table A."""
  grid = Table(title="compared with A", title_justify="left")
  grid.add_column("sources", overflow="fold")
  for name in ("tokens", "pairs", "shared", "Jaccard", "of A's", "of its own"):
    grid.add_column(name, justify="right")
  for letter, other in zip(string.ascii_uppercase, tables, strict=False):
    shared = len(np.intersect1d(tables[0].keys_Q, other.keys_Q))
    either = tables[0].num_pairs + other.num_pairs - shared
    grid.add_row(
      f"{letter}: {other.source}",
      *(f"{count:,}" for count in (other.num_rows, other.num_pairs, shared)),
      f"{shared / max(either, 1):.3f}",
      f"{shared / max(tables[0].num_pairs, 1):.1%}",
      f"{shared / max(other.num_pairs, 1):.1%}",
    )
  return grid


def examples(tables: Sequence[SynonymTable], tokens: Sequence[str]) -> Table:
  """Pairs, gold token first, that the first table has and another lacks, or the
  other way round: the same ones on every call."""
  grid = Table(title="pairs that only one has", title_justify="left")
  for name in ("in", "not in", "such as"):
    grid.add_column(name, overflow="fold")
  first = ("A", tables[0])
  for other in zip(string.ascii_uppercase[1:], tables[1:], strict=False):
    for (name, one), (absent, two) in ((first, other), (other, first)):
      keys_Q = np.setdiff1d(one.keys_Q, two.keys_Q)
      count = min(EXAMPLES, len(keys_Q))
      some = np.random.default_rng(0).choice(keys_Q, count, replace=False)
      pairs = (divmod(key, len(tokens)) for key in sorted(some.tolist()))
      text = ", ".join(f"{tokens[gold]} → {tokens[b]}" for gold, b in pairs)
      grid.add_row(name, absent, text or "(nothing)")
  return grid


def _parse(text: str, key: str) -> sources.Expression:
  spec = sources.parse_expression(text, key=key)
  if spec.model:
    raise InputError(
      f"{key}: {text.strip()}: the source model has pairs only once a model is"
      " trained with it; give others."
    )
  return spec


def _is_saved(f: flags.FlagValues, spec: sources.Expression) -> bool:
  """Whether the table is a saved one, taken as it is."""
  is_changed = any(f[name].present for name in OPTIONS)
  return not is_changed and [s.name for s in spec.sources] == ["table"]


def _make(
  f: flags.FlagValues,
  tokens: Sequence[str],
  spec: sources.Expression,
  pairs: sources.Pairs,
  **changes: bool,
) -> SynonymTable:
  """The table of pairs, or the saved table that stands alone."""
  if _is_saved(f, spec):
    path = sources.resolve_options(spec.sources[0])["path"]
    return table.load_table(str(path), tokens)
  options: dict[str, Any] = {name: f[name].value for name in OPTIONS}
  options["stop_words"] = stop_words.load(f.stop_words)
  return table.build_table(
    pairs, tokens, source=spec.identity, **(options | changes)
  )


def _skipped(f: flags.FlagValues, built: SynonymTable) -> frozenset[str]:
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


def define(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags."""
  text = functools.partial(flags.DEFINE_string, flag_values=values)
  switch = functools.partial(flags.DEFINE_boolean, flag_values=values)
  text("sources", "wordnet", "As negatives.sources of a config.")
  text("vocab", "", "vocab.txt, a folder, or a name on the hub.")
  switch("lowercase", True, "The vocabulary is an uncased one.")
  text("wordnet_dir", "", "WordNet; default: where NLTK looks.")
  switch("keep_stop_words", False, "Give stop words lists, too.")
  text("stop_words", "", "File, one word per line; default: English ones.")
  switch("symmetric", False, "Synonyms list the words back.")
  switch("include_self", False, "Words list themselves.")
  text("output", "", "Save the table here, as .npz.")
  text("compare", "", "Other sources, separated by semicolons.")
  flags.DEFINE_list("word", [], "Words to show lists of.", flag_values=values)


def _parse_flags(argv: list[str]) -> list[str]:
  try:
    return flags.FLAGS(argv)
  except flags.Error as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(InputError.exit_code)


if __name__ == "__main__":
  define()
  app.run(main, flags_parser=_parse_flags)
