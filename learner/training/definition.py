"""The definition of a training: the options, the step and its optimizer, and the state before the first step."""

import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import numpy as np

from learner.data.source import source_of
from learner.data.workers import check_process
from learner.errors import LearnerError, Problem, one_error
from learner.models.adapters import refuse_deleted
from learner.optimizers.schedule_resolution import OptimizerDefinition, ResolvedOptimizer
from learner.steps.parts import TracedCall, call_in_parts
from learner.steps.population import Start, as_member, init_population, stacked_shapes
from learner.steps.step import StepFunctions
from learner.steps.step_definition import StepDefinition
from learner.steps.train_state import TrainState
from learner.strategies.base import Strategy
from learner.strategies.choose import choose_devices
from learner.strategies.single import SingleDevice
from learner.training.feed.inputs import run_length
from learner.training.initialization import InitReport, take_initial
from learner.training.options import Options
from learner.training.programs.oom import INIT, OomContext
from learner.util.executables import compile_ahead, compile_threads, share
from learner.util.text import join_names
from learner.util.trees import nonfinite_leaves


class NotPicklable:
    """Base class of objects that need the functions of a run."""

    def __reduce__(self) -> NoReturn:
        raise LearnerError(
            "a learner, and a result of fit, need the functions of their run, which cannot be pickled or deep-copied: "
            "build the learner in the process that trains, and pass on result.history, result.summary and "
            "result.model, or the directory of the run, from which load_checkpoint and RunReader read",
            code="learner-not-picklable",
        )


class TrainingDefinition(NotPicklable):
    """The options, the step and the optimizer of a learner.

    The step is redefined as more becomes known: the length of the run, which resolves schedules; the arrays of another
    run's checkpoint; and whether the train step computes its own gradients.

    Args:
      options: the options of the builder.
      step: the definition of the steps.
      optimizer: the optimizer and the learning rate given to `build`.

    Attributes:
      options: see above.
      optimizer: see above.
      step: the current definition of the step.
      init_report: a report of the arrays loaded from another run's checkpoint, or None.
      tests_rates: True for a range test, which is refused if nothing depends on the learning rate.
    """

    def __init__(self, options: Options, step: StepDefinition, optimizer: OptimizerDefinition):
        check_process()  # first: the code below may read a checkpoint, which a forked process cannot
        self.options, self.optimizer = options, optimizer
        self.init_report: InitReport | None = None
        self.tests_rates = False
        self._definition = step
        self._resolved: ResolvedOptimizer | None = None  # until the length of the run is known
        self.step: StepFunctions
        self.change()
        if options.start is None:
            self.take_initial()

    def __copy__(self) -> "TrainingDefinition":
        other = object.__new__(TrainingDefinition)
        vars(other).update(vars(self))
        return other

    @functools.cached_property
    def strategy(self) -> Strategy:
        """The devices of the run. They are chosen at the first access, as this initializes JAX."""
        return self.options.devices or choose_devices()

    def change(self, **changes: Any) -> None:
        """Build the step from its definition with these changes, and from the optimizer. It can train only once the
        length of the run has resolved the schedules.
        """
        self._definition = dataclasses.replace(self._definition, **changes)
        # Both were traced with the previous definition.
        self._shapes: TrainState | None = None
        self._init: TracedCall | None = None
        optimizer = self._resolved or self.optimizer.without_run_length()
        self.step = StepFunctions.of(self._definition, optimizer.optimizer, optimizer.schedule)

    def trial(self, options: Options, optimizer: OptimizerDefinition, **changes: Any) -> "TrainingDefinition":
        """Return the definition of a short run of the same model with other options."""
        return TrainingDefinition(options, dataclasses.replace(self._definition, **changes), optimizer)

    def on_one_device(self) -> "TrainingDefinition":
        """Return the definition of the same run on the first device."""
        if len(self.strategy.devices) == 1 and self.starts is None:
            return self
        other = copy.copy(self)
        other.strategy = SingleDevice(self.strategy.devices[0])
        return other

    def take_initial(self) -> None:
        """Read the checkpoint of `initial_from`, once. Runs that resume from their own checkpoint never call this."""
        if self.options.initial is not None and self.init_report is None:
            # The user's own `jit` may be tracing at this moment, and its tracers would stay in the model.
            with jax.ensure_compile_time_eval():
                adapter, self.init_report = take_initial(self.options, self.step.adapter)
            self.change(adapter=adapter)

    # -- the length of the run -----------------------------------------------------------------------------------------

    def resolve(self, batches: int | None) -> list[str]:
        """Resolve the schedules for a run with this number of batches per epoch, and return all of their problems."""
        self._resolved, problems = self.optimizer.resolve(run_length(self.options, batches))
        self.change()
        return problems

    def resolve_without_fit(self, train: Any) -> None:
        """Resolve the schedules before `fit` has read the data, from the training data given to `build`."""
        if self._resolved is not None or not (unresolved := self.optimizer.needing_run_length()):
            return
        if train is None and self.options.num_steps is None:
            place, schedule = unresolved[0]
            raise LearnerError(
                f"{place or 'the learning rate'}: {schedule!r} depends on the length of the run, which is known with "
                "the training data: give it to build(..., train=), set num_steps(n), or use "
                "schedule.resolved(num_steps=..., steps_per_epoch=...)",
                code="schedule-length-needed",
            )
        batches = None if train is None else source_of(train, "train", batch_size=self.options.batch_size).batches
        with jax.ensure_compile_time_eval():  # the step may be traced at this moment
            problems = self.resolve(batches)
        if problems:
            raise one_error(problems, code="learner-untrainable")

    def refuse_population(self, method: str) -> None:
        """Raise `LearnerError` if the learner trains a population, which has no such method."""
        if self.options.population is not None:
            instead = f": result[0].{method}(...) does it for a member" if method in ("evaluate", "predict") else ""
            raise LearnerError(
                f"{method} is for one run, and this learner trains a population{instead or ', which has fit only'}",
                code="population-method",
                method=method,
            )

    # -- the first state -----------------------------------------------------------------------------------------------

    def init(self) -> TrainState:
        """Return the state before the first step, on one device, bit-identical to the one in `fit`."""
        refuse_deleted(self.step.adapter)
        if not self.strategy.resident:
            return self.step.init(self.optimizer.lr, self.options.seed)
        # In separate programs, as in `fit`: in a single program XLA rounds small random numbers differently.
        state: TrainState = call_in_parts(*self._init_function())
        return state

    def init_placed(self) -> TrainState:
        """Return the state before the first step, placed by the strategy."""
        with self.init_ahead() as init:
            return init()

    @contextlib.contextmanager
    def init_ahead(self, threads: int | None = None) -> Iterator[Callable[[], TrainState]]:
        """Compile the initialisation in this number of threads, and yield a function that returns the state before the
        first step, placed by the strategy.
        """
        refuse_deleted(self.step.adapter)
        # These programs run once: with fewer passes, XLA's CPU compiler takes a third of the time, and the bits are the
        # same.
        compiled = functools.partial(share, devices=self.strategy.devices, run_once=True)
        with compile_threads(threads) as executor:
            if self.strategy.resident or self.starts is not None:
                programs = self._traced_init().in_parts(self._init_function()[1], compiled)
                programs.compile_ahead(executor)
                make: Callable[[], TrainState] = programs
            else:
                program, arguments = self.step.init_program(self.optimizer.lr, self.options.seed, self.strategy)
                shared = compiled(program)
                compile_ahead(shared, executor, *arguments)
                make = functools.partial(shared, *arguments)

            def init() -> TrainState:
                with OomContext(INIT):
                    state = make()
                    problems = [] if self.step.adapter.fresh is None else init_problems(state.params)
                if problems:
                    raise one_error(problems, code="learner-untrainable")
                return state

            yield init

    def init_fingerprint(self) -> str:
        """Return a hash of the function that makes the state before the first step, including its constants."""
        return self._traced_init().fingerprint()

    def _traced_init(self) -> TracedCall:
        """Return the function that makes the state, traced once for its shapes and its programs."""
        if self._init is None:
            functions: list[Callable[..., TrainState]] = []

            def arguments() -> tuple[Any, ...]:
                function, values = self._init_function()
                functions.append(function)
                return values

            shapes = jax.eval_shape(arguments)  # making a random key would compile programs
            self._init = TracedCall(functions[0], shapes)
        return self._init

    def _init_function(self) -> tuple[Callable[..., TrainState], tuple[Any, ...]]:
        """Return the function that makes the state (in a population, of all members), and its arguments."""
        if self.starts is None:
            return self.step.init_function(self.optimizer.lr, self.options.seed)
        return init_population(self.step, self.starts)

    @property
    def starts(self) -> list[Start] | None:
        """The initial values of the members of a population; None for a single run."""
        population = self.options.population
        return None if population is None else population.starts(self.optimizer.lr)

    def shapes(self) -> TrainState:
        """Return the shapes of the first state (in a population, of one member's). Nothing is computed."""
        if self._shapes is None:
            self._shapes = self._traced_init().shapes if self.starts is None else self._member_shapes(self.starts[0])
        return self._shapes

    def _member_shapes(self, start: Start) -> TrainState:
        def init() -> TrainState:
            make, arguments = self.step.init_function(start.lr_scale, start.seed, start.hyperparameters)
            return as_member(make(*arguments))

        shapes: TrainState = jax.eval_shape(init)
        return shapes

    def placed_shapes(self) -> TrainState:
        """Return the shapes of the state before the first step, with the shardings of the strategy."""
        shapes = self.shapes()
        if self.starts is not None:
            shapes = stacked_shapes(shapes, len(self.starts))
        placed: TrainState = self.strategy.placed_shapes(shapes)
        return placed

    @property
    def lr_scale(self) -> Any:
        """The initial factor of the learning rate, float32: a scalar, or `[members]` for a population."""
        starts = self.starts
        return np.asarray(self.optimizer.lr if starts is None else [s.lr_scale for s in starts], np.float32)


def init_problems(params: Any) -> list[Problem]:
    """Return the problems of the initial parameters of a model."""
    # Raises if memory was short. NumPy, which reads the values, waits forever for arrays that were never allocated.
    bad = nonfinite_leaves(jax.block_until_ready(params))
    if not bad:
        return []
    return [
        Problem(
            f"the model's initial parameters have NaN or infinite values in {join_names(bad, most=6)}",
            code="model-parameters-nonfinite",
        )
    ]
