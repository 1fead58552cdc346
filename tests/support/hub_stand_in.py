"""Stands in for the Hugging Face hub, on this machine: see test_weights_hub.

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
import time
import urllib.parse
from typing import Any

MODEL_CALL = re.compile(
  r"/api/models/(?P<repo>.+?)/(?P<call>revision|tree|commits|discussions)(/(?P<rev>.+))?"
)
FILE_CALL = re.compile(r"/(?P<repo>.+?)/resolve/(?P<rev>[^/]+)/(?P<file>.+)")
Models = dict[str, dict[str, dict[str, bytes]]]


@dataclasses.dataclass
class Hub:
  """What it holds and how it behaves.

  Attributes:
    models: name -> revision -> file -> content.
    threads: name -> its discussions; see `thread`.
    authors: of the commits that another revision has and main has not.
    config: what it says of any model's config.json.
    refusals: a piece of a path -> the answer: a status and an X-Error-Code.
    delay: seconds before any answer.
    requests: "GET /path", without what stands behind a "?".
  """

  models: Models = dataclasses.field(default_factory=dict)
  threads: dict[str, list[dict]] = dataclasses.field(default_factory=dict)
  authors: list[str] = dataclasses.field(default_factory=list)
  config: dict[str, Any] = dataclasses.field(default_factory=dict)
  refusals: dict[str, tuple[int, str]] = dataclasses.field(default_factory=dict)
  delay: float = 0.0
  requests: list[str] = dataclasses.field(default_factory=list)

  def files(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]]:
    """The commit of a revision, which may be one, and what it holds."""
    for name, files in self.models[repo].items():
      commit = _sha1(f"{repo} {name} {sorted(files.items())}".encode())
      if revision in (name, commit):
        return commit, files
    raise LookupError(revision)


def thread(repo: str, num: int, **changes: Any) -> dict[str, Any]:
  """The bot's pull request, or one that differs from it."""
  author = changes.pop("author", "SFconvertbot")
  return {
    "num": num,
    "title": "Adding `safetensors` variant of this model",
    "author": {"name": author},
    "createdAt": "2023-03-01T00:00:00.000Z",
    "status": "open",
    "isPullRequest": True,
    "repo": {"name": repo, "type": "model"},
    **changes,
  }


def _sha1(data: bytes) -> str:
  return hashlib.sha1(data).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self) -> None:
    hub: Hub = self.server.hub  # type: ignore[attr-defined]
    path = self.path.partition("?")[0]
    hub.requests.append(f"{self.command} {path}")
    time.sleep(hub.delay)
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
    about = {"id": repo, "sha": commit, "config": hub.config}
    return {**about, "siblings": siblings}

  def _tree(self, hub: Hub, repo: str, commit: str, files: dict) -> list:
    return [
      {"type": "file", "path": name, "rfilename": name, "size": len(data)}
      | dict.fromkeys(("oid", "blobId"), _sha1(data))
      for name, data in files.items()
    ]

  def _discussions(self, hub: Hub, repo: str, commit: str, files: dict) -> dict:
    # Unlike the hub, whoever is asked for: so the client must look itself.
    threads = hub.threads.get(repo, [])
    return {"discussions": threads, "count": len(threads), "start": 0}

  def _commits(self, hub: Hub, repo: str, commit: str, files: dict) -> list:
    main, _ = hub.files(repo, "main")
    ids = [commit, *(f"{i:040x}" for i, _ in enumerate(hub.authors[1:]))]
    made = [*zip(ids, hub.authors, strict=False)] if commit != main else []
    rest = {"date": "2023-03-01T00:00:00.000Z", "title": "", "message": ""}
    return [
      {"id": id_, "authors": [{"user": author}], **rest}
      for id_, author in [*made, (main, "owner")]
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
