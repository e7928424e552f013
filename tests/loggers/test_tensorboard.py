"""Tests of TensorBoard; its files are read as protocol buffers."""

import io
import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from learner import ClassificationOutput, LearnerBuilder
from learner.data import ArrayDataset
from learner.events import MetricInfo, RunFailed
from learner.loggers import TensorBoard
from learner.loggers.tfevents import read_records
from learner.metrics import ConfusionMatrix
from tests.support.logged import INFOS, ended, played, split, started, steps
from tests.support.tfevents import events_of, read, scalars, texts, values


def test_scalars(tmp_path):
    valid = split("valid", 4, {"Loss": 0.25, "Matrix": "1 0"}, time=7.0)
    played(TensorBoard(every_steps=1), started(tmp_path), steps(1, 4.0, 2.0, time=5.0), steps(3, 1.0), valid, ended(4))
    assert scalars(tmp_path / "tensorboard") == {
        "train/step/Loss": [(1, 4.0), (2, 2.0), (3, 1.0)],
        "train/step/Top-5 Accuracy": [(1, 5.0), (2, 3.0), (3, 2.0)],
        "valid/epoch/Loss": [(4, 0.25)],
    }
    walls = {(tag, event.step): event.wall_time for tag, event, _ in values(tmp_path / "tensorboard")}
    assert (walls["train/step/Loss", 2], walls["valid/epoch/Loss", 4]) == (5.0, 7.0)


def test_the_splits_of_a_metric_share_a_card(tmp_path):
    """TensorBoard draws one card per tag, with one curve per directory."""
    both = [split(name, 2, {"Loss": 0.5, "Report": "fine"}) for name in ("train", "valid")]
    played(TensorBoard(every_steps=1), started(tmp_path), steps(1, 4.0), *both)
    tags = {name: [value.tag for event in read(tmp_path / "tensorboard" / name) for value in event.summary.value]
            for name in ("train", "valid")}  # fmt: skip
    assert tags["valid"] == ["epoch/Loss", "epoch/Report/text_summary"]
    assert tags["train"] == ["step/Loss", "step/Top-5 Accuracy", *tags["valid"]]
    assert sorted(tags["train"])[-2:] == tags["train"][:2]  # cards of steps come last


def test_steps_are_thinned(tmp_path):
    played(TensorBoard(every_steps=3), started(tmp_path), steps(1, *range(10)))
    assert [step for step, _ in scalars(tmp_path / "tensorboard")["train/step/Loss"]] == [3, 6, 9]


def test_non_finite_numbers(tmp_path):
    played(TensorBoard(every_steps=1), started(tmp_path), steps(1, float("nan"), float("inf")))
    (_, nan), (_, inf) = scalars(tmp_path / "tensorboard")["train/step/Loss"]
    assert (np.isnan(nan), inf) == (True, np.inf)


def test_texts(tmp_path):
    facts = {"config": {"lr": 0.1}, "environment": {"jax": "0.10"}, "commit": "abc"}
    played(
        TensorBoard(), started(tmp_path, **facts), split("valid", 4, {"Matrix": "1 0\n# 1 <b>"}), ended(4, "sigterm")
    )
    written = texts(tmp_path / "tensorboard")
    assert written["valid/epoch/Matrix"] == "    1 0\n    # 1 <b>"
    assert json.loads(written["run/config"]) == {"lr": 0.1}
    assert json.loads(written["run/environment"]) == {"jax": "0.10"}
    assert written["run/commit"].strip() == "abc"
    assert json.loads(written["run/summary"])["stopped_by"] == "sigterm"


def test_an_error_is_a_text(tmp_path):
    played(TensorBoard(), started(tmp_path), RunFailed(2.0, 1, 3, "ValueError('no')"))
    assert texts(tmp_path / "tensorboard")["run/error"] == "    ValueError('no')"


def test_pictures(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    draws = {"Matrix": lambda: picture, "Grey": lambda: picture[..., 0]}
    played(TensorBoard(), started(tmp_path), split("valid", 4, {"Matrix": "1 0"}, pictures=draws))
    images = {tag: value.image for tag, _, value in values(tmp_path / "tensorboard") if value.HasField("image")}
    assert {tag: (image.height, image.width, image.colorspace) for tag, image in images.items()} == {
        "valid/epoch/Matrix": (4, 6, 3),
        "valid/epoch/Grey": (4, 6, 1),
    }
    with Image.open(io.BytesIO(images["valid/epoch/Matrix"].encoded_image_string)) as image:
        np.testing.assert_array_equal(np.asarray(image), picture)


@pytest.mark.full
def test_a_run_shows_its_confusion_matrix(tmp_path):
    """Label 0 is predicted as 0 in 3 of 4 rows, label 1 never as 1; the grey of a cell is 255 * (1 - fraction)."""
    x, y = np.array([[2, 0], [2, 0], [2, 0], [0, 2], [2, 0]], np.float32), np.array([0, 0, 0, 0, 1], np.int32)

    def step(model, batch):
        return ClassificationOutput.from_logits(batch["x"] * model["w"], batch["y"])

    builder = LearnerBuilder(tmp_path / "run").metric_valid(ConfusionMatrix(2)).renderer(None)
    builder.devices(1).with_batch_size(5).metric_loggers(TensorBoard())
    learner = builder.build({"w": jnp.ones(())}, optax.sgd, 0.0, train_step=step, valid_step=step)
    data = ArrayDataset({"x": x, "y": y})
    learner.fit(data, data)
    (image,) = (
        value.image
        for tag, _, value in values(tmp_path / "run" / "tensorboard")
        if tag == "valid/epoch/Confusion Matrix" and value.HasField("image")
    )
    with Image.open(io.BytesIO(image.encoded_image_string)) as picture:
        np.testing.assert_array_equal(np.asarray(picture)[::192, ::192], [[64, 191], [0, 255]])


def test_hyper_parameters(tmp_path):
    config = {"lr": 0.1, "model": {"class_path": "Net"}, "summary": True, "optimizer": None}
    infos = (*INFOS, MetricInfo("valid", "Matrix", numeric=False))
    played(TensorBoard(), started(tmp_path, config=config, metrics=infos), ended(4))
    data = {
        value.tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in read(tmp_path / "tensorboard")
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    }
    experiment = data["_hparams_/experiment"].experiment
    assert [info.name for info in experiment.hparam_infos] == ["lr", "model", "summary"]
    assert [(info.name.group, info.name.tag) for info in experiment.metric_infos] == [("train", "epoch/Loss")]
    values = data["_hparams_/session_start_info"].session_start_info.hparams
    assert values["lr"].number_value == 0.1
    assert (values["model"].string_value, values["summary"].bool_value) == ("Net", True)
    assert "_hparams_/session_end_info" in data


def test_resuming_within_a_second(tmp_path):
    """Records of the first start after step 2 are removed, and none before it."""
    directory, options = tmp_path / "tensorboard", {"every_steps": 1}
    played(TensorBoard(**options), started(tmp_path), steps(1, 4.0, 2.0, 1.0), split("valid", 3, {"Loss": 0.5}))
    played(TensorBoard(**options), started(tmp_path, 2), steps(3, 1.0, 0.5), split("valid", 3, {"Loss": 0.5}))
    played(TensorBoard(**options), started(tmp_path, 4), steps(5, 0.25))
    assert [len(list((directory / name).glob("events*"))) for name in ("", "train", "valid")] == [3, 3, 2]
    assert scalars(directory)["train/step/Loss"] == [(1, 4.0), (2, 2.0), (3, 1.0), (4, 0.5), (5, 0.25)]
    assert scalars(directory)["valid/epoch/Loss"] == [(3, 0.5)]


def test_resuming_replaces_values_from_after_the_checkpoint(tmp_path):
    """The checkpoint of step 3 lies between two splits; two processes are killed after the epoch's validation."""
    directory, picture = tmp_path / "tensorboard", np.zeros((2, 2), np.uint8)
    known = {"train/Loss": [(1, 3, 2.0)], "valid/Matrix": [(1, 3, "1 0")], "custom/norm": [(1, 3, 5.0)]}
    before = [
        steps(1, 4.0, 2.0, 1.0),
        split("custom", 3, {"norm": 5.0}, at_step=3),
        split("train", 3, {"Loss": 2.0}),
        split("valid", 3, {"Matrix": "1 0"}, pictures={"Matrix": lambda: picture}),
    ]
    after = [split("valid-b", 3, {"Loss": 0.5, "Matrix": "0 1"}), split("custom", 3, {"norm": 6.0})]
    played(TensorBoard(every_steps=1), started(tmp_path), *before, *after)
    for _ in range(2):
        played(TensorBoard(every_steps=1), started(tmp_path, 3, known), *after, steps(4, 0.5))
    assert scalars(directory) == {
        "train/step/Loss": [(1, 4.0), (2, 2.0), (3, 1.0), (4, 0.5)],
        "train/step/Top-5 Accuracy": [(1, 5.0), (2, 3.0), (3, 2.0), (4, 1.5)],
        "custom/epoch/norm": [(3, 5.0), (3, 6.0)],
        "train/epoch/Loss": [(3, 2.0)],
        "valid-b/epoch/Loss": [(3, 0.5)],
    }
    tags = [tag for tag, event, _ in values(directory) if event.step == 3 and "Matrix" in tag]
    assert sorted(tags) == [
        "valid-b/epoch/Matrix/text_summary",
        "valid/epoch/Matrix",
        "valid/epoch/Matrix/text_summary",
    ]


def test_reading_ends_at_a_partial_record(tmp_path):
    directory, options = tmp_path / "tensorboard", {"every_steps": 1}
    played(TensorBoard(**options), started(tmp_path), steps(1, 4.0, 2.0), split("train", 2, {"Loss": 3.0}))
    (path,) = (directory / "train").iterdir()
    whole, content = scalars(directory), path.read_bytes()
    count = len(events_of(path))
    for torn in (b"\x10", content[:12], content[:20], b"\xff" * 12):
        path.write_bytes(content + torn)
        assert len(list(read_records(path))) == count
    played(TensorBoard(**options), started(tmp_path, 2, {"train/Loss": [(1, 2, 3.0)]}), steps(3, 1.0))
    path.write_bytes(content)
    assert scalars(directory)["train/epoch/Loss"] == whole["train/epoch/Loss"]
    assert scalars(directory)["train/step/Loss"] == [*whole["train/step/Loss"], (3, 1.0)]


def test_new_run_removes_its_own_files_only(tmp_path):
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    (directory / "events.out.tfevents.1700000000.host").write_bytes(b"")
    other = TensorBoard(str(directory / "train" / "of another run"))
    played(other, started(tmp_path / "other"))
    played(TensorBoard(str(directory / "inside")), started(tmp_path / "inside"))
    for _ in range(2):
        played(TensorBoard(str(directory), every_steps=1), started(tmp_path / "run"), steps(1, 4.0))
    assert len([path for path in directory.iterdir() if path.is_file()]) == 2
    assert len(list((directory / "train").glob("events*"))) == 1
    assert (
        len(list((directory / "train" / "of another run").iterdir()))
        == len(list((directory / "inside").iterdir()))
        == 1
    )
    assert scalars(directory)["train/step/Loss"] == [(1, 4.0)]


def test_the_file_is_written_every_two_seconds(tmp_path):
    now = [0.0]
    logger = TensorBoard(every_steps=1, clock=lambda: now[0])
    logger.on_event(started(tmp_path))
    logger.on_event(steps(1, 4.0))
    (path,) = (tmp_path / "tensorboard" / "train").iterdir()
    now[0] = 1.9
    logger.on_event(steps(2, 2.0))
    count = len(events_of(path))
    now[0] = 2.0
    logger.on_event(steps(3, 1.0))
    assert (count, len(events_of(path))) == (0, 1 + 3)
    logger.close()


def test_links_are_not_written_through(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match="symbolic link"):
        TensorBoard().on_event(started(tmp_path))
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_logger_may_be_used_by_a_second_run(tmp_path):
    logger = TensorBoard(every_steps=1)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        played(logger, started(tmp_path / name), steps(1, 4.0), ended(1))
    first, second = (scalars(tmp_path / name / "tensorboard") for name in ("first", "second"))
    assert first == second != {}
