"""A proxy before a server of a bucket that counts, and fails when told."""

import collections
import contextlib
import dataclasses
import functools
import http.client
import http.server
import io
import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import BinaryIO

CHUNK_BYTES = 2**16
HOP_HEADERS = ("Connection", "Transfer-Encoding", "Content-Length", "Expect")
MAX_BURST_SECS = 0.05  # for which a link catches up after late sleepers
WRITES = ("put", "put part", "copy", "compose", "delete", "batch", "patch")
# https://cloud.google.com/storage/pricing#operations: others are free.
CLASS_A = ("list", "put", "copy", "compose", "patch", "buckets")
CLASS_B = ("get", "get metadata", "bucket")


@dataclasses.dataclass
class Request:
  """A request and its answer.

  Attributes:
    kind: one of `CLASS_A`, `CLASS_B`, "put part", "delete" and "batch" (of
      deletes, which are logged besides).
    client: "gcsfs", "tensorstore", "s3fs", "gcloud" or the user agent.
    target: its path and query, with the name of an object to write.
    status: of the answer; 0 if it was cut.
    bytes_up: of its body.
    bytes_down: of the answer's body.
  """

  kind: str
  client: str
  method: str
  target: str
  status: int = 0
  bytes_up: int = 0
  bytes_down: int = 0


def name_kind(method: str, target: str, headers) -> str:
  """Names what a request to Google's JSON API or to S3 does."""
  path, _, query = target.partition("?")
  if re.match("/(batch|upload|download|storage|b/|b$)", path):
    return _name_google_kind(method, path, query)
  is_object = path.strip("/").count("/") > 0
  if method == "GET" and not is_object:
    return "bucket" if re.search("location|versioning", query) else "list"
  if method == "PUT" and "x-amz-copy-source" in headers:
    return "copy"
  if method == "DELETE" or (method == "POST" and re.match("delete", query)):
    return "delete"
  kinds = {"GET": "get", "HEAD": "get metadata", "PUT": "put", "POST": "put"}
  if "uploadId" in query:
    return "put" if method == "POST" else "put part"
  return kinds[method] if is_object else "bucket"


def _name_google_kind(method: str, path: str, query: str) -> str:
  """Names what a request to Google's JSON API does."""
  _, _, name = path.partition("/b/")
  _, is_in_bucket, name = name.partition("/o")
  if path.startswith("/batch"):
    return "batch"
  if path.startswith("/upload"):
    return "put part" if "upload_id=" in query else "put"
  if method == "DELETE":
    return "delete"
  if method == "GET" and name:
    return "get" if "alt=media" in query else "get metadata"
  if method == "GET":
    return "list" if is_in_bucket else "bucket" if "/b/" in path else "buckets"
  if method == "PATCH":
    return "patch"
  for kind, words in (("compose", "/compose"), ("copy", "/(copy|rewrite)To/")):
    if re.search(words, name):
      return kind
  return "buckets"


def name_client(user_agent: str) -> str:
  """Names the library that sent a request."""
  names = {"gcsfs": "gcsfs", "tensorstore": "tensorstore"}
  names |= {"gcloud-python": "gcloud", "aiobotocore": "s3fs"}
  names |= {"botocore": "s3fs"}
  for part, name in names.items():
    if part in user_agent.lower():
      return name
  return user_agent


def _iterate(source: BinaryIO, length: int) -> Iterator[bytes]:
  """Yields pieces of so many bytes."""
  while length:
    data = source.read(min(length, CHUNK_BYTES))
    if not data:
      raise ConnectionResetError("the other side left")
    length -= len(data)
    yield data


class FaultyProxy:
  """Forwards requests to a server on this machine; a context manager.

  All attributes but `port` may be changed at any time.

  Attributes:
    port: of this proxy.
    log: all requests so far, in the order of their starts.
    applies: whether a request may fail, be cut or delayed; by default all.
    fail_rate: probability of `fail_status` instead of an answer.
    fail_status: 503 or 429.
    retry_after: in seconds, for the header of that name, or None.
    cut_rate: probability that the body of a request or of an answer is cut in
      its middle, or that an answer is lost after a write.
    lose_answers: so many of the next writes are done, but not answered.
    delay_secs: before a request is forwarded.
    down: whether connections are reset.
    expired: whether the credentials are refused: 401.
    read_only: whether writes are refused: 403.
    bytes_per_sec: of all bodies together, or None.
  """

  def __init__(self, target: int, seed: int = 0) -> None:
    self.log: list[Request] = []
    self.applies: Callable[[Request], bool] = lambda request: True
    self.fail_rate, self.fail_status = 0.0, 503
    self.retry_after: int | None = None
    self.cut_rate = self.delay_secs = 0.0
    self.lose_answers = 0
    self.down = self.expired = self.read_only = False
    self.bytes_per_sec: float | None = None
    self._rng = random.Random(seed)
    self._lock = threading.Lock()
    self._free_at = 0.0
    handler = type("Handler", (_Handler,), {"proxy": self, "target": target})
    self._server = _Server(("127.0.0.1", 0), handler)
    self.port = self._server.server_port
    serve = functools.partial(self._server.serve_forever, poll_interval=0.02)
    threading.Thread(target=serve, daemon=True).start()

  def __enter__(self) -> "FaultyProxy":
    return self

  def __exit__(self, *_) -> None:
    self.down = True
    self._server.shutdown()
    self._server.server_close()

  def count(self, kind: str | None = None, client: str | None = None) -> int:
    """Returns the number of requests of a kind and a client."""
    return sum(
      kind in (None, request.kind) and client in (None, request.client)
      for request in list(self.log)
    )

  def counts(self) -> dict[tuple[str, str], int]:
    """Returns the number of requests by client and kind."""
    log = list(self.log)
    return dict(collections.Counter((r.client, r.kind) for r in log))

  def count_classes(self) -> tuple[int, int]:
    """Returns the numbers of requests that Google charges as class A and B."""
    a, b = (sum(map(self.count, kinds)) for kinds in (CLASS_A, CLASS_B))
    return a, b

  def draw(self, rate: float) -> bool:
    """Returns True with a probability."""
    with self._lock:
      return self._rng.random() < rate

  def wait_for_link(self, num_bytes: int) -> None:
    """Waits until bytes have passed the link, and while it is down raises."""
    if self.down:
      raise ConnectionResetError("the proxy is down")
    if self.bytes_per_sec:
      with self._lock:
        now = time.monotonic()
        earliest = max(now - MAX_BURST_SECS, self._free_at)
        self._free_at = earliest + num_bytes / self.bytes_per_sec
        pause = self._free_at - now
      time.sleep(max(0, pause))


class _Server(http.server.ThreadingHTTPServer):
  daemon_threads = True
  block_on_close = False
  request_queue_size = 128

  def handle_error(self, request, client_address):
    pass  # connections break in these tests


class _Handler(http.server.BaseHTTPRequestHandler):
  """Answers the requests of one connection.

  Attributes:
    proxy: with the faults.
    target: the server's port.
  """

  protocol_version = "HTTP/1.1"
  disable_nagle_algorithm = True
  proxy: FaultyProxy
  target: int

  def setup(self):
    super().setup()
    self.proxy.wait_for_link(0)

  def log_message(self, *args):
    pass

  def finish(self):
    with contextlib.suppress(OSError):
      super().finish()

  def answer(self):
    """Forwards a request, or fails it."""
    proxy, headers = self.proxy, self.headers
    kind = name_kind(self.command, self.path, headers)
    client = name_client(headers.get("User-Agent", ""))
    request = Request(kind, client, self.command, self.path)
    proxy.log.append(request)
    try:
      proxy.wait_for_link(0)
      applies = proxy.applies(request)
      if applies:
        time.sleep(proxy.delay_secs)
      is_cut = applies and proxy.draw(proxy.cut_rate)
      body = self._read(request, is_cut and proxy.draw(0.5))
      if match := re.match(rb'--.*?\{"name": "(.*?)"', body[:999], re.DOTALL):
        request.target += f"&name={match[1].decode()}"
      if kind == "batch":
        for _ in range(body.count(b"DELETE ")):
          proxy.log.append(Request("delete", client, "DELETE", ""))
      if status := self._find_fault(request, applies):
        return self._refuse(request, status)
      self._forward(request, body, is_cut)
    except (OSError, http.client.HTTPException):
      self._reset()

  do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

  def _read(self, request: Request, is_cut: bool) -> bytes:
    """Reads the body; resets the connection in its middle if it `is_cut`."""
    length = int(self.headers.get("Content-Length", 0))
    pieces = []
    for data in self._iterate_body():
      self.proxy.wait_for_link(len(data))
      pieces.append(data)
      request.bytes_up += len(data)
      if is_cut and 2 * request.bytes_up >= length:
        raise ConnectionResetError("cut")
    return b"".join(pieces)

  def _iterate_body(self) -> Iterator[bytes]:
    """Yields the pieces of a request's body."""
    if "chunked" in self.headers.get("Transfer-Encoding", ""):
      while size := int(self.rfile.readline(), 16):
        yield self.rfile.read(size)
        self.rfile.readline()
      self.rfile.readline()
    yield from _iterate(self.rfile, int(self.headers.get("Content-Length", 0)))

  def _find_fault(self, request: Request, applies: bool) -> int | None:
    """Returns the status of a fault, or None."""
    proxy = self.proxy
    if proxy.expired:
      return 401
    if proxy.read_only and request.kind in WRITES:
      return 403
    if applies and proxy.draw(proxy.fail_rate):
      return proxy.fail_status
    return None

  def _refuse(self, request: Request, status: int) -> None:
    """Answers with an error in Google's words."""
    message = HTTPStatus(status).phrase
    body = f'{{"error": {{"code": {status}, "message": "{message}"}}}}'.encode()
    request.status = status
    self.send_response(status)
    if self.proxy.retry_after is not None and status in (429, 503):
      self.send_header("Retry-After", str(self.proxy.retry_after))
    self.send_header("Content-Type", "application/json")
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(body)

  def _forward(self, request: Request, body: bytes, is_cut: bool) -> None:
    """Sends a request to the server, and its answer to the client."""
    server = http.client.HTTPConnection("127.0.0.1", self.target)
    with contextlib.closing(server):
      headers = {
        name: value
        for name, value in self.headers.items()
        if name.title() not in HOP_HEADERS
      }
      if body or self.command in ("POST", "PUT"):
        headers["Content-Length"] = str(len(body))
      server.request(self.command, self.path, body, headers)
      answer = server.getresponse()
      if (is_cut and body) or self._loses_answer(request):
        raise ConnectionResetError("the answer is lost")
      self._send(request, answer, is_cut)

  def _loses_answer(self, request: Request) -> bool:
    """Returns whether an answer is one of `lose_answers`."""
    proxy = self.proxy
    is_lost = proxy.lose_answers > 0 and request.kind in WRITES
    is_lost = is_lost and proxy.applies(request)
    proxy.lose_answers -= is_lost
    return is_lost

  def _send(self, request: Request, answer, is_cut: bool) -> None:
    """Sends an answer, or its first half."""
    known = answer.getheader("Content-Length")
    source = answer if known else io.BytesIO(answer.read())
    length = int(known or len(source.getvalue()))
    self.send_response_only(answer.status, answer.reason)
    for name, value in answer.getheaders():
      if name.title() not in HOP_HEADERS:
        self.send_header(name, value)
    if answer.status not in (204, 304):
      self.send_header("Content-Length", str(length))
    self.end_headers()
    request.status = 0 if is_cut else answer.status
    if self.command != "HEAD":
      for data in _iterate(source, length // 2 if is_cut else length):
        self.proxy.wait_for_link(len(data))
        request.bytes_down += len(data)
        self.wfile.write(data)
    if is_cut:
      raise ConnectionResetError("cut")

  def _reset(self) -> None:
    """Resets the connection."""
    self.close_connection = True
    with contextlib.suppress(OSError):
      linger = struct.pack("ii", 1, 0)
      self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
      self.connection.close()
