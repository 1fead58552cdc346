"""Names of weights, texts and commands without folders."""

import pytest

from truenegs_jax.weights import model_card


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("/home/me/my texts/*.txt weight=2, ~/b.txt", "*.txt weight=2, b.txt"),
    (
      "wordnet | vectors path=/x y/g.txt top=10",
      "wordnet | vectors path=g.txt top=10",
    ),
    (
      "hf:a/b revision=refs/convert/parquet",
      "hf:a/b revision=refs/convert/parquet",
    ),
    ("hf:/data/mine, ('texts/a.txt', '/b/c')", "mine, ('texts/a.txt', 'c')"),
    ("hf:a/b split=train dev=../x/dev.csv", "hf:a/b split=train dev=dev.csv"),
    ("google/electra@main, /w/generator", "google/electra@main, generator"),
  ],
)
def test_folders_are_hidden(text, expected):
  assert model_card.hide_folders(text) == expected


def test_command_keeps_its_words():
  command = "python -m x --workdir=/a --config /a/b.py '--y.z=/c d/e.txt x=y'"
  expected = "python -m x --config b.py '--y.z=e.txt x=y'"
  assert model_card.hide_in_command(command) == expected


def test_an_existing_folder_is_no_name_of_the_hub(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert model_card.find_datasets("hf:owner/set, hf:/a") == ["owner/set"]
  (tmp_path / "owner" / "set").mkdir(parents=True)
  assert model_card.find_datasets("hf:owner/set, hf:/a") == []


def test_only_models_in_the_cache_of_the_hub_are_named(tmp_path, monkeypatch):
  cache = tmp_path / "models--owner--bert"
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
  cache.mkdir()
  assert model_card.describe_base("owner/bert@main, runs/mine") == {
    "base_model": ["owner/bert"],
    "base_model_relation": "finetune",
  }


@pytest.mark.parametrize(
  ("card", "expected"),
  [
    ("---\nlanguage: [fr, de]\nlicense: mit\n---\n", (["fr", "de"], "mit")),
    ("---\nlicense: [\n---\n", ()),
    ("no metadata", (None, None)),
  ],
)
def test_language_and_license_of_a_card(tmp_path, card, expected):
  assert model_card.read_metadata(str(tmp_path)) == {}
  (tmp_path / "bert").mkdir()
  (tmp_path / "bert" / "README.md").write_text(card)
  metadata = model_card.read_metadata(str(tmp_path))
  assert tuple(metadata.values()) == expected
