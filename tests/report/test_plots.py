"""Figures are drawn at the width of a column, in vectors too."""

import re
import subprocess
import sys

import pytest

from support.report_workdirs import write_pretraining
from truenegs_jax.report import plots
from truenegs_jax.report.curves import Curve
from truenegs_jax.report.write import read_workdir
from truenegs_jax.runtime.errors import InputError


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
  return read_workdir(write_pretraining(tmp_path_factory.mktemp("a") / "run"))


def test_curves_have_a_columns_width_and_the_same_bytes(drawn, tmp_path):
  for name in ("a", "b"):
    plots.draw_curves(drawn.curves, tmp_path / name, ["mlm", "auc"])
  for suffix in plots.SUFFIXES:
    first, second = (
      (tmp_path / f"{name}{suffix}").read_bytes() for name in ("a", "b")
    )
    assert first == second
  content = (tmp_path / "a.pdf").read_bytes()
  [box] = re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", content)
  assert float(box[0]) == pytest.approx(72 * plots.WIDTH)
  assert b"/Subtype /Image" not in content


def test_the_legend_names_each_line_by_its_own_run(monkeypatch, tmp_path):
  """Also if the first panel lacks a run, as that of a loss with corrections."""
  figures = []
  monkeypatch.setattr(plots, "save_figure", lambda x, _: figures.append(x))
  baseline, hc = ("soft",), ("mlm", "soft")
  drawn = [
    Curve({"train": dict.fromkeys(("step", *fields), [1.0, 2.0])}, name, name)
    for name, fields in {"baseline": baseline, "hc": hc}.items()
  ]
  plots.draw_curves(drawn, tmp_path / "a.png", ["mlm", "soft"])
  [legend] = figures[0].legends
  colors = {
    text.get_text(): line.get_color()
    for text, line in zip(legend.texts, legend.legend_handles, strict=True)
  }
  assert colors == dict(zip(("baseline", "hc"), plots.COLORS, strict=False))


def test_fields_without_values_are_refused(drawn, tmp_path):
  with pytest.raises(InputError, match="--field='mlmm' is unknown"):
    plots.draw_curves(drawn.curves, tmp_path / "a.png", ["mlmm"])
  with pytest.raises(InputError, match="--field=sentence is in no"):
    plots.draw_curves(drawn.curves, tmp_path / "a.png", ["sentence"])
  assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_workdir_without_curves_makes_no_figure(tmp_path):
  (tmp_path / "config.json").write_text('{"task": "corrections"}')
  output = tmp_path / "curves.png"
  flags = str(tmp_path), f"--output={output}"
  command = [sys.executable, "-m", "truenegs_jax.report", *flags]
  done = subprocess.run(command, capture_output=True, text=True)
  assert done.returncode == 2 and "have none yet" in done.stderr
  assert not output.exists() and "saved" not in done.stdout
