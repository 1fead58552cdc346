"""JSON of a program can be written again; JSON of a text need not."""

import pytest

from truenegs_jax.runtime.files import parse_json


@pytest.mark.parametrize(
  "text",
  [
    '{"a": NaN}',
    '{"a": [1e999]}',
    '{"a": "\\ud800"}',
    '{"\\ud800": 1}',
    '{"a": 1, "a": 2}',
  ],
)
def test_values_that_cannot_be_written_again_are_refused(text):
  assert parse_json(text, strict=False)
  with pytest.raises(ValueError):
    parse_json(text)


@pytest.mark.parametrize(
  "text, reason",
  [
    (b"{", "not JSON"),
    (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
    (b"[]", "list, not a JSON object"),
    (b'{"a":' * 9_000 + b"1" + b"}" * 9_000, "nested too deep"),
  ],
)
def test_other_texts_are_refused_with_the_reason(text, reason):
  for strict in (True, False):
    with pytest.raises(ValueError, match=reason):
      parse_json(text, strict=strict)
