"""HTTP posts of JSON to one address only."""

import contextlib
import http.client
import re
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

from learner.errors import LearnerError
from learner.util.text import short
from learner.util.urls import refuse_url, server_of

TOKEN = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)  # RFC 9110, 5.6.2
CONTENT = re.compile(r"[\t\x20-\x7e\x80-\xff]*")  # and 5.5


class RefusedError(LearnerError):
    """A request that the server refused; `status` is the status of the response, if there was one."""

    def __init__(self, status: int | None, message: str, /, *, code: str, **fields: Any) -> None:
        super().__init__(message, code=code, **fields)
        self.status = status


def is_transient(error: Exception) -> bool:
    """Return True if a retry may succeed.

    >>> is_transient(RefusedError(503, "busy", code="logger-post-refused"))
    True
    >>> is_transient(RefusedError(404, "not here", code="logger-post-refused"))
    False
    """
    return isinstance(error, RefusedError) and (
        error.status is None or error.status in (408, 429) or error.status >= 500
    )


def post(url: str, data: bytes, headers: Mapping[str, str], timeout: float) -> None:
    """Post bytes. Redirects are not followed: the request would lose its content, and its headers, which may be secret,
    would go to a server that the user did not choose.

    The content of a response is not read, and its headers must arrive within `timeout` seconds.

    Raises:
      RefusedError: the server did not accept it within `timeout` seconds, or cannot be reached.
    """
    request = urllib.request.Request(url, data, dict(headers), method="POST")
    try:
        urllib.request.build_opener(_Http, _Https, _Stay).open(request, timeout=timeout).close()
    except urllib.error.HTTPError as error:
        error.close()
        answered = f"{server_of(url)} answered {error.code} {short(error.reason)}"
        where = error.headers.get("Location") if 300 <= error.code < 400 else None
        if where is not None:
            answered += f" and points to {_shown(url, where)}, which is not followed: give the address that is meant"
        raise RefusedError(error.code, answered, code="logger-post-refused") from None
    except (OSError, http.client.HTTPException) as error:
        why = short(str(getattr(error, "reason", None) or error))
        raise RefusedError(None, f"{server_of(url)} cannot be reached: {why}", code="logger-post-failed") from None


class _Timed(http.client.HTTPConnection):
    """A connection with a deadline: it ends after its timeout, even if data keep arriving."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._timer = threading.Timer(self.timeout or 0.0, self._end)
        self._timer.daemon = True

    def connect(self) -> None:
        """Connect, and start the deadline."""
        self._timer.start()
        super().connect()

    def getresponse(self) -> http.client.HTTPResponse:
        """Return the response once its headers have arrived."""
        try:
            return super().getresponse()
        finally:
            self._timer.cancel()

    def close(self) -> None:
        """Close the connection."""
        self._timer.cancel()
        super().close()

    def _end(self) -> None:
        """Wake the reading thread: a socket's own timeout restarts with each byte."""
        sock = self.sock
        if sock is not None:
            with contextlib.suppress(OSError):
                # Closing resets the connection: otherwise a server that fills it would not notice that nobody reads.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.shutdown(socket.SHUT_RDWR)


class _TimedTls(_Timed, http.client.HTTPSConnection):
    """An HTTPS connection with a deadline; see `_Timed`."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection with a deadline."""
        return self.do_open(_Timed, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection with a deadline."""
        return self.do_open(_TimedTls, request)


def header_problems(headers: object) -> list[str]:
    """Return the problems of headers, without their values, which may be secret.

    >>> header_problems({"Authorization": "Bearer x"})
    []
    >>> header_problems({"Authorization": "Bearer x\\n"})
    ["the header 'Authorization' has a line break or another character that headers cannot have"]
    """
    if not isinstance(headers, Mapping):
        return [f"headers is of type {type(headers).__name__}; it needs a mapping of names to texts"]
    return [problem for name, value in headers.items() if (problem := _problem(name, value))]


def _problem(name: object, value: object) -> str:
    if not isinstance(name, str):
        return f"a header's name is of type {type(name).__name__}; it needs a text"
    if not TOKEN.fullmatch(name):
        begin = TOKEN.match(name)  # the rest may be a value
        shown = repr(f"{begin[0]}...") if begin else "a character that none has"
        return f"a header's name begins with {shown}; it needs letters, digits and '-' only"
    if not isinstance(value, str):
        return f"the header {name!r} has a {type(value).__name__}; it needs a text"
    if not CONTENT.fullmatch(value):
        return f"the header {name!r} has a line break or another character that headers cannot have"
    return ""


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect handler that treats redirects as errors."""

    def http_error_302(self, *args: Any) -> None:
        """Do not follow the redirect."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302  # type: ignore[assignment]


def _shown(url: str, where: str) -> str:
    try:
        target = urljoin(url, where)
        refuse_url(target, "the answer")
    except ValueError:
        return "another place"
    return server_of(target)
