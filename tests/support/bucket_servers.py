"""Servers of buckets on the loopback, and a proxy that drops connections."""

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

COMMANDS = {
  "s3": "import moto.server; moto.server.main(['-H', '127.0.0.1', '-p{port}'])",
  "gs": "import gcp_storage_emulator.server as s;"
  " s.create_server('127.0.0.1', {port}, in_memory=True).run()",
}


@contextlib.contextmanager
def serve(scheme: str) -> Iterator[int]:
  """Runs a server of `scheme`; yields its port."""
  with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
  code = COMMANDS[scheme].format(port=port)
  quiet = subprocess.DEVNULL
  process = subprocess.Popen(
    [sys.executable, "-c", code], stdout=quiet, stderr=quiet
  )
  try:
    for _ in range(300):
      with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        break
      assert process.poll() is None, f"the server of {scheme} ended"
      time.sleep(0.1)
    yield port
  finally:
    process.kill()
    process.wait()


class Proxy:
  """Forwards to a port, and drops connections when told.

  Attributes:
    port: of this proxy.
    bytes_left: of answers, until a connection is dropped; then `next_left`.
    next_left: its next value.
  """

  def __init__(self, target: int) -> None:
    self._target = target
    self._server = socket.create_server(("127.0.0.1", 0))
    self.port = self._server.getsockname()[1]
    self.bytes_left = self.next_left = 10**12
    threading.Thread(target=self._accept, daemon=True).start()

  def close(self) -> None:
    self._server.close()

  def _accept(self) -> None:
    with contextlib.suppress(OSError):
      while True:
        client, _ = self._server.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        for pair in ((client, server, False), (server, client, True)):
          threading.Thread(target=self._copy, args=pair, daemon=True).start()

  def _copy(
    self, source: socket.socket, target: socket.socket, is_answer: bool
  ) -> None:
    with contextlib.suppress(OSError):
      while data := source.recv(2**16):
        if is_answer:
          self.bytes_left -= len(data)
          if self.bytes_left < 0:
            self.bytes_left = self.next_left
            break
        target.sendall(data)
    for end in (source, target):
      with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
      end.close()
