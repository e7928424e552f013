"""The options of a run, as the builder sets them."""

import copy
import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from learner.checkpoint.retention import CheckpointOptions
from learner.events import Listener, MetricInfo
from learner.metrics.base import HostMetric, MetricBase
from learner.metrics.losses import Loss
from learner.schedules.plateau import ReduceOnPlateau
from learner.steps.batch_transforms import BatchTransform
from learner.steps.finite import RAISES, NonFinitePolicy
from learner.steps.model_transforms import ModelTransform
from learner.steps.precision import FLOAT32, Policy
from learner.steps.remat import remat_name
from learner.training.profile import Window
from learner.training.selection import Exploit, Halving
from learner.training.stopping import Interrupter, MetricEarlyStopping
from learner.training.valid_schedule import ValidPeriod, ValidSchedule
from learner.util.addresses import is_address

BACKWARD_ONLY = LOSS_SCALE, REMATERIALISED = ", loss scale ", ", rematerialised by "
"""The beginnings of those parts of a description of the precision that affect only the backward pass."""
NUMBERS = "custom/"  # the keys of numbers that hooks return, and loops log
LONGEST_CHAIN = 40  # symbolic links, as in Linux
DEFAULT_CHECKPOINTS = CheckpointOptions(
    keep_last=1, keep_best=1, every_epochs=None, every_seconds=600.0, epoch_ends_after=60.0
)


def option(default: Any, **records: str) -> Any:
    """Return a dataclass field for an option, with the records that contain it. The journal leaves out None.

    Args:
      default: the value of the option unless the builder sets it.
      **records: the name of the option in each record: `journal` is the config in the journal, which loggers get too,
        and which the processes of a run compare before it trains; `resume` is compared with the checkpoint that a run
        resumes from. See `Options.recorded`.
    """
    return dataclasses.field(default=default, metadata=records)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a run; the methods of `LearnerBuilder` document them.

    A new option is a method of the builder and a field here, whose metadata names the records that contain it.
    """

    directory: Path  # absolute, so that a hook may change the working directory
    overwrite: bool = False
    shown: str = ""  # the directory as the user wrote it
    train_metrics: tuple[MetricBase, ...] = ()
    valid_metrics: tuple[MetricBase, ...] = ()
    loggers: tuple[Listener, ...] = ()
    metric_files: bool = True
    renderer: Listener | str | None = "auto"
    num_epochs: int | None = option(None, journal="num_epochs")
    num_steps: int | None = option(None, journal="num_steps")
    valid_every: int | None = option(None, journal="valid_every")
    valid_epochs: int | None = option(None, journal="valid_every.epochs")
    # Fields of `ValidPeriod` by split.
    valid_splits: Mapping[str, Mapping[str, Any]] | None = option(None, journal="valid_every.splits")
    valid_first: bool | None = option(None, journal="valid_first")
    valid_batches: int | None = option(None, journal="valid_batches")
    valid_shuffle: bool | None = option(None, journal="valid_batches.shuffle")
    accumulate: int = option(1, journal="grads_accumulation", resume="micro-batches per step")
    # "auto" until the number is known.
    split: int | str | None = option(None, journal="grads_accumulation.split", resume="parts per micro-batch")
    steps_per_dispatch: int | None = option(None, journal="steps_per_dispatch")
    seed: int = option(0, journal="seed", resume="seed")
    batch_size: int | None = option(None, journal="with_batch_size")
    population: Any = None  # a `learner.training.population.Population`, whose members have options of their own
    halving: Halving | None = None
    exploit: Exploit | None = None
    checkpoints: CheckpointOptions | None = DEFAULT_CHECKPOINTS
    restore_best: bool | None = option(None, journal="restore_best")
    devices: Any = None
    start: dict[str, Any] | None = None
    epoch_changes: tuple[tuple[int, int], ...] = ()  # see `RunLength.changes`; set when a run resumes
    initial: dict[str, Any] | None = None
    early_stopping: tuple[MetricEarlyStopping, ...] = ()
    interrupter: Interrupter | None = None
    on_sigterm: str = "exit"
    on_save_error: str = "raise"
    on_nonfinite: NonFinitePolicy = RAISES
    profile: Window | None = None
    watchdog: float | None = None
    watchdog_ends: bool = False
    time_limit: float | None = None
    job_ends: float | None = None
    on_epoch_end: tuple[Callable[..., Any], ...] = ()
    every: tuple[tuple[int, Callable[..., Any]], ...] = ()
    precision: Policy = FLOAT32
    matmul: str | None = None
    remat: Callable[..., Any] | None = None
    on_batch: tuple[BatchTransform, ...] = ()
    after_step: tuple[ModelTransform, ...] = ()
    freeze: tuple[Any, ...] = ()
    application_logger: logging.Logger | bool | None = True
    compilation_cache: str | None = None
    show_summary: bool = False
    summary_depth: int | None = None
    learner_class: Any = None
    config_text: str | None = None
    config_kept: str | None = None  # without the arguments of loggers, which may be secret
    config_private: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", self.shown or str(self.directory))
        object.__setattr__(self, "directory", resolved(self.directory))

    def recorded(self, record: str) -> dict[str, Any]:
        """Return the options in a record, by their names there; see `option`.

        >>> Options(Path("run"), num_epochs=3, seed=7).recorded("resume")
        {'micro-batches per step': 1, 'parts per micro-batch': None, 'seed': 7}
        """
        fields = [field for field in dataclasses.fields(self) if record in field.metadata]
        return {field.metadata[record]: getattr(self, field.name) for field in fields}

    @property
    def accumulates(self) -> bool:
        """True if a step may be a sum over micro-batches, or over parts of one."""
        return self.accumulate > 1 or self.split not in (None, 1)

    @property
    def has_hooks(self) -> bool:
        """True if hooks are called between steps or epochs."""
        return bool(self.on_epoch_end or self.every)

    @property
    def checkpoint_place(self) -> str | Path:
        """The directory of the checkpoints: an absolute path, or a URL that Orbax can open (`gs://...`)."""
        given = None if self.checkpoints is None else self.checkpoints.directory
        if given is not None and "://" in given:
            return given
        return self.directory / "checkpoint" if given is None else Path(given).absolute()

    @property
    def precision_text(self) -> str:
        """A description of the precision, matrix products, loss scale and rematerialisation, for messages."""
        matmul = "" if self.matmul is None else f", matrix products {self.matmul}"
        scaling = self.precision.scaling_text
        scale = "" if scaling is None else f"{LOSS_SCALE}{scaling}"
        remat = "" if self.remat is None else f"{REMATERIALISED}{remat_name(self.remat)}"
        return f"{self.precision.description}{matmul}{scale}{remat}"

    def of_a_trial(self, directory: Path, steps: int, interrupter: Interrupter, *listeners: Listener) -> "Options":
        """Return the options of a short run with `listeners`. It has the same computations and devices, but saves and
        shows nothing.
        """
        kept = (
            "accumulate",
            "split",
            "steps_per_dispatch",
            "devices",
            "precision",
            "matmul",
            "remat",
            "on_batch",
            "after_step",
            "seed",
            "batch_size",
        )
        return Options(
            directory,
            **{name: getattr(self, name) for name in (*kept, "compilation_cache")},
            train_metrics=(Loss(),),
            valid_metrics=(Loss(),),
            loggers=listeners,
            renderer=Listener(),  # not None, which would make its warnings Python's
            checkpoints=None,
            num_steps=steps,
            interrupter=interrupter,
            on_nonfinite=NonFinitePolicy("ignore"),
            application_logger=None,
        )

    def valid_schedule(self, splits: Collection[str]) -> ValidSchedule:
        """Return the validation schedule of these splits."""
        default = ValidPeriod(self.valid_every, 1 if self.valid_epochs is None else self.valid_epochs)
        own = {f"valid-{name}": ValidPeriod(**fields) for name, fields in (self.valid_splits or {}).items()}
        periods = {split: own.get(split, default) for split in splits}
        return ValidSchedule(periods, self.num_epochs, self.num_steps)

    def metrics_of(self, split: str) -> list[MetricBase]:
        """Return the metrics of a split. Metrics with state on the host are copied, as each split needs its own."""
        metrics = self.train_metrics if split == "train" else self.valid_metrics
        return [copy.deepcopy(m) if isinstance(m, HostMetric) else m for m in metrics]

    def metric_infos(self, splits: list[str], plateau: ReduceOnPlateau | None = None) -> tuple[MetricInfo, ...]:
        """Return a description of every metric of these splits, and of every monitored number of a hook. `plateau`: the
        scheduler of the learning rate that monitors one, too.
        """
        metrics = [(split, metric) for split in splits for metric in self.metrics_of(split)]
        infos = [MetricInfo(split, m.name, m.unit, m.higher_is_better, m.numeric) for split, m in metrics]
        return *infos, *self.monitored_numbers(plateau)

    def monitored_numbers(self, plateau: ReduceOnPlateau | None) -> list[MetricInfo]:
        """Return a description of every number of a hook that early stopping, a plateau or checkpoints monitor."""
        own = [stopping.monitor for stopping in self.early_stopping] + ([] if plateau is None else [plateau.monitor])
        monitors = [(monitor.monitor, monitor.mode) for monitor in own]
        if self.checkpoints is not None and self.checkpoints.monitor is not None:
            monitors.append((self.checkpoints.monitor, self.checkpoints.mode))
        modes: dict[str, str | None] = {}
        for key, mode in monitors:
            if key.startswith(NUMBERS):
                modes[key] = modes.get(key) or mode
        split = NUMBERS.removesuffix("/")
        return [
            MetricInfo(split, key.removeprefix(NUMBERS), "", None if mode is None else mode == "max")
            for key, mode in modes.items()
        ]


def absolute(path: str | Path) -> str:
    """Return an absolute path, which a later change of the working directory does not affect; URLs are returned
    unchanged.

    >>> absolute("gs://bucket/run"), absolute("/runs/digits")
    ('gs://bucket/run', '/runs/digits')
    """
    return str(path) if is_address(path) else str(Path(path).absolute())


def resolved(directory: str | Path) -> Path:
    """Return an absolute path. If its last part is a symbolic link, return the target of the link; links in the parents
    are kept, because machines of a cluster may resolve them differently.

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
