"""Downloads WordNet by NLTK, and unpacks it from Debian's packages."""

import os
import shutil
import subprocess

import pytest

from support.doc_pages import ROOT
from support.mini_wordnet import write_wordnet
from truenegs_jax import wordnet
from truenegs_jax.runtime.errors import DataError, UnavailableError
from truenegs_jax.synonyms import wordnet as reader

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


class Downloader:
  """Stands in for NLTK's: unpacks nothing, and compares with checksums."""

  content = b""  # of the server's file; empty if it cannot be reached

  def download(self, package, *, download_dir, **options):
    assert package == "wordnet"
    assert options["raise_on_error"] and options["force"]
    if not self.content:
      raise ValueError("Error loading wordnet: no server")
    os.makedirs(f"{download_dir}/corpora", exist_ok=True)
    with open(f"{download_dir}/corpora/wordnet.zip", "wb") as file:
      file.write(self.content)


@pytest.fixture
def cached(tmp_path, monkeypatch):
  """Returns the folder to fill; no server and no WordNet exists."""
  import nltk.downloader

  monkeypatch.setattr(nltk.data, "path", [])
  monkeypatch.setattr(nltk.downloader, "Downloader", Downloader)
  monkeypatch.setattr(Downloader, "content", b"")
  monkeypatch.setenv("TRUENEGS_CACHE", str(tmp_path / "cache"))
  return tmp_path / "cache" / "nltk_data" / "corpora"


@pytest.fixture
def served(cached, tmp_path, monkeypatch):
  """Serves a small WordNet."""
  write_wordnet(tmp_path / "server" / "wordnet")
  path = shutil.make_archive(tmp_path / "w", "zip", tmp_path / "server")
  with open(path, "rb") as file:
    monkeypatch.setattr(Downloader, "content", file.read())


def is_readable():
  return "home" in reader.find_lemma_names("house", reader.open_wordnet())


def test_wordnet_is_downloaded_once(served, cached, monkeypatch, capsys):
  wordnet.fetch()
  assert is_readable() and str(cached.parent) in capsys.readouterr().out
  assert [path.name for path in cached.iterdir()] == ["wordnet.zip"]
  monkeypatch.setattr(Downloader, "content", b"")
  wordnet.fetch()
  assert not capsys.readouterr().out


@pytest.mark.parametrize("mode", [0o644, 0o664])
def test_a_good_wordnet_on_nltks_path_is_enough(cached, tmp_path, mode):
  """Also one that its group can write to, which NLTK refuses."""
  own = tmp_path / "own" / "corpora" / "wordnet"
  write_wordnet(own)
  for path in own.iterdir():
    path.chmod(mode)
  import nltk

  nltk.data.path.append(str(tmp_path / "own"))
  wordnet.fetch()
  assert is_readable() and not cached.exists()


def test_a_damaged_wordnet_of_the_user_is_left_alone(
  served, cached, tmp_path, monkeypatch
):
  """The good one of the cache is read instead, as a folder or a zip file."""
  import nltk

  own = write_wordnet(tmp_path / "own" / "corpora" / "wordnet")
  (own / "data.noun").write_text("")
  (tmp_path / "zip" / "corpora").mkdir(parents=True)
  (tmp_path / "zip" / "corpora" / "wordnet.zip").write_bytes(b"PK cut off")
  path = [str(tmp_path / "own"), str(tmp_path / "zip")]
  monkeypatch.setattr(nltk.data, "path", path)
  with pytest.raises(DataError, match=f"Repair or remove '{own}'.*zip'"):
    reader.open_wordnet()
  wordnet.fetch()
  assert is_readable() and not (own / "data.noun").read_text()


@pytest.mark.parametrize("name", ["wordnet/data.noun", "wordnet.zip"])
def test_a_damaged_wordnet_in_the_cache_is_downloaded_again(
  served, cached, name
):
  write_wordnet(cached / "wordnet")
  (cached / "wordnet" / "data.noun").unlink()
  (cached / name).write_text("")
  wordnet.fetch()
  assert is_readable()


def test_a_damaged_download_is_refused(cached, monkeypatch):
  monkeypatch.setattr(Downloader, "content", b"PK")
  with pytest.raises(UnavailableError, match="NLTK's server"):
    wordnet.fetch()


def test_without_a_server_the_error_says_what_to_type(cached):
  with pytest.raises(UnavailableError) as raised:
    wordnet.fetch()
  message = str(raised.value)
  assert "no server" in message and "NLTK_DATA=FOLDER" in message
  assert "Debian's wordnet-base and wordnet-sense-index" in message


@pytest.mark.parametrize("is_relative", [False, True])
def test_debians_packages_are_unpacked_without_root(
  cached, tmp_path, is_relative
):
  """The first download fails, as with old lists of packages."""
  write_wordnet(tmp_path / "debian/usr/share/wordnet")
  (tmp_path / "debian/usr/share/wordnet/index.sense").write_text("x\n")
  (tmp_path / "bin").mkdir()
  dpkg = DPKG_DEB.format(tmp_path / "debian")
  for name, text in {"apt-get": APT_GET, "dpkg-deb": dpkg}.items():
    path = tmp_path / "bin" / name
    path.write_text(text)
    path.chmod(0o755)
  env = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
  if is_relative:
    env["TRUENEGS_CACHE"] = "cache"
  script = ROOT / "launch" / "wordnet_debian.sh"
  for _ in range(2):
    subprocess.run([script], env=env, cwd=tmp_path, check=True)
    assert is_readable()
    assert [path.name for path in cached.iterdir()] == ["wordnet"]
  (tmp_path / "bin" / "dpkg-deb").write_text("#!/bin/sh\n")
  assert subprocess.run([script], env=env, cwd=tmp_path).returncode
  assert is_readable()
