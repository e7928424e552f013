"""The parts of a training from the arguments of `build`, checked: the model, its steps, and the optimizer."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from learner.checkpoint.load import makes_model
from learner.errors import LearnerError, Problem
from learner.models.adapters import abstract_adapter, adapter_of, refuse_abstract, refuse_deleted
from learner.models.base import ModelAdapter, NothingToTrainError
from learner.models.freezing import check_freeze_patterns, explain_empty_trainable, tied_paths, trained_of
from learner.models.masks import mask_problems
from learner.models.nnx_modules import module_paths
from learner.models.params import named_arrays
from learner.optimizers.schedule_resolution import OptimizerDefinition, with_placeholder_schedules
from learner.schedules.base import needs_run_length
from learner.schedules.plateau import ReduceOnPlateau
from learner.steps.measure import MetricCollection
from learner.steps.optimizer_checks import (
    OptimizerCheck,
    check_optimizer,
    check_schedule,
    is_built,
    is_schedule,
    no_schedule,
)
from learner.steps.step_definition import StepDefinition, StepFn, step_fn
from learner.training.definition import init_problems
from learner.training.options import Options
from learner.training.population import optimizer_problems
from learner.util.signatures import accepts


@dataclasses.dataclass
class ModelParts:
    """The model and its steps, in the order in which they are checked; None after an earlier problem."""

    adapter: ModelAdapter | None = None
    train: StepFn | None = None
    valid: StepFn | None = None
    predict: StepFn | None = None

    def read(self, options: Options, model: Any, trainable: Any, update: Any, steps: tuple[Any, Any, Any]) -> list[str]:
        """Read the parts from the arguments of `build`, and return all of their problems."""
        problems: list[str] = []
        try:
            selected = trained_of(trainable, options.freeze) if options.freeze else trainable
            self.adapter, model = _split_model(model, selected, update is not None, options)
            _refuse_traced(self.adapter)
            refuse_deleted(self.adapter)
            problems += [] if trainable is None else _mask_problems(trainable, model)
            problems += check_freeze_patterns(options.freeze, self.adapter, model)
            self.train = None if update is not None else step_fn(model, "train_step", steps[0])
            self.valid = step_fn(model, "valid_step", steps[1])
            self.predict = step_fn(model, "predict_step", steps[2])
            # Arrays that the strategy initialises later have no values yet.
            problems += [] if self.adapter.fresh else init_problems(self.adapter.params)
            if options.checkpoints is not None and options.checkpoints.record is not None and not self.adapter.fresh:
                options.checkpoints.record.check(model)
            if (self.train, self.valid, self.predict, update) == (None, None, None, None):
                problems.append(
                    Problem(
                        f"the model ({type(model).__name__}) has no train_step: give it a method train_step(self, "
                        "batch), or pass build(..., train_step=fn) with fn(model, batch)",
                        code="model-train-step-missing",
                    )
                )
        except NothingToTrainError as error:
            text = explain_empty_trainable(options.freeze, trainable, error.adapter) or str(error)
            problems.append(Problem(text, code="model-nothing-to-train"))
        except LearnerError as error:
            problems.append(Problem(error, code=error.code, **error.fields))
        return problems

    def define(self, adapter: ModelAdapter, options: Options, update: Callable[..., Any] | None) -> StepDefinition:
        """Return the definition of the steps. The parts must have no problems."""
        train_metrics, valid_metrics = (MetricCollection.of(options.metrics_of(kind)) for kind in ("train", "valid"))
        train_ids, valid_ids = ([id(m) for m in (*c.metrics, *c.collecting)] for c in (train_metrics, valid_metrics))
        if train_ids == valid_ids:
            valid_metrics = train_metrics  # one object, so that their values are traced once for both
        return StepDefinition(
            adapter,
            self.train,
            update,
            self.valid,
            train_metrics,
            valid_metrics,
            options.accumulate,
            options.split if isinstance(options.split, int) else 1,
            watch=options.on_nonfinite,
            policy=options.precision,
            matmul=options.matmul,
            remat=options.remat,
            on_batch=options.on_batch,
            after_step=options.after_step,
            predict=self.predict,
        )


def _refuse_traced(adapter: ModelAdapter) -> None:
    """Raise `LearnerError` if the arrays of a model have no values, as `build` is called in a function of JAX."""
    leaves = jax.tree.leaves((adapter.params, adapter.model_state))
    if any(isinstance(x, jax.core.Tracer) for x in leaves):
        raise LearnerError(
            "build is called inside of a function that JAX traces (jit, vmap, grad), so the model has no values: build "
            "the learner outside, and pass parameters to its pure functions, learner.train_step("
            "dataclasses.replace(learner.init(), params=params), batch)",
            code="model-traced",
        )


def optimizer_definition(optimizer: Any, lr: Any, has_update: bool) -> tuple[OptimizerDefinition, list[str]]:
    """Return the given optimizer with its learning rate, and all problems of the learning rate."""

    def refuse(problem: str) -> tuple[OptimizerDefinition, list[str]]:
        return OptimizerDefinition(optimizer, 0.0), [
            Problem(f"the learning rate is {problem}", code="learning-rate-value", value=lr)
        ]

    if lr is None and is_built(optimizer):
        return OptimizerDefinition(optimizer, 0.0), []  # the problem of the optimizer names the place of the rate
    if isinstance(lr, ReduceOnPlateau):
        rate = lr.lr if lr.schedule is None else lr.schedule
        definition, problems = optimizer_definition(optimizer, rate, has_update)
        return dataclasses.replace(definition, plateau=lr), problems
    if needs_run_length(lr):  # `fit` checks it, once the length of the run is known
        return OptimizerDefinition(optimizer, 1.0, lr), []
    if is_schedule(lr):
        return OptimizerDefinition(optimizer, 1.0, lr), check_schedule(lr)
    needs = "it needs a float, an optax schedule or one of learner.schedules, or ReduceOnPlateau(...)"
    if lr is None:
        call = (
            "build(model, None, lr, update=fn), or 0.0 if fn ignores it"
            if has_update
            else "build(model, optimizer, lr)"
        )
        return refuse(f"None; {needs}, as the third argument: {call}")
    if problem := no_schedule(lr):
        return refuse(problem)
    if hasattr(lr, "init") and hasattr(lr, "update"):
        return refuse(f"an optimizer; {needs}")
    if isinstance(lr, bool | str | type):
        return refuse(f"{lr!r}; {needs}")
    try:
        value = float(lr)
    except (TypeError, ValueError):
        return refuse(f"{lr!r}; {needs}")
    if not 0 <= value < math.inf:
        return refuse(f"{value}; it needs a number that is 0 or more, and finite")
    return OptimizerDefinition(optimizer, value), []


def check_with_model(optimizer: Any, adapter: ModelAdapter, train: StepFn | None, options: Options) -> OptimizerCheck:
    """Check an optimizer with the model's parameters. Nothing is compiled."""
    own_grads = train is not None and train.returns_gradients
    params = (
        jax.eval_shape(options.precision.to_param_dtype, adapter.params) if options.precision.casts else adapter.params
    )
    resolved = with_placeholder_schedules(optimizer)
    if options.population is not None:
        if problems := list(optimizer_problems(options.population, resolved, params)):
            return OptimizerCheck(problems)
        resolved = options.population.members[0].optimizer(resolved)
    return check_optimizer(resolved, params, options.accumulates, own_grads)


def problems_of_update(update: Any, optimizer: Any, train_step: Any, trainable: Any, options: Options) -> Iterator[str]:
    """Yield the problems of `update=` with the other arguments of `build` and with the options."""
    if not callable(update):
        yield Problem(
            f"update is {update!r}; it needs a function (state, batch, lr, rng) -> (state, output)",
            code="step-update-type",
        )
    elif not accepts(update, *range(4)):
        yield Problem(
            f"update ({getattr(update, '__qualname__', update)}) does not take four arguments by position; it "
            "needs (state, batch, lr, rng)",
            code="step-update-signature",
        )
    if optimizer is not None or train_step is not None:
        yield Problem(
            "update= replaces the train step and the optimizer; pass None as the optimizer and no train_step",
            code="step-update-and-optimizer",
        )
    if options.precision.casts:
        yield Problem(
            f"update= differentiates by itself, so precision {options.precision.description!r} cannot cast inside "
            "it: cast there, and leave precision out (or give its matmul= alone: precision('float32', "
            "matmul='high'))",
            code="step-update-and-precision",
        )
    if options.remat is not None:
        yield Problem(
            "update= differentiates by itself, so remat cannot act on it; use jax.checkpoint there",
            code="step-update-and-remat",
        )
    if options.freeze or trainable is not None:
        name = "freeze" if options.freeze else "trainable="
        yield Problem(
            f"update= sets the parameters itself, so {name} has no effect; keep those parameters unchanged there",
            code="step-update-and-freeze",
            name=name,
        )
    if options.after_step:
        yield Problem(
            "update= makes the whole step, so after_step has no effect: change the new state there",
            code="step-update-and-after-step",
        )
    if options.accumulates:
        yield Problem(
            "update= makes a whole step of each batch; it cannot be used with grads_accumulation",
            code="step-update-and-accumulation",
        )


def _mask_problems(trainable: Any, model: Any) -> list[Problem]:
    arrays = named_arrays(model)
    return mask_problems(trainable, [*arrays, *module_paths(model)], tied_paths(model, arrays))


def _split_model(model: Any, trainable: Any, shared: bool, options: Options) -> tuple[ModelAdapter, Any]:
    """Return the adapter of the model, and the model, or one of its type if a function makes it. One program then
    initialises the arrays in their places. Operation by operation, each shape would be compiled separately.
    """
    if makes_model(model):
        adapter, model = abstract_adapter(model, trainable, shared=shared, seed=options.seed)
        if options.devices is None or not options.devices.splits:
            adapter.note = None  # it is about arrays that are split
        return adapter, model
    refuse_abstract(model)
    return adapter_of(model, trainable, shared=shared), model
