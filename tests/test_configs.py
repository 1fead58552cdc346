"""Every config that ships builds, and a wrong value is refused."""

import functools
import importlib
import itertools
import pathlib
import sys
import types

import jax
import pytest
from absl import flags
from ml_collections import config_flags

from truenegs_jax.configs import common
from truenegs_jax.errors import InputError
from truenegs_jax.models import pretrain
from truenegs_jax.train import build

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
NAMES = sorted(
  path.stem
  for path in CONFIGS.glob("*.py")
  if path.stem not in ("__init__", "common")
)
# ml_collections loads a config file by a function that Python will drop.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module")

ARGS = ["", *common.RECIPES, "runlocal", "runlocal,hc", "sr,runlocal"]
TOKENIZER = types.SimpleNamespace(mask=4, cls=2, sep=3, vocab=("x",) * 1_000)


def get_config(name, arg=""):
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config(arg)


@pytest.mark.parametrize(("name", "arg"), list(itertools.product(NAMES, ARGS)))
def test_every_config_builds_with_every_argument(name, arg):
  c = get_config(name, arg).lock()
  build.check_config(c)
  run = build.build_run(c, TOKENIZER)
  shapes = jax.eval_shape(lambda: run.init_state(c.seed))
  assert pretrain.parameter_count(shapes.params) > 1_000
  assert (run.weights.get("soft", 0) > 0) == (c.negatives.soft_weight > 0)
  assert run.options.hard_correction == c.negatives.hard_correction
  assert float(run.rate(c.optim.warmup_steps)) > 0
  assert c.optim.warmup_steps < c.steps
  init = functools.partial(
    pretrain.init_params, build.build_model(c, vocab_size=50)
  )
  words = jax.eval_shape(init, jax.random.key(0))["embeddings"]["word"]
  assert words.shape[0] == 50


@pytest.mark.parametrize("recipe", common.RECIPES)
def test_a_recipe_sets_what_its_name_says(recipe):
  n = get_config(NAMES[0], f"runlocal,{recipe}").negatives
  assert n.hard_correction == ("hc" in recipe.split("+"))
  assert bool(n.soft_weight) == ("sr" in recipe.split("+"))


@pytest.mark.parametrize("name", NAMES)
def test_runlocal_shrinks_and_changes_no_recipe(name):
  full, small = get_config(name), get_config(name, "runlocal")
  assert small.steps <= 20 and small.model.variant == "tiny"
  assert not small.eval.must_learn  # 20 steps teach nothing
  assert full.negatives.to_json() == small.negatives.to_json()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arg", ["hcc", "hc,sr", "runlocl", "baseline,hc"])
def test_unknown_or_contrary_words_are_refused(name, arg):
  with pytest.raises(ValueError, match="baseline.*runlocal"):
    get_config(name, arg)


@pytest.fixture
def parse(monkeypatch):
  """What the command line makes of words after --config."""

  def parse(*words):
    values = flags.FlagValues()
    argv = ["program", f"--config={CONFIGS / NAMES[0]}.py:runlocal", *words]
    monkeypatch.setattr(sys, "argv", argv)  # where overrides are looked for
    config = config_flags.DEFINE_config_file(
      "config", None, lock_config=True, flag_values=values
    )
    values(argv)
    return config.value

  return parse


def test_an_override_reaches_its_value(parse):
  assert parse("--config.optim.lr=0.25").optim.lr == 0.25


def test_a_misspelt_override_is_refused_with_a_suggestion(parse):
  with pytest.raises(AttributeError, match='"lr"'):
    parse("--config.optim.lrr=0.1")
  with pytest.raises(AttributeError, match='"steps"'):
    parse("--config.stps=3")


def test_an_override_of_another_type_is_refused(parse):
  with pytest.raises((flags.IllegalFlagValueError, TypeError)):
    parse("--config.steps=many")


BAD = {
  "steps": 0,
  "batch_size": -8,
  "length": 3,
  "optim.lr": float("nan"),
  "optim.accumulation": 0,
  "optim.clip_norm": 0.0,
  "generator.temperature": 0.0,
  "generator.mask_prob": 1.0,
  "model.dropout": 1.0,
  "model.attention_dropout": -0.1,
  "model.max_positions": 8,
  "checkpoint.every_steps": 0,
  "checkpoint.keep": 0,
  "log.every_steps": 0,
  "eval.every_steps": 0,
  "eval.rows": 0,
  "task": "pretrian",
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_no_run_can_have_is_named_and_refused(name):
  c = get_config(NAMES[0], "runlocal")
  c.update_from_flattened_dict({name: BAD[name]})
  with pytest.raises(InputError, match=name.split(".")[-1]):
    build.check_config(c)


UNKNOWN = (
  "negatives.prediction negatives.normalizer negatives.soft model.dtype"
  " model.variant model.backbone optim.schedule mesh.preset"
).split()


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_choice_is_named_and_refused(name):
  c = get_config(NAMES[0], "runlocal,sr")
  c.update_from_flattened_dict({name: "nonesuch"})
  with pytest.raises(InputError, match=f"{name} 'nonesuch'"):
    build.check_config(c)
    build.build_run(c, TOKENIZER)


def test_a_batch_that_does_not_split_is_refused_with_one_that_does():
  c = get_config(NAMES[0], "runlocal")
  c.batch_size, c.optim.accumulation = 20, 2  # on 8 devices
  with pytest.raises(InputError, match="batch_size=16"):
    build.check_config(c)
  c.batch_size = 16
  build.check_config(c)
