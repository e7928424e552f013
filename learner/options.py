"""All options of a run, as the builder leaves them."""

import copy
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learner.checkpoint.options import CheckpointOptions
from learner.events import Listener, MetricInfo
from learner.metrics.base import HostMetric, MetricBase
from learner.steps.finite import RAISES, Watch
from learner.stopping import Interrupter, MetricEarlyStopping

DEFAULT_CHECKPOINTS = CheckpointOptions(keep_last=1, keep_best=1, every_epochs=None, epoch_ends_after=60.0)


@dataclasses.dataclass
class Options:
    """See `LearnerBuilder` for what each means."""

    directory: Path
    overwrite: bool = False
    train_metrics: list[MetricBase] = dataclasses.field(default_factory=list)
    valid_metrics: list[MetricBase] = dataclasses.field(default_factory=list)
    plotted: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    loggers: list[Listener] = dataclasses.field(default_factory=list)
    renderer: Listener | str | None = "auto"
    accumulate: int = 1
    steps_per_dispatch: int | None = None
    checkpoints: CheckpointOptions | None = DEFAULT_CHECKPOINTS
    num_epochs: int | None = None
    num_steps: int | None = None
    valid_every: int | None = None
    devices: Any = None
    start: dict[str, Any] | None = None
    initial: dict[str, Any] | None = None
    early_stopping: list[MetricEarlyStopping] = dataclasses.field(default_factory=list)
    interrupter: Interrupter | None = None
    on_sigterm: str = "exit"
    on_save_error: str = "raise"
    on_nonfinite: Watch = RAISES
    watchdog: float | None = None
    watchdog_ends: bool = False
    time_limit: float | None = None
    job_ends: float | None = None
    on_epoch_end: list[Callable[..., Any]] = dataclasses.field(default_factory=list)
    every: list[tuple[int, Callable[..., Any]]] = dataclasses.field(default_factory=list)
    seed: int = 0
    batch_size: int | None = None
    application_logger: logging.Logger | bool | None = True
    compilation_cache: str | None = None
    show_summary: bool = False
    config_text: str | None = None

    @property
    def checkpoint_place(self) -> str | Path:
        """Where checkpoints go: an absolute path, or one that Orbax knows (`gs://...`)."""
        given = None if self.checkpoints is None else self.checkpoints.directory
        if given is not None and "://" in given:
            return given
        return (self.directory / "checkpoint" if given is None else Path(given)).absolute()

    def copy(self) -> "Options":
        """Options of their own for a learner: what the builder is told later does not reach it."""
        own: dict[str, Any] = {
            f.name: copy.copy(value)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), list | set)
        }
        own["early_stopping"] = copy.deepcopy(self.early_stopping)
        return dataclasses.replace(self, **own)

    def metrics_of(self, split: str) -> list[MetricBase]:
        """The metrics of a split by its name; each split has its own of those that count on the host."""
        metrics = self.train_metrics if split == "train" else self.valid_metrics
        return [copy.deepcopy(m) if isinstance(m, HostMetric) else m for m in metrics]

    def metric_infos(self, splits: list[str]) -> tuple[MetricInfo, ...]:
        """What is known of every metric of these splits."""
        infos = []
        for split in splits:
            kind = "train" if split == "train" else "valid"
            for m in self.metrics_of(split):
                plotted = m.numeric and (kind, m.name) in self.plotted
                infos.append(MetricInfo(split, m.name, m.unit, m.higher_is_better, m.numeric, plotted))
        return tuple(infos)
