"""Reads the workdirs of all tasks for their pages.

The reader of a task fills in a run and yields its sections.
"""

import collections
import math
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from truenegs_jax.config.keys import flatten
from truenegs_jax.report import curves, page
from truenegs_jax.runtime.errors import CheckpointError, printable
from truenegs_jax.runtime.files import read_results
from truenegs_jax.stats.intervals import mean_interval
from truenegs_jax.workdir import files

FIX = "Run the command of the run again, which writes it."
COLLAPSED = 0.5  # mean cosine of random pairs
# Lines of the report at the start that are shown at a glance.
GLANCE = ("start", "objective", "devices", "parameters", "steps", "data")
MAX_PAIRS = 25  # bars of pairs
CASE = ("gold", "prediction", "sentence", "count", "probability")
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
Runs = Mapping[str, Sequence[Mapping[str, Any]]]  # of results.json, by task
# Of a comparison: two models, their difference, and its intervals.
COMPARED = (
  *("metric", "ours", "theirs", "difference"),
  *("low", "high", "low_runs", "high_runs"),
)
SIDES = ("original", "transformed", "drop")  # of a robustness set


def read_pretraining(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Reads a pre-training."""
  splits, num_damaged = curves.read_records(workdir)
  about = read_saved(run, workdir / files.ABOUT)
  run.curves = [
    curves.Curve(
      splits=curves.thin_records(splits, curves.MAX_POINTS),
      tokens=run.config["batch_size"] * run.config["length"],
      flops=about.get("row_flops", 0) * run.config["batch_size"] or None,
      references=_list_references(about, splits),
    )
  ]
  train, held_out = (splits.get(x, {}) for x in ("train", "held_out"))
  run.sentence = _describe_outcome(run, train, has_results=bool(results))
  lines = about.get("lines", {})
  run.facts |= {name: lines[name] for name in GLANCE if name in lines}
  cost = _measure_cost(run.config, train, about) if train else {}
  costs = [f"{page.format_number(x)} {unit}" for unit, x in cost.items()]
  run.facts["cost"] = ", ".join(costs)
  if num_damaged:
    text = f"metrics.jsonl has damaged lines ({num_damaged:,})"
    run.notes.append((page.WARNING, f"{text}, which the curves lack."))
  run.notes += [(page.WARNING, x) for x in _warn(train, held_out, about)]
  if verdict := results.get("verdict"):
    blocks = _show_verdict(run, verdict)
    yield page.Section("Held-out rows", files.RESULTS, blocks)
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))
  if fills := results.get("fills"):
    title = "Predictions for [MASK]"
    yield page.Section(title, files.RESULTS, map(_show_fills, [fills]))
  if about:
    yield page.Section("Data", files.ABOUT, _show_data(about))
  config = flatten(run.config)
  run.setting = {x: config.get(x) or None for x in SETTING}
  run.setting["data"] = [about.get(x) for x in DATA]
  run.measures = dict(_measure_quality(held_out, results.get("left_out", {})))
  run.measures |= {unit: page.Measure(x) for unit, x in cost.items()}


def read_saved(run: page.Run, path: pathlib.Path) -> dict[str, Any]:
  """Returns a JSON object; {} without a file, or with a note if damaged."""
  try:
    with read_results(path, CheckpointError, FIX) as saved:
      return saved
  except CheckpointError as e:
    if not isinstance(e.__cause__, FileNotFoundError):
      run.notes.append((page.ERROR, printable(e)))
    return {}


def _list_references(
  about: Mapping[str, Any], splits: Mapping[str, curves.Columns]
) -> dict[str, dict[str, float]]:
  """Returns what guessing without context reaches, for each loss."""
  names = ("unigram", "uniform") if about else ()
  guesses = {f"{x} entropy": about[f"{x}_entropy"] for x in names}
  references = dict.fromkeys(("mlm", "mlm_uncorrected", "mlm_hidden"), guesses)
  references["auc"] = {"chance": 0.5}
  if (rates := splits.get("held_out", {}).get("replaced")) is not None:
    from scipy import special  # slow to import

    entropy = float(special.entr(rates[-1]) + special.entr(1 - rates[-1]))
    references["detect"] = {"entropy of the labels": entropy}
  return references


def _show_verdict(
  run: page.Run, saved: Mapping[str, Any]
) -> Iterator[page.Block]:
  """Yields the table of the terminal, and notes what it says of the run."""
  level = page.GOOD if saved["passed"] else page.WARNING
  run.notes.insert(0, (level, saved["summary"]))
  yield page.table("", saved["table"])
  yield page.text(saved["rule"])


def _describe_outcome(
  run: page.Run, train: curves.Columns, *, has_results: bool
) -> str:
  if not train:
    return "No training step is recorded yet."
  step, steps = int(train["step"][-1]), run.config["steps"]
  if math.isfinite(total := train.get("total_steps", [math.nan])[-1]):
    steps = int(total)  # that fit into the minutes
  if step < steps:
    return f"{run.state.capitalize()} at step {step:,} of {steps:,}."
  rest = "" if has_results else "; the results are not written"
  return f"All {steps:,} steps are done{rest}."


def _measure_cost(
  config: Mapping[str, Any], train: curves.Columns, about: Mapping[str, Any]
) -> dict[str, float]:
  """Returns what a training has cost, by unit."""
  step, unknown = train["step"][-1], [math.nan]
  rows = step * config["batch_size"]
  cost = {
    "hours of training": curves.count_hours(train)[-1],
    "steps": step,
    "tokens": rows * config["length"],
    "TFLOP": about.get("row_flops", math.nan) * rows / 1e12,
    "rows/s": train.get("rows_per_s", unknown)[-1],
    "GiB of memory": train.get("memory_peak_gib", unknown)[-1],
  }
  return {unit: float(x) for unit, x in cost.items() if math.isfinite(x)}


def _measure_quality(
  held_out: curves.Columns, left_out: Mapping[str, Any]
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
  train: curves.Columns, held_out: curves.Columns, about: Mapping[str, Any]
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


def _show_fills(fills: Sequence[Mapping[str, Any]]) -> page.Block:
  rows = []
  for x in fills:
    likeliest = zip(x["tokens"], x["probabilities"], strict=True)
    tokens = ", ".join(f"{token} {p:.0%}" for token, p in likeliest)
    rows.append({"sentence": x["sentence"], "likeliest tokens": tokens})
  return page.table("", rows)


def show_cases(saved: Mapping[str, Any]) -> Iterator[page.Block]:
  """Yields the browser of the corrections in cases.json."""
  cases, sources = saved["cases"], saved["sources"]
  text = page.describe_search(saved["searched"], saved["corrected"], len(cases))
  hint = "Young models have few; the task `corrections` measures any text."
  if cases:
    hint = "In a sentence, the gold word and the prediction are marked."
  yield page.text(f"{text} {hint}")
  if not cases:
    return
  counts = {(x["gold"], x["prediction"]): x["count"] for x in cases}
  most = sorted(counts.items(), key=lambda item: -item[1])[:MAX_PAIRS]
  yield page.bars(
    "Most frequent pairs: gold → prediction",
    [(f"{gold} → {prediction}", n) for (gold, prediction), n in most],
  )
  rows = [
    {key: x[key] for key in CASE}
    | {f"by {source}": x["verdicts"][source] for source in sources}
    | {"synonyms of gold": page.abridge(x["synonyms"], x["prediction"])}
    for x in cases
  ]
  types = {"sentence": page.MARKED, "probability": page.PERCENT}
  yield page.table("Cases", rows, **types)


def _show_data(about: Mapping[str, Any]) -> Iterator[page.Block]:
  text = "; ".join(about["sources"])
  yield page.text(f"{text}. Rows are {about['padding_share']:.1%} padding.")
  yield page.bars("Tokens in a row, without padding", about["row_lengths"])
  tokens = [(name, 100 * share) for name, share in about["frequent_tokens"]]
  yield page.bars("Most frequent tokens, % of the training rows", tokens)


def read_finetuning(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Reads a fine-tuning."""
  run.curves = curves.read_curves(workdir, "*/seed-*")
  tasks = results.get("tasks", {})
  runs: Runs = {name: task["runs"] for name, task in tasks.items()}
  if not runs:
    finished = len([*workdir.glob("*/seed-*/result.json")])
    run.sentence = (
      f"{finished} runs are finished, {len(run.curves)} have begun; results"
      " are written at the end."
    )
    return
  mains = {name: next(iter(x[0]["scores"]["dev"])) for name, x in runs.items()}
  run.sentence = "Median scores on the dev sets: " + ", ".join(
    f"{name} {statistics.median(_scores(runs[name], metric)):.1f} ({metric})"
    for name, metric in mains.items()
  )
  secs = sum(x["secs"] for members in runs.values() for x in members)
  run.facts["cost"] = f"{secs / 3600:.2f} hours of training"
  seeds = run.config["finetune"]["seeds"]
  texts = list[str]()
  for name, members in runs.items():
    if len(members) < seeds:
      texts.append(f"{len(members)} of {seeds} seeds of {name} are finished.")
    failed = [x for x in members if x["failure"]]
    texts += [f"{name}, seed {x['seed']}: {x['failure']}" for x in failed]
    if notes := members[0]["notes"]:
      texts.append(f"{name} differs from others' setting: {', '.join(notes)}")
  run.notes += [(page.WARNING, text) for text in texts]
  blocks = _show_scores(runs, mains, results)
  yield page.Section("Scores", files.RESULTS, blocks)
  if any(x.get("mistakes") for members in runs.values() for x in members):
    yield page.Section("Wrong answers", files.RESULTS, _show_mistakes(runs))


def _scores(runs: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
  return [x["scores"]["dev"][metric] for x in runs]


def _show_scores(
  runs: Runs, mains: Mapping[str, str], results: Mapping[str, Any]
) -> Iterator[page.Block]:
  """Yields dots for each task beside published rows, and tables."""
  for name, metric in mains.items():
    groups = [make_group("this run", _scores(runs[name], metric))]
    groups += [
      {"label": f"{x['name']} ({x['source']})", "points": [x["scores"][task]]}
      for x in results.get("published", ())
      for task in (name, f"{name}_{metric}")
      if task in x["scores"]
    ]
    title = f"{name}: {metric}; seeds, median, and 95 % interval of the mean"
    yield page.dots(title, "%", groups)
  notes: dict[str, list[str]] = {}
  for x in results.get("published", ()):
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


def _show_compared(
  title: str, compared: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[page.Block]:
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


def _show_mistakes(runs: Runs) -> Iterator[page.Block]:
  for name, members in runs.items():
    rows = [
      {"seed": str(run["seed"])}
      | {key: str(x[key]) for key in ("text", "gold", "answer")}
      for run in members
      for x in run.get("mistakes", ())
    ]
    yield page.table(f"{name}, some of each seed", rows)


def read_corrections(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Reads the task `corrections`."""
  if not results:
    return
  lines, length = results["lines"], results["length"]
  run.facts["text"] = f"{lines:,} lines, cut to {length} tokens"
  source, checkpoints = next(iter(results["checkpoints"].items()))
  rates = {name: x["rate"] for name, x in checkpoints[-1]["rates"].items()}
  run.sentence = (
    f"{rates['mismatch_rate']:.2%} of the wrong predictions and"
    f" {rates['sequence_rate']:.2%} of the sequences are corrected by"
    f" {source}; the paper has 1.41 % and 7.07 % for BERT-base."
  )
  yield page.Section("Rates", files.RESULTS, _show_rates(results))
  if saved := read_saved(run, workdir / files.CASES):
    yield page.Section("Corrections", files.CASES, show_cases(saved))


def _show_rates(results: Mapping[str, Any]) -> Iterator[page.Block]:
  names = {
    "mismatch_rate": "of wrong predictions",
    "sequence_rate": "of sequences",
    "slot_rate": "of slots",
  }
  rows = [
    {"source": source, "step": x["step"], "corrected": label}
    | {"cases": x["rates"][name]["hits"], "total": x["rates"][name]["total"]}
    | {key: 100 * x["rates"][name][key] for key in ("rate", "low", "high")}
    for source, checkpoints in results["checkpoints"].items()
    for x in checkpoints
    for name, label in names.items()
  ]
  yield page.table("Rates, %, with 95 % intervals", rows)


def read_robustness(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Reads the task `robustness`."""
  del workdir  # a reader of results only
  if not results:
    return
  run.sentence = "Scores on changed texts."
  run.notes += [(page.WARNING, x) for x in results.get("notes", ())]
  rows, compared = list[dict[str, Any]](), {}
  runs = {model: len(records) for model, records in results["models"].items()}
  for examples in results["sets"].values():
    texts = {
      (model, metric): [
        f"{sides[x]['value']:.2f} ± {sides[x]['se']:.2f}" if x in sides else ""
        for x in SIDES
      ]
      for model, metrics in examples["scores"].items()
      for metric, sides in metrics.items()
    }
    has_pairs = any(x[-1] for x in texts.values())  # and so drops
    size = f"{examples['questions']:,} {'pairs' if has_pairs else 'texts'}"
    for model, metrics in examples["paper"].items():
      for metric, (before, after) in metrics.items():
        values = before, after, before - after
        texts[model, metric] = [f"{x:.2f}" for x in values]
    rows += [
      {"set": examples["title"], "model": model, "metric": metric}
      | {"runs": runs.get(model), "n": size if model in runs else "not stated"}
      | dict(zip(SIDES, sides, strict=True))
      for (model, metric), sides in texts.items()
    ]
    side = SIDES[-1 if has_pairs else 1]
    compared[f"{examples['title']}, {side}"] = examples["compared"]
  blocks = [page.table("Scores, %, with standard errors over n texts", rows)]
  blocks += _show_compared(" and ".join(runs), compared)
  yield page.Section("Robustness", files.RESULTS, blocks)


def read_study(
  run: page.Run, workdir: pathlib.Path, results: Mapping[str, Any]
) -> Iterator[page.Section]:
  """Reads a study."""
  run.curves = curves.read_curves(workdir, "runs/*/seed-*/pretrain")
  run.state = ""  # a study has no lock
  run.sentence = f"{len(run.curves)} pre-trainings have begun."
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


def _show_tables(layouts: Sequence[Mapping[str, Any]]) -> Iterator[page.Block]:
  for layout in layouts:
    rows = []
    for row in layout["rows"]:
      texts = [_format_cell(x, layout["digits"]) for x in row["cells"]]
      cells = dict(zip(layout["columns"], texts, strict=True))
      rows.append({"row": row["label"], "kind": row["kind"]} | cells)
    yield page.table(layout["title"], rows)
    if layout["notes"]:
      yield page.text(" ".join(layout["notes"]))


def _format_cell(cell: Mapping[str, Any], digits: int) -> str:
  value, half, runs = (cell[x] for x in ("value", "half_width", "runs"))
  form = "," if isinstance(value, int) else f",.{digits}f"
  number = "" if value is None else f"{value:{form}}"
  interval = "" if half is None else f"± {half:.{digits}f}"
  return " ".join(filter(None, (number, interval, runs)))


def _show_arms(
  scores: Sequence[Mapping[str, Any]], arms: Sequence[str]
) -> Iterator[page.Block]:
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
    yield page.dots(f"{task}: {metric}", "", groups)


READERS = {
  "pretrain": read_pretraining,
  "finetune": read_finetuning,
  "corrections": read_corrections,
  "robustness": read_robustness,
  "study": read_study,
}
