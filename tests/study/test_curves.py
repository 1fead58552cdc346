"""Tests the overlaid training curves of arms."""

import numpy as np
from matplotlib.figure import Figure

from truenegs_jax.study.curves import Curve, draw_curves


def make_records(steps, offset, **fields):
  records = [
    {"step": n, "split": "held_out", "mlm": 9 - n / 10 + offset, **fields}
    for n in steps
  ]
  return [{"step": 1, "split": "train", "mlm": 50.0}, *records]


def keep_figures(monkeypatch):
  """Returns a list that gets each figure when it is saved."""
  figures, savefig = [], Figure.savefig

  def save(figure, *args, **options):
    figures.append(figure)
    savefig(figure, *args, **options)

  monkeypatch.setattr(Figure, "savefig", save)
  return figures


def test_means_are_over_the_steps_that_all_seeds_have(tmp_path, monkeypatch):
  figures = keep_figures(monkeypatch)
  curves = [
    Curve("baseline", 0, make_records((2, 4, 6), 0), 1e9),
    Curve("baseline", 1, make_records((2, 4), 1.0), 1e9),
    # Corrections lower `mlm`; a loss that is not finite is null.
    Curve("hc", 1, make_records((2,), -5, mlm_uncorrected=8.0), 2e9),
    Curve("hc", 0, make_records((2,), -5, mlm_uncorrected=None, mlm=None), 2e9),
  ]
  path = tmp_path / "plots" / "losses.png"
  assert draw_curves(curves, 2, path) == [path]
  assert path.read_bytes().startswith(b"\x89PNG")
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
  figures = keep_figures(monkeypatch)
  curves = [Curve("baseline", 0, make_records((2,), 0), 1e9)]
  draw_curves(curves, 1, tmp_path / "plots" / "losses.png")
  line = figures[0].axes[0].get_lines()[0]
  np.testing.assert_allclose(line.get_xydata(), [[1, 50.0]])
