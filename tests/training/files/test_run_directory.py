"""Tests of reading checkpoints of a run that may be training."""

import shutil

import pytest

from learner import load_checkpoint
from learner.checkpoint import store
from learner.checkpoint.manifest import read_manifest
from learner.checkpoint.store import CheckpointStore, read_while_training
from learner.training.checkpoints.resume import read_checkpoint
from learner.training.files.run_directory import SINGLE_PROCESS, open_store, read_found
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
