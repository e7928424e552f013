"""The model, the steps and the data of a learner, for questions that do not change it."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from learner.data.batch_arrays import batch_arrays, refuse_wrapped
from learner.data.source import source_of
from learner.errors import LearnerError
from learner.metrics.losses import Loss
from learner.optimizers.schedule_resolution import OptimizerDefinition
from learner.schedules.resolve import rates
from learner.steps.finite import NonFinitePolicy
from learner.steps.measure import MetricCollection
from learner.steps.train_state import TrainState
from learner.training.checked_inputs import ignored_rate, read_checked
from learner.training.definition import TrainingDefinition
from learner.training.feed.group import signature_of
from learner.training.feed.inputs import Inputs, rewound, run_length, valid_sources
from learner.training.programs.single_step import SingleStepRunner
from learner.util.trees import is_key

PyTree = Any
UNKNOWN_LENGTH = 10_000  # steps of a schedule to evaluate if the run has no known length


class CheckTrial:
    """A copy of a learner's definition with its own state, for single steps on one device.

    Steps use the learner's optimizer at the highest learning rate of its schedule, because a question takes fewer steps
    than a warm-up.

    Args:
      definition: the learner's definition, which is not changed.
      train: as for `Learner.fit`.
      valid: as for `Learner.fit`.
      steps: the number of steps that a question may train.
      clock: the time in seconds.

    Attributes:
      definition: the definition of the steps. Their only metric is the loss, and they ignore values that are not
        finite.
      inputs: the data.
      steps: see above.
      clock: see above.
      valid_metrics: the metrics of the run's validation that have a state.
      has_schedule: True if the learning rate of the run is a schedule.
      ignored_rate: see `learner.training.checked_inputs.ignored_rate`.
    """

    def __init__(
        self, definition: TrainingDefinition, train: Any, valid: Any, steps: int, clock: Callable[[], float]
    ) -> None:
        self.steps, self.clock = steps, clock
        self.definition = definition.trial(definition.options, definition.optimizer)
        self.definition.take_initial()
        self.inputs: Inputs = read_checked(self.definition, train, valid)
        self.ignored_rate = ignored_rate(self.definition, self.inputs)  # before the definition changes
        self._simplify()

    def _simplify(self) -> None:
        """Replace the learning rate by a constant, and the metrics by the loss."""
        self.valid_metrics = self.definition.step.valid_metrics.metrics
        definition, batches = self.definition, self.inputs.source("train").batches
        schedule, lr = definition.step.schedule, definition.optimizer.lr
        self.has_schedule = schedule is not None
        if schedule is not None:
            length = run_length(definition.options, batches).steps or UNKNOWN_LENGTH
            lr *= max(rates(schedule, length)[1])
        definition.optimizer = OptimizerDefinition(definition.optimizer.optimizer, lr)
        problems = definition.resolve(batches)
        assert not problems, problems  # `read_checked` has resolved the same schedules
        loss = MetricCollection.of((Loss(),))
        definition.change(train_metrics=loss, valid_metrics=loss, watch=NonFinitePolicy("ignore"))

    @functools.cached_property
    def state(self) -> TrainState:
        """The state before the first step."""
        return self.definition.init()

    @functools.cached_property
    def _runner(self) -> SingleStepRunner:
        return SingleStepRunner(self.definition.step, self.definition.strategy.platform)

    def train(self, state: TrainState, batch: PyTree) -> tuple[TrainState, float]:
        """Return the state after one optimizer step, and the loss before its update. The given state remains valid."""
        state, values = self._runner.train(state, (batch,))
        return state, float(values["Loss"])

    @functools.cached_property
    def evaluate(self) -> Callable[[TrainState, PyTree, Any], PyTree]:
        """The compiled valid step: a function of a state, a batch, and the batch's int32 number, from which its random
        key is derived.
        """
        return jax.jit(self.definition.step.evaluate)

    @property
    def valid_split(self) -> str | None:
        """The first validation split, or None if there is none."""
        return next(iter(self.inputs.valid), None)

    def batches(self, split: str) -> Iterator[PyTree]:
        """Yield the batches of the first epoch as NumPy arrays."""
        for batch in self.inputs.source(split).open(1):
            arrays = batch_arrays(batch, split)
            refuse_wrapped(arrays, split)
            yield arrays

    def regular_batches(self, most: int) -> list[PyTree]:
        """Return the training batches among the first `most` that have the same shapes as the first one."""
        batches = list(itertools.islice(self.batches("train"), most))
        return [batch for batch in batches if signature_of(batch) == signature_of(batches[0])]


@contextlib.contextmanager
def open_trial(
    definition: TrainingDefinition, train: Any, valid: Any, steps: int, clock: Callable[[], float]
) -> Iterator[CheckTrial]:
    """Yield the trial of a learner. Afterwards the data has its original state.

    Raises:
      LearnerError: the learner cannot be trained, or its data can be read only once.
    """
    _refuse_one_shot(definition, train, valid)
    with rewound(train, valid):
        trial = CheckTrial(definition, train, valid, steps, clock)
        with contextlib.closing(trial.inputs):
            yield trial


def _refuse_one_shot(definition: TrainingDefinition, train: Any, valid: Any) -> None:
    options, sources = definition.options, {}
    if train is not None:
        sources["train"] = source_of(train, "train", batch_size=options.batch_size)
    for split, source in {**sources, **valid_sources(options, valid, None)}.items():
        if not source.repeats:
            raise LearnerError(
                f"the {split} data is an iterator (or generator) that can be read once, and a check would use it up: "
                "pass a loader, a list, or the generator function itself",
                code="check-data-read-once",
                split=split,
            )


def bytes_by_leaf(tree: PyTree) -> list[bytes]:
    """Return the bytes of each array of a tree. Random keys are represented by their numbers.

    >>> import jax.numpy as jnp
    >>> bytes_by_leaf({"a": jnp.int32(1), "b": np.zeros(0)})
    [b'\\x01\\x00\\x00\\x00', b'']
    """
    leaves = [jax.random.key_data(x) if isinstance(x, jax.Array) and is_key(x) else x for x in jax.tree.leaves(tree)]
    return [np.asarray(x).tobytes() for x in leaves]
