"""Tests of the messages that the loop sends to the reporter."""

from concurrent.futures import Future

from learner.training.reporting.messages import Query


def test_a_query_sent_twice_is_answered_once():
    """A signal may make the loop send a query again."""
    answers = iter([1, 2])
    query = Query(lambda: next(answers), Future())
    query.run()
    query.run()
    assert query.answer.result() == 1
    query.fail(OSError("too late"))
    assert query.answer.result() == 1


def test_a_cancelled_query_is_not_run():
    query = Query(lambda: 1 / 0, Future())
    assert query.answer.cancel()
    query.run()
    query.fail(OSError("too late"))
    assert query.answer.cancelled()
