"""Reads the workdir of a pre-training for its page."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from truenegs_jax.report import curves, page
from truenegs_jax.runtime.errors import CheckpointError, printable
from truenegs_jax.runtime.files import read_json
from truenegs_jax.workdir import files

FIX = "Run the command of the run again, which writes it."
COLLAPSED = 0.5  # mean cosine of random pairs
# Lines of the report at the start that are shown at a glance.
GLANCE = ("start", "objective", "devices", "parameters", "steps", "data")
MAX_PAIRS = 25  # bars of pairs


def read(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Fills in a run; yields its sections."""
  records = curves.read_records(workdir)
  about = read_saved(run, workdir / files.ABOUT)
  verdict = results.get("verdict", {})
  run.curves = [
    curves.Curve(
      splits=curves.thin_records(records.splits, curves.MAX_POINTS),
      tokens=run.config["batch_size"] * run.config["length"],
      flops=about.get("row_flops", 0) * run.config["batch_size"] or None,
      references=_list_references(about, verdict),
    )
  ]
  train = records.splits.get("train", {})
  run.sentence = _describe_outcome(run, train, verdict)
  lines = about.get("lines", {})
  run.facts |= {name: lines[name] for name in GLANCE if name in lines}
  if train:
    run.facts |= _describe_cost(run.config, train, about)
  if verdict:
    level = page.GOOD if verdict["passed"] else page.WARNING
    run.notes.append((level, _describe_verdict(verdict)))
  run.notes += [(page.WARNING, x) for x in _warn(train, about, records)]
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))
  if fills := results.get("fills"):
    yield page.Section(
      "Predictions for [MASK]", files.RESULTS, _show_fills(fills)
    )
  if about:
    yield page.Section("Data", files.ABOUT, _show_data(about))


def read_saved(run: page.Run, path: pathlib.Path) -> dict[str, Any]:
  """Returns a JSON object; {} without a file, or with a note if damaged."""
  if not path.exists():
    return {}
  try:
    with read_json(path, CheckpointError, FIX) as saved:
      return saved
  except CheckpointError as e:
    run.notes.append((page.ERROR, printable(e)))
    return {}


def _list_references(
  about: Mapping[str, Any], verdict: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
  """Returns what guessing without context reaches, for each loss."""
  guesses = {
    f"{name} entropy": source[f"{name}_entropy"]
    for source in (verdict or about,)
    for name in ("unigram", "uniform")
    if source
  }
  references = dict.fromkeys(("mlm", "mlm_uncorrected", "mlm_hidden"), guesses)
  references["auc"] = {"chance": 0.5}
  if detection := verdict.get("detection"):
    entropy = detection["base_rate_entropy"]
    references["detect"] = {"entropy of the labels": entropy}
  return references


def _describe_outcome(
  run: page.Run, train: curves.Columns, verdict: Mapping[str, Any]
) -> str:
  if not train:
    return "No training step is recorded yet."
  step, steps = int(train["step"][-1]), run.config["steps"]
  if step < steps:
    return f"{run.state.capitalize()} at step {step:,} of {steps:,}."
  if not verdict:
    return f"All {steps:,} steps are done, the results are not written."
  learned = "has learned" if verdict["passed"] else "has not learned"
  return f"Finished all {steps:,} steps, and {learned} more than guessing."


def _describe_verdict(verdict: Mapping[str, Any]) -> str:
  text = (
    f"Held-out loss of hidden words {verdict['mlm_hidden']:.3f}"
    f" {_format_error(verdict['mlm_hidden_error'])}; guessing without"
    f" context reaches {verdict['unigram_entropy']:.3f}."
  )
  if detection := verdict["detection"]:
    text += (
      f" AUC of detection {detection['auc']:.3f}"
      f" {_format_error(detection['auc_error'])}; chance is 0.5."
    )
  return text


def _format_error(error: float | None) -> str:
  return "(one batch: no error)" if error is None else f"± {error:.3f}"


def _describe_cost(
  config: Mapping[str, Any], train: curves.Columns, about: Mapping[str, Any]
) -> dict[str, str]:
  hours = curves.count_hours(train)[-1]
  rows = train["step"][-1] * config["batch_size"]
  cost = [f"{hours:.2f} hours of training steps"]
  cost.append(f"{rows * config['length']:.3g} tokens")
  if "row_flops" in about:
    cost.append(f"{about['row_flops'] * rows:.3g} FLOPs")
  if "rows_per_s" in train:
    cost.append(f"{train['rows_per_s'][-1]:,.0f} rows/s")
  if "memory_peak_gib" in train:
    cost.append(f"at most {train['memory_peak_gib'][-1]:.2f} GiB")
  return {"cost": ", ".join(cost)}


def _warn(
  train: curves.Columns, about: Mapping[str, Any], records: curves.Records
) -> Iterator[str]:
  """Yields what a reader should look at."""
  if records.num_damaged:
    yield (
      f"metrics.jsonl has damaged lines ({records.num_damaged:,}), which the"
      " curves lack."
    )
  if padding := about.get("padding_warning"):
    yield padding.removeprefix("warning: ")
  if not train:
    return
  cosine = float(train.get("pair_cosine", train["step"] * 0)[-1])
  if cosine > COLLAPSED:
    yield (
      f"The embeddings may have collapsed: random pairs have a mean cosine of"
      f" {cosine:.2f}. Lower negatives.soft_weight or optim.lr."
    )
  if "skipped" in train and (train["skipped"] > 0).any():
    count = int((train["skipped"] > 0).sum())
    yield (
      f"Updates were skipped in {count:,} of {len(train['step']):,} records,"
      " because loss or gradient was not finite. Lower optim.lr."
    )
  held_out = records.splits.get("held_out", {})
  if "total" in held_out and not abs(held_out["total"][-1]) < float("inf"):
    yield "The last held-out loss is not finite. Lower optim.lr."


def _show_fills(fills: list[Mapping[str, Any]]) -> Iterator[page.Block]:
  rows = [
    {
      "sentence": fill["sentence"],
      "likeliest tokens": ", ".join(
        f"{token} {p:.0%}"
        for token, p in zip(fill["tokens"], fill["probabilities"], strict=True)
      ),
    }
    for fill in fills
  ]
  yield page.table("", rows)


def show_cases(saved: Mapping[str, Any]) -> Iterator[page.Block]:
  """Yields the browser of the corrections in cases.json."""
  cases, sources = saved.get("cases", []), saved.get("sources", [])
  if not cases:
    yield page.text(
      f"No corrections found in {saved.get('searched', 0):,} predictions. Young"
      " models have few; the task `corrections` measures them in any text."
    )
    return
  yield page.text(
    f"{saved['corrected']:,} of {saved['searched']:,} predictions are"
    f" corrected; {len(cases):,} cases are shown. Marked in a sentence: the"
    " gold word, and the prediction that takes its place."
  )
  counts = {(x["gold"], x["prediction"]): x["count"] for x in cases}
  most = sorted(counts.items(), key=lambda item: -item[1])[:MAX_PAIRS]
  yield page.bars(
    "Most frequent pairs: gold → prediction",
    [(f"{gold} → {prediction}", n) for (gold, prediction), n in most],
  )
  rows = [
    {
      "gold": x["gold"],
      "prediction": x["prediction"],
      "sentence": x["sentence"],
      "times": x["count"],
      "probability": x["probability"],
      **{f"by {source}": x["verdicts"][source] for source in sources},
      "synonyms of gold": x["synonyms"],
    }
    for x in cases
  ]
  types = {"sentence": page.MARKED, "probability": page.PERCENT}
  yield page.table("Cases", rows, **types)


def _show_data(about: Mapping[str, Any]) -> Iterator[page.Block]:
  rows = ", ".join(f"{n:,} {name}" for name, n in about["rows"].items())
  size = about["text_bytes"] / 1e6
  yield page.facts(
    {
      "sources": ", ".join(about["sources"]),
      "text": f"{about['documents']:,} documents, {size:,.1f} MB",
      "rows": rows,
      "padding": f"{about['padding_share']:.1%} of the training rows",
    }
  )
  yield page.bars("Tokens in a row, without padding", about["row_lengths"])
  tokens = [(name, 100 * share) for name, share in about["frequent_tokens"]]
  yield page.bars("Most frequent tokens, % of the training rows", tokens)
