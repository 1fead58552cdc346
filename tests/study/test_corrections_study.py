"""Tests how the study of corrections is measured and summarized."""

import pathlib
import sys

import numpy as np
import pytest

STUDY = pathlib.Path(__file__).parents[2] / "studies" / "corrections"


@pytest.fixture
def modules(monkeypatch):
  """Returns the modules `measure_text` and `summarize`."""
  monkeypatch.syspath_prepend(STUDY)
  import measure_text
  import summarize

  yield measure_text, summarize
  for name in ("measure_text", "summarize"):
    sys.modules.pop(name)


def test_the_result_is_that_of_the_committed_files(modules):
  _, summarize = modules
  assert summarize.OUT.read_text() == summarize.render()
  for dial, seeds in ((100, 10), (10, 5)):
    runs = summarize.read(f"dial-{dial}")
    for arm in ("baseline", *summarize.ARMS):
      for step in summarize.CHECKPOINTS.values():
        assert runs[arm, step, "kl_class"].shape == (seeds,)
  # What ends hard correction later is the same until then.
  before = (summarize.CHECKPOINTS["third"], "kl_word")
  runs = summarize.read("dial-100")
  np.testing.assert_array_equal(runs["hc", *before], runs["hc_until", *before])


@pytest.mark.parametrize(
  ("values", "verdict"),
  [
    ([0.001, 0.002, 0.003], "holds"),
    ([0.05, 0.051, 0.052], "refuted"),
    ([-0.03, -0.031, -0.032], "refuted"),
    ([0.0, 0.02, 0.01], "open"),
  ],
)
def test_a_prediction_is_judged_by_its_interval(modules, values, verdict):
  _, summarize = modules
  difference = summarize.estimate(np.array(values))
  assert difference.verdict(-0.01, 0.01) == verdict


def test_scores_of_slots_are_those_of_a_loop(modules):
  measure_text, _ = modules
  rng = np.random.default_rng(0)
  before_BxKxV, after_BxKxV = np.log(rng.dirichlet(np.ones(5), (2, 2, 3)))
  gold_BxK = rng.integers(5, size=(2, 3))
  ids_VxS = np.array([[1, 2], [0, -1], [-1, -1], [4, -1], [0, 3]])
  scores = measure_text.score(before_BxKxV, after_BxKxV, gold_BxK, ids_VxS)
  for at in np.ndindex(gold_BxK.shape):
    p_V, q_V = np.exp(before_BxKxV[at]), np.exp(after_BxKxV[at])
    words = [gold_BxK[at], *(x for x in ids_VxS[gold_BxK[at]] if x >= 0)]
    expected = {
      "gold_loss": -np.log(p_V[words[0]]),
      "set_loss": -np.log(p_V[words].sum()),
      "swap_kl": (p_V * np.log(p_V / q_V)).sum(),
      "swap_agreement": p_V.argmax() == q_V.argmax(),
    }
    for name, value in expected.items():
      assert scores[name][at] == pytest.approx(value, rel=1e-4), name
