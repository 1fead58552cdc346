"""Keeps figures of compiled programs in compiled.json and compares others."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from truenegs_jax.runtime.files import disk_errors

KEPT = pathlib.Path(__file__).parent / "compiled.json"
# Figures that are compared, of which less is better, and the largest relative
# change that is none. A TPU's compiler does not repeat itself exactly.
TOLERANCES = {
  "ms": 0.03,
  "gigabytes": 0.03,
  "mcycles": 0.05,
  "launches": 0.05,
  "scratch_gib": 0.03,
  **{f"{name}_gib": 0.05 for name in ("train", "evaluate", "search")},
  "logits_ops": 0.0,
}
UNKEPT = {"command", "trace_s", "compile_s"}

Record = dict[str, Any]


def config_key(arguments: Sequence[str], target: str) -> str:
  """Returns the flags of the config and the target, to find kept figures."""
  words = [
    x.lstrip("-") for x in arguments if x.lstrip("-").startswith("config")
  ]
  return " ".join([target, *sorted(words)])


def load_kept(path: pathlib.Path) -> dict[str, Record]:
  """Returns the kept figures by `config_key`."""
  return json.loads(path.read_text()) if path.exists() else {}


def keep(path: pathlib.Path, key: str, record: Record) -> None:
  """Replaces the kept figures of a config."""
  records = load_kept(path)
  records[key] = _rounded({k: x for k, x in record.items() if k not in UNKEPT})
  text = json.dumps(dict(sorted(records.items())), indent=1)
  with disk_errors(path):
    path.write_text(text + "\n")


def compare(record: Record, kept: Record | None) -> tuple[bool, list[str]]:
  """Compares figures with those that were kept.

  Returns:
    Whether one is worse, and lines that say what changed.
  """
  if kept is None:
    return False, ["No figures of this config are kept. --keep keeps them."]
  if kept["jax"] != record["jax"]:
    return False, [
      f"The kept figures are of jax {kept['jax']}, these are of"
      f" {record['jax']}: not compared."
    ]
  worse, lines = False, []
  for name, tolerance in TOLERANCES.items():
    if name not in kept or name not in record:
      continue
    old, new = kept[name], record[name]
    if abs(new - old) > tolerance * old:
      worse |= new > old
      verdict = "worse" if new > old else "better: --keep keeps it"
      lines.append(f"{name}: {old:,.3f} -> {new:,.3f}, {verdict}")
  return worse, lines or ["Equal to the kept figures."]


def _rounded(value: Any) -> Any:
  """Rounds the numbers of a record to 5 digits."""
  if isinstance(value, dict):
    return {k: _rounded(x) for k, x in value.items()}
  return float(f"{value:.5g}") if isinstance(value, float) else value
