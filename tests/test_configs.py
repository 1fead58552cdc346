"""Every config that ships builds, and a wrong value is refused."""

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
from truenegs_jax.errors import DataError, InputError
from truenegs_jax.models import pretrain
from truenegs_jax.train import build, checks

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
NAMES = sorted(
  path.stem
  for path in CONFIGS.glob("*.py")
  if path.stem not in ("__init__", "common")
)
# ml_collections loads a config file by a function that Python will drop.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module")

MORE = ("continue", "len512", "runlocal")
ARGS = ["", *common.RECIPES, *MORE, "runlocal,hc", "sr_sent,runlocal,continue"]
TOKENIZER = types.SimpleNamespace(mask=4, cls=2, sep=3, vocab=("x",) * 1_000)


def get_config(name, arg=""):
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config(arg)


@pytest.mark.parametrize(("name", "arg"), list(itertools.product(NAMES, ARGS)))
def test_every_config_builds_with_every_argument(name, arg):
  c = get_config(name, arg).lock()
  checks.check_config(c)
  run = build.build_run(c, TOKENIZER)
  shapes = jax.eval_shape(lambda: run.init_state(c.seed))
  assert pretrain.parameter_count(shapes.params) > 1_000
  assert (run.weights.get("soft", 0) > 0) == (c.negatives.soft_weight > 0)
  assert ("sentence" in run.weights) == (c.negatives.sentence_weight > 0)
  assert ("detect" in run.weights) == ("discriminator" in shapes.params)
  assert run.options.hard_correction == c.negatives.hard_correction
  assert float(run.rate(c.optim.warmup_steps)) > 0
  assert c.optim.warmup_steps < c.steps
  assert shapes.params["embeddings"]["word"].shape[0] == len(TOKENIZER.vocab)


@pytest.mark.parametrize("recipe", common.RECIPES)
def test_a_recipe_sets_what_its_name_says(recipe):
  n = get_config("electra_base", recipe).negatives
  parts = recipe.split("+")
  assert n.hard_correction == ("hc" in parts or recipe == "hc_glove")
  vectors = "vectors path=glove.6B.50d.txt top=10"
  assert n.sources == (vectors if recipe == "hc_glove" else "wordnet")
  assert n.soft_weight == ("sr" in parts)
  assert n.sentence_weight == (recipe == "sr_sent")


@pytest.mark.parametrize("name", NAMES)
def test_runlocal_shrinks_and_changes_no_recipe(name):
  full, small = get_config(name), get_config(name, "runlocal")
  assert small.steps <= 20 and small.model.variant == "tiny"
  assert not small.eval.must_learn  # 20 steps teach nothing
  assert full.negatives.to_json() == small.negatives.to_json()


@pytest.mark.parametrize("name", NAMES)
def test_continue_is_the_papers_and_needs_weights(name):
  c = get_config(name, "continue,sr")
  assert (c.steps, c.batch_size, c.length) == (200_000, 128, 512)
  assert (c.optim.lr, c.optim.schedule) == (5e-5, "electra")
  checks.check_config(c)
  with pytest.raises(InputError, match="--config.init"):
    checks.check_given(c, saved=False)
  checks.check_given(c, saved=True)  # the checkpoint has the weights
  c.init = "no/such/folder"
  with pytest.raises(InputError, match="no folder no/such/folder"):
    checks.check_given(c, saved=False)


def test_vectors_have_to_be_there_before_anything_starts(tmp_path):
  c = get_config("electra_small", "hc_glove")
  with pytest.raises(InputError, match="no file 'glove.6B.50d.txt'"):
    checks.check_given(c, saved=False)
  c.negatives.sources = f"vectors path={tmp_path / 'own.txt'}"
  (tmp_path / "own.txt").touch()
  with pytest.raises(DataError, match="no word vectors in it"):
    checks.check_given(c, saved=False)
  (tmp_path / "own.txt").write_text("cat 1 2\n")
  checks.check_given(c, saved=False)


# Clark et al. 2020, table 6; Devlin et al. 2019, appendix A.2.
PUBLISHED = {
  "electra_small": (1_000_000, 128, 128, 5e-4, 0.15, "electra_85_15"),
  "electra_small:len512": (1_000_000, 128, 512, 5e-4, 0.15, "electra_85_15"),
  "electra_base": (766_000, 256, 512, 2e-4, 0.15, "electra_85_15"),
  "electra_large": (400_000, 2_048, 512, 2e-4, 0.25, "electra_85_15"),
  "bert_base": (1_000_000, 256, 512, 1e-4, 0.15, "80_10_10"),
  "bert_large": (1_000_000, 256, 512, 1e-4, 0.15, "80_10_10"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings(name):
  c = get_config(*name.split(":"))
  steps, batch_size, length, lr, prob, style = PUBLISHED[name]
  assert (c.steps, c.batch_size, c.length) == (steps, batch_size, length)
  assert (c.optim.lr, c.optim.warmup_steps) == (lr, 10_000)
  assert (c.optim.weight_decay, c.optim.clip_norm) == (0.01, 1.0)
  assert (c.optim.b1, c.optim.b2, c.optim.epsilon) == (0.9, 0.999, 1e-6)
  assert (c.masking.prob, c.masking.style) == (prob, style)
  assert c.optim.schedule == ("bert" if "bert" in name else "electra")
  assert (c.generator.loss_weight, c.generator.detect_weight) == (1, 50)


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
  "masking.prob": 1.0,
  "model.dropout": 1.0,
  "model.attention_dropout": -0.1,
  "model.max_positions": 8,
  "checkpoint.every_steps": 0,
  "checkpoint.keep": 0,
  "log.every_steps": 0,
  "eval.every_steps": 0,
  "eval.rows": 0,
  "negatives.sentence_weight": -1.0,
  "mesh.axes": "data",
  "task": "pretrian",
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_no_run_can_have_is_named_and_refused(name):
  c = get_config(NAMES[0], "runlocal")
  c.update_from_flattened_dict({name: BAD[name]})
  with pytest.raises(InputError, match=name.split(".")[-1]):
    checks.check_config(c)


UNKNOWN = (
  "negatives.prediction negatives.normalizer negatives.soft model.dtype"
  " model.variant model.backbone model.remat optim.schedule mesh.preset"
  " mesh.synonyms masking.style objective"
).split()


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_choice_is_named_and_refused(name):
  c = get_config(NAMES[0], "runlocal,sr")
  c.update_from_flattened_dict({name: "nonesuch"})
  with pytest.raises(InputError, match=f"{name} 'nonesuch'"):
    checks.check_config(c)
    build.build_run(c, TOKENIZER)


def test_a_batch_that_does_not_split_is_refused_with_one_that_does():
  c = get_config(NAMES[0], "runlocal")
  c.batch_size, c.optim.accumulation = 20, 2  # on 8 devices
  with pytest.raises(InputError, match="batch_size=16"):
    checks.check_config(c)
  c.batch_size = 16
  checks.check_config(c)


def test_a_device_that_is_not_there_is_told_in_a_line(monkeypatch):
  def none_there():
    raise AssertionError  # what jax does where a plugin is missing

  monkeypatch.setattr(jax, "device_count", none_there)
  monkeypatch.setenv("JAX_PLATFORMS", "cuda")
  with pytest.raises(InputError, match="JAX_PLATFORMS=cuda.*cpu does without"):
    checks.check_config(get_config(NAMES[0], "runlocal"))
