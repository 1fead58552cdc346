"""Commands that install what only some runs need, for messages."""

import pathlib
import sys

TORCH = "torch==2.13.0"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
WORDNET_SCRIPT = pathlib.Path(__file__).parents[2] / "launch" / "wordnet.sh"


def torch_command(platform: str = sys.platform) -> str:
  """Returns the command that installs PyTorch; on Linux its small CPU build."""
  command = f"pip install {TORCH}"
  is_linux = platform == "linux"  # where PyPI has only the build with CUDA
  return f"{command} --index-url {TORCH_INDEX}" if is_linux else command


def wordnet_fix() -> str:
  """Returns sentences that tell how to install WordNet."""
  command = "python -m nltk.downloader wordnet"
  if WORDNET_SCRIPT.is_file():  # in a checkout, not in a wheel
    command += f" or {WORDNET_SCRIPT}"
  return (
    f"Run {command}. Without internet, install Debian's wordnet-base and"
    " wordnet-sense-index and set --config.data.wordnet_dir=/usr/share/wordnet,"
    " or copy the folder nltk_data of another machine and set NLTK_DATA=FOLDER."
  )
