"""Reading Google's released TensorFlow checkpoints."""

import json
import sys

import numpy as np
import pytest
from flax import traverse_util

from support import tf1_stand_in, tiny
from support.weight_files import random_params
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import google_tf1

# Our names -> names in google-research/electra and google-research/bert.
DENSE = {"kernel": "kernel", "bias": "bias"}
NORM = {"scale": "gamma", "bias": "beta"}
TABLES = {"word": "word", "position": "position", "type": "token_type"}
LAYER = {
  "query": "attention/self/query",
  "key": "attention/self/key",
  "value": "attention/self/value",
  "attention_output": "attention/output/dense",
  "attention_norm": "attention/output/LayerNorm",
  "ffn_input": "intermediate/dense",
  "ffn_output": "output/dense",
  "ffn_norm": "output/LayerNorm",
}
NETWORKS = {
  "discriminator": (
    "electra",
    {
      "dense": "discriminator_predictions/dense",
      "output": "discriminator_predictions/dense_1",
    },
    {},
  ),
  "generator": (
    "generator",
    {
      "dense": "generator_predictions/dense",
      "norm": "generator_predictions/LayerNorm",
    },
    {"generator_head/bias": "generator_predictions/output_bias"},
  ),
  "bert": (
    "bert",
    {
      "dense": "cls/predictions/transform/dense",
      "norm": "cls/predictions/transform/LayerNorm",
    },
    {
      "bert_head/bias": "cls/predictions/output_bias",
      "pooled/pooler/kernel": "bert/pooler/dense/kernel",
      "pooled/pooler/bias": "bert/pooler/dense/bias",
      "pooled/next_sentence/kernel": "cls/seq_relationship/output_weights",
      "pooled/next_sentence/bias": "cls/seq_relationship/output_bias",
    },
  ),
}
SLOTS = ("adam_m", "adam_v", "adam_m_1", "AdamWeightDecayOptimizer", "Adam_1")


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch):
  monkeypatch.setattr(google_tf1, "load_checkpoint", tf1_stand_in.Reader)


def _expected_names(role):
  """Returns {path: name} of all arrays that three layers may have."""
  scope, head, arrays = NETWORKS[role]
  family = "bert" if role == "bert" else "electra"
  names = dict(arrays) | {
    f"embeddings/{kind}": f"{family}/embeddings/{name}_embeddings"
    for kind, name in TABLES.items()
  }
  modules = {
    "embeddings/norm": f"{family}/embeddings/LayerNorm",
    f"{role}/project": f"{scope}/embeddings_project",
  }
  for i in range(3):
    for module, name in LAYER.items():
      modules[f"{role}/layer_{i}/{module}"] = (
        f"{scope}/encoder/layer_{i}/{name}"
      )
  for module, name in head.items():
    modules[f"{role}_head/{module}"] = name
  for module, name in modules.items():
    suffixes = NORM if module.endswith("norm") else DENSE
    for ours, suffix in suffixes.items():
      names[f"{module}/{ours}"] = f"{name}/{suffix}"
  return names


def _params(model):
  """Returns random parameters by path."""
  return traverse_util.flatten_dict(random_params(model), sep="/")


def _select(params, role):
  """Selects the parameters of one network."""
  prefixes = ("embeddings/", f"{role}/", f"{role}_head/", "pooled/")
  return {name: x for name, x in params.items() if name.startswith(prefixes)}


def _arrays(model, params):
  """Returns the arrays of a checkpoint by TensorFlow's names."""
  arrays = {}
  for role in model.roles:
    names = _expected_names(role)
    for path, x in _select(params, role).items():
      is_transposed = "next_sentence/kernel" in path
      arrays[names[path]] = x.T if is_transposed else x
  return arrays


def _optimizer_arrays(arrays):
  """Returns the arrays that training adds to a checkpoint."""
  slots = {f"{name}/{s}": x for name, x in arrays.items() for s in SLOTS}
  return slots | {"global_step": np.int64(7), "beta1_power": np.float32(1)}


def _write(folder, model, *, name="model.ckpt", without=(), **more):
  arrays = _arrays(model, _params(model))
  kept = {n: x for n, x in arrays.items() if not n.startswith(without)}
  tf1_stand_in.write_checkpoint(folder / name, kept | more)
  return folder


def _assert_same(network, model, params):
  """Asserts that a network holds exactly these parameters."""
  table = network.name_table(model, network.role)
  expected = _select(params, network.role)
  assert table.keys() == expected.keys()
  assert set(table.values()) == network.arrays.shapes.keys()
  assert not network.transposed_kernels
  for path, x in expected.items():
    loaded = network.arrays.read(table[path])
    assert network.arrays.shapes[table[path]] == loaded.shape
    assert network.arrays.dtypes[table[path]] == loaded.dtype
    np.testing.assert_array_equal(loaded, x)


MODELS = {
  "narrow embeddings": lambda: tiny.make_model(),
  "embeddings as wide as the discriminator": lambda: tiny.make_model(
    embedding_size=32
  ),
  "embeddings as wide as the generator": lambda: pretrain.make_electra(
    vocab_size=tiny.V, variant="tiny", generator_multiplier=1, embedding_size=32
  ),
  "bert": lambda: tiny.make_bert(),
  "bert with its pooler": lambda: tiny.make_bert(pooler=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_reads_networks_without_optimizer_arrays(tmp_path, name):
  model = MODELS[name]()
  params = _params(model)
  arrays = _arrays(model, params)
  tf1_stand_in.write_checkpoint(
    tmp_path / "model.ckpt", arrays | _optimizer_arrays(arrays)
  )
  networks = google_tf1.open_networks(tmp_path)
  assert list(networks) == list(model.roles)
  for role, network in networks.items():
    assert network.role == role
    assert network.location == f"'{tmp_path / 'model.ckpt'}'"
    _assert_same(network, model, params)


def test_reads_a_checkpoint_that_tensorflow_wrote(tmp_path, monkeypatch):
  tensorflow = pytest.importorskip("tensorflow")
  monkeypatch.undo()
  model = tiny.make_bert(pooler=True)
  params = _params(model)
  arrays = _arrays(model, params)
  prefix = tmp_path / "model.ckpt"
  tensorflow.raw_ops.SaveV2(
    prefix=str(prefix),
    tensor_names=list(arrays),
    shape_and_slices=[""] * len(arrays),
    tensors=list(arrays.values()),
  )
  _assert_same(google_tf1.open_networks(tmp_path)["bert"], model, params)
  data = tmp_path / "model.ckpt.data-00000-of-00001"
  data.write_bytes(data.read_bytes()[:-100])
  network = google_tf1.open_networks(tmp_path)["bert"]
  with pytest.raises(InputError, match="^init: .*cannot be read"):
    for name in network.arrays.shapes:
      network.arrays.read(name)
  (tmp_path / "model.ckpt.index").write_bytes(b"")
  with pytest.raises(InputError, match="^init: .*cannot be read"):
    google_tf1.open_networks(tmp_path)


def test_missing_tensorflow_error_names_the_package(tmp_path, monkeypatch):
  monkeypatch.undo()
  monkeypatch.setitem(sys.modules, "tensorflow", None)
  _write(tmp_path, tiny.make_bert())
  with pytest.raises(InputError, match=r"pip install 'truenegs_jax\[tf\]'"):
    google_tf1.open_networks(tmp_path)


def test_types_other_than_float32_are_refused(tmp_path):
  name = "bert/embeddings/LayerNorm/beta"
  _write(tmp_path, tiny.make_bert(), **{name: np.zeros(32, np.int32)})
  network = google_tf1.open_networks(tmp_path)["bert"]
  with pytest.raises(InputError, match="of type int32"):
    network.arrays.read(name)


def test_sizes_are_derived_from_shapes(tmp_path):
  model = pretrain.make_electra(
    vocab_size=90,
    variant="tiny",
    generator_multiplier=0.5,
    width=192,
    heads=3,
    ffn=80,
    layers=3,
    max_positions=40,
    type_vocab_size=5,
  )
  _write(tmp_path, model)
  shared = {
    "model_type": "electra",
    "vocab_size": 90,
    "embedding_size": 16,
    "num_hidden_layers": 3,
    "hidden_act": "gelu",
    "max_position_embeddings": 40,
    "type_vocab_size": 5,
    "layer_norm_eps": 1e-12,
  }
  names = ("hidden_size", "intermediate_size")
  networks = google_tf1.open_networks(tmp_path)
  for role, sizes in ("discriminator", (192, 80)), ("generator", (96, 384)):
    expected = shared | dict(zip(names, sizes, strict=True))
    assert networks[role].fields == expected


def test_bert_config_overrides_derived_fields(tmp_path):
  _write(tmp_path, tiny.make_bert())
  derived = google_tf1.open_networks(tmp_path)["bert"].fields
  assert derived["model_type"] == "bert"
  assert "num_attention_heads" not in derived  # no shape depends on it
  saved = {"num_attention_heads": 4, "hidden_act": "relu", "vocab_size": 9}
  (tmp_path / "bert_config.json").write_text(json.dumps(saved))
  assert google_tf1.open_networks(tmp_path)["bert"].fields == derived | saved
  for text in ("{", "[1]", "\ud800".encode("utf-8", "surrogatepass")):
    data = text.encode() if isinstance(text, str) else text
    (tmp_path / "bert_config.json").write_bytes(data)
    with pytest.raises(InputError, match="^init: .*bert_config.json"):
      google_tf1.open_networks(tmp_path)


@pytest.mark.parametrize("missing", ["generator/", "generator_predictions/"])
def test_an_incomplete_generator_is_ignored(tmp_path, missing):
  model = tiny.make_model()
  networks = google_tf1.open_networks(
    _write(tmp_path, model, without=(missing,))
  )
  assert list(networks) == ["discriminator"]
  _assert_same(networks["discriminator"], model, _params(model))


def test_finds_the_vocabulary_and_leaves_its_case_unknown(tmp_path):
  folder = _write(tmp_path / "uncased", tiny.make_bert())
  assert google_tf1.open_networks(folder)["bert"].vocabulary is None
  (folder / "vocab.txt").write_text("[PAD]\n")
  network = google_tf1.open_networks(folder)["bert"]
  assert network.vocabulary == folder / "vocab.txt"
  assert network.lowercase is None


def test_other_checkpoints_are_refused(tmp_path):
  folder = _write(tmp_path, tiny.make_bert(), without=("bert/",))
  with pytest.raises(
    InputError, match="^init: .*not a checkpoint of ELECTRA or BERT.*'cls'"
  ):
    google_tf1.open_networks(folder)
  folder = _write(tmp_path, tiny.make_bert(), without=("bert/embeddings/word",))
  with pytest.raises(InputError, match="no matrix 'bert/embeddings/word_embed"):
    google_tf1.open_networks(folder)
  with pytest.raises(InputError, match="no TensorFlow checkpoint"):
    google_tf1.open_networks(tmp_path.parent)


def _touch(folder, *names):
  for name in names:
    for ending in ("index", "data-00000-of-00002", "meta"):
      (folder / f"{name}.{ending}").touch()


def test_finds_the_only_checkpoint(tmp_path):
  (tmp_path / "x.ckpt.data-00000-of-00001").touch()
  (tmp_path / "model.safetensors.index.json").touch()
  (tmp_path / "folder.index").mkdir()
  assert google_tf1.find_index(tmp_path) is None
  (tmp_path / "alone.index").touch()
  assert google_tf1.find_index(tmp_path) == tmp_path / "alone.index"
  _touch(tmp_path, "a[b]*.ckpt-100")
  assert google_tf1.find_index(tmp_path) == tmp_path / "a[b]*.ckpt-100.index"


@pytest.mark.parametrize("prefix", ["", "/cns/a b/", "C:\\\\runs\\\\"])
def test_the_state_file_selects_a_checkpoint(tmp_path, prefix):
  _touch(tmp_path, "m-1", "m-2", "m-3")
  with pytest.raises(InputError, match=r"several checkpoints: m-1, m-2, m-3\."):
    google_tf1.find_index(tmp_path)
  (tmp_path / "checkpoint").write_text(
    f'model_checkpoint_path: "{prefix}m-2"\n'
    'all_model_checkpoint_paths: "m-1"\nall_model_checkpoint_paths: "m-2"\n'
  )
  assert google_tf1.find_index(tmp_path) == tmp_path / "m-2.index"


@pytest.mark.parametrize("named", ["m-3", "", "..", "m-1\x00", "x" * 5_000])
def test_a_missing_named_checkpoint_is_refused(tmp_path, named):
  _touch(tmp_path, "m-1")
  (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{named}"')
  with pytest.raises(InputError, match="^init: .*folder holds m-1"):
    google_tf1.find_index(tmp_path)
