"""Configures Sphinx: `make docs` builds docs/_build/html."""

import pathlib
import re
import subprocess
import sys

from docutils import nodes

import truenegs_jax

DOCS = pathlib.Path(__file__).parent
STUDIES = DOCS.parent / "studies"
sys.path[:0] = [
  str(DOCS),
  *(str(STUDIES / x) for x in ("corrections", "teacher")),
]
import config_reference  # noqa: E402
import demo_figures  # noqa: E402
import real_text  # noqa: E402
import search_terms  # noqa: E402
import summarize  # noqa: E402
import summary  # noqa: E402

project = "truenegs_jax"
copyright = "the authors of truenegs_jax"
version = release = truenegs_jax.__version__

extensions = [
  "myst_nb",  # Markdown and notebooks
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx_copybutton",
  "sphinx_design",
  "sphinx-mathjax-offline",  # formulas without a network
]
exclude_patterns = ["_build", "runs"]  # runs: of the notebook

myst_enable_extensions = [
  *("amsmath", "colon_fence", "deflist", "dollarmath", "substitution")
]
# {{ d100.end.hc.kl_class }}, {{ demo.mlm }}
myst_substitutions = summarize.numbers() | {
  "demo": demo_figures.numbers(),
  "teacher": summary.numbers() | real_text.numbers(),
}
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests run the code of the pages

autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch"]  # 190 MB that the pages do not need
autodoc_typehints = "signature"
add_module_names = False  # headings name the modules
maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"
default_role = "code"  # of single backticks in docstrings
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "truenegs_jax"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_favicon = "_static/favicon.svg"
html_search_scorer = str(DOCS / "scorer.js")
html_sidebars = {"install": []}  # it has no pages below it
html_context = {"default_mode": "auto"}  # light or dark, as the system
html_theme_options = {
  "show_prev_next": True,
  "show_toc_level": 2,
  "navigation_with_keys": False,
  "footer_start": ["copyright"],
  "footer_end": [],
}
html_show_sourcelink = False


def mark_indented_blocks(app, what, name, obj, options, lines):
  """Turns indented paragraphs of a docstring into literal blocks."""
  text = "\n".join(lines).rstrip()
  paragraphs = text.split("\n\n")
  marked = [
    f"::\n\n{p}" if all(s.startswith("  ") for s in p.splitlines()) else p
    for p in paragraphs
  ]
  lines[:] = [*"\n\n".join(marked).splitlines(), ""]


def generate(app, docname, source):
  """Puts tables of config keys and help texts into their pages."""
  if docname == "reference/config":
    keys = config_reference.render()
    source[0] = source[0].replace(config_reference.PLACEHOLDER, keys)
  if docname == "reference/commands":
    source[0] = re.sub(r"<!-- help: (\w+) -->", help_block, source[0])


def register_keys(app, doctree):
  """Makes each config key an object with an address, which the search finds."""
  if app.env.docname != "reference/config":
    return
  rows = {}
  for body in doctree.findall(nodes.tbody):
    for row in body:
      rows.setdefault(row[0].astext(), row)
  for key, row in rows.items():
    row["ids"].append(key)
    app.env.domains.standard_domain.note_object("confval", key, key, row)


def help_block(match):
  """Returns what a command prints with --help, as a block of text."""
  command = [sys.executable, "-m", "truenegs_jax", match[1], "--help"]
  text = subprocess.run(command, check=True, capture_output=True, text=True)
  return f"```text\n{text.stdout}```"


def setup(app):
  app.connect("source-read", generate)
  app.connect("doctree-read", register_keys)
  app.connect("doctree-read", search_terms.add_index_entries)
  app.connect("env-get-outdated", search_terms.list_pages)
  # Before napoleon, which reads the sections of Google's style.
  app.connect("autodoc-process-docstring", mark_indented_blocks, priority=400)
