"""Tests of ExactlyOnceLogger and its cursor, the file of what a server has received."""

import json

import pytest

from learner import LearnerBuilder
from learner.loggers import Csv, JsonLines, TensorBoard
from learner.loggers.exactly_once import ExactlyOnceLogger, UploadCursor
from tests.support.codes import raises_code
from tests.support.logged import split, started, steps

NAMES = '{"id": "a", "step": 1, "row": 1, "splits": {}, "names": []}'


class Server(ExactlyOnceLogger):
    """A destination that cannot delete; it keeps what it receives."""

    def __init__(self, **options):
        super().__init__(**options)
        self.received = []

    def send_steps(self, event, steps, values):
        with self.cursor.uploading():
            self.received += zip(steps, values["Loss"].tolist(), strict=True)

    def send_split(self, event):
        with self.cursor.uploading():
            self.received.append((event.split, event.epoch, event.step))


class Named(Server):
    """A server that keeps the values of splits."""

    def send_split(self, event):
        with self.cursor.uploading():
            self.received.append(dict(event.values))


def test_second_logger_of_a_class_is_refused(tmp_path):
    """Two loggers of one class would share the cursor's file."""
    builder = LearnerBuilder(tmp_path / "run").metric_loggers(Server(), JsonLines())
    with raises_code("logger-twice", "server.json"):
        builder.metric_loggers(Server())


@pytest.mark.parametrize("kind", [JsonLines, Csv])
def test_two_loggers_of_one_file_are_refused(tmp_path, kind):
    builder = LearnerBuilder(tmp_path / "run").metric_loggers(kind(), kind(str(tmp_path / "mine")))
    for path in (None, str(tmp_path / "mine")):
        with raises_code("logger-twice"):
            builder.metric_loggers(kind(path, every_steps=1))
    builder.metric_loggers(kind(str(tmp_path / "other")), TensorBoard(), TensorBoard())


def test_resumed_run_sends_new_values_only(tmp_path):
    """A run killed in step 5 resumes at step 2: steps 3 to 5 were sent, the validation of step 4 was not."""
    first, second = Server(), Server()
    for event in (started(tmp_path), steps(1, 1.0, 2.0), split("valid", 2, {"Loss": 1.0}), steps(3, 3.0, 4.0, 5.0)):
        first.on_event(event)
    valid = split("valid", 4, {"Loss": 2.0})
    for event in (
        started(tmp_path, 2),
        steps(3, 3.0, 4.0),
        valid,
        steps(5, 5.0, 6.0),
        split("train", 6, {"Loss": 3.0}),
    ):
        second.on_event(event)
    assert first.received == [(1, 1.0), (2, 2.0), ("valid", 1, 2), (3, 3.0), (4, 4.0), (5, 5.0)]
    assert second.received == [("valid", 1, 4), (6, 6.0), ("train", 1, 6)]


def test_repeated_split_sends_new_values_only(tmp_path):
    """The cursor keeps the names of the values that were sent at the newest step, for a resumed run too."""
    ends = [split("custom", 10, values, at_step=10) for values in ({"a": 1.0}, {"a": 1.0, "b": 2.0}, {"c": 3.0})]
    later = split("custom", 20, {"a": 4.0}, at_step=20)
    first, second = Named(), Named()
    for event in (started(tmp_path), *ends[:2]):
        first.on_event(event)
    for event in (started(tmp_path, 9), *ends, later, ends[0]):
        second.on_event(event)
    assert first.received == [{"a": 1.0}, {"b": 2.0}]
    assert second.received == [{"c": 3.0}, {"a": 4.0}]


def test_pictures_are_sent_with_their_values_only(tmp_path):
    class Drawn(Server):
        def send_split(self, event):
            self.received.append({name: draw() for name, draw in event.pictures.items()})

    logger, draws = Drawn(), {"a": lambda: "picture of a", "b": lambda: "picture of b"}
    logger.on_event(started(tmp_path))
    logger.on_event(split("custom", 10, {"a": "1"}, at_step=10, pictures={"a": draws["a"]}))
    logger.on_event(split("custom", 10, {"a": "1", "b": "2", "c": 3.0}, at_step=10, pictures=draws))
    assert logger.received == [{"a": "picture of a"}, {"b": "picture of b"}]


def test_thinning_is_the_same_after_resuming(tmp_path):
    first, second = Server(every_steps=2), Server(every_steps=2)
    for logger, event in ((first, started(tmp_path)), (first, steps(1, 1.0, 2.0, 3.0, 4.0))):
        logger.on_event(event)
    for event in (started(tmp_path, 1), steps(2, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)):
        second.on_event(event)
    assert (first.received, second.received) == ([(2, 2.0), (4, 4.0)], [(6, 6.0)])


def test_cursor_advances_after_successful_uploads_only(tmp_path):
    cursor = UploadCursor(tmp_path / "server.json")
    cursor.id, cursor.step = "a", 4
    with cursor.uploading():
        assert UploadCursor(tmp_path / "server.json").step == 4, "it is noted before"
    cursor.step = 9
    with pytest.raises(ConnectionError), cursor.uploading():
        raise ConnectionError
    assert UploadCursor(tmp_path / "server.json").step == 4
    cursor.step = 12
    with cursor.uploading():
        pass
    assert UploadCursor(tmp_path / "server.json").step == 12


def test_no_cursor_file_before_the_first_upload(tmp_path):
    cursor = UploadCursor(tmp_path / "server.json")
    with pytest.raises(ConnectionError), cursor.uploading():
        raise ConnectionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "[]", '{"id": 5, "step": 1, "row": 1, "splits": {}}', '{"id": "a"}', NAMES])
def test_damaged_cursor_file_raises(tmp_path, content):
    (tmp_path / "server.json").write_text(content)
    with raises_code("logger-state-damaged", "server.json"):
        UploadCursor(tmp_path / "server.json")


def test_the_file_is_json(tmp_path):
    logger = Server()
    for event in (started(tmp_path), steps(1, 1.0, 2.0), split("valid", 2, {"Loss": 1.0})):
        logger.on_event(event)
    cursor = json.loads((tmp_path / "server.json").read_text())
    assert (cursor["step"], cursor["splits"], cursor["names"]) == (2, {"valid": [1, 2]}, {"valid": ["Loss"]})


def test_links_are_not_followed(tmp_path):
    (tmp_path / "server.json").symlink_to(tmp_path / "elsewhere")
    with raises_code("run-file-kind"):
        UploadCursor(tmp_path / "server.json")
