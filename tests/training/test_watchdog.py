"""The watchdog: alone, with a clock of the tests' own; over runs that hang; in a process that nothing else ends."""

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

SECONDS = 60  # within which things have to happen that happen at once


class SingleProcess:
    """A watchdog without a thread, and all that it does."""

    def __init__(self, ends):
        self.now, self.steps, self.did = 0.0, 0, []
        self.dog = Watchdog(
            10,
            lambda: self.steps,
            lambda text, stacks: self.did.append(("report", text)),
            (lambda reason: self.did.append(("stop", reason))) if ends else None,
            lambda: self.now,
            lambda code: self.did.append(("end", code)),
        )

    def at(self, now, steps):
        """What it does at a time, after so many steps."""
        self.now, self.steps, self.did = now, steps, []
        self.dog.check()
        return self.did


STALL = ("report", "no step ended for 10 s")
STOP = ("stop", "watchdog: no step ended for 10 s")


def test_once_per_stall():
    alone = SingleProcess(ends=False)
    assert alone.at(9.9, 0) == []
    assert alone.at(10, 0) == [STALL]  # before the first step too
    assert alone.at(30, 0) == []
    assert alone.at(100, 1) == []  # it went on at some time since
    assert alone.at(109, 1) == []
    assert alone.at(110, 1) == [STALL]
    assert alone.at(500, 1) == []


def test_steps_that_end_are_no_stall():
    alone = SingleProcess(ends=True)
    assert [alone.at(9 * i, i) for i in range(1, 9)] == [[]] * 8


def test_the_run_is_stopped_and_then_the_process(capsys):
    alone = SingleProcess(ends=True)
    assert alone.at(15, 0) == [STALL, STOP]
    assert alone.at(24.9, 0) == []  # the same time again begins where it was asked to stop
    last = "no step ended for 10 s, and for as long after the run was asked to end: the process is ended"
    assert alone.at(25, 0) == [("report", last), ("end", EXIT)]
    assert capsys.readouterr().err == f"learner: {last}\n"


def test_a_run_that_goes_on_after_it_was_asked_to_stop():
    """A last step, and then nothing: the time begins anew."""
    alone = SingleProcess(ends=True)
    assert alone.at(10, 0) == [STALL, STOP]
    assert alone.at(19, 1) == []
    assert alone.at(28, 1) == []
    assert alone.at(29, 1) == [STALL, STOP]
    assert alone.at(39, 1)[-1] == ("end", EXIT)


def test_a_report_that_fails_or_hangs_keeps_it_from_nothing(monkeypatch):
    monkeypatch.setattr("learner.training.watchdog.PATIENCE", 0.01)
    released, did, now = threading.Event(), [], [0.0]
    for report in (lambda text, stacks: 1 / 0, lambda text, stacks: released.wait(SECONDS)):
        now[0] = 0.0
        dog = Watchdog(10, lambda: 0, report, lambda reason: None, lambda: now[0], did.append)
        for now[0] in (10, 20):
            dog.check()
    assert did == [EXIT, EXIT]
    released.set()


def test_the_thread_ends_and_keeps_no_process_alive():
    dog = Watchdog(10, lambda: 0, lambda text, stacks: None)
    dog.close()  # of one that was not started
    dog = Watchdog(10, lambda: 0, lambda text, stacks: None)
    dog.start()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "learner-watchdog"]
    assert thread.daemon
    dog.close()
    assert not thread.is_alive()


def test_stacks_of_threads_that_wait():
    begun, done = threading.Event(), threading.Event()

    def a_place_to_wait():
        begun.set()
        done.wait(SECONDS)

    thread = threading.Thread(target=a_place_to_wait, name="one that waits")
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
    assert "in test_stacks_of_threads_that_wait" in named["MainThread"]
    assert "in a_place_to_wait\n    done.wait(SECONDS)" in named["one that waits"]
    assert "ask" not in named
    assert "one that waits" not in without[0]


# -- over a run --------------------------------------------------------------------------------------------------------


class Stall:
    """Time that passes only while something hangs, until the log says so; and an event that ends the hang."""

    def __init__(self, directory, monkeypatch):
        self.directory, self.now, self.hangs, self.reports = directory, 0.0, 0, 0
        self.over = threading.Event()
        monkeypatch.setattr("learner.training.setup.supervision.Watchdog", partial(Watchdog, clock=self.clock))

    def clock(self):
        if self.reports < self.hangs:
            self.now += 1000.0
        return self.now

    def reported(self):
        """For a logger: the log says that nothing moves."""
        self.reports += 1
        self.over.set()

    def hang_here(self):
        self.over.clear()
        self.hangs += 1
        assert self.over.wait(SECONDS)


class Notices(logging.Handler):
    """Of a user's own logger: what was said, and each stack ends a hang."""

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
    """Data whose loader hangs before the third batch of some epochs."""
    passes = iter(range(1, 100))

    def the_loader():
        number = next(passes)
        for index, batch in enumerate(batches()):
            if index == 2 and number in epochs:
                stall.hang_here()
            yield batch

    return the_loader


def test_a_loader_that_hangs_and_goes_on(tmp_path, monkeypatch):
    """Each hang is told once, with where it is; the run is what it would have been."""
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


def test_in_the_log(tmp_path, monkeypatch):
    """A hook that hangs, in the middle of the main thread."""
    stall = Stall(tmp_path / "run", monkeypatch)

    class Shown(Listener):
        def on_event(self, event):
            if isinstance(event, Message):
                stall.reported()

    builder = quiet(tmp_path / "run").watchdog(1).metric_loggers(Shown())
    build_line(builder.on_epoch_end(lambda info, model: stall.hang_here())).fit(batches())
    text = (tmp_path / "run/experiment.log").read_text()
    assert len(re.findall(r"^\S+ \S+ WARNING no step ended for 1 s; the stacks of all", text, re.MULTILINE)) == 1
    assert re.search(r"thread MainThread:\n(  .*\n)*  .* in call_hooks\n(  .*\n)*  .* in hang_here\n", text)


def test_the_run_ends(tmp_path, monkeypatch):
    """By data that never come: it ends with a checkpoint, as by a signal (`test_resume.py` resumes those)."""
    stall = Stall(tmp_path / "run", monkeypatch)
    stuck = threading.Event()

    def never():
        for index, batch in enumerate(batches()):
            if index == 4 and stall.hangs == 0 and (tmp_path / "run/run.lock").exists():
                stall.hangs = 1
                stuck.wait(SECONDS)
                return
            yield batch

    close = Prefetcher.close  # which waits for the thread of the data, for some seconds
    monkeypatch.setattr(Prefetcher, "close", lambda ahead: (stuck.set(), close(ahead)))
    logger, _ = own_logger(stall)
    builder = quiet(tmp_path / "run", saves=True).num_epochs(2).steps_per_dispatch(1).application_logger(logger)
    result = build_line(builder.watchdog(1, then="end")).fit(never)
    assert result.stopped_by == "watchdog: no step ended for 1 s"
    last = journal_of(tmp_path / "run")[-1]
    assert (last["event"], last["stopped_by"]) == ("stop", result.stopped_by)
    assert saved_steps(tmp_path / "run") == [last["step"]]
    assert 0 < last["step"] <= 4


def test_validation_counts(tmp_path, monkeypatch):
    """Every batch that ends is progress: a run of which nothing is read has made none, this one has made them all."""
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


def test_the_command_s_exit_code(tmp_path, monkeypatch, capsys):
    """Of a run that ended in order, which a scheduler starts anew all the same."""
    over, hanging, now = threading.Event(), threading.Event(), [0.0]

    def clock():
        now[0] += 1000.0 * hanging.is_set()
        return now[0]

    def made(seconds, ended, report, stop):
        return Watchdog(seconds, ended, report, lambda reason: (stop(reason), over.set()), clock)

    def hook(info, model):
        if info.step == 2:
            hanging.set()
            assert over.wait(SECONDS)
            hanging.clear()

    module = types.ModuleType("hanging")
    module.hook = hook
    monkeypatch.setitem(sys.modules, "hanging", module)
    monkeypatch.setattr("learner.training.setup.supervision.Watchdog", made)
    monkeypatch.chdir(tmp_path)
    config = CONFIG | {"watchdog": {"seconds": 1, "then": "end"}, "every": {"steps": 1, "fn": "hanging.hook"}}
    Path("config.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "config.yaml"]) == EXIT
    assert capsys.readouterr().err == "learner: interrupted; resume with: learner resume run\n"
    assert journal_of("run")[-1]["stopped_by"] == "watchdog: no step ended for 1 s"
    assert saved_steps("run") == [2]


# -- a process that nothing else ends ----------------------------------------------------------------------------------

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
        os.read(os.pipe()[0], 1)  # what nobody writes
"""


def started(directory, config):
    (directory / "stuck.py").write_text(STUCK)
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    places = [str(directory), str(Path(learner.__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    words = [sys.executable, "-m", "learner", "fit", "config.yaml"]
    return subprocess.run(words, cwd=directory, env=environment, text=True, capture_output=True, timeout=SECONDS)


@pytest.mark.full
def test_a_process_that_is_stuck(tmp_path, monkeypatch):
    """A call that never returns, and holds all locks that a run may hold: the exit code asks for another start."""
    config = CONFIG | {"watchdog": {"seconds": 0.3, "then": "end"}, "every": {"steps": 1, "fn": "stuck.in_c"}}
    ran = started(tmp_path, config)
    said = "no step ended for 0.3 s, and for as long after the run was asked to end: the process is ended"
    assert (ran.returncode, without_stages(ran.stdout), ran.stderr) == (EXIT, "", f"learner: {said}\n")
    log = (tmp_path / "run/experiment.log").read_text()
    assert log.count("the stacks of all threads:") == 2
    assert f"WARNING {said}; the stacks" in log
    assert "in in_c\n    os.read(os.pipe()[0], 1)" in log
    assert saved_steps(tmp_path / "run") == [3]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("over").touch()
    assert main(["resume", "run"]) == 0
    monkeypatch.delitem(sys.modules, "stuck")
    assert journal_of("run")[-1]["event"] == "end"
