"""Completes and describes rows folders by their manifests."""

import base64
import collections
import dataclasses
import io
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from truenegs_jax.config.keys import flatten
from truenegs_jax.data import build, rows
from truenegs_jax.data.build import BuildSpec, RowsOptions
from truenegs_jax.data.rows import SPLITS
from truenegs_jax.data.sources import Corpus, Unit
from truenegs_jax.data.tokenizer import Tokenizer
from truenegs_jax.runtime.errors import DataError
from truenegs_jax.runtime.paths import is_bucket

Shards = list[tuple[str, int]]  # names, and how many leading rows of each
Records = dict[str, dict[str, int]]  # bytes and crc32 by name of file
Units = dict[Unit, dict[str, Any]]  # records of the units of an epoch


@dataclasses.dataclass
class Listing:
  """Shards of an epoch, all files of their slices, and counts of tokens."""

  shards: dict[str, Shards]  # of each split
  files: Records = dataclasses.field(default_factory=dict)
  num_tokens: int = 0  # of the text
  num_kept: int = 0  # of them, in rows


def write_manifest(
  spec: BuildSpec, corpus: Corpus, languages: dict[str, int]
) -> dict[str, Any]:
  """Completes a folder of shards; returns its manifest, which it writes last.

  Raises DataError if there are no rows, or less text than expected.
  """
  units = _read_units(spec, corpus)
  parts = _describe_parts(corpus, units)
  listing = _list_shards(spec, corpus, units, parts)
  listed = listing.shards
  if not any(listed.values()):
    raise DataError(
      f"data.sources: {corpus} gives 0 rows. It contains only blank or control"
      " characters. Add text."
    )
  counts = {x: _count_tokens(spec, x, shards) for x, shards in listed.items()}
  tokenizer = spec.tokenizer
  unigram_V = counts["train"].copy()  # of all that can be masked, as [UNK]
  unigram_V[[tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask]] = 0
  data = build.save_array(unigram_V)
  records = listing.files
  records[rows.UNIGRAMS] = build.write_file(spec.store / rows.UNIGRAMS, data)
  records |= write_vocabulary(tokenizer, spec.store)
  repairs = collections.Counter[str]()
  for record in units.values():
    repairs.update(record["repairs"])
  length = spec.options.length
  manifest: dict[str, Any] = {
    "version": rows.VERSION,
    "tokenizer": _describe_tokenizer(tokenizer),
    "splits": {
      split: _describe_split(shards, counts[split], length)
      for split, shards in listed.items()
    },
    "files": dict(sorted(records.items())),
  }
  # Covers the content only, so a copied text gives the same fingerprint.
  manifest["fingerprint"] = rows.hash_json(manifest)
  manifest |= {
    "options": dataclasses.asdict(spec.options),
    "held_out_by": spec.held_out_by,
    "lost_share": round(1 - listing.num_kept / listing.num_tokens, 6),
    "parts": parts,
    "languages": languages,
    "repairs": dict(sorted(repairs.items())),
  }
  for path in spec.store.iterdir():
    is_own = not is_bucket(path) or rows.is_shard_name(path.name)
    if is_own and path.name not in {*records, build.RECORDS}:
      path.unlink()  # temporary, of a process that was killed, or not listed
  # The checksum must match the parsed JSON, in which tuples are lists.
  content = json.loads(json.dumps(manifest))
  content["checksum"] = rows.hash_json(content)
  text = json.dumps(content, indent=1) + "\n"
  build.write_file(spec.store / rows.MANIFEST, text.encode())
  return manifest


def _list_shards(
  spec: BuildSpec, corpus: Corpus, units: Units, parts: list[dict[str, Any]]
) -> Listing:
  """Lists the shards of all parts, as often as they are read."""
  listing = Listing({split: [] for split in SPLITS})
  for index, part in enumerate(parts):
    shards: dict[str, Shards] = {split: [] for split in SPLITS}
    for name in _list_slices(corpus, units, index):
      record = spec.read_record(name)
      listing.num_tokens += record["tokens"]
      listing.num_kept += record["kept"]
      for split in SPLITS:
        if count := record[split]["rows"]:
          shards[split].append((name, count))
          for field in rows.FIELDS:
            file = rows.shard_name(split, name, field)
            listing.files[file] = record["files"][file]
    listing.shards["train"] += _repeat(shards["train"], part["passes"])
    listing.shards["held_out"] += shards["held_out"]
  return listing


def _list_slices(corpus: Corpus, units: Units, part: int) -> Iterator[str]:
  """Yields the names of all slices of a part."""
  for unit, record in units.items():
    if unit[0] == part:
      for number in range(record["slices"]):
        yield build.slice_name(build.unit_name(corpus, unit), number)


def _read_units(spec: BuildSpec, corpus: Corpus) -> Units:
  """Returns the records of all units of an epoch; DataError if it lacks text.

  Other machines may have built more of a mixture.
  """
  units: Units = {}
  sizes: dict[Unit, int] = {}
  while (unit := corpus.next_unit(sizes)) is not None:
    units[unit] = spec.read_record(build.unit_name(corpus, unit))
    sizes[unit] = units[unit]["text_bytes"]
  return units


def _describe_parts(corpus: Corpus, units: Units) -> list[dict[str, Any]]:
  """Describes the text that was read of each part, once."""
  sizes = {unit: record["text_bytes"] for unit, record in units.items()}
  parts = []
  for index, passes in enumerate(corpus.passes(sizes)):
    part = corpus.parts[index]
    records = [record for unit, record in units.items() if unit[0] == index]
    num_records = None  # unknown unless all is read
    if len(records) == part.num_units:
      num_records = sum(record["records"] for record in records)
      part.check_records(num_records)
    entry = {
      "documents": sum(record["documents"] for record in records),
      "text_bytes": sum(record["text_bytes"] for record in records),
      "passes": round(passes, 6),
      "records": num_records,
    }
    parts.append(entry)
  return parts


def _repeat(shards: Shards, passes: float) -> Shards:
  """Lists shards as often as they are read; the last time the first rows."""
  num_whole = int(passes)
  listed = shards * num_whole
  left = round((passes - num_whole) * sum(count for _, count in shards))
  for name, count in shards:
    if left > 0:
      listed.append((name, min(count, left)))
      left -= count
  return listed


def _count_tokens(spec: BuildSpec, split: str, shards: Shards) -> np.ndarray:
  """Counts the entries of the vocabulary in the listed rows, int64 [V]."""
  total_V = np.zeros(len(spec.tokenizer.vocab), np.int64)
  for (name, count), times in collections.Counter(shards).items():
    split_record = spec.read_record(name)[split]
    if count == split_record["rows"]:
      data = base64.b64decode(split_record["counts"])
      counts_V = np.frombuffer(data, np.uint32).astype(np.int64)
    else:
      path = spec.store / rows.shard_name(split, name, "tokens")
      tokens_RxL = np.load(io.BytesIO(path.read_bytes()))
      counts_V = build.count_tokens(tokens_RxL[:count], spec.tokenizer)
    total_V += times * counts_V
  return total_V


def _describe_tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
  return {
    "fingerprint": tokenizer.fingerprint,
    "size": len(tokenizer.vocab),
    "lowercase": tokenizer.lowercase,
    "strip_accents": tokenizer.strip_accents,
    "pad": tokenizer.pad,
    "special_ids": list(tokenizer.special_ids),
  }


def _describe_split(
  shards: Shards, counts_V: np.ndarray, length: int
) -> dict[str, Any]:
  num_rows = sum(count for _, count in shards)
  num_tokens = int(counts_V.sum())
  size = num_rows * length
  return {
    "rows": num_rows,
    "tokens": num_tokens,  # without padding, with [CLS] and [SEP]
    "padding_share": round(1 - num_tokens / size, 6) if size else 0.0,
    "shards": shards,
  }


def write_vocabulary(tokenizer: Tokenizer, folder: pathlib.Path) -> Records:
  """Writes the files of a tokenizer; returns their records."""
  return {
    name: build.write_file(folder / name, text.encode())
    for name, text in tokenizer.files.items()
  }


def check_options(folder: str | pathlib.Path, options: RowsOptions) -> None:
  """Raises DataError if a rows folder was prepared with other options."""
  saved = _flatten_options(rows.read_manifest(folder)["options"])
  expected = _flatten_options(dataclasses.asdict(options))
  lines = [
    f"\n  {key}: {str(saved.get(key)):.300} in the folder,"
    f" {str(expected.get(key)):.300} now"
    for key in saved | expected
    if saved.get(key) != expected.get(key)
  ]
  if lines:
    raise DataError(
      f"data.rows='{folder}' was prepared with other options:{''.join(lines)}\n"
      "Remove the folder, or set --config.data.rows to another one."
    )


def _flatten_options(options: dict[str, Any]) -> dict[str, Any]:
  parts = {str(i): part for i, part in enumerate(options["sources"])}
  return flatten(json.loads(json.dumps(options | {"sources": parts})))


def describe_text(manifest: dict[str, Any]) -> list[str]:
  """Describes each part of the text, without names of files and folders."""
  lines = []
  sources = manifest["options"]["sources"]
  for source, part in zip(sources, manifest["parts"], strict=True):
    line = source["source"]
    if "dataset" in source:
      line = "hf:{dataset}, {config} of revision {revision}".format(**source)
    sizes = [x[1] for x in source.get("files", ())]
    if sizes:
      count = "1 file" if len(sizes) == 1 else f"{len(sizes):,} files"
      line += f", {count} of {sum(sizes) / 1e6:,.1f} MB"
    if part["records"] not in (None, part["documents"]):
      line += f", {part['records']:,} records"
    size = part["text_bytes"] / 1e6
    lines.append(f"{line}: {part['documents']:,} documents, {size:,.1f} MB")
  return lines


def padding_warning(manifest: dict[str, Any]) -> str:
  """Returns a warning above 10 % padding at length 128, 25 % at 512; or ""."""
  options = manifest["options"]
  splits = manifest["splits"]
  length = options["length"]
  share = splits["train"]["padding_share"]
  if share <= 0.05 + length / 2560:
    return ""
  num_tokens = sum(split["tokens"] for split in splits.values())
  mean = num_tokens / sum(part["documents"] for part in manifest["parts"])
  joined = [x["join"] for x in options["sources"] if x.get("join")]
  join = "document=join chars=N"
  if joined:
    join = f"chars= to more than {max(joined)}"
  fixes = [f"{join} in the parts of --config.data.sources"]
  if options["layout"] != "packed":
    fixes.append("--config.data.layout=packed")
  fixes.append("--config.length to a smaller number")
  return (
    f"warning: {share:.1%} of the rows are padding, because documents are short"
    f" (mean: {mean:,.0f} tokens; length={length}). Set {', or '.join(fixes)}."
  )
