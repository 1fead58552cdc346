"""Downloads WordNet from stand-ins for NLTK's server and for apt-get."""

import shutil

import pytest

from support.mini_wordnet import SYNSETS, write_wordnet
from truenegs_jax import wordnet
from truenegs_jax.runtime.errors import UnavailableError
from truenegs_jax.synonyms import wordnet as reader

DEBIAN_PATH = "debian/usr/share/wordnet"
# The first download fails, as with old lists, and a later one works only after
# an update in folders of one's own.
APT_GET = """#!/bin/sh
case "$*" in
  *Dir::State::Lists=*update) touch updated ;;
  *Dir::State::Lists=*download*) [ -e updated ] && touch wordnet.deb ;;
  *) echo "E: no $*" >&2; exit 100 ;;
esac
"""
DPKG_DEB = """#!/bin/sh
cp -r '{}/.' "$3"
"""


@pytest.fixture
def cached(tmp_path, monkeypatch):
  """Returns the folder to fill; no server, apt-get or WordNet exists."""
  import nltk

  monkeypatch.setattr(nltk.data, "path", [])
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
  (tmp_path / "bin").mkdir()
  write_tool(tmp_path, "apt-get", "#!/bin/sh\necho 'E: no apt' >&2; exit 1\n")
  monkeypatch.setattr(wordnet, "URL", f"file://{tmp_path}/wordnet.zip")
  count = sum(map(len, SYNSETS.values()))
  monkeypatch.setattr(wordnet, "NUM_SYNSETS", count)
  return tmp_path / "cache" / "nltk_data" / "corpora" / "wordnet"


def write_tool(folder, name, text):
  path = folder / "bin" / name
  path.write_text(text)
  path.chmod(0o755)


def write_zip(folder):
  write_wordnet(folder / "server" / "wordnet")
  shutil.make_archive(folder / "wordnet", "zip", folder / "server", "wordnet")


def write_debian(folder):
  write_wordnet(folder / DEBIAN_PATH)
  write_tool(folder, "apt-get", APT_GET)
  write_tool(folder, "dpkg-deb", DPKG_DEB.format(folder / "debian"))


def is_readable():
  with reader.session() as session:
    return "home" in reader.find_lemma_names("house", session)


@pytest.mark.parametrize("write", [write_zip, write_debian])
def test_wordnet_is_downloaded_once_from_each_place(
  write, cached, tmp_path, capsys
):
  write(tmp_path)
  wordnet.fetch()
  assert is_readable() and str(cached) in capsys.readouterr().out
  assert [path.name for path in cached.parent.iterdir()] == ["wordnet"]
  shutil.rmtree(tmp_path / "bin")
  (tmp_path / "wordnet.zip").unlink(missing_ok=True)
  wordnet.fetch()
  assert not capsys.readouterr().out


def test_a_wordnet_on_nltks_path_is_enough(cached, tmp_path, monkeypatch):
  write_wordnet(tmp_path / "own" / "corpora" / "wordnet")
  import nltk

  nltk.data.path.append(str(tmp_path / "own"))
  wordnet.fetch()
  assert not cached.exists()


def test_an_incomplete_wordnet_is_replaced_only_by_a_complete_one(
  cached, tmp_path
):
  write_wordnet(cached)
  (cached / "data.noun").write_text("")
  write_zip(tmp_path)
  archive = tmp_path / "wordnet.zip"
  content = archive.read_bytes()
  archive.write_bytes(content[:-100])
  with pytest.raises(UnavailableError, match="NLTK: .*Debian: E: no apt"):
    wordnet.fetch()
  assert (cached / "data.noun").read_text() == ""
  archive.write_bytes(content)
  wordnet.fetch()
  assert is_readable()


def test_an_incomplete_download_is_refused(cached, tmp_path, monkeypatch):
  write_zip(tmp_path)
  monkeypatch.setattr(wordnet, "NUM_SYNSETS", 117_659)
  with pytest.raises(UnavailableError, match="117,659.*set NLTK_DATA=FOLDER"):
    wordnet.fetch()
  assert not cached.exists()


def test_a_tool_that_hangs_is_given_up(cached, tmp_path, monkeypatch):
  write_tool(tmp_path, "apt-get", "#!/bin/sh\nexec sleep 60\n")
  monkeypatch.setattr(wordnet, "APT_SECS", 0.1)
  with pytest.raises(UnavailableError, match="timed out"):
    wordnet.fetch()
