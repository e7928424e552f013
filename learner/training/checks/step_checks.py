"""Checks of a step before it is compiled: it is traced on the first batch, and each mismatch is one clear error."""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from learner.errors import LearnerError, Problem
from learner.models.base import STATE, ModelAdapter
from learner.models.freezing import frozen_leaves
from learner.steps.optimizer_checks import raw_gradients_problem
from learner.steps.outputs import GeneratedOutput, TrainOutput, as_output
from learner.steps.program_fingerprint import has_own_rules, jaxpr_fingerprint
from learner.steps.step import StepFunctions
from learner.steps.step_definition import ModelChanges, StepFn, changed_attributes, is_model_like
from learner.steps.train_state import TrainState
from learner.steps.tree_math import rows_of, same_leaves
from learner.training.checks.constant_keys import draws_of_constant_keys
from learner.training.checks.logit_activations import activations
from learner.training.checks.output_checks import output_problems
from learner.training.checks.row_broadcasts import broadcast_rows
from learner.training.checks.step_tracing import GIVEN, WatchedDict, trace_step, watched
from learner.util.host_random import generator_states
from learner.util.jaxprs import computed_from, dependent_outputs, forwarded_inputs, needed_inputs
from learner.util.text import join_names
from learner.util.traced_values import explained
from learner.util.trees import layer_of, named_leaves

PyTree = Any
STATISTICS = "batch_stats"  # the kind of the statistics of BatchNorm


def no_step(name: str) -> str:
    """Return the message for a missing step."""
    return (
        f"there is no {name}: give the model a method {name}(self, batch), or pass build(..., {name}=fn) "
        "with fn(model, batch)"
    )


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
      is_unchanged: True if `update=` returns its parameters unchanged.
      assigned: the names of attributes that the step assigned to its model, which has no effect either.
      unfrozen: the names of frozen parameters that the step changes, which keep the new values.
      host_generators: the names of the host's generators whose random numbers are constants of the program.
      broadcast: the operation of the loss that combines each prediction with the targets of all rows; see
        `broadcast_rows`.
      activation: `softmax` or `sigmoid` if the logits of the output are the result of one.
      has_constant_key: True if the loss needs random numbers from a constant key; see `draws_of_constant_keys`.
      loses_state: True if the model has an Equinox `State`, and the step returns no model.
      switched: the names of layers that were given in eval mode, and that the step runs in train mode.
      uncast: the names of `unfrozen`, if other arrays are cast.
      rounded: the names of `unfrozen` if they have to be cast, too, as the step fails with their float32 values.
      lost: the names of items that the step changed in the containers of its model, which it did not return.
      moving: the names of frozen layers whose statistics the step changes.
    """

    problems: list[str]
    own_grads: bool
    program: Any
    written: list[str]
    is_constant: bool = False
    is_unchanged: bool = False
    assigned: Sequence[str] = ()
    unfrozen: Sequence[str] = ()
    host_generators: Sequence[str] = ()
    broadcast: str | None = None
    activation: str | None = None
    has_constant_key: bool = False
    loses_state: bool = False
    switched: Sequence[str] = ()
    uncast: tuple[str, ...] = ()
    rounded: Sequence[str] = ()
    lost: Sequence[str] = ()
    moving: Sequence[str] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of the step's definition that only a trace determines."""
        return {"own_grads": self.own_grads, "unfrozen": self.uncast}


@dataclasses.dataclass(frozen=True)
class TracedValidStep:
    """A valid step that was traced on a batch.

    Attributes:
      problems, program: see `TracedTrainStep`.
      changes_state: True if it writes to its model.
      draw_warnings: about its random numbers.
      has_loss: False for a `GeneratedOutput` without a loss.
      has_fixed_weight: True if its output has no weight, or one that does not depend on the batch.
    """

    problems: list[str]
    program: Any
    changes_state: bool
    draw_warnings: list[str]
    has_loss: bool
    has_fixed_weight: bool


class _TrainTrace:
    """Trace a train step, and record the findings.

    JAX caches traces by function, so `fresh` returns a new function for each trace.

    Attributes:
      name: the name of the function, in messages.
      problems, assigned: see `TracedTrainStep`; each trace adds its own.
      own_grads, is_unchanged, loses_state, moving: see `TracedTrainStep`.
      replaces: True if a step has replaced parameters of its model.
      unfrozen: the names of frozen parameters that a step assigned, perhaps unchanged, as `nnx.remat` does.
      lost: the names of items of containers that a step assigned, perhaps unchanged.
      losses: the positions of the loss among the outputs of the last trace; empty if there is none.
      logits: the positions of the logits.
    """

    def __init__(self, step: StepFunctions, batch: PyTree) -> None:
        self._step, self._batch = step, batch
        self.name = "update=" if step.update is not None else "train_step"
        self.problems: list[str] = []
        # No outputs: no tracer may outlive its trace (`jax.checking_leaks`).
        self.own_grads = self.is_unchanged = self.replaces = self.loses_state = False
        self.assigned: list[str] = []
        self.moving: list[str] = []
        self.unfrozen: list[str] = []
        self.lost: list[str] = []
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
        if isinstance(batch, WatchedDict):  # a function of on_batch returns its own dicts
            changed = watched(changed, batch.misses)
        returned, after = self._train(state, changed, key) if step.update is None else self._update(state, changed, key)
        self.own_grads = isinstance(returned, TrainOutput)
        if self.own_grads and step.update is None:
            step.grads_like(state.params, returned.grads)
            self.problems.extend(_own_grads_problems(step))
        output = returned.output if self.own_grads else returned
        self.problems.extend(output_problems(step, output, step.train_metrics, self.name, batch, self._batch, state))
        arrays = _arrays((returned, after))
        self.losses = [index for index, x in enumerate(arrays) if x is getattr(output, "loss", None)]
        self.logits = [index for index, x in enumerate(arrays) if x is getattr(output, "logits", None)]
        return arrays

    def _train(self, state: TrainState, batch: PyTree, key: Any) -> tuple[Any, PyTree]:
        changes = ModelChanges()
        returned, after, _ = self._step.run_train(state.params, state.model_state, batch, key, changes=changes)
        self.assigned.extend(changes.assigned)
        old, new = changes.items
        self.lost = [name for name, x in old.items() if new.get(name, x) is not x]
        self.replaces |= changes.written is not None and not same_leaves(*changes.written)
        adapter = self._step.adapter
        self.loses_state = after is state.model_state and STATE in jax.tree.leaves(adapter.kinds)
        frozen_after, frozen = (frozen_leaves(adapter, tree) for tree in (after, state.model_state))
        self.unfrozen = [name for name, given in frozen.items() if frozen_after[name] is not given]
        self.moving = _moving_statistics(adapter, state, after, frozen)
        return returned, after

    def _update(self, state: TrainState, batch: PyTree, key: Any) -> tuple[Any, PyTree]:
        step: Any = self._step
        model = step.adapter.merge(state.params, state.model_state, key, train=True)
        attributes = step.adapter.attributes(model)
        result = step.update(model, batch, state.lr_scale, key)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise LearnerError(
                f"update= returned {type(result).__name__}; it needs to return (state, output)",
                code="step-update-returns",
            )
        if is_model_like(result[1], model) and not is_model_like(result[0], model):
            raise LearnerError(
                "update= returned its output before its state; it needs to return (state, output)",
                code="step-update-returns",
            )
        self.assigned.extend(changed_attributes(attributes, step.adapter.attributes(result[0])))
        after = step.updated(result[0], state)
        self.is_unchanged = same_leaves(after[0], state.params)
        return as_output(result[1]), after


def _moving_statistics(adapter: ModelAdapter, state: TrainState, after: PyTree, frozen: Collection[str]) -> list[str]:
    """Return the frozen layers whose statistics a step has changed."""
    layers = {*map(layer_of, frozen)} - {*map(layer_of, named_leaves(state.params))}
    before, kinds = named_leaves(state.model_state), jax.tree.leaves(adapter.kinds)
    changed = [
        layer_of(name.removeprefix(f"collections.{STATISTICS}."))
        for (name, given), kind, new in zip(before.items(), kinds, jax.tree.leaves(after), strict=True)
        if kind == STATISTICS and new is not given
    ]
    return [layer for layer in dict.fromkeys(changed) if layer in layers]


def trace_train(step: StepFunctions, state: TrainState, batch: PyTree, raw: Sequence[str] = ()) -> TracedTrainStep:
    """Return the train step, traced on a batch of NumPy arrays. `state`: the first state, or its shapes; `raw`: see
    `OptimizerDefinition`.
    """
    trace = _TrainTrace(step, batch)
    functions = [transform.fn for transform in step.on_batch]
    functions += [fn for fn in (step.update, step.train.fn if step.train is not None else None) if fn is not None]
    casts = step.train is not None and step.policy.casts and not step.unfrozen
    casts_frozen = casts and bool(frozen_leaves(step.adapter, state.model_state))
    # Only then: its end makes Python show warnings again that it has shown.
    with warnings.catch_warnings() if casts_frozen else contextlib.nullcontext():
        if casts_frozen:
            warnings.simplefilter("ignore", FutureWarning)  # of JAX, about float32 assigned to what is cast here
        program, host_generators = _trace_with_draws(
            lambda: trace_step(trace.fresh(), (state, batch), trace.name, batch, "train"), functions, trace.problems
        )
        unfrozen: Sequence[str] = step.unfrozen
        if not unfrozen and trace.unfrozen and not trace.problems and (casts or step.adapter.changes_in_place):
            select = lambda after, _: {n: x for n, x in named_leaves(after).items() if n in trace.unfrozen}  # noqa: E731
            unfrozen = _changes(step, state, batch, select)
    rounded = unfrozen if casts else ()
    if rounded:
        # As training runs it, with their float32 values. The user's code may work with cast values only.
        with contextlib.suppress(Exception):
            return trace_train(dataclasses.replace(step, unfrozen=tuple(rounded)), state, batch, raw)
    own_grads, losses, loses_state = trace.own_grads, trace.losses, trace.loses_state
    switched = [] if trace.problems else _switched(step, state, batch, program)
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
        program = trace_step(trace.with_gradients, (state, batch), trace.name, batch, "train")
    written: list[str] = []
    lost: list[str] = []
    if trace.replaces and not problems:
        select_written = lambda _, changes: named_leaves(changes.written[1])  # noqa: E731
        # Layers such as nnx.SpectralNorm replace parameters in each call, but not by values that depend on the batch.
        written = _changes(step, state, batch, select_written, of_batch=step.adapter.changes_in_place)
    if trace.lost and not problems:
        lost = _changes(step, state, batch, lambda _, changes: {name: changes.items[1][name] for name in trace.lost})
    return TracedTrainStep(
        problems,
        own_grads,
        program,
        written,
        is_constant=is_constant,
        is_unchanged=trace.is_unchanged,
        assigned=list(dict.fromkeys(trace.assigned)),
        unfrozen=[] if problems else unfrozen,
        host_generators=host_generators,
        broadcast=broadcast,
        activation=activation,
        has_constant_key=has_constant_key and _draws_follow_rows(trace, state, batch),
        loses_state=loses_state,
        switched=switched,
        uncast=step.unfrozen,
        rounded=rounded,
        lost=lost,
        moving=trace.moving,
    )


def update_ignores_rate(jaxpr: Any, state: TrainState, batch: PyTree) -> bool:
    """Return True if no result of a traced update depends on the learning rate."""
    paths = jax.tree_util.tree_leaves_with_path((state, batch))
    is_rate = [path[0].idx == 0 and path[1].name == "lr_scale" for path, _ in paths]
    return not any(dependent_outputs(jaxpr, is_rate))


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


def _changes(
    step: StepFunctions,
    state: TrainState,
    batch: PyTree,
    select: Callable[[PyTree, ModelChanges], Mapping[str, Any]],
    of_batch: bool = False,
) -> list[str]:
    """Return the names of the arrays that a train step changes. Those that it only passes through jitted functions or a
    cast do not count. `select`: returns arrays by name, from the model's state after the step and its other changes;
    `of_batch`: only those that depend on the batch.
    """
    names: list[str] = []

    def arrays_after(params: PyTree, model_state: PyTree, batch: PyTree, rng: Any) -> list[Any]:
        changes = ModelChanges()
        key = jax.random.fold_in(rng, 0)
        given = dataclasses.replace(state, params=params, model_state=model_state, rng=rng)
        changed = step.train_batch(given, batch, key)
        _, after, _ = step.run_train(params, model_state, changed, key, changes=changes)
        selected = select(after, changes)
        names[:] = selected
        return list(selected.values())

    program = jax.make_jaxpr(arrays_after)(state.params, state.model_state, batch, state.rng)
    places = {name: index for index, name in enumerate([*named_leaves(state.params), *named_leaves(state.model_state)])}
    sources = forwarded_inputs(program.jaxpr)
    changed = [i for i, (name, source) in enumerate(zip(names, sources, strict=True)) if source != places.get(name)]
    if of_batch:
        rows = slice(len(places), len(places) + len(jax.tree.leaves(batch)))
        # Together first, as each of them takes a pass over the program, and usually none does.
        depends = any(needed_inputs(program.jaxpr, changed)[rows])
        changed = [i for i in changed if any(needed_inputs(program.jaxpr, [i])[rows])] if depends else []
    return [names[i] for i in changed]


def _switched(step: StepFunctions, state: TrainState, batch: PyTree, program: Any) -> list[str]:
    """Return the layers that were given in eval mode if the step computes something else with them in train mode. A
    whole model in eval mode, such as one that was trained before, is meant to be trained on, but for its frozen layers.
    """
    modes = step.adapter.given_modes
    in_eval = [path for path, is_eval in modes.items() if is_eval]
    if len(in_eval) == len(modes):
        frozen = frozen_leaves(step.adapter, state.model_state)
        in_eval = [path for path in in_eval if any(name.startswith(f"{path}.") for name in frozen)]
    if not in_eval:
        return []
    kept = dataclasses.replace(step, adapter=step.adapter.keeping_in_eval(in_eval))
    try:
        again, other = (jax.make_jaxpr(_TrainTrace(each, batch).fresh())(state, batch) for each in (step, kept))
    except Exception:  # the step may need the layers in train mode
        return []
    # Only of a step whose traces are equal, unlike those of one that draws numbers on the host.
    before, after, in_eval_mode = map(jaxpr_fingerprint, (program, again, other))
    return in_eval if before == after != in_eval_mode else []


def changed_after_step(step: StepFunctions, state: TrainState) -> tuple[list[str], list[str]]:
    """Return the names of the trained parameters that the functions of `after_step` change, and of the attributes that
    they assign, which has no effect.

    Raises:
      LearnerError: they fail, or return another model than they get.
    """

    assigned: list[str] = []

    def transform(params: PyTree, model_state: PyTree, state: TrainState) -> list[Any]:
        return jax.tree.leaves(step.transform_model(params, model_state, state, assigned)[0])

    try:
        program = jax.make_jaxpr(transform)(state.params, state.model_state, state)
    except LearnerError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LearnerError(f"after_step cannot be traced: {explained(error)}", code="step-trace-failed") from error
    sources = forwarded_inputs(program.jaxpr)
    changed = [name for index, name in enumerate(named_leaves(state.params)) if sources[index] != index]
    return changed, assigned


def trace_valid(step: StepFunctions, state: TrainState, batch: PyTree, split: str) -> TracedValidStep:
    """Return the valid step, traced on the first batch of a split."""
    problems: list[str] = []
    changed: list[bool] = []
    generated_loss: list[int] = []  # its position among the outputs
    weight: list[int] = []  # likewise, if it is an array

    def once(state: TrainState, traced: PyTree) -> PyTree:
        changes = ModelChanges()
        output = step.run_valid(state, traced, jnp.int32(0), changes=changes)
        assert changes.written is not None
        before, after = map(named_leaves, changes.written)
        changed[:] = [after.get(name, leaf) is not leaf for name, leaf in before.items()]
        problems.extend(output_problems(step, output, step.valid_metrics, "valid_step", traced, batch, state))
        arrays = _arrays(output)
        generated_loss[:] = [
            i for i, x in enumerate(arrays) if isinstance(output, GeneratedOutput) and x is output.loss
        ]
        weight[:] = [i for i, x in enumerate(arrays) if x is getattr(output, "weight", None)]
        return arrays

    program, host_generators = _trace_with_draws(
        # JAX caches traces by function; a new lambda is traced again.
        lambda: trace_step(lambda *given: once(*given), (state, batch), f"valid_step (on {split})", batch, split),
        [] if step.valid is None else [step.valid.fn],
        problems,
    )
    draws = _warnings_of_draws("valid_step", step, step.valid, program, host_generators, state)
    varying = dependent_outputs(program.jaxpr, [True] * len(program.jaxpr.invars))
    has_loss = all(varying[index] for index in generated_loss)
    count, rows = len(program.jaxpr.invars), len(jax.tree.leaves(batch))
    of_batch = computed_from(program.jaxpr, [index >= count - rows for index in range(count)])
    has_fixed_weight = not any(of_batch[index] for index in weight)
    return TracedValidStep(problems, program, any(changed), draws, has_loss, has_fixed_weight)


def _warnings_of_draws(
    name: str, step: StepFunctions, fn: StepFn | None, program: Any, host_generators: Sequence[str], state: TrainState
) -> list[str]:
    """Return the warnings about random numbers of a traced step that validates or predicts."""
    warnings = []
    results = "validation has" if name == "valid_step" else "predictions have"
    if _drops_in_eval_mode(step, fn, program, state):
        warnings.append(
            f"{name} draws from the random stream 'dropout' of its linen module, so {results} dropout: pass the mode "
            "to the call, such as model(x, train=model.train), or, if it is a field of the module, use "
            f"Linen(model.module.clone(deterministic=True), model.variables) in {name}. Ignore this warning if the "
            "dropout is intended"
        )
    if host_generators:
        remedy = f"Take a key, {name}(model, batch, rng), and draw with jax.random"
        warnings.append(warning_of_draws(name, host_generators, remedy))
    return warnings


def warning_of_draws(name: str, generators: Sequence[str], remedy: str) -> str:
    """Return the warning about a step that draws from generators of the host."""
    return (
        f"{name} draws random numbers from {join_names(generators, most=3)} when it is traced, so they are constants "
        f"of the compiled program: every step has the same ones, and a resumed run has different ones. {remedy}"
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
    """Return the leaves that a traced function can return. An invalid output may have other leaves, which
    `output_problems` reports.
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
        return trace_step(once, (state, batch), name, batch, GIVEN)

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


def _own_grads_problems(step: StepFunctions) -> Iterator[str]:
    """Yield the options that require gradients computed by the learner."""
    computes = "but train_step computes its own gradients (TrainOutput)"
    if step.policy.scaling is not None:
        yield Problem(
            f"precision {step.policy.description!r} scales the loss before it is differentiated, {computes}: "
            "return an output with a loss, or use precision('bfloat16')",
            code="step-own-gradients-and-loss-scale",
        )
    if step.remat is not None:
        yield Problem(
            f"remat is set, {computes}: use jax.checkpoint in it, or return an output with a loss",
            code="step-own-gradients-and-remat",
        )
