"""Calls the package in a fresh process and prints what changed outside of it.

  python side_effects.py FOLDER

What other libraries do when they are imported or first used is not ours, so
they are imported and used before the first look at the process.
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import pathlib
import pkgutil
import random
import resource
import signal
import sys
import threading
import warnings

THIRD_PARTIES = (
  "absl.app",
  "absl.flags",
  "absl.logging",
  "datasets",
  "etils.epath",
  "flax.linen",
  "fsspec",
  "gcsfs.core",
  "grain.python",
  "huggingface_hub",
  "jax",
  "jax.experimental.multihost_utils",
  "ml_collections",
  "nltk.corpus.reader.wordnet",
  "optax",
  "orbax.checkpoint",
  "pyarrow",
  "pyarrow.parquet",
  "rich.progress",
  "s3fs",
  "safetensors.numpy",
  "scipy.special",
  "scipy.stats",
  "spacy",
  "tensorboardX",
  "tensorstore",
  "tokenizers",
  "torch",
  "transformers",
  "wandb",
  "zipfile",
)
WORDS = ("the", "house", "home", "main", "primary", "swan", "##s")


def use_third_parties(folder):
  """Imports libraries, and uses those that set up a process lazily."""
  for name in THIRD_PARTIES:
    with contextlib.suppress(ImportError):  # an extra
      importlib.import_module(name)
  import datasets
  import fsspec
  import jax
  import jax.numpy as jnp
  import numpy as np
  import orbax.checkpoint as ocp
  import transformers

  with contextlib.suppress(ImportError):
    fsspec.filesystem("gs")
  jax.jit(lambda x: x + 1)(jnp.ones(3)).block_until_ready()
  with ocp.CheckpointManager(folder / "orbax") as manager:
    manager.save(1, args=ocp.args.StandardSave({"x": np.ones(3)}))
    manager.wait_until_finished()
    manager.restore(1)
  saved = datasets.Dataset.from_dict({"text": ["a b"]})
  saved.save_to_disk(str(folder / "dataset"))
  datasets.load_from_disk(str(folder / "dataset"))
  config = transformers.BertConfig(
    vocab_size=9, hidden_size=8, num_attention_heads=1, num_hidden_layers=1
  )
  with contextlib.suppress(ImportError):
    transformers.BertForMaskedLM(config).save_pretrained(folder / "bert")
    transformers.BertForMaskedLM.from_pretrained(folder / "bert")


def describe_loggers():
  """Yields the settings of all loggers that anybody changed."""
  loggers = {"": logging.getLogger(), **logging.root.manager.loggerDict}
  for name, logger in loggers.items():
    if isinstance(logger, logging.Logger):
      settings = logger.level, logger.filters, logger.handlers
      if any(settings) or logger.disabled or not logger.propagate:
        flags = logger.disabled, logger.propagate
        yield f"logger {name!r}", repr((*settings, *flags))


def look():
  """Returns the state of this process as texts by name."""
  import datasets
  import fsspec.config
  import huggingface_hub
  import jax
  import nltk
  import numpy as np
  from etils.epath import register
  from transformers.utils import logging as hf_logging

  limits = [x for x in dir(resource) if x.startswith("RLIMIT_")]
  umask = os.umask(0o077)
  os.umask(umask)
  state = {f"environ {name}": x for name, x in os.environ.items()}
  state |= dict(describe_loggers())
  state |= {
    f"signal {x.name}": signal.getsignal(x)
    for x in signal.valid_signals()
    if isinstance(x, signal.Signals)
  }
  state |= {x: resource.getrlimit(getattr(resource, x)) for x in limits}
  state |= {f"jax {name}": x for name, x in jax.config.values.items()}
  state |= {
    f"module {name}": module if module is None else id(module)
    for name, module in sys.modules.items()
    if not name.startswith("truenegs_jax")
  }
  state |= {
    "sys.excepthook": sys.excepthook,
    "sys.unraisablehook": sys.unraisablehook,
    "sys.displayhook": sys.displayhook,
    "sys.stdout": sys.stdout,
    "sys.stderr": sys.stderr,
    "sys.path": sys.path,
    "sys.argv": sys.argv,
    "threading.excepthook": threading.excepthook,
    "masked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "warnings.filters": warnings.filters,
    "fsspec": fsspec.config.conf,
    "epath": register._URI_PREFIXES_TO_CLS,
    "nltk.data.path": nltk.data.path,
    "umask": umask,
    "folder": os.getcwd(),
    "random": hash(random.getstate()),
    "numpy.random": np.random.get_state(legacy=True)[1].tobytes(),
    "numpy": (np.geterr(), np.get_printoptions()),
    "gc": (gc.isenabled(), gc.get_threshold()),
    "bars of datasets": datasets.are_progress_bars_disabled(),
    "bars of the hub": huggingface_hub.utils.are_progress_bars_disabled(),
    "bars of transformers": hf_logging.is_progress_bar_enabled(),
  }
  return {name: repr(x) for name, x in state.items()}


def import_all():
  """Imports all modules of the package, but not what is only a command."""
  import truenegs_jax

  for name in truenegs_jax.__all__:
    getattr(truenegs_jax, name)
  prefix = "truenegs_jax."
  for module in pkgutil.walk_packages(truenegs_jax.__path__, prefix):
    try:
      importlib.import_module(module.name)
    except ImportError as e:  # an extra
      if (e.name or "").startswith("truenegs_jax"):
        raise


def prepare_and_read(folder):
  """Prepares rows of files and of a data set, and reads batches."""
  from truenegs_jax.data import prepare, sources
  from truenegs_jax.data import rows as rows_folder

  rng = random.Random(0)
  lines = [" ".join(rng.choices(WORDS[:6], k=50)) for _ in range(60)]
  (folder / "a.txt").write_text("\n\n".join(lines))
  vocab = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)
  (folder / "vocab.txt").write_text("\n".join(vocab))
  rows, tokenizer = prepare.prepare(
    str(folder / "a.txt"),
    length=16,
    vocab=str(folder / "vocab.txt"),
    rows=str(folder / "rows"),
  )
  opened = rows_folder.open_rows(rows, "train")
  rows_folder.verify_rows(rows)
  assert len(opened) > 9
  texts = sources.open_corpus(f"hf:{folder}/dataset", key="x")
  assert list(texts) == ["a b"]
  return tokenizer


def save_and_restore(folder):
  """Saves and restores a checkpoint."""
  import jax.numpy as jnp

  from truenegs_jax.workdir.checkpoints import Checkpoints

  tree = {"params": {"x": jnp.arange(3.0)}}
  for read_only in (False, True):
    checkpoints = Checkpoints(folder / "checkpoints", read_only=read_only)
    if not read_only:
      checkpoints.save(1, tree, {"run": 1}, wait=True)
    checkpoints.restore_state(1, tree)
    checkpoints.close()


def use_models(folder, tokenizer):
  """Makes models, a loss and a synonym table; exports and loads weights."""
  import jax
  import jax.numpy as jnp

  import truenegs_jax

  (folder / "pairs.tsv").write_text("main\tprimary\nhouse\thome\n")
  table = truenegs_jax.build_table(tokenizer, f"pairs path={folder}/pairs.tsv")
  model = truenegs_jax.make_electra(
    vocab_size=len(tokenizer.vocab), variant="tiny", generator_multiplier=0.5
  )
  params = truenegs_jax.init_params(model, jax.random.key(0))
  logits_BxKxV = jnp.zeros((1, 2, len(tokenizer.vocab)))
  gold_BxK = jnp.array([[6, 7]])
  weight_BxK = jnp.ones((1, 2))
  aux = {"bits_VxW": jnp.asarray(table.build_bits())}
  truenegs_jax.mlm_loss(logits_BxKxV, gold_BxK, weight_BxK, aux)
  truenegs_jax.export_model(model, params, tokenizer, folder / "export")
  loaded = truenegs_jax.load(str(folder / "export"))
  assert loaded.params


def open_others(folder):
  """Opens WordNet in a folder, and a folder in a bucket."""
  from support.mini_wordnet import write_wordnet
  from truenegs_jax.runtime import paths
  from truenegs_jax.synonyms import wordnet

  write_wordnet(folder / "corpora" / "wordnet")
  reader = wordnet.open_wordnet(str(folder / "corpora"))
  assert "home" in wordnet.find_lemma_names("house", reader)
  with contextlib.suppress(ImportError):  # an extra
    assert paths.open_path("folder", "gs://bucket/folder").system


def main(folder):
  """Prints as JSON, for each use of the package, what it changed."""
  _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
  use_third_parties(folder)
  changes = {}
  state = look()

  def compare(name):
    nonlocal state
    old = state
    state = look()
    changed = {
      key: f"{old.get(key)} -> {state.get(key)}"
      for key in old | state
      if old.get(key) != state.get(key)
      # A module that is imported is no change; one that is hidden is.
      and not (
        key.startswith("module ") and key not in old and state[key] != "None"
      )
    }
    changes[name] = changed

  import_all()
  compare("imports")
  tokenizer = prepare_and_read(folder)
  compare("rows")
  save_and_restore(folder)
  compare("checkpoints")
  use_models(folder, tokenizer)
  compare("models")
  open_others(folder)
  compare("others")
  print(json.dumps(changes))


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))
