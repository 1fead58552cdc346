"""Words after a config's name, as `:hc,len512`: parses and describes them."""

from collections.abc import Mapping


class WordError(ValueError):
  """Words that a config does not have.

  Attributes:
    words: all words of the config, each with its meaning or "".
  """

  def __init__(self, arg: str, problem: str, words: Mapping[str, str]):
    listed = f"Choose any of {', '.join(words)}" if words else "There are none"
    super().__init__(f"Config argument {arg!r}: {problem}. {listed}.")
    self.words = dict(words)


def parse_words(arg: str, words: Mapping[str, str]) -> list[str]:
  """Splits the argument of a config at its commas.

  Args:
    arg: the text after the colon.
    words: the words that the config has, each with its meaning or "".

  Raises:
    WordError: one is unknown.
  """
  parsed = [word for word in arg.split(",") if word]
  for word in parsed:
    if word not in words:
      raise WordError(arg, f"{word!r} is unknown", words)
  return parsed
