"""A local stand-in for the Hugging Face hub.

Serves what `huggingface_hub` needs to inspect a model or a data set and to
download its files. It does not offer Xet, so files are downloaded by HTTP.
"""

import contextlib
import dataclasses
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

API_PATH = re.compile(
  r"/api/(models|datasets)/(?P<repo>.+?)(/(?P<call>revision|tree)"
  r"(/(?P<rev>[^/]+))?(/(?P<folder>.+))?)?"
)
FILE_PATH = re.compile(
  r"/(datasets/)?(?P<repo>.+?)/resolve/(?P<rev>[^/]+)/(?P<file>.+)"
)
Models = dict[str, dict[str, dict[str, bytes]]]


@dataclasses.dataclass
class Hub:
  """The models of a hub, its refusals, and the requests so far.

  Attributes:
    models: name -> revision -> file -> content; also of data sets.
    refusals: substring of a path -> status and X-Error-Code of the answer.
    requests: "GET /path", without the query.
  """

  models: Models = dataclasses.field(default_factory=dict)
  refusals: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
  requests: list[str] = dataclasses.field(default_factory=list)

  def files(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]]:
    """Returns the commit and the files of a revision or of a commit."""
    for name, files in self.models[repo].items():
      commit = commit_of(repo, name, files)
      if revision in (name, commit):
        return commit, files
    raise LookupError(revision)


def commit_of(repo: str, revision: str, files: dict[str, bytes]) -> str:
  """Returns the commit that the stand-in gives a revision, if it is none."""
  if re.fullmatch("[0-9a-f]{40}", revision):
    return revision
  return _sha1(f"{repo} {revision} {sorted(files.items())}".encode())


def _sha1(data: bytes) -> str:
  return hashlib.sha1(data).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self) -> None:
    hub: Hub = self.server.hub  # type: ignore[attr-defined]
    path = self.path.partition("?")[0]
    hub.requests.append(f"{self.command} {path}")
    for substring, (status, code) in hub.refusals.items():
      if substring in path:
        return self._answer(status, b"", {"X-Error-Code": code})
    match = API_PATH.fullmatch(path) or FILE_PATH.fullmatch(path)
    if not match or match["repo"] not in hub.models:
      return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
    revision = urllib.parse.unquote(match["rev"] or "main")
    try:
      commit, files = hub.files(match["repo"], revision)
    except LookupError:
      return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
    if match.re is FILE_PATH:
      return self._file(commit, files.get(urllib.parse.unquote(match["file"])))
    answer: Any = _list_files(files)
    if match["folder"] or match["call"] == "tree":
      query = urllib.parse.parse_qs(self.path.partition("?")[2])
      recursive = query.get("recursive", ["True"])[0].lower()
      is_recursive = recursive in ("true", "1")
      folder = urllib.parse.unquote(match["folder"] or "")
      answer = _list_folder(answer, folder, is_recursive=is_recursive)
    else:
      answer = {"id": match["repo"], "sha": commit, "siblings": answer}
    return self._answer(200, json.dumps(answer).encode(), {})

  do_HEAD = do_GET

  def _file(self, commit: str, data: bytes | None) -> None:
    if data is None:
      return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
    headers = {"ETag": f'"{_sha1(data)}"', "X-Repo-Commit": commit}
    return self._answer(200, data, headers)

  def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
    with contextlib.suppress(ConnectionError):  # the client may have left
      self.send_response(status)
      for name, value in headers.items():
        self.send_header(name, value)
      self.send_header("Content-Length", str(len(body)))
      self.end_headers()
      if self.command != "HEAD":
        self.wfile.write(body)

  def log_message(self, *args: Any) -> None:
    """Prints nothing."""


def _list_files(files: dict[str, bytes]) -> list[dict[str, str | int]]:
  return [
    {"type": "file", "path": name, "rfilename": name, "size": len(data)}
    | dict.fromkeys(("oid", "blobId"), _sha1(data))
    for name, data in files.items()
  ]


def _list_folder(
  entries: list[dict[str, Any]], folder: str, *, is_recursive: bool
) -> list[dict[str, Any]]:
  """Returns the files and folders in a folder."""
  start = f"{folder}/" if folder else ""
  inside = [x for x in entries if x["path"].startswith(start)]
  deep = {x["path"]: x["path"][len(start) :].split("/") for x in inside}
  files = [x for x in inside if is_recursive or len(deep[x["path"]]) == 1]
  names = {
    "/".join(parts[:depth])
    for parts in deep.values()
    for depth in range(1, len(parts) if is_recursive else min(2, len(parts)))
  }
  folders = [
    {"type": "directory", "path": start + name, "oid": _sha1(name.encode())}
    for name in sorted(names)
  ]
  return folders + files


@contextlib.contextmanager
def connect(
  server: "HubServer", monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
  """Makes the client of the hub use a server, with the token "hf_secret"."""
  template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
  monkeypatch.setattr(constants, "ENDPOINT", server.url)
  monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
  monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
  monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
  monkeypatch.setenv("NO_PROXY", "127.0.0.1")
  monkeypatch.setenv("HF_TOKEN", "hf_secret")
  huggingface_hub.close_session()  # an open session keeps its old proxies
  yield
  huggingface_hub.close_session()


class HubServer(http.server.ThreadingHTTPServer):
  """Serves `hub` at `url`; use it in a `with` statement."""

  daemon_threads, block_on_close = True, False

  def __init__(self, handler: Any = _Handler) -> None:
    super().__init__(("127.0.0.1", 0), handler)
    self.hub: Any = Hub()
    self.url = f"http://127.0.0.1:{self.server_port}"
    threading.Thread(
      target=self.serve_forever, args=(0.02,), daemon=True
    ).start()

  def __exit__(self, *args: Any) -> None:
    # Else the thread waits for a file number that is soon another file's, which
    # is always ready.
    self.shutdown()
    super().__exit__(*args)
