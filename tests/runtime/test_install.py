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
