"""Compares the numbers that two checkouts compute: equal bytes, or a list.

  python benchmarks/same_numbers.py BEFORE AFTER --work=FOLDER [--only=NAME,...]

Before and after a restructuring, the same commands have to give the same rows,
vocabularies, tensors, exported configs and metrics. Runs in each checkout: the
demo, 20 steps of electra_small and bert_base with each recipe, rows of both
layouts, and a fine-tuning. Results are kept in FOLDER by commit, so that only
one side has to run again. WordNet is read from NLTK_DATA or the user's cache.
Returns 1 if something differs.

Compared are tensors by name and rows in their order, not their files; records
of metrics.jsonl without times; and the other files by their bytes. The run's
config.json, model cards and pages are not compared.
"""

import argparse
import hashlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import safetensors.numpy

# Fields of metrics.jsonl that depend on the machine's speed and memory.
TIMES = re.compile(r"time|eta_s|host_wait|mfu|memory_.*|.*_per_s")
SHARD = re.compile(r"(train|held_out)-[0-9-]+\.(tokens|types|documents)\.npy")
RECIPES = "baseline", "hc", "sr", "hc+sr", "hc_glove", "sr_sent"
SHRUNK = "electra_small", "bert_base"
PREPARATIONS = {
  "rows-packed": ["--config.data.layout=packed"],
  "rows-electra": ["--config.data.layout=electra"],
}
FINETUNING = "fine-tuning"
WORDNET = pathlib.Path.home() / ".cache" / "truenegs_jax" / "nltk_data"
DEMO = "demo"
WORDS = "act state person make body group small part quality move"


def main(argv: Sequence[str] | None = None) -> int:
  """Runs both sides and prints what differs."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("before", type=pathlib.Path)
  parser.add_argument("after", type=pathlib.Path)
  parser.add_argument("--work", type=pathlib.Path, required=True)
  parser.add_argument("--only", help="Names of runs, separated by commas.")
  args = parser.parse_args(argv)
  names = args.only.split(",") if args.only else list(list_runs())
  inputs = write_inputs(args.work.resolve() / "inputs")
  different = 0
  for name in names:
    sides = [
      digest_run(checkout.resolve(), name, args.work.resolve(), inputs)
      for checkout in (args.before, args.after)
    ]
    changes = compare(*sides)
    different += len(changes)
    verdict = "DIFFERENT" if changes else "equal"
    print(f"{name}: {len(sides[0])} values, {verdict}", flush=True)
    for change in changes[:10]:
      print(f"  {change}")
  return 1 if different else 0


def list_runs() -> Iterator[str]:
  """Yields the names of all runs."""
  yield DEMO
  for config in SHRUNK:
    for recipe in RECIPES:
      yield f"{config}:{recipe}"
  yield from PREPARATIONS
  yield FINETUNING


def write_inputs(folder: pathlib.Path) -> pathlib.Path:
  """Writes word vectors and a labelled table, the same for both sides."""
  folder.mkdir(parents=True, exist_ok=True)
  rng = random.Random(0)
  words = WORDS.split()
  vectors = [
    " ".join([word, *(f"{rng.gauss(0, 1):.4f}" for _ in range(8))])
    for word in words
  ]
  (folder / "vectors.txt").write_text("\n".join(vectors) + "\n")
  rows = [rng.choices(words, k=6) for _ in range(192)]
  lines = [f"{' '.join(row)},{'act' in row}" for row in rows]
  for split, part in (("train", lines[:128]), ("dev", lines[128:])):
    text = "\n".join(["sentence,label", *part]) + "\n"
    (folder / f"{split}.csv").write_text(text)
  return folder


def make_command(
  name: str, folder: pathlib.Path, inputs: pathlib.Path
) -> list[str]:
  """Returns the arguments of Python for a run that writes to `folder`."""
  workdir = f"--workdir={folder / 'run'}"
  if name == DEMO:
    flags = ["--config=demo", "--config.minutes=0"]
    return ["-m", "truenegs_jax.main", *flags, workdir]
  if name in PREPARATIONS:
    flags = ["--config=electra_small:runlocal", "--config.length=128"]
    rows = f"--config.data.rows={folder / 'run'}"
    words = ["prepare", *flags, *PREPARATIONS[name], rows]
    return ["-m", "truenegs_jax", *words]
  if name == FINETUNING:
    flags = [
      "--config=finetune_own",
      f"--config.init={folder.parent / 'electra_small:baseline' / 'run'}",
      f"--config.finetune.train={inputs / 'train.csv'}",
      f"--config.finetune.dev={inputs / 'dev.csv'}",
      "--config.finetune.text=sentence",
      "--config.finetune.label=label",
      "--config.finetune.seeds=2",
      "--config.finetune.epochs=30.0",  # a run that learned nothing fails
      "--config.optim.lr=3e-3",
      "--config.length=32",
    ]
    return ["-m", "truenegs_jax.main", *flags, workdir]
  flags = [f"--config={name},runlocal", workdir]
  if name.endswith("hc_glove"):
    source = f"vectors path={inputs / 'vectors.txt'} top=3"
    flags.append(f"--config.negatives.sources={source}")
  return ["-m", "truenegs_jax.main", *flags]


def digest_run(
  checkout: pathlib.Path, name: str, work: pathlib.Path, inputs: pathlib.Path
) -> dict[str, str]:
  """Runs a command in a checkout, unless it was, and digests its files."""
  folder = work / describe_commit(checkout) / name
  record = folder / "digests.json"
  if not record.exists():
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *make_command(name, folder, inputs)]
    cache = folder.parent / "cache"
    env = os.environ | {
      "PYTHONPATH": str(checkout),
      "TRUENEGS_CACHE": str(cache),
      "NLTK_DATA": os.environ.get("NLTK_DATA", str(WORDNET)),
      "JAX_PLATFORMS": "cpu",
    }
    with (folder / "log.txt").open("w") as log:
      code = subprocess.run(
        command, cwd=folder, env=env, stdout=log, stderr=log
      ).returncode
    if code:
      sys.exit(f"{name} ended with {code} in '{checkout}': '{log.name}'.")
    record.write_text(json.dumps(dict(digest_files(folder / "run"))))
  return json.loads(record.read_text())


def describe_commit(checkout: pathlib.Path) -> str:
  """Returns the commit of a checkout, with a digest of uncommitted changes."""
  git = ["git", "-C", str(checkout)]
  commit = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True)
  change = subprocess.check_output([*git, "diff", "HEAD"])
  return commit[:12] + (f"-{digest(change)[:8]}" if change else "")


def digest(data: bytes) -> str:
  """Returns the SHA-256 of bytes, in hexadecimal digits."""
  return hashlib.sha256(data).hexdigest()


def digest_files(run: pathlib.Path) -> Iterator[tuple[str, str]]:
  """Yields what is compared of the files of a run, each with its digest."""
  for path in sorted(run.rglob("*")):
    name = str(path.relative_to(run))
    if "checkpoints" in path.parts or not path.is_file():
      continue
    if path.suffix == ".safetensors":
      stem = name.removesuffix(path.suffix)
      for key, array in safetensors.numpy.load_file(path).items():
        if key != "header":  # not descriptions
          yield f"{stem}:{key}", digest_array(array)
    elif path.name == "metrics.jsonl":
      for i, line in enumerate(path.read_text().splitlines()):
        for key, value in json.loads(line).items():
          if not TIMES.fullmatch(key) and key != "version":
            yield f"{name}:{i}:{key}", repr(value)
    elif path.name == "result.json":  # of a fine-tuning
      result = json.loads(path.read_text())
      for key in ("scores", "answers"):
        yield f"{name}:{key}", digest(json.dumps(result[key]).encode())
    elif SHARD.fullmatch(name):
      pass  # however the rows are divided
    elif path.suffix in (".npy", ".txt") or is_hf_config(path, run):
      yield name, digest(path.read_bytes())
  for kind in ("tokens", "types", "documents"):
    for split in ("train", "held_out"):
      shards = sorted(run.glob(f"{split}-*.{kind}.npy"))
      if shards:
        rows = np.concatenate([np.load(shard) for shard in shards])
        yield f"{split}.{kind}", digest_array(rows)


def is_hf_config(path: pathlib.Path, run: pathlib.Path) -> bool:
  """Tells a config or tokenizer of an exported model from a run's config."""
  names = "config.json", "tokenizer_config.json", "tokenizer.json"
  exported = (path.parent / "model.safetensors").exists()
  return path.name in names and path.parent != run and exported


def digest_array(array: np.ndarray) -> str:
  """Digests the dtype, shape and bytes of an array."""
  head = f"{array.dtype} {array.shape} "
  return digest(head.encode() + np.ascontiguousarray(array).tobytes())


def compare(before: dict[str, str], after: dict[str, str]) -> list[str]:
  """Lists what differs between two sets of digests, or is in one alone."""
  lines = []
  for name in sorted(before.keys() | after.keys()):
    old, new = before.get(name, "absent"), after.get(name, "absent")
    if old != new:
      lines.append(f"{name}: {old[:20]} before, {new[:20]} after")
  return lines


if __name__ == "__main__":
  sys.exit(main())
