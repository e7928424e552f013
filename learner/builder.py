"""The builder: options in, a learner out."""

import copy
import dataclasses
import logging
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import jax

from learner.checkpoint.load import makes_model, materialize, refuse_unknown
from learner.checkpoint.options import CheckpointOptions
from learner.errors import LearnerError, Problem, one_error
from learner.events import Listener
from learner.learner import Learner
from learner.loggers.exactly_once import ExactlyOnceLogger
from learner.metrics import Loss
from learner.metrics.base import MetricBase
from learner.models.adapters import ModelAdapter, NothingToTrainError, abstract_adapter, adapter_of, refuse_abstract
from learner.models.freezing import check_freeze_patterns, explain_empty_trainable, trained_of
from learner.models.matching import Match, matcher
from learner.optimizers.schedule_resolution import OptimizerDefinition, with_placeholder_schedules
from learner.records import Recorder
from learner.runs.metric_logs import refuse_same_files
from learner.schedules import ReduceOnPlateau
from learner.schedules.base import needs_run_length
from learner.steps.definition import StepDefinition, StepFn, step_fn
from learner.steps.finite import POLICIES, NonFinitePolicy
from learner.steps.measure import MetricCollection
from learner.steps.optimizer import check_optimizer, check_schedule, is_schedule, no_schedule
from learner.steps.precision import MATMUL, Policy, policy_of
from learner.steps.remat import remat_of
from learner.strategies import Strategy, choose_devices
from learner.training.directory import problem_with, wrong_name
from learner.training.options import Options, absolute
from learner.training.profile import Window, check_steps
from learner.training.resume import ALLOWED
from learner.training.step_checks import init_problems
from learner.training.stopping import Interrupter, MetricEarlyStopping


class LearnerBuilder:
    """Configures a run. Every method checks its arguments at once and returns the builder.

    Args:
      directory: where the run leaves its logs and checkpoints.
      overwrite: replace a run that is there.

    >>> import tempfile, jax.numpy as jnp, optax
    >>> from learner import RegressionOutput
    >>> def train_step(model, batch):
    ...     return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])
    >>> learner = (
    ...     LearnerBuilder(tempfile.mkdtemp() + "/line")
    ...     .num_epochs(200)
    ...     .renderer(None)
    ...     .build({"w": jnp.zeros((1, 1))}, optax.sgd, 0.1, train_step=train_step)
    ... )
    >>> x = jnp.array([[1.0], [2.0]])
    >>> result = learner.fit([{"x": x, "y": 3 * x}])
    >>> print(f"{result.model['w'].item():.3f}")
    3.000
    """

    def __init__(self, directory: str | Path, overwrite: bool = False):
        if not isinstance(directory, str | Path) or not str(directory):
            raise LearnerError(
                f"the directory is {directory!r}; it needs a path, such as 'runs/digits'",
                code="builder-directory-type",
                directory=directory,
            )
        self._options = Options(Path(directory), overwrite=bool(overwrite))
        self._num_epochs_set = False

    # -- metrics, logs, what people see --------------------------------------------------------------------------------

    def metrics(self, *metrics: MetricBase) -> Self:
        """Metrics of both splits, in training as in validation. `Loss` is always there."""
        for metric in metrics:
            if "train" in _metric(metric).splits:
                self.metric_train(metric)
            if "valid" in metric.splits:
                self.metric_valid(metric)
        return self

    def metric_train(self, metric: MetricBase) -> Self:
        """Register a metric of the train split. One that gives a number is plotted, one that gives a text is logged."""
        return self._add(_metric(metric), "train")

    def metric_valid(self, metric: MetricBase) -> Self:
        """Register a metric of the validation splits, as `metric_train` does."""
        return self._add(_metric(metric), "valid")

    def metric_train_numeric(self, metric: MetricBase) -> Self:
        """Do as `metric_train`, and refuse a metric that gives a text: what is registered is sure to be plotted."""
        return self._add(_numeric(metric), "train")

    def metric_valid_numeric(self, metric: MetricBase) -> Self:
        """Do as `metric_valid`, and refuse a metric that gives a text: what is registered is sure to be plotted."""
        return self._add(_numeric(metric), "valid")

    def _add(self, metric: MetricBase, kind: str) -> Self:
        metrics = self._options.train_metrics if kind == "train" else self._options.valid_metrics
        if kind not in metric.splits:
            raise LearnerError(
                f"the metric {metric.name} has no meaning in the {kind} split, only in {', '.join(metric.splits)}",
                code="metric-wrong-split",
                kind=kind,
            )
        if any(m.name == metric.name for m in metrics):
            raise LearnerError(
                f"there are two metrics named {metric.name!r} in the {kind} split; give each a name of its own",
                code="metric-name-twice",
                kind=kind,
            )
        refuse_same_files([*(m.name for m in metrics), metric.name])
        metrics.append(metric)
        return self

    def metric_loggers(self, *loggers: Listener, only: Sequence[Listener] | None = None) -> Self:
        """Further loggers, beside the run's own files.

        Args:
          loggers: such as `TensorBoard()`.
          only: further loggers that replace the run's metric files, `<split>/epoch-<n>/<Metric>.log`, which hold the
            value of each step; `[]` for none at all. The journal and the summary are written in any case: they have the
            values of whole splits, which resuming, `learner compare` and `learner report` need. Reports and plots then
            have no curves of single steps.
        """
        if only is not None:
            if not isinstance(only, list | tuple):
                kind = type(only).__name__
                raise LearnerError(
                    f"metric_loggers got only={kind}; it needs a list of loggers: only=[JsonLines()]",
                    code="logger-only-not-list",
                    kind=kind,
                )
            self._options.metric_files = False
        for logger in (*loggers, *(only or ())):
            if not isinstance(logger, Listener):
                raise LearnerError(
                    f"a metric logger is a {type(logger).__name__}; it needs a learner.events.Listener, such as "
                    "MemoryLogger()",
                    code="logger-not-listener",
                )
            own = logger.file if isinstance(logger, ExactlyOnceLogger) else None
            if own and any(
                isinstance(other, ExactlyOnceLogger) and other.file == own for other in self._options.loggers
            ):
                raise LearnerError(
                    f"there are two loggers of {type(logger).__name__}; a run has one, as {own} in its directory keeps "
                    "how far it got",
                    code="logger-twice",
                )
            self._options.loggers.append(logger)
        return self

    def renderer(self, renderer: Listener | None) -> Self:
        """Set how the progress of the run is shown; `None`: silent. Default: chosen for a notebook, a terminal, or a
        file.
        """
        if renderer is not None and not isinstance(renderer, Listener):
            raise LearnerError(
                f"the renderer is {renderer!r}; it needs a Listener, such as PlainRenderer(), or None",
                code="renderer-not-listener",
            )
        self._options.renderer = renderer
        return self

    def application_logger(self, logger: logging.Logger | bool | None) -> Self:
        """The run's own log: `True` (default): `experiment.log`; a `logging.Logger`; or `None`: nowhere."""
        if not (logger is None or logger is True or isinstance(logger, logging.Logger)):
            raise LearnerError(
                f"the application logger is {logger!r}; it needs True, None or a logging.Logger",
                code="logger-application-type",
            )
        self._options.application_logger = logger
        return self

    def summary(self, show: bool = True, depth: int | None = None) -> Self:
        """Prints what the run is going to be before it begins: the model's arrays, where it runs, the length, the work
        of a step, the memory; and the summary at the end: the best value and epoch of each metric, the time, where the
        files are, and what to do next.

        Args:
          show: whether it does.
          depth: how many levels of the model are shown; what is deeper is put together. Default: as many as make no
            more than 40 rows.
        """
        self._options.show_summary = bool(show)
        self._options.summary_depth = None if depth is None else _whole("summary(depth=)", depth, 1)
        return self

    # -- length and steps ----------------------------------------------------------------------------------------------

    def num_epochs(self, n: int) -> Self:
        """Set how many times to go through the training data (default: 1)."""
        self._options.num_epochs = _whole("num_epochs", n, 1)
        return self

    def num_steps(self, n: int) -> Self:
        """Set how many optimizer steps to make, over as many epochs as that takes."""
        self._options.num_steps = _whole("num_steps", n, 1)
        return self

    def valid_every(self, steps: int) -> Self:
        """Also validates inside epochs, after every so many optimizer steps."""
        self._options.valid_every = _whole("valid_every", steps, 1)
        return self

    def valid_batches(self, n: int) -> Self:
        """At most how many batches of each validation split a validation in `fit` reads: the first ones. Default: all.

        Data without an end needs it. `evaluate` reads all that it is given.
        """
        self._options.valid_batches = _whole("valid_batches", n, 1)
        return self

    def grads_accumulation(self, n: int) -> Self:
        """Set how many micro-batches make one optimizer step (default: 1), weighted by `output.weight`.

        For a loss that is a mean over rows a step is that of one batch of all their rows. A loss over pairs of rows
        (in-batch negatives) sees the rows of one micro-batch at a time, of which a run warns.
        """
        self._options.accumulate = _whole("grads_accumulation", n, 1)
        return self

    def steps_per_dispatch(self, k: int) -> Self:
        """Hand the device at most `k` optimizer steps at once, in one compiled loop. It changes no bit of the result.

        Default: as many as fit into 64 MiB, at most 32. Programs with a convolution on a CPU, and streamed steps of
        which no two fit into 64 MiB, run step by step without a loop, whatever `k` is.
        """
        self._options.steps_per_dispatch = _whole("steps_per_dispatch", k, 1)
        return self

    def with_batch_size(self, n: int) -> Self:
        """The batch size for datasets, and dicts of arrays, that are passed where a loader is expected; the training
        data is then shuffled. A loader keeps its own size, with a warning if it is another.
        """
        self._options.batch_size = _whole("with_batch_size", n, 1)
        return self

    def seed(self, n: int) -> Self:
        """The run's root random key (default: 0): dropout, orders of datasets, initialisation from config files."""
        self._options.seed = _whole("seed", n, 0)
        return self

    def devices(self, devices: int | str | Sequence[Any]) -> Self:
        """Where it runs: on how many devices, on `"all"`, or on which (`jax.Device`, or their ids). Default: one.

        Several are `Replicated`: each has a replica of everything and a share of every batch. Where there are several
        processes, all of their devices are used, `Sharded`, by default too. See `strategy` for more.

        For a loss that is a mean over rows the numbers are those of one device. A loss over pairs of rows (in-batch
        negatives) needs `strategy(Sharded())`: under `Replicated` each device sees its own rows alone, of which a run
        warns.
        """
        self._options.devices = choose_devices(devices)
        return self

    def strategy(self, strategy: Strategy) -> Self:
        """Set the devices and the way the run uses them: `SingleDevice(device)`, `Replicated(devices)`, or
        `Sharded(mesh, rules)`, which splits the model as well. It takes the place of `devices`.
        """
        if not isinstance(strategy, Strategy):
            raise LearnerError(
                f"strategy got {strategy!r}; it needs Replicated(), Sharded(mesh, rules) or the like",
                code="strategy-type",
            )
        self._options.devices = strategy
        return self

    def precision(self, policy: str | Policy, matmul: str | None = None) -> Self:
        """In which dtype the model is computed, in training and in validation: `"float32"` (default; nothing is cast),
        `"bfloat16"`, `"float16"`, or a `Policy(param, compute, output)`.

        With a name parameters, the optimizer's state, running statistics, losses and the sums of metrics stay float32;
        parameters and floating-point arrays of the batch are cast for the step, and what it returns is float32 again
        before metrics see it. With float16 the loss is scaled (see `LossScale`); a step whose gradients overflow
        changes nothing but the scale, and `experiment.log` has it. `on_nonfinite` acts once the scale is 1, or when the
        loss itself is not finite.

        Args:
          policy: a name or a `Policy`. A layer with a dtype of its own keeps it.
          matmul: how exact matrix products and convolutions of float32 numbers are on accelerators: `"default"`,
            `"high"` or `"highest"`, as in `jax.default_matmul_precision`. Default: as JAX is set.
        """
        self._options.precision = policy_of(policy)
        self._options.matmul = None if matmul is None else _one_of("precision(matmul=)", matmul, MATMUL)
        return self

    def remat(self, policy: str | Callable[..., Any] | None) -> Self:
        """Keeps less of the train step's forward pass in memory: what the policy does not save, the backward pass
        computes again. Default: everything is kept.

        Where the layers of a model are a loop (`jax.lax.scan`, `nnx.scan`, `nn.scan`), `"nothing_saveable"` keeps what
        goes from one layer to the next, and `"dots_saveable"` the matrix products too, which costs less time. Without
        a loop the whole forward pass is wrapped in `jax.checkpoint`, where `"nothing_saveable"` wins nothing, as all of
        it would be there again at once; save matrix products, or wrap the blocks of the model one by one, with
        `nnx.remat`, `nn.remat` or `eqx.filter_checkpoint`, and leave this option alone. On a CPU the compiler joins
        what is computed twice outside of loops, so that nothing is won there. `docs/precision.md` has figures.

        Args:
          policy: the name of one in `jax.checkpoint_policies` that takes no arguments, or a function, such as
            `jax.checkpoint_policies.save_only_these_names("hidden")`.
        """
        self._options.remat = None if policy is None else remat_of(policy)
        return self

    def freeze(self, *match: Match) -> Self:
        """Leaves parameters as they are: no gradient of them is computed, and no optimizer state is kept. What is said
        in several calls adds up. Statistics such as those of BatchNorm are no parameters, and go on.

        Args:
          match: regular expressions, as texts or compiled, that are searched for in the paths of parameters
            (`"^backbone"`, `"conv[12]"`), or predicates `(path, array) -> bool`.

        >>> builder = LearnerBuilder("runs/tuned").freeze("^backbone", "norm")
        """
        for pattern in match:
            matcher(pattern)
        self._options.freeze += match
        return self

    def compilation_cache(self, directory: str | Path) -> Self:
        """Keep the compiled programs of the run in a directory, so that a run of the same programs, also in another
        process, need not compile them again. On GPU and TPU they are kept in one of the user's by default.

        It holds for the run alone: JAX's settings are restored when `fit` returns or raises. A cache that is set up
        already (`jax_compilation_cache_dir`) is used as it is where no directory is given.

        Args:
          directory: a path, also one that JAX takes besides (`gs://...`). Those who can write to it can run code here.
        """
        self._options.compilation_cache = absolute(directory)
        return self

    # -- checkpoints, stopping, hooks ----------------------------------------------------------------------------------

    def with_file_checkpointer(
        self,
        keep_last: int | Recorder | None = 2,
        keep_best: int = 1,
        keep_every: int | None = None,
        monitor: str | None = None,
        mode: str | None = None,
        every_epochs: int | None = None,
        every_steps: int | None = None,
        every_seconds: float | None = None,
        record: Recorder | None = None,
        directory: str | None = None,
        record_items: Sequence[str] = ("model",),
    ) -> Self:
        """Saves at epoch ends, or whenever is said, and keeps the newest, the best, and some for good. When a
        checkpoint is made changes no bit of the training. `with_file_checkpointer(None)` turns saving off.

        Without it a run saves at its end, and at the first epoch end after each minute, keeping the last and the best.

        The best epoch is kept even if no save is due when it ends: a copy of the state waits in memory (on an
        accelerator in the memory of the host) until the next save, the end of the run, or its failure. The same holds
        for a validation inside an epoch. `kill -9` loses the copy; the epochs since the newest checkpoint are trained
        again then.

        Args:
          keep_last: how many of the newest are kept. A recorder in its place is `record`:
            `with_file_checkpointer(CompactRecorder())`.
          keep_best: how many of the best by `monitor` are kept besides. With 0 no copy waits, and the best is the best
            of those that are saved.
          keep_every: every how many epochs one is kept for good.
          monitor: a metric by key; default: `valid/Loss`, or `train/Loss` where there is no validation.
          mode: `"min"` or `"max"`; default: the metric's own direction.
          every_epochs: a save at the end of every so many epochs; default: 1 where no other `every_` is given.
          every_steps: a save after every so many optimizer steps of the run.
          every_seconds: a save between two dispatches once so many seconds have passed since the last.
          record: a recorder, such as `CompactRecorder()`: the model of each checkpoint is also written into a file
            beside it, `model-<epoch>.mpk.gz` (`model-step-<step>.mpk.gz` inside of an epoch), for `load_model`. The
            file stays as long as its checkpoint does.
          directory: any path that Orbax takes; default: `checkpoint/` in the run's directory.
          record_items: what `record` writes: `"model"`, and in full precision `"optim"` (`optim-<epoch>.mpk.gz`, for
            `load_optimizer`) and `"scheduler"` (`scheduler-<epoch>.mpk.gz`, for `load_scheduler`).
        """
        if isinstance(keep_last, Recorder):
            record = _one_recorder(keep_last, record)
            keep_last = 2
        if keep_last is None:
            self._options.checkpoints = None
            return self
        if every_epochs is None and every_steps is None and every_seconds is None:
            every_epochs = 1
        items: Any = record_items if isinstance(record_items, list | tuple) else [record_items]
        self._options.checkpoints = CheckpointOptions(
            keep_last,
            keep_best,
            keep_every,
            monitor,
            mode,
            every_epochs=every_epochs,
            every_steps=every_steps,
            every_seconds=every_seconds,
            record=record,
            record_items=tuple(items),
            directory=None if directory is None else absolute(directory),
        )
        return self

    def on_save_error(self, what: str) -> Self:
        """Set the response to a checkpoint that cannot be written (a full disk, a directory that is gone): `"raise"`
        (default) ends `fit` with the error after the current dispatch; `"warn"` continues, and tries again when the
        next is due.

        The checkpoints before it stay as they are in either case.
        """
        self._options.on_save_error = _one_of("on_save_error", what, ("raise", "warn"))
        return self

    def checkpoint(
        self, epoch: int | str | None = None, step: int | None = None, allow: str | Sequence[str] = ()
    ) -> Self:
        """Starts from the end of an epoch or step of the run in the directory (`"best"` and `"latest"` are epochs too).

        What is newer than it moves to `superseded/`. `allow`: see `resume`.
        """
        if (epoch is None) == (step is None):
            raise LearnerError("checkpoint needs either epoch= or step=", code="checkpoint-epoch-or-step")
        if epoch is not None and epoch not in ("best", "latest"):
            _whole("checkpoint(epoch=)", epoch, 1)
        if step is not None:
            _whole("checkpoint(step=)", step, 0)
        self._options.start = {**({"step": step} if epoch is None else {"epoch": epoch}), **_allowed(allow)}
        return self

    def resume(self, allow: str | Sequence[str] = ()) -> Self:
        """Starts from the newest checkpoint of the run in the directory that is not damaged, or afresh where there is
        none.

        Args:
          allow: what to accept that is refused otherwise. `"data"`: other training data, or another accumulation,
            inside an epoch, which continues after as many batches as before; `"metrics"`: other metrics inside an
            epoch, which start anew; `"optimizer"`: an optimizer with another state, which starts anew; `"logs"`: logs
            that lost parts. Other changes that have an effect (the rate, the optimizer's settings, the loss, the data
            between epochs) are reported in one warning.
        """
        self._options.start = {"resume": True, **_allowed(allow)}
        return self

    def initial_from(
        self, directory: str | Path, which: int | str = "best", partial: bool = False, step: int | None = None
    ) -> Self:
        """Starts with the model of another run's checkpoint; the optimizer, the random keys and the steps are new.

        Where the run in the directory goes on from a checkpoint of its own, that one counts.

        Args:
          directory: of the other run, or the one that holds its checkpoints where they lie elsewhere.
          which: `"best"`, `"latest"`, or the epoch that it ends.
          partial: takes the arrays with the same path and shape (floats of another precision are rounded), and leaves
            the others as the model was initialised; `experiment.log` lists them. Default: all have to be the same.
          step: the optimizer step instead of `which`.
        """
        refuse_unknown("initial_from", directory, which, step)
        if not isinstance(partial, bool):
            raise LearnerError(
                f"partial of initial_from is {partial!r}; it needs True or False", code="builder-partial-type"
            )
        self._options.initial = {"directory": absolute(directory), "which": which, "step": step, "partial": partial}
        return self

    def early_stopping(self, stopping: MetricEarlyStopping) -> Self:
        """Stops when a metric no longer improves; may be called for several."""
        if not isinstance(stopping, MetricEarlyStopping):
            raise LearnerError(
                f"early_stopping got {stopping!r}; it needs MetricEarlyStopping('valid/Loss', patience=5)",
                code="stopping-type",
            )
        self._options.early_stopping.append(copy.deepcopy(stopping))
        return self

    def interrupter(self, interrupter: Interrupter) -> Self:
        """Lets other code stop the run: `Interrupter.stop(reason)` from any thread."""
        if not isinstance(interrupter, Interrupter):
            raise LearnerError(
                f"interrupter got {interrupter!r}; it needs an Interrupter()", code="builder-interrupter-type"
            )
        self._options.interrupter = interrupter
        return self

    def with_time_limit(self, seconds: float | None = None) -> Self:
        """Saves and ends the run before `seconds` have passed; default: before the SLURM job ends that it runs in.

        What is kept back for the end is twice what the longest save took, or a twentieth of the time and at most half a
        minute where that is more. `resume()` goes on.
        """
        if seconds is None:
            end = os.environ.get("SLURM_JOB_END_TIME", "")
            if not end.isdigit():
                raise LearnerError(
                    "with_time_limit has no seconds and SLURM_JOB_END_TIME is not set: give with_time_limit(seconds)",
                    code="builder-time-limit-missing",
                )
            self._options.job_ends, self._options.time_limit = float(end), None
            return self
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
            raise LearnerError(
                f"with_time_limit got {seconds!r}; it needs a number of seconds greater than 0",
                code="builder-time-limit-value",
                seconds=seconds,
            )
        self._options.time_limit, self._options.job_ends = float(seconds), None
        return self

    def on_sigterm(self, what: str) -> Self:
        """Set how `fit` ends after SIGTERM, once the current dispatch has ended, a checkpoint is complete and the logs
        are written: `"exit"` (default) raises `SystemExit(143)`, `"return"` returns the result so far.
        """
        self._options.on_sigterm = _one_of("on_sigterm", what, ("exit", "return"))
        return self

    def on_nonfinite(self, what: str, in_a_row: int = 10) -> Self:
        """Set what follows a loss, a gradient norm or a weight of the training that is NaN or infinite.

        No checkpoint is made after such a step, unless it was skipped or ignored. The logs have the numbers as they
        were.

        Args:
          what: `"raise"` (default): `fit` raises `NonFiniteError`, which names the step. `"stop"`: `fit` returns the
            result so far, with the parameters before that step. `"skip"`: the step changes neither the parameters nor
            the optimizer's state, and the run goes on. `"ignore"`: nothing is looked at. The branch that `"stop"` and
            `"skip"` put around the update may change last bits.
          in_a_row: with `"skip"`, so many such steps in a row end the run with the error.
        """
        self._options.on_nonfinite = NonFinitePolicy(
            _one_of("on_nonfinite", what, POLICIES), _whole("on_nonfinite(in_a_row=)", in_a_row, 1)
        )
        return self

    def watchdog(self, seconds: float, then: str = "log") -> Self:
        """When no step and no validation batch ended for `seconds`, writes the stacks of all threads to
        `experiment.log`, once until a step ends again. Default: nothing is watched.

        All the time of the run counts, so choose more than the longest of these takes: compiling, which the first step
        waits for; a hook; a checkpoint that is waited for, as at the end. Code that never lets another thread of Python
        run cannot be watched.

        Args:
          seconds: how long a step may take.
          then: `"log"` (default): the run goes on. `"end"`: it is asked to end as by a signal, so it makes a checkpoint
            and `fit` returns; `result.stopped_by` begins with `watchdog`, and the command exits with 75. What hangs
            inside of a device or a file system does not hear of that: when no step ended after the same time again, the
            process itself ends with the exit code 75 (a temporary failure, for those that start jobs anew). Nothing is
            saved then, and `resume()` goes on from the last checkpoint.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise LearnerError(
                f"watchdog got {seconds!r}; it needs a number of seconds greater than 0",
                code="builder-watchdog-value",
                seconds=seconds,
            )
        self._options.watchdog = float(seconds)
        self._options.watchdog_ends = _one_of("watchdog(then=)", then, ("log", "end")) == "end"
        return self

    def profile(self, steps: tuple[int, int | None]) -> Self:
        """Profiles some steps: where their time goes (the device, waiting for data, the host, metrics and loggers).

        The answer is in the log and in `profile/profile.json` in the run's directory, beside a trace that TensorBoard's
        profiler opens, and Perfetto (https://ui.perfetto.dev) as `perfetto_trace.json.gz`. Taking it slows the steps a
        little. Of several processes the first one is looked at. `learner profile CONFIG` needs no run.

        Args:
          steps: `(10, 20)`: the steps 11 to 20, so that nothing is compiled meanwhile. `(10, None)`: those of about a
            second from there on. No dispatch is longer than they are: where steps are short, choose some hundreds.
        """
        self._options.profile = Window(*check_steps(steps))
        return self

    def on_epoch_end(self, fn: Callable[..., Any]) -> Self:
        """Calls `fn(info, model)` after every epoch and its validation, with the model in eval mode.

        `info` has `epoch`, `step` and `values`. Numbers that it returns, `{"name": number}`, are logged as the split
        `custom`.
        """
        self._options.on_epoch_end.append(_hook("on_epoch_end", fn))
        return self

    def every(self, steps: int, fn: Callable[..., Any]) -> Self:
        """Calls `fn(info, model)` after every so many optimizer steps; see `on_epoch_end`."""
        self._options.every.append((_whole("every(steps=)", steps, 1), _hook("every", fn)))
        return self

    def learner_class(self, kind: type[Learner]) -> Self:
        """Set the class that `build` makes an object of: a subclass of `Learner` with its own `loop`, for instance."""
        if not (isinstance(kind, type) and issubclass(kind, Learner)):
            raise LearnerError(
                f"learner_class got {kind!r}; it needs a subclass of learner.Learner",
                code="builder-learner-class-type",
                kind=kind,
            )
        self._options.learner_class = kind
        return self

    def _config_text(self, text: str, kept: str | None = None, private: bool = False) -> Self:
        """Set the config file that the run was started from, which is written into its directory.

        Args:
          text: of the file.
          kept: what checkpoints keep of it, without the arguments of loggers.
          private: whether the file is for this user alone.
        """
        self._options.config_text, self._options.config_kept = text, text if kept is None else kept
        self._options.config_private = private
        return self

    # -- the end -------------------------------------------------------------------------------------------------------

    def build(
        self,
        model: Any,
        optimizer: Any,
        lr: Any,
        train: Any = None,
        valid: Any = None,
        *,
        train_step: Callable[..., Any] | None = None,
        valid_step: Callable[..., Any] | None = None,
        update: Callable[..., Any] | None = None,
        trainable: Any = None,
    ) -> Learner:
        """Checks everything, and reports all that is wrong in one error.

        Args:
          model: an `nnx.Module`, `Linen(module, variables)`, an Equinox module, any pytree of arrays, or a function
            without arguments that makes one. It is copied. Where the strategy splits models, a function is traced, and
            each device makes its part of the arrays: the model is nowhere whole.
          optimizer: a function of the learning rate: `optax.adamw`, `partial(optax.adamw, weight_decay=1e-4)`,
            `lambda lr: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lr))`. `None` with `update`.
          lr: a float, a schedule of `learner.schedules` or optax (a function of the optimizer step), or
            `ReduceOnPlateau(...)`.
          train: training data, if not given to `fit`.
          valid: validation data, if not given to `fit`.
          train_step: `(model, batch)` or `(model, batch, rng)` to an output; default: the model's method of that name.
          valid_step: the same for validation.
          update: replaces the whole update: `(state, batch, lr, rng) -> (state, output)`, where `model` is the first
            state.
          trainable: what is differentiated, a predicate `(path, array) -> bool`; for nnx also an nnx filter.
        """
        options, parts = self._options, _ModelParts()
        problems = [
            problem for problem in [problem_with(options.directory) or wrong_name(options.checkpoint_place)] if problem
        ]
        definition, problems_of_lr = _optimizer_definition(None if update else optimizer, lr)
        problems += problems_of_lr
        problems += parts.read(options, model, trainable, train_step, valid_step, update)
        if update is not None:
            problems += _wrong_update(update, optimizer, train_step, options)
        elif parts.family is not None:
            problems += _optimizer_problems(optimizer, parts.family, parts.train, options)
        if problems or parts.family is None:
            raise one_error(problems, "this learner cannot be built", code="learner-unbuildable")
        for kind in ("train", "valid"):
            if not any(m.name == "Loss" for m in options.metrics_of(kind)):
                self._add(Loss(), kind)
        # Copies: the builder may build again, and a run changes the state of its early stopping and its plateau.
        options = options.copy()
        if options.num_epochs is None and options.num_steps is None:
            options.num_epochs = 1
        make: type[Learner] = options.learner_class or Learner
        return make(options, parts.define(parts.family, options, update), copy.deepcopy(definition), train, valid)


@dataclasses.dataclass
class _ModelParts:
    """The model and its steps, which are read one after the other. None where a mistake came first."""

    family: ModelAdapter | None = None
    train: StepFn | None = None
    valid: StepFn | None = None

    def read(
        self, options: Options, model: Any, trainable: Any, train_step: Any, valid_step: Any, update: Any
    ) -> list[str]:
        """Read the parts from the arguments of `build`. Return all problems that they have."""
        problems: list[str] = []
        try:
            selected = trained_of(trainable, options.freeze) if options.freeze else trainable
            self.family, model = _family_of(model, selected, update is not None, options.devices)
            problems += check_freeze_patterns(options.freeze, self.family, model)
            self.train = None if update is not None else step_fn(model, "train_step", train_step)
            self.valid = step_fn(model, "valid_step", valid_step)
            # Arrays that the strategy makes later have no values yet.
            problems += [] if self.family.fresh else init_problems(self.family.params)
            if options.checkpoints is not None and options.checkpoints.record is not None and not self.family.fresh:
                options.checkpoints.record.check(model)
            if self.train is None and self.valid is None and update is None:
                problems.append(
                    f"the model ({type(model).__name__}) has no train_step: give it a method train_step(self, "
                    "batch), or pass "
                    "build(..., train_step=fn) with fn(model, batch)"
                )
        except NothingToTrainError as error:
            problems.append(explain_empty_trainable(options.freeze, trainable, error.family) or str(error))
        except LearnerError as error:
            problems.append(Problem(error, code=error.code, **error.fields))
        return problems

    def define(self, family: ModelAdapter, options: Options, update: Callable[..., Any] | None) -> StepDefinition:
        """Return the definition of the steps, once nothing is wrong with the parts."""
        return StepDefinition(
            family,
            self.train,
            update,
            self.valid,
            MetricCollection.of(options.train_metrics),
            MetricCollection.of(options.valid_metrics),
            options.accumulate,
            watch=options.on_nonfinite,
            policy=options.precision,
            matmul=options.matmul,
            remat=options.remat,
        )


def _optimizer_problems(optimizer: Any, family: ModelAdapter, train: StepFn | None, options: Options) -> list[str]:
    own_grads = train is not None and train.returns_gradients
    params = jax.eval_shape(options.precision.kept, family.params) if options.precision.casts else family.params
    return check_optimizer(with_placeholder_schedules(optimizer), params, options.accumulate, own_grads)


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise LearnerError(
            f"{name} is {value!r}; it needs a whole number, {least} or more",
            code="builder-number-value",
            name=name,
            value=value,
            least=least,
        )
    return value


def _one_recorder(first: Recorder, record: Recorder | None) -> Recorder:
    """Return the recorder given as the first argument of `with_file_checkpointer`, unless there are two."""
    if record is not None:
        raise LearnerError(
            f"with_file_checkpointer got two recorders, {first!r} and record={record!r}; give one",
            code="checkpoint-two-recorders",
        )
    return first


def _allowed(allow: Any) -> dict[str, tuple[str, ...]]:
    words = (allow,) if isinstance(allow, str) else tuple(allow)
    return {"allow": tuple(_one_of("allow=", word, tuple(ALLOWED)) for word in words)} if words else {}


def _one_of(name: str, value: Any, words: Sequence[str]) -> str:
    if value not in words:
        raise LearnerError(
            f"{name} got {value!r}; it needs {' or '.join(map(repr, words))}",
            code="builder-choice-unknown",
            name=name,
            value=value,
        )
    return str(value)


def _hook(name: str, fn: Any) -> Callable[..., Any]:
    if not callable(fn):
        raise LearnerError(f"{name} got {fn!r}; it needs a function (info, model)", code="builder-hook-type", name=name)
    hook: Callable[..., Any] = fn
    return hook


def _metric(metric: Any) -> MetricBase:
    if isinstance(metric, type) and issubclass(metric, MetricBase):
        raise LearnerError(
            f"the metric {metric.__name__} is a class; pass an instance, {metric.__name__}()",
            code="metric-not-instance",
        )
    if not isinstance(metric, MetricBase):
        raise LearnerError(
            f"a metric is {metric!r}; it needs an instance of learner.metrics.Metric", code="metric-type"
        )
    if not metric.name:
        raise LearnerError(
            f"the metric {type(metric).__name__} has no name; set the attribute `name`", code="metric-unnamed"
        )
    return metric


def _numeric(metric: Any) -> MetricBase:
    if not _metric(metric).numeric:
        raise LearnerError(
            f"the metric {metric.name} gives a text, not a number; register it with metric_train or metric_valid",
            code="metric-text-not-number",
        )
    return _metric(metric)


def _optimizer_definition(optimizer: Any, lr: Any) -> tuple[OptimizerDefinition, list[str]]:
    """Return the optimizer with its learning rate as they are given, and all problems of the learning rate."""

    def refuse(problem: str) -> tuple[OptimizerDefinition, list[str]]:
        return OptimizerDefinition(optimizer, 0.0), [f"the learning rate is {problem}"]

    if isinstance(lr, ReduceOnPlateau):
        return OptimizerDefinition(optimizer, lr.rate, plateau=lr), []
    if needs_run_length(lr):  # `fit` checks it, which knows the length of the run
        return OptimizerDefinition(optimizer, 1.0, lr), []
    if is_schedule(lr):
        return OptimizerDefinition(optimizer, 1.0, lr), check_schedule(lr)
    needs = "it needs a float, an optax schedule or one of learner.schedules, or ReduceOnPlateau(...)"
    if problem := no_schedule(lr):
        return refuse(problem)
    if hasattr(lr, "init") and hasattr(lr, "update"):
        return refuse(f"an optimizer; {needs}")
    if isinstance(lr, bool | str) or lr is None or isinstance(lr, type):
        return refuse(f"{lr!r}; {needs}")
    try:
        value = float(lr)
    except (TypeError, ValueError):
        return refuse(f"{lr!r}; {needs}")
    if not 0 <= value < math.inf:
        return refuse(f"{value}; it needs a number that is 0 or more, and finite")
    return OptimizerDefinition(optimizer, value), []


def _family_of(model: Any, trainable: Any, shared: bool, strategy: Strategy | None) -> tuple[ModelAdapter, Any]:
    """Return the adapter of the model, and the model, or one of its type where each device makes its own part."""
    if strategy is not None and strategy.splits and makes_model(model):
        return abstract_adapter(model, trainable, shared=shared)
    model = materialize(model)
    refuse_abstract(model)
    return adapter_of(model, trainable, shared=shared), model


def _wrong_update(update: Any, optimizer: Any, train_step: Any, options: Options) -> list[str]:
    problems = []
    if not callable(update):
        problems.append(f"update is {update!r}; it needs a function (state, batch, lr, rng) -> (state, output)")
    if optimizer is not None or train_step is not None:
        problems.append(
            "update= replaces the train step and the optimizer; pass None as the optimizer and no train_step"
        )
    if options.precision.casts:
        problems.append(
            f"update= differentiates by itself, so precision {options.precision.description!r} cannot cast inside of "
            "it: cast there, and leave precision out (or give its matmul= alone: precision('float32', matmul='high'))"
        )
    if options.remat is not None:
        problems.append("update= differentiates by itself, so remat cannot act on it; use jax.checkpoint there")
    if options.freeze:
        problems.append("update= changes what it likes, so freeze cannot act on it; leave those parameters alone there")
    if options.accumulate > 1:
        problems.append("update= makes a whole step of each batch; it cannot be used with grads_accumulation")
    return problems
