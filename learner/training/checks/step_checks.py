"""Checks of a step before it is compiled: it is traced on the first batch, and each mismatch is one clear error."""

import dataclasses
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from learner.errors import LearnerError, Problem
from learner.metrics.base import CollectingMetric, Info, Metric, all_within
from learner.steps import batch_transforms
from learner.steps.measure import MetricCollection
from learner.steps.optimizer import raw_gradients_problem
from learner.steps.outputs import OF_LABELS, TrainOutput, as_output
from learner.steps.program_fingerprint import has_own_rules, jaxpr_fingerprint
from learner.steps.step import StepFunctions
from learner.steps.step_definition import StepFn
from learner.steps.train_state import TrainState
from learner.steps.tree_math import rows_of, same_leaves, weight_of
from learner.training.checks.constant_keys import draws_of_constant_keys
from learner.training.checks.logit_activations import activations
from learner.training.checks.row_broadcasts import broadcast_rows
from learner.training.feed.group import listed
from learner.util.code_location import code_location
from learner.util.device_errors import is_device_error
from learner.util.host_random import generator_states
from learner.util.jaxprs import dependent_outputs, forwarded_inputs
from learner.util.text import join_names
from learner.util.traced_values import OF_VALUES, REMEDY, explained, first_line
from learner.util.trees import named_leaves, nonfinite_leaves

PyTree = Any
GIVEN = "the batch"  # in place of a split
CALLERS = 3  # further lines of the user's code in an error


def no_step(name: str) -> str:
    """Return the message for a missing step."""
    return (
        f"there is no {name}: give the model a method {name}(self, batch), or pass build(..., {name}=fn) "
        "with fn(model, batch)"
    )


def check_train(step: StepFunctions, state: TrainState, batch: PyTree) -> tuple[list[str], bool]:
    """Return the problems of a train step on this batch, and True if it computes its own gradients.

    Args:
      step: the definition of the run.
      state: the first state, or its shapes.
      batch: the first batch, NumPy arrays.
    """
    traced = trace_train(step, state, batch)
    return traced.problems, traced.own_grads


@dataclasses.dataclass(frozen=True)
class TracedTrainStep:
    """A train step that was traced on a batch.

    Attributes:
      problems: the problems of the step.
      own_grads: True if it computes its own gradients.
      program: a `ClosedJaxpr` of `(state, batch)` with the outputs of the step. The equations of metrics are traced
        with it, but do not lead to any output.
      written: the names of parameters that the step replaced in its model, which has no effect.
      is_constant: True if the loss depends on no parameter.
      assigned: the names of attributes that the step assigned to its model, which has no effect either.
      host_generators: the names of the host's generators whose random numbers are constants of the program.
      broadcast: the operation of the loss that combines each prediction with the targets of all rows; see
        `broadcast_rows`.
      activation: `softmax` or `sigmoid` if the logits of the output are the result of one.
      has_constant_key: True if the loss needs random numbers from a constant key; see `draws_of_constant_keys`.
    """

    problems: list[str]
    own_grads: bool
    program: Any
    written: list[str]
    is_constant: bool = False
    assigned: Sequence[str] = ()
    host_generators: Sequence[str] = ()
    broadcast: str | None = None
    activation: str | None = None
    has_constant_key: bool = False


@dataclasses.dataclass(frozen=True)
class TracedValidStep:
    """A valid step that was traced on a batch.

    Attributes:
      problems, program: see `TracedTrainStep`.
      changes_state: True if it writes to its model.
      draw_warnings: about its random numbers.
    """

    problems: list[str]
    program: Any
    changes_state: bool
    draw_warnings: list[str]


class _TrainTrace:
    """Trace a train step, and record the findings.

    JAX caches traces by function, so `fresh` returns a new function for each trace.

    Attributes:
      name: the name of the function, in messages.
      problems: the problems of the step; each trace adds its own.
      own_grads: True if the step computes its own gradients.
      replaces: True if a step has replaced parameters of its model.
      assigned: the names of attributes that a step assigned.
      losses: the positions of the loss among the outputs of the last trace; empty if there is none.
      logits: the positions of the logits.
    """

    def __init__(self, step: StepFunctions, batch: PyTree) -> None:
        self._step, self._batch = step, batch
        self.name = "update=" if step.update is not None else "train_step"
        self.problems: list[str] = []
        self.own_grads = self.replaces = False  # no outputs: no tracer may outlive its trace (`jax.checking_leaks`)
        self.assigned: list[str] = []
        self.losses: list[int] = []
        self.logits: list[int] = []

    def fresh(self) -> Callable[[TrainState, PyTree], PyTree]:
        """Return a function of the state and a batch with the results of the step."""
        return lambda state, batch: self._run(state, batch)

    def with_gradients(self, state: TrainState, batch: PyTree) -> PyTree:
        """Return the results of the step and its gradients."""
        step, key = self._step, jax.random.fold_in(state.rng, 0)
        changed = step.train_batch(state, batch, key)
        loss = lambda params: step.run_train(params, state.model_state, changed, key)[0].loss  # noqa: E731
        return self._run(state, batch), jax.grad(loss)(state.params)

    def _run(self, state: TrainState, batch: PyTree) -> PyTree:
        step, key = self._step, jax.random.fold_in(state.rng, 0)
        changed = step.train_batch(state, batch, key)
        if isinstance(batch, _WatchedDict):  # a function of on_batch returns its own dicts
            changed = _watched(changed, batch.misses)
        returned, after = self._train(state, changed, key) if step.update is None else self._update(state, changed, key)
        self.own_grads = isinstance(returned, TrainOutput)
        if self.own_grads and step.update is None:
            step.grads_like(state.params, returned.grads)
            self.problems.extend(_own_grads_problems(step))
        output = returned.output if self.own_grads else returned
        self.problems.extend(_problems(step, output, step.train_metrics, self.name, batch, self._batch, state))
        arrays = _arrays((returned, after))
        self.losses = [index for index, x in enumerate(arrays) if x is getattr(output, "loss", None)]
        self.logits = [index for index, x in enumerate(arrays) if x is getattr(output, "logits", None)]
        return arrays

    def _train(self, state: TrainState, batch: PyTree, key: Any) -> tuple[Any, PyTree]:
        written: list[tuple[PyTree, PyTree]] = []
        returned, after = self._step.run_train(
            state.params, state.model_state, batch, key, written=written, assigned=self.assigned
        )
        self.replaces |= not all(same_leaves(*pair) for pair in written)
        return returned, after

    def _update(self, state: TrainState, batch: PyTree, key: Any) -> tuple[Any, PyTree]:
        step: Any = self._step
        model = step.adapter.merge(state.params, state.model_state, key, train=True)
        result = step.update(model, batch, state.lr_scale, key)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise LearnerError(
                f"update= returned {type(result).__name__}; it needs to return (state, output)",
                code="step-update-returns",
            )
        after = step.updated(result[0], state)
        return as_output(result[1]), after


def trace_train(step: StepFunctions, state: TrainState, batch: PyTree, raw: Sequence[str] = ()) -> TracedTrainStep:
    """Return the traced train step with its problems; see `check_train`. `raw`: see `OptimizerDefinition`."""
    trace = _TrainTrace(step, batch)
    functions = [transform.fn for transform in step.on_batch]
    functions += [fn for fn in (step.update, step.train.fn if step.train is not None else None) if fn is not None]
    program, host_generators = _trace_with_draws(
        lambda: _trace(trace.fresh(), (state, batch), trace.name, batch, "train"), functions, trace.problems
    )
    own_grads, losses = trace.own_grads, trace.losses
    is_constant, broadcast = False, None
    activation = activations(program.jaxpr)[trace.logits[0]] if trace.logits else None
    has_constant_key = bool(losses) and draws_of_constant_keys(program.jaxpr, losses[0], rows_of(batch))
    if losses and not own_grads and step.update is None:
        is_constant, broadcast, added = _facts_of_loss(program.jaxpr, losses[0], state, batch, raw)
        if added:
            trace.problems.append(raw_gradients_problem(step.optimizer, added))
    problems = list(trace.problems)  # each further trace adds them again
    if not problems and not own_grads and step.update is None and has_own_rules(program.jaxpr):
        # The rules are traced only with gradients.
        program = _trace(trace.with_gradients, (state, batch), trace.name, batch, "train")
    return TracedTrainStep(
        problems,
        own_grads,
        program,
        _written(step, state, batch) if trace.replaces and not problems else [],
        is_constant,
        list(dict.fromkeys(trace.assigned)),
        host_generators,
        broadcast,
        activation,
        has_constant_key and _draws_follow_rows(trace, state, batch),
    )


def _facts_of_loss(
    jaxpr: Any, loss: int, state: TrainState, batch: PyTree, raw: Sequence[str]
) -> tuple[bool, str | None, list[str]]:
    """Return three facts about the output `loss` of a traced train step: `is_constant` and `broadcast` of
    `TracedTrainStep`, and the names among `raw` of the parameters that it depends on.
    """
    paths = jax.tree_util.tree_leaves_with_path((state, batch))
    of_batch = [path[0].idx == 1 for path, _ in paths]
    of_params = [path[0].idx == 0 and path[1].name == "params" for path, _ in paths]
    is_constant = not dependent_outputs(jaxpr, of_params)[loss]
    broadcast = broadcast_rows(jaxpr, of_params, of_batch, rows_of(batch))[loss]
    places = [place for place, is_param in enumerate(of_params) if is_param]
    # For example, a parameter behind `stop_gradient` has a gradient of 0, which may be added.
    added = [
        name
        for name, place in zip(named_leaves(state.params), places, strict=True)
        if name in raw and dependent_outputs(jaxpr, [index == place for index in range(len(paths))])[loss]
    ]
    return is_constant, broadcast, added


def _draws_follow_rows(trace: _TrainTrace, state: TrainState, batch: PyTree) -> bool:
    """Return True if a traced train step also has draws of constant keys for each row of a batch twice as long, or
    accepts no other length. Otherwise their number equals the number of rows by accident, as in a fixed projection.
    """
    rows = rows_of(batch)
    longer = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((2 * rows, *x.shape[1:]) if x.shape[:1] == (rows,) else x.shape, x.dtype), batch
    )
    try:
        program = jax.make_jaxpr(trace.fresh())(state, longer)
    except Exception:  # of any kind: the code is the user's
        return True
    return draws_of_constant_keys(program.jaxpr, trace.losses[0], 2 * rows)


def _trace_with_draws(
    trace: Callable[[], Any], functions: Sequence[Any], problems: Sequence[str]
) -> tuple[Any, list[str]]:
    """Return a traced program, and the names of the host's generators that the functions draw from in it."""
    before = generator_states(functions)
    program = trace()
    after = generator_states(functions)
    names = [name for (name, key), state in before.items() if after.get((name, key)) != state]
    # Other threads may have drawn, such as those that read data: the step's own draws differ in a second trace.
    if names and not problems and jaxpr_fingerprint(trace()) == jaxpr_fingerprint(program):
        names = []
    return program, names


def _written(step: StepFunctions, state: TrainState, batch: PyTree) -> list[str]:
    """Return the names of the parameters that a train step replaces. Parameters that it only passes through jitted
    functions or a cast do not count.
    """

    def params_after(params: PyTree, model_state: PyTree, batch: PyTree, rng: Any) -> list[Any]:
        pairs: list[tuple[PyTree, PyTree]] = []
        key = jax.random.fold_in(rng, 0)
        given = dataclasses.replace(state, params=params, model_state=model_state, rng=rng)
        step.run_train(params, model_state, step.train_batch(given, batch, key), key, written=pairs)
        return jax.tree.leaves(pairs[0][1])

    program = jax.make_jaxpr(params_after)(state.params, state.model_state, batch, state.rng)
    sources = forwarded_inputs(program.jaxpr)
    return [name for index, name in enumerate(named_leaves(state.params)) if sources[index] != index]


def check_valid(step: StepFunctions, state: TrainState, batch: PyTree, split: str) -> list[str]:
    """Return the problems of the valid step on the first batch of a split."""
    return trace_valid(step, state, batch, split).problems


def trace_valid(step: StepFunctions, state: TrainState, batch: PyTree, split: str) -> TracedValidStep:
    """Return the valid step, traced on the first batch of a split."""
    problems: list[str] = []
    changed: list[bool] = []

    def once(state: TrainState, traced: PyTree) -> PyTree:
        written: list[tuple[PyTree, PyTree]] = []
        output = step.run_valid(state, traced, jnp.int32(0), written=written)
        before, after = (named_leaves(tree) for tree in written[0])
        changed[:] = [after.get(name, leaf) is not leaf for name, leaf in before.items()]
        problems.extend(_problems(step, output, step.valid_metrics, "valid_step", traced, batch, state))
        return _arrays(output)

    program, host_generators = _trace_with_draws(
        # JAX caches traces by function; a new lambda is traced again.
        lambda: _trace(lambda *given: once(*given), (state, batch), f"valid_step (on {split})", batch, split),
        [] if step.valid is None else [step.valid.fn],
        problems,
    )
    draws = _warnings_of_draws("valid_step", step, step.valid, program, host_generators, state)
    return TracedValidStep(problems, program, any(changed), draws)


def _warnings_of_draws(
    name: str, step: StepFunctions, fn: StepFn | None, program: Any, host_generators: Sequence[str], state: TrainState
) -> list[str]:
    """Return the warnings about random numbers of a traced step that validates or predicts."""
    warnings = []
    results = "validation has" if name == "valid_step" else "predictions have"
    if _drops_in_eval_mode(step, fn, program, state):
        warnings.append(
            f"{name} draws from the random stream 'dropout' of its linen module, so {results} dropout: give the mode "
            "to the call, such as model(x, train=model.train), or, where it is a field of the module, use "
            f"Linen(model.module.clone(deterministic=True), model.variables) in {name}. For dropout that you want "
            "there nothing is wrong"
        )
    if host_generators:
        remedy = f"Take a key, {name}(model, batch, rng), and draw with jax.random"
        warnings.append(warning_of_draws(name, host_generators, remedy))
    return warnings


def warning_of_draws(name: str, generators: Sequence[str], remedy: str) -> str:
    """Return the warning about a step that draws from generators of the host."""
    return (
        f"{name} draws random numbers from {join_names(generators, most=3)} when it is "
        "traced, so they are constants of the compiled program: each step has the same ones, and a resumed run "
        f"others. {remedy}"
    )


def _drops_in_eval_mode(step: StepFunctions, fn: StepFn | None, program: Any, state: TrainState) -> bool:
    """Return True if a traced step that validates or predicts has random dropout: its model is a linen module with no
    other stream, the step takes no random key, and an output depends on one.
    """
    if step.adapter.rngs != ("dropout",) or fn is None or fn.takes_rng:
        return False
    # For a scan over layers, which gets keys in each mode, only this shows if an output needs them.
    _, used = partial_eval.dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    is_key = [path[0] == jax.tree_util.GetAttrKey("rng") for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    return any(is_used for is_used, of_rng in zip(used, is_key, strict=False) if of_rng)  # the batch comes after


def _arrays(tree: PyTree) -> list[Any]:
    """Return the leaves that a traced function can return. An invalid output may have other leaves, which `_problems`
    reports.
    """
    leaves = jax.tree.leaves(tree)
    return [x for x in leaves if isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex)]


def check_predict(step: StepFunctions, state: TrainState, batch: PyTree) -> list[str]:
    """Return the warnings about `predict_step`. Raise `LearnerError` if the predict step reads a key that the first
    batch lacks.
    """
    name = "valid_step" if step.predict is None else "predict_step"

    def trace() -> Any:
        once = lambda state, batch: step.predictions(state, batch, jnp.int32(0))  # noqa: E731 (a new one is traced anew)
        return _trace(once, (state, batch), name, batch, GIVEN)

    try:
        program, host_generators = _trace_with_draws(trace, [] if step.predict is None else [step.predict.fn], [])
    except LearnerError as error:
        if error.code != "batch-missing-key" or step.predict is not None:
            raise
        raise LearnerError(
            f"{error}. To predict without labels, give the model a method predict_step(self, batch), or pass "
            "build(..., predict_step=fn) with fn(model, batch), which returns what to predict",
            code=error.code,
            **error.fields,
        ) from None
    if step.predict is None:  # a run warns of its valid step
        return []
    return _warnings_of_draws(name, step, step.predict, program, host_generators, state)


def _trace(once: Any, arguments: tuple[Any, ...], name: str, batch: PyTree, split: str) -> Any:
    try:
        with Tracing(name, split, lambda: batch):
            return jax.make_jaxpr(once)(*arguments)
    except KeyError as error:
        if missed := _missed(once, arguments):
            what, key, keys = missed
            which = "a batch" if what == "batch" else what
            if any(frame.filename == batch_transforms.__file__ for frame in traceback.extract_tb(error.__traceback__)):
                name = "on_batch"
            elif what == "batch" and set(keys) != set(batch):
                which = "on_batch returns a batch that"
            raise LearnerError(
                f"{name} reads {what}[{key!r}], which is not there; {which} has {', '.join(map(repr, keys))}",
                code="batch-missing-key",
                name=name,
                key=key,
            ) from error
        raise


def _missed(once: Any, arguments: tuple[Any, ...]) -> tuple[str, Any, list[Any]] | None:
    """Return the name of the batch's dict that lacks a key that the step reads, the key, and the existing keys, or None
    if a KeyError has another cause. The step is traced again with dicts that record missing keys; everywhere else a
    batch has plain dicts.
    """
    *others, batch = arguments
    misses: list[tuple[str, Any, list[Any]]] = []
    try:
        jax.eval_shape(lambda *given: once(*given[:-1], _watched(given[-1], misses)), *others, batch)
    except KeyError as error:
        if misses and error.args == (misses[-1][1],):
            return misses[-1]
    except Exception:  # another error than before: the cause is unknown
        return None
    return None


@jax.tree_util.register_pytree_with_keys_class
class _WatchedDict(dict[Any, Any]):
    """A dict of a batch that records the keys that are missing."""

    def __init__(self, content: dict[Any, Any], name: str, misses: list[tuple[str, Any, list[Any]]]):
        super().__init__(content)
        self.name, self.misses = name, misses

    def __missing__(self, key: Any) -> Any:
        self.misses.append((self.name, key, list(self)))
        raise KeyError(key)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        keys = sorted(self)
        return [(jax.tree_util.DictKey(key), self[key]) for key in keys], (tuple(keys), self.name, _Same(self.misses))

    @classmethod
    def tree_unflatten(cls, fixed: Any, children: Any) -> "_WatchedDict":
        keys, name, same = fixed
        return cls(dict(zip(keys, children, strict=True)), name, same.value)


@dataclasses.dataclass(frozen=True, eq=False)
class _Same:
    """A wrapper that is equal only to itself."""

    value: Any


def _watched(batch: PyTree, misses: list[tuple[str, Any, list[Any]]], name: str = "batch") -> PyTree:
    """Return the batch with watched dicts, including those inside dicts, tuples and lists."""
    if type(batch) is dict:
        inner = {key: _watched(value, misses, f"{name}[{key!r}]") for key, value in batch.items()}
        return _WatchedDict(inner, name, misses)
    if type(batch) in (tuple, list):
        return type(batch)(_watched(x, misses, f"{name}[{i}]") for i, x in enumerate(batch))
    return batch


OF_TRACED_CONSTANTS = "Computation compiled for"  # JAX's error about more inputs than the call has


class Tracing:
    """A context manager for code that may trace a step. If the model does not fit the batch, the error describes the
    batch.

    Args:
      name: the name of the step.
      split: the split of the data, or `GIVEN`.
      batch: returns the batch, or its shapes; only called after an error.

    Raises:
      LearnerError: replaces the errors of JAX and flax about mismatched shapes, dtypes or structures. Other exceptions
        get a note.

    >>> with Tracing("train_step", "train", lambda: {"x": np.zeros((2, 3), np.float32)}):
    ...     raise TypeError("mine")
    Traceback (most recent call last):
    learner.errors.LearnerError: train_step cannot be traced with a train batch (x: float32[2, 3]): TypeError: mine ...
    """

    def __init__(self, name: str, split: str, batch: Callable[[], PyTree]) -> None:
        self._name, self._split, self._batch = name, split, batch

    def __enter__(self) -> None:
        """Do nothing, as only errors are handled."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        """Add the batch to the error."""
        # Errors of a device are about memory, hardware or other processes, and not about the step.
        if not isinstance(error, Exception) or isinstance(error, LearnerError) or is_device_error(error):
            return
        if isinstance(error, OF_VALUES):
            raise LearnerError(
                f"{self._name} needs the value of an array ({code_location(error)}), and it is traced, before there "
                f"are values: {first_line(error)}. {REMEDY}",
                code="step-needs-value",
            ) from error
        if isinstance(error, jax.errors.UnexpectedTracerError) or str(error).startswith(OF_TRACED_CONSTANTS):
            raise LearnerError(
                f"{self._name} (or a metric) uses a value that an earlier call kept, in a list, a global variable, a "
                "closure or an attribute: it was traced, and has no number. Return it instead, as a field of the "
                "output or in the model. `with jax.checking_leaks():` around the run shows what keeps it",
                code="step-keeps-tracer",
            ) from error
        if isinstance(error, RuntimeError) and "requires a key" in str(error):  # of Equinox
            raise LearnerError(
                f"{self._name} runs a layer that needs a random key ({code_location(error)}): {error} Let the step "
                "take a third argument, (model, batch, rng), and pass the model a key for each row: "
                "jax.random.split(rng, len(x))",
                code="step-needs-key",
            ) from error
        if isinstance(error, NameError) and "unbound axis name" in str(error):
            raise LearnerError(
                f"{self._name} exchanges arrays over an axis that is not mapped ({code_location(error)}): "
                f"{str(error).partition(chr(10))[0]}. Gradients, metrics and batch statistics of several devices are "
                "averaged for you: leave pmean and psum out",
                code="step-axis-unbound",
            ) from error
        which = GIVEN if self._split == GIVEN else f"a {self._split} batch"
        which = f"{which} ({listed(self._batch())})"
        # The user's exceptions keep their type, by which they may be caught.
        if not _may_be_of_shapes(error):
            error.add_note(f"while tracing {self._name} with {which}")
            return
        raise LearnerError(
            f"{self._name} cannot be traced with {which}: {type(error).__name__}: {error} "
            f"({code_location(error, callers=CALLERS)})",
            code="step-trace-failed",
        ) from error


def _may_be_of_shapes(error: Exception) -> bool:
    """Return True for the exceptions that JAX and flax raise if shapes, dtypes or structures do not match."""
    # Not imported here, as models of other libraries do not need flax.
    flax = sys.modules.get("flax.errors")
    return isinstance(error, TypeError | ValueError) or (flax is not None and isinstance(error, flax.FlaxError))


def _own_grads_problems(step: StepFunctions) -> list[str]:
    """Return the options that require gradients computed by the learner."""
    computes = "but train_step computes its own gradients (TrainOutput)"
    problems: list[str] = []
    if step.policy.scaling is not None:
        problems.append(
            Problem(
                f"precision {step.policy.description!r} scales the loss before it is differentiated, {computes}: "
                "return an output with a loss, or use precision('bfloat16')",
                code="step-own-gradients-and-loss-scale",
            )
        )
    if step.remat is not None:
        problems.append(
            Problem(
                f"remat is set, {computes}: use jax.checkpoint in it, or return an output with a loss",
                code="step-own-gradients-and-remat",
            )
        )
    return problems


def _problems(
    step: StepFunctions,
    output: Any,
    measure: MetricCollection,
    name: str,
    traced: PyTree,
    batch: PyTree,
    state: TrainState,
) -> list[str]:
    problem = _output_problem(output, name)
    if problem:
        return [problem]
    if wrong_dtypes := step.policy.problems(output, name):
        return wrong_dtypes
    output = step.policy.to_output_dtype(output)
    return [*_wrong_labels(output, measure, name, traced, batch), *_wrong_metrics(output, measure, name, traced, state)]


def _output_problem(output: Any, name: str) -> Problem | None:
    needs = "return an output with a loss, such as ClassificationOutput.from_logits(logits, labels) or Output(loss)"
    if output is None:
        return Problem(f"{name} returned nothing (None); {needs}", code="step-output-missing", name=name)
    if not hasattr(output, "loss"):
        what = (
            f"an array of shape {list(output.shape)}"
            if hasattr(output, "shape")
            else f"{type(output).__name__}{_fields_text(output)}"
        )
        return Problem(
            f"{name} returned {what}, which has no field 'loss'; {needs}", code="step-output-without-loss", name=name
        )
    if jax.tree_util.all_leaves([output]):
        return Problem(
            f"{name} returned {type(output).__name__}, which JAX does not know as a pytree; decorate the dataclass "
            "with @jax.tree_util.register_dataclass",
            code="step-output-no-pytree",
            name=name,
        )
    if not jax.tree_util.all_leaves([output.loss]) and not hasattr(output.loss, "__jax_array__"):
        what = "nothing (None)" if output.loss is None else f"a {type(output.loss).__name__}"
        terms = ": add up the terms of a loss, and return each as a field of its own, which FieldMean logs"
        remedy = "" if output.loss is None else terms
        return Problem(
            f"the loss of {name} is {what}; it needs one number{remedy}",
            code="step-loss-type",
            name=name,
        )
    shape, dtype = jnp.shape(output.loss), jnp.result_type(output.loss)
    if shape != ():
        return Problem(
            f"the loss of {name} has shape {list(shape)}; it needs one number, the mean over the batch",
            code="step-loss-shape",
            name=name,
        )
    if not jnp.issubdtype(dtype, jnp.floating):
        return Problem(
            f"the loss of {name} has dtype {dtype}; it needs a floating-point number", code="step-loss-dtype", name=name
        )
    weight = getattr(output, "weight", None)
    if weight is not None and jnp.shape(weight) != ():
        return Problem(
            f"the weight of {name}'s output has shape {list(jnp.shape(weight))}; it needs one number, what the loss is "
            "the mean over",
            code="step-weight-shape",
            name=name,
        )
    return None


def _fields_text(output: Any) -> str:
    fields = _fields(output)
    return f" with {', '.join(fields)}" if fields else ""


def _fields(output: Any) -> list[str]:
    if dataclasses.is_dataclass(output):
        return [f.name for f in dataclasses.fields(output) if getattr(output, f.name) is not None]
    return [name for name in getattr(output, "__dict__", getattr(output, "_fields", ())) if not name.startswith("_")]


def _wrong_labels(output: Any, measure: MetricCollection, name: str, traced: PyTree, batch: PyTree) -> list[str]:
    """Return labels outside of the classes. They are found only if the targets are an unchanged field of the batch that
    a metric, or the loss of an output of this package, reads.

    Labels that a metric ignores do not count.
    """
    targets, logits = getattr(output, "targets", None), getattr(output, "logits", None)
    if (
        targets is None
        or logits is None
        or getattr(output, "mask", None) is not None
        or logits.ndim != targets.ndim + 1
    ):
        return []
    metrics: tuple[Metric | CollectingMetric, ...] = (*measure.metrics, *measure.collecting)
    if not isinstance(output, OF_LABELS) and not any("targets" in metric.fields for metric in metrics):
        return []
    parts = [part for metric in metrics for part in all_within(metric)]
    classes = logits.shape[-1]
    for path, leaf in named_leaves(traced).items():
        if leaf is targets and not isinstance(given := named_leaves(batch)[path], jax.core.Tracer):
            ignored = [part.ignore_label for part in parts if hasattr(part, "ignore_label")]
            labels = np.asarray(given)
            labels = labels[~np.isin(labels, [label for label in ignored if label is not None])]
            if labels.size and (labels.min() < 0 or labels.max() >= classes):
                advice = _label_advice(labels, classes, by_metrics=not isinstance(output, OF_LABELS))
                return [
                    Problem(
                        f"the labels '{path}' go from {labels.min()} to {labels.max()}, but the logits of {name} have "
                        f"{classes} classes (0 to {classes - 1}); {advice}",
                        code="batch-labels-out-of-range",
                        path=path,
                        classes=classes,
                    )
                ]
    return []


def _label_advice(labels: np.ndarray, classes: int, by_metrics: bool) -> str:
    """Return the remedy for labels outside of the classes. `by_metrics`: only metrics read them. Metrics can ignore a
    label; the loss of an output of this package cannot.
    """
    special = (labels < 0) | ((labels == 255) & (classes < 255))  # usual markers of labels that do not count
    counted, advice = labels[~special], []
    if counted.size and (most := int(counted.max())) >= classes:
        from_one = "if they count from 1, subtract 1 from the labels; otherwise "
        advice.append(f"{from_one if counted.min() > 0 and most == classes else ''}they need {most + 1} logits")
    if special.any():
        values, counts = np.unique(labels[special], return_counts=True)
        label = values[counts.argmax()]
        ignored = f", or its metrics ignore_label={label}" if by_metrics else ""
        advice.append(f"where some are not to count, give the output a mask, such as labels != {label}{ignored}")
    return "; ".join(advice)


def _wrong_metrics(output: Any, measure: MetricCollection, name: str, batch: PyTree, state: TrainState) -> list[str]:
    problems: list[str] = []
    weight, known = jnp.asarray(weight_of(output, rows_of(batch)), jnp.float32), state.lr_scale
    info = Info(state.step, weight, known, known, **dict.fromkeys(measure.requires, known))
    metrics: tuple[Metric | CollectingMetric, ...] = (*measure.metrics, *measure.collecting)
    states: dict[int | None, PyTree] = {}  # by index: metrics may share one, which is traced once
    for metric, index in zip(metrics, (*measure.state_of, *[None] * len(measure.collecting)), strict=True):
        missing = [f for f in metric.fields if _field(output, f) is None]
        if missing:
            has = ", ".join(_fields(output))
            problems.append(
                Problem(
                    f"the metric {metric.name} needs {', '.join(missing)}, which {name}'s {type(output).__name__} "
                    f"does not have; it has {has}",
                    code="metric-missing-field",
                    name=metric.name,
                )
            )
            continue
        try:
            problems.extend(_tried(metric, output, info, states, index))
        except Exception as error:
            text = f"the metric {metric.name} cannot be computed from {name}'s output: {explained(error)}"
            code = error.code if isinstance(error, LearnerError) and error.code != "user" else "metric-fails"
            problems.append(Problem(text, code=code, name=metric.name))
    return problems


def _field(output: Any, name: str) -> Any:
    """Return a field of an output, or by a dotted name of one of its heads; None if it is missing."""
    if (field := getattr(output, name, None)) is not None or "." not in name:
        return field
    head, _, rest = name.partition(".")
    part = getattr(output, head, None)
    return _field(types.SimpleNamespace(**part) if isinstance(part, Mapping) else part, rest)


def _tried(
    metric: Metric | CollectingMetric, output: Any, info: Info, states: dict[int | None, PyTree], index: int | None
) -> list[str]:
    """Return the problems of a metric. `states`: the states after this output of metrics that were tried before, by
    `index`.
    """
    if isinstance(metric, CollectingMetric):
        metric.collect(output)
        return []
    if index not in states:
        first = jax.tree.map(jnp.asarray, metric.init())
        state = metric.update(first, None if metric.per_step else output, info)
        for method, new in (("update", state), ("merge", metric.merge(first, first))):
            if _types(new) != _types(first):
                return [
                    Problem(
                        f"{method} of the metric {metric.name} changed its state from {_types(first)} to "
                        f"{_types(new)}; they must be the same",
                        code="metric-state-changes",
                        name=metric.name,
                    )
                ]
        states[index] = state
    value = metric.compute(states[index])
    if metric.numeric and jnp.shape(value) != ():
        return [
            Problem(
                f"the metric {metric.name} gives {list(jnp.shape(value))} numbers; one that is numeric gives a scalar",
                code="metric-value-shape",
                name=metric.name,
            )
        ]
    return []


def _types(tree: PyTree) -> list[str]:
    return [f"{jnp.result_type(x)}{list(jnp.shape(x))}" for x in jax.tree.leaves(tree)]


def init_problems(params: PyTree) -> list[Problem]:
    """Return the problems of the initial parameters of a model."""
    bad = nonfinite_leaves(params)
    return (
        [
            Problem(
                f"the model's initial parameters have NaN or infinite values in {join_names(bad, most=6)}",
                code="model-parameters-nonfinite",
            )
        ]
        if bad
        else []
    )
