"""A proxy before a server of a bucket that logs, and fails when told."""

import contextlib
import dataclasses
import functools
import http.client
import http.server
import random
import re
import socket
import struct
import threading
from collections.abc import Callable
from http import HTTPStatus

HOP_HEADERS = ("Connection", "Transfer-Encoding", "Content-Length", "Expect")
# Of Google's server, for which gcsfs waits for new credentials.
MESSAGES = {401: "Invalid Credentials"}


@dataclasses.dataclass
class Request:
  """A request: "get" and "put" an object, "put part", "delete", or another."""

  kind: str
  client: str  # "tensorstore", or another library
  method: str
  target: str  # its path and query


def name_kind(method: str, target: str) -> str:
  """Names what a request to Google's JSON API or to S3 does."""
  path, _, query = target.partition("?")
  if method == "DELETE" or query.startswith("delete"):
    return "delete"
  if method in ("POST", "PUT"):
    is_part = re.search("upload_id=|uploadId", query)
    return "put part" if is_part else "put"
  is_read = method == "GET" and path.strip("/").count("/") > 0
  if re.match("/(download|storage|b/)", path):
    is_read = "alt=media" in query
  return "get" if is_read else "look"


class FaultyProxy:
  """Forwards requests to a server on this machine; a context manager.

  All attributes but `port` may be changed at any time.

  Attributes:
    port: of this proxy.
    log: all requests so far, in the order of their starts.
    applies: whether a request may fail; by default all.
    fail_rate: probability of `fail_status` instead of an answer.
    down: whether connections are reset.
    expired: whether the credentials are refused: 401.
    read_only: whether writes are refused: 403.
  """

  def __init__(self, target: int, seed: int = 0) -> None:
    self.log: list[Request] = []
    self.applies: Callable[[Request], bool] = lambda request: True
    self.fail_rate, self.fail_status = 0.0, 503
    self.down = self.expired = self.read_only = False
    self._rng = random.Random(seed)
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

  def find_fault(self, request: Request) -> int | None:
    """Returns the status of a fault, or None; raises if the link is down."""
    if self.down:
      raise ConnectionResetError("the proxy is down")
    if self.expired:
      return 401
    if self.read_only and request.method not in ("GET", "HEAD"):
      return 403
    if self.applies(request) and self._rng.random() < self.fail_rate:
      return self.fail_status
    return None


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

  def log_message(self, *args):
    pass

  def finish(self):
    with contextlib.suppress(OSError):
      super().finish()

  def answer(self):
    """Forwards a request, or fails it."""
    agent = self.headers.get("User-Agent", "").lower()
    client = "tensorstore" if "tensorstore" in agent else agent
    kind = name_kind(self.command, self.path)
    request = Request(kind, client, self.command, self.path)
    self.proxy.log.append(request)
    try:
      body = self._read()
      if match := re.match(rb'--.*?\{"name": "(.*?)"', body[:999], re.DOTALL):
        request.target += f"&name={match[1].decode()}"
      if status := self.proxy.find_fault(request):
        message = MESSAGES.get(status, HTTPStatus(status).phrase)
        error = f'{{"error": {{"code": {status}, "message": "{message}"}}}}'
        headers = [("Content-Type", "application/json")]
        self._send(status, headers, error.encode())
      else:
        self._forward(body)
    except (OSError, http.client.HTTPException):
      self._reset()

  do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

  def _read(self) -> bytes:
    """Reads the body."""
    body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
    if "chunked" in self.headers.get("Transfer-Encoding", ""):
      while size := int(self.rfile.readline(), 16):
        body += self.rfile.read(size)
        self.rfile.readline()
      self.rfile.readline()
    return body

  def _forward(self, body: bytes) -> None:
    """Sends a request to the server, and its answer to the client."""
    server = http.client.HTTPConnection("127.0.0.1", self.target)
    with contextlib.closing(server):
      headers = dict(self.headers.items())
      for name in [x for x in headers if x.title() in HOP_HEADERS]:
        del headers[name]
      if body or self.command in ("POST", "PUT"):
        headers["Content-Length"] = str(len(body))
      server.request(self.command, self.path, body, headers)
      answer = server.getresponse()
      data = answer.read()
      length = answer.getheader("Content-Length") or len(data)
      self._send(answer.status, answer.getheaders(), data, length)

  def _send(self, status: int, headers, data: bytes, length=None) -> None:
    """Sends an answer; that to HEAD has the length of another."""
    self.send_response_only(status)
    for name, value in headers:
      if name.title() not in HOP_HEADERS:
        self.send_header(name, value)
    if status not in (204, 304):
      self.send_header("Content-Length", str(length or len(data)))
    self.end_headers()
    if self.command != "HEAD":
      self.wfile.write(data)

  def _reset(self) -> None:
    """Resets the connection."""
    self.close_connection = True
    with contextlib.suppress(OSError):
      linger = struct.pack("ii", 1, 0)
      self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
      self.connection.close()
