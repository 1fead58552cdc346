"""Writes an artificial language, or measures a run that was trained on it.

  python -m truenegs_jax.study.artificial --folder=artificial
      [--seed=0] [--synonyms=50]       # percent of the words that have some
      [--lexicons=100:100,80:50]       # precision:recall in percent
      [--rows=100000] [--length=14]    # lines and words of a line
  python -m truenegs_jax.main --config=artificial:hc --workdir=runs/hc
  python -m truenegs_jax.study.artificial --folder=artificial --measure=runs/hc

The last command prints JSON, or writes it to the file of --output.
"""

from truenegs_jax.runtime import signals

if __name__ == "__main__":
  signals.exit_at_signals()  # before the imports that take time

import functools
import json
import pathlib
import sys

from absl import flags

from truenegs_jax.runtime import flags as flags_lib
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.study.artificial import files
from truenegs_jax.study.artificial.language import draw_language
from truenegs_jax.workdir.files import save_json
from truenegs_jax.workdir.metrics_file import finite_or_null


def run(values: flags.FlagValues) -> None:
  """Writes a language or measures a run as the flags say.

  Raises:
    TrueNegsError: see its subclasses for the exit codes.
  """
  folder = pathlib.Path(values.folder).expanduser()
  if values.measure:
    from truenegs_jax.study.artificial import measure_run  # imports jax

    scores = measure_run.measure_run(
      pathlib.Path(values.measure).expanduser(),
      folder,
      report=functools.partial(print, file=sys.stderr),
    )
    scores = finite_or_null(scores)
    if values.output:
      save_json(pathlib.Path(values.output).expanduser(), scores)
    else:
      print(json.dumps(scores, indent=2))
    return
  language = draw_language(values.seed, synonym_share=values.synonyms / 100)
  files.write_language(
    folder,
    language,
    rows=values.rows,
    length=values.length,
    lexicons=[parse_lexicon(text) for text in values.lexicons if text],
    seed=values.seed,
  )
  print(
    f"{folder}: {len(language.names)} words, {language.synonym_share:.0%} with"
    f" synonyms; {values.rows:,} lines of {values.length} words."
  )


def parse_lexicon(text: str) -> tuple[float, float]:
  """Returns precision and recall, in percent, of "80:50"."""
  try:
    precision, recall = map(float, text.split(":"))
  except ValueError as error:
    raise InputError(
      f"--lexicons={text!r} is not a precision and a recall. Set percentages"
      " such as --lexicons=100:100,80:50."
    ) from error
  return precision, recall


def main(argv: list[str]) -> None:
  """Runs the command; exit codes are those of `runtime.errors`."""
  del argv
  with flags_lib.exit_on_errors():
    run(flags.FLAGS)


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines the flags of this command."""
  string_flag = functools.partial(flags.DEFINE_string, flag_values=values)
  number = functools.partial(flags.DEFINE_integer, flag_values=values)
  string_flag("folder", "artificial", "The language: text, vocabulary, ....")
  string_flag(
    "measure", "", "Workdir of a run: measure it, and write no language."
  )
  string_flag("output", "", "File for the measures; by default printed.")
  number("seed", 0, "Of the language, its text and lexicons.", lower_bound=0)
  flags.DEFINE_float(
    "synonyms",
    50.0,
    "Percentage of the words that have synonyms.",
    lower_bound=0.0,
    upper_bound=100.0,
    flag_values=values,
  )
  flags.DEFINE_list(
    "lexicons",
    [":".join(map(str, x)) for x in files.LEXICONS],
    "Precision and recall of each lexicon, in percent.",
    flag_values=values,
  )
  number("rows", files.ROWS, "Lines to train on.", lower_bound=1)
  number("length", files.LENGTH, "Words of a line.", lower_bound=1)


if __name__ == "__main__":
  define_flags()
  flags_lib.run(main)
