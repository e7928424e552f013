"""Trying again: how often, after which pauses, and after which errors."""

import pytest

from learner.util.retries import Retries
from tests.support.codes import raises_code


class Server:
    """Fails so many times."""

    def __init__(self, failures, error=ConnectionError):
        self.failures, self.error, self.asked = failures, error, 0

    def __call__(self):
        self.asked += 1
        if self.asked <= self.failures:
            raise self.error(f"no {self.asked}")
        return "taken"


def is_connection(error):
    return isinstance(error, ConnectionError)


def test_what_works_is_called_once():
    server = Server(0)
    assert Retries(3, sleep=lambda seconds: pytest.fail("it waits")).call(server, is_connection) == "taken"
    assert server.asked == 1


def test_pauses_grow():
    server, pauses, announced = Server(4), [], []
    failed = lambda error, pause: announced.append((str(error), pause))  # noqa: E731
    assert Retries(4, 0.5, pauses.append).call(server, is_connection, failed) == "taken"
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    assert announced == [("no 1", 0.5), ("no 2", 1.0), ("no 3", 2.0), ("no 4", 4.0)]


@pytest.mark.parametrize("times", [0, 1, 3])
def test_the_last_error_comes_out(times):
    server, pauses = Server(99), []
    with pytest.raises(ConnectionError, match=f"no {times + 1}"):
        Retries(times, sleep=pauses.append).call(server, is_connection)
    assert (server.asked, len(pauses)) == (times + 1, times)


def test_what_would_fail_again_is_not_tried_again():
    server = Server(99, KeyError)
    with pytest.raises(KeyError):
        Retries(3, sleep=lambda seconds: pytest.fail("it waits")).call(server, is_connection)
    assert server.asked == 1


@pytest.mark.parametrize("times", [-1, 1.0, True, None])
def test_wrong_numbers_are_refused(times):
    with raises_code("retries-value"):
        Retries(times)
