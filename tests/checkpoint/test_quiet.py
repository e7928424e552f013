"""Check that calls of Orbax leave the process's logging unchanged."""

import contextlib
import logging
import threading

import pytest

from learner.checkpoint.quiet import quiet_orbax
from tests.support.runs import batches, build_line, quiet, valid_data

absl = pytest.importorskip("absl.logging")


@contextlib.contextmanager
def bare_root():
    """The root logger without handlers, as in a script; pytest's handlers are restored afterwards."""
    root, level, handlers = logging.root, logging.root.level, logging.root.handlers
    root.handlers = []
    try:
        yield root
    finally:
        root.handlers = handlers
        root.setLevel(level)


def state_of(root):
    logger = logging.getLogger("absl")
    return list(root.handlers), root.level, logger.level, list(logger.handlers), absl.get_verbosity()


@pytest.mark.full
@pytest.mark.usefixtures("compiled_once")
def test_a_run_that_saves_resumes_and_is_read_leaves_the_root_logger_as_it_was(tmp_path):
    with bare_root() as root:
        build = lambda: quiet(tmp_path / "run", saves=True).with_file_checkpointer(every_steps=4)  # noqa: E731
        before = state_of(root)
        build_line(build()).fit(batches(), valid_data())
        assert state_of(root) == before
        resumed = build_line(build().num_epochs(2).resume())
        assert resumed.fit(batches(), valid_data()).best_model is not None
        resumed.evaluate(valid_data())
        assert state_of(root) == before
        logging.basicConfig(level=logging.INFO)
        assert (len(root.handlers), root.level) == (1, logging.INFO)


def test_handlers_of_the_user_stay():
    with bare_root() as root:
        own = logging.NullHandler()
        root.addHandler(own)
        with quiet_orbax():
            absl.info("a file was written")
            assert root.handlers == [own]
        assert root.handlers == [own]


def test_what_is_logged_meanwhile_is_shown_as_without_handlers(capsys, monkeypatch):
    with bare_root():
        with quiet_orbax():
            logging.getLogger("user").info("hidden")
            logging.getLogger("user").warning("shown")
        assert capsys.readouterr() == ("", "shown\n")
        monkeypatch.setattr(logging, "lastResort", None)
        with quiet_orbax():
            logging.getLogger("user").warning("nobody wants it")
        assert capsys.readouterr() == ("", "")


def test_overlapping_blocks_of_two_threads_restore_logging():
    with bare_root() as root:
        entered, leave = threading.Event(), threading.Event()
        before = state_of(root)

        def other():
            with quiet_orbax():
                entered.set()
                leave.wait(30)

        thread = threading.Thread(target=other)
        with quiet_orbax():
            thread.start()
            assert entered.wait(30)
        assert logging.getLogger("absl").level == logging.ERROR
        leave.set()
        thread.join()
        assert state_of(root) == before
