"""Shows synonyms, builds their tables, and says what they cover of a text.

  truenegs synonyms primary stay  # WordNet's
  truenegs synonyms primary stay --vocab=runs/electra_demo  # those of a run
  truenegs synonyms --vocab=vocab.txt --output=table.safetensors \\
      --sources='wordnet, pairs path=ppdb.tsv'

Other flags mean the same as in a config's `data` and `negatives`;
negatives.sources='table path=table.safetensors' takes a table.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from absl import flags
from rich.console import Console

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.data import tokenizer as tokenizer_lib
from truenegs_jax.data.sources import open_corpus
from truenegs_jax.data.vocabulary import read_words
from truenegs_jax.runtime import progress
from truenegs_jax.runtime.paths import open_path
from truenegs_jax.synonyms import run_table, wordnet
from truenegs_jax.synonyms.table import SynonymTable, open_output
from truenegs_jax.workdir.files import SYNONYMS

LEGEND = "(...) does not count: phrases, other senses, not in the vocabulary."


def run(
  words: Sequence[str], values: flags.FlagValues, console: Console
) -> None:
  """Looks words up in WordNet or, with a vocabulary, in a table."""
  if values.output:
    open_output("--output", values.output)  # before the work
  saved = open_path("--vocab", values.vocab) / SYNONYMS
  is_saved = values.vocab and not values["sources"].present and saved.is_file()
  table = SynonymTable.load(saved) if is_saved else None
  request = run_table.TableRequest(
    table.source if table else values.sources,
    key="--sources",
    language=values.language,
  )
  if not table and request.model:
    raise errors.InputError(
      f"--sources={values.sources!r}: the source model has no pairs before a"
      " model is trained with it. Use other sources."
    )
  if not table:
    request.check()
  is_lookup = words and not values.output and not values.text
  if not values.vocab and not (is_lookup and request.identity == "wordnet"):
    raise errors.InputError(
      "Set --vocab=FILE, or only name words to look up in WordNet, such as:"
      f" {errors.program()} synonyms primary."
    )
  normalize: Callable[[str], str] = str.lower
  described: dict[str, str] = {}
  with progress.working(progress.log_console(), "Looking up synonyms"):
    names = _find_names(words, request)
    if values.vocab:
      accents = tokenizer_lib.ACCENTS[values.accents]
      tokenizer = tokenizer_lib.load_tokenizer(
        values.vocab, lowercase=values.lowercase, strip_accents=accents
      )
      normalize = tokenizer.normalize
      table = table or request.build(tokenizer)
      if not is_lookup:
        described = describe_table(table)
      if values.text:
        counts_V = _count_tokens(values.text, tokenizer)
        text = run_table.describe_text(request, table, counts_V)
        described["text"], described["warning"] = text
  lines = [f"{name:<12}{text}" for name, text in described.items() if text]
  if table and values.output:
    table.save(values.output)
    lines.append(f"saved as '{values.output}'")
  stop_words = request.load_stop_words()
  answers = [*describe_words(names, table, normalize, stop_words)]
  lines += answers
  if any(x.endswith(")") for x in answers):
    lines.append(LEGEND)
  console.print("\n".join(lines), soft_wrap=True)


def _find_names(
  words: Sequence[str], request: run_table.TableRequest
) -> dict[str, Sequence[str]]:
  """Returns all that WordNet has for each word, if that is the first source."""
  source = request.parsed[0]
  if source.name != "wordnet" or not words:
    return dict.fromkeys(words, ())
  reader = wordnet.open_wordnet(source.options["folder"])
  return {word: wordnet.find_lemma_names(word, reader) for word in words}


def describe_table(table: SynonymTable) -> dict[str, str]:
  """Describes sources and counts of a table, by subject."""
  mean = f"{table.num_pairs / max(table.num_rows, 1):.1f} (most {table.width}"
  longest = read_words(table.tokens).texts[int(table.lengths_V.argmax())]
  return {
    "sources": table.source,
    "with a list": f"{table.num_rows:,} tokens: {table.coverage}",
    "pairs": f"{table.num_pairs:,}; a list has {mean}: {longest})",
  }


def describe_words(
  names: Mapping[str, Sequence[str]],
  table: SynonymTable | None,
  normalize: Callable[[str], str],
  stop_words: Collection[str],
) -> Iterator[str]:
  """Yields the synonyms of each word, or why there are none."""
  words = read_words(table.tokens if table else ())
  for word, entries in names.items():
    token = words.fold(word if word in words.texts else normalize(word))
    forms = {words.fold(normalize(x)): x.replace("_", " ") for x in entries}
    forms.pop(token, None)
    if table:
      listed = table.synonyms(token) if token in words.ids else []
    else:
      listed = [x for x in forms if "_" not in x and token not in stop_words]
    others = [name for form, name in forms.items() if form not in listed]
    if listed:
      line = f"{token} ({len(listed)}): {', '.join(listed)}"
    elif table and token not in {*words.texts, *words.ids}:
      line = f"{word}: not in the vocabulary"
    elif token in stop_words:
      line = f"{word}: a stop word, for which nothing counts"
    elif others:
      line = f"{word}: nothing that counts"
    else:
      source = table.source if table else "WordNet"
      line = f"{word}: {'no synonyms' if entries else 'not'} in {source}"
    yield f"{line} ({', '.join(others)})" if others else line


def _count_tokens(text: str, tokenizer: tokenizer_lib.Tokenizer) -> np.ndarray:
  """Returns counts_V: occurrences of the tokens in a text, as data.sources."""
  counts_V = np.zeros(len(tokenizer.vocab), np.int64)
  for document in open_corpus(text, key="--text"):
    for ids in tokenizer.encode_lines(document.split("\n")):
      np.add.at(counts_V, ids, 1)
  return counts_V


def main(argv: list[str]) -> None:
  """Runs the command; errors decide the exit code."""
  with flags_lib.exit_on_errors():
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
  string_flag("text", "", "Text to measure coverage of, like data.sources.")


def run_command() -> None:
  """Defines the flags and runs `main`."""
  define_flags()
  flags_lib.run(main)


if __name__ == "__main__":
  run_command()
