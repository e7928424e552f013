"""All options of a run, as the builder leaves them."""

import copy
import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learner.checkpoint.options import CheckpointOptions
from learner.events import Listener, MetricInfo
from learner.metrics import Loss
from learner.metrics.base import HostMetric, MetricBase
from learner.steps.finite import RAISES, NonFinitePolicy
from learner.steps.precision import FLOAT32, Policy
from learner.steps.remat import remat_name
from learner.training.profile import Window
from learner.training.stopping import Interrupter, MetricEarlyStopping

LONGEST_CHAIN = 40  # of links, as in Linux
DEFAULT_CHECKPOINTS = CheckpointOptions(keep_last=1, keep_best=1, every_epochs=None, epoch_ends_after=60.0)


@dataclasses.dataclass
class Options:
    """See `LearnerBuilder` for what each means."""

    directory: Path  # absolute, so that a hook may change the working directory
    overwrite: bool = False
    shown: str = ""  # the directory as the user wrote it
    train_metrics: list[MetricBase] = dataclasses.field(default_factory=list)
    valid_metrics: list[MetricBase] = dataclasses.field(default_factory=list)
    loggers: list[Listener] = dataclasses.field(default_factory=list)
    metric_files: bool = True
    renderer: Listener | str | None = "auto"
    accumulate: int = 1
    steps_per_dispatch: int | None = None
    checkpoints: CheckpointOptions | None = DEFAULT_CHECKPOINTS
    num_epochs: int | None = None
    num_steps: int | None = None
    valid_every: int | None = None
    valid_batches: int | None = None
    devices: Any = None
    start: dict[str, Any] | None = None
    initial: dict[str, Any] | None = None
    early_stopping: list[MetricEarlyStopping] = dataclasses.field(default_factory=list)
    interrupter: Interrupter | None = None
    on_sigterm: str = "exit"
    on_save_error: str = "raise"
    on_nonfinite: NonFinitePolicy = RAISES
    profile: Window | None = None
    watchdog: float | None = None
    watchdog_ends: bool = False
    time_limit: float | None = None
    job_ends: float | None = None
    on_epoch_end: list[Callable[..., Any]] = dataclasses.field(default_factory=list)
    every: list[tuple[int, Callable[..., Any]]] = dataclasses.field(default_factory=list)
    precision: Policy = FLOAT32
    matmul: str | None = None
    remat: Callable[..., Any] | None = None
    freeze: tuple[Any, ...] = ()
    seed: int = 0
    batch_size: int | None = None
    application_logger: logging.Logger | bool | None = True
    compilation_cache: str | None = None
    show_summary: bool = False
    summary_depth: int | None = None
    learner_class: Any = None
    config_text: str | None = None
    config_kept: str | None = None  # without the arguments of loggers, which may be secret
    config_private: bool = False

    def __post_init__(self) -> None:
        self.shown = self.shown or str(self.directory)
        self.directory = resolved(self.directory)

    @property
    def checkpoint_place(self) -> str | Path:
        """Where checkpoints go: an absolute path, or one that Orbax knows (`gs://...`)."""
        given = None if self.checkpoints is None else self.checkpoints.directory
        if given is not None and "://" in given:
            return given
        return self.directory / "checkpoint" if given is None else Path(given).absolute()

    @property
    def precision_text(self) -> str:
        """How the steps are computed, for people."""
        matmul = "" if self.matmul is None else f", matrix products {self.matmul}"
        remat = "" if self.remat is None else f", rematerialised by {remat_name(self.remat)}"
        return f"{self.precision.description}{matmul}{remat}"

    def copy(self) -> "Options":
        """Options of their own for a learner: what the builder is told later does not reach it."""
        own: dict[str, Any] = {
            f.name: copy.copy(value)
            for f in dataclasses.fields(self)
            if isinstance(value := getattr(self, f.name), list | set)
        }
        own["early_stopping"] = copy.deepcopy(self.early_stopping)
        return dataclasses.replace(self, **own)

    def of_a_trial(self, directory: Path, steps: int, interrupter: Interrupter, *listeners: Listener) -> "Options":
        """Options of a short run that only the listeners look at: what it computes and where is as here, and it saves
        and shows nothing.
        """
        kept = ("accumulate", "steps_per_dispatch", "devices", "precision", "matmul", "remat", "seed", "batch_size")
        return Options(
            directory,
            **{name: getattr(self, name) for name in (*kept, "compilation_cache")},
            train_metrics=[Loss()],
            valid_metrics=[Loss()],
            loggers=list(listeners),
            renderer=None,
            checkpoints=None,
            num_steps=steps,
            interrupter=interrupter,
            on_nonfinite=NonFinitePolicy("ignore"),
            application_logger=None,
        )

    def metrics_of(self, split: str) -> list[MetricBase]:
        """The metrics of a split by its name; each split has its own of those that count on the host."""
        metrics = self.train_metrics if split == "train" else self.valid_metrics
        return [copy.deepcopy(m) if isinstance(m, HostMetric) else m for m in metrics]

    def metric_infos(self, splits: list[str]) -> tuple[MetricInfo, ...]:
        """What is known of every metric of these splits."""
        return tuple(
            MetricInfo(split, m.name, m.unit, m.higher_is_better, m.numeric)
            for split in splits
            for m in self.metrics_of(split)
        )


def absolute(path: str | Path) -> str:
    """Return an absolute path, also after the working directory has changed; a place that Orbax knows by a scheme
    stays as it is.

    >>> absolute("gs://bucket/run"), absolute("/runs/digits")
    ('gs://bucket/run', '/runs/digits')
    """
    return str(path) if "://" in str(path) else str(Path(path).absolute())


def resolved(directory: str | Path) -> Path:
    """Return an absolute path; where the last part of it is a link, the directory that it leads to. Links above it
    stay: machines of a cluster may resolve those differently.

    >>> resolved("/runs/digits")
    PosixPath('/runs/digits')
    """
    path = Path(directory).absolute()
    for _ in range(LONGEST_CHAIN):
        try:
            path = path.parent / path.readlink()
        except (OSError, ValueError):  # no link, or no path at all
            break
    return path
