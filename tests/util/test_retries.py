"""Tests of retries: how often, after which pauses, and after which errors."""

import pytest

from learner.util.retries import Retries
from tests.support.codes import raises_code


class Server:
    """Raise an error in the first calls, then return a value."""

    def __init__(self, failures, error=ConnectionError):
        self.failures, self.error, self.calls = failures, error, 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error(f"no {self.calls}")
        return "result"


def is_connection(error):
    return isinstance(error, ConnectionError)


def test_successful_function_is_called_once():
    server = Server(0)
    assert Retries(3, sleep=lambda seconds: pytest.fail("it waits")).call(server, is_connection) == "result"
    assert server.calls == 1


def test_pauses_double():
    server, pauses, announced = Server(4), [], []
    failed = lambda error, pause: announced.append((str(error), pause))  # noqa: E731
    assert Retries(4, 0.5, pauses.append).call(server, is_connection, failed) == "result"
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    assert announced == [("no 1", 0.5), ("no 2", 1.0), ("no 3", 2.0), ("no 4", 4.0)]


@pytest.mark.parametrize("times", [0, 1, 3])
def test_last_error_is_raised(times):
    server, pauses = Server(99), []
    with pytest.raises(ConnectionError, match=f"no {times + 1}"):
        Retries(times, sleep=pauses.append).call(server, is_connection)
    assert (server.calls, len(pauses)) == (times + 1, times)


def test_permanent_error_is_not_retried():
    server = Server(99, KeyError)
    with pytest.raises(KeyError):
        Retries(3, sleep=lambda seconds: pytest.fail("it waits")).call(server, is_connection)
    assert server.calls == 1


@pytest.mark.parametrize("times", [-1, 1.0, True, None])
def test_invalid_numbers_of_retries_are_refused(times):
    with raises_code("retries-value"):
        Retries(times)
