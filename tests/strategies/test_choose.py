"""The rule that `devices(...)` follows."""

import jax
import pytest

from learner.errors import LearnerError
from learner.strategies import Replicated, Sharded, SingleDevice, choose_devices


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
def test_devices_are_chosen_by_number_by_id_or_by_themselves(devices, expected):
    strategy = choose_devices(devices)
    assert [device.id for device in strategy.devices] == expected
    assert type(strategy) is (SingleDevice if len(expected) == 1 else Replicated)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (9, r"devices asks for 9, and there are 8: cpu:0, cpu:1"),
        (0, r"devices is 0; it needs a number of devices, \"all\""),
        (-1, r"devices asks for -1"),
        ([], r"devices is \[\]"),
        (True, r"devices is True"),
        ("some", r"devices is 'some'"),
        (1.0, r"devices is 1\.0"),
        (["cpu"], r"devices is \['cpu'\]"),
        ([0, 8], r"there is no device with the id 8; there are: cpu:0"),
        ([1, jax.devices()[1]], r"devices names .* twice"),
    ],
)
def test_what_is_no_device_is_an_error(devices, message):
    with pytest.raises(LearnerError, match=message):
        choose_devices(devices)


def test_strategies_take_numbers_and_ids_too():
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
    ("devices", "message"), [([0, 0], "twice"), ([8], "no device with the id 8"), (9, "asks for 9")]
)
def test_strategies_refuse_what_is_no_device(make, devices, message):
    with pytest.raises(LearnerError, match=message):
        make(devices)


def test_one_device_is_refused_in_the_same_way():
    with pytest.raises(LearnerError, match="no device with the id 8"):
        SingleDevice(8)
