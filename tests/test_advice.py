"""Types what messages tell the user to type, and sees that it helps."""

import contextlib
import errno
import os
import pathlib
import re
import shlex
import shutil
import signal
from unittest import mock

import huggingface_hub
import nltk
import orbax.checkpoint as ocp
import pytest

from support import commands, shared_runs, word_task
from support.mini_wordnet import write_wordnet
from truenegs_jax.data import batches
from truenegs_jax.synonyms import wordnet

DRY = " --config.dry_run"
MAIN = "truenegs main --config=electra_small:sr,runlocal {flags}"
NEW = f"{MAIN} --workdir=new"
# A BERT compiles faster than a pair.
TRAIN = (
  "truenegs main --config=bert_base:baseline,runlocal {flags} --workdir=new"
)
INIT = f"{NEW}{DRY} --config.data.vocab=init --config.init="
PREPARE = (
  "truenegs prepare --config=electra_small --config.data.vocab=train {flags}"
)
NEW_ROWS = f"{PREPARE} --config.data.rows=new_rows"
# Commands that get what the command before needs, which is then typed again.
HELPERS = re.compile(r"hf download .*|.* wordnet")
MODEL = "run/export/discriminator"  # on the hub, it is owner/model
batch_at = batches.batch_at


def stopped():
  def stop(*args, **options):
    signal.raise_signal(signal.SIGTERM)
    return batch_at(*args, **options)

  return mock.patch.object(batches, "batch_at", stop)


def out_of_memory():
  error = RuntimeError("RESOURCE_EXHAUSTED: 60 GiB")
  return mock.patch.object(batches, "batch_at", side_effect=error)


def full_disk_at_saves():
  error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  return mock.patch.object(ocp.AsyncCheckpointer, "save", side_effect=error)


def written(name, text):
  """Returns a state in which a file ends with another text."""

  @contextlib.contextmanager
  def state():
    path = pathlib.Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
      file.write(text)
    yield

  return state


def case(command, *messages, fills=(), state=contextlib.nullcontext, ends=""):
  """Describes a command, and what its messages tell the user to type.

  Args:
    messages: a pattern for the output of each command but the last. Its groups
      are typed: a command, flags for the same command, or a path to remove.
      Without groups it is the same command.
    fills: what the user types for parts of it, such as FOLDER.
    state: opens a context for the first command.
    ends: a pattern for the last output.
  """
  return command, messages, dict(fills), state, ends


CASES = {
  "train": case(
    "truenegs train",
    r"no verb 'train'. Run (.* main)\.",
    r"is missing. Try (--config=demo)\.",
    fills={"demo": f"run/config.json{DRY}"},
  ),
  "push": case(
    "truenegs push",
    r"no verb 'push'. Run (hf upload OWNER/NAME FOLDER)\.",
    fills={"OWNER/NAME FOLDER": "--help"},
    ends="Upload a file or a folder",
  ),
  "reprot": case(
    "truenegs reprot",
    r"no verb 'reprot'. Did you mean (.* report)\?",
    r"Name runs to show: (.* report runs/a runs/b)\.",
    fills={"runs/a runs/b": "run"},
  ),
  "synonyms": case(
    "truenegs synonyms",
    r"such as: (.* synonyms primary)\.",
    r"package wordnet .*Run (.* wordnet)\.",
  ),
  "output of an export": case(
    "truenegs export run --output=.",
    r"choose another (--output)\.",
    fills={"--output": "--output=out"},
  ),
  "text": case(
    "truenegs prepare --config=own --config.data.rows=new_rows",
    r"Set (--config.data.sources='texts/\*.txt'), for example",
  ),
  "vocabulary of text": case(
    f"{NEW_ROWS} --config.data.vocab_size=20",
    r"Set (--config.data.vocab_size) to (\d+) or more\.",
  ),
  "vocabulary": case(
    f"{NEW_ROWS} --config.data.vocab=none.txt",
    "'none.txt' does not exist. Set (--config.data.vocab=FILE),",
    fills={"FILE": "vocab.txt"},
  ),
  "vocabulary of the hub": case(
    f"{NEW_ROWS} --config.data.vocab=owner/model",
    "Run `(hf download owner/model --local-dir FOLDER)` elsewhere",
    r"and set (--config.data.vocab=FOLDER)\.",
    fills={"FOLDER": "local"},
  ),
  "rows of other options": case(
    f"{PREPARE} --config.length=64",
    r"data.rows='(.*)' was prepared .*\n.*\nRemove the folder",
  ),
  "damaged rows": case(
    PREPARE,
    "'(.*)/manifest.json' cannot be read.* Remove the folder and run the",
    state=written("rows/manifest.json", "?"),
  ),
  "mesh": case(
    f"{NEW}{DRY} --config.mesh.model=2",
    r"Set (--config.mesh.preset=fsdp_tp)\.",
    r"Set (--config.mesh.model=NUMBER) to a divisor\.",
    fills={"NUMBER": "1"},
  ),
  "init of another size": case(
    f"{INIT}run --config.model.layers=2",
    r"is 1, the model's is 2\n(?s:.*) set (--config.model.variant=init);",
  ),
  "init of other words": case(
    f"{INIT}run --config.data.vocab=vocab.txt",
    r"not the run's vocabulary.* Set (--config.data.vocab=\S+); a training may",
  ),
  "init of the hub": case(
    f"{NEW} --config.data.vocab=init --config.init=owner/model",
    "`(hf download owner/model --local-dir FOLDER)` wrote",
    r"on another machine: (--config.init=FOLDER)\.",
    fills={"dir FOLDER": "dir local", "init=FOLDER": f"init=local{DRY}"},
  ),
  "init that was changed": case(
    f"{INIT}run/export",
    r"not as listed in '(.*SHA256SUMS)', .* remove SHA256SUMS\.",
    state=written(f"{MODEL}/config.json", " "),
  ),
  "workdir of a run": case(
    f"{MAIN} --workdir=run --config.seed=1",
    "Pass (--workdir=runs/NAME) for a new run, with (--config.branch=run"
    " --config.steps=24) to",
    ends="resumed at step 12 of 'runs/NAME'",
  ),
  "workdir of another recipe": case(
    f"{MAIN} --workdir=run --config=electra_small:baseline,runlocal",
    r"or (--config=run/config.json) to resume it\.",
    ends="resumed at step 12 of 'run'",
  ),
  "damaged config.json": case(
    f"{MAIN} --workdir=run",
    "'(.*/config.json)' cannot be read .*Remove it, and run the run's own",
    state=written("run/config.json", "?"),
    ends="resumed at step 12 of 'run'",
  ),
  "stopped run": case(
    TRAIN,
    r"Saved at step 1. To continue, run the same command again: (.*)\n",
    state=stopped,
    ends="resumed at step 1 of 'new'",
  ),
  "time that is over": case(
    f"{TRAIN} --config.minutes=0.0001",
    r"1 of 12 steps fit .* go on from here:\n(.*)\n",
    ends="resumed at step 1 of 'new'",
  ),
  "full disk": case(
    f"{TRAIN} --config.steps=3",
    "Free some disk space. No step was saved before. .* same command again",
    state=full_disk_at_saves,
    ends="Results are in 'new'",
  ),
  "memory": case(
    f"{MAIN} --workdir=run --config.steps=13",
    r"pre-training (--config.model.remat=full --config.model.scan=True)\.",
    state=out_of_memory,
    ends="resumed at step 12 of 'run'",
  ),
  "finetune": case(
    "truenegs finetune",
    r"no verb 'finetune'. Run (.* main --config=finetune_own)\.",
    "Set (--config.finetune.text=COLUMN), or",
    r"Set (--config.finetune.train=FILE)\.",
    r"Set (--config.finetune.dev=FILE)\.",
    r"names no weights. Set (--config.init=FOLDER) \(",
    fills={
      "COLUMN": "text",
      "train=FILE": "train=train.csv",
      "dev=FILE": "dev=dev.jsonl",
      "FOLDER": f"run{DRY}",
    },
  ),
  "corrections": case(
    f"truenegs main --config=corrections --workdir=new{DRY}",
    "Set (--config.corrections.run=WORKDIR) to",
    r"names no text. Set (--config.corrections.text=FILE)\.",
    r"package wordnet .*Run (.* wordnet)\.",
    fills={"WORKDIR": "run", "FILE": "texts/a.txt"},
  ),
  "blimp": case(
    f"truenegs main --config=blimp --workdir=new{DRY}",
    "Set (--config.blimp.run=WORKDIR) to",
    r"names no minimal pairs. Set (--config.blimp.pairs=FILE)\.",
    fills={"WORKDIR": "run", "FILE": "pairs.jsonl"},
  ),
  "robustness": case(
    f"truenegs main --config=robustness --workdir=new{DRY}",
    "names no model. Set (--config.init=WORKDIR) of",
    "no head for questions. Fine-tune it with (--config=finetune_squad), and",
    fills={"WORKDIR": "run"},
  ),
}


@pytest.fixture
def place(tmp_path, monkeypatch, shared_pretraining):
  """Changes to a folder with a run, its rows, a text and files of a task.

  Only `hf download` and NLTK's downloader have the internet.
  """
  monkeypatch.chdir(tmp_path)
  shared_pretraining.copy_to("run")
  shutil.copytree(shared_pretraining.root / "rows", "rows")
  pathlib.Path("texts").mkdir()
  shutil.copy(shared_pretraining.root / "corpus.txt", "texts/a.txt")
  word_task.write_vocabulary(tmp_path)
  word_task.write_files(tmp_path)
  pair = '{"good": "the dog sleeps", "bad": "the dog sleep", "paradigm": "p"}'
  pathlib.Path("pairs.jsonl").write_text(pair)

  def download(self, package, *, download_dir, **options):
    write_wordnet(pathlib.Path(download_dir, "corpora", package))

  monkeypatch.setattr(nltk.data, "path", [])
  monkeypatch.setattr(wordnet, "DEBIAN", tmp_path / "debian")
  monkeypatch.setattr(nltk.downloader.Downloader, "download", download)
  monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
  with shared_runs.isolate(tmp_path):
    yield


def read_typed(match, fills):
  """Returns what a message tells to type, with what the user fills in."""
  parts = match.groups()
  # One flag and its value, or several flags.
  typed = ("=" if parts and "--" not in parts[-1] else " ").join(parts)
  for word, value in fills.items():
    typed = typed.replace(word, value)
  return typed


def follow(command, typed):
  """Does what a message tells; returns the command that is typed next."""
  if HELPERS.fullmatch(typed):
    code, text = commands.type_with_hub(typed, "owner/model", MODEL)
    assert not code, text
  elif os.path.isdir(typed):
    shutil.rmtree(typed)
  elif os.path.exists(typed):
    os.remove(typed)
  elif typed.startswith("--"):
    return commands.change_flags(command, typed)
  elif typed:
    return typed
  return command


@pytest.mark.parametrize("name", CASES)
def test_what_a_message_tells_to_type_helps(name, place, shared_pretraining):
  command, messages, fills, state, ends = CASES[name]
  flags = [x for x in shared_pretraining.values if "data.rows" not in x]
  flags = shlex.join([*flags, "--config.data.rows=rows"])
  command = command.format(flags=flags)
  with state():
    code, text = commands.type_line(command)
  for message in messages:
    match = re.search(message, text)
    assert match, f"{command}\n{text}"
    command = follow(command, read_typed(match, fills))
    code, text = commands.type_line(command)
  assert code == 0, f"{command}\n{text}"
  assert re.search(ends, text), text
