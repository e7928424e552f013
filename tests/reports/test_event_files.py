"""Tests of the export of runs to event files of TensorBoard."""

import io
import json
import os
import resource

import numpy as np
import pytest
from PIL import Image
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
from tensorboardX.record_writer import masked_crc32c

from learner.reports.confusion_matrices import read_matrix
from learner.reports.event_files import write_events
from learner.runs import RunReader
from learner.util.distribution import install_hint
from tests.support.codes import raises_code
from tests.support.tfevents import events_of, read, scalars, texts, values
from tests.support.written import write_run, write_steps

TABLES = ["label  cat  dog\ncat      3    1\ndog      0   10", "label  cat  dog\ncat      4    0\ndog      5    5"]
VALUES = {"train/Loss": [2.0, 1.0], "valid/Loss": [float("nan"), 1.5], "valid/Matrix": TABLES}
CONFIG = "seed: 0\nmodel: {class_path: M, init_args: {width: 8}}\nmetric_loggers: [{class_path: S, init_args: {}}]\n"


@pytest.fixture
def run(tmp_path):
    directory = write_run(tmp_path / "a", VALUES, config=CONFIG)
    for epoch, losses in ((1, [8, "inf"]), (2, [2, 1])):
        write_steps(directory, "Loss", epoch, losses)
    (directory / "experiment.log").write_text("x INFO begun\nx WARNING <disk>\n")
    (directory / "summary.json").write_text('{"stopped_by": "num_epochs"}')
    return RunReader(directory)


def files(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_scalars_have_their_steps(run, tmp_path):
    count = write_events(tmp_path / "out", run)
    exported = scalars(tmp_path / "out")
    assert exported["train/step/Loss"] == [(1, 8.0), (2, np.inf), (3, 2.0), (4, 1.0)]
    assert exported["train/epoch/Loss"] == [(2, 2.0), (4, 1.0)]
    assert [step for step, _ in exported["valid/epoch/Loss"]] == [2, 4]
    assert np.isnan(exported["valid/epoch/Loss"][0][1])
    assert set(exported) == {"train/step/Loss", "train/epoch/Loss", "valid/epoch/Loss"}
    assert count == sum(len(read(tmp_path / "out" / split)) for split in ("", "train", "valid"))


def test_events_have_the_times_of_steps(run, tmp_path):
    """Epochs take ten seconds, so each of their two steps takes five."""
    write_events(tmp_path / "out", run)
    walls = {(tag, event.step): event.wall_time for tag, event, _ in values(tmp_path / "out")}
    steps = [walls["train/step/Loss", step] for step in (1, 2, 3, 4)]
    np.testing.assert_allclose(steps, [1005, 1010, 1015, 1020], atol=1e-4)
    assert (walls["valid/epoch/Loss", 2], walls["valid/epoch/Loss", 4]) == (1010, 1020)


def test_texts_of_a_run(run, tmp_path):
    write_events(tmp_path / "out", run)
    exported = texts(tmp_path / "out")
    config = {"seed": 0, "model": {"class_path": "M", "init_args": {"width": 8}}}
    assert json.loads(exported["run/config"]) == config  # without loggers, whose URLs may contain secrets
    assert exported["run/status"] == "    ended: num_epochs"
    assert json.loads(exported["run/summary"]) == {"stopped_by": "num_epochs"}
    assert exported["run/log"] == "    x INFO begun\n    x WARNING <disk>"
    assert exported["valid/epoch/Matrix"] == "\n".join(f"    {line}" for line in TABLES[1].splitlines())


def test_hyperparameters(run, tmp_path):
    write_events(tmp_path / "out", run)
    data = {
        value.tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in read(tmp_path / "out")
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    }
    hparams = data["_hparams_/session_start_info"].session_start_info.hparams
    assert (hparams["seed"].number_value, hparams["model"].string_value) == (0, "M")
    metrics = data["_hparams_/experiment"].experiment.metric_infos
    assert [(info.name.group, info.name.tag) for info in metrics] == [("train", "epoch/Loss"), ("valid", "epoch/Loss")]
    assert "_hparams_/session_end_info" in data


def test_matrices_are_images(run, tmp_path):
    write_events(tmp_path / "out", run)
    images = {
        event.step: value.image
        for tag, event, value in values(tmp_path / "out")
        if value.HasField("image") and tag == "valid/epoch/Matrix"
    }
    assert sorted(images) == [2, 4]
    for step, text in zip((2, 4), TABLES, strict=True):
        with Image.open(io.BytesIO(images[step].encoded_image_string)) as image:
            np.testing.assert_array_equal(np.asarray(image), read_matrix(text).picture())


def test_checksums_of_records(run, tmp_path):
    """TensorBoard refuses records with wrong checksums."""
    write_events(tmp_path / "out", run)
    (path,) = (tmp_path / "out" / "train").iterdir()
    content = path.read_bytes()
    for event in events_of(path):
        size = event.ByteSize()
        parts = content[:8], content[8:12], content[12 : 12 + size], content[12 + size : 16 + size]
        assert [masked_crc32c(parts[0]), masked_crc32c(parts[2])] == [
            int.from_bytes(parts[1], "little"),
            int.from_bytes(parts[3], "little"),
        ]
        content = content[16 + size :]
    assert content == b""


def test_run_that_is_still_training(tmp_path):
    """Its last epoch is exported so far, and its session has no end. A second export replaces the first."""
    lock = json.dumps({"host": os.uname().nodename, "pid": os.getpid()})
    directory = write_run(tmp_path / "a", {"train/Loss": [2.0]}, ending=None, lock=lock)
    write_steps(directory, "Loss", 1, [3, 2])
    (directory / "train" / "epoch-2").mkdir()
    (directory / "train" / "epoch-2" / "Loss.log").write_text("1.5,32\n1.2")
    for _ in range(2):
        write_events(tmp_path / "out", RunReader(directory))
        assert scalars(tmp_path / "out")["train/step/Loss"] == [(1, 3.0), (2, 2.0), (3, 1.5)]
    assert texts(tmp_path / "out")["run/status"] == "    running"
    tags = [value.tag for event in read(tmp_path / "out") for value in event.summary.value]
    assert "_hparams_/session_start_info" in tags
    assert "_hparams_/session_end_info" not in tags
    assert len(files(tmp_path / "out")) == 2


def test_export_replaces_one_of_another_run(run, tmp_path):
    write_events(tmp_path / "out", RunReader(write_run(tmp_path / "b", began=5000.0)))
    write_events(tmp_path / "out", run)
    assert [path.name for path in files(tmp_path / "out")] == ["events.out.tfevents.0000001000.exported"] * 3


@pytest.mark.parametrize("folder", ["out", "out/valid"])
def test_event_files_of_the_logger_are_refused(run, tmp_path, folder):
    """Otherwise TensorBoard would show each value twice."""
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "events.out.tfevents.1700000000.host.learner").write_bytes(b"")
    with raises_code("report-foreign-events", "events.out"):
        write_events(tmp_path / "out", run)
    assert len(files(tmp_path / "out")) == 1


def test_split_with_a_path_stays_in_the_directory(tmp_path):
    """The journal may come from an untrusted source."""
    run = RunReader(write_run(tmp_path / "a", {"../Loss": [1.0]}))
    write_events(tmp_path / "out", run)
    assert scalars(tmp_path / "out") == {"__/epoch/Loss": [(2, 1.0)]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]


def test_links_are_not_written_through(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "mine")
    with raises_code("run-file-kind"):
        write_events(tmp_path / "out", run)
    (tmp_path / "other").mkdir()
    (tmp_path / "private").write_text("mine")
    (tmp_path / "other" / "export.partial").symlink_to(tmp_path / "private")
    write_events(tmp_path / "other", run)
    assert (tmp_path / "private").read_text() == "mine"
    assert len(files(tmp_path / "other")) == 3


def test_refused_directory_is_unchanged(run, tmp_path):
    """A file named `export.partial` may belong to the user."""
    for place in (tmp_path / "mine", tmp_path / "others"):
        place.mkdir()
        (place / "export.partial").write_text("mine")
    (tmp_path / "out").symlink_to(tmp_path / "mine")
    (tmp_path / "others" / "events.out.tfevents.1700000000.host.learner").write_bytes(b"")
    for place, code in ((tmp_path / "out", "run-file-kind"), (tmp_path / "others", "report-foreign-events")):
        with raises_code(code):
            write_events(place, run)
        assert (place / "export.partial").read_text() == "mine"


def test_directory_in_place_of_the_temporary_file(run, tmp_path):
    (tmp_path / "out" / "export.partial").mkdir(parents=True)
    with raises_code("report-not-written", "export.partial"):
        write_events(tmp_path / "out", run)
    assert (tmp_path / "out" / "export.partial").is_dir()


def test_failed_export_keeps_the_previous_one(run, tmp_path):
    """The limit of file sizes is below what the second export needs."""
    write_events(tmp_path / "out", run)
    before = {path: path.read_bytes() for path in files(tmp_path / "out")}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
    try:
        with raises_code("report-not-written", "File too large"):
            write_events(tmp_path / "out", run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in files(tmp_path / "out")} == before


def test_invalid_place_is_refused(run, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "nowhere" / "out"):
        with raises_code("report-not-written"):
            write_events(place, run)
    assert (tmp_path / "file").read_text() == ""


def test_untrusted_run(tmp_path):
    """Invalid names, texts, numbers and times are replaced."""
    values = {"valid/\ud800<b>": [1.0], "valid/T": ["\udfff\x00"], "valid/Huge": [10**300]}
    directory = write_run(tmp_path / "a", values, config='"<i>": 1\nlarge: 1000000000000000000000\n', began=-5.0)
    with (directory / "journal.jsonl").open("a") as file:
        file.write('{"event": "epoch", "time": "x", "epoch": 2, "step": 1, "values": {"valid/T": "b"}}\n')
    write_events(tmp_path / "out", RunReader(directory))
    exported = scalars(tmp_path / "out")
    assert exported["valid/epoch/?<b>"] == [(2, 1.0)]
    assert exported["valid/epoch/Huge"] == [(2, np.inf)]
    assert texts(tmp_path / "out")["valid/epoch/T"] == "    b"


def test_deeply_nested_summary_is_skipped(run, tmp_path):
    (tmp_path / "a" / "summary.json").write_text('{"a":' * 700 + "1" + "}" * 700)
    write_events(tmp_path / "out", run)
    assert "run/summary" not in texts(tmp_path / "out")


def test_long_texts_are_truncated(run, tmp_path, monkeypatch):
    monkeypatch.setattr("learner.reports.event_files.LONGEST_TEXT", 10)
    write_events(tmp_path / "out", run)
    assert texts(tmp_path / "out")["valid/epoch/Matrix"] == "    label  cat\n    ..."


def test_run_without_epochs(tmp_path):
    write_events(tmp_path / "out", RunReader(write_run(tmp_path / "a", {}, ending=None)))
    assert texts(tmp_path / "out") == {"run/status": "    died"}


def test_missing_tensorboardx_is_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with raises_code("package-missing", "tensorboardX", install_hint("tensorboard")):
        write_events(tmp_path / "out", run)
    assert not (tmp_path / "out").exists()
