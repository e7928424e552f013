"""Metrics of a run's speed."""

import abc
import math
import re

from learner.errors import LearnerError
from learner.metrics.base import HostMetric, StepWork
from learner.util.number_checks import is_finite


class _PerSecond(HostMetric):
    """An amount per second. The value of an epoch is its total amount over its total time.

    The time of steps is that of the run's summary: it excludes compiling, and waiting for batches while the device is
    idle. The summary lists both separately.
    """

    higher_is_better = True
    undefined = "the clock did not move"

    def __init__(self) -> None:
        self._rows, self._weight = 0, 0.0  # of the steps that the next `update` covers
        self.reset()

    def on_batches(self, rows: int, weight: float) -> None:
        """Receive the rows and the weight of the steps that the next `update` covers."""
        self._rows, self._weight = rows, weight

    def update(self, steps: int, seconds: float) -> float:
        """Return the amount per second of these steps; NaN if the clock did not move."""
        amount = self._amount(steps)
        self._total += amount
        self._seconds += seconds
        return _per_second(amount, seconds)

    @abc.abstractmethod
    def _amount(self, steps: int) -> float:
        """Return the amount counted for these steps."""

    def compute(self) -> float:
        """Return the mean per second over the epoch so far; NaN before the first step."""
        return _per_second(self._total, self._seconds)

    def reset(self) -> None:
        """Start a new epoch."""
        self._total = 0.0
        self._seconds = 0.0


class IterationSpeed(_PerSecond):
    """Optimizer steps (in validation: batches) per second. The value of an epoch is its steps over their total time,
    excluding compiling and waiting for batches.

    >>> speed = IterationSpeed()
    >>> speed.update(steps=30, seconds=0.5)
    60.0
    >>> speed.update(steps=30, seconds=1.5)
    20.0
    >>> speed.compute()
    30.0
    """

    name = "Iteration Speed"
    unit = "steps/s"
    description = "optimizer steps (in validation: batches) per second"

    def _amount(self, steps: int) -> float:
        return steps


class RowsPerSecond(_PerSecond):
    """Rows of the batches per second: the length of their leading axis, including masked rows. The value of an epoch is
    its rows over the total time of its steps.

    It counts the rows of all micro-batches, devices and processes. The time excludes compiling and waiting for batches.

    >>> speed = RowsPerSecond()
    >>> speed.on_batches(rows=960, weight=960.0)
    >>> speed.update(steps=30, seconds=0.5)
    1920.0
    """

    name = "Rows per Second"
    unit = "rows/s"
    description = "rows of the batches per second"

    def _amount(self, steps: int) -> float:
        return self._rows


class TokensPerSecond(_PerSecond):
    """Tokens per second. The number of tokens is the sum of the outputs' `weight`. The value of an epoch is its tokens
    over the total time of its steps.

    The weight of a `SequenceOutput` is the number of tokens that its mask keeps, so that padding does not count. If the
    loss is a mean over rows, the weight, and so this metric, counts rows. The time excludes compiling and waiting for
    batches.

    >>> speed = TokensPerSecond()
    >>> speed.on_batches(rows=64, weight=5120.0)
    >>> speed.update(steps=2, seconds=0.5)
    10240.0
    """

    name = "Tokens per Second"
    unit = "tokens/s"
    description = "what the loss is a mean over (tokens that are not masked) per second"

    def _amount(self, steps: int) -> float:
        return self._weight


PEAKS = (
    ("H200|H100 80GB HBM3|H100 SXM|GH200", 989e12),
    ("H100 NVL", 835e12),
    ("H100 PCIe", 756e12),
    ("B200|GB200", 2250e12),
    ("A100", 312e12),
    ("V100", 125e12),
    ("L40S", 362e12),
    (r"\bL4\b", 121e12),
    (r"\bT4\b", 65e12),
    ("TPU v6 lite|TPU v6e", 918e12),
    ("TPU v5 lite|TPU v5e", 197e12),
    ("TPU v5", 459e12),
    ("TPU v4", 275e12),
)
"""Dense FLOPs per second of one device in bfloat16 (V100 and T4: float16), by its kind; from data sheets."""


class FlopsPerSecond(RowsPerSecond):
    """Floating-point operations of the model per second, over all devices: the operations of the traced train step
    (forward, backward, update), times the number of steps, over their time. A batch with fewer rows counts
    proportionally.

    Operations that rematerialization (`remat` of the builder) repeats do not count. Operations that cannot be counted,
    such as those of kernels, are missing: `learner summary CONFIG` reports if there are any. The time excludes
    compiling and waiting for batches.
    """

    name = "FLOPs per Second"
    unit = "FLOP/s"
    description = "floating-point operations of the training steps per second, over all devices"
    splits = ("train",)

    def __init__(self) -> None:
        super().__init__()
        self._per_row = math.nan

    def on_start(self, work: StepWork) -> None:
        """Count the operations of a step."""
        self._per_row = work.flops() / work.rows

    def _amount(self, steps: int) -> float:
        return super()._amount(steps) * self._per_row


class ModelFlopsUtilization(FlopsPerSecond):
    """Model FLOPs utilization (MFU), 0 to 1: `FlopsPerSecond` over the peak of the devices.

    Args:
      peak: FLOPs per second of one device in the precision of the run. Default: the dense peak in bfloat16 of the
        device's kind; NaN for kinds that are not in `learner.metrics.speed.PEAKS`, such as a CPU.

    >>> mfu = ModelFlopsUtilization(peak=1e12)
    >>> mfu.on_start(StepWork(flops=lambda: 32 * 10**9, rows=32, devices=2, device_kind="cpu"))
    >>> mfu.on_batches(rows=320, weight=320.0)
    >>> mfu.update(steps=10, seconds=0.5)
    0.32
    """

    name = "Model FLOPs Utilization"
    unit = ""
    description = "floating-point operations per second over the peak of the devices, 0 to 1"
    undefined = "the peak of this kind of device is not known: give it, ModelFlopsUtilization(peak=...)"

    def __init__(self, peak: float | None = None) -> None:
        super().__init__()
        if peak is not None and not (is_finite(peak) and peak > 0):
            raise LearnerError(
                f"peak of ModelFlopsUtilization is {peak!r}; it needs FLOPs per second of one device, such as 312e12",
                code="metric-peak-value",
                peak=peak,
            )
        self._peak = peak

    def on_start(self, work: StepWork) -> None:
        """Count the operations of a step, and find the peak of the devices."""
        peak = self._peak if self._peak is not None else peak_of(work.device_kind)
        self._per_row = math.nan if peak is None else work.flops() / work.rows / (peak * work.devices)


def peak_of(device_kind: str) -> float | None:
    """Return the dense FLOPs per second of a device in bfloat16, or None for an unknown kind.

    >>> peak_of("NVIDIA A100-SXM4-80GB"), peak_of("TPU v5 lite"), peak_of("cpu")
    (312000000000000.0, 197000000000000.0, None)
    """
    return next((peak for pattern, peak in PEAKS if re.search(pattern, device_kind)), None)


def _per_second(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else math.nan
