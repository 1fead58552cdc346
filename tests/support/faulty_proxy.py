"""A proxy before a server of a bucket that logs, and fails when told."""

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
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import BinaryIO

CHUNK_BYTES = 2**16
HOP_HEADERS = ("Connection", "Transfer-Encoding", "Content-Length", "Expect")
# Of Google's server, for which gcsfs waits for new credentials.
MESSAGES = {401: "Invalid Credentials"}


@dataclasses.dataclass
class Request:
  """A request: "get" and "put" an object, "put part", "delete", or another."""

  kind: str
  client: str  # "tensorstore", or another library
  method: str
  target: str  # its path and query, with the name of an object to write

  @property
  def is_write(self) -> bool:
    return self.method not in ("GET", "HEAD")


def name_kind(method: str, target: str) -> str:
  """Names what a request to Google's JSON API or to S3 does."""
  path, _, query = target.partition("?")
  if path.startswith("/batch"):
    return "batch"
  if method == "DELETE" or query.startswith("delete"):
    return "delete"
  if method in ("POST", "PUT"):
    is_part = re.search("upload_id=|uploadId", query)
    return "put part" if is_part else "put"
  is_read = method == "GET" and path.strip("/").count("/") > 0
  if re.match("/(download|storage|b/)", path):
    is_read = "alt=media" in query
  return "get" if is_read else "look"


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
    applies: whether a request may fail or be cut; by default all.
    fail_rate: probability of `fail_status` instead of an answer.
    cut_rate: probability that the body of a request or of an answer is cut in
      its middle, or that an answer is lost after a write.
    lose_answers: so many of the next writes are done, but not answered.
    down: whether connections are reset.
    expired: whether the credentials are refused: 401.
    read_only: whether writes are refused: 403.
  """

  def __init__(self, target: int, seed: int = 0) -> None:
    self.log: list[Request] = []
    self.applies: Callable[[Request], bool] = lambda request: True
    self.fail_rate, self.fail_status = 0.0, 503
    self.cut_rate = 0.0
    self.lose_answers = 0
    self.down = self.expired = self.read_only = False
    self._rng = random.Random(seed)
    self._lock = threading.Lock()
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

  def count(self, kind: str) -> int:
    """Returns the number of requests of a kind."""
    return sum(kind == request.kind for request in list(self.log))

  def draw(self, rate: float) -> bool:
    """Returns True with a probability."""
    with self._lock:
      return self._rng.random() < rate

  def check_link(self) -> None:
    """Raises an error while the link is down."""
    if self.down:
      raise ConnectionResetError("the proxy is down")


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
    self.proxy.check_link()

  def log_message(self, *args):
    pass

  def finish(self):
    with contextlib.suppress(OSError):
      super().finish()

  def answer(self):
    """Forwards a request, or fails it."""
    proxy = self.proxy
    agent = self.headers.get("User-Agent", "").lower()
    client = "tensorstore" if "tensorstore" in agent else agent
    kind = name_kind(self.command, self.path)
    request = Request(kind, client, self.command, self.path)
    proxy.log.append(request)
    try:
      proxy.check_link()
      applies = proxy.applies(request)
      is_cut = applies and proxy.draw(proxy.cut_rate)
      body = self._read(is_cut and proxy.draw(0.5))
      if match := re.match(rb'--.*?\{"name": "(.*?)"', body[:999], re.DOTALL):
        request.target += f"&name={match[1].decode()}"
      if status := self._find_fault(request, applies):
        return self._refuse(status)
      self._forward(request, body, is_cut)
    except (OSError, http.client.HTTPException):
      self._reset()

  do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

  def _read(self, is_cut: bool) -> bytes:
    """Reads the body; resets the connection in its middle if it `is_cut`."""
    length = int(self.headers.get("Content-Length", 0))
    body = b""
    for data in self._iterate_body():
      self.proxy.check_link()
      body += data
      if is_cut and 2 * len(body) >= length:
        raise ConnectionResetError("cut")
    return body

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
    if proxy.read_only and request.is_write:
      return 403
    if applies and proxy.draw(proxy.fail_rate):
      return proxy.fail_status
    return None

  def _refuse(self, status: int) -> None:
    """Answers with an error in Google's words."""
    message = MESSAGES.get(status, HTTPStatus(status).phrase)
    body = f'{{"error": {{"code": {status}, "message": "{message}"}}}}'.encode()
    self.send_response(status)
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
      self._send(answer, is_cut)

  def _loses_answer(self, request: Request) -> bool:
    """Returns whether an answer is one of `lose_answers`."""
    is_lost = self.proxy.lose_answers > 0 and request.is_write
    self.proxy.lose_answers -= is_lost
    return is_lost

  def _send(self, answer, is_cut: bool) -> None:
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
    if self.command != "HEAD":
      for data in _iterate(source, length // 2 if is_cut else length):
        self.proxy.check_link()
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
