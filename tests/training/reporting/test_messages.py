"""Messages of the loop to the reporter."""

from concurrent.futures import Future

from learner.training.reporting.messages import Query


def test_a_query_that_is_sent_twice_is_answered_once():
    """As a signal may make the loop send it again."""
    answers = iter([1, 2])
    query = Query(lambda: next(answers), Future())
    query.run()
    query.run()
    assert query.answer.result() == 1
    query.fail(OSError("too late"))
    assert query.answer.result() == 1


def test_a_query_that_was_cancelled_is_not_run():
    query = Query(lambda: 1 / 0, Future())
    assert query.answer.cancel()
    query.run()
    query.fail(OSError("too late"))
    assert query.answer.cancelled()
