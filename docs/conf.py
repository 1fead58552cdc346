"""Configures Sphinx: `make docs` builds docs/_build/html."""

import truenegs_jax

project = "truenegs_jax"
copyright = "the authors of truenegs_jax. Apache-2.0."
version = release = truenegs_jax.__version__

extensions = [
  "myst_nb",  # Markdown and notebooks
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx_copybutton",
  "sphinx_design",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests run the code of the pages

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"jax.Array": "jax.Array"}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "truenegs_jax"
html_theme_options = {
  "show_prev_next": True,
  "show_toc_level": 2,
  "navigation_with_keys": False,
  "footer_start": ["copyright"],
  "footer_end": [],
}
html_show_sourcelink = False
