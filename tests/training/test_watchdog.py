"""Tests of the watchdog: the rule with a fake clock, runs that hang, and a process that is stuck."""

import logging
import os
import re
import subprocess
import sys
import threading
import types
from functools import partial
from pathlib import Path

import pytest
import yaml

import learner
from learner.cli.main import main
from learner.events import Listener, Message
from learner.loggers import MemoryLogger
from learner.training.feed.prefetch import Prefetcher
from learner.training.watchdog import EXIT, Watchdog, stacks
from tests.support.phases import CONFIG
from tests.support.runs import STEPS, batches, bits, build_line, journal_of, quiet, saved_steps
from tests.support.shown import without_stages

pytestmark = pytest.mark.usefixtures("compiled_once")

SECONDS = 60  # timeout of events that should be immediate


class Recorder:
    """A watchdog without a thread, which records its actions."""

    def __init__(self, ends):
        self.now, self.steps, self.actions = 0.0, 0, []
        self.dog = Watchdog(
            10,
            lambda: self.steps,
            lambda text, stacks: self.actions.append(("report", text)),
            (lambda reason: self.actions.append(("stop", reason))) if ends else None,
            lambda: self.now,
            lambda code: self.actions.append(("end", code)),
        )

    def at(self, now, steps):
        """Return its actions at a time, with a number of steps done."""
        self.now, self.steps, self.actions = now, steps, []
        self.dog.check()
        return self.actions


STALL = ("report", "no step ended for 10 s")
STOP = ("stop", "watchdog: no step ended for 10 s")


def test_each_stall_is_reported_once():
    recorder = Recorder(ends=False)
    assert recorder.at(9.9, 0) == []
    assert recorder.at(10, 0) == [STALL]  # also before the first step
    assert recorder.at(30, 0) == []
    assert recorder.at(100, 1) == []  # a step has ended since
    assert recorder.at(109, 1) == []
    assert recorder.at(110, 1) == [STALL]
    assert recorder.at(500, 1) == []


def test_steps_that_end_are_no_stall():
    recorder = Recorder(ends=True)
    assert [recorder.at(9 * i, i) for i in range(1, 9)] == [[]] * 8


def test_the_run_is_stopped_before_the_process_is_ended(capsys):
    recorder = Recorder(ends=True)
    assert recorder.at(15, 0) == [STALL, STOP]
    assert recorder.at(24.9, 0) == []  # the second period starts at the stop request
    last = "no step ended for 10 s, and for as long after the run was asked to end: the process is ended"
    assert recorder.at(25, 0) == [("report", last), ("end", EXIT)]
    assert capsys.readouterr().err == f"learner: {last}\n"


def test_a_step_after_the_stop_request_restarts_the_period():
    recorder = Recorder(ends=True)
    assert recorder.at(10, 0) == [STALL, STOP]
    assert recorder.at(19, 1) == []
    assert recorder.at(28, 1) == []
    assert recorder.at(29, 1) == [STALL, STOP]
    assert recorder.at(39, 1)[-1] == ("end", EXIT)


def test_a_failing_or_hanging_report_does_not_block_the_watchdog(monkeypatch):
    monkeypatch.setattr("learner.training.watchdog.PATIENCE", 0.01)
    released, actions, now = threading.Event(), [], [0.0]
    for report in (lambda text, stacks: 1 / 0, lambda text, stacks: released.wait(SECONDS)):
        now[0] = 0.0
        dog = Watchdog(10, lambda: 0, report, lambda reason: None, lambda: now[0], actions.append)
        for now[0] in (10, 20):
            dog.check()
    assert actions == [EXIT, EXIT]
    released.set()


def test_the_thread_is_a_daemon_and_ends():
    dog = Watchdog(10, lambda: 0, lambda text, stacks: None)
    dog.close()  # not started
    dog = Watchdog(10, lambda: 0, lambda text, stacks: None)
    dog.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "learner-watchdog"]
    assert thread.daemon
    dog.close()
    assert not thread.is_alive()


def test_stacks_of_waiting_threads():
    begun, done = threading.Event(), threading.Event()

    def wait_here():
        begun.set()
        done.wait(SECONDS)

    thread = threading.Thread(target=wait_here, name="one that waits")
    thread.start()
    assert begun.wait(SECONDS)
    shown, without = [], []
    asking = threading.Thread(target=lambda: (shown.append(stacks()), without.append(stacks(thread.ident))), name="ask")
    asking.start()
    asking.join()
    done.set()
    thread.join()
    parts = re.split(r"^thread (.*):\n", shown[0], flags=re.MULTILINE)
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert parts[1] == "MainThread"
    assert "in test_stacks_of_waiting_threads" in named["MainThread"]
    assert "in wait_here\n    done.wait(SECONDS)" in named["one that waits"]
    assert "ask" not in named
    assert "one that waits" not in without[0]


# -- runs --------------------------------------------------------------------------------------------------------------


class Stall:
    """A clock that advances only during a hang that is not yet reported, and an event that ends the hang."""

    def __init__(self, directory, monkeypatch):
        self.directory, self.now, self.hangs, self.reports = directory, 0.0, 0, 0
        self.over = threading.Event()
        monkeypatch.setattr("learner.training.setup.supervision.Watchdog", partial(Watchdog, clock=self.clock))

    def clock(self):
        if self.reports < self.hangs:
            self.now += 1000.0
        return self.now

    def reported(self):
        """End the hang; loggers call this when the stall is reported."""
        self.reports += 1
        self.over.set()

    def hang_here(self):
        self.over.clear()
        self.hangs += 1
        assert self.over.wait(SECONDS)


class Notices(logging.Handler):
    """A logging handler that keeps warnings, and ends the hang at each report with stacks."""

    def __init__(self, stall):
        super().__init__()
        self.stall, self.texts = stall, []

    def emit(self, record):
        if record.levelno == logging.WARNING:
            self.texts.append(record.getMessage())
            if "the stacks of all threads:" in self.texts[-1]:
                self.stall.reported()


def own_logger(stall):
    logger = logging.Logger("of the test")
    logger.addHandler(notices := Notices(stall))
    return logger, notices


def hanging(stall, *epochs):
    """Return data whose loader hangs before the third batch of the given epochs."""
    passes = iter(range(1, 100))

    def the_loader():
        number = next(passes)
        for index, batch in enumerate(batches()):
            if index == 2 and number in epochs:
                stall.hang_here()
            yield batch

    return the_loader


@pytest.mark.full
def test_a_loader_that_hangs_and_recovers(tmp_path, monkeypatch):
    """Each hang is reported once, with the stacks; the result of the run does not change."""
    stall, memory, before = Stall(tmp_path / "run", monkeypatch), MemoryLogger(), set(threading.enumerate())
    logger, notices = own_logger(stall)
    builder = quiet(tmp_path / "run").num_epochs(2).steps_per_dispatch(1).watchdog(1)
    builder.application_logger(logger).metric_loggers(memory)
    result = build_line(builder).fit(hanging(stall, 1, 2))
    assert stall.reports == 2
    assert result.stopped_by == "num_epochs"
    whole = build_line(quiet(tmp_path / "whole").num_epochs(2).steps_per_dispatch(1)).fit(batches())
    assert bits(result.model) == bits(whole.model)
    long, short = notices.texts[:2]
    assert long.startswith("no step ended for 1 s; the stacks of all threads:\nthread MainThread:\n")
    assert re.search(r"thread learner-data:\n(  .*\n)*  .* in the_loader\n    stall\.hang_here\(\)\n", long)
    assert "thread learner-reporter:\n" in long
    assert "learner-watchdog" not in long
    assert short == "no step ended for 1 s; experiment.log has the stack of each thread"
    assert notices.texts[2:] == [notices.texts[2], short]
    assert [event.text for event in memory.events if isinstance(event, Message)] == [short, short]
    assert not [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("learner")]


def test_a_hanging_hook_is_in_the_log(tmp_path, monkeypatch):
    stall = Stall(tmp_path / "run", monkeypatch)

    class Shown(Listener):
        def on_event(self, event):
            if isinstance(event, Message):
                stall.reported()

    builder = quiet(tmp_path / "run").watchdog(1).metric_loggers(Shown())
    build_line(builder.on_epoch_end(lambda info, model: stall.hang_here())).fit(batches())
    text = (tmp_path / "run/experiment.log").read_text()
    assert len(re.findall(r"^\S+ \S+ WARNING no step ended for 1 s; the stacks of all", text, re.MULTILINE)) == 1
    assert re.search(r"thread MainThread:\n(  .*\n)*  .* in call\n(  .*\n)*  .* in hang_here\n", text)


def test_the_watchdog_ends_a_run(tmp_path, monkeypatch):
    """The data never arrives; the run ends with a checkpoint, as by a signal (`test_resume.py` resumes such runs)."""
    stall = Stall(tmp_path / "run", monkeypatch)
    stuck = threading.Event()

    def never():
        for index, batch in enumerate(batches()):
            if index == 4 and stall.hangs == 0 and (tmp_path / "run/run.lock").exists():
                stall.hangs = 1
                stuck.wait(SECONDS)
                return
            yield batch

    close = Prefetcher.close  # waits some seconds for the data thread
    monkeypatch.setattr(Prefetcher, "close", lambda ahead: (stuck.set(), close(ahead)))
    logger, _ = own_logger(stall)
    builder = quiet(tmp_path / "run", saves=True).num_epochs(2).steps_per_dispatch(1).application_logger(logger)
    result = build_line(builder.watchdog(1, then="end")).fit(never)
    assert result.stopped_by == "watchdog: no step ended for 1 s"
    last = journal_of(tmp_path / "run")[-1]
    assert (last["event"], last["stopped_by"]) == ("stop", result.stopped_by)
    assert saved_steps(tmp_path / "run") == [last["step"]]
    assert 0 < last["step"] <= 4


@pytest.mark.full
def test_validation_counts_as_progress(tmp_path, monkeypatch):
    """Every batch that ends is progress, in training and in validation."""
    counts = []

    class Counting(Watchdog):
        def __init__(self, seconds, ended, *rest):
            super().__init__(seconds, ended, *rest)
            counts.append(ended)

    monkeypatch.setattr("learner.training.setup.supervision.Watchdog", Counting)
    seen = []
    builder = quiet(tmp_path / "run").watchdog(3600).on_epoch_end(lambda info, model: seen.append(counts[0]()))
    build_line(builder.num_epochs(2)).fit(batches(), batches(8))
    assert seen == [STEPS + 3, 2 * (STEPS + 3)]


@pytest.mark.full
def test_the_exit_code_of_the_command(tmp_path, monkeypatch, capsys):
    """The run ends in order, and the exit code still asks the scheduler for a restart."""
    over, hanging, now = threading.Event(), threading.Event(), [0.0]

    def clock():
        now[0] += 1000.0 * hanging.is_set()
        return now[0]

    def watchdog(seconds, ended, report, stop):
        return Watchdog(seconds, ended, report, lambda reason: (stop(reason), over.set()), clock)

    def hook(info, model):
        if info.step == 2:
            hanging.set()
            assert over.wait(SECONDS)
            hanging.clear()

    module = types.ModuleType("hanging")
    module.hook = hook
    monkeypatch.setitem(sys.modules, "hanging", module)
    monkeypatch.setattr("learner.training.setup.supervision.Watchdog", watchdog)
    monkeypatch.chdir(tmp_path)
    config = CONFIG | {"watchdog": {"seconds": 1, "then": "end"}, "every": {"steps": 1, "fn": "hanging.hook"}}
    Path("config.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "config.yaml"]) == EXIT
    assert capsys.readouterr().err == "learner: interrupted; resume with: learner resume run\n"
    assert journal_of("run")[-1]["stopped_by"] == "watchdog: no step ended for 1 s"
    assert saved_steps("run") == [2]


# -- a stuck process ---------------------------------------------------------------------------------------------------

STUCK = """\
import functools, os, threading, time
from learner.training.setup import supervision
from learner.training.watchdog import Watchdog
from tests.support.phases import *

stuck = threading.Event()
supervision.Watchdog = functools.partial(Watchdog, clock=lambda: time.monotonic() * stuck.is_set())


def in_c(info, model):
    if info.step == 5 and not os.path.exists("over"):
        while not os.path.exists("run/checkpoint/3"):  # made by another thread
            stuck.wait(0.01)
        stuck.set()
        os.read(os.pipe()[0], 1)  # never written
"""


def started(directory, config):
    (directory / "stuck.py").write_text(STUCK)
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    places = [str(directory), str(Path(learner.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    words = [sys.executable, "-m", "learner", "fit", "config.yaml"]
    return subprocess.run(words, cwd=directory, env=environment, text=True, capture_output=True, timeout=SECONDS)


@pytest.mark.full
def test_a_stuck_process_is_ended(tmp_path, monkeypatch):
    """The call never returns and blocks every lock of the run; the exit code asks the scheduler for a restart."""
    config = CONFIG | {"watchdog": {"seconds": 0.3, "then": "end"}, "every": {"steps": 1, "fn": "stuck.in_c"}}
    ran = started(tmp_path, config)
    message = "no step ended for 0.3 s, and for as long after the run was asked to end: the process is ended"
    assert (ran.returncode, without_stages(ran.stdout), ran.stderr) == (EXIT, "", f"learner: {message}\n")
    log = (tmp_path / "run/experiment.log").read_text()
    assert log.count("the stacks of all threads:") == 2
    assert f"WARNING {message}; the stacks" in log
    assert "in in_c\n    os.read(os.pipe()[0], 1)" in log
    assert saved_steps(tmp_path / "run") == [3]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("over").touch()
    assert main(["resume", "run"]) == 0
    monkeypatch.delitem(sys.modules, "stuck")
    assert journal_of("run")[-1]["event"] == "end"
