"""Downloads WordNet 3.0 from NLTK or Debian, unless it is on this machine.

  truenegs wordnet
  TRUENEGS_CACHE=/data/cache truenegs wordnet

Needs no root. WordNet is kept in nltk_data/ of the cache folder,
~/.cache/truenegs_jax by default, where all runs find it.
"""

from truenegs_jax.runtime import errors

if __name__ == "__main__":
  errors.start_command()  # before the imports that take time

import contextlib
import functools
import io
import os
import pathlib
import re
import shutil
import subprocess
import urllib.request
import zipfile

from truenegs_jax.config import flags as flags_lib
from truenegs_jax.runtime import cache, files
from truenegs_jax.runtime.errors import TrueNegsError, UnavailableError
from truenegs_jax.synonyms import wordnet

URL = (
  "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/"
  "wordnet.zip"
)
DEBIAN = ("wordnet-base", "wordnet-sense-index")  # packages
NUM_SYNSETS = 117_659
APT_SECS = 120  # at most, for each call
DOWNLOAD_ERRORS = (OSError, ValueError, TrueNegsError, zipfile.BadZipFile)


def fetch() -> None:
  """Downloads WordNet into the cache, unless it is there or on NLTK's path."""
  target = cache.folder() / "nltk_data" / "corpora" / "wordnet"
  if _is_complete(target):
    return
  with contextlib.suppress(TrueNegsError):
    if not target.exists():
      wordnet.close_wordnet(wordnet.open_wordnet())
      return
  print(f"Downloading WordNet to '{target}'", flush=True)
  reasons = []
  with errors.temporary_folder() as work:
    for name, download in {"NLTK": _from_nltk, "Debian": _from_debian}.items():
      try:
        folder = download(work)
        if not _is_complete(folder):
          raise ValueError(f"it has not all of {NUM_SYNSETS:,} synsets")
        wordnet.close_wordnet(wordnet.open_wordnet(str(folder)))
      except (*DOWNLOAD_ERRORS, subprocess.SubprocessError) as e:
        error = " ".join(str(getattr(e, "stderr", "") or e).split())[-300:]
        reasons.append(f"{name}: {error}")
        continue
      with files.atomic_folder(target) as new, files.disk_errors(target):
        for file in folder.iterdir():
          shutil.copyfile(file, new / file.name)
          files.sync(new / file.name)
      return
  raise UnavailableError(
    f"WordNet cannot be downloaded: {'; '.join(reasons)}. {wordnet.OFFLINE}"
  )


def _from_nltk(work: pathlib.Path) -> pathlib.Path:
  """Unpacks NLTK's package into `work`; returns WordNet's folder in it."""
  with urllib.request.urlopen(URL, timeout=10) as response:
    content = io.BytesIO(response.read())
  with zipfile.ZipFile(content) as archive:
    archive.extractall(work)
  return work / "wordnet"


def _from_debian(work: pathlib.Path) -> pathlib.Path:
  """Unpacks Debian's packages into `work`; returns WordNet's folder in it."""
  apt = work / "apt"
  for name in ("lists", "archives"):
    (apt / name / "partial").mkdir(parents=True)

  run = functools.partial(
    subprocess.run,
    cwd=apt,
    check=True,
    capture_output=True,
    text=True,
    timeout=APT_SECS,
  )
  try:
    run(["apt-get", "-qq", "download", *DEBIAN])
  except subprocess.CalledProcessError:  # its lists are missing or old
    options = [f"-oDir::State::Lists={apt}/lists", f"-oDir::Cache={apt}"]
    run(["apt-get", "-qq", *options, "update"])
    run(["apt-get", "-qq", *options, "download", *DEBIAN])
  for package in apt.glob("*.deb"):
    run(["dpkg-deb", "-x", str(package), str(work)])
  return work / "usr" / "share" / "wordnet"


def _is_complete(folder: pathlib.Path) -> bool:
  """Whether all synsets are there, a line each; the licence is indented."""
  data = b"".join(file.read_bytes() for file in folder.glob("data.*"))
  return len(re.findall(rb"(?m)^(?!  ).", data)) == NUM_SYNSETS


def main(argv: list[str]) -> None:
  """Runs the command; errors decide the exit code."""
  os.umask(0o022)  # NLTK refuses files that others can write to
  with flags_lib.exit_on_errors():
    if argv[1:]:
      raise errors.InputError("wordnet takes no words; `synonyms` does.")
    fetch()


if __name__ == "__main__":
  flags_lib.run(main)
