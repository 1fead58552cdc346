"""All configs of the package build a run, and wrong values are refused."""

import importlib
import io
import itertools
import pathlib
import types

import jax
import pytest
import rich.console

from support import tiny, weight_files
from truenegs_jax.config.sections import PretrainConfig
from truenegs_jax.config.tables import PRETRAIN, TABLES, check_values
from truenegs_jax.configs import common
from truenegs_jax.data import layouts
from truenegs_jax.data.tokenizer import ACCENTS
from truenegs_jax.finetune.task_data import parse_options
from truenegs_jax.models import attention, encoder, layers, pretrain
from truenegs_jax.objectives import masking, soft_regularization
from truenegs_jax.pretrain import describe, plan
from truenegs_jax.pretrain import resolve as resolve_lib
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.tasks import task
from truenegs_jax.train import loggers, sharding
from truenegs_jax.weights.find import Weights
from truenegs_jax.workdir.saved_model import build_model

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
# Configs with values of their own after `continue`.
OWN = ("modern_base", "own")
NAMES = sorted(
  path.stem
  for path in CONFIGS.glob("[a-z]*.py")
  if not path.stem.startswith(
    ("blimp", "common", "corrections", "finetune", "robustness", "study")
  )
)
FINETUNE = ("finetune_glue", "finetune_squad", "finetune_own")

WORDS = ("continue", "len512", "runlocal")
ARGS = [*common.RECIPES, "runlocal,hc", "sr_sent,runlocal,continue"]
CASES = [
  *itertools.product(NAMES, ("", *WORDS)),
  *itertools.product(("electra_base", "bert_base"), ARGS),
]
TOKENIZER = types.SimpleNamespace(mask=4, cls=2, sep=3, vocab=("x",) * 1_000)


def get_config(name, arg=""):
  return importlib.import_module(f"truenegs_jax.configs.{name}").get_config(arg)


def resolve(c, **changes):
  check_values(c)
  config = PretrainConfig.read(c).replace(changes)
  weights = Weights(config.init)
  config = resolve_lib.resolve_config(config, weights, saved=None)
  is_new = not config.dry_run
  return plan.try_run(config, weights, is_new=is_new)


def check(c):
  return resolve(c, dry_run=True)


def print_dry_run(c):
  console = rich.console.Console(record=True, width=300, file=io.StringIO())
  describe.dry_run(check(c), console)
  return console.export_text()


def write_network(folder, c, role):
  """Writes a network of the config's model; returns its folder."""
  model = build_model(c, vocab_size=tiny.V)
  return weight_files.write_export(folder, model, roles=[role]) / role


@pytest.mark.parametrize("name", FINETUNE)
def test_finetune_configs_are_valid_and_have_the_published_values(name):
  c = get_config(name).lock()
  check_values(c)
  assert c.optim.weight_decay == 0.0
  recipe = parse_options(c.to_dict())
  for width, rate in ((256, 3e-4), (768, 1e-4), (1024, 5e-5)):
    assert recipe.peak_rate(width) == rate
    assert recipe.decay(width) == (0.9 if width == 1024 else 0.8)


def test_arguments_of_finetune_glue_choose_tasks():
  all_tasks = get_config("finetune_glue", "all").finetune.tasks
  assert len(all_tasks.split(",")) == 8
  assert get_config("finetune_glue", "").finetune.tasks == all_tasks
  assert get_config("finetune_glue", "rte,cola").finetune.tasks == "rte,cola"
  for name in FINETUNE:
    with pytest.raises(ValueError, match="wnli"):
      get_config(name, "wnli")


@pytest.mark.parametrize(("name", "arg"), CASES)
def test_every_config_builds_with_every_argument(name, arg):
  c = get_config(name, arg)
  config = PretrainConfig.read(c)
  resolve_lib.check(config)
  config = config.replace({"model.dtype": "float32"})  # of "auto"
  if c.model.variant == "init":  # that of weights
    config = config.replace({"model.variant": "tiny"})
  run = plan.make_run(config, TOKENIZER)
  vars(run)["model"] = encoder.replace_configs(run.model, layers=1)
  shapes = jax.eval_shape(run.init_state)
  assert pretrain.count_parameters(shapes.params) > 1_000
  assert (run.loss_weights.get("soft", 0) > 0) == (c.negatives.soft_weight > 0)
  assert ("sentence" in run.loss_weights) == (c.negatives.sentence_weight > 0)
  assert ("detect" in run.loss_weights) == ("discriminator" in shapes.params)
  assert run.options.hard_correction == c.negatives.hard_correction
  assert float(run.learning_rate(c.optim.warmup_steps)) > 0
  assert shapes.params["embeddings"]["word"].shape[0] == len(TOKENIZER.vocab)


@pytest.mark.parametrize("recipe", common.RECIPES)
def test_a_recipe_sets_the_values_of_its_name(recipe):
  n = get_config("electra_base", recipe).negatives
  parts = recipe.split("+")
  assert n.hard_correction == ("hc" in parts or recipe == "hc_glove")
  vectors = "vectors path=glove.6B.50d.txt top=10"
  assert n.sources == (vectors if recipe == "hc_glove" else "auto")
  assert n.soft_weight == ("sr" in parts)
  assert n.sentence_weight == (recipe == "sr_sent")
  smoothing = {"proper": (0.3, "balanced"), "set": (1.0, "set")}
  expected = smoothing.get(recipe, (0.0, "uniform"))
  assert (n.smoothing, n.smoothing_by) == expected


@pytest.mark.parametrize("name", NAMES)
def test_runlocal_shrinks_the_run_and_keeps_the_recipe(name):
  full, small = get_config(name), get_config(name, "runlocal")
  assert small.steps <= 20 and small.model.variant == "tiny"
  assert full.negatives.to_json() == small.negatives.to_json()


def test_short_runs_of_modern_base_log_their_losses():
  c = get_config("modern_base")
  c.steps = 60
  assert c.log.every_steps == 1


# Weights of `continue`, and the sizes in the config.json of each network:
# hidden_size, num_attention_heads, intermediate_size, num_hidden_layers,
# embedding_size.
RELEASED = {
  "electra_small": {
    "google/electra-small-discriminator": (256, 4, 1024, 12, 128),
    "google/electra-small-generator": (256, 4, 1024, 12, 128),
  },
  "electra_base": {
    "google/electra-base-discriminator": (768, 12, 3072, 12, 768),
    "google/electra-base-generator": (256, 4, 1024, 12, 768),
  },
  "electra_large": {
    "google/electra-large-discriminator": (1024, 16, 4096, 24, 1024),
    "google/electra-large-generator": (256, 4, 1024, 24, 1024),
  },
  "bert_base": {"google-bert/bert-base-uncased": (768, 12, 3072, 12, 768)},
  "bert_large": {"google-bert/bert-large-uncased": (1024, 16, 4096, 24, 1024)},
}


def test_own_needs_text_and_its_intervals_follow_the_steps():
  c = get_config("own")
  assert "--config.data.sources=FILES" in print_dry_run(c)
  c.steps = 500
  values = (c.optim.warmup_steps, c.log.every_steps, c.eval.every_steps)
  assert values == (12, 3, 50)
  c.eval.every_steps = 7
  assert c.checkpoint.every_steps == 50
  c.steps = 1
  check(c)
  c.optim.warmup_steps = 7
  assert c.copy_and_resolve_references().optim.warmup_steps == 7


@pytest.mark.parametrize("arg", ["", "electra"])
def test_own_claims_only_the_positions_of_its_rows(arg):
  c = get_config("own", arg)
  c.length = 64
  model = check(c).model
  assert {x.max_positions for x in model.roles.values()} == {64}


@pytest.mark.parametrize(
  ("arg", "roles"),
  [
    ("continue", ["bert"]),
    ("electra,continue", ["discriminator", "generator"]),
  ],
)
def test_own_continues_released_weights_with_their_sizes(arg, roles, tmp_path):
  c = get_config("own", arg)
  c.data.sources = str(tmp_path)
  with pytest.raises(InputError, match="--config.init=FOLDER"):
    resolve(c)
  small = get_config("bert_base" if roles == ["bert"] else "electra_small")
  common.runlocal(small)
  small.init = "weights"  # with a pooler
  c.init = ", ".join(
    str(write_network(tmp_path / role, small, role)) for role in roles
  )
  model = resolve(c).model
  widths = {x.width for x in model.roles.values()}
  assert widths == ({32} if roles == ["bert"] else {32, 16})
  assert {x.max_positions for x in model.roles.values()} == {512}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OWN])
def test_continue_has_the_papers_values_and_needs_weights(name):
  c = get_config(name, "continue,sr")
  assert (c.steps, c.batch_size, c.length) == (200_000, 128, 512)
  assert (c.optim.lr, c.optim.schedule) == (5e-5, "electra")
  assert c.init == ", ".join(RELEASED.get(name, "?"))
  if c.model.variant == "init":
    return
  # A checkpoint has its weights.
  config = PretrainConfig.read(c)
  saved = config.to_json()
  resolve_lib.resolve_config(config, Weights(""), saved=saved, has_table=True)
  if c.init == "?":
    with pytest.raises(InputError, match="--config.init=FOLDER"):
      resolve(c)
  c.init = "no/such/folder"
  with pytest.raises(InputError, match="no folder.*no/such/folder"):
    resolve(c)


@pytest.mark.parametrize("name", RELEASED)
def test_continue_builds_networks_of_the_released_sizes(name):
  c = get_config(name, "continue")
  model = build_model(c, vocab_size=30_522)
  assert c.data.vocab == "google-bert/bert-base-uncased"
  roles = model.roles.items()
  for (role, network), (hub_name, sizes) in zip(
    roles, RELEASED[name].items(), strict=True
  ):
    assert role in hub_name or role == "bert"
    fields = ("width", "heads", "ffn", "layers", "embedding_size")
    assert tuple(getattr(network, field) for field in fields) == sizes
    assert (network.max_positions, network.type_vocab_size) == (512, 2)


SIZES = {
  **{"model.embedding_size": 8, "model.width": 16, "model.layers": 1},
  **{"model.heads": 2, "model.ffn": 24},
  **{"generator.sizes": (16, 1, 2, 0)},
}
ONE_TYPE = {"model.type_vocab_size": 1}
SKIP = {"init_skip": "words, head"}
SMOOTHING = {"negatives.smoothing": 0.3}
SMOOTHING_BY = "negatives.smoothing_by"
SPLIT = {"batch_size": 20, "optim.accumulation": 2}  # on 8 devices


@pytest.mark.parametrize(
  ("name", "changes", "message"),
  [
    ("electra_small", SIZES, ""),
    ("electra_small", ONE_TYPE, "type_vocab_size is 1.*packed"),
    ("electra_small", ONE_TYPE | {"data.layout": "packed"}, ""),
    ("electra_base:continue", SKIP, ""),
    ("electra_base", SKIP, "init_skip='words, head.*--config.init="),
    ("electra_base", {"init_skip": "word"}, "'word'.*words or head"),
    ("bert_base:runlocal", SPLIT, "batch_size=16"),
    ("bert_base:runlocal", SPLIT | {"batch_size": 16}, ""),
    ("bert_base:runlocal", {"model.sharing": "none"}, "trains one network"),
    ("electra_small:runlocal", {"model.backbone": "modern"}, "multiplier=1,"),
    ("bert_base:baseline", SMOOTHING | {SMOOTHING_BY: "set"}, "set needs 1"),
    ("bert_base:baseline", {SMOOTHING_BY: "model"}, "smoothing=0 does not go"),
    (
      "bert_base:baseline",
      {"negatives.discriminator_label": 0.5},
      "trains one network",
    ),
    (
      "bert_base:baseline",
      SMOOTHING | {SMOOTHING_BY: "balanced", "negatives.sources": "model"},
      "smoothing_by='balanced'",
    ),
  ],
)
def test_values_that_do_not_fit_together_are_refused(name, changes, message):
  c = get_config(*name.split(":"))
  c.update_from_flattened_dict(changes)
  if message:
    with pytest.raises(InputError, match=message):
      check(c)
  else:
    check(c)


def test_a_dry_run_checks_local_weights(tmp_path):
  c = get_config("electra_small", "runlocal,baseline")
  c.init = c.data.vocab = str(write_network(tmp_path, c, "discriminator"))
  assert f"weights: '{c.init}', here" in print_dry_run(c)
  c.model.variant = "narrow"
  with pytest.raises(InputError, match="num_hidden_layers is 2"):
    print_dry_run(c)


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
def test_configs_have_the_published_values(name):
  c = get_config(*name.split(":"))
  steps, batch_size, length, lr, prob, style = PUBLISHED[name]
  assert (c.steps, c.batch_size, c.length) == (steps, batch_size, length)
  assert (c.optim.lr, c.optim.warmup_steps) == (lr, 10_000)
  assert c.optim.weight_decay == 0.01
  assert c.optim.b2 == 0.999
  assert (c.masking.prob, c.masking.style) == (prob, style)
  assert c.optim.schedule == ("bert" if "bert" in name else "electra")
  assert c.generator.detect_weight == 50


@pytest.mark.parametrize("arg", ["hcc", "hc,sr", "runlocl", "baseline,hc"])
def test_unknown_or_conflicting_arguments_are_refused(arg):
  with pytest.raises(ValueError, match="baseline.*runlocal"):
    get_config("electra_small", arg)


def test_the_described_choices_are_all_that_the_package_has():
  named = {
    "masking.style": masking.STYLES,
    "model.remat": layers.REMAT,
    "negatives.soft": soft_regularization.REGULARIZERS,
    "mesh.preset": sharding.MESHES,
    "log.writers": loggers.LOGGERS,
    "objective": plan.OBJECTIVES,
    "task": TABLES,
    "model.attention": {"auto", "xla", *attention.PLATFORMS.values()},
    "data.accents": ACCENTS,
    "data.layout": layouts.LAYOUTS,
    "finetune.kind": task.METRICS.keys() - {task.SPANS},
  }
  keys = PRETRAIN | TABLES["finetune"]
  for name, choices in named.items():
    assert sorted(keys[name].choices) == sorted(choices), name
