"""Public names of the package: examples, types, and when they are imported."""

import doctest
import inspect
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truenegs_jax
from support import small_rows, tiny, weight_files
from support.texts import LETTERS
from truenegs_jax.data.rows import rows_folder
from truenegs_jax.data.rows.batches import batch_at
from truenegs_jax.data.tokens.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime import rng as rng_lib
from truenegs_jax.runtime.errors import DataError, InputError

WORDS = ("the", "house", "home", "main", "primary", "swan", "##s", *LETTERS)
TOKENIZER = make_tokenizer((*SPECIALS, *WORDS), lowercase=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A folder with the files that the examples read."""
  path = tmp_path_factory.mktemp("examples")
  rng = np.random.default_rng(0)
  texts = [" ".join(rng.choice(WORDS[:6], 50)) for _ in range(60)]
  small_rows.write_texts(path / "rows", texts, tokenizer=TOKENIZER, length=32)
  model = truenegs_jax.make_electra(
    vocab_size=len(TOKENIZER.vocab), variant="tiny", generator_multiplier=0.5
  )
  weight_files.write_export(path / "runs" / "tiny", model, tokenizer=TOKENIZER)
  (path / "pairs.tsv").write_text("main\tprimary\nswan\tbird\n")
  return path


@pytest.mark.parametrize("name", truenegs_jax.__all__)
def test_every_public_name_has_an_example_that_runs(folder, name, monkeypatch):
  monkeypatch.chdir(folder)
  public = {x: getattr(truenegs_jax, x) for x in truenegs_jax.__all__}
  values = {**public, "jax": jax, "jnp": jnp, "np": np}
  text = inspect.getdoc(public[name])
  example = doctest.DocTestParser().get_doctest(text, values, name, None, 0)
  assert 1 <= len(example.examples) <= 10
  output = []
  runner = doctest.DocTestRunner(verbose=False)
  runner.run(example, out=output.append)
  assert not runner.summarize(verbose=False).failed, "".join(output)


def test_importing_the_package_imports_none_of_its_requirements():
  code = "import sys, truenegs_jax; print(*sys.modules)"
  command = [sys.executable, "-c", code]
  modules = subprocess.check_output(command, text=True).split()
  assert not {"jax", "numpy", "flax", "transformers", "absl"} & set(modules)


def test_unknown_names_are_attribute_errors():
  with pytest.raises(AttributeError, match="no_such_name"):
    truenegs_jax.no_such_name  # noqa: B018


def test_mlm_loss_is_equation_2_slot_by_slot():
  rng = np.random.default_rng(0)
  dense_VxV = tiny.dense_table()
  logits = rng.normal(size=(3, 40, tiny.V)).astype(np.float32)
  gold = rng.integers(5, tiny.V, (3, 40))
  # Half of the predictions are gold tokens, or synonyms by chance.
  weight = rng.integers(0, 2, (3, 40)).astype(np.float32)
  total = count = corrected = 0.0
  for index in np.ndindex(3, 40):
    z_V, right = logits[index].astype(np.float64), gold[index]
    predicted = z_V.argmax()
    is_false = predicted != right and dense_VxV[right, predicted]
    corrected += is_false * weight[index]
    if weight[index] and not is_false:
      total += np.log(np.exp(z_V).sum()) - z_V[right]
      count += 1
  assert corrected > 3
  aux = {"bits_VxW": tiny.pack_bits(dense_VxV)}
  actual = jax.jit(truenegs_jax.mlm_loss)(logits, gold, weight, aux)
  np.testing.assert_allclose(actual, (total, count), rtol=1e-5)
  aux = {"ids_VxS": tiny.list_ids(dense_VxV)}
  np.testing.assert_array_equal(
    truenegs_jax.mlm_loss(logits, gold, weight, aux)[1], count
  )


def test_plain_losses_are_those_of_the_objective():
  model = tiny.make_model()
  params, options = tiny.random_params(model), tiny.make_options()
  batch = jax.tree.map(jnp.asarray, tiny.make_batch(0))
  keys_B = truenegs_jax.row_keys(jax.random.key(0), 0, batch.pop("row"))
  aux = tiny.make_aux()
  terms = tiny.make_objective(model, options, train=False)(
    params, batch, keys_B, aux
  )
  slots, masked_BxL = truenegs_jax.hide_slots(
    batch["tokens"],
    batch["documents"],
    rng_lib.purpose_keys(keys_B, rng_lib.MASK),
    options.masking,
  )
  bound = model.bind({"params": params})
  logits = bound.generate_logits(
    {**batch, "tokens": masked_BxL}, slots.positions_BxK, None
  )
  plain = truenegs_jax.mlm_loss(logits, slots.gold_BxK, slots.weight_BxK, aux)
  np.testing.assert_allclose(plain, terms["mlm"], rtol=1e-5)


def test_batches_are_those_of_the_steps(folder):
  rows = rows_folder.open_rows(folder / "rows", "train")
  first = truenegs_jax.batches(folder / "rows", 5, seed=3, start=2)
  for step, batch in zip(range(2, 9), first, strict=False):
    expected = batch_at(rows, step, batch_size=5, seed=3)
    for name in expected.keys() | batch.keys():
      np.testing.assert_array_equal(batch[name], expected[name])


def test_batches_of_no_rows_folder_are_refused(tmp_path):
  with pytest.raises(DataError, match="not a rows folder"):
    next(truenegs_jax.batches(tmp_path, 4))


def test_a_discriminator_alone_is_loaded_with_its_own_outputs(folder):
  pair = truenegs_jax.load(str(folder / "runs" / "tiny"), report=str)
  lines = []
  path = folder / "runs" / "tiny" / "discriminator"
  alone = truenegs_jax.load(str(path), report=lines.append)
  assert "generator" in " ".join(lines)
  tokens = jnp.asarray(np.random.default_rng(0).integers(5, 38, (2, 9)))
  inputs = {"tokens": tokens, "types": 0 * tokens, "documents": 0 * tokens + 1}
  outputs = [
    model.bind({"params": params}).detect_logits(inputs, None)
    for model, params, _ in (pair, alone)
  ]
  np.testing.assert_array_equal(*outputs)
  with pytest.raises(InputError, match="only generator"):
    truenegs_jax.load(str(folder / "runs" / "tiny" / "generator"), report=str)


USER_FILE = """
import pathlib

import jax
import jax.numpy as jnp
import optax

import truenegs_jax as tn

loaded: tn.Pretrained = tn.load("runs/tiny", report=print)
sources = "pairs path=pairs.tsv"
table: tn.SynonymTable = tn.build_table(loaded.tokenizer, sources)
words: list[str] = table.synonyms("main")
table.save(pathlib.Path("table.npz"))
masking = tn.MaskingOptions.for_tokenizer(loaded.tokenizer, mask_prob=0.2)
tx = optax.adamw(1e-3)


def loss(
  params: optax.Params,
  batch: dict[str, jax.Array],
  keys_B: jax.Array,
  aux: dict[str, jax.Array],
) -> jax.Array:
  slots, masked_BxL = tn.hide_slots(
    batch["tokens"], batch["documents"], keys_B, masking
  )
  logits_BxKxV = loaded.model.bind({"params": params}).generate_logits(
    {**batch, "tokens": masked_BxL}, slots.positions_BxK, None
  )
  total, count = tn.mlm_loss(
    logits_BxKxV, slots.gold_BxK, slots.weight_BxK, aux
  )
  return total / jnp.maximum(count, 1.0)


@jax.jit
def update(params, state, batch, keys_B, aux):  # type: ignore[no-untyped-def]
  value, grads = jax.value_and_grad(loss)(params, batch, keys_B, aux)
  updates, state = tx.update(grads, state, params)
  return optax.apply_updates(params, updates), state, value


params, aux = loaded.params, table.arrays()
state = tx.init(params)
for step, batch in enumerate(tn.batches("rows", 8, seed=1)):
  keys_B = tn.row_keys(jax.random.key(0), step, jnp.asarray(batch.pop("row")))
  params, state, value = update(params, state, batch, keys_B, aux)
  print(step, value)
  if step == 20:
    break
[fill] = tn.fill_masks(loaded.model, params, loaded.tokenizer, ["the [MASK]"])
print(fill.tokens)
"""


def test_a_plain_optax_loop_with_hard_correction_learns(folder):
  command = [sys.executable, "-c", USER_FILE]
  output = subprocess.check_output(command, text=True, cwd=folder)
  losses = [float(line.split()[1]) for line in output.splitlines()[:21]]
  assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


@pytest.mark.slow
def test_mypy_accepts_a_file_that_uses_the_package(tmp_path):
  (tmp_path / "user.py").write_text(USER_FILE)
  mypy = [sys.executable, "-m", "mypy", "--strict", "user.py"]
  mypy += ["--disable-error-code=import-untyped"]  # optax has no types
  result = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True)
  assert result.returncode == 0, result.stdout
