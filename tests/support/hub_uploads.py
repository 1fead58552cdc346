"""A stand-in for the hub that takes uploads, for `hub_stand_in.HubServer`.

It does not offer Xet: large files arrive by the protocol of git-lfs.
"""

import base64
import dataclasses
import hashlib
import http.server
import json
import re
from typing import Any

USER = "swan"
MODEL_PATH = re.compile(r"/api/models/(?P<name>[\w.-]+/[\w.-]+)(?P<call>.*)")


@dataclasses.dataclass
class Hub:
  """The models of a hub, its failures, and the requests so far.

  Attributes:
    models: name -> file -> content; visibility: name -> as requested.
    commits: the model of each commit.
    blobs: large files by their SHA-256, also without a commit.
    role: of the access token.
    failures: substring of a path -> HTTP status; 0 drops the connection.
    requests: "POST /path".
  """

  models: dict[str, dict[str, bytes]] = dataclasses.field(default_factory=dict)
  visibility: dict[str, Any] = dataclasses.field(default_factory=dict)
  commits: list[str] = dataclasses.field(default_factory=list)
  blobs: dict[str, bytes] = dataclasses.field(default_factory=dict)
  role: str = "write"
  failures: dict[str, int] = dataclasses.field(default_factory=dict)
  requests: list[str] = dataclasses.field(default_factory=list)

  def answer(self, path: str, body: bytes, url: str) -> tuple[int, Any]:
    """Returns status and JSON of the answer to a request."""
    if path == "/api/whoami-v2":
      token = {"displayName": "tests", "role": self.role}
      return 200, {"name": USER, "auth": {"accessToken": token}}
    if path == "/api/repos/create":
      request = json.loads(body)
      name = f"{request.get('organization') or USER}/{request['name']}"
      status = 409 if name in self.models else 200
      self.models.setdefault(name, {})
      self.visibility.setdefault(name, request.get("visibility"))
      return status, {"url": f"{url}/{name}", "name": name}
    if path.startswith("/blobs/"):
      self.blobs[path.removeprefix("/blobs/")] = body
    if path.startswith(("/blobs/", "/api/validate-yaml")):
      return 200, {}
    if path.endswith("/info/lfs/objects/batch"):
      objects = json.loads(body)["objects"]
      for blob in [x for x in objects if x["oid"] not in self.blobs]:
        blob["actions"] = {"upload": {"href": f"{url}/blobs/{blob['oid']}"}}
      return 200, {"transfer": "basic", "objects": objects}
    match = MODEL_PATH.fullmatch(path)
    if not match or match["name"] not in self.models:
      return 404, {"error": "Repository not found"}
    files = self.models[match["name"]]
    if match["call"] == "/preupload/main":
      return 200, {
        "files": [_mode(x, files) for x in json.loads(body)["files"]]
      }
    if match["call"] == "/commit/main":
      for line in map(json.loads, body.splitlines()):
        value = line["value"]
        if line["key"] == "file":
          files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
          files[value["path"]] = self.blobs[value["oid"]]
      self.commits.append(match["name"])
    commit = {"commitUrl": f"{url}/{match['name']}/commit/0", "commitOid": "0"}
    private = self.visibility[match["name"]] == "private"
    return 200, {"id": match["name"], "sha": "0", "private": private, **commit}


def _mode(request: dict[str, Any], files: dict[str, bytes]) -> dict[str, Any]:
  """Describes a file: how to upload it, and what the model already has."""
  path, is_large = request["path"], request["path"].endswith(".safetensors")
  answer = {"path": path, "shouldIgnore": False}
  answer["uploadMode"] = "lfs" if is_large else "regular"
  if (data := files.get(path)) is not None:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    answer["oid"] = hashlib.sha256(data).hexdigest() if is_large else blob
  return answer


class Handler(http.server.BaseHTTPRequestHandler):
  """Answers for the `hub` of its server, which is a `Hub`."""

  def do_GET(self) -> None:
    hub: Hub = self.server.hub  # type: ignore[attr-defined]
    path = self.path.partition("?")[0]
    hub.requests.append(f"{self.command} {path}")
    failures = [x for part, x in hub.failures.items() if part in path]
    token = self.headers.get("Authorization")
    if token != "Bearer hf_secret" and not path.startswith("/blobs/"):
      failures.append(401)
    if 0 in failures:
      self.close_connection = True
      return
    body = self._read_body()
    url = f"http://{self.headers['Host']}"
    status, value = [*failures, 200][0], {"error": "refused"}
    if not failures:
      status, value = hub.answer(path, body, url)
    answer = json.dumps(value).encode()
    self.send_response(status)
    self.send_header("Content-Length", str(len(answer)))
    self.end_headers()
    self.wfile.write(answer)

  def _read_body(self) -> bytes:
    if self.headers.get("Transfer-Encoding") != "chunked":
      return self.rfile.read(int(self.headers.get("Content-Length") or 0))
    chunks = []
    while size := int(self.rfile.readline(), 16):
      chunks.append(self.rfile.read(size))
      self.rfile.readline()
    return b"".join(chunks)

  do_POST = do_PUT = do_GET

  def log_message(self, *args: Any) -> None:
    """Prints nothing."""
