"""Buckets of object stores, as servers on this machine."""

import contextlib
import dataclasses
import functools
import http.server
import io
import re
import socket
import threading
import urllib.parse
import urllib.request
from http import HTTPStatus

import pytest

from learner.checkpoint import places
from tests.support.proxies import Proxy


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def settings_of(port):
    """Return the environment by which gcsfs and TensorStore find the server at a port."""
    address = f"http://127.0.0.1:{port}"
    names = dict.fromkeys(("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"), address)
    # Without credentials, gcsfs would look for the kind of each bucket, in vain.
    return {**names, "GOOGLE_CLOUD_PROJECT": "project", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


@contextlib.contextmanager
def google():
    """Yield a bucket of Google Cloud Storage. One for all tests of a process: TensorStore reads its address once."""
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="gcp-storage-emulator is not installed")
    port = free_port()
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(Proxy(port)) as proxy:
        for name, value in {**settings_of(proxy.port), next(iter(places.PATIENCE)): "3"}.items():
            patch.setenv(name, value)
        pytest.importorskip("gcsfs", reason="gcsfs is not installed")  # now, as it reads some of them
        patch.setattr(emulator.Response, "close", functools.partialmethod(_close, emulator.Response.close))
        running = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
        with pytest.MonkeyPatch.context() as at_start:
            # Its own server answers one connection after another, and waits for those that nobody uses.
            at_start.setattr(emulator.server, "HTTPServer", http.server.ThreadingHTTPServer)
            running.start()
        yield Cloud("gs://bucket", proxy, emulator.RequestHandler)
        running.stop()


def _close(response, close):
    """Add the generation of a file, as the store does. Without it TensorStore fails where it reads a file again, which
    depends on the time.
    """
    handler = response._handler
    match = re.search(r"/b/([^/]+)/o/([^/?]+)\?.*alt=media", handler.path)
    if match and response.status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        stored = handler.storage.get_file_obj(*map(urllib.parse.unquote, match.groups()))
        response["X-Goog-Generation"] = stored["generation"]
    close(response)


@dataclasses.dataclass
class Cloud:
    """A server on this machine that stands for the cloud; it is formatted as the address of its bucket."""

    bucket: str
    proxy: Proxy
    handler: type

    def __str__(self):
        return self.bucket

    @contextlib.contextmanager
    def requests(self):
        """Yield a list of the requests that come inside of the block, as `GET /path?query`."""
        seen, parse = [], self.handler.parse_request

        def parse_request(handler):
            is_valid = parse(handler)
            seen.append(f"{handler.command} {urllib.parse.unquote(handler.path)}")
            return is_valid

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.handler, "parse_request", parse_request)
            yield seen

    def put(self, address, text):
        """Write a file as another process does: gcsfs does not know of it here."""
        name = urllib.parse.quote(address.removeprefix(f"{self.bucket}/"), safe="")
        self._send("POST", f"/upload/storage/v1/b/bucket/o?uploadType=media&name={name}", text.encode())

    def delete(self, address):
        """Remove a file as another process does."""
        name = urllib.parse.quote(address.removeprefix(f"{self.bucket}/"), safe="")
        self._send("DELETE", f"/storage/v1/b/bucket/o/{name}")

    def _send(self, method, path, data=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.proxy.port}{path}", data, method=method)
        urllib.request.urlopen(request).close()

    @contextlib.contextmanager
    def refusing(self):
        """Yield the port of a server that refuses all requests, as for wrong credentials."""
        methods = {f"do_{method}": _refuse for method in ("GET", "POST", "PUT", "DELETE")}
        handler = type("Refusing", (http.server.BaseHTTPRequestHandler,), {**methods, "log_message": lambda *_: None})
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield server.server_port
            server.shutdown()
            thread.join()

    @contextlib.contextmanager
    def refused(self, beginning, is_done):
        """Answer the first request that begins so with an error that neither gcsfs nor TensorStore tries again.

        Args:
          beginning: of the request, as in `requests`.
          is_done: true to do what the request asks for, as where the answer is lost.
        """

        def do(handler, method, seen=[]):  # noqa: B006 one list for all requests
            if seen or not f"{handler.command} {urllib.parse.unquote(handler.path)}".startswith(beginning):
                method(handler)
                return
            seen.append(handler.path)
            if is_done:
                answers, handler.wfile = handler.wfile, io.BytesIO()
                method(handler)
                handler.wfile = answers
                _answer_forbidden(handler)
            else:
                _refuse(handler)

        with pytest.MonkeyPatch.context() as patch:
            for name in ("do_GET", "do_POST", "do_PUT", "do_DELETE"):
                patch.setattr(self.handler, name, functools.partialmethod(do, getattr(self.handler, name)))
            yield do.__defaults__[0]


def _refuse(handler):
    handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
    _answer_forbidden(handler)


def _answer_forbidden(handler):
    handler.send_response(HTTPStatus.FORBIDDEN)
    handler.send_header("Content-Length", "0")
    handler.end_headers()
