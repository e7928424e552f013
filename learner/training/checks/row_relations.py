"""Detection of losses that relate the rows of a batch to each other: a run on parts of a batch warns about them.

Each device of `Replicated` and each micro-batch has some rows of a batch, and their losses are averaged by weight. This
equals the loss of the whole batch if it is a mean over rows and the weight is their number.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from learner.steps.outputs import TrainOutput, as_output
from learner.steps.step import StepFunctions
from learner.steps.train_state import TrainState
from learner.strategies.base import Strategy
from learner.util.jaxprs import FORWARDING, LOOPS, called_program, computed_from, programs_in
from learner.util.text import join_names
from learner.util.trees import named_leaves

PyTree = Any
SHOWN = 5  # arrays in the text of a warning
T = TypeVar("T")
SHAPING = ("convert_element_type", "copy", "reshape", "squeeze", "broadcast_in_dim")
SUMMING = ("add", "sub", "mul", "neg", "select_n", "reduce_sum", "stop_gradient", "name")
LINEAR = (*SUMMING, "max", "min", "clamp", "scatter", *SHAPING)
"""Primitives whose result for a ratio is still a ratio, or a sum of ratios."""
INDEXING = ("slice", "dynamic_slice", "gather", "concatenate", "transpose", "rev", "pad")
OTHER_AFFINE = ("add", "add_any", "sub", "neg", "select_n", "reduce_sum", "cumsum", "stop_gradient", "name")
AFFINE = (*OTHER_AFFINE, *SHAPING, *INDEXING, *FORWARDING)
"""Primitives whose output is linear in a mean over the rows. So are products, if only one factor depends on it."""
NO_RATIO, RECIPROCAL, OF_SUM, RATIO = range(4)
"""The kinds of a value that is divided by a number of the batch: without one, a constant divided by any number or by a
sum over the rows, and a value of the batch.
"""
FREE, ROWS, SUM, COUNT, SELECTED, OTHER = range(6)
"""The forms of a value; see `_forms`."""
CONSTANT, MEAN, NONLINEAR, MIXED = range(4)
"""The kinds of a value: without an axis of rows no function of a mean over the rows, a linear one, or another; `MIXED`
values depend on the order of the rows by size, or on those before each of them.
"""
REDUCTIONS = ("reduce_sum", "dot_general", "scatter-add")
SELECTIONS = ("reduce_max", "reduce_min", "reduce_prod")
SELECTING = (*SELECTIONS, "reduce_and", "reduce_or", "argmax", "argmin")
LINEAR_IN_ONE = (*AFFINE, "max", "min", "and", "or", "clamp", "scatter", "scatter-add", "dynamic_update_slice")
"""Primitives that keep the form of their inputs, if no more than one of them depends on the rows."""
CUMULATIVE = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")

RELATIONS = {
    NONLINEAR: "multiplies, divides, transforms or compares sums or values of the batch's rows in its loss, as a "
    "correlation of features, a balance of experts, one Dice score of all rows or the greatest loss does",
    MIXED: "sorts or accumulates the batch's rows in its loss, as a Cox loss, a quantile or the mean of the k greatest "
    "losses does",
}
"""Relations between rows in a loss, by its kind."""

MASKED = "ratios of sums over the batch's rows, such as the means of a BatchNorm with a mask"
STATES = {
    SUM: "sums over the batch's rows",
    COUNT: "the number of the batch's rows",
    SELECTED: "the greatest or the least of the batch's values",
}
"""Values in the model's state that differ between the rows of a device and the batch, by form."""

DIVISOR = "its loss by a number that depends on the batch, as a mean over the rows or tokens that a mask keeps does"
REMEDY = "Return that number as the output's weight too; weighted_mean(losses, mask) computes both"


def warnings_of_parts(step: StepFunctions, state: TrainState, batch: PyTree, strategy: Strategy) -> list[str]:
    """Return warnings about a train step in a run that computes it on parts of a batch; none for other runs."""
    is_replicated = strategy.axis is not None and len(strategy.devices) > 1
    if step.train is None or not (is_replicated or step.accumulates):
        return []
    # Traced with the batch and with twice its rows; a step that can only be traced with its own rows is not checked.
    one, other = (_traced(step, state, batch, times) for times in (1, 2))
    parts = ["each device of Replicated sees its own rows alone"] if is_replicated else []
    count = step.accumulate * step.split
    parts += [f"each of {count} micro-batches sees its own rows alone"] if step.accumulates else []
    texts = []
    if one is not None and other is not None:
        programs = one.program, other.program
        if is_replicated and (names := _states_of_rows(step, one, other, strategy)):
            texts.append(_of_states(names))
        shape = rows_on_two_axes(*programs)
        relation = f"has the batch's rows on two axes ({shape}), as a loss over pairs of rows has"
        kind = CONSTANT if shape is not None else kind_of_loss(*programs, len(jax.tree.leaves(state.params)))
        if shape is not None or kind in RELATIONS:
            relation = RELATIONS.get(kind, relation)
            texts.append(_of_relation(step, is_replicated, relation, " and ".join(parts)))
        if kind in RELATIONS:
            return texts  # a weight would not fix it
    mistake = _mistake_of_weight(one, other)
    if mistake is not None and mistake.divides:
        texts.append(
            f"train_step divides {DIVISOR}, {mistake.weight}, and {' and '.join(parts)}: their losses are weighted by "
            f"{mistake.by}, which is a different loss from that of the whole batch. {REMEDY}. Of a sum of several such "
            "losses, multiply each by its number, divide by the rows of the batch, and return these as the weight"
        )
    elif mistake is not None:
        texts.append(
            f"train_step sums its loss over the rows without dividing by their number, {mistake.weight}, and "
            f"{' and '.join(parts)}: the mean of their losses is less than that of the whole batch. Return the mean "
            "over the rows"
        )
    return texts


def warnings_of_batches(
    step: StepFunctions, state: TrainState, batch: PyTree, split: str, batches: int | None
) -> list[str]:
    """Return a warning if the loss of a validation split depends on the size of its batches, for a valid step without a
    weight that depends on the batch. `batches`: their number, or None if it is unknown.
    """
    if step.valid is None or batches == 1:
        return []
    one, other = (_traced_valid(step, state, batch, times) for times in (1, 2))
    params = len(jax.tree.leaves(state.params))
    if one is not None and other is not None and kind_of_loss(one.program, other.program, params) in RELATIONS:
        return []  # such as a correlation: no weight makes its mean that of all rows
    mistake = _mistake_of_weight(one, other)
    if mistake is None:
        return []
    value = (
        f"{split}/Loss is the mean of the losses of its batches, weighted by {mistake.by}, and depends on their size"
    )
    if mistake.divides:
        return [
            f"valid_step divides {DIVISOR}, and {mistake.weight}: {value}. {REMEDY}. Ignore this warning if that "
            "number is the same for each row"
        ]
    return [
        f"valid_step sums its loss over the rows without dividing by their number, and {mistake.weight}: {value}. "
        "Return the mean over the rows"
    ]


@dataclasses.dataclass(frozen=True)
class _Mistake:
    """A loss of parts of a batch that are not weighted by what it is the mean over.

    Attributes:
      divides: True if it divides by a number that depends on the batch; False if it is a sum.
      weight: what is wrong with the weight.
      by: the weight.
    """

    divides: bool
    weight: str
    by: str


def _mistake_of_weight(one: "_Traced | None", other: "_Traced | None") -> _Mistake | None:
    """Return the mistake of a step that was traced with a batch and with twice its rows."""
    if one is None or not one.has_fixed_weight:
        return None
    texts = ("its output has no weight", "the number of their rows")
    if one.has_weight:
        texts = ("the weight of its output does not depend on the batch", "that weight")
    if divides_by_data(one.program, None if other is None else other.program, one.inputs):
        return _Mistake(True, *texts)
    return _Mistake(False, *texts) if other is not None and is_sum(one.program, other.program) else None


def _of_states(names: Mapping[str, list[str]]) -> str:
    kept = " and ".join(f"{values} ({join_names(arrays, SHOWN)})" for values, arrays in names.items())
    return (
        f"train_step keeps {kept} in the model's state, and each device of Replicated sees its own rows alone: the "
        "devices average such values, but integers and booleans are those of the first device. strategy(Sharded()) "
        "computes with the rows of all devices. Ignore this warning about a ratio whose divisor is equal on all devices"
    )


def _of_relation(step: StepFunctions, is_replicated: bool, relation: str, parts: str) -> str:
    advice = ["strategy(Sharded()) computes with the rows of all devices"] if is_replicated else []
    advice += ["a larger batch_size in place of grads_accumulation has all rows"] if step.accumulates else []
    return (
        f"train_step {relation}, and {parts}: such a loss differs from that of the whole batch. {'; '.join(advice)}. "
        "A loss that is a mean over rows does not change"
    )


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A step that was traced with a multiple of the rows of a batch.

    Attributes:
      program: the program, whose outputs are the loss, the weight, the arrays of the model's state after a train step,
        and what the step returned.
      has_weight: True if the step's output has a weight.
      has_fixed_weight: True if the output has no weight, or one that does not depend on the batch.
      inputs: the number of inputs that belong to the batch, followed by one other input.
    """

    program: Any
    has_weight: bool
    has_fixed_weight: bool
    inputs: int


def _traced(step: StepFunctions, state: TrainState, batch: PyTree, times: int) -> _Traced | None:
    """Return the traced train step, or None if it cannot be traced."""
    return _trace(
        lambda given, rows: step.run_train(given.params, given.model_state, rows, given.rng)[:2], state, batch, times
    )


def _traced_valid(step: StepFunctions, state: TrainState, batch: PyTree, times: int) -> _Traced | None:
    """Return the traced valid step, or None if it cannot be traced."""
    return _trace(lambda given, rows: (step.run_valid(given, rows, jnp.int32(0)), ()), state, batch, times)


def _trace(
    run: Callable[[TrainState, PyTree], tuple[Any, PyTree]], state: TrainState, batch: PyTree, times: int
) -> _Traced | None:
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((times * x.shape[0], *x.shape[1:]), x.dtype), batch)
    has_weight: list[bool] = []

    def loss_and_all(params: PyTree, model_state: PyTree, rows: PyTree, rng: Any) -> Any:
        given = dataclasses.replace(state, params=params, model_state=model_state, rng=rng)
        returned, new_state = run(given, rows)
        returned = as_output(returned)
        output = returned.output if isinstance(returned, TrainOutput) else returned
        weight = getattr(output, "weight", None)
        has_weight.append(weight is not None)
        return output.loss, 0.0 if weight is None else weight, new_state, returned

    try:
        jaxpr = jax.make_jaxpr(loss_and_all)(state.params, state.model_state, shapes, state.rng).jaxpr
    except Exception:  # from user code, which may depend on the number of rows
        return None
    inputs, rows = len(jaxpr.invars), len(jax.tree.leaves(batch))
    of_batch = computed_from(jaxpr, [inputs - 1 - rows <= index < inputs - 1 for index in range(inputs)])
    return _Traced(jaxpr, has_weight[0], not of_batch[1], rows)


def rows_on_two_axes(one: Any, other: Any) -> str | None:
    """Return the first array of a traced program, such as `float32[16, 16]`, that differs on two axes from its
    counterpart in the program for twice the rows: such axes depend on the rows, even if other sizes are equal by
    chance. Return None if there is no such array, or if it cannot be known.
    """
    if [e.primitive for e in one.eqns] != [e.primitive for e in other.eqns]:
        return None
    for a, b in zip(one.eqns, other.eqns, strict=True):
        for x, y in zip(a.outvars, b.outvars, strict=True):
            if len(_row_axes(x, y)) > 1:
                return f"{x.aval.dtype}{list(_shape(x))}"
        for inner in zip(programs_in(a), programs_in(b), strict=False):
            if array := rows_on_two_axes(*inner):
                return array
    return None


def kind_of_loss(one: Any, other: Any, params: int) -> int:
    """Return the kind of the first output of a traced program as a function of the rows' values that depend on the
    parameters, its `params` first inputs. Return `CONSTANT` if it cannot be known, as in loops.

    A sum that is combined with rows again counts as rows: a norm over the batch is a part of the model.

    Args:
      one: the program.
      other: the same program for twice the rows.
      params: see above.
    """
    if not _correspond(one, other):
        return CONSTANT
    given = [(index < params, CONSTANT) for index in range(len(one.invars))]
    return _propagate(one, other, given, (False, CONSTANT), (False, CONSTANT), _kinds)[0][1]


def _propagate(
    one: Any, other: Any, given: list[T], free: T, of_count: T, rule: Callable[[Any, Any, list[T]], list[T]]
) -> list[T]:
    """Return a fact about each output of the first of two corresponding programs.

    Args:
      one: the program.
      other: the same program for twice the rows.
      given: the facts of the inputs.
      free: the fact of literals and constants.
      of_count: the fact of literals that depend on the number of rows.
      rule: returns the facts of the outputs of an operation of both programs, given those of its inputs.
    """
    known = dict(zip(one.invars, given, strict=True))

    def of(x: Any, y: Any) -> T:
        is_literal = hasattr(x, "val")
        fact: T = free if is_literal else known.get(x, free)
        return of_count if is_literal and str(x.val) != str(getattr(y, "val", None)) else fact

    for a, b in zip(one.eqns, other.eqns, strict=False):
        inputs = [of(x, y) for x, y in zip(a.invars, b.invars, strict=True)]
        programs = called_program(a), called_program(b)
        found = rule(a, b, inputs) if None in programs else _propagate(*programs, inputs, free, of_count, rule)
        known.update(zip(a.outvars, found, strict=True))
    return [of(x, y) for x, y in zip(one.outvars, other.outvars, strict=True)]


def _kinds(a: Any, b: Any, inputs: list[tuple[bool, int]]) -> list[tuple[bool, int]]:
    """Return, for each output of an operation, True if it depends on parameters, and its kind, given the same for the
    inputs.
    """
    axes = [_row_axes(x, y) for x, y in zip(a.invars, b.invars, strict=True)]
    trained, kind = any(trained for trained, _ in inputs), _kind(a, inputs, axes)
    kinds = [kind] * len(a.outvars)
    # Each output of a sort is an input in another order: by values of the model, or of the data or a random key.
    if a.primitive.name == "sort" and any(trained for trained, _ in inputs[: a.params["num_keys"]]):
        sorts = [x and a.params["dimension"] in rows for (x, _), rows in zip(inputs, axes, strict=True)]
        kinds = [MIXED if x and _is_inexact(y) else kind for x, y in zip(sorts, a.outvars, strict=True)]
    outputs = zip(a.outvars, b.outvars, kinds, strict=True)
    return [(trained, k if k == MIXED or (_is_inexact(x) and not _row_axes(x, y)) else CONSTANT) for x, y, k in outputs]


def _kind(operation: Any, inputs: list[tuple[bool, int]], axes: list[list[int]]) -> int:
    """Return the kind of an operation's outputs. `axes`: the axes of rows of each input."""
    name, kinds = operation.primitive.name, [kind for _, kind in inputs]
    if MIXED in kinds:
        return MIXED
    of_rows = [bool(rows) and trained for rows, (trained, _) in zip(axes, inputs, strict=True)]
    if any(of_rows) and name in REDUCTIONS:
        return MEAN
    if any(of_rows) and name in SELECTIONS:
        return NONLINEAR
    if any(of_rows) and name in (*CUMULATIVE, "top_k") and _is_inexact(operation.outvars[0]):
        along = operation.params.get("axis", len(_shape(operation.invars[0])) - 1)
        return MIXED if along in axes[0] else CONSTANT
    if max(kinds, default=CONSTANT) == CONSTANT:
        return CONSTANT
    if name in ("mul", "dot_general"):
        is_linear = CONSTANT in kinds
    elif name == "div":
        is_linear = kinds[1] == CONSTANT
    else:
        is_linear = name in AFFINE or name in LOOPS
    return max(kinds) if is_linear else NONLINEAR


def _row_axes(x: Any, y: Any) -> list[int]:
    """Return the axes of an array that differ from those of the array for twice the rows."""
    return [axis for axis, (m, n) in enumerate(zip(_shape(x), _shape(y), strict=False)) if m != n]


def _is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.aval.dtype, jnp.inexact))


def _shape(x: Any) -> tuple[int, ...]:
    return getattr(x.aval, "shape", ())


def is_sum(one: Any, other: Any) -> bool:
    """Return True if the first output of a traced program is linear in a sum over the rows, and never divided by their
    number. Return False if it cannot be known. `other`: the same program for twice the rows.
    """
    return SUM in _forms_of_outputs(one, other)[:1]


def _states_of_rows(step: StepFunctions, one: "_Traced", other: "_Traced", strategy: Strategy) -> dict[str, list[str]]:
    """Return by description the names of the arrays of the model's state that a train step sets to values, or to which
    it adds values, whose average over the devices differs from that of the batch.
    """
    forms = _forms_of_outputs(one.program, other.program)[2:]
    are_ratios = _are_ratios(one.program, other.program, one.inputs)[2:]
    names: dict[str, list[str]] = {}
    for (name, kind), form, is_ratio in zip(named_leaves(step.adapter.kinds).items(), forms, are_ratios, strict=False):
        # The means of other layers are exact if the output's weight is the number of values that the mask keeps.
        is_synced = strategy.sync_batch_norm and kind == "batch_stats"
        masked = MASKED if is_ratio and (is_synced or one.has_fixed_weight) else None
        if values := STATES.get(form, masked):
            names.setdefault(values, []).append(name)
    return names


def _forms_of_outputs(one: Any, other: Any) -> list[int]:
    if not _are_comparable(one, other):
        return []
    return _propagate(one, other, _forms_of_inputs(one, other), FREE, COUNT, _forms)


def _forms_of_inputs(one: Any, other: Any) -> list[int]:
    return [ROWS if has_rows else FREE for has_rows in _have_rows(one.invars, other.invars)]


def _have_rows(variables: Sequence[Any], others: Sequence[Any]) -> list[bool]:
    """Return, for each variable of a program, True if it has another shape in the program for twice the rows."""
    return [_shape(x) != _shape(y) for x, y in zip(variables, others, strict=True)]


def _forms(a: Any, b: Any, inputs: list[int]) -> list[int]:
    """Return the form of each output of an operation: `FREE` of the rows, `ROWS` with an axis of rows, linear in a
    `SUM` over rows or in a value `SELECTED` from them, such as the greatest, a function of their number (`COUNT`), or
    `OTHER`, such as a mean, or a norm of the rows and what it scales.
    """
    return [_form(a.primitive.name, inputs, has_rows) for has_rows in _have_rows(a.outvars, b.outvars)]


def _form(name: str, inputs: list[int], has_rows: bool) -> int:
    """Return the form of an operation's output. `has_rows`: True if it has an axis of rows."""
    forms = set(inputs) - {FREE}
    if not forms:
        return ROWS if has_rows else FREE
    if len(forms) > 1 or name in LOOPS:
        return OTHER
    (form,) = forms
    if has_rows:
        return ROWS if form == ROWS else OTHER
    if form == ROWS:
        return SUM if name in REDUCTIONS else SELECTED if name in SELECTING else OTHER
    if name in ("mul", "dot_general"):
        is_linear = inputs.count(form) == 1
    elif name == "div":
        is_linear = inputs[1] == FREE
    else:
        is_linear = name in LINEAR_IN_ONE
    return form if is_linear or form == COUNT else OTHER


def _are_comparable(one: Any, other: Any) -> bool:
    """Return True if two programs have the same operations, and constants that do not depend on the rows."""
    return _correspond(one, other) and [x.aval for x in one.constvars] == [x.aval for x in other.constvars]


def _correspond(one: Any, other: Any) -> bool:
    """Return True if two programs have the same operations. A batch of one row may be broadcast where two are not."""
    outlines = [[(e.primitive, len(e.invars), len(e.outvars)) for e in program.eqns] for program in (one, other)]
    inner = [[x for equation in program.eqns for x in programs_in(equation)] for program in (one, other)]
    return outlines[0] == outlines[1] and all(map(_correspond, *inner))


def divides_by_data(one: Any, other: Any, inputs: int) -> bool:
    """Return True if the first output of a traced program is a ratio whose denominator is a number of the batch, or a
    sum of such ratios.

    Args:
      one: the program.
      other: the same program for twice the rows, or None.
      inputs: the number of inputs that belong to the batch, followed by the random key.
    """
    return _are_ratios(one, other, inputs, by_numbers=True)[0]


def _are_ratios(one: Any, other: Any, inputs: int, by_numbers: bool = False) -> list[bool]:
    """Return the result of `divides_by_data` for each output. Denominators may be arrays unless `by_numbers`."""
    # Without a pair of programs, sums over the rows are known only if they are numbers.
    has_pair = other is not None and _are_comparable(one, other)
    pair = other if has_pair else one
    of_batch = [len(one.invars) - 1 - inputs <= index < len(one.invars) - 1 for index in range(len(one.invars))]
    given = [_Term(x, form) for x, form in zip(of_batch, _forms_of_inputs(one, pair), strict=True)]
    terms = _propagate(one, pair, given, _Term(), _Term(form=COUNT), partial(_terms, has_pair, by_numbers))
    return [x.kind != NO_RATIO for x in terms]


class _Term(NamedTuple):
    """A value of a traced program.

    Attributes:
      of_batch: True if it depends on the batch.
      form: its form; see `_forms`.
      kind: the kind of its ratio.
    """

    of_batch: bool = False
    form: int = FREE
    kind: int = NO_RATIO


def _terms(of_arrays: bool, by_numbers: bool, a: Any, b: Any, inputs: list[_Term]) -> list[_Term]:
    """Return the outputs of an operation, given its inputs. Only numbers are ratios unless `of_arrays`, and only
    numbers are denominators if `by_numbers`.
    """
    of_batch, forms = any(x.of_batch for x in inputs), _forms(a, b, [x.form for x in inputs])
    outputs = zip(a.outvars, _have_rows(a.outvars, b.outvars), forms, strict=True)
    with_rows = _have_rows(a.invars, b.invars)
    may_divide = [
        not rows and (x.aval.size == 1 or not by_numbers) for x, rows in zip(a.invars, with_rows, strict=True)
    ]

    def kind(x: Any, has_rows: bool) -> int:
        is_checked = of_arrays or x.aval.size == 1
        return _ratio(a, inputs, with_rows, may_divide, has_rows) if is_checked else NO_RATIO

    return [_Term(of_batch, form, kind(x, has_rows)) for x, has_rows, form in outputs]


def _ratio(operation: Any, inputs: list[_Term], with_rows: list[bool], may_divide: list[bool], has_rows: bool) -> int:
    """Return the kind of the ratio of an operation's output. `with_rows` and `has_rows`: True for each input, and for
    the output, with an axis of rows. `may_divide`: True for each input that may be a denominator.
    """
    name, data = operation.primitive.name, [x.of_batch for x in inputs]
    # A number or sum of the batch that is combined with the rows, such as their mean, makes no ratios of them.
    kinds = [x.kind if rows or not has_rows else NO_RATIO for x, rows in zip(inputs, with_rows, strict=True)]
    is_number = operation.outvars[0].aval.size == 1
    of_all = [x.of_batch and may and (x.form == SUM or is_number) for x, may in zip(inputs, may_divide, strict=True)]
    if name == "div" and data[1]:
        return NO_RATIO if not of_all[1] else RATIO if data[0] else OF_SUM if inputs[1].form == SUM else RECIPROCAL
    if name == "div":
        return kinds[0]
    if name == "integer_pow" and operation.params["y"] == -1 and of_all[0]:
        return OF_SUM if inputs[0].form == SUM else RECIPROCAL
    if name in ("mul", "dot_general") and all(data):
        factor = max(x.kind for x in inputs)
        if factor in (RECIPROCAL, OF_SUM):
            # Rows that are scaled by another number of the batch, such as their standard deviation, are no weights.
            return RATIO if factor == OF_SUM or not has_rows else NO_RATIO
        # The factor of a ratio may be its denominator, of a term that becomes a sum again.
        return NO_RATIO if any(of_all) else max(kinds)
    return max(kinds) if name in LINEAR and kinds else NO_RATIO
