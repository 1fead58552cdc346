"""Builds synonym tables, shows their lists and what they cover of a text.

  python -m truenegs_jax.synonyms --vocab=vocab.txt
      [--sources='wordnet | pairs path=ppdb.tsv'] [--wordnet_dir=FOLDER]
      [--accents=keep]            # the vocabulary has accents
      [--language=fr]             # decides the default sources and stop words
      [--keep_stop_words] [--stop_words=FILE] [--symmetric] [--include_self]
      [--output=table.npz]        # for negatives.sources="table path=table.npz"
      [--word=primary,stay]       # shows their lists, or why there is none
      [--text=corpus.txt]         # how many of its tokens have synonyms

The flags mean the same as in a config's `negatives` and `data`. A saved table
as the only source, 'table path=table.npz', is used unchanged unless one of
--keep_stop_words, --stop_words, --symmetric and --include_self is given.
"""

from truenegs_jax.runtime import signals

if __name__ == "__main__":
  signals.exit_at_signals()  # before the imports that take time

import functools
import json
import time
from collections.abc import (
  Callable,
  Collection,
  Iterable,
  Mapping,
  Sequence,
)
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
from truenegs_jax.synonyms import run_table, sources, table
from truenegs_jax.synonyms.table import SynonymTable
from truenegs_jax.synonyms.vocabulary import fingerprint, is_word

# Flags that change a table's content, named like the table's options.
OPTIONS = (*run_table.SWITCHES, "stop_words")


def run(values: flags.FlagValues, console: Console) -> None:
  """Builds, saves and shows a table as the flags say."""
  check_local("--output", values.output)
  check_code(values.language)
  if not values.vocab:
    raise InputError("--vocab is missing. Set --vocab=FILE.")
  request = _request(values)
  tokenizer = load_tokenizer(
    values.vocab,
    lowercase=values.lowercase,
    strip_accents=ACCENTS[values.accents],
  )
  tokens = tokenizer.vocab
  run_table.check_request(request)
  counts_V = None
  if values.text:
    with progress.working(console, "Counting the tokens of the text"):
      counts_V = _count_tokens(values.text, tokenizer)
  report = functools.partial(console.print, "note:", soft_wrap=True)
  start = time.perf_counter()
  with progress.working(console, "Looking up synonyms"):
    built = _build(values, request, tokenizer, report)
  secs = time.perf_counter() - start
  lines, warning = run_table.describe_coverage(request, built, tokens, counts_V)
  console.print(render_summary(built, tokens, secs, lines))
  if warning:
    console.print(warning, soft_wrap=True)
  if values.output:
    built.save(values.output)
    console.print(f"saved as '{values.output}'", soft_wrap=True)
  if values.word:
    stops = request.load_stop_words()
    is_known = built.options.get("stop_words") == fingerprint(stops)
    if built.options.get("keep_stop_words") or not is_known:
      stops = frozenset()
    console.print(render_lists(built, tokenizer, values.word, stops))


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
  tokenizer: Tokenizer,
  words: Iterable[str],
  excluded: Collection[str],
) -> Table:
  """Renders the synonym list of each word, or why there is none.

  `excluded` are the stop words without lists.
  """
  grid = Table(title="lists", title_justify="left", show_lines=True)
  grid.add_column("word", overflow="fold", ratio=1)
  grid.add_column("its synonyms", overflow="fold", ratio=3)
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
    if not is_word(word):
      why = "a piece of words or a special token: none has a list"
    elif word.lower() in excluded:
      why = "a stop word: use --keep_stop_words to give it a list"
    else:
      why = "the sources list no token of the vocabulary for it"
    grid.add_row(f"{word} ({len(synonyms)})", join(synonyms) or f"({why})")
  return grid


def _request(values: flags.FlagValues) -> run_table.TableRequest:
  """Builds the request of --sources with the options of the other flags."""
  names = ("sources", "language", "wordnet_dir", *OPTIONS)
  options: dict[str, Any] = {name: values[name].value for name in names}
  request = run_table.TableRequest(key="--sources", **options)
  if request.expression.model:
    raise InputError(
      f"--sources={values.sources!r}: the source model has no pairs before a"
      " model is trained with it. Use other sources."
    )
  return request


def _build(
  values: flags.FlagValues,
  request: run_table.TableRequest,
  tokenizer: Tokenizer,
  report: Callable[[str], object],
) -> SynonymTable:
  """Builds the table; a saved table as the only source is loaded unchanged."""
  tokens, all_sources = tokenizer.vocab, request.expression.sources
  is_saved = [source.name for source in all_sources] == ["table"]
  if is_saved and not any(values[x].present for x in OPTIONS):
    path = sources.resolve_path(all_sources[0].paths["path"])
    return SynonymTable.load(path, tokens)
  pairs = run_table.find_pairs(request, tokenizer, report)
  return run_table.build(request, pairs, tokens)


def _count_tokens(text: str, tokenizer: Tokenizer) -> np.ndarray:
  """Returns counts_V: occurrences of the tokens in a text, as data.sources."""
  counts_V = np.zeros(len(tokenizer.vocab), np.int64)
  for document in open_corpus(text, key="--text"):
    for ids in tokenizer.encode_lines(document.split("\n")):
      np.add.at(counts_V, ids, 1)
  return counts_V


def main(argv: list[str]) -> None:
  """Runs the command; errors decide the exit code."""
  del argv
  with flags_lib.exit_on_errors():
    # Without markup, because tokens may be in brackets.
    run(flags.FLAGS, progress.make_console())


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags of this command."""
  string_flag = functools.partial(flags.DEFINE_string, flag_values=values)
  switch = functools.partial(flags.DEFINE_boolean, flag_values=values)
  string_flag("sources", "auto", "Sources, like negatives.sources.")
  string_flag("language", "en", "ISO 639-1; decides sources and stop words.")
  string_flag("vocab", "", "A vocab.txt, a folder, or a name on the hub.")
  switch("lowercase", True, "The vocabulary is in lower case.")
  flags.DEFINE_enum(
    "accents",
    "auto",
    list(ACCENTS),
    "Accents in the vocabulary, like data.accents.",
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
  string_flag("text", "", "Text to measure coverage of, like data.sources.")
  flags.DEFINE_list("word", [], "Show the lists of words.", flag_values=values)


if __name__ == "__main__":
  define_flags()
  flags_lib.run(main)
