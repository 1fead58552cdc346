"""Describes data and cost of a run at its start, for its report."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.data.rows import rows_folder
from truenegs_jax.train import metrics

MEASURED_ROWS = 4_096  # rows whose lengths are counted
NUM_BINS = 8
NUM_TOKENS = 30  # most frequent ones that are listed


def describe_run(
  rows: rows_folder.Rows,
  vocabulary: Sequence[str],
  lines: Mapping[str, str],
  *,
  row_flops: float,
) -> dict[str, Any]:
  """Returns the content of about.json.

  Args:
    rows: the training rows.
    vocabulary: its tokens.
    lines: the report at the start, text by name.
    row_flops: floating-point operations of training on one row.
  """
  manifest, counts_V = rows.manifest, rows.unigram_V
  order = np.argsort(-counts_V, kind="stable")[:NUM_TOKENS].tolist()
  options, parts = manifest["options"], manifest["parts"]
  return {
    "lines": dict(lines),
    "row_flops": row_flops,
    "uniform_entropy": math.log(len(vocabulary)),
    "unigram_entropy": metrics.entropy(counts_V),
    "sources": [str(source["source"]) for source in options["sources"]],
    "documents": sum(part["documents"] for part in parts),
    "text_bytes": sum(part["text_bytes"] for part in parts),
    "rows": {name: x["rows"] for name, x in manifest["splits"].items()},
    "padding_share": manifest["splits"]["train"]["padding_share"],
    "padding_warning": rows_folder.padding_warning(manifest),
    "row_lengths": count_lengths(rows),
    "frequent_tokens": [
      [vocabulary[i], float(counts_V[i] / counts_V.sum())] for i in order
    ],
  }


def count_lengths(rows: rows_folder.Rows) -> list[tuple[str, int]]:
  """Counts rows by their tokens without padding, in bins such as "1-16".

  Takes MEASURED_ROWS rows at equal distances.
  """
  row_R = np.linspace(0, len(rows) - 1, min(len(rows), MEASURED_ROWS))
  documents_RxL = rows.take(row_R.astype(np.int64))["documents"]
  length_R = np.count_nonzero(documents_RxL, axis=1)
  ends = np.unique(np.linspace(0, rows.length, NUM_BINS + 1).astype(int))
  counts, _ = np.histogram(length_R, ends + 0.5)
  names = (f"{a + 1}-{b}" for a, b in zip(ends, ends[1:], strict=False))
  return [*zip(names, counts.tolist(), strict=True)]
