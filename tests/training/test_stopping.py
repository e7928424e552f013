"""Tests of early stopping, interrupters and stop requests."""

import json
import math
import threading

import pytest

from learner import Interrupter, MetricEarlyStopping
from learner.training.stopping import StopController, StopRequest
from tests.support.codes import raises_code

NAN = math.nan


def stopped_after(stopping, values):
    """Return True for each value after which `stopping` has stopped."""
    return [stopping.update({"valid/Loss": value}) is not None for value in values]


@pytest.mark.parametrize(
    ("options", "values", "stops_after"),
    [
        pytest.param({"patience": 2}, [1.0, 0.5, 0.6, 0.5, 0.4], 4, id="two values without improvement"),
        pytest.param({"patience": 1}, [1.0, 1.0], 2, id="an equal value is not an improvement"),
        pytest.param({"patience": 2}, [1.0, 0.9, 1.0, 0.8, 0.9, 0.7], None, id="an improvement resets the patience"),
        pytest.param({"patience": 2, "mode": "max"}, [0.1, 0.2, 0.2, 0.1], 4, id="higher is better"),
        pytest.param({"patience": 2, "min_delta": 0.1}, [1.0, 0.95, 0.91], 3, id="too little"),
        pytest.param({"patience": 2, "min_delta": 0.1}, [1.0, 0.95, 0.85, 0.8, 0.8], 5, id="little by little"),
        pytest.param({"patience": 1, "min_delta": 0.25, "mode": "max"}, [1.0, 1.5, 1.75], 3, id="exactly min_delta"),
        pytest.param({"patience": 2}, [NAN, NAN, 1.0], 2, id="nan from the start"),
        pytest.param({"patience": 2}, [1.0, NAN, 0.5, NAN, NAN], 5, id="nan never improves"),
        pytest.param({"patience": 2, "mode": "max"}, [1.0, math.inf, 0.5, 2.0], 3, id="infinity never improves"),
        pytest.param({"patience": 1, "warmup": 3}, [1.0, 2.0, 3.0, 4.0], 4, id="warmup"),
        pytest.param({"patience": 1, "warmup": 2}, [0.5, 2.0, 1.0], 3, id="the best of the warmup counts"),
    ],
)
def test_early_stopping_rule(options, values, stops_after):
    stopped = stopped_after(MetricEarlyStopping("valid/Loss", **options), values)
    assert stopped.index(True) + 1 == stops_after if stops_after else not any(stopped)


def test_the_reason_names_metric_best_value_and_patience():
    stopping = MetricEarlyStopping("valid/Loss", patience=3)
    stopped_after(stopping, [0.25, 0.5, 0.5, 0.5])
    assert stopping.reason == "valid/Loss has not improved on 0.25 for 3 validations"
    stopping = MetricEarlyStopping("train/Loss", patience=1)
    assert [stopping.update({"train/Loss": x}) for x in (0.5, 0.5)][1] == (
        "train/Loss has not improved on 0.5 for 1 epoch"
    )


def test_a_metric_without_a_new_value_changes_nothing():
    stopping = MetricEarlyStopping("valid/Loss", patience=1)
    assert stopping.update({"train/Loss": 1.0}) is None
    assert stopping.get_state() == MetricEarlyStopping("valid/Loss", patience=1).get_state()


@pytest.mark.parametrize("cut", range(7))
def test_a_restored_state_continues_identically(cut):
    options, values = {"patience": 3, "warmup": 1}, [3.0, NAN, 2.5, 2.5, 2.6, 2.7, 2.8]
    whole = MetricEarlyStopping("valid/Loss", **options)
    first, second = (MetricEarlyStopping("valid/Loss", **options) for _ in range(2))
    expected = stopped_after(whole, values)
    before = stopped_after(first, values[:cut])
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert before + stopped_after(second, values[cut:]) == expected
    assert any(expected)
    assert second.reason == whole.reason


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"patience": 0}, "stopping-number-value", ("patience",)),
        ({"patience": True}, "stopping-number-value", ("patience",)),
        ({"patience": 2.0}, "stopping-number-value", ("patience",)),
        ({"warmup": -1}, "stopping-number-value", ("warmup",)),
        ({"mode": "lower"}, "metric-mode-unknown", ()),
        ({"min_delta": -0.1}, "metric-min-delta-value", ()),
        ({"min_delta": NAN}, "metric-min-delta-value", ()),
        ({"min_delta": "a lot"}, "metric-min-delta-value", ()),
    ],
)
def test_invalid_options_are_refused(options, code, values):
    with raises_code(code, *values):
        MetricEarlyStopping("valid/Loss", **options)


def test_an_interrupter_keeps_the_first_reason():
    interrupter = Interrupter()
    assert interrupter.reason is None
    interrupter.stop("enough")
    interrupter.stop("really")
    assert interrupter.reason == "enough"


def test_an_interrupter_has_a_default_reason():
    interrupter = Interrupter()
    interrupter.stop()
    assert interrupter.reason


def test_an_interrupter_may_be_stopped_from_many_threads():
    interrupter, begin = Interrupter(), threading.Barrier(9)

    def stop(number):
        begin.wait()
        interrupter.stop(f"thread {number}")

    threads = [threading.Thread(target=stop, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    begin.wait()
    for thread in threads:
        thread.join()
    assert interrupter.reason in {f"thread {number}" for number in range(8)}


# -- signals beside other requests -------------------------------------------------------------------------------------


class Interrupted:
    """A `StopRequest` for which both signals arrive right after either property is first read."""

    def __init__(self):
        self._reason, self._save, self._has_arrived = None, False, False

    def arrive(self):
        if not self._has_arrived:
            self._reason, self._save, self._has_arrived = "sigterm", True, True

    @property
    def reason(self):
        reason = self._reason
        self.arrive()
        return reason

    @property
    def save(self):
        save = self._save
        self.arrive()
        return save

    @save.setter
    def save(self, save):
        self._save = save

    def to_stop(self, reason):
        self._reason = reason

    def to_save(self):
        self._save = True


def test_a_signal_during_another_stop_request_is_kept():
    request = Interrupted()
    stop = StopController(request)
    stop.interrupt_once("asked by somebody")
    request.arrive()
    assert (stop.stop_request, stop.ended_by) == ("sigterm", "sigterm")


def test_the_first_request_without_a_signal_is_kept():
    stop = StopController(StopRequest())
    stop.interrupt_once("asked by somebody")
    stop.interrupt_once("watchdog")
    assert (stop.stop_request, stop.ended_by) == ("asked by somebody", "asked by somebody")


def test_a_save_signal_during_a_poll_is_kept():
    stop = StopController(Interrupted())
    assert [stop.take_save_request() for _ in range(3)] == [False, True, False]
