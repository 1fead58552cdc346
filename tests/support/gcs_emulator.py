"""Google's storage on the loopback, which fails when told.

It is gcp-storage-emulator in threads of this process, with what Orbax and
TensorStore need besides: conditions on generations, listings by offset, ranges,
and threads, where a request is one step for all others.
"""

import dataclasses
import functools
import http.client
import http.server
import itertools
import json
import pathlib
import random
import threading
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects
from gcp_storage_emulator.storage import Storage

BUCKET = "bucket"
DIRECT = "x-direct"  # header of requests that never fail
# Of Google's server, for which gcsfs waits for new credentials.
MESSAGES = {401: "Invalid Credentials"}
LOCK = threading.Lock()
GENERATIONS = itertools.count(1_700_000_000_000_000)


class MemoryStorage(Storage):
  """Objects in memory, each with a generation of its own."""

  def __init__(self) -> None:
    super().__init__(use_memory_fs=True)

  def _write_config_to_file(self):
    pass  # would write about all objects

  def _bucket_soft_delete_retention_seconds(self, bucket_name):
    return 0

  def create_file(
    self, bucket_name, file_name, content, file_obj, file_id=None
  ):
    file_obj["generation"] = file_obj["etag"] = str(next(GENERATIONS))
    super().create_file(bucket_name, file_name, content, file_obj, file_id)


def list_objects(request, response, storage) -> None:
  """Answers with all names and prefixes, in the order of both."""
  query = {name: values[0] for name, values in request.query.items()}
  if storage.get_bucket(request.params["bucket_name"]) is None:
    raise NotFound
  all_objects = storage.objects.get(request.params["bucket_name"], {})
  prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
  start, end = query.get("startOffset", ""), query.get("endOffset")
  entries = {}
  for name in sorted(all_objects):
    if not name.startswith(prefix) or name < start or end and name >= end:
      continue
    head, folder, _ = name[len(prefix) :].partition(delimiter or "\0")
    entries[prefix + head + folder] = None if folder else all_objects[name]
  answer = {
    "kind": "storage#objects",
    "items": [item for item in entries.values() if item],
    "prefixes": [entry for entry, item in entries.items() if not item],
  }
  response.json({name: value for name, value in answer.items() if value})


def download(request, response, storage) -> None:
  """Answers with an object or a range of it."""
  where = request.params["bucket_name"], request.params["object_id"]
  data, about = storage.get_file(*where), storage.get_file_obj(*where)
  response["x-goog-generation"] = about["generation"]
  unit, _, span = (request.get_header("Range") or "").partition("=")
  if unit != "bytes":
    response["x-goog-hash"] = f"crc32c={about['crc32c']},md5={about['md5Hash']}"
    return response.write_file(data, about["contentType"])
  first, last = span.split("-")
  start = int(first) if first else max(0, len(data) - int(last))
  stop = min(len(data), int(last) + 1) if first and last else len(data)
  response.status = HTTPStatus.PARTIAL_CONTENT
  response["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
  response.write_file(data[start:stop], about["contentType"])


def get(request, response, storage) -> None:
  if request.query.get("alt") == ["media"]:
    download(request, response, storage)
  else:
    where = request.params["bucket_name"], request.params["object_id"]
    response.json(storage.get_file_obj(*where))


def find_refusal(request, storage) -> HTTPStatus | None:
  """Returns the status if a condition of a request does not hold."""
  params, query = request.params, request.query
  name = params.get("dest_object_id", params.get("object_id"))
  if not name and isinstance(request.data, dict):
    name = request.data.get("meta", request.data).get("name")
  name = query.get("name", [name])[0]
  bucket = params.get("dest_bucket_name", params["bucket_name"])
  about = storage.objects.get(bucket, {}).get(name)
  current = [about["generation"] if about else "0"]
  is_get = request.method == server.GET
  if about is None and (is_get or request.method == server.DELETE):
    return None  # it is answered that it is missing
  if query.get("ifGenerationMatch", current) != current:
    return HTTPStatus.PRECONDITION_FAILED
  if query.get("ifGenerationNotMatch") == current:
    return HTTPStatus.NOT_MODIFIED if is_get else HTTPStatus.PRECONDITION_FAILED
  if is_get and query.get("generation", current) != current:
    return HTTPStatus.NOT_FOUND
  return None


def with_conditions(handler):
  """Returns a handler that checks conditions, and is one step for others."""

  def answer(request, response, storage):
    if request.data is None:  # reads it, without the lock
      request._data = b""
    with LOCK:
      refusal = None
      if "bucket_name" in request.params:
        refusal = find_refusal(request, storage)
      try:
        if refusal:
          response.status = refusal
        else:
          handler(request, response, storage)
      except NotFound:
        response.status = HTTPStatus.NOT_FOUND
    if response.status >= 400 and not response._content:
      message = response.status.phrase
      error = {"code": int(response.status), "message": message}
      response.json({"error": error | {"errors": [{"message": message}]}})

  return answer


def improve(pattern, handlers) -> tuple:
  """Returns a route of the package with conditions and our handlers."""
  own = {
    objects.ls: list_objects,
    objects.get: get,
    objects.download: download,
  }
  return pattern.replace(".*[^/]+", ".+"), {  # a name may end with a slash
    method: with_conditions(own.get(handler, handler))
    for method, handler in handlers.items()
  }


server.HANDLERS = tuple(improve(*route) for route in server.HANDLERS)


@dataclasses.dataclass
class Request:
  """A request: "get" and "put" an object, "delete", or another."""

  kind: str
  client: str  # "tensorstore", or another library
  method: str
  target: str  # its path and query


def name_kind(method: str, target: str) -> str:
  """Names what a request does."""
  if method in ("POST", "PUT") and "upload_id=" not in target:
    return "put"
  if method == "DELETE":
    return "delete"
  return "get" if method == "GET" and "alt=media" in target else "look"


class Emulator:
  """A server with a bucket; a context manager.

  Attributes:
    port: of the server.
    log: all requests of clients so far.
    applies: whether a request may fail; by default all.
    fail_rate: probability of `fail_status` instead of an answer.
    down: whether connections are closed.
    expired: whether the credentials are refused: 401.
    read_only: whether writes are refused: 403.
  """

  url = f"gs://{BUCKET}"

  def __init__(self) -> None:
    self._storage = MemoryStorage()
    handler = type("OwnHandler", (Handler,), {"emulator": self})
    self._server = Server(
      ("127.0.0.1", 0), functools.partial(handler, self._storage)
    )
    self.port = self._server.server_port
    self._random = random.Random(0)
    self.repair()

  def repair(self) -> None:
    """Ends all faults, and begins a new log."""
    self.log: list[Request] = []
    self.applies: Callable[[Request], bool] = lambda request: True
    self.fail_rate, self.fail_status = 0.0, 503
    self.down = self.expired = self.read_only = False

  def __enter__(self) -> "Emulator":
    serve = functools.partial(self._server.serve_forever, poll_interval=0.02)
    threading.Thread(target=serve, daemon=True).start()
    self._post("/storage/v1/b", {"name": BUCKET})
    return self

  def __exit__(self, *_) -> None:
    self._server.shutdown()
    self._server.server_close()

  def find_fault(self, request: Request) -> int | None:
    """Returns the status of a fault, or None; raises if the link is down."""
    if self.down:
      raise ConnectionResetError("the link is down")
    if self.expired:
      return 401
    if self.read_only and request.method not in ("GET", "HEAD"):
      return 403
    if self.applies(request) and self._random.random() < self.fail_rate:
      return self.fail_status
    return None

  def list(self, prefix: str = "") -> list[str]:
    """Returns the names of all objects that start with `prefix`."""
    names = self._storage.objects.get(BUCKET, {})
    return sorted(name for name in names if name.startswith(prefix))

  def read(self, name: str) -> bytes:
    return self._storage.get_file(BUCKET, name)

  def delete(self, name: str) -> None:
    self._storage.delete_file(BUCKET, name)

  def write(self, name: str, data: bytes) -> None:
    name = urllib.parse.quote(name, safe="")
    path = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={name}"
    self._post(path, data)

  def upload(self, folder: pathlib.Path, name: str) -> None:
    """Copies a local folder, as gcloud does."""
    for path in folder.rglob("*"):
      if path.is_file():
        self.write(f"{name}/{path.relative_to(folder)}", path.read_bytes())

  def _post(self, path: str, body: bytes | dict) -> None:
    headers = {DIRECT: "1", "Content-Type": "binary/any"}
    if isinstance(body, dict):
      body = json.dumps(body).encode()
      headers["Content-Type"] = "application/json"
    client = http.client.HTTPConnection("127.0.0.1", self.port)
    client.request("POST", path, body, headers)
    assert client.getresponse().status < 300, path
    client.close()


class Server(http.server.ThreadingHTTPServer):
  daemon_threads = True
  block_on_close = False
  request_queue_size = 128

  def handle_error(self, request, client_address):
    pass  # connections break in these tests


class Handler(server.RequestHandler):
  """Answers the requests of one connection, or fails them."""

  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True
  emulator: Emulator

  def log_message(self, *args):
    pass

  def answer(self):
    status = None
    if DIRECT not in self.headers:
      agent = self.headers.get("User-Agent", "").lower()
      client = "tensorstore" if "tensorstore" in agent else agent
      kind = name_kind(self.command, self.path)
      request = Request(kind, client, self.command, self.path)
      self.emulator.log.append(request)
      status = self.emulator.find_fault(request)
    if status is None:
      server.Router(self).handle(self.command)
      return
    self.rfile.read(int(self.headers.get("Content-Length", 0)))
    message = MESSAGES.get(status, HTTPStatus(status).phrase)
    error = {"error": {"code": status, "message": message}}
    data = json.dumps(error).encode()
    self.send_response(status)
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(data)))
    self.end_headers()
    self.wfile.write(data)

  do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer
