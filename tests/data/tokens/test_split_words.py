"""Text is split no further than BERT splits it."""

from truenegs_jax.data.tokens.split_words import split_lines


def test_lines_are_split_at_ascii_and_chinese():
  lines = ["a Mute\tswan\r", "", "x\nÉ,", "a\u00a0b\x0b天", "sw\ud800an"]
  words = [
    ["a", "mute", "swan", ""],
    [""],
    ["x", "É", ",", ""],
    ["a\u00a0b\x0b", "天", ""],  # left to BERT's normalizer
    ["swan"],
  ]
  assert split_lines(lines, lowercase=True).to_pylist() == words
  words[0][1] = "Mute"
  assert split_lines(lines, lowercase=False).to_pylist() == words
