"""Paths in buckets do what local ones do, also behind a bad link."""

import pickle

import pytest

from support import bucket_servers
from truenegs_jax.runtime import files, paths
from truenegs_jax.runtime.errors import DiskError, InputError

pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body")


@pytest.fixture
def link(server, monkeypatch):
  """Yields the proxy before an empty bucket, and a folder in it."""
  with bucket_servers.connect_empty(monkeypatch, server) as proxy:
    yield proxy, paths.open_path("--workdir", f"{server.url}/a/b/")


def test_files_of_a_folder_are_listed_and_read(link, tmp_path):
  _, folder = link
  for root in (folder, tmp_path):
    (root / "sub").mkdir(exist_ok=True)
    for name in ("x.json", "sub/y.json"):
      (root / name).write_bytes(name.encode())
  for root in (folder, tmp_path):
    assert sorted(x.name for x in root.iterdir()) == ["sub", "x.json"]
    assert [x.name for x in root.glob("*/*.json")] == ["y.json"]
    assert (root / "sub").is_dir() and not (root / "sub").is_file()
    assert (root / "x.json").is_file() and root.exists()
    assert not (root / "z").exists() and not list((root / "z").glob("*"))
    assert files.read_file(root / "x.json") == b"x.json"
    with pytest.raises(FileNotFoundError):
      (root / "z").read_bytes()


def test_a_path_is_written_as_its_url(link):
  _, folder = link
  path = pickle.loads(pickle.dumps(folder / "x"))
  assert str(path) == f"{folder}/x" == f"{path}" == str(path.resolve())
  assert paths.is_bucket(path.parent) and path.parent == folder
  assert path.relative_to(folder.parent).as_posix() == "b/x"


def test_requests_that_fail_are_repeated(link, monkeypatch):
  from truenegs_jax.runtime import buckets

  proxy, folder = link
  monkeypatch.setattr(buckets, "MAX_PAUSE_SECS", 0.05)
  proxy.fail_rate = 0.3
  for i in range(5):
    (folder / f"{i}").write_bytes(b"x")
  assert len(list(folder.iterdir())) == 5
  assert len({x.status for x in proxy.log}) > 1


def test_a_folder_is_renamed_also_if_an_answer_is_lost(link, monkeypatch):
  _, folder = link
  for name in ("x", "sub/y"):
    (folder / "old" / name).write_bytes(name.encode())
  remove, answers = folder.system.rm, []

  def lose_first_answer(*args, **options):
    answers.append(None)
    remove(*args, **options)
    if len(answers) == 1:
      raise ConnectionResetError

  monkeypatch.setattr(folder.system, "rm", lose_first_answer)
  (folder / "old").rename(folder / "new")
  assert folder.find() == ["new/sub/y", "new/x"]
  assert len(answers) == 2


def test_a_bucket_that_stays_out_of_reach_is_a_disk_error(link, monkeypatch):
  from truenegs_jax.runtime import buckets

  proxy, folder = link
  monkeypatch.setattr(buckets, "REPEAT_SECS", 0.0)
  monkeypatch.setattr("gcsfs.retry.asyncio.sleep", _return_at_once)
  proxy.down = True
  with pytest.raises(DiskError, match="could not be reached"):
    (folder / "x").write_bytes(b"x")


async def _return_at_once(secs):
  del secs


@pytest.mark.parametrize("fault", ["read_only", "no bucket"])
def test_a_user_without_access_is_told_at_once(server, link, fault):
  from truenegs_jax.runtime import buckets

  proxy, folder = link
  if fault == "no bucket":
    folder = paths.open_path("--workdir", f"{server.scheme}://nobody/a")
    assert not folder.exists() and not folder.find()
  proxy.read_only = fault == "read_only"
  store = buckets.open_store(folder)
  with pytest.raises(InputError, match="cannot be used"):
    buckets.repeat(str(folder), lambda: store.write("x", b"").result())
  assert len(proxy.log) < 20


def test_a_folder_is_whole_or_refused(server, link, tmp_path):
  _, folder = link
  with files.atomic_folder(folder) as new:
    (new / "x").write_bytes(b"1")
  assert [*folder.list_files()] == ["x"]
  with pytest.raises(ValueError), files.atomic_folder(folder) as new:
    (new / "x").write_bytes(b"2")
    raise ValueError
  folder.download_files(folder.list_files(), tmp_path)
  assert (tmp_path / "x").read_bytes() == b"1"
  server.write("a/b/x", b"3")  # a writer that is killed now
  with pytest.raises(InputError, match="incomplete"):
    folder.download_files(folder.list_files(), tmp_path)


@pytest.mark.parametrize(
  "url",
  [
    "gs://bucket",
    "gs://bucket/a//b",
    "gs://bucket/*",
    "gs:/bucket/a",
    "hf://x",
  ],
)
def test_a_url_of_no_folder_is_refused(url):
  with pytest.raises(InputError, match="--workdir="):
    paths.open_path("--workdir", url)
