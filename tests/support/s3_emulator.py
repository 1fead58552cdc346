"""Serves moto's S3, where a request is one step for all others.

moto compares ETags and writes in two steps, between which others may write. The
argument is the file descriptor of a listening socket.
"""

import sys
import threading

from moto import server
from werkzeug import serving

LOCK = threading.Lock()


class Application(server.DomainDispatcherApplication):
  def __call__(self, environ, start_response):
    with LOCK:
      return super().__call__(environ, start_response)


if __name__ == "__main__":
  application = Application(server.create_backend_app)
  serving.make_server(
    "127.0.0.1",
    0,
    application,
    threaded=True,
    request_handler=server.MotoRequestHandler,
    fd=int(sys.argv[1]),
  ).serve_forever()
