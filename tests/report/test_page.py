"""The page carries any text safely, and runs no script."""

import json

import pytest

from support.html_tables import Parser
from support.report_workdirs import (
  RESULTS,
  write_finetuning,
  write_pretraining,
  write_results,
)
from truenegs_jax.report import page
from truenegs_jax.report.write import compare, read_workdirs

MARKUP = (
  "\"'>&lt;b&gt;{{data}}{% raw %}</script></title></style><script>x</script>"
  "<img src='x' onerror='x'><svg onload='x'></svg><iframe src='x'></iframe>"
  "<a href='javascript:x'>x</a><template><!--"
)


def change_texts(value, name=""):
  """Appends MARKUP to the texts of a file."""
  if isinstance(value, dict):
    return {k: change_texts(x, k) for k, x in value.items()}
  if isinstance(value, list):
    return [change_texts(x) for x in value]
  is_text = isinstance(value, str) and value and name != "task"
  return value + MARKUP if is_text else value


def test_no_text_becomes_markup(tmp_path):
  folders = [
    write_pretraining(tmp_path / "pretraining"),
    write_finetuning(tmp_path / "rte"),
    *(write_results(tmp_path / task, task) for task in RESULTS),
  ]

  def read_page(markup):
    runs = read_workdirs(folders)
    for run in runs:
      assert page.ERROR not in dict(run.notes), run.notes
      run.name += markup
      run.notes.append((page.ERROR + markup, markup))
      for curve in run.curves:
        curve.label += markup
        curve.group += markup
    text = page.render(runs, compare(runs))
    return Parser(text), text

  plain, _ = read_page("")
  for path in tmp_path.rglob("*.json"):
    saved = change_texts(json.loads(path.read_text()))
    path.write_text(json.dumps(saved))
  parser, text = read_page(MARKUP)
  assert [tag for tag, _ in parser.tags] == [tag for tag, _ in plain.tags]
  for (_, ours), (_, theirs) in zip(parser.tags, plain.tags, strict=True):
    assert ours.keys() == theirs.keys()
  assert parser.title.endswith(MARKUP) and MARKUP not in text


def test_no_script_runs_and_nothing_is_loaded(tmp_path):
  folder = write_pretraining(tmp_path / "run")
  parser = Parser(page.render(read_workdirs([folder])))
  [policy] = [x["content"] for _, x in parser.tags if "http-equiv" in x]
  assert policy.startswith("default-src 'none';") and "script" not in policy
  assert not parser.scripts
  links = [a for _, a in parser.tags if "src" in a or "href" in a]
  assert links[0] == {"rel": "icon", "href": "data:,"}
  ids = {a.get("id") for _, a in parser.tags}
  assert {x["href"].removeprefix("#") for x in links[1:]} <= ids
  assert len(links) == 6


@pytest.mark.parametrize(
  "value, text",
  [
    *((None, "–"), (float("nan"), "–"), (61_440, "61,440")),
    *((4.31249, "4.312"), (-0.000123456, "-0.0001235")),
  ],
)
def test_numbers_have_four_digits(value, text):
  assert page.format_number(value) == text
