"""Checks that the generated reference of config keys is complete."""

import importlib
import re
import sys

import pytest

from support.doc_pages import ROOT
from truenegs_jax.runtime.config_files import flatten, packaged_names


@pytest.fixture(scope="module")
def page():
  sys.path.insert(0, str(ROOT / "docs"))
  try:
    return importlib.import_module("config_reference").render()
  finally:
    sys.path.remove(str(ROOT / "docs"))


@pytest.mark.parametrize("name", packaged_names())
def test_every_key_of_every_config_has_a_row_with_a_meaning(page, name):
  config = importlib.import_module(f"truenegs_jax.configs.{name}").get_config()
  for key in flatten(config.to_dict()):
    rows = re.findall(rf"(?m)^\| `{re.escape(key)}` \| .*$", page)
    described = [row for row in rows if row.count("|") > 3]
    assert described, key
    for row in described:
      assert len(row.split(" | ")[1].split()) >= 2, row
