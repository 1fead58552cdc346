"""Whether folders in Hugging Face's format serve as any other does.

  python benchmarks/round_trips.py mrpc ORIGINAL OTHER --data=glue/MRPC
  python benchmarks/round_trips.py sst2 DISCRIMINATOR --data=glue/SST-2

"mrpc" takes a folder, or name on the hub, and what was imported from it and
exported again. It compares the last hidden states of both, then fine-tunes both
with the stock Trainer from one seed, dropout and all, and compares the loss of
every step. Returns 1 where either differs by more than 1e-4.

"sst2" takes the discriminator of an exported ELECTRA. It loads it into
AutoModelForPreTraining, and its generator, `../generator`, into
AutoModelForMaskedLM and pipeline("fill-mask"); it then fine-tunes the
discriminator on the first --rows rows, and the same network with random weights
in the same way. Returns 1 where weights are missing or left over.

--data is a folder with train.tsv and dev.tsv of GLUE, or either with .xz. Runs
on the CPU, without the network, and writes nothing that stays. Needs PyTorch,
transformers 5 (4 rounds the losses to 4 places) and accelerate.
"""

import argparse
import lzma
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.trainer_callback import PrinterCallback  # noqa: E402

Texts = list[tuple[str, ...]]
Rows = tuple[Texts, list[int]]  # one or two sentences each, and the labels

# Task -> columns of the sentences, that of the label, learning rate.
TASKS = {"mrpc": ((3, 4), 0, 5e-5), "sst2": ((0,), 1, 3e-4)}
SENTENCES = (
  "the capital of the country is the largest [MASK] .",
  "he was born in [MASK] and died in london .",
)


def main(argv: Sequence[str] | None = None) -> int:
  """Prints what was found; returns 1 where a round trip lost something."""
  flags = _flags(argv)
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  train = read(flags.data, "train", flags.task, flags.rows)
  dev = read(flags.data, "dev", flags.task)
  print(
    f"{flags.task}: {len(train[0]):,} rows, {len(dev[0]):,} of dev, lr"
    f" {flags.lr:g}, batch {flags.batch_size}, length {flags.length}, seeds"
    f" {flags.seeds}; transformers {transformers.__version__}, torch"
    f" {torch.__version__}, {torch.get_num_threads()} threads"
  )
  run = same_losses if flags.task == "mrpc" else beside_random
  return run(flags, train, dev)


def _flags(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("task", choices=TASKS)
  parser.add_argument("folders", nargs="+", help="two for mrpc, one for sst2")
  parser.add_argument("--data", type=pathlib.Path, required=True)
  parser.add_argument("--rows", type=int, default=8000, help="at most")
  parser.add_argument("--lr", type=float, help="default: mrpc 5e-5, sst2 3e-4")
  parser.add_argument("--seeds", type=int, nargs="+", default=[0])
  parser.add_argument("--batch_size", type=int, default=32)
  parser.add_argument("--length", type=int, default=128)
  flags = parser.parse_args(argv)
  if len(flags.folders) != (2 if flags.task == "mrpc" else 1):
    parser.error("folders: mrpc takes two, sst2 one")
  flags.lr = flags.lr or TASKS[flags.task][2]
  return flags


def read(
  folder: pathlib.Path, split: str, task: str, limit: int | None = None
) -> Rows:
  """First rows of GLUE: after a header, columns between tabs, never quoted."""
  path = folder / f"{split}.tsv"
  data = path.read_bytes() if path.exists() else lzma.open(f"{path}.xz").read()
  # MRPC's files begin with a byte order mark.
  lines = data.decode("utf-8-sig").rstrip("\n").split("\n")[1:]
  rows = [line.rstrip("\r").split("\t") for line in lines[:limit]]
  columns, label, _ = TASKS[task]
  texts = [tuple(row[i] for i in columns) for row in rows]
  return texts, [int(row[label]) for row in rows]


def same_losses(flags: argparse.Namespace, train: Rows, dev: Rows) -> int:
  """Fine-tunes two folders and compares all that is logged on the way."""
  first, second = flags.folders
  texts = dev[0][:64]
  hidden = [hidden_states(f, texts, flags.length) for f in (first, second)]
  if not torch.equal(hidden[0][0], hidden[1][0]):
    print("The tokenizers differ.", file=sys.stderr)
    return 1
  far = float((hidden[0][1] - hidden[1][1]).abs().max())
  print(f"hidden states of {len(texts)} pairs: at most {far:.1e} apart")
  print("seed  folder    steps  first   last    dev acc     F1  seconds")
  gaps = []
  for seed in flags.seeds:
    found = [fine_tune(flags, f, train, dev, seed) for f in (first, second)]
    for name, run in zip(("original", "other"), found, strict=True):
      print(
        f"{seed:4}  {name:8} {len(run['losses']):6} {run['losses'][0]:6.4f}"
        f" {run['losses'][-1]:6.4f}  {run['accuracy']:8.2%}  {run['f1']:5.1%}"
        f"  {run['secs']:7.0f}  new: {', '.join(run['new'])}"
      )
    if not all(map(torch.equal, found[0]["head"], found[1]["head"])):
      print("The new layers began differently.", file=sys.stderr)
      return 1
    gap_T = np.abs(np.subtract(found[0]["losses"], found[1]["losses"]))
    gaps.append(gap_T.max())
    print(
      f"losses at most {gap_T.max():.1e} apart (step {gap_T.argmax() + 1}),"
      f" {np.count_nonzero(gap_T == 0)} of {len(gap_T)} equal"
    )
  return int(max(far, *gaps) > 1e-4)


def beside_random(flags: argparse.Namespace, train: Rows, dev: Rows) -> int:
  """Loads what was exported, and fine-tunes it and a random network."""
  folder = flags.folders[0]
  generator = str(pathlib.Path(folder).parent / "generator")
  lost = False
  for name, place in (("PreTraining", folder), ("MaskedLM", generator)):
    auto = getattr(transformers, f"AutoModelFor{name}")
    _, info = auto.from_pretrained(place, output_loading_info=True)
    wrong = {kind: sorted(keys) for kind, keys in info.items() if keys}
    print(f"AutoModelFor{name}: {wrong or 'all weights, no others'}")
    lost |= bool(wrong)
  fill = transformers.pipeline("fill-mask", generator)
  for text in SENTENCES:
    best = [f"{x['token_str']} {x['score']:.2f}" for x in fill(text)]
    print(f"fill-mask: {text} -> {', '.join(best)}")
  print("weights   seed  first   last    dev acc  seconds")
  for name, random in (("exported", False), ("random", True)):
    scores = []
    for seed in flags.seeds:
      run = fine_tune(flags, folder, train, dev, seed, random=random)
      scores.append(100 * run["accuracy"])
      print(
        f"{name:8} {seed:5} {run['losses'][0]:6.4f} {run['losses'][-1]:6.4f}"
        f"  {run['accuracy']:8.2%}  {run['secs']:7.0f}"
      )
    print(
      f"{name:8}  mean {statistics.mean(scores):5.2f}, from {min(scores):5.2f}"
      f" to {max(scores):5.2f}"
    )
  return int(lost)


def hidden_states(
  folder: str, texts: Texts, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
  """Ids, [B, L], and the last hidden states of what is not padding."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  batch = tokenizer(
    *map(list, zip(*texts, strict=True)),
    truncation=True,
    max_length=length,
    padding=True,
    return_tensors="pt",
  )
  model = transformers.AutoModel.from_pretrained(folder)
  with torch.no_grad():
    states_BxLxD = model(**batch).last_hidden_state
  return batch["input_ids"], states_BxLxD[batch["attention_mask"] == 1]


def fine_tune(
  flags: argparse.Namespace,
  folder: str,
  train: Rows,
  dev: Rows,
  seed: int,
  *,
  random: bool = False,
) -> dict[str, Any]:
  """One epoch of the stock Trainer: losses, scores, the layers made anew."""
  start = time.perf_counter()
  auto = transformers.AutoModelForSequenceClassification
  transformers.set_seed(seed)
  if random:
    config = transformers.AutoConfig.from_pretrained(folder)
    model, new = auto.from_config(config), {"all"}
  else:
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    new = info["missing_keys"]
  head = [w.detach().clone() for w in model.classifier.parameters()]
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  with tempfile.TemporaryDirectory() as out:
    options = transformers.TrainingArguments(
      out,
      num_train_epochs=1,
      per_device_train_batch_size=flags.batch_size,
      learning_rate=flags.lr,
      seed=seed,
      logging_steps=1,
      save_strategy="no",
      report_to="none",
      use_cpu=True,
      disable_tqdm=True,
    )
    trainer = transformers.Trainer(
      model,
      options,
      train_dataset=encode(tokenizer, train, flags.length),
      processing_class=tokenizer,  # pads the rows of a batch
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    logits_NxC = trainer.predict(encode(tokenizer, dev, flags.length))[0]
  guess_N, gold_N = logits_NxC.argmax(-1), np.array(dev[1])
  return {
    "losses": [x["loss"] for x in trainer.state.log_history if "loss" in x],
    "accuracy": np.mean(guess_N == gold_N),
    "f1": 2 * np.sum(guess_N & gold_N) / max(np.sum(guess_N + gold_N), 1),
    "new": sorted(new),
    "head": head,
    "secs": time.perf_counter() - start,
  }


def encode(tokenizer: Any, rows: Rows, length: int) -> list[dict[str, Any]]:
  """What the stock Trainer takes for a data set."""
  columns = map(list, zip(*rows[0], strict=True))
  found = tokenizer(*columns, truncation=True, max_length=length)
  return [
    {"labels": label} | {name: found[name][i] for name in found}
    for i, label in enumerate(rows[1])
  ]


if __name__ == "__main__":
  sys.exit(main())
