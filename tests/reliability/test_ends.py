"""Tests of runs that stop at their very end, in the last validation, or in a save."""

import multiprocessing
import os
import shutil
import signal
import tempfile
import traceback

import pytest

from learner import Interrupter
from learner.checkpoint import CheckpointStore
from learner.data import DataLoaderBuilder, view
from tests.support.codes import raises_code
from tests.support.runs import (
    ROWS,
    STEPS,
    LastRow,
    arrays,
    batches,
    build_line,
    journal_of,
    logs_of,
    numbers_of,
    quiet,
    saved_steps,
    shuffled,
    valid_data,
)
from tests.support.stopped import all_of, same, some, stopping_at

pytestmark = pytest.mark.usefixtures("compiled_once")


class Valid:
    """Validation data that stops the run before the second batch of its `nth` reading."""

    def __init__(self, interrupter=None, nth=0):
        self.interrupter, self.nth, self.readings = interrupter, nth, 0

    def __call__(self):
        self.readings += 1
        for number, batch in enumerate(batches()):
            if number == 1 and self.readings == self.nth:
                self.interrupter.stop("here")
            yield batch


def run(directory, options, valid=None, interrupter=None, **further):
    builder = options(quiet(directory).with_file_checkpointer(keep_last=9).metrics(LastRow()).resume(**further))
    if interrupter is not None:
        builder.interrupter(interrupter)
    return build_line(builder).fit(batches(), Valid() if valid is None else valid)


def stopped_in(directory, options, nth, splits=None):
    """Return a run that was stopped while its validation data was read for the `nth` time."""
    interrupter = Interrupter()
    valid = Valid(interrupter, nth)
    result = run(directory, options, valid if splits is None else splits(valid), interrupter)
    assert result.stopped_by == "interrupter: here"
    return result


STEPWISE = {
    "inside an epoch": (lambda b: b.num_steps(STEPS + 2), 2),
    "at an epoch's end": (lambda b: b.num_steps(2 * STEPS), 2),
    "where one was saved": (lambda b: b.num_steps(STEPS + 2).with_file_checkpointer(every_steps=4, keep_last=9), 1),
    "in one that is due every so many steps": (lambda b: b.num_steps(STEPS + 2).valid_every(4), 3),
    "in an epoch's own": (lambda b: b.num_epochs(2), 1),
    "in the last one": (lambda b: b.num_epochs(2), 2),
}


@pytest.mark.full
@pytest.mark.parametrize("where", some(STEPWISE, {"in an epoch's own"}))
def test_a_stop_in_the_last_validation(tmp_path, where):
    """The resumed run repeats the whole validation, and ends like an uninterrupted run."""
    options, nth = STEPWISE[where]
    stopped_in(tmp_path / "run", options, nth)
    result = run(tmp_path / "run", options)
    same(all_of(tmp_path / "run", result), all_of(tmp_path / "whole", run(tmp_path / "whole", options)))


@pytest.mark.full
def test_stopped_in_the_same_validation_again(tmp_path):
    options = lambda b: b.num_epochs(2)  # noqa: E731
    for _ in range(2):
        stopped_in(tmp_path / "run", options, 1)
    result = run(tmp_path / "run", options)
    same(all_of(tmp_path / "run", result), all_of(tmp_path / "whole", run(tmp_path / "whole", options)))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(lambda b: b.num_epochs(2), id="at an epoch's end"),
        pytest.param(lambda b: b.num_epochs(1).valid_every(3), id="inside an epoch"),
    ],
)
@pytest.mark.full
def test_a_stop_in_the_second_of_two_splits(tmp_path, options):
    """The first split is not validated again."""
    stopped_in(tmp_path / "run", options, 1, lambda valid: {"a": Valid(), "b": valid})
    both = lambda: {"a": Valid(), "b": Valid()}  # noqa: E731
    result = run(tmp_path / "run", options, both())
    same(all_of(tmp_path / "run", result), all_of(tmp_path / "whole", run(tmp_path / "whole", options, both())))


@pytest.mark.full
def test_a_stop_in_a_validation_and_other_splits_afterwards(tmp_path):
    stopped_in(tmp_path / "run", lambda b: b.num_epochs(2), 1)
    builder = quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer().metrics(LastRow()).resume()
    result = build_line(builder).fit(batches(), {"other": Valid()})
    assert len(result.history["valid-other/Loss"]) == 1
    assert len(result.history["train/Loss"]) == 2


@pytest.mark.full
def test_killed_before_the_summary_at_the_end_of_an_epoch(tmp_path):
    options = lambda b: b.num_steps(2 * STEPS)  # noqa: E731
    expected = all_of(tmp_path / "run", run(tmp_path / "run", options))
    (tmp_path / "run" / "summary.json").unlink()
    same(all_of(tmp_path / "run", run(tmp_path / "run", options)), expected)


@pytest.mark.full
def test_stopped_at_the_last_step_and_killed_before_the_summary(tmp_path):
    """The step is complete, its end is not: the validation and the epoch's line are written on resuming. A run killed
    after its last save and before `summary.json` ends again with identical results.
    """
    options = lambda b: b.num_steps(STEPS + 2)  # noqa: E731
    result = run(tmp_path / "run", lambda b: stopping_at(options(b), STEPS + 2))
    assert result.stopped_by == "interrupter: for the night"
    result = run(tmp_path / "run", options)
    assert result.stopped_by == "num_steps"
    expected = all_of(tmp_path / "whole", run(tmp_path / "whole", options))
    same(all_of(tmp_path / "run", result), expected)
    (tmp_path / "run" / "summary.json").unlink()
    same(all_of(tmp_path / "run", run(tmp_path / "run", options)), expected)


@pytest.fixture
def handlers():
    """Restore the handler of SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_sigterm_in_the_last_save(tmp_path, monkeypatch, handlers):
    """The run has ended, and the program still receives the signal."""
    save = CheckpointStore.save

    def pressed(self, step, items, progress):
        os.kill(os.getpid(), signal.SIGTERM)
        save(self, step, items, progress)

    monkeypatch.setattr(CheckpointStore, "save", pressed)
    learner = build_line(quiet(tmp_path / "run", saves=True))
    with pytest.raises(SystemExit) as ended:
        learner.fit(batches())
    assert ended.value.code == 143
    assert saved_steps(tmp_path / "run") == [STEPS]


# -- what stays --------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_best_of_an_extended_run(tmp_path):
    """The last epoch was saved only because the run ended there."""
    make = lambda n: quiet(tmp_path / "run").num_epochs(n).with_file_checkpointer(keep_last=1, every_epochs=9).resume()  # noqa: E731
    build_line(make(1), 0.05).fit(batches(), valid_data())
    build_line(make(2), 5.0).fit(batches(), valid_data())
    assert saved_steps(tmp_path / "run") == [STEPS, 2 * STEPS]


@pytest.mark.parametrize("keep_best", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_save_that_failed_is_tried_again_at_the_end(tmp_path, monkeypatch, keep_best):
    save, failed = CheckpointStore.save, []

    def failing_once(self, step, items, progress):
        if not failed:
            failed.append(step)
            raise OSError(28, "No space left on device")
        save(self, step, items, progress)

    monkeypatch.setattr(CheckpointStore, "save", failing_once)
    builder = quiet(tmp_path / "run").with_file_checkpointer(keep_best=keep_best, every_epochs=1)
    build_line(builder.on_save_error("warn")).fit(batches())
    assert failed == [STEPS]
    assert saved_steps(tmp_path / "run") == [STEPS]


@pytest.mark.full
def test_allowed_logs_are_repaired(tmp_path):
    """The next resumption needs no allowance."""
    build_line(stopping_at(quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer(), STEPS + 2)).fit(shuffled())
    log = tmp_path / "run" / "train" / "epoch-2" / "Loss.log"
    text = log.read_text()
    log.write_text(text[:-3])
    builder = lambda n, **allow: quiet(tmp_path / "run").num_steps(n).with_file_checkpointer().resume(**allow)  # noqa: E731
    with raises_code("resume-log-changed"):
        build_line(builder(STEPS + 3)).fit(shuffled())
    build_line(stopping_at(builder(STEPS + 4, allow="logs"), STEPS + 3)).fit(shuffled())
    build_line(builder(STEPS + 4)).fit(shuffled())
    lines = log.read_text().splitlines()
    assert lines[0] == text.splitlines()[0]
    assert [line.split(",")[1] for line in lines] == ["4", "4", "4", "final"]  # one of the first two lines was lost


@pytest.mark.full
def test_foreign_directories_are_kept(tmp_path):
    """Directories named by numbers, where checkpoints would be written."""
    (tmp_path / "mine" / "10").mkdir(parents=True)
    (tmp_path / "mine" / "10" / "thesis.txt").write_text("x")
    for overwrite in (False, True):
        builder = quiet(tmp_path / f"run-{overwrite}", overwrite=overwrite).num_epochs(1 + overwrite)
        build_line(builder.with_file_checkpointer(directory=tmp_path / "mine")).fit(batches())
        assert (tmp_path / "mine" / "10" / "thesis.txt").read_text() == "x"
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["10", "12", "6"]


@pytest.mark.full
@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs a second disk")
def test_checkpoints_on_another_disk(tmp_path):
    """Newer checkpoints are set aside on that disk, too."""
    elsewhere = tempfile.mkdtemp(dir="/dev/shm")
    try:
        builder = lambda: quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer(directory=elsewhere)  # noqa: E731
        build_line(builder()).fit(batches())
        result = build_line(builder().checkpoint(epoch=1)).fit(batches())
        assert result.stopped_by == "num_epochs"
        assert [p.name for p in (tmp_path / "run" / "superseded" / "1" / "checkpoint").iterdir()] == ["12"]
    finally:
        shutil.rmtree(elsewhere)
    assert journal_of(tmp_path / "run")
    assert numbers_of(tmp_path / "run")
    assert logs_of(tmp_path / "run")


# -- worker processes --------------------------------------------------------------------------------------------------


def from_workers(missing=None):
    def read(number):
        if number == missing:
            raise OSError("no such file")
        return {name: x[number] for name, x in rows.items()}

    rows = arrays(ROWS)
    return DataLoaderBuilder().batch_size(4).num_workers(1).build(view(range(ROWS)).map(read))


@pytest.mark.parametrize("ends", ["by an error", pytest.param("as it should", marks=pytest.mark.full)])
@pytest.mark.full
def test_worker_processes_end_with_the_run(tmp_path, ends):
    """Errors of worker processes include the lines that raised, and the number of the item."""
    builder = quiet(tmp_path / "run").num_epochs(2)
    if ends == "as it should":
        assert build_line(builder).fit(from_workers(), from_workers()).summary["steps"] == 12
    else:
        with pytest.raises(OSError, match="no such file") as raised:
            build_line(builder).fit(from_workers(missing=9), from_workers())
        text = "".join(traceback.format_exception(raised.value))
        assert "while reading row 9 of Mapped" in text
        assert ", in read\n" in text
    assert multiprocessing.active_children() == []
