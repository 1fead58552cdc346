"""Builds synonym tables, shows their lists and what they cover of a text.

  truenegs synonyms --vocab=vocab.txt \\
      --sources='wordnet | pairs path=ppdb.tsv' --word=primary,stay \\
      --output=table.npz  # for negatives.sources="table path=table.npz"

The flags mean the same as in a config's `negatives` and `data`.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from absl import flags
from rich.console import Console

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.data.corpus.language import check_code
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.tokens import tokenizer as tokenizer_lib
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.synonyms import run_table, wordnet
from truenegs_jax.synonyms.table import SynonymTable, open_output
from truenegs_jax.synonyms.vocabulary import is_word

# Flags that are options of a table, by their names.
OPTIONS = ("language", "wordnet_dir", "stop_words", *run_table.SWITCHES)


def run(values: flags.FlagValues, console: Console) -> None:
  """Builds, saves and shows a table as the flags say."""
  say = functools.partial(console.print, soft_wrap=True)
  if values.output:
    open_output("--output", values.output)  # before the work
  check_code(values.language)
  if not values.vocab:
    raise InputError("--vocab is missing. Set --vocab=FILE.")
  options: dict[str, Any] = {name: values[name].value for name in OPTIONS}
  request = run_table.TableRequest(values.sources, key="--sources", **options)
  if request.model:
    raise InputError(
      f"--sources={values.sources!r}: the source model has no pairs before a"
      " model is trained with it. Use other sources."
    )
  request.check()
  accents = tokenizer_lib.ACCENTS[values.accents]
  tokenizer = tokenizer_lib.load_tokenizer(
    values.vocab, lowercase=values.lowercase, strip_accents=accents
  )
  with progress.working(console, "Looking up synonyms"):
    table = request.build(tokenizer)
  lines = describe_table(table)
  first = request.union[0][0]
  if first.name == "wordnet":
    with wordnet.session(first.options["folder"]) as reader:
      known = sum(wordnet.is_known(token, reader) for token in table.tokens)
    lines["in WordNet"] = (
      f"{known:,} tokens have a synset: {known / table.vocab_size:.2%} of the"
      " vocabulary (the paper's footnote 5, of BERT's vocabulary: 62.51%)"
    )
  if values.text:
    with progress.working(console, "Counting the tokens of the text"):
      counts_V = _count_tokens(values.text, tokenizer)
    described = run_table.describe_text(request, table, counts_V)
    lines["text"], lines["warning"] = described
  for name, line in lines.items():
    if line:
      say(f"{name:<12}{line}")
  if values.output:
    table.save(values.output)
    say(f"saved as '{values.output}'")
  for line in describe_lists(table, tokenizer, values.word):
    say(line)


def describe_table(table: SynonymTable) -> dict[str, str]:
  """Describes sources, counts and hash of a table, by subject."""
  size, num_words = table.vocab_size, sum(map(is_word, table.tokens))
  longest = table.tokens[int(table.lengths_V.argmax())]
  mean = table.num_pairs / max(table.num_rows, 1)
  return {
    "sources": table.source,
    "vocabulary": f"{size:,} tokens, {num_words:,} of them whole words",
    "with a list": f"{table.num_rows:,} tokens: {table.num_rows / size:.2%} of"
    " the vocabulary",
    "pairs": f"{table.num_pairs:,}; a list has {mean:.1f} (most {table.width}:"
    f" {longest})",
    "hash": table.fingerprint,
  }


def describe_lists(
  table: SynonymTable, tokenizer: tokenizer_lib.Tokenizer, words: Iterable[str]
) -> Iterator[str]:
  """Yields the synonyms of each word, or why there are none."""
  for word in filter(None, words):
    word = tokenizer.normalize(word) if is_word(word) else word
    if word not in tokenizer.vocab:
      yield f"{word}: not in the vocabulary"
    elif synonyms := table.synonyms(word):
      yield f"{word} ({len(synonyms)}): {', '.join(synonyms)}"
    else:
      yield f"{word}: none; a stop word, no word, or not in the sources"


def _count_tokens(text: str, tokenizer: tokenizer_lib.Tokenizer) -> np.ndarray:
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
  choices, text = [*tokenizer_lib.ACCENTS], "Like data.accents."
  flags.DEFINE_enum("accents", "auto", choices, text, flag_values=values)
  string_flag("wordnet_dir", "", "Folder of WordNet. Default: NLTK's path.")
  switch("keep_stop_words", False, "Give stop words lists, too.")
  string_flag("stop_words", "", "File, one word a line; replaces --language's.")
  switch("symmetric", False, "Add the reverse of every pair.")
  switch("include_self", False, "Add every word to its own list.")
  string_flag("output", "", "Save the table: FILE.npz or FILE.safetensors.")
  string_flag("text", "", "Text to measure coverage of, like data.sources.")
  flags.DEFINE_list("word", [], "Show the lists of words.", flag_values=values)


if __name__ == "__main__":
  define_flags()
  flags_lib.run(main)
