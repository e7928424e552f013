"""Ctrl-C, in the handler alone and while a model is trained."""

import os
import signal
import threading

import pytest
from runs import STEPS, build_line, journal_of, quiet, saved_steps, shuffled

from learner.signals import on_ctrl_c

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(autouse=True)
def handler():
    """A handler of somebody else's, which must be there again afterwards."""
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append("theirs"))
    yield heard
    signal.signal(signal.SIGINT, before)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_one_asks_to_stop(handler):
    asked = []
    with on_ctrl_c(lambda: asked.append(True)):
        press()
        assert asked == [True]
    press()
    assert (asked, handler) == ([True], ["theirs"])


def test_the_second_one_ends_at_once(handler):
    asked = []

    def twice():
        press()
        press()

    with pytest.raises(KeyboardInterrupt), on_ctrl_c(lambda: asked.append(True)):
        twice()
    press()
    assert (asked, handler) == ([True], ["theirs"])


def test_the_handler_comes_back_after_an_error(handler):
    with pytest.raises(ZeroDivisionError), on_ctrl_c(lambda: None):
        raise ZeroDivisionError
    press()
    assert handler == ["theirs"]


@pytest.mark.parametrize("default", [signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler])
def test_any_handler_comes_back(default):
    signal.signal(signal.SIGINT, default)
    with on_ctrl_c(lambda: None):
        assert signal.getsignal(signal.SIGINT) is not default
    assert signal.getsignal(signal.SIGINT) is default


def test_a_handler_that_python_does_not_know_is_left_alone(monkeypatch):
    """One that was installed from C: Python cannot put it back, so it must not take it away."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with on_ctrl_c(lambda: None):
        pass
    assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN


def test_other_threads_take_no_handlers(handler):
    inside = []

    def work():
        with on_ctrl_c(lambda: None):
            inside.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]


def at_step(step, press):
    def hook(info, model):
        if info.step == step:
            press()

    return hook


def test_fit_returns_the_result_so_far(tmp_path, handler):
    builder = quiet(tmp_path / "run").num_epochs(5).with_file_checkpointer()
    result = build_line(builder.every(steps=1, fn=at_step(STEPS + 2, press))).fit(shuffled())
    assert result.stopped_by == "ctrl-c"
    assert len(result.history["train/Loss"]) == 1
    assert result.summary["steps"] == STEPS + 2
    assert saved_steps(tmp_path / "run") == [STEPS, STEPS + 2]
    assert journal_of(tmp_path / "run")[-1] | {"time": 0} == {
        "event": "stop",
        "time": 0,
        "epoch": 2,
        "step": STEPS + 2,
        "stopped_by": "ctrl-c",
    }
    press()
    assert handler == ["theirs"]


def test_fit_ends_at_once_at_the_second(tmp_path, handler):
    def twice():
        press()
        press()

    builder = quiet(tmp_path / "run").num_epochs(5).with_file_checkpointer()
    learner = build_line(builder.every(steps=1, fn=at_step(STEPS + 2, twice)))
    with pytest.raises(KeyboardInterrupt):
        learner.fit(shuffled())
    assert saved_steps(tmp_path / "run") == [STEPS]
    assert journal_of(tmp_path / "run")[-1]["event"] == "error"
    press()
    assert handler == ["theirs"]


def test_fit_in_another_thread(tmp_path, handler):
    results = []
    learner = build_line(quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer())
    thread = threading.Thread(target=lambda: results.append(learner.fit(shuffled())))
    thread.start()
    thread.join()
    assert [result.stopped_by for result in results] == ["num_epochs"]
    press()
    assert handler == ["theirs"]
