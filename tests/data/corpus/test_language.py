"""Text in another language than the declared one is refused."""

import lzma

import numpy as np
import pytest

from truenegs_jax.data.corpus import language
from truenegs_jax.data.corpus.sources_spec import open_corpus
from truenegs_jax.data.prepare_rows import prepare
from truenegs_jax.runtime.errors import InputError

TEXTS = {
  "en": "The house on the hill was built by a farmer who had lost his way. ",
  "fr": "La maison sur la colline fut bâtie par un paysan qui s'était égaré. ",
  "da": "Huset på bakken blev bygget af en bonde, som ikke kunne finde hjem. ",
  "pt": "A casa na colina foi construída por um camponês que não voltou. ",
  "ja": "丘の上の家は、道に迷った農夫によって建てられたものである。",
  "zh": "山上的房子是由一个迷路的农民建造的，他再也没有回家。",
  "none": "1914 2718 28182 84590 45 ",
}


def make_lines(code, num_characters=2 * language.MIN_CHARACTERS):
  text = TEXTS[code]
  return [text * 3] * (num_characters // (3 * len(text)))


def check(lines, code):
  """Returns the warnings of a check, or raises."""
  warnings = []
  lengths = language.measure_languages(language.cut_excerpts(lines))
  language.check_language(lengths, code, warnings.append)
  return warnings


@pytest.mark.parametrize(
  "code, declared",
  [*((code, code) for code in TEXTS if code != "none")]
  + [("none", "en"), ("fr", ""), ("da", "nb"), ("da", "no"), ("pt", "gl")],
)
def test_text_in_the_declared_language_passes(code, declared):
  assert check(make_lines(code), declared) == []


@pytest.mark.parametrize(
  "code, declared",
  [("fr", "en"), ("en", "fr"), ("da", "sv"), ("ja", "zh"), ("zh", "ja")],
)
def test_text_in_another_language_is_refused(code, declared):
  lines = make_lines("none", 10_000) + make_lines(code)
  message = f"{declared}'.* 100% {code}. .*language={code}"
  with pytest.raises(InputError, match=message):
    check(lines, declared)


def test_most_of_the_text_counts_and_short_texts_are_only_reported():
  english, french = make_lines("en"), make_lines("fr")
  mixed = [
    line
    for i in range(0, 300, 3)
    for line in english[i : i + 3] + french[i : i + 1]
  ]
  assert check(mixed, "en") == []
  with pytest.raises(InputError, match="7.% en, 2.% fr. .*language=en"):
    check(mixed, "fr")
  [warning] = check(make_lines("fr", language.MIN_CHARACTERS // 2), "en")
  assert "language=fr" in warning
  assert check(["swan crane a the", "grebe . flies", "a b c d"], "en") == []
  assert check([], "en") == []
  [warning] = check(english, "bo")
  assert "cannot be detected" in warning


@pytest.mark.parametrize("code", ["french", "FR", "xx", "fra", " "])
def test_codes_outside_iso_639_1_are_refused(code):
  with pytest.raises(InputError, match=f"language='{code}' is not a code"):
    language.check_code(code)
  for known in ("", "en", "fr", "bo"):
    language.check_code(known)


def test_each_part_of_a_corpus_is_sampled(tmp_path):
  for code in ("en", "fr"):
    lines = make_lines(code, 1_000_000)
    (tmp_path / f"{code}.txt").write_text("\n\n".join(lines), encoding="utf-8")
  corpus = open_corpus(f"{tmp_path}/en.txt, {tmp_path}/fr.txt")
  excerpts = list(language.sample_corpus(corpus))
  lengths = [sum(len(x) for x in excerpts if w in x) for w in ("hill", "égaré")]
  assert np.allclose(lengths, language.SAMPLE_CHARACTERS / 2, rtol=0.01)


@pytest.mark.parametrize("num_texts", [1, 2])
@pytest.mark.parametrize("size", [165_000, 2_000_000])
def test_few_long_texts_are_sampled_as_much_as_many(num_texts, size):
  lines = make_lines("fr", size)
  step = len(lines) // num_texts
  texts = ["\n".join(lines[i : i + step]) for i in range(0, len(lines), step)]
  excerpts = list(language.cut_excerpts(texts))
  least = min(size, language.SAMPLE_CHARACTERS)
  assert least * 0.99 <= sum(map(len, excerpts)) <= 2 * least
  with pytest.raises(InputError, match="100% fr"):
    check(texts, "en")
  # Most of an English text counts, wherever it quotes.
  quotes = make_lines("fr", size // 3)
  mixed = [*make_lines("en", size // 3), *quotes, *make_lines("en", size // 3)]
  assert check(["\n".join(mixed)], "en") == []


def test_only_the_texts_that_are_needed_are_read():
  texts = iter(["\n".join(make_lines("en", 100_000))] * 100)
  assert 200 <= len(list(language.cut_excerpts(texts))) < 250
  assert len(list(texts)) >= 90


def test_rows_of_another_language_are_refused(tmp_path, monkeypatch):
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  path = tmp_path / "a.txt"
  path.write_text("\n".join(make_lines("fr")), encoding="utf-8")
  options = {"length": 32, "vocab_size": 80, "rows": str(tmp_path / "rows")}
  with pytest.raises(InputError, match="100% fr"):
    prepare(str(path), language="en", **options)
  assert not (tmp_path / "rows").exists()
  del options["rows"]
  rows, _ = prepare(str(path), **options)
  assert prepare(str(path), language="fr", **options)[0] == rows
  for data in ({}, {"rows": str(rows)}):
    with pytest.raises(InputError, match="'en'.* 100% fr"):
      prepare(str(path), language="en", **options, **data)
  path.unlink()  # the rows know it without their text
  with pytest.raises(InputError, match="'en'.* 100% fr"):
    prepare(str(path), language="en", rows=str(rows), **options)


@pytest.mark.parametrize(
  "name",
  [
    "wikitext-2/wiki.test.raw.xz",
    "glue/CoLA/train.tsv.xz",
    "squad/dev-v1.1.json.xz",
  ],
)
def test_real_english_passes_without_a_warning(real_data, name):
  with lzma.open(real_data / name, "rt", encoding="utf-8") as file:
    lines = file.read(1_000_000).split("\n")
  for normalize in (str, str.upper, str.lower):
    assert check(map(normalize, lines), "en") == []
