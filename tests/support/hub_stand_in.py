"""Stands in for the Hugging Face hub, on this machine: see test_hf_hub.

Speaks what `huggingface_hub` needs to look at a model and to download files.
Xet is not offered, so that files come by plain HTTP.
"""

import contextlib
import dataclasses
import hashlib
import http.server
import json
import re
import threading
import urllib.parse
from typing import Any

MODEL_CALL = re.compile(
  r"/api/models/(?P<repo>.+?)/(?P<call>revision|tree)(/(?P<rev>.+))?"
)
FILE_CALL = re.compile(r"/(?P<repo>.+?)/resolve/(?P<rev>[^/]+)/(?P<file>.+)")
Models = dict[str, dict[str, dict[str, bytes]]]


@dataclasses.dataclass
class Hub:
  """What it holds and how it behaves.

  Attributes:
    models: name -> revision -> file -> content.
    refusals: a piece of a path -> the answer: a status and an X-Error-Code.
    requests: "GET /path", without what stands behind a "?".
  """

  models: Models = dataclasses.field(default_factory=dict)
  refusals: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
  requests: list[str] = dataclasses.field(default_factory=list)

  def files(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]]:
    """The commit of a revision, which may be one, and what it holds."""
    for name, files in self.models[repo].items():
      commit = _sha1(f"{repo} {name} {sorted(files.items())}".encode())
      if revision in (name, commit):
        return commit, files
    raise LookupError(revision)


def _sha1(data: bytes) -> str:
  return hashlib.sha1(data).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self) -> None:
    hub: Hub = self.server.hub  # type: ignore[attr-defined]
    path = self.path.partition("?")[0]
    hub.requests.append(f"{self.command} {path}")
    for piece, (status, code) in hub.refusals.items():
      if piece in path:
        return self._answer(status, b"", {"X-Error-Code": code})
    found = MODEL_CALL.fullmatch(path) or FILE_CALL.fullmatch(path)
    if not found or found["repo"] not in hub.models:
      return self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
    revision = urllib.parse.unquote(found["rev"] or "main")
    try:
      commit, files = hub.files(found["repo"], revision)
    except LookupError:
      return self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
    if found.re is FILE_CALL:
      return self._file(commit, files.get(urllib.parse.unquote(found["file"])))
    answer = getattr(self, f"_{found['call']}")(
      hub, found["repo"], commit, files
    )
    return self._answer(200, json.dumps(answer).encode(), {})

  do_HEAD = do_GET

  def _revision(self, hub: Hub, repo: str, commit: str, files: dict) -> dict:
    siblings = self._tree(hub, repo, commit, files)
    about = {"id": repo, "sha": commit}
    return {**about, "siblings": siblings}

  def _tree(self, hub: Hub, repo: str, commit: str, files: dict) -> list:
    return [
      {"type": "file", "path": name, "rfilename": name, "size": len(data)}
      | dict.fromkeys(("oid", "blobId"), _sha1(data))
      for name, data in files.items()
    ]

  def _file(self, commit: str, data: bytes | None) -> None:
    if data is None:
      return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
    headers = {"ETag": f'"{_sha1(data)}"', "X-Repo-Commit": commit}
    return self._answer(200, data, headers)

  def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
    with contextlib.suppress(ConnectionError):  # of one who waits no longer
      self.send_response(status)
      for name, value in headers.items():
        self.send_header(name, value)
      self.send_header("Content-Length", str(len(body)))
      self.end_headers()
      if self.command != "HEAD":
        self.wfile.write(body)

  def log_message(self, *args: Any) -> None:
    """Says nothing."""


class HubServer(http.server.ThreadingHTTPServer):
  """Serves `hub` at `url` inside a `with`."""

  daemon_threads, block_on_close = True, False

  def __init__(self) -> None:
    super().__init__(("127.0.0.1", 0), _Handler)
    self.hub = Hub()
    self.url = f"http://127.0.0.1:{self.server_port}"
    threading.Thread(
      target=self.serve_forever, args=(0.02,), daemon=True
    ).start()
