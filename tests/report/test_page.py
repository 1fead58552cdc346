"""The page carries any text safely, and allows only its own scripts."""

import base64
import hashlib
import html.parser
import importlib.resources
import json
import re

import pytest

from support.report_workdirs import (
  HOSTILE,
  HOSTILE_IMAGE,
  write_finetuning,
  write_pretraining,
)
from truenegs_jax.report import page
from truenegs_jax.report.compare import compare
from truenegs_jax.report.write import read_workdirs


class Parser(html.parser.HTMLParser):
  """Collects scripts and tags as a browser sees them."""

  def __init__(self):
    super().__init__()
    self.scripts, self.tags, self.title = [], [], ""
    self._open = None

  def handle_starttag(self, tag, attributes):
    self.tags.append((tag, dict(attributes)))
    self._open = tag
    if tag == "script":
      self.scripts.append("")

  def handle_endtag(self, tag):
    self._open = None

  def handle_data(self, data):
    if self._open == "script":
      self.scripts[-1] += data
    if self._open == "title":
      self.title += data


def render(tmp_path, name):
  folder = write_pretraining(tmp_path / name)
  parser = Parser()
  parser.feed(page.render(read_workdirs([folder])))
  return parser


@pytest.mark.parametrize("name", ["run", "{{DATA}}", "<b>&amp;"])
def test_texts_are_data_whatever_they_contain(tmp_path, name):
  parser = render(tmp_path, name)
  assert parser.title == name
  assert [tag for tag, _ in parser.tags].count("script") == 4
  data = json.loads(parser.scripts[0])
  _, corrections, *_ = data["runs"][0]["sections"]
  cases = corrections["blocks"][-1]["rows"]
  assert cases[0][:2] == [HOSTILE, HOSTILE_IMAGE]
  assert data["runs"][0]["facts"]["steps"] == HOSTILE


def test_the_policy_allows_the_scripts_of_the_page_and_no_network(tmp_path):
  parser = render(tmp_path, "run")
  [policy] = [
    attributes["content"]
    for tag, attributes in parser.tags
    if tag == "meta" and "http-equiv" in attributes
  ]
  hashes = [
    base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    for script in parser.scripts[1:]
  ]
  assert re.findall("'sha256-(.*?)'", policy) == hashes
  assert policy.startswith("default-src 'none';")
  links = [a for _, a in parser.tags if "src" in a or "href" in a]
  assert links == [{"rel": "icon", "href": "data:,"}]


def test_vendored_files_are_those_of_their_checksums():
  folder = importlib.resources.files("truenegs_jax.report") / "vendor"
  lines = (folder / "SHA256SUMS").read_text().splitlines()
  expected = dict(reversed(line.split()) for line in lines)
  assert len(expected) == 4
  for name, digest in expected.items():
    content = (folder / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest


def test_pages_of_two_runs_name_what_differs(tmp_path):
  first = write_pretraining(tmp_path / "a" / "run", lr=1e-3)
  second = write_pretraining(tmp_path / "b" / "run", lr=2e-3)
  runs = read_workdirs([first, second, first / ".." / "run"])
  *_, configs = compare(runs)
  assert configs["rows"] == [["optim.lr", "0.001", "0.002"]]
  assert [run.name for run in runs] == ["a/run", "b/run"]
  assert len({curve.group for run in runs for curve in run.curves}) == 2


def test_seeds_of_a_fine_tuning_share_a_colour_beside_published_scores(
  tmp_path,
):
  [run] = read_workdirs([write_finetuning(tmp_path / "rte")])
  assert {curve.group for curve in run.curves} == {"rte"}
  assert len(run.curves) == 3
  dots = run.sections[0].blocks[0]
  own, published = dots["groups"]
  assert own["points"] == [60.0, 62.0, 70.0]
  assert own["median"] == 62.0
  # Student's t with two degrees of freedom: 4.3027 * 5.2915 / sqrt(3).
  assert own["high"] - own["low"] == pytest.approx(2 * 13.145, abs=1e-2)
  assert published["points"] == [68.5]
