"""Scores of a study are those that its parts saved."""

import io
import json

import numpy as np
from rich.console import Console

from truenegs_jax.finetune import results
from truenegs_jax.report import plots
from truenegs_jax.runtime.flags import parse_config
from truenegs_jax.study import drive, plan, run, scores
from truenegs_jax.study.drive import State
from truenegs_jax.study.run import Curve, draw_curves
from truenegs_jax.workdir import files

OPTIONS = plan.StudyOptions.from_config(
  parse_config(
    [
      "--config=study:runlocal",
      "--config.study.tasks=mrpc",
      "--config.study.finetune_seeds=2",
      "--config.study.corrections=",
    ]
  )
)
GOLDS = ["0", "1", "1", "0"]


def save_result(folder, seed, secs):
  answers = [str(int(x) ^ (i == seed)) for i, x in enumerate(GOLDS)]
  dev = {"keys": list("abcd"), "golds": GOLDS, "answers": answers}
  result = results.Result(
    task="mrpc",
    seed=seed,
    failure="",
    scores={"dev": {"accuracy": 75.0, "f1": 80.0}},
    step=1,
    steps=1,
    evaluations={},
    losses=[1.0],
    secs=secs,
    rows_per_s=1 / secs,
    answers={"dev": dev},
    provenance={"labels": ["0", "1"], "family": "bert", "width": 768},
    notes=[],
    mistakes=[],
  )
  path = results.run_folder(folder, "mrpc", seed)
  path.mkdir(parents=True)
  results.save(folder, result)


def save_study(root, secs):
  """Writes the results of arm "baseline", and a failure of "hc"."""
  study = plan.make_parts(OPTIONS, root)
  for part in study:
    folder = root / part.key
    folder.mkdir(parents=True)
    if part.arm == "hc":
      if part.name == "pretrain":
        value = {"code": 6, "lines": ["The loss is not finite."]}
        files.save_json(folder / drive.FAILED, value)
    elif part.name == "mrpc":
      for seed in range(2):
        save_result(folder, seed, secs)
    else:
      files.save_json(folder / files.RESULTS, {})
      lines = [
        {"step": step, "split": split, "mlm": 3 + part.seed, "time": secs}
        for step, split in ((1, "held_out"), (2, "train"))
      ]
      text = "".join(f"{json.dumps(x)}\n" for x in lines)
      (folder / "metrics.jsonl").write_text(text)
      files.save_json(folder / files.ABOUT, {"row_flops": 1e9})
  return study, drive.read_statuses(study, root)


def collect(root, secs):
  study, statuses = save_study(root, secs)
  done = [x for x in study if statuses[x.key].state == State.DONE]
  return run.collect_scores(done, root)


def test_scores_do_not_depend_on_times(tmp_path):
  collected, network = collect(tmp_path / "a", 1.0)
  others, _ = collect(tmp_path / "b", 9.0)
  assert collected == others
  assert network == {"family": "bert", "width": 768}
  runs = [(x.arm, x.seed, x.task, x.finetune_seed) for x in collected]
  assert sorted(runs, key=str) == sorted(
    [
      *(("baseline", n, "mrpc", i) for n in (0, 1) for i in (0, 1)),
      *(("baseline", n, scores.HELD_OUT, None) for n in (0, 1)),
    ],
    key=str,
  )
  for x, y in zip(collected, others, strict=True):
    if x.task == "mrpc":
      np.testing.assert_array_equal(x.correct_N, y.correct_N)
      assert np.mean(x.correct_N) == x.value
    else:
      assert x.value == 3 + x.seed


def test_a_failed_pretraining_is_told(tmp_path):
  study, statuses = save_study(tmp_path, 1.0)
  console = Console(file=io.StringIO(), width=200)
  run.report(OPTIONS, study, statuses, tmp_path, console)
  saved = json.loads((tmp_path / "results.json").read_text())
  assert len(saved["failures"]) == 2
  for seed, text in enumerate(saved["failures"]):
    assert f"hc/seed-{seed}/pretrain' failed with exit code 6: The loss" in text
    assert text in console.file.getvalue().replace("\n", "")
  names = [x["name"] for x in saved["tables"]]
  assert names == ["table3", scores.HELD_OUT]
  assert len(saved["scores"]) == 6
  expected = {"tables.csv", "tables.tex", "plots"}
  assert expected <= {x.name for x in tmp_path.iterdir()}


def make_records(steps, offset, **fields):
  records = [
    {"step": n, "split": "held_out", "mlm": 9 - n / 10 + offset, **fields}
    for n in steps
  ]
  return [{"step": 1, "split": "train", "mlm": 50.0}, *records]


def test_means_are_over_the_steps_that_all_seeds_have(tmp_path, monkeypatch):
  figures = []
  monkeypatch.setattr(plots, "save_figure", lambda x, _: figures.append(x))
  curves = [
    Curve("baseline", 0, make_records((2, 4, 6), 0), 1e9),
    Curve("baseline", 1, make_records((2, 4), 1.0), 1e9),
    # Corrections lower `mlm`; a loss that is not finite is null.
    Curve("hc", 1, make_records((2,), -5, mlm_uncorrected=8.0), 2e9),
    Curve("hc", 0, make_records((2,), -5, mlm_uncorrected=None, mlm=None), 2e9),
  ]
  path = tmp_path / "plots" / "losses.png"
  assert draw_curves(curves, 2, path) == [path]
  by_step, by_flops, difference = figures[0].axes
  lines = {x.get_label(): x for x in by_flops.get_lines() if not x.get_alpha()}
  assert list(lines) == ["baseline", "hc (1 of 2 seeds)"]
  baseline, hc = (x.get_xydata() for x in lines.values())
  np.testing.assert_allclose(baseline, [[2e9, 9.3], [4e9, 9.1]])
  np.testing.assert_allclose(hc, [[4e9, 8.0]])
  baseline = [x for x in by_step.get_lines() if not x.get_alpha()][0]
  np.testing.assert_allclose(baseline.get_xydata(), [[2, 9.3], [4, 9.1]])
  faint = [x for x in by_flops.get_lines() if x.get_alpha()]
  assert [len(x.get_xdata()) for x in faint] == [3, 2, 1]
  # Seed 1 of the baseline has 9.8 at step 2.
  baseline, hc = (x for x in difference.get_lines() if not x.get_alpha())
  np.testing.assert_allclose(baseline.get_xydata(), [[2, 0], [4, 0]])
  np.testing.assert_allclose(hc.get_xydata(), [[2, -1.8]])
  assert draw_curves([], 2, path) == []


def test_losses_of_training_replace_a_single_held_out_loss(
  tmp_path, monkeypatch
):
  figures = []
  monkeypatch.setattr(plots, "save_figure", lambda x, _: figures.append(x))
  curves = [Curve("baseline", 0, make_records((2,), 0), 1e9)]
  draw_curves(curves, 1, tmp_path / "plots" / "losses.png")
  line = figures[0].axes[0].get_lines()[0]
  np.testing.assert_allclose(line.get_xydata(), [[1, 50.0]])
