"""Metrics of the machine that a run is on: utilization and memory.

They are read periodically during training and validation; a step in between has the last reading. Values that a process
cannot read (CPU devices do not report their memory) are NaN, and the run logs the reason once.
"""

import abc
import math
from collections.abc import Sequence

import jax

from learner.errors import LearnerError
from learner.metrics.base import HostMetric
from learner.metrics.class_arguments import metric_name
from learner.util.number_checks import is_number
from learner.util.optional import import_optional

MB = 1e6  # bytes


class _Reading(HostMetric):
    """A value read at the first steps of a split, and then after every `every` seconds of steps."""

    higher_is_better = None

    def __init__(self, every: float = 1.0) -> None:
        if not is_number(every) or not 0 <= every < math.inf:
            raise LearnerError(
                f"every of {type(self).__name__} is {every!r}; it needs seconds, 0 or more",
                code="metric-every-value",
                every=every,
            )
        self._every = every
        self._waited, self._now = math.inf, math.nan
        self.reset()

    def update(self, steps: int, seconds: float) -> float:
        """Return the newest reading, after a new one if it is due."""
        self._waited += seconds
        if self._waited >= self._every:
            self._waited, self._now = 0.0, self._read()
        return self._now

    def reset(self) -> None:
        """Start a new epoch."""
        self._waited, self._now = math.inf, math.nan

    @abc.abstractmethod
    def _read(self) -> float:
        """Return a new reading."""


class _Most(_Reading):
    """A reading whose value for an epoch is the maximum."""

    _largest = math.nan

    def update(self, steps: int, seconds: float) -> float:
        """Return the newest reading, after a new one if it is due."""
        now = super().update(steps, seconds)
        self._largest = now if math.isnan(self._largest) else max(self._largest, now)
        return now

    def compute(self) -> float:
        """Return the largest reading of the epoch so far; NaN without readings."""
        return self._largest

    def reset(self) -> None:
        """Start a new epoch."""
        super().reset()
        self._largest = math.nan


class HostCPU(_Reading):
    """The utilization of the machine's processors, from 0 to 1: busy core seconds over core seconds, by all processes.

    The value of a step is the utilization between the last two readings, that of an epoch the utilization from its
    first to its last reading. An epoch that ends before a second reading counts from the epoch before. Requires psutil
    (extra `system`).

    Args:
      every: the number of seconds between readings.

    Raises:
      LearnerError: psutil is not installed; `every` is not a number of seconds.

    >>> cpu = HostCPU()
    >>> cpu.name, cpu.unit
    ('Host CPU', '')
    """

    name = "Host CPU"
    unit = ""
    description = "how busy the machine's processors are, 0 to 1"
    undefined = "the processors' clocks did not move"

    def __init__(self, every: float = 1.0) -> None:
        import_optional("psutil", "system", type(self).__name__)
        self._last = _core_seconds()
        self._first: tuple[float, float] | None = None
        self._total = 0.0, 0.0
        super().__init__(every)

    def _read(self) -> float:
        now = _core_seconds()
        seconds = now[1] - self._last[1]
        if seconds <= 0:
            return self._now
        # The difference of two large sums is rounded, and Linux's counter of I/O wait can decrease.
        busy = min(max(now[0] - self._last[0], 0.0), seconds)
        self._last = now
        if self._first is None:
            self._first = busy, seconds
        else:
            self._total = self._total[0] + busy, self._total[1] + seconds
        return busy / seconds

    def compute(self) -> float:
        """Return the mean over the epoch so far; NaN before the first reading."""
        busy, seconds = self._total if self._total[1] > 0 else self._first or (math.nan, 1.0)
        return busy / seconds

    def reset(self) -> None:
        """Start a new epoch."""
        super().reset()
        self._first, self._total = None, (0.0, 0.0)


class HostMemory(_Most):
    """The main memory of the process, in MB (10⁶ bytes): its resident set. The value of an epoch is the largest
    reading.

    It covers the run's own process, not its worker processes. Requires psutil (extra `system`).

    Args:
      every: the number of seconds between readings.

    Raises:
      LearnerError: psutil is not installed; `every` is not a number of seconds.

    >>> memory = HostMemory()
    >>> memory.update(steps=1, seconds=0.5) > 10   # Python and JAX take more
    True
    """

    name = "Host Memory"
    unit = "MB"
    description = "main memory that the process takes; of an epoch: the most"
    undefined = "it was not read: there was no step"

    def __init__(self, every: float = 1.0) -> None:
        import_optional("psutil", "system", type(self).__name__)
        super().__init__(every)

    def _read(self) -> float:
        memory: float = import_optional("psutil", "system", "HostMemory").Process().memory_info().rss / MB
        return memory


class DeviceMemory(_Most):
    """The peak memory of the process on a device so far, in MB (10⁶ bytes), on the fullest device.

    It is JAX's `peak_bytes_in_use`, which includes the temporary memory of programs, and never falls. It is NaN for
    devices without such a counter, such as CPUs.

    Args:
      every: the number of seconds between readings.

    Raises:
      LearnerError: `every` is not a number of seconds.

    >>> memory = DeviceMemory()
    >>> memory.name, memory.unit
    ('Device Memory', 'MB')
    """

    name = "Device Memory"
    unit = "MB"
    description = "peak memory in use on a device so far"
    undefined = "the devices do not say how much memory they use (CPUs do not)"

    def _read(self) -> float:
        known = [stats.get("peak_bytes_in_use") for device in jax.local_devices() if (stats := device.memory_stats())]
        peaks = [float(peak) for peak in known if peak is not None]
        return max(peaks) / MB if peaks else math.nan


class GPUUse(_Reading):
    """The utilization of the GPUs, from 0 to 1: the fraction of time in which a kernel was running, mean over GPUs.

    It is NVML's `utilization.gpu`, over up to a second before a reading. The value of an epoch is the mean of its
    readings. Requires nvidia-ml-py (extra `system`); without an NVIDIA driver it is NaN.

    Args:
      gpus: the indices of the GPUs, as in `nvidia-smi`; default: all GPUs of the machine.
      every: the number of seconds between readings.

    Raises:
      LearnerError: nvidia-ml-py is not installed, or a GPU does not exist; `every` is not a number of seconds.
    """

    name = "GPU Use"
    unit = ""
    description = "part of the time in which a GPU was computing, 0 to 1, mean over GPUs"
    undefined = "there is no NVIDIA GPU, or its driver does not say how busy it is"

    def __init__(self, gpus: Sequence[int] | None = None, every: float = 1.0) -> None:
        nvml = import_optional("pynvml", "system", type(self).__name__, "nvidia-ml-py")
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            count = 0
        if count and (absent := [gpu for gpu in gpus or () if gpu not in range(count)]):
            raise LearnerError(
                f"gpus of GPUUse has {absent}; the machine's are {list(range(count))}", code="metric-gpu-unknown"
            )
        self._gpus = list(range(count)) if gpus is None or not count else list(gpus)
        self.name = metric_name(self.name, [str(gpu) for gpu in gpus or ()])
        self._total, self._count = 0.0, 0
        super().__init__(every)

    def _read(self) -> float:
        nvml = import_optional("pynvml", "system", type(self).__name__, "nvidia-ml-py")
        used = []
        for gpu in self._gpus:
            try:
                used.append(nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByIndex(gpu)).gpu / 100)
            except nvml.NVMLError:
                return math.nan
        now = sum(used) / len(used) if used else math.nan
        self._total, self._count = self._total + now, self._count + 1
        return now

    def compute(self) -> float:
        """Return the mean of the epoch's readings so far; NaN without readings."""
        return self._total / self._count if self._count else math.nan

    def reset(self) -> None:
        """Start a new epoch."""
        super().reset()
        self._total, self._count = 0.0, 0


def _core_seconds() -> tuple[float, float]:
    """Return the core seconds since the machine was started: busy, and total."""
    times = import_optional("psutil", "system", "HostCPU").cpu_times()
    # The time of guests is included in the user's time.
    total = sum(times) - getattr(times, "guest", 0) - getattr(times, "guest_nice", 0)
    return total - times.idle - getattr(times, "iowait", 0), total
