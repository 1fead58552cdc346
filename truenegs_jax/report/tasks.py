"""Reads the workdirs of all tasks for their pages.

The reader of a task fills in a run and yields its sections.
"""

import collections
import datetime
import math
import pathlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.config.keys import flatten
from truenegs_jax.report import curves, page
from truenegs_jax.report.page import Html, format_number, tag
from truenegs_jax.runtime.errors import CheckpointError, printable
from truenegs_jax.runtime.files import read_results
from truenegs_jax.stats.intervals import mean_interval
from truenegs_jax.workdir import files

FIX = "Run the command of the run again, which writes it."
COLLAPSED = 0.5  # mean cosine of random pairs
# Lines of the report at the start that are shown at a glance.
GLANCE = ("start", "objective", "devices", "parameters", "steps", "data")
MAX_PAIRS = 25  # bars of pairs
MAX_SECS = 1e9  # left; more is damage
FRESH_SECS = 600.0  # since the newest record of a run that is running
# Metrics that do not depend on the weights of a loss.
COMPARABLE = (
  *("mlm_uncorrected", "mlm_hidden", "detect", "auc"),
  *("corrected_of_slots", "corrected_of_mismatches", "corrected_rows"),
)
SIZES = (
  *("model.embedding_size", "model.width", "model.layers", "model.heads"),
  *("model.ffn", "generator.width", "generator.layers", "generator.heads"),
  "generator.ffn",
)
# Keys of a config and of about.json on which they depend but for the recipe.
SETTING = (
  *("objective", "model.backbone", "model.variant", *SIZES),
  *("generator.multiplier", "generator.layers_multiplier"),
  *("masking.prob", "masking.style", "eval.rows"),
)
DATA = ("rows", "text_bytes", "unigram_entropy", "uniform_entropy")
Values = Mapping[str, Any]  # of JSON
Runs = Mapping[str, Sequence[Values]]  # of a fine-tuning, by task
# Of a comparison: two models, their difference, and its intervals.
COMPARED = (
  *("metric", "ours", "theirs", "difference"),
  *("low", "high", "low_runs", "high_runs"),
)
SIDES = ("original", "transformed", "drop")  # of a robustness set
RATES = {
  "mismatch_rate": "of wrong predictions",
  "sequence_rate": "of sequences",
  "slot_rate": "of slots",
}
# Files of a part of a study: why its process failed, and its lock.
FAILED, PART_LOCK = "failed.json", "part.lock"


def read_state(workdir: pathlib.Path, *, ends: bool = False) -> str:
  """Returns whether a run is running, finished or stopped.

  If this user may not read its lock, a new record says that it runs.
  """
  try:
    return files.read_state(workdir, ends=ends)
  except OSError:
    path = workdir / files.METRICS
    if path.exists() and time.time() - path.stat().st_mtime < FRESH_SECS:
      return files.RUNNING
    return files.read_state(workdir, ends=True)


def read_saved(run: page.Run, path: pathlib.Path) -> dict[str, Any]:
  """Returns a JSON object; {} without a file, or with a note if damaged."""
  try:
    with read_results(path, CheckpointError, FIX) as saved:
      return saved
  except CheckpointError as e:
    if not isinstance(e.__cause__, FileNotFoundError):
      run.notes.append((page.ERROR, printable(e)))
    return {}


def read_pretraining(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads a pre-training."""
  splits, num_damaged = curves.read_records(workdir)
  about = read_saved(run, workdir / files.ABOUT)
  batch_size = run.config["batch_size"]
  train = splits.get("train", {})
  held_out = splits.get("held_out", {})
  run.curves = [
    curves.Curve(
      label=run.name,
      group=run.name,
      splits=curves.thin_records(splits, curves.MAX_POINTS),
      tokens=batch_size * run.config["length"],
      flops=about.get("row_flops", 0) * batch_size or None,
      references=_list_references(about, held_out),
    )
  ]
  _describe_progress(run, train, run.config["steps"])
  if num_damaged:
    text = f"metrics.jsonl has damaged lines ({num_damaged:,})"
    run.notes.append((page.WARNING, f"{text}, which the curves lack."))
  lines = about.get("lines", {})
  run.facts |= {name: lines[name] for name in GLANCE if name in lines}
  cost = _measure_cost(run.config, train, about) if train else {}
  costs = [f"{format_number(x)} {unit}" for unit, x in cost.items()]
  run.facts["cost"] = ", ".join(costs)
  run.notes += [(page.WARNING, x) for x in _warn(train, held_out, about)]
  if verdict := results.get("verdict"):
    level = page.GOOD if verdict["passed"] else page.WARNING
    run.notes.insert(0, (level, verdict["summary"]))
    blocks = [page.table("", verdict["table"]), page.text(verdict["rule"])]
    yield page.Section("Held-out rows", files.RESULTS, blocks)
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))
  if fills := results.get("fills"):
    blocks = map(_show_fills, [fills])
    yield page.Section("Predictions for [MASK]", files.RESULTS, blocks)
  if about:
    yield page.Section("Data", files.ABOUT, _show_data(about))
  config = flatten(run.config)
  run.setting = {x: config.get(x) or None for x in SETTING}
  run.setting["data"] = [about.get(x) for x in DATA]
  run.measures = dict(_measure_quality(held_out, results.get("left_out", {})))
  run.measures |= {unit: page.Measure(x) for unit, x in cost.items()}


def _list_references(
  about: Values, held_out: curves.Columns
) -> dict[str, dict[str, float]]:
  """Returns what guessing without context reaches, for each loss."""
  names = ("unigram", "uniform") if about else ()
  guesses = {f"{x} entropy": about[f"{x}_entropy"] for x in names}
  references = dict.fromkeys(("mlm", "mlm_uncorrected", "mlm_hidden"), guesses)
  references["auc"] = {"chance": 0.5}
  rate = held_out.get("replaced", [0.0])[-1]
  if 0 < rate < 1:
    entropy = -rate * math.log(rate) - (1 - rate) * math.log(1 - rate)
    references["detect"] = {"entropy of the labels": float(entropy)}
  return references


def _describe_progress(
  run: page.Run, train: curves.Columns, steps: int
) -> None:
  """Says how far a pre-training is, on the page and in the terminal."""
  run.sentence = "No training step is recorded yet."
  if not train:
    return
  last = {name: float(x[-1]) for name, x in train.items()}
  step = int(last["step"])
  if math.isfinite(total := last.get("total_steps", math.nan)):
    steps = int(total)  # that fit into the minutes
  run.progress["step"] = f"{step:,} of {steps:,}"
  run.progress["loss"] = format_number(last.get("total"))
  run.progress["rate"] = f"{format_number(last.get('rows_per_s'))} rows/s"
  if step >= steps:
    run.sentence = f"All {steps:,} steps are done."
    return
  run.sentence = f"{run.state.capitalize()} at step {step:,} of {steps:,}."
  if math.isfinite(secs := last.get("eta_s", math.nan)):
    secs = min(max(secs, 0), MAX_SECS)
    run.progress["left"] = str(datetime.timedelta(seconds=round(secs)))


def _measure_cost(
  config: Values, train: curves.Columns, about: Values
) -> dict[str, float]:
  """Returns what a training has cost, by unit."""
  unknown = [math.nan]
  rows = train["step"][-1] * config["batch_size"]
  cost = {
    "hours of training": curves.count_hours(train)[-1],
    "steps": train["step"][-1],
    "tokens": rows * config["length"],
    "TFLOP": about.get("row_flops", math.nan) * rows / 1e12,
    "rows/s": train.get("rows_per_s", unknown)[-1],
    "GiB of memory": train.get("memory_peak_gib", unknown)[-1],
  }
  return {unit: float(x) for unit, x in cost.items() if math.isfinite(x)}


def _measure_quality(
  held_out: curves.Columns, left_out: Values
) -> Iterator[tuple[str, page.Measure]]:
  """Yields the last held-out metrics of a run, with their labels."""
  for field in [x for x in COMPARABLE if x in held_out]:
    scale, digits = (100, 2) if field in curves.RATES else (1, 4)
    # Without hard correction, `mlm` is that of all slots, too.
    rest = left_out.get(field, left_out.get("mlm", ()))
    rest = [scale * x for x in rest if x is not None]
    value = scale * held_out[field][-1]
    yield curves.PANELS[field], page.Measure(value, digits, rest)


def _warn(
  train: curves.Columns, held_out: curves.Columns, about: Values
) -> Iterator[str]:
  """Yields what a reader should look at."""
  if padding := about.get("padding_warning"):
    yield padding.removeprefix("warning: ")
  if (cosine := float(train.get("pair_cosine", [0])[-1])) > COLLAPSED:
    yield (
      f"The embeddings may have collapsed: random pairs have a mean cosine of"
      f" {cosine:.2f}. Lower negatives.soft_weight or optim.lr."
    )
  if skips := int(np.count_nonzero(np.nan_to_num(train.get("skipped", 0)))):
    yield (
      f"Updates were skipped in {skips:,} of {len(train['step']):,} records,"
      " because loss or gradient was not finite. Lower optim.lr."
    )
  if not math.isfinite(held_out.get("total", [0])[-1]):
    yield "The last held-out loss is not finite. Lower optim.lr."


def _show_fills(fills: Sequence[Values]) -> Html:
  rows = []
  for x in fills:
    likeliest = zip(x["tokens"], x["probabilities"], strict=True)
    tokens = ", ".join(f"{token} {p:.0%}" for token, p in likeliest)
    rows.append({"sentence": x["sentence"], "likeliest tokens": tokens})
  return page.table("", rows)


def show_cases(saved: Values) -> Iterator[Html]:
  """Yields the corrections in cases.json."""
  cases = saved["cases"]
  text = page.describe_search(saved["searched"], saved["corrected"], len(cases))
  if not cases:
    hint = "Young models have few; the task `corrections` measures any text."
    yield page.text(f"{text} {hint}")
    return
  yield page.text(f"{text} The gold word and the prediction are marked.")
  counts = {(x["gold"], x["prediction"]): x["count"] for x in cases}
  pairs = sorted(counts.items(), key=lambda item: -item[1])[:MAX_PAIRS]
  yield page.bars(
    "Most frequent pairs: gold → prediction",
    [(f"{gold} → {prediction}", n) for (gold, prediction), n in pairs],
  )
  rows = [
    {"sentence": _mark(x), "gold": x["gold"], "prediction": x["prediction"]}
    | {"count": x["count"], "probability": f"{x['probability']:.1%}"}
    | {f"by {y}": x["verdicts"][y] for y in saved["sources"]}
    | {"synonyms": ", ".join(page.abridge(x["synonyms"], x["prediction"]))}
    for x in cases
  ]
  yield page.table("Cases", rows)


def _mark(case: Values) -> Html:
  """Returns the sentence of a case with the gold word and the prediction."""
  before, *rest = case["sentence"].split("[MASK]")
  gold = tag("mark", case["gold"], class_="gold", title="gold")
  prediction = tag(
    "mark", case["prediction"], class_="prediction", title="prediction"
  )
  marks = [gold, " ", prediction, "[MASK]".join(rest)] if rest else []
  return tag("span", before, *marks)


def _show_data(about: Values) -> Iterator[Html]:
  text = "; ".join(about["sources"])
  yield page.text(f"{text}. Rows are {about['padding_share']:.1%} padding.")
  yield page.bars("Tokens in a row, without padding", about["row_lengths"])
  tokens = [(name, 100 * share) for name, share in about["frequent_tokens"]]
  yield page.bars("Most frequent tokens, % of the training rows", tokens)


def read_finetuning(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads a fine-tuning, also its first seeds before it has results."""
  run.curves = curves.read_curves(workdir, "*/seed-*")
  runs = {name: task["runs"] for name, task in results.get("tasks", {}).items()}
  if not runs:
    for path in sorted(workdir.glob("*/seed-*/result.json")):
      if saved := read_saved(run, path):
        runs.setdefault(saved["task"], []).append(saved)
  count = sum(map(len, runs.values()))
  mains = {name: next(iter(x[0]["scores"]["dev"])) for name, x in runs.items()}
  medians = [
    f"{name} {statistics.median(_scores(runs[name], metric)):.1f} ({metric})"
    for name, metric in mains.items()
  ]
  run.progress["step"] = f"{count} of {len(run.curves)} begun runs finished"
  run.progress["loss"] = ", ".join(medians)
  run.sentence = f"Median scores on the dev sets: {', '.join(medians)}"
  if not results:
    run.sentence = (
      f"{count} runs are finished, {len(run.curves)} have begun; results are"
      " written at the end."
    )
    return
  secs = sum(x["secs"] for members in runs.values() for x in members)
  run.facts["cost"] = f"{secs / 3600:.2f} hours of training"
  seeds = run.config["finetune"]["seeds"]
  run.notes += [(page.WARNING, text) for text in _warn_of_seeds(runs, seeds)]
  blocks = _show_scores(runs, mains, results)
  yield page.Section("Scores", files.RESULTS, blocks)
  mistakes = {
    f"{name}, some of each seed": [
      {"seed": str(x["seed"])}
      | {key: str(mistake[key]) for key in ("text", "gold", "answer")}
      for x in members
      for mistake in x.get("mistakes", ())
    ]
    for name, members in runs.items()
  }
  if any(mistakes.values()):
    blocks = (page.table(title, rows) for title, rows in mistakes.items())
    yield page.Section("Wrong answers", files.RESULTS, blocks)


def _warn_of_seeds(runs: Runs, seeds: int) -> Iterator[str]:
  for name, members in runs.items():
    if len(members) < seeds:
      yield f"{len(members)} of {seeds} seeds of {name} are finished."
    for x in members:
      if x["failure"]:
        yield f"{name}, seed {x['seed']}: {x['failure']}"
    if notes := members[0]["notes"]:
      yield f"{name} differs from others' setting: {', '.join(notes)}"


def _scores(members: Sequence[Values], metric: str) -> list[float]:
  return [x["scores"]["dev"][metric] for x in members]


def _show_scores(
  runs: Runs, mains: Mapping[str, str], results: Values
) -> Iterator[Html]:
  """Yields dots for each task beside published rows, and tables."""
  published = results.get("published", ())
  for name, metric in mains.items():
    groups = [make_group("this run", _scores(runs[name], metric))]
    groups += [
      {"label": f"{x['name']} ({x['source']})", "points": [x["scores"][task]]}
      for x in published
      for task in (name, f"{name}_{metric}")
      if task in x["scores"]
    ]
    title = f"{name}: {metric}; seeds, median, and 95 % interval of the mean"
    yield page.dots(f"{title} (%)", groups)
  notes: dict[str, list[str]] = {}
  for x in published:
    notes.setdefault(x["note"], []).append(f"{x['name']} ({x['source']})")
  for note, models in notes.items():
    yield page.text(f"{', '.join(models)}: {note}.")
  if network_note := results.get("published_note"):
    yield page.text(network_note)
  rows = [
    {"task": name, "metric": metric, **summary}
    for name, task in results["tasks"].items()
    for metric, summary in task["summary"].items()
  ]
  yield page.table("Scores on the dev sets, %", rows)
  compared = results["compared"]
  title = f"Compared with {compared['against']}"
  yield from _show_compared(title, compared["tasks"])


def _show_compared(title: str, compared: Runs) -> Iterator[Html]:
  """Yields the table of differences by task or set, if there are any."""
  rows = [
    {"on": name} | {key: x[key] for key in COMPARED}
    for name, comparisons in compared.items()
    for x in comparisons
  ]
  if rows:
    text = "intervals over examples, and over examples and runs"
    yield page.table(f"{title}: 95 % {text}", rows)


def make_group(label: str, values: Sequence[float]) -> dict[str, Any]:
  """Returns a group of `page.dots`."""
  mean, half = mean_interval(values)
  group: dict[str, Any] = {"label": label, "points": [*values]}
  if len(values) > 1:
    group |= {"median": statistics.median(values)}
    group |= {"low": mean - half, "high": mean + half}
  return group


def read_corrections(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads the task `corrections`."""
  if not results:
    return
  text = f"{results['lines']:,} lines, cut to {results['length']} tokens"
  run.facts["text"] = text
  source, checkpoints = next(iter(results["checkpoints"].items()))
  rates = {name: x["rate"] for name, x in checkpoints[-1]["rates"].items()}
  run.sentence = (
    f"{rates['mismatch_rate']:.2%} of the wrong predictions and"
    f" {rates['sequence_rate']:.2%} of the sequences are corrected by"
    f" {source}; the paper has 1.41 % and 7.07 % for BERT-base."
  )
  rows = [
    {"source": source, "step": x["step"], "corrected": label}
    | {"cases": x["rates"][name]["hits"], "total": x["rates"][name]["total"]}
    | {key: 100 * x["rates"][name][key] for key in ("rate", "low", "high")}
    for source, checkpoints in results["checkpoints"].items()
    for x in checkpoints
    for name, label in RATES.items()
  ]
  table = page.table("Rates, %, with 95 % intervals", rows)
  yield page.Section("Rates", files.RESULTS, [table])
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))


def read_robustness(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads the task `robustness`."""
  del workdir  # a reader of results only
  if not results:
    return
  run.sentence = "Scores on changed texts."
  run.notes += [(page.WARNING, x) for x in results.get("notes", ())]
  runs = {model: len(records) for model, records in results["models"].items()}
  rows, compared = list[dict[str, Any]](), dict[str, Sequence[Values]]()
  for examples in results["sets"].values():
    scores = [x for y in examples["scores"].values() for x in y.values()]
    side = SIDES[2] if any(SIDES[2] in x for x in scores) else SIDES[1]
    compared[f"{examples['title']}, {side}"] = examples["compared"]
    count = f"{examples['questions']:,}"
    for model, metric, texts in _list_scores(examples):
      row = {"set": examples["title"], "model": model, "metric": metric}
      row |= {"runs": runs.get(model), "n": count if model in runs else ""}
      rows.append(row | {side: texts.get(side, "") for side in SIDES})
  blocks = [page.table("Scores, %, with standard errors over n texts", rows)]
  blocks += _show_compared(" and ".join(runs), compared)
  yield page.Section("Robustness", files.RESULTS, blocks)


def _list_scores(
  examples: Values,
) -> Iterator[tuple[str, str, dict[str, str]]]:
  """Yields models, metrics and scores by side, at last those of the paper."""
  for model, metrics in examples["scores"].items():
    for metric, sides in metrics.items():
      texts = {k: f"{x['value']:.2f} ± {x['se']:.2f}" for k, x in sides.items()}
      yield model, metric, texts
  for model, metrics in examples["paper"].items():
    for metric, (before, after) in metrics.items():
      values = zip(SIDES, (before, after, before - after), strict=True)
      yield model, metric, {side: f"{x:.2f}" for side, x in values}


def read_study(
  run: page.Run, workdir: pathlib.Path, results: Values
) -> Iterator[page.Section]:
  """Reads a study from its parts' folders; nothing of it is planned or run."""
  run.curves = curves.read_curves(workdir, "runs/*/seed-*/pretrain")
  parts = sorted(workdir.glob("runs/*/seed-*/*/"))
  states = collections.Counter(map(_read_part, parts))
  counts = ", ".join(f"{count} {state}" for state, count in states.items())
  run.progress["step"] = f"{len(parts)} parts: {counts}"
  if states[files.RUNNING]:
    run.state = files.RUNNING
  run.sentence = f"{len(parts)} parts have begun: {counts}."
  if not results:
    return
  scores = results["scores"]
  arms = [*dict.fromkeys(x["arm"] for x in scores)]
  run.sentence = (
    f"{len(scores):,} scores of {len(arms)} arms: {', '.join(arms)}."
  )
  run.notes = [(page.WARNING, x) for x in results["failures"]]
  yield page.Section("Tables", files.RESULTS, _show_tables(results["tables"]))
  yield page.Section("Arms", files.RESULTS, _show_arms(scores, arms))


def _read_part(folder: pathlib.Path) -> str:
  """Returns the state of a part of a study."""
  if files.is_running(folder / PART_LOCK):
    return files.RUNNING
  state = read_state(folder)
  has_failed = state == files.STOPPED and (folder / FAILED).exists()
  return "failed" if has_failed else state


def _show_tables(layouts: Sequence[Values]) -> Iterator[Html]:
  for layout in layouts:
    rows = []
    for row in layout["rows"]:
      texts = [_format_cell(x, layout["digits"]) for x in row["cells"]]
      cells = dict(zip(layout["columns"], texts, strict=True))
      rows.append({"row": row["label"], "kind": row["kind"]} | cells)
    yield page.table(layout["title"], rows)
    if layout["notes"]:
      yield page.text(" ".join(layout["notes"]))


def _format_cell(cell: Values, digits: int) -> str:
  value, half, runs = (cell[x] for x in ("value", "half_width", "runs"))
  form = "," if isinstance(value, int) else f",.{digits}f"
  number = "" if value is None else f"{value:{form}}"
  interval = "" if half is None else f"± {half:.{digits}f}"
  return " ".join(filter(None, (number, interval, runs)))


def _show_arms(scores: Sequence[Values], arms: Sequence[str]) -> Iterator[Html]:
  """Yields dots for each task and metric: the means of an arm's seeds."""
  by_seed = collections.defaultdict[tuple[str, ...], list[float]](list)
  for x in scores:
    if x["value"] is not None:
      key = x["task"], x["metric"], x["arm"], x["seed"]
      by_seed[key].append(x["value"])
  means = {key: statistics.fmean(values) for key, values in by_seed.items()}
  for task, metric in dict.fromkeys(key[:2] for key in means):
    groups = [
      make_group(arm, points)
      for arm in arms
      if (
        points := [y for x, y in means.items() if x[:3] == (task, metric, arm)]
      )
    ]
    yield page.dots(f"{task}: {metric}", groups)


READERS = {
  "pretrain": read_pretraining,
  "finetune": read_finetuning,
  "corrections": read_corrections,
  "robustness": read_robustness,
  "study": read_study,
}
