"""Commands in messages install what the Makefile and the scripts install."""

import re

from support import runs
from truenegs_jax.runtime import install


def test_torch_is_the_build_of_the_makefile():
  makefile = (runs.ROOT / "Makefile").read_text()
  version = re.search(r"^TORCH \?= (.*)$", makefile, re.M)[1]
  assert install.torch_command("darwin") == f"pip install torch=={version}"
  index = re.search(r"^TORCH_INDEX := (.*)$", makefile, re.M)[1]
  assert install.torch_command("linux").endswith(f" --index-url {index}")


def test_script_for_wordnet_is_named_where_it_exists(monkeypatch, tmp_path):
  assert install.WORDNET_SCRIPT.is_file()
  assert str(install.WORDNET_SCRIPT) in install.wordnet_fix()
  monkeypatch.setattr(install, "WORDNET_SCRIPT", tmp_path / "wordnet.sh")
  assert "wordnet.sh" not in install.wordnet_fix()
  assert "python -m nltk.downloader wordnet" in install.wordnet_fix()
