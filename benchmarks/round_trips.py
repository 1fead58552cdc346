"""Checks that exported folders behave like Hugging Face's own.

  python benchmarks/round_trips.py mrpc ORIGINAL OTHER --data=glue/MRPC
  python benchmarks/round_trips.py sst2 DISCRIMINATOR --data=glue/SST-2

"mrpc" takes a folder or name on the hub, and a folder that was imported from it
and exported again. It compares their last hidden states. Then it fine-tunes
both with the stock Trainer, the same seed and dropout, and compares the loss of
every step. Returns 1 if any differ by more than 1e-4.

"sst2" takes the discriminator of an exported ELECTRA. It loads it into
AutoModelForPreTraining, and `../generator` into AutoModelForMaskedLM and
pipeline("fill-mask"). Then it fine-tunes the discriminator on the first --rows
rows, and the same network with random weights. Returns 1 if weights are missing
or unexpected.

--data is a folder with GLUE's train.tsv and dev.tsv, or either with .xz. Runs
on the CPU, offline, and keeps no files. Needs PyTorch, transformers 5 (4 rounds
the losses to 4 decimals) and accelerate.
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

Args = argparse.Namespace
Texts = list[tuple[str, ...]]
Rows = tuple[Texts, list[int]]  # one or two sentences each, and the labels

# Task -> columns of the sentences, column of the label, learning rate.
TASKS = {"mrpc": ((3, 4), 0, 5e-5), "sst2": ((0,), 1, 3e-4)}
SENTENCES = (
  "the capital of the country is the largest [MASK] .",
  "he was born in [MASK] and died in london .",
)
TOLERANCE = 1e-4


def main(argv: Sequence[str] | None = None) -> int:
  """Checks the folders of one task; returns 1 if a check fails."""
  args = _parse_arguments(argv)
  transformers.logging.set_verbosity_error()
  transformers.logging.disable_progress_bar()
  train = read_rows(args.data, "train", args.task, args.rows)
  dev = read_rows(args.data, "dev", args.task)
  print(
    f"{args.task}: {len(train[0]):,} rows, {len(dev[0]):,} of dev, lr"
    f" {args.lr:g}, batch {args.batch_size}, length {args.length}, seeds"
    f" {args.seeds}; transformers {transformers.__version__}, torch"
    f" {torch.__version__}, {torch.get_num_threads()} threads"
  )
  check = compare_folders if args.task == "mrpc" else check_electra
  return check(args, train, dev)


def _parse_arguments(argv: Sequence[str] | None) -> Args:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("task", choices=TASKS)
  parser.add_argument("folders", nargs="+", help="Two for mrpc, one for sst2.")
  parser.add_argument("--data", type=pathlib.Path, required=True)
  parser.add_argument("--rows", type=int, default=8000, help="At most.")
  parser.add_argument("--lr", type=float, help="Default: mrpc 5e-5, sst2 3e-4.")
  parser.add_argument("--seeds", type=int, nargs="+", default=[0])
  parser.add_argument("--batch_size", type=int, default=32)
  parser.add_argument("--length", type=int, default=128)
  args = parser.parse_args(argv)
  num, needed = len(args.folders), 2 if args.task == "mrpc" else 1
  if num != needed:
    parser.error(f"{num} folder(s). Pass {needed} for {args.task}.")
  args.lr = args.lr or TASKS[args.task][2]
  return args


def read_rows(
  folder: pathlib.Path, split: str, task: str, limit: int | None = None
) -> Rows:
  """Reads the first rows of GLUE: a header, then columns between tabs."""
  path = folder / f"{split}.tsv"
  data = path.read_bytes() if path.exists() else lzma.open(f"{path}.xz").read()
  # MRPC's files begin with a byte order mark.
  lines = data.decode("utf-8-sig").rstrip("\n").split("\n")[1:]
  rows = [line.rstrip("\r").split("\t") for line in lines[:limit]]
  columns, label, _ = TASKS[task]
  texts = [tuple(row[i] for i in columns) for row in rows]
  return texts, [int(row[label]) for row in rows]


def compare_folders(args: Args, train: Rows, dev: Rows) -> int:
  """Compares hidden states and fine-tuning losses of two folders."""
  texts = dev[0][:64]
  (ids_a, hidden_a), (ids_b, hidden_b) = (
    compute_hidden_states(folder, texts, args.length) for folder in args.folders
  )
  if not torch.equal(ids_a, ids_b):
    print("error: The tokenizers differ.", file=sys.stderr)
    return 1
  difference = float((hidden_a - hidden_b).abs().max())
  print(f"largest difference of {len(texts)} hidden states: {difference:.1e}")
  print("seed  folder    steps  first   last    dev acc     F1  seconds")
  differences = [difference]
  for seed in args.seeds:
    runs = [
      fine_tune(args, x, train, dev, seed, random=False) for x in args.folders
    ]
    for name, run in zip(("original", "other"), runs, strict=True):
      print(
        f"{seed:4}  {name:8} {len(run['losses']):6} {run['losses'][0]:6.4f}"
        f" {run['losses'][-1]:6.4f}  {run['accuracy']:8.2%}  {run['f1']:5.1%}"
        f"  {run['secs']:7.0f}  new: {', '.join(run['new'])}"
      )
    if not all(map(torch.equal, runs[0]["head"], runs[1]["head"])):
      print("error: The new layers' first weights differ.", file=sys.stderr)
      return 1
    diff_T = np.abs(np.subtract(runs[0]["losses"], runs[1]["losses"]))
    differences.append(diff_T.max())
    print(
      f"largest difference of a loss: {diff_T.max():.1e}, at step"
      f" {diff_T.argmax() + 1}; {sum(diff_T == 0)} of {len(diff_T)} are equal"
    )
  return int(max(differences) > TOLERANCE)


def check_electra(args: Args, train: Rows, dev: Rows) -> int:
  """Loads exported networks; fine-tunes one and a random network."""
  folder = args.folders[0]
  generator = str(pathlib.Path(folder).parent / "generator")
  has_failed = False
  for name, path in (("PreTraining", folder), ("MaskedLM", generator)):
    auto = getattr(transformers, f"AutoModelFor{name}")
    _, info = auto.from_pretrained(path, output_loading_info=True)
    problems = {kind: sorted(keys) for kind, keys in info.items() if keys}
    print(f"AutoModelFor{name}: {problems or 'all weights, no others'}")
    has_failed |= bool(problems)
  fill = transformers.pipeline("fill-mask", generator)
  for text in SENTENCES:
    best = [f"{x['token_str']} {x['score']:.2f}" for x in fill(text)]
    print(f"fill-mask: {text} -> {', '.join(best)}")
  print("weights   seed  first   last    dev acc  seconds")
  for name, random in (("exported", False), ("random", True)):
    scores = []
    for seed in args.seeds:
      run = fine_tune(args, folder, train, dev, seed, random=random)
      scores.append(100 * run["accuracy"])
      print(
        f"{name:8} {seed:5} {run['losses'][0]:6.4f} {run['losses'][-1]:6.4f}"
        f"  {run['accuracy']:8.2%}  {run['secs']:7.0f}"
      )
    mean, least, most = statistics.mean(scores), min(scores), max(scores)
    print(f"{name:8}  mean {mean:5.2f}, from {least:5.2f} to {most:5.2f}")
  return int(has_failed)


def compute_hidden_states(
  folder: str, texts: Texts, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
  """Returns ids, [B, L], and the last hidden states of real tokens, [N, D]."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  columns = map(list, zip(*texts, strict=True))
  options = dict(truncation=True, max_length=length, padding=True)
  batch = tokenizer(*columns, **options, return_tensors="pt")
  model = transformers.AutoModel.from_pretrained(folder)
  with torch.no_grad():
    states_BxLxD = model(**batch).last_hidden_state
  return batch["input_ids"], states_BxLxD[batch["attention_mask"] == 1]


def fine_tune(
  args: Args, folder: str, train: Rows, dev: Rows, seed: int, *, random: bool
) -> dict[str, Any]:
  """Fine-tunes a folder for one epoch with the stock Trainer.

  Args:
    args: the flags.
    folder: the network and its tokenizer.
    train: rows to train on.
    dev: rows to score.
    seed: of new layers, shuffling and dropout.
    random: takes only the sizes from the folder, not the weights.

  Returns:
    `losses` of each step; `accuracy` and `f1`, 0 to 1; `new`, the names of new
    weights; `head`, the classifier's first weights; `secs`.
  """
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
      per_device_train_batch_size=args.batch_size,
      learning_rate=args.lr,
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
      train_dataset=encode_rows(tokenizer, train, args.length),
      processing_class=tokenizer,  # pads the rows of a batch
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    logits_NxC = trainer.predict(encode_rows(tokenizer, dev, args.length))[0]
  predicted_N, gold_N = logits_NxC.argmax(-1), np.array(dev[1])
  true_positives = np.sum(predicted_N & gold_N)
  return {
    "losses": [x["loss"] for x in trainer.state.log_history if "loss" in x],
    "accuracy": np.mean(predicted_N == gold_N),
    "f1": 2 * true_positives / max(np.sum(predicted_N + gold_N), 1),
    "new": sorted(new),
    "head": head,
    "secs": time.perf_counter() - start,
  }


def encode_rows(
  tokenizer: transformers.PreTrainedTokenizerBase, rows: Rows, length: int
) -> list[dict]:
  """Returns rows as the Trainer's data set, with "labels"."""
  texts, labels = rows
  columns = map(list, zip(*texts, strict=True))
  encoding = tokenizer(*columns, truncation=True, max_length=length)
  return [
    {"labels": label} | {name: encoding[name][i] for name in encoding}
    for i, label in enumerate(labels)
  ]


if __name__ == "__main__":
  sys.exit(main())
