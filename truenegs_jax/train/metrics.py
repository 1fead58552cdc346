"""Computes metrics: of the terms of batches, and of speed and memory.

A term is a pair (sum, count); pairs are added before they are divided.
"""

import re
import resource
import sys
from collections.abc import Iterable, Mapping

import jax
import numpy as np
import numpy.typing as npt

Terms = Mapping[str, tuple[np.ndarray, np.ndarray]]

HISTOGRAM = "detect_histogram"
# Peak FLOP/s of a device in dense products, published by the manufacturer:
# (pattern of the whole device kind, dtype, peak). The first match counts.
PEAK_FLOPS = (
  ("NVIDIA H100 PCIe", "bfloat16", 756e12),
  ("NVIDIA H[12]00 NVL", "bfloat16", 835e12),
  ("NVIDIA (H100|H200|GH200).*", "bfloat16", 989e12),
  ("NVIDIA A100.*", "bfloat16", 312e12),
  ("TPU v4", "bfloat16", 275e12),
  ("TPU v5( lite|e)", "bfloat16", 197e12),
  ("TPU v5p?", "bfloat16", 459e12),
  ("TPU v6( lite|e)", "bfloat16", 918e12),
)


def merge_terms(batches: Iterable[Terms]) -> dict[str, tuple]:
  """Adds the pairs of several batches by name."""
  merged: dict[str, tuple] = {}
  for terms in batches:
    for name, (a, b) in terms.items():
      # float32 cannot count by ones above 2^24, a few hundred large batches.
      a = np.asarray(a, np.float64)
      b = np.asarray(b, np.float64)
      sum_a, sum_b = merged.get(name, (0.0, 0.0))
      merged[name] = (sum_a + a, sum_b + b)
  return merged


def compute_ratios(terms: Terms) -> dict[str, float]:
  """Returns sum / count by name (0 for empty terms); the histogram as `auc`."""
  values = {
    name: float(a) / float(b) if float(b) else 0.0
    for name, (a, b) in terms.items()
    if name != HISTOGRAM
  }
  if HISTOGRAM in terms:
    values["auc"] = auc(*terms[HISTOGRAM])
  return values


def auc(positive_C: np.ndarray, negative_C: np.ndarray) -> float:
  """Computes the area under the ROC curve; 0.5 without positives or negatives.

  This is the probability that a random positive scores above a random negative;
  ties count half. The arguments are numbers in C bins of ascending scores.
  """
  positive_C = np.asarray(positive_C, np.float64)
  negative_C = np.asarray(negative_C, np.float64)
  pairs = positive_C.sum() * negative_C.sum()
  if not pairs:
    return 0.5
  below_C = np.cumsum(negative_C) - negative_C
  return float((positive_C * (below_C + negative_C / 2)).sum() / pairs)


def entropy(counts: npt.ArrayLike) -> float:
  """Computes the entropy in nats of the distribution given by counts."""
  p = np.asarray(counts, np.float64)
  p = p[p > 0] / p.sum()
  return float(-(p * np.log(p)).sum())


def peak_flops(device_kind: str, dtype: str) -> float | None:
  """Returns the published peak FLOP/s of a device; None for float32."""
  for pattern, peak_dtype, peak in PEAK_FLOPS:
    if re.fullmatch(pattern, device_kind):
      return peak if dtype == peak_dtype else None
  return None


def throughput_fields(
  rows_per_s: float,
  *,
  tokens: float,
  flops: float,
  devices: int,
  peak: float | None,
) -> dict[str, float]:
  """Computes the fields of a record that follow from the rate of rows.

  A row has `tokens` tokens without padding on average and costs `flops` FLOP.
  `peak`, `flop_per_s` and `mfu` (model FLOP utilization) are those of one
  device, the others of all together.
  """
  per_device = rows_per_s * flops / devices
  fields = {"rows_per_s": rows_per_s, "tokens_per_s": rows_per_s * tokens}
  fields["flop_per_s"] = per_device
  return fields if peak is None else fields | {"mfu": per_device / peak}


def memory_fields(device: jax.Device) -> dict[str, float]:
  """Returns the memory of a device (of this process on CPUs), in GiB."""
  stats = device.memory_stats() or {}
  unit = 1 if sys.platform == "darwin" else 1024
  resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
  gib = {"memory_peak_gib": stats.get("peak_bytes_in_use", resident) / 2**30}
  if "bytes_in_use" in stats:
    gib["memory_gib"] = stats["bytes_in_use"] / 2**30
  return gib
