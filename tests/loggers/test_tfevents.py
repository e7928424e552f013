"""Tests of TensorBoard's records with unusual values; `test_tensorboard` has the others."""

import datetime
import json

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from learner.loggers.tfevents import Records


@pytest.fixture
def written():
    """Return a writer of records, and the list of events that it fills."""
    events = []
    return Records(lambda record: events.append(Event.FromString(record))), events


def test_texts_that_utf_8_cannot_encode(written):
    records, events = written
    records.text("a\ud800", "b\udfff\nc", 1.0, 2)
    (value,) = events[0].summary.value
    assert value.tag == "a?/text_summary"
    assert value.tensor.string_val[0].decode() == "    b?\n    c"


def test_mappings_of_values_that_json_lacks(written):
    records, events = written
    records.text("a", {"day": datetime.date(2026, 1, 2), "nan": float("nan")}, 1.0, 2)
    content = json.loads(events[0].summary.value[0].tensor.string_val[0].decode())
    assert content == {"day": "2026-01-02", "nan": "NaN"}


def test_settings_of_all_kinds(written):
    records, events = written
    config = {"n": 3, "large": 10**30, "name\ud800": "x\ud800", "days": [datetime.date(2026, 1, 2)], "none": None}
    config |= {"missing": float("nan"), "rate": 0.5}
    records.settings(config, [("valid", "epoch/Loss")], 1.0)(5.0)
    data = [HParamsPluginData.FromString(event.summary.value[0].metadata.plugin_data.content) for event in events]
    (metric,) = data[0].experiment.metric_infos
    assert (metric.name.group, metric.name.tag) == ("valid", "epoch/Loss")  # the directory, and the tag in it
    hparams = data[1].session_start_info.hparams
    assert hparams["n"].number_value == 3
    assert hparams["large"].string_value == "1" + "0" * 30
    assert hparams["name?"].string_value == "x?"
    assert hparams["days"].string_value == '["2026-01-02"]'
    assert hparams["missing"].string_value == "NaN"
    assert hparams["rate"].number_value == 0.5
    assert "none" not in hparams
    assert [event.wall_time for event in events] == [1.0, 1.0, 5.0]
