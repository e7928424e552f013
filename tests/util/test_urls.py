"""Tests of URLs: which are refused, and which parts are shown."""

import pytest

from learner import LearnerError
from learner.util.urls import refuse_url, server_of, without_user
from tests.support.codes import named_case, raises_code


@pytest.mark.parametrize("url", ["http://a", "https://a.org/b?c=1", "http://127.0.0.1:80/x", "https://[::1]:9/"])
def test_urls_are_accepted(url):
    refuse_url(url, "it")


def test_malformed_urls_are_refused():
    cases = [
        *("", "a.org", "ftp://a.org", "file:///etc/passwd", "http://", "http://:80", "http://a:port", "http://a:99999"),
        *("http://a b", "http://a\n", "http://[::1", None, 5),
    ]
    for url in cases:
        with named_case(url), raises_code("logger-address-malformed"):
            refuse_url(url, "it")


def test_secrets_in_urls_are_not_shown():
    with pytest.raises(LearnerError) as refused:
        refuse_url("htps://hooks.example.org/services/secret", "it")
    assert "secret" not in str(refused.value)
    assert server_of("https://u:secret@a.org/secret?secret#secret") == "https://a.org"


@pytest.mark.parametrize("url", ["http//me:secret@a.org", "me:secret@a.org/x", "htp://me:secret@a.org", "me:se@cret@a"])
def test_users_in_malformed_urls_are_not_shown(url):
    with raises_code("logger-address-malformed") as refused:
        refuse_url(url, "it")
    assert not any(word in str(refused.value) for word in ("secret", "me:", "cret"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://a.org/@b?c@d", "https://a.org/@b?c@d"),
        ("me@a.org", "me@a.org"),
        ("no http://u:p@s@a, postgresql+x://u@b:1/c", "no http://***@a, postgresql+x://***@b:1/c"),
    ],
)
def test_users_in_texts_are_replaced(text, shown):
    assert without_user(text) == shown
