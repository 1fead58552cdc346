"""Downloads WordNet 3.0 with NLTK, unless it is on this machine.

  truenegs wordnet
  TRUENEGS_CACHE=/data/cache truenegs wordnet

WordNet is kept in nltk_data/ of the cache folder, ~/.cache/truenegs_jax by
default, where all runs find it.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import io

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime.errors import DataError, InputError, UnavailableError
from truenegs_jax.runtime.paths import cache_folder
from truenegs_jax.synonyms import wordnet


def fetch() -> None:
  """Downloads WordNet into the cache, unless a good one is found.

  Damaged ones elsewhere are left alone: the first good one is read.
  """
  try:
    wordnet.open_wordnet()
    return
  except (InputError, DataError):
    pass  # there is none, or none that can be read
  from nltk.downloader import Downloader

  target = cache_folder().resolve() / "nltk_data"
  print(f"Downloading WordNet to '{target}'", flush=True)
  try:  # it makes folders, and compares sizes and checksums
    Downloader().download(
      "wordnet",
      download_dir=str(target),
      force=True,  # also where a file is there, which cannot be read
      quiet=True,
      raise_on_error=True,
      print_error_to=io.StringIO(),  # the error is raised, too
    )
    wordnet.open_wordnet(str(target))
  except (OSError, ValueError, DataError) as e:
    reason = errors.printable(e)
    raise UnavailableError(
      f"WordNet cannot be downloaded from NLTK's server ({reason})."
      f" {wordnet.OFFLINE}"
    ) from e


def main(argv: list[str]) -> None:
  """Runs the command; errors decide the exit code."""
  with flags_lib.exit_on_errors():
    if argv[1:]:
      raise InputError("wordnet takes no words; `synonyms` does.")
    fetch()


def run_command() -> None:
  """Runs `main`."""
  flags_lib.run(main)


if __name__ == "__main__":
  run_command()
