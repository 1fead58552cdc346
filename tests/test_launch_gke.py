"""Tests the files for GKE by the rules of JobSet and Kubernetes."""

import pathlib
import re
import signal

import yaml

from truenegs_jax.runtime import errors

GKE = pathlib.Path(__file__).parent.parent / "launch" / "gke"
RESTART = errors.SAVED_RESTART


def action(code: int, *, disrupted: bool = False) -> str:
  """Returns what JobSet does when a pod fails, by the rules of jobset.yaml."""
  spec = yaml.safe_load((GKE / "jobset.yaml").read_text())["spec"]
  (slices,) = spec["replicatedJobs"]
  job = slices["template"]["spec"]
  assert job["backoffLimit"] == 0
  reason, message = "BackoffLimitExceeded", "reached its backoff limit"
  for i, rule in enumerate(job["podFailurePolicy"]["rules"]):
    codes = rule.get("onExitCodes", {"operator": "In", "values": []})
    assert codes["operator"] == "In" and rule["action"] == "FailJob"
    end = f"matching FailJob rule at index {i}"
    if code in codes["values"]:
      reason = "PodFailurePolicy"
      message = (
        f"Container train for pod a/b failed with exit code {code} {end}"
      )
      break
    if disrupted and "onPodConditions" in rule:
      reason = "PodFailurePolicy"
      message = f"Pod a/b has condition DisruptionTarget {end}"
      break
  for rule in spec["failurePolicy"]["rules"]:
    patterns = rule.get("onJobFailureMessagePatterns", [""])
    if reason in rule.get("onJobFailureReasons", [reason]) and any(
      re.search(pattern, message) for pattern in patterns
    ):
      return rule["action"]
  return "RestartJobSet"


def test_jobset_restarts_on_75_without_limit_and_not_on_failures():
  free = "RestartJobSetAndIgnoreMaxRestarts"
  assert action(RESTART) == free
  assert action(143, disrupted=True) == free
  assert action(128 + signal.SIGABRT) == "RestartJobSet"
  for code in (1, 2, 3, 4, 5, 6, errors.SAVED_INTERRUPT, 137):
    assert action(code) == "FailJobSet"
