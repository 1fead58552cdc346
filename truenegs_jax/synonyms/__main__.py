"""Builds synonym tables, shows their lists and compares them.

  python -m truenegs_jax.synonyms --vocab=vocab.txt
      [--sources='wordnet | pairs path=ppdb.tsv'] [--wordnet_dir=FOLDER]
      [--accents=keep]            # the vocabulary has accents
      [--language=fr]             # decides the default sources and stop words
      [--keep_stop_words] [--stop_words=FILE] [--symmetric] [--include_self]
      [--output=table.npz]        # for negatives.sources="table path=table.npz"
      [--word=primary,stay]       # shows their lists, or why there is none
      [--compare='vectors path=glove.6B.50d.txt; pairs path=ppdb.tsv']
      [--text=corpus.txt]         # how many of its tokens have synonyms

The flags mean the same as in a config's `negatives` and `data`. A saved table
as the only source, 'table path=table.npz', is used unchanged unless one of
--keep_stop_words, --stop_words, --symmetric and --include_self is given.
"""

from truenegs_jax.runtime import signals

if __name__ == "__main__":
  signals.exit_at_signals()  # before the imports that take time

import dataclasses
import functools
import json
import string
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console
from rich.table import Table

from truenegs_jax.data.corpus.language import check_code
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.tokens.tokenizer import (
  ACCENTS,
  Tokenizer,
  load_tokenizer,
)
from truenegs_jax.runtime import flags as flags_lib
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.runtime.files import check_local
from truenegs_jax.synonyms import (
  coverage,
  run_table,
  sources,
  table,
)
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import fingerprint, is_word

# Flags that change a table's content, named like the table's options.
OPTIONS = (*run_table.SWITCHES, "stop_words")
NUM_EXAMPLES = 8  # of the pairs that only one of two tables has


def run(values: flags.FlagValues, console: Console) -> None:
  """Builds, saves, shows and compares tables as the flags say.

  Raises:
    TrueNegsError: see its subclasses for the exit codes.
  """
  check_local("--output", values.output)
  check_code(values.language)
  if not values.vocab:
    raise InputError("--vocab is missing. Set --vocab=FILE.")
  request = _request(values, values.sources, "--sources")
  texts = filter(None, values.compare.split(";"))
  others = [_request(values, text, "--compare") for text in texts]
  tokenizer = load_tokenizer(
    values.vocab,
    lowercase=values.lowercase,
    strip_accents=ACCENTS[values.accents],
  )
  tokens = tokenizer.vocab
  for each in (request, *others):
    run_table.check_request(each)
  counts_V = None
  if values.text:
    with progress.working(console, "Counting the tokens of the text"):
      counts_V = _count_tokens(values.text, tokenizer)
  report = functools.partial(console.print, "note:", soft_wrap=True)
  start = time.perf_counter()
  with progress.working(console, "Looking up synonyms"):
    pairs = list(run_table.find_pairs(request, tokenizer, report))
    built = _build(values, request, pairs, tokens)
  secs = time.perf_counter() - start
  lines, warning = coverage.describe(request, built, tokens, counts_V)
  console.print(render_summary(built, tokens, secs, lines))
  if warning:
    console.print(warning, soft_wrap=True)
  if values.output:
    built.save(values.output)
    console.print(f"saved as '{values.output}'", soft_wrap=True)
  if values.word:
    symmetric = None
    if not built.options.get("symmetric") and not _is_saved(values, request):
      change = dataclasses.replace(request, symmetric=True)
      symmetric = run_table.build(change, pairs, tokens)
    stops = _excluded_stop_words(built, request.load_stop_words())
    console.print(render_lists(built, symmetric, tokenizer, values.word, stops))
  if others:
    tables = [built]
    for each in others:
      with progress.working(console, f"Looking up synonyms in {each.sources}"):
        other_pairs = run_table.find_pairs(each, tokenizer, report)
        tables.append(_build(values, each, other_pairs, tokens))
    console.print(render_overlaps(tables))
    console.print(render_examples(tables, tokens))


def render_summary(
  built: SynonymTable,
  tokens: Sequence[str],
  secs: float,
  coverage_lines: Mapping[str, str],
) -> Table:
  """Renders counts, sizes and hash of a table that was built in `secs`."""
  options = dict(sorted(built.options.items()))
  size, width = built.vocab_size, built.width
  words = sum(map(is_word, tokens))
  lengths_V = built.lengths_V
  lengths_N = lengths_V[lengths_V > 0] if built.num_rows else np.zeros(1, int)
  bits_mib = size * -(-size // 32) * 4 / 2**20
  ids_mib = size * width * 4 / 2**20
  lines = {
    "sources": built.source,
    "options": ", ".join(f"{k} {json.dumps(v)}" for k, v in options.items()),
    "vocabulary": f"{size:,} tokens, {words:,} of them whole words",
    "with a list": f"{built.num_rows:,} tokens: {built.num_rows / size:.2%} of"
    f" the vocabulary, {built.num_rows / max(words, 1):.2%} of the words",
    **coverage_lines,
    "pairs": f"{built.num_pairs:,}; a list has {lengths_N.mean():.1f} (median"
    f" {np.median(lengths_N):.0f}, most {lengths_N.max()}:"
    f" {tokens[int(lengths_V.argmax())]})",
    "on a device": f"bits {bits_mib:,.1f} MiB, ids {ids_mib:,.1f} MiB; auto"
    f" chooses {table.choose_layout(size, width, 'auto')}",
    "hash": built.fingerprint,
    "built in": f"{secs:.1f} s",
  }
  grid = Table(box=None, show_header=False, pad_edge=False)
  grid.add_column(style="bold", no_wrap=True)
  grid.add_column(overflow="fold")
  for name, text in lines.items():
    grid.add_row(name, text)
  return grid


def render_lists(
  built: SynonymTable,
  symmetric: SynonymTable | None,
  tokenizer: Tokenizer,
  words: Iterable[str],
  excluded: Collection[str],
) -> Table:
  """Renders the synonym list of each word, or why there is none.

  `symmetric` is the table with reverse pairs, to show what they add, or None;
  `excluded` are the stop words without lists.
  """
  grid = Table(title="lists", title_justify="left", show_lines=True)
  grid.add_column("word", overflow="fold", ratio=1)
  grid.add_column("its synonyms", overflow="fold", ratio=3)
  if symmetric:
    grid.add_column("symmetric=true adds", overflow="fold", ratio=2)
  ids = {token: i for i, token in enumerate(tokenizer.vocab)}

  def join(token_ids: Iterable[int], separator: str = ", ") -> str:
    return separator.join(tokenizer.vocab[i] for i in token_ids)

  for word in filter(None, words):
    word = tokenizer.normalize(word) if is_word(word) else word
    if word not in ids:
      [pieces] = tokenizer.encode_lines([word])
      grid.add_row(word, f"(not in the vocabulary: {join(pieces, ' ')})")
      continue
    synonyms = built.synonym_ids(ids[word])
    row = [join(synonyms) or f"({_why_no_list(word, excluded)})"]
    if symmetric:
      all_ids = symmetric.synonym_ids(ids[word])
      row.append(join(i for i in all_ids if i not in synonyms))
    grid.add_row(f"{word} ({len(synonyms)})", *row)
  return grid


def render_overlaps(tables: Sequence[SynonymTable]) -> Table:
  """Renders how many pairs each table shares with the first, table A."""
  grid = Table(title="compared with A", title_justify="left")
  grid.add_column("sources", overflow="fold")
  for name in ("tokens", "pairs", "shared", "Jaccard", "of A", "of this"):
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


def render_examples(
  tables: Sequence[SynonymTable], tokens: Sequence[str]
) -> Table:
  """Renders pairs (gold → synonym) that only one of A and another table has."""
  grid = Table(title="pairs that only one has", title_justify="left")
  for name in ("in", "not in", "such as"):
    grid.add_column(name, overflow="fold")
  first, *others = zip(string.ascii_uppercase, tables, strict=False)
  for other in others:
    for (name, one), (absent, two) in ((first, other), (other, first)):
      keys_Q = np.setdiff1d(one.keys_Q, two.keys_Q)
      count = min(NUM_EXAMPLES, len(keys_Q))
      chosen = np.random.default_rng(0).choice(keys_Q, count, replace=False)
      pairs = (divmod(key, len(tokens)) for key in sorted(chosen.tolist()))
      text = ", ".join(f"{tokens[gold]} → {tokens[b]}" for gold, b in pairs)
      grid.add_row(name, absent, text or "(nothing)")
  return grid


def _request(
  values: flags.FlagValues, text: str, key: str
) -> run_table.TableRequest:
  """Builds the request of an expression with the options of the flags."""
  names = ("language", "wordnet_dir", *OPTIONS)
  options: dict[str, Any] = {name: values[name].value for name in names}
  request = run_table.TableRequest(sources=text, key=key, **options)
  if request.expression.model:
    raise InputError(
      f"{key}={text.strip()!r}: the source model has no pairs before a model is"
      " trained with it. Use other sources."
    )
  return request


def _is_saved(
  values: flags.FlagValues, request: run_table.TableRequest
) -> bool:
  """Returns whether the only source is a saved table, used unchanged."""
  names = [source.name for source in request.expression.sources]
  return names == ["table"] and not any(values[x].present for x in OPTIONS)


def _build(
  values: flags.FlagValues,
  request: run_table.TableRequest,
  pairs: sources.Pairs,
  tokens: Sequence[str],
) -> SynonymTable:
  """Builds the table of pairs, or loads a saved table for unchanged use."""
  if not _is_saved(values, request):
    return run_table.build(request, pairs, tokens)
  [source] = request.expression.sources
  return SynonymTable.load(sources.resolve_path(source.paths["path"]), tokens)


def _count_tokens(text: str, tokenizer: Tokenizer) -> np.ndarray:
  """Returns counts_V: occurrences of the tokens in a text, as data.sources."""
  counts_V = np.zeros(len(tokenizer.vocab), np.int64)
  for document in open_corpus(text, key="--text"):
    for ids in tokenizer.encode_lines(document.split("\n")):
      np.add.at(counts_V, ids, 1)
  return counts_V


def _excluded_stop_words(
  built: SynonymTable, words: frozenset[str]
) -> frozenset[str]:
  """Returns the stop words without lists; none if the table used others."""
  is_same = built.options.get("stop_words") == fingerprint(words)
  has_none = is_same and not built.options.get("keep_stop_words")
  return words if has_none else frozenset()


def _why_no_list(word: str, excluded: Collection[str]) -> str:
  if not is_word(word):
    return "a piece of words or a special token: none has a list"
  if word.lower() in excluded:
    return "a stop word: use --keep_stop_words to give it a list"
  return "the sources list no token of the vocabulary for it"


def main(argv: list[str]) -> None:
  """Runs the command; exit codes are those of `runtime.errors`."""
  del argv
  with flags_lib.exit_on_errors():
    # Without markup, because tokens may be in brackets.
    run(flags.FLAGS, progress.make_console())


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags of this command."""
  string_flag = functools.partial(flags.DEFINE_string, flag_values=values)
  switch = functools.partial(flags.DEFINE_boolean, flag_values=values)
  string_flag("sources", "auto", "Sources, as in negatives.sources.")
  string_flag("language", "en", "ISO 639-1; decides sources and stop words.")
  string_flag("vocab", "", "A vocab.txt, a folder, or a name on the hub.")
  switch("lowercase", True, "The vocabulary is in lower case.")
  flags.DEFINE_enum(
    "accents",
    "auto",
    list(ACCENTS),
    "Accents in the vocabulary, as in data.accents.",
    flag_values=values,
  )
  string_flag("wordnet_dir", "", "Folder of WordNet. Default: NLTK's path.")
  switch("keep_stop_words", False, "Give stop words lists, too.")
  string_flag(
    "stop_words", "", "File, one word per line; replaces those of --language."
  )
  switch("symmetric", False, "Add the reverse of every pair.")
  switch("include_self", False, "Add every word to its own list.")
  string_flag("output", "", "Save the table in this file, as .npz.")
  string_flag("compare", "", "Other sources, separated by semicolons.")
  string_flag("text", "", "Text to measure coverage of, as in data.sources.")
  flags.DEFINE_list("word", [], "Show the lists of words.", flag_values=values)


if __name__ == "__main__":
  define_flags()
  flags_lib.run(main)
