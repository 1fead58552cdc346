"""Serves moto's S3, where a request is one step for all others.

moto compares ETags and writes in two steps, between which others may write. The
argument is a port.
"""

import sys
import threading

from moto import server

LOCK = threading.Lock()


class Application(server.DomainDispatcherApplication):
  def __call__(self, environ, start_response):
    with LOCK:
      return super().__call__(environ, start_response)


if __name__ == "__main__":
  server.DomainDispatcherApplication = Application
  server.main(["-H127.0.0.1", f"-p{sys.argv[1]}"])
