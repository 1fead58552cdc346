"""Lines of text are read in parts of a known size, and odd bytes explained."""

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


@pytest.mark.parametrize(
  ("line", "code", "advice"),
  [
    ("It is “a swan”, he said, and so it was.", "cp1252", "-f CP1252"),
    ("Zażółć gęślą jaźń, powiedział łabędź.", "cp1250", "-f ENCODING"),
    ("Un caràttere di stampa, e cosi via.", "mac_roman", "-f ENCODING"),
    ("Это лебедь", "cp1251", "The encoding cannot be known"),
    ("Schwäne, Vögel, Enten ä\udce4", "utf-8", "Repair the line"),
  ],
)
def test_the_encoding_of_a_line_is_named_if_its_bytes_tell_it(
  line, code, advice
):
  data = line.encode(code, "surrogateescape")
  decoded = data.decode("utf-8", "surrogateescape")
  assert advice in text.explain_bytes(decoded, "a.txt.gz")
