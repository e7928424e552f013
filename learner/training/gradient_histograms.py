"""A hook that logs the distribution of gradients."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from learner.data.batch_arrays import batch_arrays
from learner.data.source import source_of
from learner.errors import LearnerError
from learner.models.adapters import adapter_of
from learner.steps.measure import MetricCollection
from learner.steps.outputs import TrainOutput
from learner.steps.step_definition import StepDefinition, step_fn
from learner.steps.tree_math import rows_of
from learner.training.hooks import EpochInfo
from learner.util.samples import Histogram
from learner.util.trees import gathered, named_leaves

PyTree = Any


class GradientHistograms:
    """A hook that returns a histogram of the gradient of each trained parameter: `builder.every(1000,
    GradientHistograms(data))`.

    The gradients of a training step exist only inside of its program. This hook runs the train step on separate rows
    with the current parameters. Rows and random key are the same at each call, so histograms are comparable over the
    run. The model is not changed. Parameters that the builder has frozen are included.

    Args:
      data: a dataset, or arrays by name; or a loader, whose first batch is used.
      rows: the number of rows to use of a dataset or of arrays.
      train_step: as for `build`. Default: the model's own.

    Raises:
      LearnerError: the data has no batch, or there is no train step.

    >>> import jax.numpy as jnp
    >>> from learner import RegressionOutput
    >>> def step(model, batch):
    ...     return RegressionOutput.from_predictions(batch["x"] @ model["w"], batch["y"])
    >>> hook = GradientHistograms({"x": np.eye(2), "y": np.zeros(2)}, train_step=step)
    >>> histogram = hook(EpochInfo(1, 10, {}), {"w": jnp.float32([3, 4])})["w gradient"]
    >>> histogram.edges[[0, -1]]   # of the mean of w**2
    array([3., 4.])
    """

    def __init__(self, data: Any, rows: int = 32, train_step: Callable[..., Any] | None = None):
        source = source_of(data, "gradients", batch_size=rows)
        self._batch = batch_arrays(source.peek(1), "gradients")
        source.close()
        self._train_step = train_step
        self._definition: StepDefinition | None = None
        self._gradients: Callable[..., PyTree]

    def __call__(self, info: EpochInfo, model: Any) -> dict[str, Histogram]:
        """Return the histograms by the parameter's path with the suffix ` gradient`."""
        if self._definition is None:
            self._define(model)
        assert self._definition is not None
        params, model_state = self._definition.adapter.read_all(model)
        gradients = self._gradients(params, model_state, self._batch, jax.random.key(0))
        named = {f"{name} gradient": x for name, x in named_leaves(gradients).items() if np.size(x)}
        return {name: Histogram(gathered(x)) for name, x in named.items()}

    def _define(self, model: Any) -> None:
        step, none = step_fn(model, "train_step", self._train_step), MetricCollection.of(())
        if step is None:
            raise LearnerError(
                f"{type(model).__name__} has no train_step: pass GradientHistograms(data, train_step=step)",
                code="step-hook-no-step",
            )
        definition = StepDefinition(adapter_of(model), step, None, None, none, none)
        parts = *definition.adapter.read_all(model), self._batch, jax.random.key(0)
        returned: list[Any] = []
        jax.eval_shape(lambda *given: returned.append(definition.run_train(*given)[0]), *parts)
        definition = dataclasses.replace(definition, own_grads=isinstance(returned[0], TrainOutput))

        def gradients(params: PyTree, model_state: PyTree, batch: PyTree, key: Any) -> PyTree:
            return definition.differentiate(params, model_state, batch, key, rows_of(batch))[0]

        self._definition, self._gradients = definition, jax.jit(gradients)
