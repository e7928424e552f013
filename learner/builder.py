"""`LearnerBuilder`, which checks options and builds a learner."""

import copy
import dataclasses
import inspect
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

import jax

from learner.checkpoint.load import refuse_unknown
from learner.checkpoint.retention import CheckpointOptions
from learner.errors import LearnerError, Problem, one_error
from learner.events import Listener
from learner.learner import Learner
from learner.loggers.base import RunLogger, check_listener
from learner.metrics.base import MetricBase
from learner.metrics.losses import Loss
from learner.metrics.metric_checks import check_metric, check_numeric, splits_of
from learner.metrics.monitor import Monitor
from learner.models.matching import Match, matcher
from learner.models.model_types import CreatesModel, FunctionOfRngs, ModelT
from learner.records.fitting import refuse_malformed
from learner.records.recorder import Recorder
from learner.runs.file_names import refuse_same_files
from learner.steps.batch_transforms import BatchTransform
from learner.steps.finite import POLICIES, NonFinitePolicy
from learner.steps.model_transforms import ModelTransform
from learner.steps.precision import MATMUL, Policy, policy_of
from learner.steps.remat import remat_of
from learner.strategies.base import Strategy
from learner.strategies.choose import choose_devices
from learner.strategies.members import spread_members
from learner.training.definition import TrainingDefinition
from learner.training.files.directory import holds_run, problem_with, wrong_name
from learner.training.model_parts import ModelParts, check_with_model, optimizer_definition, problems_of_update
from learner.training.options import Options, absolute
from learner.training.population import member_problem, option_problems, population_of
from learner.training.profile import Window, check_steps
from learner.training.progress.restore import ALLOWED
from learner.training.selection import Exploit, Halving, Selection
from learner.training.stopping import Interrupter, MetricEarlyStopping
from learner.training.valid_schedule import ValidPeriod
from learner.util.addresses import refuse_address
from learner.util.number_checks import check_int, is_number, plain_numbers
from learner.util.several import as_several
from learner.util.slurm import job_end
from learner.util.text import name_of

SelectionT = TypeVar("SelectionT", bound=Selection)
MOST_SEED = 2**63 - 1


class LearnerBuilder:
    """Configure a run. Each method checks its arguments immediately and returns the builder.

    Args:
      directory: the directory for logs and checkpoints.
      overwrite: replace an existing run.

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
        refuse_address(directory)
        self._options = Options(Path(directory), overwrite=bool(overwrite))
        self._has_strategy = False

    def __repr__(self) -> str:
        """Return the directory, the recorded options that are not the defaults, and the metrics."""
        options, usual = self._options, Options(self._options.directory).recorded("journal")
        given = [f"{name}={x!r}" for name, x in options.recorded("journal").items() if x != usual[name]]
        names = dict.fromkeys(metric.name for metric in (*options.train_metrics, *options.valid_metrics))
        given += [f"metrics={list(names)}"] * bool(names)
        return f"{type(self).__name__}({', '.join([repr(options.shown), *given])})"

    if not TYPE_CHECKING:  # for a type checker the class would have every name

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError and suggest options that contain the name (from another library), or are similar."""
            import difflib

            options = [option for option in dir(LearnerBuilder) if not option.startswith("_")]
            found = [option for option in options if name in option] or difflib.get_close_matches(name, options, 2)
            hint = f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    # -- metrics, logs, what people see --------------------------------------------------------------------------------

    def metrics(self, *metrics: MetricBase) -> Self:
        """Register metrics for training and validation. `Loss` is always included."""
        for metric in metrics:
            for kind in splits_of(check_metric(metric)):
                self._add(kind, metric)
        return self

    def metric_train(self, *metrics: MetricBase) -> Self:
        """Register metrics for the train split. Numbers are plotted, and texts are logged."""
        return self._add("train", *map(check_metric, metrics))

    def metric_valid(self, *metrics: MetricBase) -> Self:
        """Register metrics for the validation splits; see `metric_train`."""
        return self._add("valid", *map(check_metric, metrics))

    def metric_train_numeric(self, *metrics: MetricBase) -> Self:
        """Register metrics like `metric_train`, but raise if one has text values, which cannot be plotted."""
        return self._add("train", *map(check_numeric, metrics))

    def metric_valid_numeric(self, *metrics: MetricBase) -> Self:
        """Register metrics like `metric_valid`, but raise if one has text values, which cannot be plotted."""
        return self._add("valid", *map(check_numeric, metrics))

    def _set(self, **changes: Any) -> Self:
        self._options = dataclasses.replace(self._options, **changes)
        return self

    def _add(self, kind: str, *metrics: MetricBase) -> Self:
        self._options = _with_metrics(self._options, kind, *metrics)
        return self

    def metric_loggers(self, *loggers: Listener, only: Sequence[Listener] | None = None) -> Self:
        """Add loggers to the run's own files.

        Args:
          loggers: loggers to add, such as `TensorBoard()`.
          only: loggers that replace the run's metric files, `<split>/epoch-<n>/<Metric>.log`, which hold the value of
            each step. Pass `[]` to write no metric files and add no logger. Without metric files, reports and plots
            have no per-step curves. The journal and the summary are always written: resuming, `learner compare` and
            `learner report` read the values of whole splits from them.
        """
        if only is not None:
            if not isinstance(only, list | tuple):
                kind = type(only).__name__
                raise LearnerError(
                    f"metric_loggers got only={kind}; it needs a list of loggers: only=[JsonLines()]",
                    code="logger-only-not-list",
                    kind=kind,
                )
            self._set(metric_files=False)
        for logger in (*loggers, *(only or ())):
            if not isinstance(logger, Listener):
                raise LearnerError(
                    f"a metric logger is a {type(logger).__name__}; it needs a learner.events.Listener, such as "
                    "MemoryLogger()",
                    code="logger-not-listener",
                )
            check_listener(logger, "logger")
            own = (logger.file and (logger.place or logger.file)) if isinstance(logger, RunLogger) else None
            others = [other for other in self._options.loggers if isinstance(other, RunLogger) and other.file]
            if own in [other.place or other.file for other in others]:
                raise LearnerError(
                    f"there are two loggers of {type(logger).__name__}, which would both write {own}: leave one of "
                    "them out, or give it another path if it takes one",
                    code="logger-twice",
                )
            self._set(loggers=(*self._options.loggers, logger))
        return self

    def renderer(self, renderer: Listener | None) -> Self:
        """Set how to display progress; with `None` there is no display, and warnings are issued by Python's `warnings`.
        The default depends on the output: a notebook, a terminal, or a file.
        """
        if renderer is not None and not isinstance(renderer, Listener):
            raise LearnerError(
                f"the renderer is {renderer!r}; it needs a Listener, such as PlainRenderer(), or None",
                code="renderer-not-listener",
            )
        if renderer is not None:
            check_listener(renderer, "renderer")
        return self._set(renderer=renderer)

    def application_logger(self, logger: logging.Logger | bool | None) -> Self:
        """Set the run's own log: `True` (default) for `experiment.log`, a `logging.Logger`, or `None` or `False` for no
        log.
        """
        if not (logger is None or isinstance(logger, bool | logging.Logger)):
            raise LearnerError(
                f"the application logger is {logger!r}; it needs True, None or a logging.Logger",
                code="logger-application-type",
            )
        return self._set(application_logger=logger or None)

    def summary(self, show: bool = True, depth: int | None = None) -> Self:
        """Print an overview of the run before it begins (the model's arrays, the devices, the length, the operations
        of a step, the memory), and a summary at the end (the best value and epoch of each metric, the time, the files,
        the next commands).

        Args:
          show: whether to print them.
          depth: the levels of the model to show; deeper levels are merged. Default: as many as fit into 40 rows.
        """
        return self._set(
            show_summary=bool(show), summary_depth=None if depth is None else _integer("summary(depth=)", depth, 1)
        )

    # -- length and steps ----------------------------------------------------------------------------------------------

    def num_epochs(self, n: int) -> Self:
        """Set the number of passes over the training data (default: 1). With `num_steps` too, the shorter one ends the
        run.
        """
        return self._set(num_epochs=_integer("num_epochs", n, 1))

    def num_steps(self, n: int) -> Self:
        """Set the number of optimizer steps, over as many epochs as necessary. With `num_epochs` too, the shorter one
        ends the run.
        """
        return self._set(num_steps=_integer("num_steps", n, 1))

    def valid_every(self, steps: int | None = None, epochs: int = 1, split: str | None = None) -> Self:
        """Set when to validate (default: at the end of each epoch). The last epoch always ends with a validation.

        Early stopping, `ReduceOnPlateau` and the choice of the best checkpoint act only on new values of their metric:
        nothing counts between two of its validations, and `patience` is a number of validations.

        Args:
          steps: also validate inside epochs, every `steps` optimizer steps.
          epochs: validate at the end of every `epochs`-th epoch; 0: only every `steps` steps.
          split: the name of the validation split to schedule, if several were given as a dict. The other splits keep
            their schedules; call the method again for another split. Default: all splits without their own schedule.
        """
        period = ValidPeriod(
            None if steps is None else _integer("valid_every(steps=)", steps, 1),
            _integer("valid_every(epochs=)", epochs, 1 if steps is None else 0),
        )
        if split is None:
            return self._set(valid_every=period.steps, valid_epochs=None if period.epochs == 1 else period.epochs)
        if not isinstance(split, str) or not split:
            raise LearnerError(
                f"valid_every got split={split!r}; it needs the name of a validation split",
                code="builder-valid-split-type",
                split=split,
            )
        splits = self._options.valid_splits or {}
        return self._set(valid_splits={**splits, split.removeprefix("valid-"): dataclasses.asdict(period)})

    def valid_first(self, first: bool = True) -> Self:
        """Also validate before the first step, at step 0. The initial model can then be the best one, and the
        validation counts for early stopping and `ReduceOnPlateau`.
        """
        return self._set(valid_first=_boolean("valid_first", first) or None)

    def valid_batches(self, n: int, shuffle: bool = False) -> Self:
        """Limit each validation in `fit` to `n` batches of each validation split. Default: no limit.

        Endless data needs a limit. `evaluate` always reads all batches.

        Args:
          n: the number of batches. Each validation reads the same first `n` batches.
          shuffle: instead draw the rows from all of the data with the seed of the run. Each validation reads the same
            rows. This requires a dataset or arrays, with `with_batch_size`; a loader is shuffled by its builder.
        """
        return self._set(
            valid_batches=_integer("valid_batches", n, 1),
            valid_shuffle=_boolean("valid_batches(shuffle=)", shuffle) or None,
        )

    def grads_accumulation(self, n: int | Literal["auto"] = 1, split: int | Literal["auto"] | None = None) -> Self:
        """Set the number of micro-batches in an optimizer step (default: 1), weighted by `output.weight`.

        If the loss is a mean over rows, the step is the same as with one batch of all the rows. A loss over pairs of
        rows (in-batch negatives) sees only the rows of one micro-batch at a time, and the run warns about it.

        Args:
          n: the number of batches of the loader in a step. `"auto"` is short for `split="auto"`.
          split: compute each batch in this number of parts, one after the other, to save memory. The batch size and
            the steps do not change. `"auto"` uses as few parts as fit into the memory of the device (1, 2, 4, ...),
            found by compiling and, on an accelerator, by trying. Checkpoints store the number, and a resumed run
            keeps it.
        """
        if n == "auto":
            if split not in (None, "auto"):
                raise LearnerError(
                    f"grads_accumulation is 'auto', and split={split!r} sets what it would find: leave one of them out",
                    code="builder-split-twice",
                )
            n, split = 1, "auto"
        parts = split if split in (None, "auto") else _integer("grads_accumulation(split=)", split, 1)
        return self._set(accumulate=_integer("grads_accumulation", n, 1), split=parts)

    def steps_per_dispatch(self, k: int) -> Self:
        """Dispatch at most `k` optimizer steps at once, in one compiled loop. The results are bit-identical.

        Default: at most 256 steps on rows that are on the device; of streamed batches as many as fit into 64 MiB, at
        most 32. Regardless of `k`, steps run one by one without a loop if the program has a convolution and runs on a
        CPU, or if two streamed steps do not fit into 64 MiB.
        """
        return self._set(steps_per_dispatch=_integer("steps_per_dispatch", k, 1))

    def with_batch_size(self, n: int) -> Self:
        """Set the batch size for datasets and dicts of arrays passed instead of a loader; their training data is
        shuffled. A loader keeps its own batch size, with a warning if it differs.
        """
        return self._set(batch_size=_integer("with_batch_size", n, 1))

    def seed(self, n: int) -> Self:
        """Set the seed (default: 0) for dropout, the order of datasets, and initialisation from config files."""
        seed = _integer("seed", n, 0)
        if seed > MOST_SEED:
            raise LearnerError(
                f"seed is {seed}; it needs a whole number from 0 to 2**63 - 1, as JAX's keys take",
                code="builder-number-value",
                name="seed",
                value=seed,
            )
        return self._set(seed=seed)

    def population(
        self,
        *,
        seed: Any = None,
        lr: Any = None,
        zipped: bool = False,
        size: int | None = None,
        data_order: str = "shared",
        waves: bool | int = False,
        **optimizer: Any,
    ) -> Self:
        """Train many members in one compiled program. Each member writes an ordinary run into a subdirectory of the
        run, such as `000-lr=0.0001-seed=0`, and `fit` returns a `PopulationResult`.

        A list gives each member a value; several lists are combined to their product, in which the seed changes
        fastest, before the optimizer's keywords, the last one first, and `lr`. A single number applies to all
        members, so at least one value is a list or a distribution. Each member computes, up to rounding, the same as a
        separate run with its values. All members share the data and its order, which depend on the builder's seed.
        `devices(n)` spreads the members over devices.

        Args:
          seed: the seed of initialisation, dropout and every other random key. With several seeds, `build` needs a
            function that returns the model from its random streams: `lambda rngs: Model(rngs=rngs)`.
          lr: the learning rate, which `build` then does not need; with a schedule there, a factor that multiplies it.
          zipped: pair lists of equal length instead: the n-th member gets the n-th value of each list.
          size: the number of members if values are drawn: `lr=loguniform(1e-5, 1e-2)`, `uniform(0.0, 0.1)`. The
            draws depend on `seed`, if it is one number.
          data_order: `"shared"`: all members get the same batches, in the order that the builder's seed determines.
            `"own"`: each member's seed determines its order. This requires shuffled data in memory, and each member
            holds a copy.
          waves: train groups of members one after another, each in a directory such as `wave-1`. True: as few groups
            as the memory of the device allows; a number: that many groups.
          optimizer: numeric keyword arguments of the optimizer, such as `weight_decay`.

        >>> builder = LearnerBuilder("runs/seeds").population(seed=range(3), lr=[1e-4, 1e-3])
        """
        given = {"lr": lr, **optimizer, "seed": seed}
        values = {name: value for name, value in given.items() if value is not None}
        _one_of("data_order of population", data_order, ("shared", "own"))
        population = population_of(values, zipped=bool(zipped), size=size)
        waves = waves if isinstance(waves, bool) else _integer("waves of population", waves, 1)
        return self._set(population=dataclasses.replace(population, data_order=data_order, waves=waves))

    def halving(self, monitor: str, every_epochs: int = 1, keep: float = 0.5, mode: str | None = None) -> Self:
        """Train a population by successive halving: every few epochs, stop the members with the worst values and
        continue the others in a smaller program. The last epoch stops no member.

        Args:
          monitor: the metric that ranks the members, by key, such as `valid/Loss`.
          every_epochs: the number of epochs between two selections.
          keep: the fraction of members to keep, between 0 and 1; their number is rounded up.
          mode: `"min"` or `"max"`; None: the metric's own direction.

        >>> from learner import loguniform
        >>> builder = LearnerBuilder("runs/rates").population(lr=loguniform(1e-4, 1e-1), size=27)
        >>> builder = builder.num_epochs(9).halving("valid/Loss", every_epochs=2, keep=1 / 3)
        """
        return self._set(halving=_selection(Halving(Monitor(monitor, mode), plain_numbers(every_epochs), keep)))

    def exploit(
        self,
        monitor: str,
        every_epochs: int = 1,
        part: float = 0.25,
        factors: Sequence[float] = (0.8, 1.25),
        mode: str | None = None,
    ) -> Self:
        """Train a population by population-based training: every few epochs, replace the members with the worst values
        by copies of some of the best. A copy has their state and their optimizer's numbers, with the learning rate
        multiplied by a factor. The journal of a member records whose state it copied. The last epoch replaces none.

        Args:
          monitor: the metric that ranks the members, by key, such as `valid/Loss`.
          every_epochs: the number of epochs between two replacements.
          part: the fraction of members to replace, at most 0.5. The same number of the best members replace them.
          factors: factors of the learning rate; each replacement draws one, with the builder's seed.
          mode: `"min"` or `"max"`; None: the metric's own direction.

        >>> from learner import loguniform
        >>> builder = LearnerBuilder("runs/rates").population(lr=loguniform(1e-4, 1e-1), size=8)
        >>> builder = builder.num_epochs(20).exploit("valid/Loss", every_epochs=2)
        """
        factors = tuple(factors) if isinstance(factors, Sequence) else (factors,)
        exploit = Exploit(Monitor(monitor, mode), plain_numbers(every_epochs), part, factors)
        return self._set(exploit=_selection(exploit))

    def devices(self, devices: int | str | Sequence[Any]) -> Self:
        """Set the devices: their number, `"all"`, or a list of `jax.Device` objects or ids. Default: one device.
        One device is that of `jax_default_device`, or else JAX's first.

        Several devices use `Replicated`: each holds a replica of the state and gets a share of each batch. With several
        processes, the default is `Sharded` over all of their devices. See `strategy` for finer control.

        If the loss is a mean over rows, the results are the same as on one device. A loss over pairs of rows (in-batch
        negatives) needs `strategy(Sharded())`: under `Replicated` each device sees only its own rows, and the run
        warns about it.
        """
        if self._has_strategy:
            raise LearnerError(
                f"devices({devices!r}) would replace {name_of(self._options.devices)}, the strategy, which has its own "
                "devices: leave one of them out, or give the strategy its devices, such as Sharded(devices=2)",
                code="builder-devices-after-strategy",
            )
        return self._set(devices=choose_devices(devices))

    def strategy(self, strategy: Strategy) -> Self:
        """Set the devices and how to use them: `SingleDevice(device)`, `Replicated(devices)`, or
        `Sharded(mesh, rules)`, which also shards the model. This replaces `devices`, which cannot be called after it.
        """
        if not isinstance(strategy, Strategy):
            raise LearnerError(
                f"strategy got {strategy!r}; it needs Replicated(), Sharded(rules=fsdp()) or the like",
                code="strategy-type",
            )
        self._has_strategy = True
        return self._set(devices=strategy)

    def precision(self, policy: str | Policy, matmul: str | None = None) -> Self:
        """Set the compute dtype of training and validation: `"float32"` (default; nothing is cast), `"bfloat16"`,
        `"float16"`, or a `Policy(param, compute, output)`.

        With a name, parameters, the optimizer's state, running statistics, losses and the sums of metrics stay float32.
        Each step casts parameters and floating-point arrays of the batch, and casts its output back to float32 for the
        metrics. With float16 the loss is scaled (see `LossScale`); a step whose gradients overflow changes only the
        scale, which `experiment.log` records. `on_nonfinite` acts only if the scale is 1, or if the loss itself is not
        finite.

        Args:
          policy: a name or a `Policy`. A layer with its own dtype keeps it.
          matmul: the precision of float32 matrix products and convolutions on accelerators: `"default"`, `"high"` or
            `"highest"`, as in `jax.default_matmul_precision`. Default: JAX's setting.
        """
        return self._set(
            precision=policy_of(policy),
            matmul=None if matmul is None else _one_of("precision(matmul=)", matmul, MATMUL),
        )

    def remat(self, policy: str | Callable[..., Any] | None) -> Self:
        """Rematerialize parts of the train step's forward pass to reduce memory: the backward pass recomputes the
        values that the policy does not save. Default: everything is saved.

        If the layers of a model are a loop (`jax.lax.scan`, `nnx.scan`, `nn.scan`), `"nothing_saveable"` saves only the
        values between layers, and `"dots_saveable"` also the matrix products, which costs less time. If less than half
        of the forward pass is in loops, the whole of it is wrapped in `jax.checkpoint`. `"nothing_saveable"` then does
        not reduce the memory of layers outside of loops, as the backward pass holds them at once. Save the matrix
        products, or leave this option out and wrap the blocks of the model one by one in `nnx.remat`, `nn.remat` or
        `eqx.filter_checkpoint`. On a CPU the compiler merges repeated computations outside of loops, so there is no
        gain. `docs/precision.md` has figures.

        Args:
          policy: the name of a policy in `jax.checkpoint_policies` that takes no arguments, or a function, such as
            `jax.checkpoint_policies.save_only_these_names("hidden")`.
        """
        return self._set(remat=None if policy is None else remat_of(policy))

    def freeze(self, *match: Match) -> Self:
        """Freeze parameters: they get no gradients and no optimizer state. Several calls add up. Statistics, such as
        BatchNorm's, are not parameters and are still updated.

        Args:
          match: regular expressions, as strings or compiled, to search for in the paths of parameters (`"^backbone"`,
            `"conv[12]"`), or predicates `(path, array) -> bool`.

        >>> builder = LearnerBuilder("runs/tuned").freeze("^backbone", "norm")
        """
        for pattern in match:
            matcher(pattern)
        return self._set(freeze=self._options.freeze + match)

    def compilation_cache(self, directory: str | Path) -> Self:
        """Cache the compiled programs of the run in a directory, so that later runs of the same programs need not
        compile them, even in another process. On GPU and TPU the default is a per-user directory.

        JAX's settings are restored when `fit` returns or raises. Without this option, a cache that is already set up
        (`jax_compilation_cache_dir`) is used unchanged.

        Args:
          directory: a path, or an address that JAX accepts (`gs://...`). Whoever can write to it can run code here.
        """
        return self._set(compilation_cache=absolute(directory))

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
        record_items: str | Sequence[str] = ("model",),
    ) -> Self:
        """Set when to save checkpoints and which to keep: the newest, the best, and some permanently. The schedule does
        not change a bit of the training. `with_file_checkpointer(None)` disables saving, and takes no other argument.

        Without an `every_` argument this option saves at the end of every epoch; without this option, a run saves at
        its end, at the first epoch end after each minute, and inside of an epoch ten minutes after the last save, and
        keeps the last and the best checkpoint.

        The best epoch is kept even if no save is due when it ends: a copy of the state stays in memory (for an
        accelerator, in the host's memory) until the next save, the end of the run, or its failure. The same holds for a
        validation inside an epoch. `kill -9` loses the copy; a resumed run repeats the epochs since the newest
        checkpoint.

        Args:
          keep_last: the number of newest checkpoints to keep. A recorder may be passed here instead of as `record`:
            `with_file_checkpointer(CompactRecorder())`.
          keep_best: the number of best checkpoints by `monitor` to keep as well. With 0, no copy stays in memory, and
            the best is chosen among saved checkpoints.
          keep_every: the interval in epochs of checkpoints to keep permanently.
          monitor: a metric by key; default: `valid/Loss`, or `train/Loss` without validation. `custom/NAME`: a number
            that a hook returns as `NAME`; it needs `mode`.
          mode: `"min"` or `"max"`; default: the metric's own direction.
          every_epochs: the interval of saves in epochs; default: 1 if no other `every_` is given.
          every_steps: the interval of saves in optimizer steps.
          every_seconds: the interval of saves in seconds; a save happens between two dispatches.
          record: a recorder, such as `CompactRecorder()`, that also writes the model of each checkpoint to a file
            next to it, `model-<epoch>.mpk.gz` (`model-step-<step>.mpk.gz` inside an epoch), for `load_model`. The file
            is removed with its checkpoint.
          directory: a path, or `gs://...` (with gcsfs); default: `checkpoint/` in the run's directory. `RunMirror`
            copies to other stores.
          record_items: the items that `record` writes: `"model"`, and in full precision `"optim"`
            (`optim-<epoch>.mpk.gz`, for `load_optimizer`) and `"scheduler"` (`scheduler-<epoch>.mpk.gz`, for
            `load_scheduler`).
        """
        if isinstance(keep_last, Recorder):
            if record is not None:
                raise LearnerError(
                    f"with_file_checkpointer got two recorders, {keep_last!r} and record={record!r}; give one",
                    code="checkpoint-two-recorders",
                )
            record, keep_last = keep_last, 2
        if keep_last is None:
            others = (keep_best, keep_every, monitor, mode, every_epochs, every_steps, every_seconds, record, directory)
            if (*others, record_items) != (1, *[None] * 8, ("model",)):
                raise LearnerError(
                    "with_file_checkpointer(None) turns saving off, so its other arguments would have no effect: leave "
                    "them out, or give keep_last, such as 1",
                    code="checkpoint-options-unused",
                )
            return self._set(checkpoints=None)
        if every_epochs is None and every_steps is None and every_seconds is None:
            every_epochs = 1
        return self._set(
            checkpoints=CheckpointOptions(
                keep_last,
                keep_best,
                keep_every,
                monitor,
                mode,
                every_epochs=every_epochs,
                every_steps=every_steps,
                every_seconds=every_seconds,
                record=record,
                record_items=tuple(as_several(record_items)),
                directory=None if directory is None else absolute(directory),
            )
        )

    def restore_best(self, restore: bool = True) -> Self:
        """Return the best model, by the `monitor` of `with_file_checkpointer`: `result.model` is `result.best_model`,
        and `Learner.evaluate` and `predict` use it after `fit`. Checkpoints and resuming are not affected.
        """
        return self._set(restore_best=_boolean("restore_best", restore) or None)

    def on_save_error(self, what: str) -> Self:
        """Set the response to a checkpoint that cannot be written (a full disk, a missing directory): `"raise"`
        (default) ends `fit` with the error after the current dispatch; `"warn"` continues, and tries again when the
        next save is due. Earlier checkpoints are kept in either case. The logs also need disk space: if they cannot be
        written, the run ends, and can be resumed once there is space.
        """
        return self._set(on_save_error=_one_of("on_save_error", what, ("raise", "warn")))

    def checkpoint(
        self, epoch: int | str | None = None, step: int | None = None, allow: str | Sequence[str] = ()
    ) -> Self:
        """Resume the run in the directory from the checkpoint of an epoch or step; `epoch` may also be `"best"` or
        `"latest"`.

        Newer checkpoints are moved to `superseded/`. `allow`: see `resume`. Of several calls of `checkpoint` and
        `resume`, the last one counts.
        """
        if (epoch is None) == (step is None):
            raise LearnerError("checkpoint needs either epoch= or step=", code="checkpoint-epoch-or-step")
        if isinstance(epoch, str) and epoch not in ("best", "latest"):
            raise LearnerError(
                f"checkpoint is {epoch!r}; it needs 'best', 'latest', or the number of an epoch",
                code="checkpoint-which-unknown",
                name=epoch,
            )
        if epoch is not None and not isinstance(epoch, str):
            epoch = _integer("checkpoint(epoch=)", epoch, 1)
        if step is not None:
            step = _integer("checkpoint(step=)", step, 0)
        return self._set(start={**({"step": step} if epoch is None else {"epoch": epoch}), **_allowed(allow)})

    def resume(self, allow: str | Sequence[str] = ()) -> Self:
        """Resume the run in the directory from its newest intact checkpoint, or start a new run if there is no
        checkpoint. A later call of `checkpoint` replaces this one.

        Args:
          allow: changes to accept that otherwise raise. `"data"`: different training data, or another accumulation,
            inside an epoch, which continues after the same number of batches; `"metrics"`: different metrics inside an
            epoch, which start over; `"optimizer"`: an optimizer with a different state, which starts over; `"logs"`:
            logs with missing parts. Other changes with an effect (the learning rate, the optimizer's settings, the
            loss, the data between epochs) are reported in one warning.
        """
        return self._set(start={"resume": True, **_allowed(allow)})

    def initial_from(
        self,
        directory: str | Path,
        which: int | str = "best",
        partial: bool = False,
        step: int | None = None,
        rename: Sequence[tuple[str, str]] = (),
    ) -> Self:
        """Initialise the model from another run's checkpoint, with a new optimizer state and random key, at step 0.

        Ignored if the run in the directory resumes from its own checkpoint.

        Args:
          directory: the directory of the other run, or of its checkpoints.
          which: `"best"`, `"latest"`, or the epoch of the checkpoint.
          partial: load only the arrays with the same path and shape (floats of another precision are rounded), and keep
            the initial values of the others; `experiment.log` lists them. By default any difference raises.
          step: the optimizer step of the checkpoint, instead of `which`.
          rename: pairs of a regular expression and its replacement (`re.sub`), applied in order to the paths of the
            checkpoint: `[("^backbone[.]", "encoder.")]`, or `[("^", "encoder.")]` to prefix all of them.
        """
        refuse_unknown("initial_from", directory, which, step)
        refuse_malformed(rename)
        if not isinstance(partial, bool):
            raise LearnerError(
                f"partial of initial_from is {partial!r}; it needs True or False", code="builder-partial-type"
            )
        initial = {"directory": absolute(directory), "which": which, "step": plain_numbers(step), "partial": partial}
        return self._set(initial={**initial, "rename": tuple(rename)})

    def early_stopping(self, stopping: MetricEarlyStopping) -> Self:
        """Stop when a metric no longer improves. Several calls add up. Set `num_epochs` or `num_steps`, too: without
        them the run ends after one epoch.
        """
        if not isinstance(stopping, MetricEarlyStopping):
            raise LearnerError(
                f"early_stopping got {stopping!r}; it needs MetricEarlyStopping('valid/Loss', patience=5)",
                code="stopping-type",
            )
        return self._set(early_stopping=(*self._options.early_stopping, copy.deepcopy(stopping)))

    def interrupter(self, interrupter: Interrupter) -> Self:
        """Let other code stop the run with `Interrupter.stop(reason)`, from any thread."""
        if not isinstance(interrupter, Interrupter):
            raise LearnerError(
                f"interrupter got {interrupter!r}; it needs an Interrupter()", code="builder-interrupter-type"
            )
        return self._set(interrupter=interrupter)

    def with_time_limit(self, seconds: float | None = None) -> Self:
        """Save and end the run before `seconds` have passed; default: before its SLURM job ends. `resume()` continues
        it. Set `num_epochs` or `num_steps`, too: without them the run ends after one epoch.

        The time reserved for the end is twice the longest save, or a twentieth of the limit (at most half a minute),
        whichever is longer.
        """
        if seconds is None:
            end = job_end()
            if end is None:
                raise LearnerError(
                    "with_time_limit has no seconds, and neither SLURM_JOB_END_TIME nor squeue names the end of a job: "
                    "give with_time_limit(seconds)",
                    code="builder-time-limit-missing",
                )
            return self._set(job_ends=end, time_limit=None)
        if not is_number(seconds) or not seconds > 0:
            raise LearnerError(
                f"with_time_limit got {seconds!r}; it needs a number of seconds greater than 0",
                code="builder-time-limit-value",
                seconds=seconds,
            )
        return self._set(time_limit=float(seconds), job_ends=None)

    def on_sigterm(self, what: str) -> Self:
        """Set how `fit` ends after SIGTERM or SIGHUP: `"exit"` (default) raises `SystemExit(143)`, `"return"` returns
        the result so far. Before that, the current dispatch ends, and a checkpoint and the logs are written.
        """
        return self._set(on_sigterm=_one_of("on_sigterm", what, ("exit", "return")))

    def on_nonfinite(self, what: str, in_a_row: int = 10) -> Self:
        """Set the response to a training loss, gradient norm or weight that is NaN or infinite.

        No checkpoint is saved after such a step, unless it was skipped or ignored. The logs contain the values.

        Args:
          what: `"raise"` (default): `fit` raises `NonFiniteError`, which names the step. `"stop"`: `fit` returns the
            result so far, with the parameters before that step. `"skip"`: the step changes neither the parameters nor
            the optimizer's state, is left out of the means of the epoch, and the run continues. `"ignore"`: nothing is
            checked. `"stop"` and `"skip"` put a branch around the update, which may change last bits.
          in_a_row: under `"skip"`, the number of consecutive skipped steps after which `fit` raises.
        """
        return self._set(
            on_nonfinite=NonFinitePolicy(
                _one_of("on_nonfinite", what, POLICIES), _integer("on_nonfinite(in_a_row=)", in_a_row, 1)
            )
        )

    def watchdog(self, seconds: float, then: str = "log") -> Self:
        """Write the stacks of all threads to `experiment.log` if no step and no validation batch ends for `seconds`,
        once until a step ends again. Default: no watchdog.

        All the time of the run counts, so `seconds` must exceed the longest of these: compilation before the first
        step, a hook, and waiting for a checkpoint, as at the end. Code that never releases Python's interpreter lock
        cannot be watched.

        Args:
          seconds: the timeout, longer than the longest step.
          then: `"log"` (default): the run continues. `"end"`: the run stops as after a signal: it saves a checkpoint
            and `fit` returns; `result.stopped_by` begins with `watchdog`, and the command exits with 75. A call that
            hangs inside a device or a file system cannot react: if no step ends for another `seconds`, the process
            exits with code 75 (a temporary failure, for schedulers that restart jobs). Nothing is saved then, and
            `resume()` continues from the last checkpoint.
        """
        if not is_number(seconds) or not 0 < seconds < math.inf:
            raise LearnerError(
                f"watchdog got {seconds!r}; it needs a number of seconds greater than 0",
                code="builder-watchdog-value",
                seconds=seconds,
            )
        return self._set(
            watchdog=float(seconds), watchdog_ends=_one_of("watchdog(then=)", then, ("log", "end")) == "end"
        )

    def profile(self, steps: tuple[int, int | None]) -> Self:
        """Profile some steps: measure how much of their time the device, the data, the host, metrics and loggers take.

        The result is written to the log and to `profile/profile.json` in the run's directory, with a trace for
        TensorBoard's profiler and, as `perfetto_trace.json.gz`, for Perfetto (https://ui.perfetto.dev). Profiling slows
        the steps slightly. Only the first of several processes is profiled. `learner profile CONFIG` needs no run.

        Args:
          steps: `(10, 20)`: steps 11 to 20, after compilation. `(10, None)`: about one second of steps from step 11. No
            dispatch is longer than this range: if steps are short, choose a few hundred.
        """
        return self._set(profile=Window(*check_steps(steps)))

    def on_batch(self, fn: Callable[..., Any]) -> Self:
        """Transform each training batch with `fn(batch, rng)` or `fn(batch, rng, step)` before the train step: mixup,
        noise, a curriculum. Several calls add up, and the functions run in this order.

        `fn` is a pure function. It is traced into the program and runs on the device. `rng` is a separate key, derived
        from the seed, the step and the index of the micro-batch, so resumed runs are bit-identical. `step`, int32,
        counts the optimizer steps before this one. With `devices(n)`, each device calls `fn` on its own rows.
        Validation batches are not changed.

        Args:
          fn: a function that returns the batch for the train step, of any structure.

        >>> def noisy(batch, rng):
        ...     noise = 0.1 * jax.random.normal(rng, batch["x"].shape)
        ...     return {**batch, "x": batch["x"] + noise}
        >>> builder = LearnerBuilder("runs/noisy").on_batch(noisy)
        """
        return self._set(on_batch=(*self._options.on_batch, BatchTransform.of(fn)))

    def after_step(self, fn: Callable[..., Any]) -> Self:
        """Change the model with `fn(model)` or `fn(model, step)` after each optimizer step: keep weights within bounds,
        let a teacher follow its student, copy a target network. Several calls add up, and the functions run in this
        order.

        `fn` is a pure function of the whole model, frozen parameters and other variables included, and returns it; one
        of nnx modules may change it in place and return nothing. It is traced into the program of the step, and runs
        once per step, whatever `grads_accumulation` and `devices` are, with the values between steps, which half
        precision does not round. `step`, int32, counts the steps so far, with this one: 1 in the first. A step of
        weight 0 and one that is skipped change nothing. Averages of an optimizer (`Ema`, `Swa`) are of the parameters
        before `fn`.

        Args:
          fn: a function that returns the model.

        >>> builder = LearnerBuilder("runs/bounded").after_step(lambda model: {"w": model["w"].clip(-1.0, 1.0)})
        """
        return self._set(after_step=(*self._options.after_step, ModelTransform.of(fn)))

    def on_epoch_end(self, fn: Callable[..., Any]) -> Self:
        """Call `fn(info, model)` after every epoch and its validation, with a copy of the model in eval mode.

        `info` has `epoch`, `step` and `values`. `fn` may return a dict of values to log: numbers, which form the split
        `custom` and can be monitored (`custom/NAME`), texts, `learner.Image(array)` and `learner.Histogram(array)`. It
        may also return `learner.Updates(model=, lr_scale=, stop=)` to change the run before the next step, or to end
        it; assignments to the model are lost unless `fn` returns that model. `fn` may also change streamed data: the
        next epoch is read after it. With several processes, each calls `fn`, and arrays of the model may be sharded
        over them: `jax.experimental.multihost_utils.process_allgather(array, tiled=True)` returns all of their values.
        """
        return self._set(on_epoch_end=(*self._options.on_epoch_end, _hook("on_epoch_end", fn)))

    def every(self, steps: int, fn: Callable[..., Any]) -> Self:
        """Call `fn(info, model)` every `steps` optimizer steps; see `on_epoch_end`. `info.values` holds the values of
        the last complete epoch and validation; it is empty before the first.
        """
        return self._set(every=(*self._options.every, (_integer("every(steps=)", steps, 1), _hook("every", fn))))

    def learner_class(self, kind: type[Learner[Any]]) -> Self:
        """Set the class that `build` returns: a subclass of `Learner`, such as one with its own `loop`."""
        if not (isinstance(kind, type) and issubclass(kind, Learner)):
            raise LearnerError(
                f"learner_class got {kind!r}; it needs a subclass of learner.Learner",
                code="builder-learner-class-type",
                kind=kind,
            )
        return self._set(learner_class=kind)

    def _config_text(self, config_text: str, config_kept: str | None = None, config_private: bool = False) -> Self:
        """Set the config file that started the run; it is written to the run directory.

        Args:
          config_text: the text of the file.
          config_kept: the text that checkpoints store, without the arguments of loggers.
          config_private: whether only this user may read the file.
        """
        kept = config_text if config_kept is None else config_kept
        return self._set(config_text=config_text, config_kept=kept, config_private=config_private)

    # -- the end -------------------------------------------------------------------------------------------------------

    @overload
    def build(
        self,
        model: CreatesModel[ModelT],
        optimizer: Any = None,
        lr: Any = None,
        train: Any = None,
        valid: Any = None,
        *,
        train_step: Callable[..., Any] | None = None,
        valid_step: Callable[..., Any] | None = None,
        predict_step: Callable[..., Any] | None = None,
        update: Callable[..., Any] | None = None,
        trainable: Any = None,
    ) -> Learner[ModelT]: ...

    @overload
    def build(
        self,
        model: FunctionOfRngs[ModelT],
        optimizer: Any = None,
        lr: Any = None,
        train: Any = None,
        valid: Any = None,
        *,
        train_step: Callable[..., Any] | None = None,
        valid_step: Callable[..., Any] | None = None,
        predict_step: Callable[..., Any] | None = None,
        update: Callable[..., Any] | None = None,
        trainable: Any = None,
    ) -> Learner[ModelT]: ...

    @overload
    def build(
        self,
        model: ModelT,
        optimizer: Any = None,
        lr: Any = None,
        train: Any = None,
        valid: Any = None,
        *,
        train_step: Callable[..., Any] | None = None,
        valid_step: Callable[..., Any] | None = None,
        predict_step: Callable[..., Any] | None = None,
        update: Callable[..., Any] | None = None,
        trainable: Any = None,
    ) -> Learner[ModelT]: ...

    @jax.transfer_guard("allow")
    def build(
        self,
        model: Any,
        optimizer: Any = None,
        lr: Any = None,
        train: Any = None,
        valid: Any = None,
        *,
        train_step: Callable[..., Any] | None = None,
        valid_step: Callable[..., Any] | None = None,
        predict_step: Callable[..., Any] | None = None,
        update: Callable[..., Any] | None = None,
        trainable: Any = None,
    ) -> Learner[Any]:
        """Return the learner. Raise one error that lists all problems of the options and the arguments.

        Args:
          model: an `nnx.Module`, `Linen(module, variables)`, an Equinox module, any pytree of arrays, or a function
            that returns one. The function takes no arguments, or `rngs`: `nnx.Rngs` with the builder's seed. It is
            traced, and one program initialises the arrays, which starts sooner; if the strategy shards models, each
            device initialises its own shards. A model does not change: `fit` copies its arrays, which until then must
            neither be donated nor, if they are NumPy's, be assigned to.
          optimizer: a function of the learning rate: `optax.adamw`, `partial(optax.adamw, weight_decay=1e-4)`,
            `lambda lr: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(lr))`. `None` with `update`,
            and for a learner that only evaluates and predicts.
          lr: a float, a schedule of `learner.schedules` or optax (a function of the optimizer step), or
            `ReduceOnPlateau(...)`. A population with rates of its own needs none.
          train: training data, if not given to `fit`.
          valid: validation data, if not given to `fit`.
          train_step: a function `(model, batch)` or `(model, batch, rng)` that returns an output. Default: the model's
            method of that name.
          valid_step: the same for validation.
          predict_step: the same for `predict`, on data without labels. It may return any pytree of arrays. Default: the
            model's method of that name, or else the valid step.
          update: a function that replaces the whole update: `(state, batch, lr, rng) -> (state, output)`. `model` is
            the first state.
          trainable: a predicate `(path, array) -> bool` or a tree of booleans that selects the parameters to
            differentiate; for nnx also an nnx filter.
        """
        options, parts = self._options, ModelParts()
        if options.population is not None:
            options = dataclasses.replace(options, devices=spread_members(options.devices))
        wrong_place = wrong_name(options.directory) or wrong_name(options.checkpoint_place)
        if not wrong_place and (unwritable := problem_with(options.directory)):
            # Evaluating a run needs no writable directory, and `fit` checks it again.
            wrong_place = None if holds_run(options.directory) else unwritable
        problems = [problem for problem in (wrong_place or member_problem(options),) if problem]
        # A population supports only `fit`, which needs an optimizer.
        only_evaluates = optimizer is None and update is None and options.population is None
        if lr is None and only_evaluates:
            lr = 0.0
        elif lr is None and options.population is not None and options.population.has_rates:
            lr = 1.0  # the rates of the members replace it
        definition, problems_of_lr = optimizer_definition(None if update else optimizer, lr, update is not None)
        problems += problems_of_lr
        problems += parts.read(options, model, trainable, update, (train_step, valid_step, predict_step))
        if update is not None:
            problems += problems_of_update(update, optimizer, train_step, trainable, options)
        elif parts.adapter is not None and not only_evaluates:
            check = check_with_model(optimizer, parts.adapter, parts.train, options)
            problems += check.problems
            definition = dataclasses.replace(definition, raw=check.raw)
        if options.population is not None and parts.adapter is not None:
            problems += option_problems(options, model, parts.adapter, lr, update)
        problems += _problems_of_selections(options)
        if options.restore_best and options.checkpoints is None:
            text = "restore_best needs the best checkpoint, and with_file_checkpointer(None) turns saving off"
            problems.append(Problem(f"{text}: leave one of them out", code="checkpoint-restore-best-unsaved"))
        if problems or parts.adapter is None:
            raise one_error(problems, "this learner cannot be built", code="learner-unbuildable")
        loss = Loss()  # one object, as splits with the same metrics share their traces
        for kind in ("train", "valid"):
            if not any(m.name == "Loss" for m in options.metrics_of(kind)):
                options = _with_metrics(options, kind, loss)
        options = _complete_options(options)
        make: type[Learner[Any]] = options.learner_class or Learner
        step = parts.define(parts.adapter, options, update)
        return make(TrainingDefinition(options, step, copy.deepcopy(definition)), train, valid)


def _with_metrics(options: Options, kind: str, *metrics: MetricBase) -> Options:
    """Return the options with further metrics in a split."""
    for metric in metrics:
        before = options.train_metrics if kind == "train" else options.valid_metrics
        if kind not in splits_of(metric):
            raise LearnerError(
                f"the metric {metric.name} has no meaning in the {kind} split, only in {', '.join(splits_of(metric))}",
                code="metric-wrong-split",
                kind=kind,
            )
        if metric.name == "Loss" and not isinstance(metric, Loss):
            raise LearnerError(
                f"the metric {type(metric).__name__} is named 'Loss', like the loss itself, which every run has; "
                "give it a different name",
                code="metric-name-twice",
                kind=kind,
            )
        if any(m.name == metric.name for m in before):
            raise LearnerError(
                f"there are two metrics named {metric.name!r} in the {kind} split; give each a different name",
                code="metric-name-twice",
                kind=kind,
            )
        refuse_same_files([*(m.name for m in before), metric.name])
        changes: dict[str, Any] = {f"{kind}_metrics": (*before, metric)}
        options = dataclasses.replace(options, **changes)
    return options


def _complete_options(options: Options) -> Options:
    """Return the options of a learner, with the values that follow from other options."""
    # Copies, as a run changes the state of its early stopping and plateau, and the builder may build again.
    changes = {name: copy.deepcopy(getattr(options, name)) for name in ("early_stopping", "halving", "exploit")}
    if options.num_epochs is None and options.num_steps is None:
        changes["num_epochs"] = 1
    if options.population is not None:
        changes["population"] = options.population.with_seed(options.seed)
    if options.exploit is not None:
        changes["exploit"] = dataclasses.replace(changes["exploit"], seed=options.seed)
    return dataclasses.replace(options, **changes)


def _integer(name: str, value: Any, least: int) -> int:
    return check_int(name, value, least, code="builder-number-value")


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise LearnerError(
            f"{name} got {value!r}; it needs True or False", code="builder-boolean-value", name=name, value=value
        )
    return value


def _allowed(allow: Any) -> dict[str, tuple[str, ...]]:
    words = tuple(as_several(allow))
    return {"allow": tuple(_one_of("allow", word, tuple(ALLOWED)) for word in words)} if words else {}


def _selection(selection: SelectionT) -> SelectionT:
    if problems := selection.problems():
        raise one_error(problems, code="population-selection")
    return selection


def _problems_of_selections(options: Options) -> list[Problem]:
    """Return a problem if halving or exploitation is set without a population."""
    names = " and ".join(x.name for x in (options.halving, options.exploit) if x is not None)
    if not names or options.population is not None:
        return []
    remedy = (
        "call population(lr=[...]) too"
        if options.config_text is None
        else "use learner sweep CONFIG --together --lr=1e-4,1e-3"
    )
    text = f"{names} ranks the members of a population, but there is no population: {remedy}"
    return [Problem(text, code="population-selection-alone", name=names)]


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
    try:
        inspect.signature(fn).bind(None, None)
    except ValueError:  # a C function without a signature
        pass
    except TypeError as error:
        shown = name_of(fn) if callable(fn) else repr(fn)
        raise LearnerError(
            f"{name} got {shown}: {error}; it needs a function (info, model)", code="builder-hook-type", name=name
        ) from None
    hook: Callable[..., Any] = fn
    return hook
