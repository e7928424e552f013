"""Tests of model files next to the checkpoints of a run."""

import io
import logging

import jax
import numpy as np
import optax
import pytest

from learner import (
    LearnerBuilder,
    SchedulerRecord,
    load_checkpoint,
    load_model,
    load_optimizer,
    load_scheduler,
)
from learner.checkpoint.records import records_of, write_record
from learner.cli.configs.builder_options import option
from learner.cli.configs.schema import names_for
from learner.records import BinRecorder, CompactRecorder, JsonRecorder, MessagePackRecorder, SafetensorsRecorder
from tests.support.codes import raises_code
from tests.support.runs import STEPS, Net, batches, bits, build_line, line, line_step, model_bits, quiet

pytestmark = pytest.mark.usefixtures("compiled_once")


def recorded(directory):
    return sorted(path.name for path in (directory / "checkpoint").iterdir() if path.is_file())


def saving(directory, epochs, recorder=CompactRecorder(), **more):  # noqa: B008
    options = {"keep_last": 2, "keep_best": 0, "record": recorder, **more}
    return quiet(directory).num_epochs(epochs).with_file_checkpointer(**options)


@pytest.mark.full
def test_each_kept_checkpoint_has_its_model(tmp_path):
    result = build_line(saving(tmp_path / "run", 4)).fit(batches())
    assert recorded(tmp_path / "run") == ["model-3.mpk.gz", "model-4.mpk.gz"]
    loaded = load_model(tmp_path / "run/checkpoint/model-4.mpk.gz", line())
    for name, x in result.model.items():
        np.testing.assert_array_equal(loaded[name], np.asarray(x).astype(np.float16).astype(np.float32))
    log = (tmp_path / "run/experiment.log").read_text()
    assert log.count("recorded ") == 4

    # overwriting removes them and nothing else
    own = tmp_path / "run/checkpoint/model.mpk"
    own.write_bytes(b"mine")
    over = LearnerBuilder(tmp_path / "run", overwrite=True).renderer(None).with_file_checkpointer(keep_best=0)
    build_line(over).fit(batches())
    assert recorded(tmp_path / "run") == ["model.mpk"]


def test_two_recorders_are_refused(tmp_path):
    with raises_code("checkpoint-two-recorders"):
        quiet(tmp_path).with_file_checkpointer(CompactRecorder(), record=JsonRecorder())


ALL = "model", "optim", "scheduler"


@pytest.mark.full
def test_the_optimizer_and_the_scheduler_beside_the_model(tmp_path):
    """In full precision, whatever the model's: a second moment of Adam is 0 in half."""
    schedule = optax.linear_schedule(0.1, 0.0, 100)
    builder = saving(tmp_path / "run", 2, keep_last=1, record_items=ALL)
    builder.build(line(), optax.adam, schedule, train_step=line_step).fit(batches())
    assert recorded(tmp_path / "run") == ["model-2.mpk.gz", "optim-2.mpk.gz", "scheduler-2.mpk.gz"]
    place = tmp_path / "run" / "checkpoint"
    expected = load_checkpoint(tmp_path / "run", "latest", line(), optimizer=optax.adam)
    state = load_optimizer(place / "optim-2.mpk.gz", line, optax.adam)
    assert jax.tree.structure(state) == jax.tree.structure(expected.optimizer_state)
    assert bits(state) == bits(expected.optimizer_state)
    assert load_scheduler(place / "scheduler-2.mpk.gz") == SchedulerRecord(2 * STEPS, 1.0)
    with raises_code("record-model-differs"):
        load_optimizer(place / "optim-2.mpk.gz", line(), lambda lr: optax.sgd(lr, momentum=0.9))
    with raises_code("record-model-differs"):
        load_scheduler(place / "optim-2.mpk.gz")


def test_an_optimizer_without_a_state_has_no_file(tmp_path):
    """The recorder may be the first argument."""
    builder = quiet(tmp_path / "run").with_file_checkpointer(CompactRecorder(), record_items=("optim", "scheduler"))
    build_line(builder).fit(batches())
    assert recorded(tmp_path / "run") == ["scheduler-1.mpk.gz"]


@pytest.mark.full
def test_missing_parts_are_recorded_later(tmp_path):
    build_line(saving(tmp_path / "run", 1, record_items=ALL), optimizer=optax.adam).fit(batches())
    (tmp_path / "run/checkpoint/scheduler-1.mpk.gz").unlink()
    build_line(saving(tmp_path / "run", 2, record_items=ALL).resume(), optimizer=optax.adam).fit(batches())
    assert recorded(tmp_path / "run") == sorted(f"{item}-{epoch}.mpk.gz" for item in ALL for epoch in (1, 2))


@pytest.mark.full
def test_in_full_precision_it_is_the_model_to_the_bit(tmp_path):
    """Includes statistics and random streams. Within an epoch, the file is named by the step."""
    builder = saving(tmp_path / "run", 1, SafetensorsRecorder(), every_steps=4, every_epochs=1)
    result = builder.build(Net(), optax.adam, 1e-2).fit(batches())
    assert recorded(tmp_path / "run") == ["model-1.safetensors", "model-step-4.safetensors"]
    loaded = load_model(tmp_path / "run/checkpoint/model-1.safetensors", Net(seed=5))
    assert model_bits(loaded) == model_bits(result.model)
    assert loaded.drop.rngs.key[...] == result.model.drop.rngs.key[...]
    middle = load_model(tmp_path / "run/checkpoint/model-step-4.safetensors", Net())
    assert model_bits(middle) != model_bits(loaded)


@pytest.mark.full
def test_a_resumed_run_records_the_missing_models(tmp_path):
    """The process was killed between a checkpoint and its model, or the first part of the run recorded none."""
    build_line(saving(tmp_path / "run", 2)).fit(batches())
    (tmp_path / "run/checkpoint/model-2.mpk.gz").unlink()
    (tmp_path / "run/checkpoint/model-2.mpk.gz.partial").write_bytes(b"cut off")
    build_line(saving(tmp_path / "run", 3).resume()).fit(batches())
    assert recorded(tmp_path / "run") == ["model-2.mpk.gz", "model-3.mpk.gz"]
    whole = build_line(saving(tmp_path / "whole", 3)).fit(batches())
    for name in recorded(tmp_path / "run"):
        assert (tmp_path / "run/checkpoint" / name).read_bytes() == (tmp_path / "whole/checkpoint" / name).read_bytes()
    assert whole.stopped_by == "num_epochs"


@pytest.mark.full
def test_rewinding_sets_models_aside(tmp_path):
    build_line(saving(tmp_path / "run", 3, keep_last=9)).fit(batches())
    build_line(saving(tmp_path / "run", 2, keep_last=9).checkpoint(epoch=1)).fit(batches())
    assert recorded(tmp_path / "run") == ["model-1.mpk.gz", "model-2.mpk.gz"]
    (aside,) = (tmp_path / "run/superseded").iterdir()
    assert recorded(aside) == ["model-2.mpk.gz", "model-3.mpk.gz"]


@pytest.mark.full
def test_a_model_that_cannot_be_recorded(tmp_path, caplog):
    """Its checkpoint is complete in either case, and no part of the file remains."""
    overflowing = lambda lr: optax.sgd(1e9)  # noqa: E731
    with raises_code("record-precision-too-low", precision="half") as caught:
        saving(tmp_path / "run", 2).build(line(), overflowing, 0.1, train_step=line_step).fit(batches()[:1])
    assert "the model of step 1 could not be recorded beside" in caught.value.__notes__[0]
    assert [path.name for path in (tmp_path / "run/checkpoint").iterdir()] == ["1"]
    with caplog.at_level(logging.WARNING):
        builder = saving(tmp_path / "other", 2).on_save_error("warn")
        builder.build(line(), overflowing, 0.1, train_step=line_step).fit(batches()[:1])
    assert "the model of step 1 could not be recorded" in (tmp_path / "other/experiment.log").read_text()
    assert sorted(path.name for path in (tmp_path / "other/checkpoint").iterdir()) == ["1", "2"]


def test_a_model_that_cannot_be_recorded_is_refused_before_training(tmp_path):
    wrong = {**line(), "w": line()["w"] + 1e6}
    with raises_code("record-precision-too-low", precision="half"):
        saving(tmp_path / "run", 1).build(wrong, optax.sgd, 0.1, train_step=line_step)
    assert not (tmp_path / "run").exists()


class Builder:
    """Record the arguments of `with_file_checkpointer`."""

    def with_file_checkpointer(self, **given):
        self.given = given


def test_a_config_names_a_recorder():
    builder, names = Builder(), names_for("with_file_checkpointer")
    for value, expected in [
        ("CompactRecorder", CompactRecorder()),
        ("learner.records.JsonRecorder", JsonRecorder()),
        ({"class_path": "SafetensorsRecorder", "init_args": {"precision": "half"}}, SafetensorsRecorder("half")),
        (None, None),
    ]:
        given = {"record": value, "keep_last": 3}
        option(LearnerBuilder, "with_file_checkpointer", given, "with_file_checkpointer", names or None).apply(builder)
        assert builder.given == {"record": expected, "keep_last": 3}
    given = {"record": "BinRecorder", "record_items": ["model", "optim"]}
    option(LearnerBuilder, "with_file_checkpointer", given, "with_file_checkpointer", names or None).apply(builder)
    assert builder.given == {"record": BinRecorder(), "record_items": ["model", "optim"]}
    assert set(names_for("with_file_checkpointer.record")) == {
        kind.__name__ for kind in [BinRecorder, CompactRecorder, JsonRecorder, SafetensorsRecorder, MessagePackRecorder]
    }
    with raises_code("config-name-unknown", key="with_file_checkpointer.record", path="Compact"):
        option(LearnerBuilder, "with_file_checkpointer", {"record": "Compact"}, "with_file_checkpointer")


def test_the_files_of_a_checkpoint(tmp_path):
    for name in (
        "model-1.mpk",
        "model-1.json.gz",
        "model-12.mpk",
        "model-1.txt",
        "model-step-1.mpk",
        "model-1.mpk.partial",
        "optim-1.mpk",
        "optim-11.mpk",
        "scheduler-1.bin.gz",
    ):
        (tmp_path / name).write_bytes(b"")
    assert sorted(path.name for path in records_of(tmp_path, 7, 1)) == [
        "model-1.json.gz",
        "model-1.mpk",
        "optim-1.mpk",
        "scheduler-1.bin.gz",
    ]
    assert [path.name for path in records_of(tmp_path, 1, None)] == ["model-step-1.mpk"]


def test_paths_that_are_not_directories():
    """`gs://...`, for example: a file appears when it is closed."""

    class Place:
        def open(self, mode):
            assert mode == "wb"
            return file

    class File(io.BytesIO):
        def close(self):
            self.content = self.getvalue()
            super().close()

    file = File()
    write_record(Place(), lambda out: out.write(b"model"))
    assert file.content == b"model"
