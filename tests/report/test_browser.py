"""The page in a real browser: Debian's chromium, driven by playwright."""

import json
import shutil
import socket

import pytest

from support.report_workdirs import (
  RESULTS,
  write_finetuning,
  write_pretraining,
  write_results,
)
from truenegs_jax.report import page, write
from truenegs_jax.report.pretraining import compare

CHROMIUM = shutil.which("chromium")
# At the end of each text of a page. URL is that of a server, with slashes that
# may be in the name of a folder.
MARKUP = """\"'>&lt;b&gt;{{data}}{% raw %}</script></title></style></textarea>
<meta http-equiv=refresh content='0;url=URL'><base href='URL'>
<link rel=preconnect href='URL'><link rel=stylesheet href='URL'>
<script>hacked = 1</script><img src='URL' onerror='hacked = 1'>
<svg onload='hacked = 1'><a xlink:href='javascript:hacked = 1'>x</a></svg>
<iframe srcdoc='<script>top.hacked = 1</script>'></iframe>
<iframe src='URL'></iframe><object data='URL'></object><embed src='URL'>
<style>@import 'URL'; * { background: url('URL') }</style>
<form action='URL'><button autofocus onfocus='hacked = 1'>x</button></form>
<video src='URL' onerror='hacked = 1'></video><x-hack></x-hack>
<a href='javascript:hacked = 1' target=_blank>x</a>
<template shadowrootmode=open><img src='URL'></template><!--
""".replace("\n", "")
COUNT = """() => [...document.body.querySelectorAll(
  "meta, base, link, img, iframe, object, embed, style, video," +
  " template, x-hack, form, script, a:not([href^='#section-'])," +
  " svg:not(.chart, .key)")
].length"""
LAST = "#section-4"  # for which everything above may change its height
# Texts that are wider than their place.
CUT = """() => [...document.querySelectorAll("figure :is(text, li)")].filter(
  x => {
    const [inner, outer] = [x, x.closest("figure")].map(
      y => y.getBoundingClientRect());
    return inner.right > outer.right + 1 || inner.left < outer.left - 1;
  }).map(x => x.textContent)"""


@pytest.fixture(scope="module")
def browser():
  if not CHROMIUM:
    pytest.skip("no chromium. On Debian: apt-get install chromium")
  pytest.importorskip("playwright")
  from playwright.sync_api import sync_playwright

  with sync_playwright() as playwright:
    options = {"executable_path": CHROMIUM, "args": ["--no-sandbox"]}
    browser = playwright.chromium.launch(**options)
    yield browser
    browser.close()


@pytest.fixture
def tab(browser):
  """Yields a function that opens a page, which must not complain or load."""
  complaints = []
  context = browser.new_context(viewport={"width": 1200, "height": 900})

  def open_page(path, width=1200, anchor=""):
    context.route("http*://**", lambda route: route.abort())
    tab = context.new_page()
    tab.set_viewport_size({"width": width, "height": 900})
    tab.on("console", lambda x: complaints.append(f"{x.type}: {x.text}"))
    tab.on("pageerror", lambda x: complaints.append(str(x)))
    tab.on("dialog", lambda x: complaints.append(f"dialog: {x.message}"))
    context.on("request", lambda x: requests.append(x.url))
    tab.goto(path.as_uri() + anchor)
    return tab

  requests: list[str] = []
  yield open_page
  context.close()
  assert not complaints
  assert {url.partition(":")[0] for url in requests} <= {"file", "data"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  folder = tmp_path_factory.mktemp("browser")
  return write_pretraining(folder / "run", cases=5_000)


@pytest.fixture(scope="module")
def run_page(run):
  write.write_report(write.read_workdirs([run]), run / "page.html")
  return run / "page.html"


@pytest.fixture
def server():
  """Yields a server that nobody should call."""
  with socket.create_server(("127.0.0.1", 0)) as server:
    server.setblocking(False)
    yield server


@pytest.mark.parametrize("width", [390, 1280])
def test_a_direct_link_lands_and_nothing_is_cut_off(tab, run_page, width):
  opened = tab(run_page, width, LAST)
  heading = opened.locator(f"{LAST} > h2")
  assert heading.inner_text() == "Corrections"
  assert 0 <= heading.bounding_box()["y"] < 20
  assert opened.evaluate(CUT) == []
  assert opened.evaluate("document.documentElement.scrollWidth") == width
  chart = opened.locator("figure", has_text="MLM, as trained").first
  assert chart.locator("path.series-0").first.bounding_box()["height"] > 50
  names = chart.locator("li").all_inner_texts()
  assert [" ".join(x.split()) for x in names] == [
    *("run, train 7", "run, held-out 7"),
    *("unigram entropy 6.9", "uniform entropy 8.3"),
  ]


def change_texts(value, markup, name=""):
  """Appends markup to the texts of a file, and to names that users choose."""
  if isinstance(value, dict):
    changed = {k: change_texts(x, markup, k) for k, x in value.items()}
    is_named = name in ("verdicts", "models", "sets", "scores")
    if not is_named or "dev" in changed:
      return changed
    return {k + markup: x for k, x in changed.items()}
  if isinstance(value, list):
    return [change_texts(x, markup) for x in value]
  return value + markup if isinstance(value, str) else value


def test_no_text_of_a_page_becomes_markup(tab, tmp_path, server):
  url = f"http:&#47;&#47;127.0.0.1:{server.getsockname()[1]}"
  markup = MARKUP.replace("URL", url)
  folders = [
    write_pretraining(tmp_path / "pretraining"),
    write_finetuning(tmp_path / "rte"),
    *(write_results(tmp_path / task, task) for task in RESULTS),
  ]
  for path in tmp_path.rglob("*.json"):
    saved = change_texts(json.loads(path.read_text()), markup)
    if path.name == "config.json":
      saved["task"] = saved["task"].removesuffix(markup)
      saved[markup] = markup
    path.write_text(json.dumps(saved))
  runs = write.read_workdirs(folders)
  for run in runs:
    assert page.ERROR not in dict(run.notes), run.notes
    run.name += markup
    run.facts["folder"] += markup
    run.notes.append((page.ERROR + markup, markup))
    for curve in run.curves:
      curve.label += markup
      curve.group += markup
      curve.guesses = {"mlm": {markup: 7.0}}
  path = tmp_path / "page.html"
  path.write_text(page.render(runs, compare(runs)))
  opened = tab(path)
  opened.evaluate("""() => {
    document.querySelectorAll("summary").forEach(x => x.click());
    dispatchEvent(new Event("beforeprint"));
  }""")
  assert opened.evaluate(COUNT) == 0
  text = opened.evaluate("document.body.textContent")
  assert text.count("<x-hack></x-hack>") > 300
  assert opened.locator(".legend", has_text="<x-hack>").count()
  assert opened.title().endswith(markup)
  assert opened.evaluate("window.hacked") is None
  assert opened.url == path.as_uri()
  with pytest.raises(BlockingIOError):  # nobody called
    server.accept()
