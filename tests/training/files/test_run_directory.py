"""Tests of reading checkpoints of a run that may be training, and of directories that processes do not share."""

import shutil

import pytest

from learner import load_checkpoint
from learner.checkpoint import store
from learner.checkpoint.manifest import read_manifest
from learner.checkpoint.store import CheckpointStore, read_while_training
from learner.distributed.process_group import SingleProcess
from learner.runs import lock
from learner.runs.lock import locked
from learner.training.checkpoints.resume import read_checkpoint
from learner.training.files.run_directory import SINGLE_PROCESS, open_store, read_found, refuse_unshared
from tests.support.codes import raises_code
from tests.support.runs import STEPS, build_line, quiet, shuffled


def test_reading_survives_the_removal_of_checkpoints(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer(keep_last=3)
    learner = build_line(builder)
    learner.fit(shuffled())
    steps = []

    def read(store, entry):
        steps.append(entry.step)
        if len(steps) < 3:
            shutil.rmtree(store.path(entry.step))
        return sorted(store.path(entry.step).iterdir())

    assert read_found(learner.definition.options, SINGLE_PROCESS, "latest", None, read)
    assert steps == [3 * STEPS, 2 * STEPS, STEPS]


def test_another_process_reads_a_checkpoint_that_was_saved_after_it_had_listed_them(tmp_path):
    """Process 0 lists the checkpoints later, and chooses the new one."""
    build_line(quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer(keep_last=2)).fit(shuffled())
    newest, away = tmp_path / "run" / "checkpoint" / str(2 * STEPS), tmp_path / "newest"
    shutil.move(newest, away)

    class Second(SingleProcess):
        index = 1

        def run_on_primary(self, function):
            shutil.move(away, newest)
            return 2 * STEPS

    options = build_line(quiet(tmp_path / "run")).definition.options
    assert read_found(options, Second(), "latest", None, lambda store, entry: entry.step) == 2 * STEPS


def test_removal_of_every_checkpoint_is_an_error(tmp_path):
    learner = build_line(quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer(keep_last=3))
    learner.fit(shuffled())

    def read(store):
        with store.reading(store.steps[-1]):
            shutil.rmtree(store.path(store.steps[-1]))
            raise OSError("it is gone")

    with raises_code("checkpoint-removed-while-read", step=2 * STEPS):
        read_while_training(lambda: open_store(learner.definition.options), read, attempts=2)


@pytest.mark.full
def test_finding_the_newest_survives_the_removal_of_checkpoints(tmp_path):
    build_line(quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer(keep_last=3)).fit(shuffled())
    learner = build_line(quiet(tmp_path / "run").resume())
    tried = []

    def differing(progress):
        tried.append(progress["step"])
        if len(tried) < 3:
            shutil.rmtree(tmp_path / "run" / "checkpoint" / str(progress["step"]))
        return []

    assert read_checkpoint(learner.definition, differing).entry.step == STEPS
    assert tried == [3 * STEPS, 2 * STEPS, STEPS]


def test_load_checkpoint_survives_the_removal_of_checkpoints(tmp_path, monkeypatch):
    build_line(quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer(keep_last=3)).fit(shuffled())
    progress, tried = CheckpointStore.progress, []

    def removing(store, step):
        tried.append(step)
        if len(tried) < 3:
            shutil.rmtree(store.path(step))
        return progress(store, step)

    monkeypatch.setattr(CheckpointStore, "progress", removing)
    assert load_checkpoint(tmp_path / "run", "latest").step == STEPS
    assert tried == [3 * STEPS, 2 * STEPS, STEPS]


def test_a_new_run_begins_with_another_one_as_well(tmp_path, monkeypatch):
    build_line(quiet(tmp_path / "run", saves=True).num_epochs(3).with_file_checkpointer(keep_last=3)).fit(shuffled())
    shapes, tried = CheckpointStore.shapes, []

    def removing(store, step, names):
        tried.append(step)
        if len(tried) < 3:
            shutil.rmtree(store.path(step))
        return shapes(store, step, names)

    monkeypatch.setattr(CheckpointStore, "shapes", removing)
    learner = build_line(quiet(tmp_path / "new").initial_from(tmp_path / "run", "latest"))
    assert learner.definition.init_report.source.endswith(f"checkpoint/{STEPS}")
    assert list(dict.fromkeys(tried)) == [3 * STEPS, 2 * STEPS, STEPS]


def test_a_checkpoint_that_is_removed_before_its_manifest_is_read_is_no_damage(tmp_path, monkeypatch):
    build_line(quiet(tmp_path / "run").num_epochs(3).with_file_checkpointer(keep_last=3)).fit(shuffled())

    def removing(directory):
        if directory.name == str(STEPS):
            shutil.rmtree(directory)
        return read_manifest(directory)

    monkeypatch.setattr(store, "read_manifest", removing)
    kept = CheckpointStore(tmp_path / "run" / "checkpoint")
    assert (kept.steps, kept.damaged) == ([2 * STEPS, 3 * STEPS], {})


def test_the_error_of_a_damaged_checkpoint_lists_the_others(tmp_path):
    builder = quiet(tmp_path / "run").num_epochs(2).with_file_checkpointer(keep_last=2)
    build_line(builder).fit(shuffled())
    weights = tmp_path / "run" / "checkpoint" / str(2 * STEPS) / "state" / "_METADATA"
    weights.write_bytes(weights.read_bytes()[:-1])
    learner = build_line(quiet(tmp_path / "run").checkpoint("latest"))
    with raises_code("checkpoint-damaged", step=2 * STEPS, others=f"there are also step={STEPS} (epoch 1)"):
        learner.evaluate(shuffled())


class Second(SingleProcess):
    """Process 1 of 2, where process 0 has a disk of its own."""

    index, count = 1, 2

    def __init__(self, disk, timeout=300.0):
        self.disk, self.timeout, self.meetings = disk, timeout, 0

    def run_on_primary(self, function):
        self.meetings += 1
        return lock.read_note(self.disk)

    def all_reduce_json(self, value, combine, what="", patient=False):
        self.meetings += 1
        return combine([True, value])


class Clock:
    """A clock that advances by sleeping, and calls a function after some seconds."""

    def __init__(self, after=1e9, call=None):
        self.now, self.after, self.call = 0.0, after, call

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if self.now >= self.after:
            self.after = 1e9
            self.call()


def options_in(run, **checkpoints):
    builder = quiet(run, saves=True)
    return build_line(builder.with_file_checkpointer(**checkpoints) if checkpoints else builder).definition.options


@pytest.fixture
def disks(tmp_path):
    """Return the directories of a run on the disks of two processes, of which the first one holds the lock."""
    disks = [tmp_path / "first" / "run", tmp_path / "second" / "run"]
    for disk in disks:
        disk.mkdir(parents=True)
    with locked(disks[0]):
        yield disks


def test_processes_that_share_the_directory_go_on_at_once(disks):
    refuse_unshared(options_in(disks[0]), Second(disks[0]), clock := Clock(), clock.sleep)
    assert clock.now == 0


@pytest.mark.parametrize(("timeout", "seconds"), [(300.0, 60.0), (20.0, 10.0)])
@pytest.mark.parametrize("note", [None, '{"host": "other", "pid": 1}'])
def test_a_directory_that_is_not_shared_is_refused(disks, timeout, seconds, note):
    """The other disk may have the lock of a killed run."""
    if note is not None:
        (disks[1] / lock.NAME).write_text(note)
    clock = Clock()
    with raises_code("directory-not-shared", "process 1 cannot find", directory=str(disks[1])):
        refuse_unshared(options_in(disks[1]), Second(disks[0], timeout), clock, clock.sleep)
    assert clock.now == seconds


def test_a_slow_disk_is_waited_for(disks):
    clock = Clock(20.0, lambda: shutil.copy(disks[0] / lock.NAME, disks[1] / lock.NAME))
    refuse_unshared(options_in(disks[1]), Second(disks[0]), clock, clock.sleep)
    assert clock.now == 20.0


def test_a_file_that_may_not_be_read_is_seen(disks, monkeypatch):
    def refused(path):
        raise PermissionError

    group = Second(disks[0])
    monkeypatch.setattr("learner.training.files.run_directory.read_note", refused)
    refuse_unshared(options_in(disks[1]), group, clock := Clock(), clock.sleep)
    assert clock.now == 0


def test_only_the_directory_of_checkpoints_must_be_shared(disks, tmp_path, monkeypatch):
    monkeypatch.setattr("learner.checkpoint.retention.refuse_store", lambda place: None)  # needs a package
    group, other = Second(disks[0]), tmp_path / "checkpoints"
    unsaved = build_line(quiet(disks[1])).definition.options
    in_store = options_in(disks[1], directory="gs://bucket/run")
    for options in (unsaved, in_store):
        refuse_unshared(options, group)
    assert group.meetings == 0
    other.mkdir()
    with locked(other):
        refuse_unshared(options_in(disks[1], directory=other), Second(other))
    with raises_code("directory-not-shared", directory=str(other)):
        refuse_unshared(options_in(disks[0], directory=other), Second(disks[0]), clock := Clock(), clock.sleep)


def test_one_process_has_nothing_to_share(disks):
    refuse_unshared(options_in(disks[1]), SINGLE_PROCESS)
