"""The grammar of config values that hold lists."""

import pytest

from truenegs_jax.config import grammar
from truenegs_jax.config.grammar import Item
from truenegs_jax.runtime.errors import InputError


@pytest.mark.parametrize(
  ("text", "items"),
  [
    ("", []),
    (" a , ", [Item("a", {})]),
    ("my file.txt weight=2", [Item("my file.txt", {"weight": "2"})]),
    ("'a=b, c.txt'", [Item("a=b, c.txt", {})]),
    ('"Bob\'s.txt" x=1, b', [Item("Bob's.txt", {"x": "1"}), Item("b", {})]),
    ("x='a, b' y=", [Item("", {"x": "a, b", "y": ""})]),
    ("hf:a/b", [Item("hf:a/b", {})]),
    ("s3://a/b?c=d", [Item("s3://a/b?c=d", {})]),
  ],
)
def test_items(text, items):
  assert grammar.parse_items(text, key="k") == items


@pytest.mark.parametrize("text", ["it's", "a x=1 b", "a x=1 x=2"])
def test_other_texts_are_refused(text):
  with pytest.raises(InputError, match="^k"):
    grammar.parse_items(text, key="k")


@pytest.mark.parametrize(
  "value", ["a b", "x=1", "it's", "C:\\a[1]", "a,b;c", 'its "it\'s"', '"', ""]
)
def test_what_is_formatted_is_read_back(value):
  text = grammar.format_item(value, [("path", value)])
  assert grammar.parse_item(text, key="k") == Item(value, {"path": value})


def test_options_have_the_types_of_their_defaults():
  defaults = {"top": 1, "path": "", "low": 0.5, "content_words": False}
  item = grammar.parse_item("v top=3 content_words=true low=1", key="k")
  values = item.convert(defaults, subject="k")
  assert values == {"top": 3, "path": "", "low": 1.0, "content_words": True}
  for text, word in [
    ("v tpo=3", "Did you mean top="),
    ("v top=x", "top=x must be a whole number"),
    ("v content_words=1", "true or false"),
  ]:
    with pytest.raises(InputError, match=word):
      grammar.parse_item(text, key="k").convert(defaults, subject="k")


def test_names_have_no_options():
  assert grammar.parse_names("a, b,a", key="k") == ("a", "b")
  with pytest.raises(InputError, match="names only"):
    grammar.parse_names("a x=1", key="k")
