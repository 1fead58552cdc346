"""Tests that a measured run decides the language and the default of tables."""

import json

from truenegs_jax.configs import corrections as config
from truenegs_jax.corrections.measured_model import resolve_config
from truenegs_jax.train import build_run
from truenegs_jax.weights.formats.find import Weights


def test_tables_are_of_the_language_of_the_run(tmp_path):
  c = config.get_config()
  c.corrections.run = str(tmp_path)
  (tmp_path / "checkpoints" / "7").mkdir(parents=True)
  saved = json.loads(c.to_json())
  for language, identity in (("fr", "omw language=fr"), ("en", "wordnet")):
    saved["data"]["language"] = language
    (tmp_path / "config.json").write_text(json.dumps(saved))
    resolved = resolve_config(c, Weights("", print))
    request = build_run.build_table_request(resolved)
    assert request.expression.identity == identity
  assert c.data.language == "en"
  for trained, source in (("pairs path=a", "pairs path=a"), ("model", "auto")):
    saved["negatives"]["sources"] = trained
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert resolve_config(c, Weights("", print)).negatives.sources == source
