"""Descriptions of recipes, and options of earlier versions."""

import functools
import json
from types import SimpleNamespace

import pytest
from configs import electra_demo

from truenegs_jax.objectives import options
from truenegs_jax.train import build_run


@pytest.mark.parametrize(
  ("recipe", "changes", "text"),
  [
    ("baseline", {}, "plain ELECTRA; 25% masked (electra_85_15)"),
    (
      "hc+sr",
      {"discriminator": "ignore", "soft_steps": 9},
      "ELECTRA + hard correction by wordnet (argmax) + soft regularization"
      " (cosine) x 0.1 + discriminator ignore + soft_steps 9; 25% masked"
      " (electra_85_15)",
    ),
    (
      "baseline",
      {"smoothing": 0.1, "strict_subword": False},
      "ELECTRA + synonyms of wordnet + smoothing over synonyms x 0.1"
      " + strict_subword False; 25% masked (electra_85_15)",
    ),
    (
      "baseline",
      {"temperature": 2.0},
      "ELECTRA + temperature 2.0; 25% masked (electra_85_15)",
    ),
  ],
)
def test_descriptions_of_recipes(recipe, changes, text):
  c = electra_demo.get_config(recipe)
  c.negatives.update(changes)
  assert build_run.describe_objective(c) == text


@pytest.mark.parametrize(
  ("generator", "sampled", "relative"), [(None, 2.0, 1.0), (1.0, 1.0, 0.5)]
)
def test_samples_have_the_temperature_of_the_loss_unless_it_is_set(
  generator, sampled, relative
):
  """Saved configs have the value, so an old run keeps its own."""
  c = electra_demo.get_config()
  if generator:
    c.generator.temperature = generator
  c.negatives.temperature = 2.0
  tokenizer = SimpleNamespace(mask=4, cls=2, sep=3, vocab=range(9))
  options = build_run.build_options(c, tokenizer)
  assert options.sampling_temperature == relative
  assert json.loads(c.to_json())["generator"]["temperature"] == sampled
  described = f"sampled at temperature {sampled:g}"
  assert (described in build_run.describe_objective(c)) == bool(generator)


def test_a_saved_recipe_is_described_by_its_own_options():
  """A removed key is described only if its value is not supported."""
  saved = {"hard_correction": False, **options.REMOVED}
  describe = functools.partial(
    options.describe,
    "mlm",
    mask_prob=0.2,
    mask_style="80_10_10",
    sampling_temperature=1.0,
  )
  assert describe(saved) == "plain BERT; 20% masked (80_10_10)"
  assert not options.removed_values(saved)
  saved["soft_table"] = "embeddings"
  assert "soft_table embeddings" in describe(saved)
  assert options.removed_values(saved) == ["negatives.soft_table=embeddings"]
