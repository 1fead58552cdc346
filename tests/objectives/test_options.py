"""Recipes are described, and depend on the tokenizer."""

from types import SimpleNamespace

import pytest
from configs import electra_demo

from support import tiny
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.pretrain.describe import describe_objective
from truenegs_jax.pretrain.plan import make_run


@pytest.mark.parametrize(
  ("recipe", "changes", "text"),
  [
    ("baseline", {}, "plain ELECTRA; 25% masked (electra_85_15)"),
    (
      "hc+sr",
      {"discriminator_label": -1.0},
      "ELECTRA + hard correction by wordnet senses=1 (argmax) + soft"
      " regularization (cosine) x 0.1 + discriminator_label -1.0; 25% masked"
      " (electra_85_15)",
    ),
    (
      "baseline",
      {"smoothing": 0.1, "strict_subword": False},
      "ELECTRA + synonyms of wordnet senses=1 + smoothing over synonyms"
      " (uniform) x 0.1 + strict_subword False; 25% masked (electra_85_15)",
    ),
  ],
)
def test_descriptions_of_recipes(recipe, changes, text):
  c = electra_demo.get_config(recipe)
  c.negatives.update(changes)
  assert describe_objective(PretrainConfig.read(c)) == text


@pytest.mark.parametrize(
  ("vocab", "is_strict"), [(("big", "##ly"), False), (("Ġbig", "ly"), True)]
)
def test_pieces_are_spared_where_spaces_are_marked(vocab, is_strict):
  c = electra_demo.get_config()
  c.negatives.strict_subword = False
  tokenizer = SimpleNamespace(mask=4, cls=2, sep=3, vocab=vocab)
  run = make_run(PretrainConfig.read(c), tokenizer)
  assert run.options.strict_subword == is_strict
  assert ("strict_subword" in describe_objective(run.config)) != is_strict


def test_keys_that_end_in_weight_are_weights_of_terms():
  options = tiny.make_options(soft_weight=0.5, sentence_weight=0.0)
  assert options.term_weights == {"soft": 0.5}
