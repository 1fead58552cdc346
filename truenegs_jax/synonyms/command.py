"""Shows synonyms, builds their tables, and says what they cover of a text.

  truenegs synonyms primary stay  # WordNet's
  truenegs synonyms primary stay --vocab=runs/demo  # those of a run
  truenegs synonyms --vocab=vocab.txt --output=table.safetensors \\
      --sources='wordnet, pairs path=ppdb.tsv'

Other flags mean the same as in a config's `data` and `negatives`; those of text
are a run's own. negatives.sources='table path=table.safetensors' takes a table.
"""

import functools
import pathlib
import types
from collections.abc import Iterator

import numpy as np
from absl import flags
from rich.console import Console

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data import tokenizer_files
from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.words import read_words
from truenegs_jax.runtime import errors, progress
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.synonyms import run_table, wordnet
from truenegs_jax.synonyms.table import SynonymTable, open_output
from truenegs_jax.workdir.files import CONFIG, SYNONYMS


def run(words: list[str], values: flags.FlagValues, console: Console) -> None:
  """Looks words up in WordNet or, with a vocabulary, in a table."""
  if values.output:
    open_output("--output", values.output)  # before the work
  if values.vocab:
    lines = [*_describe_table(words, values)]
  else:
    lines = [*_read_wordnet(words, values)]
  console.print("\n".join(lines), soft_wrap=True)


def _read_wordnet(words: list[str], values: flags.FlagValues) -> Iterator[str]:
  """Yields what WordNet has for each word."""
  if not words or values.output or values.text or values["sources"].present:
    raise errors.InputError(
      "Set --vocab=FILE, or only name words to look up in WordNet, such as:"
      f" {errors.program()} synonyms primary."
    )
  reader = wordnet.open_wordnet()
  for word in words:
    lemma = word.replace(" ", "_")
    names = wordnet.find_lemma_names(lemma, reader)
    others = [x.replace("_", " ") for x in names if x.lower() != lemma.lower()]
    yield _format_list(word, others)


def _describe_table(
  words: list[str], values: flags.FlagValues
) -> Iterator[str]:
  """Yields the table's lists for words or, without any, its size."""
  folder = open_path("--vocab", values.vocab)
  options = _read_options(folder, values)
  tokenizer = tokenizer_files.build_tokenizer(options, values.vocab)
  saved = folder / SYNONYMS
  table = None
  if saved.is_file() and not values["sources"].present:
    table = SynonymTable.load(saved, tokenizer)
  request = run_table.TableRequest(
    table.source if table else values.sources, "--sources", options.language
  )
  with progress.working(progress.log_console(), "Looking up synonyms"):
    table = table or request.build(tokenizer)
  if values.text or not words:
    mean = table.num_pairs / max(table.num_rows, 1)
    longest = read_words(table.tokens).texts[int(table.lengths_V.argmax())]
    yield f"sources     {table.source}"
    yield f"with a list {table.num_rows:,} tokens: {table.coverage}"
    yield (
      f"pairs       {table.num_pairs:,}; a list has {mean:.1f} (most"
      f" {table.width}: {longest})"
    )
  if values.text:
    counts_V = _count_tokens(values.text, tokenizer)
    line, warning = run_table.describe_text(request, table, counts_V)
    yield f"text        {line}"
    if warning:
      yield f"warning     {warning}"
  if values.output:
    table.save(values.output)
    yield f"saved as '{values.output}'"
  known = read_words(table.tokens)
  for word in words:
    name = known.fold(word if word in known.ids else tokenizer.normalize(word))
    if name in known.ids:
      yield _format_list(name, table.synonyms(name))
    else:
      yield f"{word}: no word of the vocabulary"


def _read_options(
  folder: pathlib.Path, values: flags.FlagValues
) -> types.SimpleNamespace:
  """Returns options of text: those of a run, unless a flag sets them."""
  options = {x: values[x].value for x in ("lowercase", "accents", "language")}
  with tokenizer_files.read_beside(folder, CONFIG) as config:
    for name in options:
      if not values[name].present and "data" in config:
        options[name] = config["data"][name]
  return types.SimpleNamespace(**options)


def _format_list(word: str, names: list[str]) -> str:
  return f"{word} ({len(names)}): {', '.join(names) or 'none'}"


def _count_tokens(text: str, tokenizer: tokenizer_lib.Tokenizer) -> np.ndarray:
  """Returns counts_V: occurrences of the tokens in a text, as data.sources."""
  counts_V = np.zeros(len(tokenizer.vocab), np.int64)
  corpus = open_corpus(text, key="--text", open_wordnet=wordnet.open_wordnet)
  for document in corpus:
    for ids in tokenizer.encode_lines(document.split("\n")):
      np.add.at(counts_V, ids, 1)
  return counts_V


def main(argv: list[str]) -> None:
  """Looks up the words of the command."""
  # Without markup, because tokens may be in brackets.
  run(argv[1:], flags.FLAGS, progress.make_console())


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags of this command."""
  string_flag = functools.partial(flags.DEFINE_string, flag_values=values)
  string_flag("sources", "auto", "Sources, like negatives.sources.")
  string_flag("language", "en", "ISO 639-1; decides sources and stop words.")
  string_flag("vocab", "", "A tokenizer: file, folder, run or name on the hub.")
  choices = [*tokenizer_lib.ACCENTS]
  text = "Like data.accents."
  flags.DEFINE_enum("accents", "auto", choices, text, flag_values=values)
  text = "The vocabulary is in lower case."
  flags.DEFINE_boolean("lowercase", True, text, flag_values=values)
  string_flag("output", "", "Save the table: FILE.safetensors.")
  text = "Text to measure coverage of, like data.sources."
  string_flag("text", "", text)


def run_command() -> None:
  """Defines the flags and runs `main`."""
  define_flags()
  flags_lib.run(main)
