"""Public names of the package: examples, types, and when they are imported."""

import doctest
import inspect
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import truenegs_jax
from support import small_rows, tiny, weight_files
from support.doc_pages import ROOT, read_blocks
from support.mini_wordnet import write_wordnet
from support.texts import LETTERS
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.batches import batch_at
from truenegs_jax.data.tokenizer import SPECIALS, make_tokenizer
from truenegs_jax.runtime.errors import DataError, InputError, TrueNegsError

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
  weight_files.write_export(path / "runs" / "demo", model, tokenizer=TOKENIZER)
  (path / "pairs.tsv").write_text("main\tprimary\nswan\tbird\n")
  return path


@pytest.mark.slow
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


def test_mlm_loss_is_equation_2_slot_by_slot():
  rng = np.random.default_rng(0)
  dense_VxV = tiny.dense_table()
  logits = rng.normal(size=(3, 90, tiny.V)).astype(np.float32)
  gold = rng.integers(5, tiny.V, (3, 90))
  gold[rng.random((3, 90)) < 0.2] = -100
  # Half of the predictions are gold tokens, or synonyms by chance.
  weight = rng.integers(0, 2, (3, 90)).astype(np.float32)
  ends = rng.random((3, 90)) < 0.5
  total = count = corrected = spared = 0.0
  for index in np.ndindex(3, 90):
    z_V, right = logits[index].astype(np.float64), gold[index]
    if right == -100 or not weight[index]:
      continue
    predicted = z_V.argmax()
    is_false = predicted != right and dense_VxV[right, predicted]
    corrected += is_false and ends[index]
    spared += is_false and not ends[index]
    if not (is_false and ends[index]):
      total += np.log(np.exp(z_V).sum()) - z_V[right]
      count += 1
  assert corrected > 3 < spared
  aux = {"bits_VxW": tiny.pack_bits(dense_VxV)}
  loss = jax.jit(truenegs_jax.mlm_loss)
  actual = loss(logits, gold, weight, aux, words_BxK=ends)
  np.testing.assert_allclose(actual, (total, count), rtol=1e-5)
  aux = {"ids_VxS": tiny.list_ids(dense_VxV)}
  actual = truenegs_jax.mlm_loss(logits, gold, weight, aux, words_BxK=ends)
  np.testing.assert_array_equal(actual[1], count)


def test_mlm_loss_refuses_other_shapes_while_it_is_traced():
  tokens = [f"w{i}" for i in range(12)]
  table = truenegs_jax.SynonymTable.from_pairs([("w1", "w2")], tokens)
  right = {"logits": (2, 3, 12), "gold": (2, 3), "weight": (2, 3)}
  right |= {"ends": (2, 3)}

  def trace(layout="bits", **changes):
    shapes = {**right, **changes}
    logits, gold, weight, ends = (
      jax.ShapeDtypeStruct(shapes[name], dtype)
      for name, dtype in zip(right, ("f4", "i4", "f4", bool), strict=True)
    )
    aux = table.arrays(layout, rates=layout == "rates")
    return jax.eval_shape(
      lambda *x: truenegs_jax.mlm_loss(*x[:3], aux, words_BxK=x[3]),
      *(logits, gold, weight, ends),
    )

  for padding in (0, 127):
    traced = trace(logits=(2, 3, 12 + padding))
    assert [x.shape for x in traced] == [(), ()]
  for changes, message in (
    ({"logits": (2, 3, 9)}, "9 entries, but the table has 12 tokens"),
    ({"logits": (2, 3, 9), "layout": "ids"}, "9 entries"),
    ({"logits": (2, 3, 12 + 128), "layout": "rates"}, "140 entries"),
    ({"gold": (2, 1)}, r"gold_BxK has the shape \(2, 1\).* \(2, 3\)"),
    ({"weight": (3,)}, "weight_BxK has the shape"),
    ({"ends": (3, 2)}, "words_BxK has the shape"),
  ):
    with pytest.raises(InputError, match=message):
      trace(**changes)


@pytest.mark.parametrize(
  ("convert", "by", "message"),
  [
    (lambda table: table, "uniform", "Pass table.arrays()"),
    (lambda table: None, "model", "arrays('ids')"),
    (lambda table: table.arrays("bits"), "model", "arrays('ids')"),
    (lambda table: table.arrays("ids"), "balanced", "arrays(rates=True)"),
    (lambda table: table.arrays("ids"), "set", "set needs 1"),
  ],
)
def test_mlm_loss_says_which_arrays_it_needs(convert, by, message):
  table = truenegs_jax.SynonymTable.from_pairs([("a", "b")], ["a", "b"])
  inputs = np.zeros((1, 1, 2), "f4"), np.zeros((1, 1), int), np.ones((1, 1))
  with pytest.raises(InputError, match=re.escape(message)):
    truenegs_jax.mlm_loss(
      *inputs, convert(table), smoothing=0.3, smoothing_by=by
    )


def test_batches_are_those_of_the_steps(folder):
  rows = rows_folder.open_rows(folder / "rows", "train")
  options = {"seed": 3, "start": 2}
  first = truenegs_jax.batches(
    folder / "rows", 5, tokenizer=TOKENIZER, **options
  )
  for step, batch in zip(range(2, 9), first, strict=False):
    expected = batch_at(rows, step, batch_size=5, seed=3)
    for name in expected.keys() | batch.keys():
      np.testing.assert_array_equal(batch[name], expected[name])
  other = make_tokenizer((*SPECIALS, *WORDS[::-1]), lowercase=True)
  short = make_tokenizer((*SPECIALS, *WORDS[:-1]), lowercase=True)
  differ = sum(a != b for a, b in zip(WORDS, WORDS[::-1], strict=True))
  for tokenizer, number in ((other, differ), (short, 1)):
    with pytest.raises(DataError, match=f" {number} of 38 ids stand for other"):
      next(truenegs_jax.batches(folder / "rows", 5, tokenizer=tokenizer))


def test_a_model_beside_another_vocabulary_is_refused(folder, tmp_path):
  path = str(folder / "runs" / "demo")
  model, params, _ = truenegs_jax.load(path, report=str)
  entries = [*SPECIALS, *WORDS]
  swapped = make_tokenizer([*entries[:-2], *entries[:-3:-1]], lowercase=True)
  cased = make_tokenizer(entries, lowercase=False)
  short = make_tokenizer(entries[:-1], lowercase=True)
  bare = model.clone(tokenizer=None)
  output = tmp_path / "export"
  for given, tokenizer, message in (
    (model, swapped, " 2 of 38 ids stand for other tokens. Use the tokenizer"),
    (model, cased, "0 of 38 ids .*, but they split text differently"),
    (model, short, " 1 of 38 ids"),
    (bare, short, "37 entries, but the model has 38"),
  ):
    with pytest.raises(TrueNegsError, match=message):
      truenegs_jax.fill_masks(given, params, tokenizer, ["the [MASK]"])
    with pytest.raises(TrueNegsError, match=message):
      truenegs_jax.export_model(given, params, tokenizer, output)
    assert not output.exists()
  assert truenegs_jax.fill_masks(bare, params, swapped, ["the [MASK]"])


@pytest.mark.slow
def test_a_plain_optax_loop_with_hard_correction_learns(
  folder, monkeypatch, capfd, no_torch
):
  write_wordnet(folder / "cache" / "nltk_data" / "corpora" / "wordnet")
  shutil.copy(folder / "rows" / "vocab.txt", folder)
  monkeypatch.setenv("TRUENEGS_CACHE", str(folder / "cache"))
  monkeypatch.chdir(folder)
  page = ROOT / "docs" / "how_to" / "use_in_python.md"
  codes = [b.text for b in read_blocks(page) if b.language == "python"]
  # All for JAX in one namespace, as in a notebook.
  code = "\n".join(x for x in codes if "Synonyms(" not in x)
  exec(code.replace('"primary"', '"house"'), {})
  printed, errors = capfd.readouterr()
  assert not errors
  synonyms, *lines = printed.splitlines()
  assert synonyms == "['home']"
  losses = [float(line.split()[1]) for line in lines[:21]]
  assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_every_public_name_is_in_the_reference():
  page = (ROOT / "docs" / "reference" / "python.md").read_text()
  names = re.findall(r"(?m)^.. auto(?:class|function):: (\w+)$", page)
  assert sorted(names) == sorted(truenegs_jax.__all__)
