"""Tests of metrics of the machine: CPU, memory, devices and GPUs, mostly with simulated readings."""

import collections
import copy
import math
import mmap
import sys

import jax
import numpy as np
import psutil
import pytest

from learner.metrics import DeviceMemory, GPUUse, HostCPU, HostMemory
from learner.metrics.system import _Most
from tests.support.codes import raises_code

Times = collections.namedtuple("Times", ["user", "system", "idle", "iowait", "guest"])


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose element is the CPU times that psutil returns."""
    times = [Times(10.0, 0.0, 90.0, 0.0, 0.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda: times[0])
    return times


def test_share_of_busy_cores(clock):
    metric = HostCPU(every=1.0)
    clock[0] = Times(11.0, 1.0, 91.0, 1.0, 0.0)
    assert metric.update(5, 0.5) == 0.5  # 2 of 4 core seconds since __init__
    clock[0] = Times(20.0, 1.0, 92.0, 1.0, 0.0)
    assert metric.update(5, 0.5) == 0.5  # no reading after half a second
    assert metric.update(5, 0.5) == 0.9
    clock[0] = Times(20.0, 1.0, 92.0, 11.0, 0.0)
    assert metric.update(5, 1.0) == 0.0  # waiting for a disk is idle
    assert metric.compute() == 9 / 20  # from the first reading on


def test_epoch_with_one_reading(clock):
    metric = HostCPU()
    assert math.isnan(metric.compute())
    clock[0] = Times(13.0, 0.0, 91.0, 0.0, 0.0)
    metric.update(1, 0.1)
    assert metric.compute() == 0.75
    metric.reset()
    assert math.isnan(metric.compute())
    clock[0] = Times(14.0, 0.0, 94.0, 0.0, 0.0)
    assert (metric.update(1, 0.1), metric.compute()) == (0.25, 0.25)


def test_guest_time_and_unchanged_clock(clock):
    metric = HostCPU(every=0)
    assert math.isnan(metric.update(1, 0.1))
    clock[0] = Times(12.0, 0.0, 92.0, 0.0, 2.0)
    assert metric.update(1, 0.1) == 0.5  # the user's time contains the guest's 2 seconds
    assert metric.update(1, 0.1) == 0.5


def test_values_are_between_0_and_1(clock):
    metric = HostCPU(every=0)
    clock[0] = Times(20.0, 0.0, 90.0, -1.0, 0.0)  # Linux's iowait may run backwards
    assert (metric.update(1, 0.1), metric.compute()) == (1.0, 1.0)
    clock[0] = Times(19.0, 0.0, 95.0, -1.0, 0.0)
    assert (metric.update(1, 0.1), metric.compute()) == (0.0, 0.0)


def test_rounding_does_not_exceed_1(clock):
    clock[0] = Times(58142.03, 1680.0, 24795.32, 9876.25, 0.0)
    metric = HostCPU(every=0)
    clock[0] = Times(58142.10, 1680.0, 24795.32, 9876.25, 0.0)  # the difference of sums is 1.0000000002 of the other
    assert 0.99 < metric.update(1, 0.1) <= 1
    assert metric.compute() <= 1


def test_real_cpu_use():
    busy = lambda: psutil.cpu_times().user + getattr(psutil.cpu_times(), "nice", 0)  # noqa: E731
    metric = HostCPU(every=0)
    end = busy() + 0.05
    while busy() < end:  # under `nice`, too
        sum(range(10_000))
    assert 0 < metric.update(1, 0.1) <= 1


def test_real_memory_use():
    metric = HostMemory(every=0)
    before = metric.update(1, 0.1)
    # mmap takes new memory from the system: an array might reuse memory of this process.
    array = np.frombuffer(mmap.mmap(-1, 50_000_000), np.uint8)
    array[:] = 1
    assert 40 < metric.update(1, 0.1) - before < 80
    most = metric.compute()
    del array
    metric.update(1, 0.1)
    assert metric.compute() >= most > before
    metric.reset()
    assert math.isnan(metric.compute())
    assert HostMemory.unit == "MB"


class Readings(_Most):
    def __init__(self, *numbers):
        self.numbers = list(numbers)
        super().__init__(1.0)

    def _read(self):
        return self.numbers.pop(0)


def test_first_update_after_reset_reads():
    metric = Readings(3.0, 5.0, 4.0, 1.0)
    assert [metric.update(1, seconds) for seconds in (0.1, 0.5, 0.5, 0.9, 0.1)] == [3.0, 3.0, 5.0, 5.0, 4.0]
    assert metric.compute() == 5.0
    metric.reset()
    assert (metric.update(1, 0.1), metric.compute()) == (1.0, 1.0)


def test_devices_without_memory_stats_are_nan():
    metric = DeviceMemory()
    assert jax.devices()[0].memory_stats() is None
    assert math.isnan(metric.update(1, 0.1))
    assert math.isnan(metric.compute())
    assert "CPUs do not" in metric.undefined


class Device:
    def __init__(self, **stats):
        self.stats = stats

    def memory_stats(self):
        return self.stats


def test_value_is_of_the_fullest_device(monkeypatch):
    devices = [
        Device(peak_bytes_in_use=5_000_000, bytes_in_use=1),
        Device(peak_bytes_in_use=7_000_000),
        Device(other=1),
    ]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    metric = DeviceMemory()
    assert (metric.update(1, 0.1), metric.compute()) == (7.0, 7.0)


@pytest.mark.parametrize("make", [HostCPU, HostMemory, GPUUse])
def test_missing_package_raises_with_install_command(make, monkeypatch):
    for name in ("psutil", "pynvml"):
        monkeypatch.setitem(sys.modules, name, None)
    with raises_code("package-missing", make.__name__, "[system"):
        make()


class Nvml:
    """The functions of pynvml that GPUUse calls, with three GPUs."""

    class NVMLError(Exception):
        pass

    used = [20, 40, 90]

    def __init__(self, count=3):
        self.count = count

    def nvmlInit(self):  # noqa: N802
        if not self.count:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self):  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        return collections.namedtuple("Rates", "gpu")(self.used[handle])


def test_mean_over_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert GPUUse().update(1, 0.1) == 0.5
    some = GPUUse(gpus=[0, 2], every=0)
    assert (GPUUse().name, some.name) == ("GPU Use", "GPU Use (0, 2)")
    monkeypatch.setattr(Nvml, "used", [20, 40, 90])
    assert some.update(1, 0.1) == pytest.approx(0.55)
    monkeypatch.setattr(Nvml, "used", [0, 40, 10])
    assert some.update(1, 0.1) == pytest.approx(0.05)
    assert some.compute() == pytest.approx(0.3)
    with raises_code("metric-gpu-unknown", "[3]", "[0, 1, 2]"):
        GPUUse(gpus=[1, 3])


def test_value_without_gpus_is_nan(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(0))
    metric = GPUUse()
    assert math.isnan(metric.update(1, 0.1))
    assert math.isnan(metric.compute())
    assert "no NVIDIA GPU" in metric.undefined


@pytest.mark.parametrize("every", [-1.0, math.nan, math.inf, "1", True])
def test_wrong_intervals(every):
    with raises_code("metric-every-value", "HostMemory"):
        HostMemory(every=every)


def test_metrics_can_be_copied():
    for metric in (HostCPU(), HostMemory(), DeviceMemory()):
        assert copy.deepcopy(metric).update(1, 0.1) is not None
