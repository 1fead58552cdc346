"""ModernBERT's folders of transformers, in both formats of their config."""

import shutil

import numpy as np
import pytest

from support import tiny, tokenizer_files
from support.tokenizer_files import write_vocabulary
from support.weight_files import (
  TOKENIZER,
  assert_same_tree,
  edit_config,
  edit_tensors,
  load_params,
  random_params,
  read_tensors,
)
from truenegs_jax.pretrain import fill_masks
from truenegs_jax.runtime.errors import InputError
from truenegs_jax.weights import export_model, load

THETAS = {"global_rope_theta": 500.0, "local_rope_theta": 50.0}
VERSION_4 = {
  **{"rope_parameters": None, "layer_types": None, **THETAS},
  "position_embedding_type": "sans_pos",  # of Ettin and mmBERT
}
FULL, LOCAL = "full_attention", "sliding_attention"


def _make_network(vocab_size=tiny.V):
  transformers = pytest.importorskip("transformers")
  torch = pytest.importorskip("torch")
  torch.manual_seed(0)
  config = transformers.ModernBertConfig(
    vocab_size=vocab_size,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=4,
    num_attention_heads=2,
    initializer_range=0.3,
    max_position_embeddings=150,
    **dict.fromkeys(("cls_token_id", "bos_token_id"), tiny.CLS),
    **dict.fromkeys(("sep_token_id", "eos_token_id"), tiny.SEP),
    pad_token_id=tiny.PAD,
    **THETAS,
  )
  network = transformers.ModernBertForMaskedLM(config)
  with torch.no_grad():
    network.decoder.bias.normal_()
  return network


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
  """Returns folders of a masked model and of its encoder alone."""
  network = _make_network()
  masked, bare = (tmp_path_factory.mktemp(x) for x in ("masked", "bare"))
  network.save_pretrained(masked)
  network.model.save_pretrained(bare)
  for folder in (masked, bare):
    write_vocabulary(TOKENIZER.vocab, folder / "vocab.txt")
  return masked, bare


CONFIGS = {  # changed fields, and layers between global ones
  "v5": ({}, 3),
  "v4": (VERSION_4, 3),
  "v5, odd window": (
    {"layer_types": [FULL, LOCAL, FULL, LOCAL], "local_attention": 9},
    2,
  ),
  "v4, two": ({**VERSION_4, "global_attn_every_n_layers": 2}, 2),
  "one global layer": ({"layer_types": [FULL, LOCAL, LOCAL, LOCAL]}, 4),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_released_folder_computes_the_logits_of_transformers(
  folders, tmp_path, monkeypatch, case
):
  changed, every = CONFIGS[case]
  masked = shutil.copytree(folders[0], tmp_path / "masked")
  edit_config(masked, changed)
  model, params, _ = load.load(str(masked), report=str)
  config = model.config
  assert config.global_every == every
  assert config.window == changed.get("local_attention", 128) // 2
  assert [*THETAS.values()] == [
    config.global_rope_theta,
    config.local_rope_theta,
  ]
  # Longer than a window.
  inputs = tiny.make_batch(0, rows=2, length=150)
  del inputs["row"]
  monkeypatch.setattr(export_model, "_random_inputs", lambda config: inputs)
  summary = export_model.compare_logits({"bert": masked}, params, model)
  assert "loads ModernBertForMaskedLM and computes our logits" in summary


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_another_tokenizer_goes_through(tmp_path, kind):
  """From a released folder to an export, and the masks that both fill."""
  network, released = _make_network(320), tmp_path / "released"
  network.save_pretrained(released)
  tokenizer_files.write_files(released, kind)
  model, params, tokenizer = load.load(str(released), report=str)
  assert len(tokenizer.vocab) == model.config.vocab_size == 320
  export_model.write_model(tmp_path, params, model, "bert", tokenizer)
  transformers = pytest.importorskip("transformers")
  pipeline = transformers.pipeline("fill-mask", str(tmp_path))
  assert len(pipeline.tokenizer) == 320
  assert pipeline.tokenizer.model_max_length == 150
  text = "the [MASK] flies."
  [fill] = fill_masks.fill_masks(model, params, tokenizer, [text])
  answers = pipeline(text.replace("[MASK]", pipeline.tokenizer.mask_token))
  scores = [answer["score"] for answer in answers]
  np.testing.assert_allclose(scores, fill.probabilities, rtol=1e-4)


ROPE = {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}
REFUSED = [
  ({"layer_types": [FULL, LOCAL, LOCAL, LOCAL, FULL]}, "another order"),
  ({"layer_types": [LOCAL, FULL, LOCAL, FULL]}, "another order"),
  ({"attention_bias": True}, "attention_bias is True"),
  ({"local_attention": 1}, "local_attention=1, which is not a valid size"),
  (ROPE, "rotary positions.*yarn"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_another_architecture_is_refused(folders, tmp_path, changed, message):
  folder = shutil.copytree(folders[1], tmp_path / "changed")
  edit_config(folder, changed)
  with pytest.raises(InputError, match=message):
    load.load(str(folder), report=str)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  """Returns the export of a detection run and its parameters."""
  pytest.importorskip("torch")
  model = tiny.make_model(backbone="modern", max_positions=150)
  params, folder = random_params(model), tmp_path_factory.mktemp("run") / "out"
  line = export_model.export_model(model, params, TOKENIZER, folder)
  for name in ("Model", "ForTokenClassification", "ForMaskedLM"):
    assert f"ModernBert{name} " in line
  return folder, params


def test_a_detection_run_becomes_an_encoder_a_detector_and_a_generator(pair):
  import transformers

  folder = pair[0] / "discriminator"  # the export has compared its logits
  config = transformers.AutoConfig.from_pretrained(folder / "detector")
  assert config.id2label == {0: "original", 1: "replaced"}
  # The folder has the names that transformers writes for an encoder.
  encoder = transformers.AutoModel.from_pretrained(folder)
  assert read_tensors(folder).keys() == encoder.state_dict().keys()
  export_model.check_replaceable(pair[0])


@pytest.mark.parametrize(
  "init", ["{0}", "{0}/discriminator,{0}/generator", "{0}/discriminator"]
)
def test_detection_continues_from_its_export_bit_for_bit(pair, init):
  folder, params = pair
  loaded = load.load(init.format(folder), report=str)
  is_alone = init == "{0}/discriminator"
  for name in params:
    if not (is_alone and name.startswith("generator")):
      assert_same_tree(loaded.params[name], params[name])


def test_only_the_difference_of_a_detectors_labels_counts(pair, tmp_path):
  folder = shutil.copytree(pair[0] / "discriminator/detector", tmp_path / "a")
  (folder / "SHA256SUMS").unlink()
  tensors = read_tensors(folder)
  for name in ("classifier.weight", "classifier.bias"):
    edit_tensors(folder, {name: tensors[name] + np.float32(0.5)})
  loaded = load.load(str(folder), report=str).params["discriminator_head"]
  for name, x in pair[1]["discriminator_head"]["output"].items():
    np.testing.assert_allclose(loaded["output"][name], x, atol=1e-6)


def _downstream(role, head):
  layers = 4 if role == "bert" else 2
  sizes = {"backbone": "modern", "max_positions": 150, "layers": layers}
  return tiny.make_downstream(role, head, **sizes, **THETAS)


@pytest.mark.parametrize("head", ["dense", "spans"])
def test_fine_tuning_starts_as_in_transformers(folders, pair, head):
  model = _downstream("bert", head)
  masked = load.load(str(folders[0]), report=str).params
  tuned, lines = load_params(folders[0], model)
  assert lines[0].endswith(": decoder.")
  assert lines[1].endswith("DRAWN AT RANDOM: task_head/output.")
  assert_same_tree(tuned["bert"], masked["bert"])
  for layer in ("dense", "norm"):  # of a masked language model
    assert_same_tree(tuned["task_head"][layer], masked["bert_head"][layer])
  # A detector's two labels are not those of the task.
  model = _downstream("discriminator", head)
  tuned, lines = load_params(pair[0], model)
  assert_same_tree(tuned["discriminator"], pair[1]["discriminator"])
  assert lines[0].endswith(": classifier, head.")


@pytest.mark.parametrize(
  "saved", ["ForQuestionAnswering", "ForTokenC", "Model"]
)
def test_heads_of_equal_names_are_told_apart(folders, tmp_path, saved):
  folder = shutil.copytree(folders[1], tmp_path / "changed")
  head = {"head.dense.weight": np.zeros((32, 32), np.float32)}
  head |= {"classifier.weight": np.zeros((2, 32), np.float32)}
  head |= {"classifier.bias": np.zeros(2, np.float32)}
  edit_tensors(folder, head | {"head.norm.weight": np.ones(32, np.float32)})
  edit_config(folder, {"architectures": [f"ModernBert{saved}"]})
  model = _downstream("bert", "dense")
  _, lines = load_params(folder, model)
  assert lines[0].endswith(": classifier, head.")
