"""Google's released checkpoints: what is found in them, by which names."""

import json
import sys

import jax
import numpy as np
import pytest
from flax import traverse_util

from support import tf1_stand_in, tiny
from truenegs_jax.models import pretrain
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights.formats import google_tf1

# Ours -> the names in google-research/electra and google-research/bert.
DENSE = {"kernel": "kernel", "bias": "bias"}
NORM = {"scale": "gamma", "bias": "beta"}
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
def stand_in(monkeypatch):
  monkeypatch.setattr(google_tf1, "load_checkpoint", tf1_stand_in.Reader)


def _names(role):
  """Every name that a network of three layers may have, by path."""
  scope, head, other = NETWORKS[role]
  family = "bert" if role == "bert" else "electra"
  names = dict(other) | {
    f"embeddings/{ours}": f"{family}/embeddings/{theirs}_embeddings"
    for ours, theirs in (
      ("word", "word"),
      ("position", "position"),
      ("type", "token_type"),
    )
  }
  modules = {
    "embeddings/norm": f"{family}/embeddings/LayerNorm",
    f"{role}/project": f"{scope}/embeddings_project",
  }
  for i in range(3):
    for ours, theirs in LAYER.items():
      modules[f"{role}/layer_{i}/{ours}"] = (
        f"{scope}/encoder/layer_{i}/{theirs}"
      )
  for ours, theirs in head.items():
    modules[f"{role}_head/{ours}"] = theirs
  for ours, theirs in modules.items():
    for a, b in (NORM if ours.endswith("norm") else DENSE).items():
      names[f"{ours}/{a}"] = f"{theirs}/{b}"
  return names


def _params(model):
  """Random parameters by path."""
  shapes = jax.eval_shape(
    lambda: pretrain.init_params(model, jax.random.key(0))
  )
  rng = np.random.default_rng(0)
  return {
    name: rng.normal(0, 0.1, x.shape).astype(np.float32)
    for name, x in traverse_util.flatten_dict(shapes, sep="/").items()
  }


def _own(params, role):
  """Those of one network, by path."""
  own = ("embeddings/", f"{role}/", f"{role}_head/", "pooled/")
  return {name: x for name, x in params.items() if name.startswith(own)}


def _arrays(model, params):
  """A checkpoint's arrays by TensorFlow's names."""
  arrays = {}
  for role in model.roles:
    names = _names(role)
    for ours, x in _own(params, role).items():
      turned = "next_sentence/kernel" in ours
      arrays[names[ours]] = x.T if turned else x
  return arrays


def _state(arrays):
  """What training adds to a checkpoint."""
  slots = {f"{name}/{s}": x for name, x in arrays.items() for s in SLOTS}
  return slots | {"global_step": np.int64(7), "beta1_power": np.float32(1)}


def _write(folder, model, *, name="model.ckpt", without=(), **more):
  arrays = _arrays(model, _params(model))
  kept = {n: x for n, x in arrays.items() if not n.startswith(without)}
  tf1_stand_in.write(folder / name, kept | more)
  return folder


def _assert_same(network, model, params):
  """All that is there is what was written, and nothing else is."""
  table = network.name_table(model, network.role)
  expected = _own(params, network.role)
  assert table.keys() == expected.keys()
  assert set(table.values()) == network.arrays.shapes.keys()
  assert not network.transposed_kernels
  for ours, x in expected.items():
    read = network.arrays.read(table[ours])
    assert network.arrays.shapes[table[ours]] == read.shape
    assert network.arrays.dtypes[table[ours]] == read.dtype
    np.testing.assert_array_equal(read, x)


MODELS = {
  "narrow embeddings": lambda: tiny.make_model(),
  "embeddings as wide as the discriminator": lambda: tiny.make_model(
    embedding_size=32
  ),
  "embeddings as wide as the generator": lambda: pretrain.make_pair(
    vocab_size=tiny.V, variant="tiny", generator_multiplier=1, embedding_size=32
  ),
  "bert": lambda: tiny.make_bert(),
  "bert with its pooler": lambda: tiny.make_bert(pooler=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_was_written_is_read_without_the_optimizers_state(tmp_path, name):
  model = MODELS[name]()
  params = _params(model)
  arrays = _arrays(model, params)
  tf1_stand_in.write(tmp_path / "model.ckpt", arrays | _state(arrays))
  networks = google_tf1.open_networks(tmp_path)
  assert list(networks) == list(model.roles)
  for role, network in networks.items():
    assert network.role == role
    assert network.location == str(tmp_path / "model.ckpt")
    _assert_same(network, model, params)


def test_tensorflow_reads_its_own_checkpoint(tmp_path, monkeypatch):
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


def test_without_tensorflow_the_message_says_what_to_install(
  tmp_path, monkeypatch
):
  monkeypatch.undo()
  monkeypatch.setitem(sys.modules, "tensorflow", None)
  _write(tmp_path, tiny.make_bert())
  with pytest.raises(InputError, match=r"pip install 'truenegs_jax\[tf\]'"):
    google_tf1.open_networks(tmp_path)


def test_other_types_than_f32_are_refused(tmp_path):
  name = "bert/embeddings/LayerNorm/beta"
  _write(tmp_path, tiny.make_bert(), **{name: np.zeros(32, np.int32)})
  network = google_tf1.open_networks(tmp_path)["bert"]
  with pytest.raises(InputError, match="of type int32"):
    network.arrays.read(name)


def test_sizes_are_read_off_the_shapes(tmp_path):
  model = pretrain.make_pair(
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
  own = ("hidden_size", "intermediate_size")
  networks = google_tf1.open_networks(tmp_path)
  for role, sizes in (
    ("discriminator", (192, 80)),
    ("generator", (96, 384)),
  ):
    expected = shared | dict(zip(own, sizes, strict=True))
    assert networks[role].fields == expected


def test_what_berts_config_says_goes_before_what_is_guessed(tmp_path):
  _write(tmp_path, tiny.make_bert())
  guessed = google_tf1.open_networks(tmp_path)["bert"].fields
  assert guessed["model_type"] == "bert"
  assert "num_attention_heads" not in guessed  # it shows in no shape
  said = {"num_attention_heads": 4, "hidden_act": "relu", "vocab_size": 9}
  (tmp_path / "bert_config.json").write_text(json.dumps(said))
  assert google_tf1.open_networks(tmp_path)["bert"].fields == guessed | said
  for text in ("{", "[1]", "\ud800".encode("utf-8", "surrogatepass")):
    data = text.encode() if isinstance(text, str) else text
    (tmp_path / "bert_config.json").write_bytes(data)
    with pytest.raises(InputError, match="^init: .*bert_config.json"):
      google_tf1.open_networks(tmp_path)


@pytest.mark.parametrize("absent", ["generator/", "generator_predictions/"])
def test_a_pair_without_a_part_of_its_generator_has_none(tmp_path, absent):
  model = tiny.make_model()
  networks = google_tf1.open_networks(
    _write(tmp_path, model, without=(absent,))
  )
  assert list(networks) == ["discriminator"]
  _assert_same(networks["discriminator"], model, _params(model))


def test_a_vocabulary_is_found_and_its_case_not_guessed(tmp_path):
  folder = _write(tmp_path / "uncased", tiny.make_bert())
  assert google_tf1.open_networks(folder)["bert"].vocabulary is None
  (folder / "vocab.txt").write_text("[PAD]\n")
  network = google_tf1.open_networks(folder)["bert"]
  assert network.vocabulary == folder / "vocab.txt"
  assert network.lowercase is None


def test_other_networks_are_refused(tmp_path):
  folder = _write(tmp_path, tiny.make_bert(), without=("bert/",))
  with pytest.raises(
    InputError, match="^init: .*no ELECTRA and no BERT.*'cls'"
  ):
    google_tf1.open_networks(folder)
  folder = _write(tmp_path, tiny.make_bert(), without=("bert/embeddings/word",))
  with pytest.raises(InputError, match="no matrix bert/embeddings/word_embed"):
    google_tf1.open_networks(folder)
  with pytest.raises(InputError, match="no TensorFlow checkpoint"):
    google_tf1.open_networks(tmp_path.parent)


def _touch(folder, *names):
  for name in names:
    for ending in ("index", "data-00000-of-00002", "meta"):
      (folder / f"{name}.{ending}").touch()


def test_the_only_checkpoint_of_a_folder_is_found(tmp_path):
  (tmp_path / "x.ckpt.data-00000-of-00001").touch()
  (tmp_path / "model.safetensors.index.json").touch()
  (tmp_path / "folder.index").mkdir()
  assert google_tf1.find_index(tmp_path) is None
  (tmp_path / "alone.index").touch()
  assert google_tf1.find_index(tmp_path) == tmp_path / "alone.index"
  _touch(tmp_path, "a[b]*.ckpt-100")
  assert google_tf1.find_index(tmp_path) == tmp_path / "a[b]*.ckpt-100.index"


@pytest.mark.parametrize("prefix", ["", "/cns/a b/", "C:\\\\runs\\\\"])
def test_the_checkpoint_that_is_named_is_taken(tmp_path, prefix):
  _touch(tmp_path, "m-1", "m-2", "m-3")
  with pytest.raises(InputError, match="several checkpoints: m-1, m-2, m-3;"):
    google_tf1.find_index(tmp_path)
  (tmp_path / "checkpoint").write_text(
    f'model_checkpoint_path: "{prefix}m-2"\n'
    'all_model_checkpoint_paths: "m-1"\nall_model_checkpoint_paths: "m-2"\n'
  )
  assert google_tf1.find_index(tmp_path) == tmp_path / "m-2.index"


@pytest.mark.parametrize("named", ["m-3", "", "..", "m-1\x00", "x" * 5_000])
def test_a_named_checkpoint_has_to_be_there(tmp_path, named):
  _touch(tmp_path, "m-1")
  (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{named}"')
  with pytest.raises(InputError, match="^init: .*there is m-1"):
    google_tf1.find_index(tmp_path)
