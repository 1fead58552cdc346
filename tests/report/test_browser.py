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
  "meta, base, link, img, svg, iframe, object, embed, style, video," +
  " template, x-hack, form:not(#tools), script:not(body > script)," +
  " a:not([href^='#section-'])")
].length"""
LAST = "#section-3"  # for which everything above may change its height
# Texts that are wider than their cell, or outside of their figure.
CUT = """() => [...document.querySelectorAll(
  ".u-legend th, .u-legend td")].filter(x => {
    const [inner, outer] = [x, x.closest("figure")].map(
      y => y.getBoundingClientRect());
    return x.scrollWidth > x.clientWidth + 1 && x.clientWidth
      || inner.right > outer.right + 1 || inner.left < outer.left - 1;
  }).map(x => x.textContent).concat([...charts.values()].flatMap(
  ({ctx, axes}) => {
    ctx.font = "12px system-ui, sans-serif";
    const {_size: room, _values: ticks} = axes[1];
    return ticks.filter(x => ctx.measureText(x).width > room);
  }))"""


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


def check_layout(opened, width):
  """Checks a page that was left at its last link."""
  heading = opened.locator(f"{LAST} > h2")
  assert heading.inner_text() == "Corrections"
  assert 0 <= heading.bounding_box()["y"] < 20
  heights = "[...document.querySelectorAll('figure')].map(x => x.offsetHeight)"
  before, values = opened.evaluate(heights), opened.locator(".u-legend").first
  last = values.inner_text()
  opened.locator(".u-over").first.hover()
  assert values.inner_text() != last  # but those at the pointer
  assert opened.evaluate(heights) == before
  assert opened.evaluate(CUT) == []
  assert opened.evaluate("document.documentElement.scrollWidth") == width


def test_a_direct_link_lands_on_a_narrow_screen(tab, run_page):
  check_layout(tab(run_page, 390, LAST), 390)


def test_a_link_lands_and_charts_have_names_and_values(tab, run_page):
  opened = tab(run_page, 1280)
  opened.locator("nav a").last.click()
  check_layout(opened, 1280)
  legend = opened.locator("figure", has_text="MLM, as trained").first
  opened.mouse.move(0, 0)  # so that the last values are shown
  names = legend.locator(".u-series").all_inner_texts()
  assert [" ".join(x.split()) for x in names] == [
    *("step 60", "run, train 7", "● run, held-out 7"),
    *("unigram entropy 6.9", "uniform entropy 8.3"),
  ]
  ticks = [[0, 500, 1500], [0, 5e-4, 1e-3], [0, 6.1e6], [None, 0.2], [1e-6, 1]]
  assert opened.evaluate("x => x.map(y => formatTicks(y))", ticks) == [
    ["0", "500", "1,500"],
    ["0", "0.0005", "0.0010"],
    ["0", "6.1M"],
    ["", "0.2"],
    ["1e-6", "1e+0"],
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
      curve.references = {"mlm": {markup: 7.0}}
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
  assert opened.locator(".u-legend", has_text="<x-hack>").count()
  assert opened.title().endswith(markup)
  assert opened.evaluate("window.hacked") is None
  assert opened.url == path.as_uri()
  with pytest.raises(BlockingIOError):  # nobody called
    server.accept()


def test_tools_are_hidden_where_nothing_is_drawn(tab, tmp_path):
  folder = write_results(tmp_path / "run", "robustness")
  path = tmp_path / "page.html"
  write.write_report(write.read_workdirs([folder]), path)
  opened = tab(path)
  assert not opened.locator("#tools").is_visible()
  assert not opened.locator("canvas").count()


@pytest.mark.slow
def test_overlaid_runs_have_lines_of_their_own(tab, run, tmp_path):
  other = write_pretraining(tmp_path / "other", steps=30, lr=2e-3)
  runs = write.read_workdirs([run, other])
  write.write_report(runs, tmp_path / "page.html")
  opened = tab(tmp_path / "page.html")
  labels = opened.evaluate(
    "[...charts.values()].map(x => x.series.map(y => y.label)).find(x =>"
    " x.includes('run, train'))"
  )
  assert {"run, train", "other, train"} <= {*labels}
  rows = opened.locator("figure", has_text="Config keys").locator("tbody tr")
  assert sorted(rows.all_inner_texts()) == [
    "optim.lr\t0.001\t0.002",
    "steps\t60\t30",
  ]


@pytest.mark.slow
def test_curves_zoom_smooth_and_change_their_axis(tab, run_page):
  opened = tab(run_page)

  def read(expression):
    return opened.evaluate(
      "[...charts].filter(([holder]) => holder.dataset.field === 'total')"
      f".map(([, x]) => {expression})[0]"
    )

  opened.get_by_label("against").select_option("tokens")
  assert read("x.scales.x.max") == 60 * 8 * 32
  rough = read("x.data[1]")
  opened.get_by_label("smoothing").fill("0.8")
  smooth = read("x.data[1]")
  assert smooth[0] == rough[0]
  assert smooth[1] == pytest.approx(0.8 * rough[0] + 0.2 * rough[1])
  opened.get_by_label("log x").check()
  assert read("x.scales.x.distr") == 3
  opened.get_by_role("button", name="reset").click()
  opened.wait_for_function("[...charts.values()][0].scales.x.distr === 1")
  assert read("x.data[1]") == rough and read("x.scales.x.max") == 60
