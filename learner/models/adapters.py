"""Models of all libraries, split into differentiated arrays, carried arrays, and the recipe to merge them."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from learner.errors import LearnerError
from learner.models.base import ModelAdapter, NothingToTrainError, Trainable
from learner.models.linen import Linen, LinenAdapter
from learner.models.masks import as_predicate
from learner.models.matching import check_predicate
from learner.models.nnx_modules import NnxAdapter, is_filter, mark_traced, nnx_modules, refuse_values
from learner.models.pytrees import TreeAdapter
from learner.models.tree_structure import is_module
from learner.util.default_device import default_device
from learner.util.executables import share
from learner.util.optional import is_instance_of
from learner.util.own_context import automatic_mesh
from learner.util.text import first_line, join_names
from learner.util.trees import named_leaves, path_name

Array = Any
PyTree = Any
MOST_CONSTANT = 2**20  # bytes of concrete arrays that a model's function may contain, such as tables


def adapter_of(model: Any, trainable: Trainable = None, *, shared: bool = False) -> ModelAdapter:
    """Return the adapter of a model, with the model split.

    Args:
      model: an `nnx.Module`, a `Linen`, or any pytree with arrays (an Equinox module, a dict).
      trainable: what is differentiated: a predicate `(path, array) -> bool` such as `lambda path, x: "head" in path`,
        a tree of booleans, or for nnx also a filter such as `nnx.LoRAParam`. Default: `nnx.Param`, linen's `params`,
        inexact arrays elsewhere.
      shared: whether a pytree may hold one array in several places, which become arrays of their own. The state of an
        `update=` may: the first states of some optimizers hold the parameters.

    >>> import jax.numpy as jnp
    >>> adapter = adapter_of({"w": jnp.ones(2), "n": jnp.array(3)})
    >>> list(named_leaves(adapter.params)), list(adapter.model_state)
    (['w'], ['n'])
    """
    kind: Callable[[Any, Trainable], ModelAdapter] = partial(TreeAdapter, shared=shared)
    if is_module(model):
        kind = NnxAdapter
    elif isinstance(model, Linen):
        kind = LinenAdapter
    elif is_instance_of(model, "flax.linen", "Module"):
        raise LearnerError(
            f"the model is a linen module without variables ({type(model).__name__}); pass Linen(module, variables) "
            "with variables = module.init(key, example_input)",
            code="model-linen-without-variables",
        )
    elif is_instance_of(model, "torch.nn", "Module"):
        raise LearnerError(
            f"the model is a module of PyTorch ({type(model).__name__}), which JAX cannot differentiate: write it with "
            'flax or Equinox. load_model("model.safetensors", model, layout="torch") reads the weights of a state_dict',
            code="model-of-pytorch",
        )
    trainable = as_predicate(trainable)
    check_trainable(trainable, takes_filters=bool(nnx_modules(model)))
    for place, module in nnx_modules(model).items():
        refuse_values(module, place)
        if place and jax.tree_util.all_leaves([module]):
            raise LearnerError(
                f"{place} of the model is a {type(module).__name__}, which JAX does not traverse (pytree=False): make "
                "the whole model an nnx module, such as nnx.Dict(...), or leave out pytree=False",
                code="model-module-opaque",
                place=place,
            )
    adapter = kind(model, trainable)
    adapter.name = type(model.module if isinstance(model, Linen) else model).__name__
    _refuse_long_integers(adapter.model_state)
    if not jax.tree.leaves(adapter.params):
        raise NothingToTrainError(_no_parameters(model, adapter, trainable), adapter, code="model-nothing-to-train")
    return adapter


def check_trainable(trainable: Any, takes_filters: bool) -> None:
    """Raise `LearnerError` unless `trainable` is a predicate or, for nnx, a filter. A text would be a tag for nnx, but
    the user more likely means a pattern, as in `freeze`.
    """
    if is_instance_of(trainable, "equinox", "Module"):  # it may be callable
        raise LearnerError(
            f"trainable is a {type(trainable).__name__} whose leaves are not all booleans; it needs such a tree, or a "
            "predicate of the paths that experiment.log lists, such as lambda path, x: path.startswith('layers.2')",
            code="model-trainable-type",
        )
    is_predicate = callable(trainable) and not isinstance(trainable, type)
    if not (trainable is None or is_predicate or (takes_filters and is_filter(trainable))):
        filters = ", or of an nnx model a filter such as nnx.LoRAParam or nnx.WithTag('x')" if takes_filters else ""
        raise LearnerError(
            f"trainable is {trainable!r}; it needs a predicate such as lambda path, x: 'head' in path, a tree of "
            f"booleans{filters}",
            code="model-trainable-type",
        )
    if is_predicate:
        check_predicate(trainable)


@automatic_mesh()
def abstract_adapter(
    make: Callable[..., Any], trainable: Trainable = None, *, shared: bool = False, seed: int = 0
) -> tuple[ModelAdapter, Any]:
    """Return the adapter of the model that a function makes, and a model of the same type. The model itself is not
    created: its arrays are shapes, and `fresh` creates them inside the program that needs them. Only the random streams
    are created.

    If the function cannot be traced, or already has the arrays, it is called to create the model itself.

    Args:
      make: a function without arguments, or of `rngs`; it is called once if it can be traced.
      trainable: see `adapter_of`.
      shared: see `adapter_of`.
      seed: the seed of the random streams passed to `make`, if it has such an argument.

    >>> import jax.numpy as jnp
    >>> adapter, _ = abstract_adapter(lambda: {"w": jnp.ones(2)})
    >>> type(adapter.params["w"]).__name__, adapter.fresh(jax.random.key(0))
    ('ShapeDtypeStruct', ({'w': Array([1., 1.], dtype=float32)}, {}))
    """
    traced: list[tuple[ModelAdapter, Any]] = []
    seeded = takes_rngs(make) is not None

    def split(key: Array) -> tuple[PyTree, PyTree, PyTree]:
        model = call_with_key(make, key)
        refuse_abstract(model)
        for module in nnx_modules(model).values():
            mark_traced(module)
        traced.append((adapter_of(model, trainable, shared=shared), model))
        adapter = traced[-1][0]
        return adapter.params, adapter.model_state, adapter.streams

    key = jax.random.key(seed)
    try:
        program, shapes = jax.make_jaxpr(split, return_shape=True)(key)
    except LearnerError:
        raise
    except Exception as error:  # the function may fail in any way on arrays without values
        model = call_with_key(make, key)
        return _on_one_device(model, trainable, shared, f"it cannot be traced: {first_line(error)}")
    constants = sum(x.nbytes for x in program.consts)
    if constants > MOST_CONSTANT:
        why = f"it has {constants} bytes of arrays before it is called"
        return _on_one_device(call_with_key(make, key), trainable, shared, why)
    adapter, model = traced[-1]
    run, tree = jaxpr_as_fun(program), jax.tree.structure(shapes)

    def fresh(key: Array) -> tuple[PyTree, PyTree, PyTree]:
        everything: tuple[PyTree, PyTree, PyTree] = jax.tree.unflatten(tree, run(key))
        return everything

    adapter.params, adapter.model_state, _ = shapes
    streams = jax.jit(lambda key: fresh(key)[2])  # XLA eliminates the rest of the program
    adapter.fresh_streams = share(streams, [default_device()], run_once=True)
    adapter.streams = adapter.fresh_streams(key)
    adapter.fresh, adapter.seeded = lambda key: fresh(key)[:2], seeded
    return adapter, model


def takes_rngs(make: Callable[..., Any]) -> str | None:
    """Return how a model's function receives random streams: `"by name"`, as `rngs=`, or `"first"`. Return None if it
    has no arguments.

    Raises:
      LearnerError: the function needs other arguments.

    >>> takes_rngs(lambda: None), takes_rngs(lambda rngs: None), takes_rngs(lambda width=4, *, rngs: None)
    (None, 'by name', 'by name')
    """
    function = make.func if isinstance(make, functools.partial) else make
    given = (make.args, make.keywords) if isinstance(make, functools.partial) else ((), {})
    if isinstance(function, type):  # the signature of a class may be that of its metaclass
        function, given = function.__init__, ((None, *given[0]), given[1])  # type: ignore[misc]
    try:
        parameters = inspect.signature(functools.partial(function, *given[0], **given[1])).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if len(needed) > 1 or (needed and needed[0].kind is needed[0].KEYWORD_ONLY and needed[0].name != "rngs"):
        names = ", ".join(p.name for p in needed)
        raise LearnerError(
            f"the function that makes the model needs the arguments {names}; it may take only the random streams "
            "(rngs: nnx.Rngs); bind the others with functools.partial(function, ...)",
            code="model-function-arguments",
            names=names,
        )
    if not needed:
        return None
    return "by name" if needed[0].name == "rngs" and needed[0].kind is not needed[0].POSITIONAL_ONLY else "first"


def call_with_key(make: Callable[..., Any], key: Array) -> Any:
    """Return the model that a function makes, with `nnx.Rngs(key)` if it has an argument for random streams."""
    way = takes_rngs(make)
    if way is None:
        return make()
    from flax import nnx

    return make(rngs=nnx.Rngs(key)) if way == "by name" else make(nnx.Rngs(key))


def _refuse_long_integers(model_state: PyTree) -> None:
    """Raise `LearnerError` for integers that JAX would truncate to 32 bits."""
    for name, x in named_leaves(model_state).items():
        if isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "iu" and x.size:
            dtype = np.dtype(jax.dtypes.canonicalize_dtype(x.dtype))
            limits = np.iinfo(dtype)
            if dtype == x.dtype:
                continue
            if x.min() < limits.min or x.max() > limits.max:
                raise LearnerError(
                    f"{name} of the model has integers that {dtype} cannot hold ({x.min()} to {x.max()}, {x.dtype}): "
                    "JAX computes with 32 bits unless its option jax_enable_x64 is set",
                    code="model-integer-too-large",
                    name=name,
                )


def refuse_deleted(adapter: ModelAdapter) -> None:
    """Raise `LearnerError` for arrays that were donated to another program, which deletes them."""
    leaves = {**named_leaves(adapter.params), **named_leaves(adapter.model_state)}
    deleted = [name for name, x in leaves.items() if isinstance(x, jax.Array) and x.is_deleted()]
    if deleted:
        names = join_names(deleted, most=3)
        raise LearnerError(
            f"another program has donated arrays of the model ({adapter.name}), which deletes them: {names}. Pass it "
            "copies, jax.tree.map(jnp.copy, ...), or build the learner with its result",
            code="model-deleted",
            names=names,
        )


def refuse_abstract(model: Any) -> None:
    """Raise `LearnerError` for an abstract model, of shapes without values."""
    tree = model.variables if isinstance(model, Linen) else model
    if is_module(model):
        from flax import nnx

        tree = nnx.to_pure_dict(nnx.state(model))
    shapes = [path_name(p) for p, x in jax.tree_util.tree_leaves_with_path(tree) if isinstance(x, jax.ShapeDtypeStruct)]
    if shapes:
        raise LearnerError(
            f"the model ({type(model).__name__}) has shapes in place of arrays ({join_names(shapes, most=3)}), as "
            "nnx.eval_shape and jax.eval_shape return them: pass the function that makes the model, build(lambda: "
            "Model(...), ...); if the strategy shards the model, each device makes only its own part",
            code="model-only-shapes",
        )


def _on_one_device(model: Any, trainable: Trainable, shared: bool, why: str) -> tuple[ModelAdapter, Any]:
    adapter = adapter_of(model, trainable, shared=shared)
    adapter.note = f"the function that makes the model made it on one device, whole, before it was split: {why}"
    return adapter, model


def _no_parameters(model: Any, adapter: ModelAdapter, trainable: Trainable) -> str:
    others = [
        f"{name} ({getattr(x, 'dtype', type(x).__name__)})" for name, x in named_leaves(adapter.model_state).items()
    ]
    have = f"it has {', '.join(others[:8])}" if others else "it has no arrays"
    is_unregistered = dataclasses.is_dataclass(model) and jax.tree_util.all_leaves([model])
    why = (
        "its class is a dataclass that JAX does not know: decorate it with jax.tree_util.register_dataclass"
        if is_unregistered
        else "trainable= selects none of them, or freeze leaves none"
        if trainable is not None and others
        else "nothing in it can be differentiated: parameters are arrays of floats, such as jnp.asarray(0.5)"
    )
    return f"the model ({type(model).__name__}) has no parameters to train: {have}, and {why}"
