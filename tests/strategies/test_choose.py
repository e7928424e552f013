"""Tests of how `devices(...)` and the strategies choose devices."""

import jax
import numpy as np
import pytest

from learner.strategies import Replicated, Sharded, SingleDevice, choose_devices
from tests.support.codes import raises_code


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (None, [0]),
        (1, [0]),
        (3, [0, 1, 2]),
        ("all", list(range(8))),
        ([5], [5]),
        ((jax.devices()[3], jax.devices()[1]), [3, 1]),
        ([jax.devices()[2], 4], [2, 4]),
    ],
)
def test_devices_are_chosen_by_count_by_id_or_as_objects(devices, expected):
    strategy = choose_devices(devices)
    assert [device.id for device in strategy.devices] == expected
    assert type(strategy) is (SingleDevice if len(expected) == 1 else Replicated)


@pytest.mark.parametrize(
    ("devices", "code", "fields"),
    [
        (9, "device-too-few", {"devices": 9}),
        (0, "device-choice-malformed", {"devices": 0}),
        (-1, "device-too-few", {"devices": -1}),
        ([], "device-choice-malformed", {"devices": []}),
        (np.array([0, 1]), "device-choice-malformed", {}),
        (True, "device-choice-malformed", {"devices": True}),
        ("some", "device-choice-malformed", {"devices": "some"}),
        (1.0, "device-choice-malformed", {"devices": 1.0}),
        (["cpu"], "device-choice-malformed", {"devices": ["cpu"]}),
        ([0, 8], "device-unknown", {"device": 8}),
        ([1, jax.devices()[1]], "device-twice", {}),
    ],
)
def test_unusable_devices_are_refused(devices, code, fields):
    with raises_code(code, **fields):
        choose_devices(devices)


def test_strategies_accept_counts_and_ids():
    ids = {
        (3, 1): Replicated([3, jax.devices()[1]]),
        (0, 1): Replicated(2),
        (2, 5): Sharded({"data": 2}, devices=[2, 5]),
        (0, 1, 2): Sharded(devices=3),
        (4,): SingleDevice(4),
    }
    for expected, strategy in ids.items():
        assert tuple(device.id for device in strategy.devices) == expected


@pytest.mark.parametrize("make", [Replicated, lambda devices: Sharded(devices=devices)])
@pytest.mark.parametrize(
    ("devices", "code"), [([0, 0], "device-twice"), ([8], "device-unknown"), (9, "device-too-few")]
)
def test_strategies_refuse_unusable_devices(make, devices, code):
    with raises_code(code):
        make(devices)


def test_unknown_single_device_is_refused():
    with raises_code("device-unknown", device=8):
        SingleDevice(8)
