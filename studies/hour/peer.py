"""Pre-trains a small BERT with transformers' Trainer for some minutes.

  python studies/hour/peer.py TEXT TOKENIZER MINUTES SEED OUTPUT [KEY=VALUE ...]

As examples/pytorch/run_mlm.py of transformers: documents are joined and cut
into rows, a share of their tokens (`hidden`) is hidden as 80/10/10 and logits
are computed at every position. TEXT has one document a paragraph; TOKENIZER is
a folder. The number of steps follows a measurement before the start, which
costs no minutes, and neither does tokenizing; `steps=N` takes it from an
earlier run. OUTPUT gets the model, and SAVES models on the way. A KEY is one in
SETTINGS.
"""

import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import transformers

# Chosen on another text, as ours are (README.md).
SETTINGS = {
  "length": 32,
  "batch_size": 128,
  "rate": 1e-3,
  "b2": 0.98,
  "warmup": 0.05,
  "range": 0.04,
  "dropout": 0.0,
  "layers": 2,
  "width": 256,
  "hidden": 0.3,
  "bf16": 1,
  "steps": 0,
}
TRIED_STEPS = 30
SAVES = 8


class Curve(transformers.TrainerCallback):
  """Saves the model SAVES times, and the minutes in its folder's name."""

  def __init__(self, folder: Path, tokenizer: Any, minutes: float):
    self._folder = folder
    self._tokenizer = tokenizer
    self._minutes = minutes  # of all steps

  def on_step_end(self, args, state, control, model=None, **others):
    """Saves after each of SAVES equal parts of the steps."""
    if state.global_step % (state.max_steps // SAVES) == 0:
      minutes = self._minutes * state.global_step / state.max_steps
      for part in (model, self._tokenizer):
        part.save_pretrained(self._folder / f"at-{minutes:.2f}")


def make_rows(text: str, tokenizer: Any, length: int) -> list[dict[str, Any]]:
  """Joins the documents, each between [CLS] and [SEP], and cuts rows."""
  documents = Path(text).read_text("utf-8").split("\n\n")
  encoded = tokenizer(documents, verbose=False)["input_ids"]
  tokens = list(itertools.chain.from_iterable(encoded))
  stop = len(tokens) // length * length
  return [{"input_ids": x} for x in np.array(tokens[:stop]).reshape(-1, length)]


def make_trainer(
  model: Any,
  rows: list,
  tokenizer: Any,
  s: dict[str, float],
  output: str,
  **others: Any,
) -> transformers.Trainer:
  """Makes a Trainer with the settings `s`; `others` are further arguments."""
  return transformers.Trainer(
    model,
    transformers.TrainingArguments(
      output,
      use_cpu=True,
      bf16=bool(s["bf16"]),
      per_device_train_batch_size=int(s["batch_size"]),
      learning_rate=s["rate"],
      adam_beta2=s["b2"],
      weight_decay=0.01,
      warmup_steps=s["warmup"],
      lr_scheduler_type="linear",
      save_strategy="no",
      report_to="none",
      disable_tqdm=True,
      logging_steps=100,
      **others,
    ),
    train_dataset=rows,
    data_collator=transformers.DataCollatorForLanguageModeling(
      tokenizer, mlm_probability=s["hidden"]
    ),
  )


def count_steps(
  config: transformers.BertConfig, minutes: float, *others: Any
) -> int:
  """Counts the steps that fit, by TRIED_STEPS of `make_trainer(*others)`."""
  began = []  # of steps

  class Times(transformers.TrainerCallback):
    def on_step_end(self, *args, **others):
      began.append(time.monotonic())

  model = transformers.BertForMaskedLM(config)
  trial = make_trainer(model, *others, max_steps=TRIED_STEPS)
  trial.add_callback(Times())
  trial.train()
  secs = float(np.median(np.diff(began)))
  steps = int(60 * minutes / secs)
  print(f"{secs:.3f} s a step, {steps} steps", flush=True)
  return steps


def main(
  text: str, folder: str, minutes: str, seed: str, output: str, *changes: str
) -> None:
  s = SETTINGS | {k: float(v) for k, v in (x.split("=") for x in changes)}
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  rows = make_rows(text, tokenizer, int(s["length"]))
  transformers.set_seed(int(seed))
  width = int(s["width"])
  config = transformers.BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=width,
    num_hidden_layers=int(s["layers"]),
    num_attention_heads=width // 64,
    intermediate_size=4 * width,
    hidden_dropout_prob=s["dropout"],
    attention_probs_dropout_prob=s["dropout"],
    initializer_range=s["range"],
    max_position_embeddings=max(128, int(s["length"])),
  )
  steps = int(s["steps"]) or count_steps(
    config, float(minutes), rows, tokenizer, s, output
  )
  model = transformers.BertForMaskedLM(config)
  trainer = make_trainer(
    model, rows, tokenizer, s, output, max_steps=steps, seed=int(seed)
  )
  trainer.add_callback(Curve(Path(output), tokenizer, float(minutes)))
  trainer.train()
  trainer.save_model(output)
  tokenizer.save_pretrained(output)


if __name__ == "__main__":
  main(*sys.argv[1:])
