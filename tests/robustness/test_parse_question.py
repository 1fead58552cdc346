"""Tests the parser of questions on arbitrary tags."""

import random

import pytest

from truenegs_jax.robustness import parse_question, statements

TAGS = """
NN NNS NNP PRP JJ RB RBR VB VBD VBN VBG VBZ MD DT CD POS HYPH EX RP SYM
"""
WORDS = """
WP/what WDT/that WDT/which WRB/how IN/in IN/that TO/to CC/and ,/, VBD/did VBZ/is
JJ/many ./? ''/"
"""
TAGGED = [(tag, tag.lower()) for tag in TAGS.split()]
TAGGED += [tuple(word.split("/")) for word in WORDS.split()]


@pytest.mark.parametrize("length", [1, 2, 4, 8, 16])
def test_leaves_are_the_tokens_in_order(length):
  rng = random.Random(length)
  for _ in range(300):
    tokens = rng.choices(TAGGED, k=length)
    tree = parse_question.parse(tokens)
    assert list(statements.leaves(tree)) == tokens
    statement = statements.make_statement(tree, ["A"])
    has_wh = any(parse_question.is_wh(*token) for token in tokens)
    assert statement is None or has_wh and "A" in statement.tokens


def test_trees_in_brackets_are_read():
  tree = parse_question.read_tree("(S (NP (-LRB- -LRB-) (NN x)) (. ?))")
  assert tree == ("S", (("NP", (("-LRB-", "("), ("NN", "x"))), (".", "?")))
