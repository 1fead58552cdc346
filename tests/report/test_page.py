"""The page carries any text safely, and allows only its own scripts."""

import base64
import hashlib
import importlib.resources
import json
import re

import pytest

from support.html_tables import Parser, read_rows
from support.report_workdirs import (
  HOSTILE,
  HOSTILE_IMAGE,
  write_finetuning,
  write_pretraining,
)
from truenegs_jax.report import page
from truenegs_jax.report.pretraining import compare
from truenegs_jax.report.write import read_workdirs


def render(tmp_path, name):
  folder = write_pretraining(tmp_path / name)
  return Parser(page.render(read_workdirs([folder])))


@pytest.mark.parametrize(
  "name",
  ["run", "{{ data }}{% block %}", "<b>&amp;", "<script>alert(1)<", "a--><b>"],
)
def test_texts_are_texts_whatever_they_contain(tmp_path, name):
  parser = render(tmp_path, name)
  assert parser.title == name
  assert [tag for tag, _ in parser.tags].count("script") == 3
  assert not {"img", "b"} & {tag for tag, _ in parser.tags}
  [curve] = json.loads(parser.scripts[0])["curves"]
  assert curve["label"] == name
  [cases] = [x for x in parser.tables if "prediction" in x[0]]
  assert cases[1][1:3] == [HOSTILE, HOSTILE_IMAGE]


def test_texts_of_tables_and_paragraphs_are_escaped():
  rows = [{"<i>": "<b>", "n": 1}, {"<i>": "\"'&", "n": None}]
  drawn = page.table("<u>", rows)
  assert Parser(drawn).tables == [[["<i>", "n"], ["<b>", "1"], ["\"'&", "–"]]]
  assert not {"i", "b", "u"} & {tag for tag, _ in Parser(drawn).tags}
  section = page.Section("<s>", "f", ["<p>", drawn])
  run = page.Run("r", "p", sections=[section])
  text = page.render([run])
  assert "<p>&lt;p&gt;</p>" in text and drawn in text and "<s>" not in text


def test_the_charts_show_the_values_of_the_records(tmp_path):
  folder = write_pretraining(tmp_path / "run")
  parser = Parser(page.render(read_workdirs([folder])))
  lines = (folder / "metrics.jsonl").read_text().splitlines()
  records = [json.loads(line) for line in lines]
  [curve] = json.loads(parser.scripts[0])["curves"]
  for split, columns in curve["splits"].items():
    own = [x for x in records if x["split"] == split]
    for name, values in columns.items():
      if name != "hours":
        scale = 100 if name == "corrected_of_slots" else 1
        expected = [scale * x[name] for x in own]
        assert values == pytest.approx(expected, rel=1e-5)
  fields = {attributes.get("data-field") for _, attributes in parser.tags}
  assert {"total", "mlm", "lr"} < fields and "soft" not in fields


def test_many_curves_share_a_legend_of_their_groups(tmp_path):
  for arm in ("a", "<b>"):
    for seed in range(5):
      folder = tmp_path / f"runs/{arm}/seed-{seed}/pretrain"
      folder.mkdir(parents=True)
      record = {"step": 1, "time": 0, "split": "train", "auc": 0.5}
      (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
  (tmp_path / "config.json").write_text('{"task": "study"}')
  text = page.render(read_workdirs([tmp_path]))
  assert not json.loads(Parser(text).scripts[0])["hasLegend"]
  assert re.findall('class="key key-(.)"></span>(.*)</span>', text) == [
    ("0", "&lt;b&gt;"),
    ("1", "a"),
  ]


@pytest.mark.parametrize(
  "value, text",
  [
    *((None, "–"), (float("nan"), "–"), (0.0, "0"), (61_440, "61,440")),
    *((4.31249, "4.312"), (-0.000123456, "-0.0001235"), (1e-6, "1.00e-06")),
    *((12_345.6, "12,346"), (99.9999, "100"), (0.5, "0.5")),
  ],
)
def test_numbers_have_four_digits(value, text):
  assert page.format_number(value) == text


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
  assert links[0] == {"rel": "icon", "href": "data:,"}
  ids = {a.get("id") for _, a in parser.tags}
  assert {x["href"].removeprefix("#") for x in links[1:]} <= ids
  assert len(links) == 5


def test_vendored_files_are_those_of_their_checksums():
  folder = importlib.resources.files("truenegs_jax.report") / "vendor"
  lines = (folder / "SHA256SUMS").read_text().splitlines()
  expected = dict(reversed(line.split()) for line in lines)
  assert len(expected) == 2
  for name, digest in expected.items():
    content = (folder / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest


def test_the_only_script_of_this_package_is_short():
  script = importlib.resources.files("truenegs_jax.report") / "charts.js"
  assert len(script.read_text().splitlines()) <= 100


def test_pages_of_two_runs_name_what_differs(tmp_path):
  first = write_pretraining(tmp_path / "a" / "run", lr=1e-3)
  second = write_pretraining(tmp_path / "b" / "run", lr=2e-3)
  runs = read_workdirs([first, second, first / ".." / "run"])
  *_, configs = read_rows(*compare(runs))
  assert configs == [["optim.lr", "0.001", "0.002"]]
  assert [run.name for run in runs] == [str(first), str(second)]
  assert len({curve.group for run in runs for curve in run.curves}) == 2


def test_seeds_of_a_fine_tuning_share_a_colour_beside_published_scores(
  tmp_path,
):
  [run] = read_workdirs([write_finetuning(tmp_path / "rte")])
  assert {curve.group for curve in run.curves} == {"rte"}
  assert len(run.curves) == 3
  [own, published] = read_rows(*run.sections[0].blocks)[0]
  assert own == ["rte", "accuracy", "this run", "62", "60.0, 62.0, 70.0"]
  model = "ELECTRA small (paper, Table 3)"
  assert published == ["rte", "accuracy", model, "68.5", "copied"]
