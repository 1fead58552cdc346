"""The corpora of the real configs load and fill their rows.

Stand-ins have the columns, files and record shapes of the data sets of the hub,
and are read by `datasets`. Their shapes are from the pages of the data sets
(records and bytes); that half of the articles have less than half of the mean
is assumed.
"""

import functools
import importlib
import math

import datasets
import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from truenegs_jax.config.sections import Data
from truenegs_jax.configs import common
from truenegs_jax.data import prepare as prepare_lib
from truenegs_jax.data import rows as rows_folder
from truenegs_jax.data.prepare import make_plan
from truenegs_jax.data.rows import padding_warning
from truenegs_jax.data.tokenizer import SPECIALS
from truenegs_jax.synonyms.wordnet import open_wordnet

pytestmark = pytest.mark.slow

LIMITS = {128: 0.10, 512: 0.25}  # largest share of padding
CONFIGS = (
  "electra_small",
  "electra_base",
  "electra_large",
  "bert_base",
  "bert_large",
)
PARAGRAPH = 350  # characters
ARTICLES = 1_200


def make_words() -> list[str]:
  """Returns words that, each a token, give 4.6 characters per token.

  Wikipedia has 4.7 with BERT's vocabulary (docs/how_to/prepare_text.md).
  """
  rng = np.random.default_rng(0)
  letters = list("abcdefghijklmnopqrstuvwxyz")
  sizes = rng.integers(2, 7, 3_000)
  return sorted({"".join(rng.choice(letters, size)) for size in sizes})


def draw_sizes(mean: float, median: float, count: int):
  """Draws sizes of a log-normal distribution."""
  deviation = math.sqrt(2 * math.log(mean / median))
  return np.random.default_rng(0).lognormal(math.log(median), deviation, count)


def write_parquet(path, **columns) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  parquet.write_table(pyarrow.table(columns), path)


def write_standins(folder) -> dict[str, str]:
  """Writes the data sets; returns the folder of each."""
  rng = np.random.default_rng(1)
  words = make_words()
  (folder / "vocab.txt").write_text("\n".join([*SPECIALS, ".", *words]))
  stream, position = " ".join(rng.choice(words, 1_500_000)), 0

  def take(num_chars: float) -> str:
    nonlocal position
    position += int(num_chars)
    return stream[position - int(num_chars) : position].strip() + " ."

  def article(num_chars: float, heading: str = "") -> str:
    sizes = [PARAGRAPH] * int(num_chars // PARAGRAPH) + [num_chars % PARAGRAPH]
    return f"\n\n{heading}".join(map(take, sizes))

  # wikimedia/wikipedia 20231101.en: 6,407,814 articles, 20,200,062,385 bytes.
  sizes = draw_sizes(3_152, 1_576, ARTICLES)
  texts = [article(size, "History\n\n") for size in sizes]
  readme = "---\nconfigs:\n"
  for name, part in (("en", texts), ("de", ["Ein Artikel."])):
    name = f"20231101.{name}"
    write_parquet(
      folder / "wikipedia" / name / "train-00000-of-00001.parquet",
      **{key: [key] * len(part) for key in ("id", "url", "title")},
      text=part,
    )
    readme += f"- config_name: {name}\n  data_files:\n"
    readme += f"  - {{split: train, path: {name}/train-*}}\n"
  (folder / "wikipedia" / "README.md").write_text(f"{readme}---\n")
  # bookcorpus/bookcorpus: 74,004,228 sentences, 4,853,859,824 bytes. The ratio
  # to the articles is the real one.
  sizes = rng.gamma(2, 64 / 2, ARTICLES * 74_004_228 // 6_407_814)
  sentences = [take(max(4, size)) for size in sizes]
  write_parquet(folder / "books/plain_text/train/0000.parquet", text=sentences)
  # Skylion007/openwebtext: 8,013,769 documents, 39,769,491,688 bytes.
  texts = [article(size) for size in draw_sizes(4_963, 3_000, 300)]
  path = folder / "openwebtext" / "plain_text" / "train"
  for number in range(2):
    write_parquet(path / f"000{number}.parquet", text=texts[number::2])
  return {
    "wikimedia/wikipedia": str(folder / "wikipedia"),
    "bookcorpus/bookcorpus": str(folder / "books"),
    "Skylion007/openwebtext": str(folder / "openwebtext"),
  }


@pytest.fixture(scope="module")
def prepare(tmp_path_factory):
  """Serves the stand-ins; returns (config, sources) -> manifest of its rows."""
  folder = tmp_path_factory.mktemp("corpora")
  folders, load = write_standins(folder), datasets.load_dataset_builder

  def load_builder(name, config, *, revision):
    assert revision
    builder = load(folders.get(name, name), config)
    builder.hash = revision  # the commit
    return builder

  @functools.cache
  def make_rows(sources, length):
    c = common.get_config()
    c.data.sources, c.length, c.data.workers = sources, length, 1
    c.data.vocab = str(folder / "vocab.txt")
    c.data.rows = str(folder / f"rows{abs(hash((sources, length)))}")
    plan = make_plan(Data.read(c.data), c.length, open_wordnet)
    rows, _ = prepare_lib.execute_plan(plan)
    return rows_folder.read_manifest(rows)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(datasets, "load_dataset_builder", load_builder)
    patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    yield make_rows


@pytest.mark.parametrize("arg", ["", "len512", "continue"])
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_of_real_configs_have_little_padding(prepare, name, arg):
  module = importlib.import_module(f"truenegs_jax.configs.{name}")
  c = module.get_config(arg)
  manifest = prepare(c.data.sources, c.length)
  share = manifest["splits"]["train"]["padding_share"]
  print(f"padding of {name}:{arg} at {c.length}: {share:.1%}")
  assert 0.02 < share <= LIMITS[c.length]
  assert not padding_warning(manifest)


def test_rows_of_short_documents_are_warned_of(prepare):
  books = "hf:bookcorpus/bookcorpus revision=refs/convert/parquet"
  warning = padding_warning(prepare(books, 512))
  assert "warning: 96." in warning
  assert "length=512. Set --config.data.layout=packed" in warning
  assert not padding_warning(prepare(f"{books} document=join", 512))
  short = padding_warning(prepare(f"{books} document=join chars=600", 512))
  assert "chars=NUMBER in the parts of --config.data.sources" in short
