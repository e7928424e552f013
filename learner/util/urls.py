"""Addresses of servers, and removal of their secrets from texts."""

import re
from urllib.parse import urlsplit

from learner.errors import LearnerError
from learner.util.text import truncate

MOST_CHARACTERS = 300  # of an error in a line; TensorStore's errors have kilobytes


def refuse_url(url: object, what: str) -> None:
    """Raise `LearnerError` if the text is not the address of a web server.

    >>> refuse_url("http://127.0.0.1:5000", "the webhook")
    >>> refuse_url("htp://example.org", "the webhook")
    Traceback (most recent call last):
    learner.errors.LearnerError: the webhook has the address 'htp://...'; it needs one such as https://example.org/path
    """
    scheme, host = "", None
    if isinstance(url, str):
        scheme = url.partition("://")[0]
        try:
            parts = urlsplit(url)
            host = parts.hostname if parts.scheme in ("http", "https") and parts.port != 0 else None
        except ValueError:
            host = None
        if not url.isprintable() or " " in url:
            host = None
    if not host:
        shown = repr(url)
        if isinstance(url, str) and url:  # it may be secret, or a value that belongs elsewhere, such as a token
            shown = repr(f"{scheme}://..." if "://" in url else "...")
        raise LearnerError(
            f"{what} has the address {shown}; it needs one such as https://example.org/path",
            code="logger-address-malformed",
        )


def server_of(url: str) -> str:
    """Return the address without the parts that may be secret.

    >>> server_of("https://me:word@hooks.example.org:8080/services/T0/B0/secret?key=1")
    'https://hooks.example.org:8080'
    """
    parts = urlsplit(url)
    port = "" if parts.port is None else f":{parts.port}"
    return f"{parts.scheme}://{parts.hostname}{port}"


def without_user(text: str) -> str:
    """Return a text with user and password removed from its addresses.

    >>> without_user("GET http://me:word@127.0.0.1:5000/api failed")
    'GET http://***@127.0.0.1:5000/api failed'
    """
    return re.sub(r"(?<=//)[^\s/?#]*@", "***@", text)


def without_credentials(text: str) -> str:
    """Return a text with users, passwords and queries removed from its addresses. The query of an upload is equivalent
    to a password.

    >>> without_credentials("POST https://me:word@example.org/upload?upload_id=a1b2 failed")
    'POST https://***@example.org/upload?*** failed'
    """
    return re.sub(r"(//[^\s?]*\?)[^\s'\"]+", r"\1***", without_user(text))


def one_line(error: BaseException) -> str:
    """Return an error as a short line, without possible secrets in its addresses.

    >>> one_line(OSError("Forbidden: https://me:word@127.0.0.1/upload?upload_id=a1b2\\nno access"))
    'OSError: Forbidden: https://***@127.0.0.1/upload?*** no access'
    """
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return truncate(without_credentials(text), MOST_CHARACTERS, "…")
