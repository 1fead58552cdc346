"""Lines of text are read in parts of a known size."""

import pytest

from truenegs_jax.runtime import text
from truenegs_jax.runtime.errors import DataError


def test_a_record_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(text, "MAX_RECORD", 8)
  path = tmp_path / "a.txt"
  path.write_text("1234567\n12345678\n")
  with pytest.raises(DataError, match="a.txt:2: a record of more than 8 char"):
    list(text.read_lines(str(path)))
  path.write_text("1234567\n1234567\n")
  assert [number for number, _ in text.read_lines(str(path))] == [1, 2]
