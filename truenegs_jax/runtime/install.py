"""Commands that install what only some runs need, for messages."""

import sys

TORCH = "torch==2.13.0"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
WORDNET_OFFLINE = (
  "Without internet, install Debian's wordnet-base and wordnet-sense-index and"
  " set --config.data.wordnet_dir=/usr/share/wordnet, or copy the folder"
  " nltk_data of another machine and set NLTK_DATA=FOLDER."
)
WORDNET_FIX = f"Run python -m truenegs_jax.wordnet. {WORDNET_OFFLINE}"


def torch_command(platform: str = sys.platform) -> str:
  """Returns the command that installs PyTorch; on Linux its small CPU build."""
  command = f"pip install {TORCH}"
  is_linux = platform == "linux"  # where PyPI has only the build with CUDA
  return f"{command} --index-url {TORCH_INDEX}" if is_linux else command
